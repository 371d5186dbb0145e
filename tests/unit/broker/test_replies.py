"""A consumer's reply is pushed to the client that waits for it, stored, and answered."""

import json
import time

import pytest

from rocketstore import StoreConfig
from rocketstore.broker import sending
from rocketstore.broker.sending import PUSH_MS
from rocketstore.broker.testing import Broker
from rocketstore.config import FlushDiskType
from rocketstore.errors import RemotingError
from rocketstore.remoting.command import Command, reply
from support.broker_desk import SEND, Desk, Peer, fields_of
from support.broker_wire import Wire
from support.patience import PATIENCE_S
from support.said import capture_logs

TOPIC = "DefaultCluster_REPLY_TOPIC"
REPLY = {**SEND, "b": TOPIC, "i": "CORRELATION_ID\1c1\2REPLY_TO_CLIENT\1asker\2MSG_TYPE\1reply"}
TOLD = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


def heartbeat(client_id: str, *groups: str) -> bytes:
    said = {"clientID": client_id, "producerDataSet": [{"groupName": one} for one in groups]}
    return json.dumps(said).encode()


@pytest.fixture
def asker(desk):
    """The client that waits."""
    peer = Peer(1)
    assert desk.answer(34, None, heartbeat("asker", "P", "Q"), peer=peer).code == 0
    peer.heard.clear()
    return peer


def stored(desk: Desk) -> list[tuple[bytes, dict[str, str], int]]:
    desk.store.wait_dispatched()
    messages = desk.store.get(TOPIC, 0, 0).messages
    return [(one.raw_body, dict(one.properties), one.sys_flag) for one in messages]


def test_it_is_pushed_to_the_client_that_asked_and_then_stored(desk, asker):
    answer = desk.answer(325, {**REPLY, "h": 5, "j": 2}, b"done")
    [pushed] = asker.heard
    now_ms = str(desk.clock.now_ms)
    assert (pushed.code, pushed.body) == (326, b"done")
    assert pushed.fields == {
        "producerGroup": "P", "topic": TOPIC, "defaultTopic": "TBW102", "flag": "5",
        "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "bornTimestamp": "1",
        "reconsumeTimes": "2", "unitMode": "false", "bornHost": desk.peer.address,
        "storeHost": desk.store.config.store_host, "storeTimestamp": now_ms,
        "properties": f"PUSH_REPLY_TIME\1{now_ms}\2{REPLY['i']}",
    }  # fmt: skip
    found = desk.store.get(TOPIC, 0, 0).messages[0] if desk.store.wait_dispatched() else None
    assert found is not None
    where = {"msgId": found.message_id, "queueId": "0", "queueOffset": "0"}
    assert (answer.code, answer.remark, answer.fields) == (0, None, {**where, **TOLD})
    own = {"CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "asker", "MSG_TYPE": "reply"}
    assert stored(desk) == [(b"done", own, 0)]


def test_one_with_long_names_goes_the_same_way(desk, asker):
    fields = {
        "topic": TOPIC, "queueId": -1, "sysFlag": 1, "bornTimestamp": 7, "flag": 0,
        "properties": f"{REPLY['i']}\2WAIT\1true",
    }  # fmt: skip
    assert desk.answer(324, fields, b"packed").code == 0
    [pushed] = asker.heard
    fields = fields_of(pushed)
    assert (fields["queueId"], fields["sysFlag"], "producerGroup" in fields) == ("-1", "1", False)
    [(body, properties, sys_flag)] = stored(desk)
    assert (body, properties["WAIT"], sys_flag) == (b"packed", "true", 1)


def gone(_request: Command, _timeout_ms: int) -> Command:
    raise RemotingError("it is gone")


@pytest.mark.parametrize(
    ("properties", "answers", "remark"),
    [
        ("A\1b", None, "reply message properties[REPLY_TO_CLIENT] is null"),
        ("", None, "reply message properties[REPLY_TO_CLIENT] is null"),
        ("REPLY_TO_CLIENT\1x", None, "push reply message fail, channel of <x> not found."),
        (REPLY["i"], lambda *_: reply(1, "no"), "push reply message to askerfail."),
        (REPLY["i"], gone, "push reply message to askerfail."),
    ],
)
def test_one_that_nobody_takes_is_refused_and_logged_and_stored_all_the_same(
    desk, asker, properties, answers, remark
):
    asker.answers = answers
    with capture_logs() as logs:
        answer = desk.answer(325, {**REPLY, "i": properties}, b"done")
    assert (answer.code, answer.remark) == (1, remark)
    assert fields_of(answer)["queueOffset"] == "0"
    assert [(one["event"], one["code"], one["reason"]) for one in logs] == [
        ("request.refused", 325, remark)
    ]
    assert len(asker.heard) == (answers is not None)
    assert [body for body, _, _ in stored(desk)] == [b"done"]


def test_a_client_has_as_long_to_take_it_as_with_4_9(desk, asker):
    times: list[int] = []
    asker.answers = lambda _request, timeout_ms: times.append(timeout_ms) or reply()
    desk.answer(325, REPLY)
    assert times == [PUSH_MS] == [10_000]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"b": "SCHEDULE_TOPIC_XXXX"}, 16), ({"b": "a b"}, 1), ({"e": 9}, 1),
        ({"b": "none", "c": ""}, 17),
    ],
)  # fmt: skip
def test_what_no_send_may_do_is_not_pushed(desk, asker, more, code):
    answer = desk.answer(325, {**REPLY, **more}, b"done")
    assert (answer.code, answer.fields, asker.heard) == (code, TOLD, [])


def test_one_that_the_store_does_not_take_is_pushed_and_said_to_be_nowhere(desk, asker):
    answer = desk.answer(325, REPLY, bytes(desk.store.config.max_message_size + 1))
    assert len(asker.heard) == 1
    nowhere = {"msgId": "0", "queueId": "0", "queueOffset": "0"}
    assert (answer.code, answer.fields) == (0, {**nowhere, **TOLD})


def test_its_answer_waits_for_name_servers_and_for_no_sync(tmp_path):
    config = StoreConfig.small(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    desk, asker = Desk(tmp_path, config), Peer(1)
    desk.call(34, None, heartbeat("asker", "P"), peer=asker)
    desk.told.waits = True
    assert desk.call(325, {**REPLY, "b": "new"}, b"done") is None
    assert [one.code for one in asker.heard if one.code == 326] == [326]
    assert not desk.loop.pending
    [go_on] = desk.told.waiting
    go_on()
    assert desk.peer.last.code == 0
    desk.close()


def test_who_is_named_goes_with_what_named_it(desk):
    clients = desk.table.clients
    first, second = Peer(1), Peer(2)
    for number in range(100):  # one connection, many names
        desk.call(34, None, heartbeat(f"c{number}", "P", "Q"), peer=first)
    assert clients.named.keys() == {"c99"}
    desk.call(34, None, heartbeat("c99", "P"), peer=second)
    desk.table.disconnected(first)
    assert clients.named["c99"].peer is second
    desk.call(35, {"clientID": "c99", "producerGroup": "P"}, peer=second)
    assert clients.named == clients.producers == {}


def test_a_client_that_says_nothing_is_waited_for_so_long_only(monkeypatch):
    monkeypatch.setattr(sending, "PUSH_MS", 100)
    with Broker() as broker, Wire(broker.address) as asker, Wire(broker.address) as other:
        assert asker.ask(34, None, heartbeat("asker", "P")).code == 0
        answer = other.ask(325, REPLY, b"done")  # the asker's own loop does not even run
        assert (answer.code, answer.remark) == (1, "push reply message to askerfail.")
        assert broker.store.wait_for(TOPIC, 0, 0, timeout_s=PATIENCE_S)


def test_a_broker_does_not_wait_at_its_end_for_a_client_that_says_nothing(monkeypatch):
    monkeypatch.setattr(sending, "PUSH_MS", 600_000)
    with Broker() as broker, Wire(broker.address) as asker, Wire(broker.address) as other:
        assert asker.ask(34, None, heartbeat("asker", "P")).code == 0
        began = time.monotonic()
        with pytest.raises(RemotingError):
            other.ask_while((325, REPLY, b"done"), broker.close)
        assert time.monotonic() - began < 60  # of 600 s
