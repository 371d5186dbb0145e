"""The genuine Java client of 4.9.8, unchanged, against a broker of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rocketstore import StoreConfig
from rocketstore.broker.testing import Broker
from support.java_client import JavaClient, jars, require_java

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketstore.consuming.consumer import Consumer
    from rocketstore.units import QueueKey

pytestmark = [pytest.mark.java]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    require_java(jars)
    config = StoreConfig.small(transaction_check_interval=200, transaction_time_out=500)
    with Broker(config=config) as broker:
        yield broker


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[JavaClient]:
    with JavaClient(broker.name_server) as client:
        yield client


def bodies(messages: list[dict[str, object]]) -> list[object]:
    return sorted(str(one["body"]) for one in messages)


def test_sends_and_push_consumes_and_tries_again(broker: Broker, client: JavaClient) -> None:
    sent = [
        {"body": "fail 7" if number == 7 else f"{number}", "tags": "ab"[number % 2], "keys": "k"}
        for number in range(100)
    ]
    results = client.send("orders", *sent)
    assert {one["status"] for one in results} == {"SEND_OK"}
    assert {one["queueId"] for one in results} == {0, 1, 2, 3}
    for result, message in zip(results, sent, strict=True):
        stored = broker.store.by_id(result["offsetMsgId"])
        assert stored is not None
        assert (stored.body.decode(), stored.tags) == (message["body"], message["tags"])
        assert stored.unique_key == result["msgId"]

    client.consume("orders", "all")
    found = client.received("all", len(sent) + 1)
    [again] = [one for one in found if one["reconsumeTimes"]]
    assert (again["body"], again["topic"], again["tags"]) == ("fail 7", "orders", "b")
    assert bodies([one for one in found if one is not again]) == bodies(sent)


def test_consumer_of_some_tags_gets_those(client: JavaClient) -> None:
    client.send("tags", *({"body": tag, "tags": tag} for tag in "abcabc"))
    client.consume("tags", "some", "a || c")
    assert bodies(client.received("some", 4)) == ["a", "a", "c", "c"]
    client.send("tags", {"body": "b2", "tags": "b"}, {"body": "c2", "tags": "c"})
    assert bodies(client.received("some", 1)) == ["c2"]  # it was held, and woken by that one


def test_message_that_is_never_consumed_is_a_dead_letter(
    broker: Broker, client: JavaClient
) -> None:
    client.send("bad", {"body": "never"})
    client.consume("bad", "badly", maxReconsumeTimes=1)
    assert [one["reconsumeTimes"] for one in client.received("badly", 2)] == [0, 1]
    assert broker.store.wait_for("%DLQ%badly", 0, 0, timeout_s=60)
    [dead] = broker.store.get("%DLQ%badly", 0, 0).messages
    assert dead.body == b"never"


def test_batch_and_delayed_message_arrive(client: JavaClient) -> None:
    client.send_batch("mixed", *"abc")
    client.send("mixed", {"body": "late", "delayLevel": 1})
    client.consume("mixed", "mixed")
    assert bodies(client.received("mixed", 4)) == ["a", "b", "c", "late"]


def test_transactions_end_as_their_producer_says_or_answers(client: JavaClient) -> None:
    client.consume("paid", "payers")
    client.send_transactions("paid", "commit", "rollback", "askcommit", "askrollback")
    assert bodies(client.received("payers", 2)) == ["askcommit", "commit"]
    client.send("paid", {"body": "end"})
    assert bodies(client.received("payers", 1)) == ["end"]


def test_orderly_consumer_gets_each_queue_in_its_order(client: JavaClient) -> None:
    client.send("ordered", *({"body": f"{number:02d}"} for number in range(20)))
    client.consume("ordered", "orderly", orderly=True)
    found = client.received("orderly", 20)
    for queue_id in range(4):
        offsets = [one["queueOffset"] for one in found if one["queueId"] == queue_id]
        assert offsets == list(range(5))


def test_broadcast_consumers_get_everything_each(client: JavaClient) -> None:
    client.send("news", {"body": "1"}, {"body": "2"})
    client.consume("news", "reader", model="BROADCASTING")
    assert bodies(client.received("reader", 2)) == ["1", "2"]


def test_group_goes_on_where_it_stopped(broker: Broker, client: JavaClient) -> None:
    client.send("resumed", {"body": "1"}, {"body": "2"})
    client.consume("resumed", "resuming")
    assert bodies(client.received("resuming", 2)) == ["1", "2"]
    client.close_consumer("resuming")
    offsets = broker.store.consumer_offsets.snapshot()["resumed@resuming"]
    assert sum(offsets.values()) == 2
    client.send("resumed", {"body": "3"})
    client.consume("resumed", "resuming")
    assert bodies(client.received("resuming", 1)) == ["3"]


def test_group_has_members_here_and_there(broker: Broker, client: JavaClient) -> None:
    sent = [f"{number}" for number in range(40)]
    client.send("shared", *({"body": one} for one in sent))
    client.consume("shared", "sharing")
    before = client.received("sharing", 40)
    assert len(before) == 40
    with broker.store.consume("shared", "sharing") as consumer:
        here: list[str] = []
        # The client gives queues away when it is told; until then both may read the same.
        assert broker.store.wait_until(lambda: 0 < len(shared(consumer)) < 4, timeout_s=60)
        client.received("sharing", 1, timeout_s=2)
        client.send("shared", *({"body": f"new {one}"} for one in sent))
        there = client.received("sharing", 20)
        while len(here) < 20 and (message := consumer.poll(timeout_s=60)) is not None:
            if message.body.startswith(b"new"):  # and not what the client has yet to commit
                here.append(message.body.decode())
            message.ack()
    assert sorted([*here, *(str(one["body"]) for one in there)]) == sorted(
        f"new {one}" for one in sent
    )


def shared(consumer: Consumer) -> list[QueueKey]:
    return [key for key in consumer.queues if key.topic == "shared"]
