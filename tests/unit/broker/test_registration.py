"""Registration: who waits for it, and what a name server that is away changes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketstore.broker import registration as registration_module
from rocketstore.broker.registration import Registration
from rocketstore.broker.settings import BrokerSettings
from rocketstore.broker.topics import first_topics
from rocketstore.errors import FieldRangeError, RemotingError
from rocketstore.format.metadata_json import TopicConfig, decode_body
from rocketstore.format.registration import RegisterBrokerBody, unpack_registration
from rocketstore.remoting.command import Command, reply
from rocketstore.remoting.frame import LONGEST_FRAME
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.layout import StoreLayout
from rocketstore.tables.topic_settings import TopicSettings
from support.clock import Clock
from support.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def _nobody_goes_on_because_time_went_by(monkeypatch):
    monkeypatch.setattr(registration_module, "LONGEST_WAIT_S", PATIENCE_S)


class NameServers:
    """In place of a `RemotingClient`: requests that arrived, by address.

    "away" never answers, and "mute" neither while it `is_mute`, which takes its time.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, Command]] = []
        self.timeouts_ms: set[int] = set()
        self.may_answer = asyncio.Event()
        self.is_given_up = asyncio.Event()
        self.is_mute = True

    async def ask(self, address: str, request: Command, *, timeout_ms: int) -> Command:
        self.asked.append((address, request))
        self.timeouts_ms.add(timeout_ms)
        if address == "away":
            raise RemotingError(f"{address} did not answer within {timeout_ms} ms")
        if address == "mute" and self.is_mute:
            await self.is_given_up.wait()
            raise RemotingError(f"{address} did not answer within {timeout_ms} ms")
        await self.may_answer.wait()
        return reply()


async def until(is_true: Callable[[], object]) -> None:
    """Let the others of the loop work until something is true."""
    for _ in range(1000):
        if is_true():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come")


def made(
    path: Path, servers: NameServers, *addresses: str, **more: Any
) -> tuple[Registration, TopicSettings]:
    settings = BrokerSettings(broker_name="b", broker_permission=4, **more)
    (path / "config").mkdir()
    topics = TopicSettings(
        StoreLayout.of(path, None), clock=Clock(), disk=Disk(), system=first_topics(settings)
    )  # fmt: skip
    return Registration(settings, topics, servers, addresses), topics  # type: ignore[arg-type]


async def test_callers_that_wait_go_on_when_every_name_server_answered_or_was_given_up(tmp_path):
    servers = NameServers()
    registration, topics = made(tmp_path, servers, "away", "there")
    went_on: list[str] = []
    registration.then(lambda: went_on.append("begun"))
    topics.settle(TopicConfig(topic_name="orders"))
    registration.note_change()
    registration.then(lambda: went_on.append("known"))
    running = asyncio.create_task(registration.run())
    await until(lambda: len(servers.asked) == 2)
    assert not went_on
    servers.may_answer.set()
    await until(lambda: len(went_on) == 2)
    running.cancel()

    assert [address for address, _ in servers.asked] == ["away", "there"]
    request = servers.asked[1][1]
    assert request.fields
    assert (request.fields["brokerName"], request.fields["brokerAddr"]) == (
        "b", "127.0.0.1:10911",
    )  # fmt: skip
    table = decode_body(request.body, RegisterBrokerBody).topic_config_serialize_wrapper
    assert table
    assert table.topic_config_table["orders"].perm == 4  # as far as the broker grants it
    assert table.topic_config_table["TBW102"].perm == 5


async def test_a_name_server_that_was_given_up_holds_nobody_up_until_it_answers(tmp_path):
    servers = NameServers()
    servers.may_answer.set()
    registration, _ = made(tmp_path, servers, "mute", "there")
    went_on: list[str] = []

    async def told(topic: str) -> None:
        count = len(servers.asked)
        registration.note_change()
        registration.then(lambda: went_on.append(topic))
        await until(lambda: "there" in dict(servers.asked[count:]))
        await asyncio.sleep(0.01)

    running = asyncio.create_task(registration.run())
    await told("first")
    assert not went_on  # it may answer yet
    servers.is_given_up.set()
    await until(lambda: went_on)
    servers.is_given_up.clear()
    await told("second")
    assert went_on == ["first", "second"]
    servers.is_mute = False
    servers.is_given_up.set()
    await told("third")
    servers.is_mute = True
    servers.is_given_up.clear()
    await told("fourth")
    assert went_on == ["first", "second", "third"]  # it answered, so it is waited for again
    running.cancel()


async def test_a_name_server_that_is_silent_holds_a_client_up_for_two_seconds_at_most(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(registration_module, "LONGEST_WAIT_S", 0.01)
    registration, _ = made(tmp_path, NameServers(), "there")
    running = asyncio.create_task(registration.run())
    went_on = asyncio.Event()
    registration.then(went_on.set)
    await went_on.wait()
    running.cancel()


@pytest.mark.parametrize(("period_ms", "period_s"), [(20_000, 20), (1, 10), (600_000, 60)])
async def test_it_registers_as_often_and_waits_as_long_as_the_settings_say(
    tmp_path, monkeypatch, period_ms, period_s
):
    times = {"register_name_server_period": period_ms, "register_broker_timeout_mills": 700}
    servers, paused, timeout = NameServers(), set(), asyncio.timeout
    servers.may_answer.set()
    registration, _ = made(tmp_path, servers, "there", **times)
    monkeypatch.setattr(asyncio, "timeout", lambda pause_s: paused.add(pause_s) or timeout(0))
    running = asyncio.create_task(registration.run())
    await until(lambda: len(servers.asked) == 3)
    running.cancel()
    assert (paused, servers.timeouts_ms) == ({period_s}, {700})


async def test_change_while_it_registers_is_sent_in_the_next_round(tmp_path):
    servers = NameServers()
    registration, _ = made(tmp_path, servers, "there")
    running = asyncio.create_task(registration.run())
    await until(lambda: servers.asked)
    went_on: list[int] = []
    registration.note_change()
    registration.then(lambda: went_on.append(len(servers.asked)))
    servers.may_answer.set()
    await until(lambda: went_on)
    running.cancel()
    assert went_on == [2]


async def test_round_that_fails_is_followed_by_others(tmp_path, monkeypatch):
    """Otherwise the next client that makes a topic would wait for ever."""

    def refuse(_topics: object) -> None:
        raise MemoryError

    servers = NameServers()
    servers.may_answer.set()
    registration, _ = made(tmp_path, servers, "there")
    monkeypatch.setattr(registration, "_body", refuse)
    running = asyncio.create_task(registration.run())
    await registration.first()
    monkeypatch.undo()
    registration.note_change()
    went_on: list[bool] = []
    registration.then(lambda: went_on.append(True))
    await until(lambda: went_on and servers.asked)
    running.cancel()
    assert len(servers.asked) == 1


async def test_end_lets_all_go_on(tmp_path):
    registration, _ = made(tmp_path, NameServers(), "there")
    registration.note_change()
    went_on: list[bool] = []
    registration.then(lambda: went_on.append(True))
    registration.release()
    assert went_on == [True]


async def test_packed_registration_has_every_topic_as_it_may_be_used(tmp_path):
    servers = NameServers()
    servers.may_answer.set()
    registration, topics = made(tmp_path, servers, "one", compressed_register=True)
    topics.settle(TopicConfig(topic_name="orders", read_queue_nums=3, perm=6))
    running = asyncio.create_task(registration.run())
    await until(lambda: servers.asked)
    [(_, request)] = servers.asked
    assert request.fields
    assert request.fields["compressed"] == "true"
    table = unpack_registration(bytes(request.body)).topic_config_serialize_wrapper
    assert table
    assert table.data_version == topics.content.data_version
    assert table.topic_config_table.keys() == topics.content.topic_config_table.keys()
    orders = table.topic_config_table["orders"]
    assert (orders.read_queue_nums, orders.perm) == (3, 4)  # the broker grants reading
    running.cancel()


async def test_what_a_broker_says_of_its_topics_is_made_again_only_after_a_change(tmp_path):
    """With 40,000 topics it took the loop 0.4 s, for each name server and each half minute."""
    servers = NameServers()
    servers.may_answer.set()
    registration, topics = made(tmp_path, servers, "one", "two")
    running = asyncio.create_task(registration.run())
    await until(lambda: len(servers.asked) == 2)
    topics.settle(TopicConfig(topic_name="orders"))
    registration.note_change()
    await until(lambda: len(servers.asked) == 4)
    running.cancel()
    first, second, third, fourth = [request.body for _, request in servers.asked]
    assert first is second
    assert third is fourth
    assert b"orders" not in first
    assert b"orders" in third


async def test_topics_that_no_frame_holds_are_packed(tmp_path, monkeypatch):
    servers = NameServers()
    servers.may_answer.set()
    registration, topics = made(tmp_path, servers, "one")
    running = asyncio.create_task(registration.run())
    await until(lambda: servers.asked)
    plain = servers.asked[0][1]
    monkeypatch.setattr(registration_module, "LONGEST_PLAIN", len(plain.body))
    topics.settle(TopicConfig(topic_name="one-more"))
    registration.note_change()
    await until(lambda: len(servers.asked) == 2)
    running.cancel()
    packed = servers.asked[1][1]
    assert [one.fields and one.fields["compressed"] for one in (plain, packed)] == ["false", "true"]
    table = unpack_registration(bytes(packed.body)).topic_config_serialize_wrapper
    assert table
    assert "one-more" in table.topic_config_table
    assert registration_module.LONGEST_PLAIN < LONGEST_FRAME


async def test_a_reply_that_cannot_be_sent_holds_nobody_else_up(tmp_path):
    servers = NameServers()
    registration, _ = made(tmp_path, servers, "there")
    running = asyncio.create_task(registration.run())
    went_on: list[str] = []

    def fail() -> None:
        raise FieldRangeError("a reply is longer than a frame")

    registration.then(fail)
    registration.then(lambda: went_on.append("first"))
    servers.may_answer.set()
    await until(lambda: went_on)
    registration.note_change()
    registration.then(lambda: went_on.append("second"))
    await until(lambda: len(went_on) == 2)
    assert not running.done()
    running.cancel()
