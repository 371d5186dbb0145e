"""Unchanged clients of PyPI (over C++), npm and Go against a broker of ours."""

import time
from collections import Counter
from collections.abc import Callable

import pytest

from rocketstore import StoreConfig
from rocketstore.broker.testing import Broker
from support.broker_wire import Wire
from support.other_clients import OtherClient, go_client, node_client, python_client
from support.patience import PATIENCE_S

TOPIC = "orders"
QUEUES = 4
OK = {python_client: 0, node_client: "SEND_OK", go_client: 0}
"""How each says that a message was sent."""


@pytest.fixture(scope="module", params=OK, ids=lambda client: client.__name__.split("_")[0])
def kind(request):
    client: Callable[[], list[str]] = request.param
    return client


@pytest.fixture
def broker():
    # The pause before the second try is the third level.
    with Broker(config=StoreConfig.small(message_delay_level="1s 1s 1s")) as broker:
        with Wire(broker.address) as wire:  # not every client makes topics
            fields = {"topic": TOPIC, "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6}
            assert wire.ask(17, fields).code == 0
        yield broker


@pytest.fixture
def client(kind, broker):
    with OtherClient(kind, broker.name_server) as client:
        yield client


def bodies(broker: Broker) -> list[bytes]:
    queues = [key for key in broker.store.queues() if key.topic == TOPIC]
    return sorted(one.body for key in queues for one in broker.store.get(*key, 0).messages)


def test_client_sends_and_consumes_and_tries_again(kind, broker, client):
    assert client.send(TOPIC, "one", "two", "fail") == [OK[kind]] * 3
    client.consume(TOPIC, "first")
    found = sorted(one[:3] for one in client.received(4))
    assert found == [["fail", 0, "a"], ["fail", 1, "a"], ["one", 0, "a"], ["two", 0, "a"]]
    assert bodies(broker) == [b"fail", b"one", b"two"]


def test_group_shares_its_queues_with_members_that_join_and_takes_those_of_members_that_leave(
    client,
):
    rounds = Rounds(client)
    client.consume(TOPIC, "first")
    rounds.until_readers_are(first=4)
    client.consume(TOPIC, "second")
    rounds.until_readers_are(first=2, second=2)
    client.close("second")
    rounds.until_readers_are(first=4)


class Rounds:
    """Messages sent in rounds, some to each queue, until the group has shared its queues."""

    def __init__(self, client: OtherClient) -> None:
        self._client = client
        self._sent = 0

    def until_readers_are(self, **counts: int) -> None:
        """Send rounds until each queue has one reader, and each reader so many queues."""
        readers: set[tuple[int, str]] = set()
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            readers = self._round()
            if len({queue for queue, _ in readers}) == len(readers) == QUEUES:
                shares = Counter(name for _, name in readers)
                if shares == counts:
                    return
        pytest.fail(f"the queues have the readers {sorted(readers)}, and not {counts}")

    def _round(self) -> set[tuple[int, str]]:
        """Send a round, wait until all of it came; return the readers of each queue."""
        missing = {f"{self._sent + number}" for number in range(4 * QUEUES)}
        self._sent += len(missing)
        self._client.send(TOPIC, *missing)
        readers = set()
        while missing:  # what is received twice makes the round one without a single reader
            [(body, _, _, queue, name)] = self._client.received(1)
            missing.discard(body)
            readers.add((queue, name))
        return readers
