"""Whatever a broker refuses is in its log: code, client, reason; the client may not show it."""

import pytest

from rocketstore.storage.running_flags import RunningFlag
from support.broker_desk import SEND, place_of
from support.said import capture_logs

SQL = b'{"subscriptionData":{"topic":"orders","subString":"n > 1","expressionType":"SQL92"}}'
GROUP = b'{"groupName":"a group","retryQueueNums":1}'
TOPIC = {"topic": "a topic", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
END = {"producerGroup": "P", "tranStateTableOffset": 0, "commitLogOffset": 0}
PULL = {
    "consumerGroup": "g", "topic": "none", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1,
    "sysFlag": 0, "commitOffset": 0,
}  # fmt: skip
BACK = {"offset": 7, "group": "g", "delayLevel": 0}


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [(25, None, b""), (325, SEND, b""), (14, {"topic": "orders"}, b""), (34, None, b"{"),
     (46, None, SQL), (17, TOPIC, b""), (200, None, GROUP), (11, PULL, b""), (36, BACK, b""),
     (37, {**END, "commitOrRollback": 8}, b""), (37, {**END, "commitOrRollback": 5}, b""),
     (310, {**SEND, "b": "a topic"}, b"")],
)  # fmt: skip
def test_each_request_that_is_refused_is_logged_with_its_reason(desk, code, fields, body):
    with capture_logs() as logs:
        told = desk.answer(code, fields, body)
    [line] = logs
    assert told.code > 0
    assert (line["event"], line["code"]) == ("request.refused", code)
    assert line["peer"] == desk.peer.address
    assert line["reason"] == ("nobody serves this code" if told.code == 3 else told.remark)


FULL = "97 % of the disk are used"


@pytest.mark.parametrize("code", [310, 325, 36, 37])
def test_what_the_store_does_not_take_is_logged_with_the_reason_that_4_9_does_not_tell(desk, code):
    sent = desk.send("orders", properties="TRAN_MSG\1true\2PGROUP\1P")
    offset = place_of(sent)
    half = {**END, "commitLogOffset": offset, "commitOrRollback": 8}
    back = {"offset": offset, "group": "g", "delayLevel": 0}
    desk.store.running_flags.set(RunningFlag.DISK_FULL, FULL)
    with capture_logs() as logs:
        told = desk.answer(code, {310: SEND, 325: SEND, 36: back, 37: half}[code], b"x")
    said = [one["reason"] for one in logs if one["event"] == "request.refused"]
    assert FULL in said[0]
    assert FULL not in str(told.remark)


def test_batch_that_is_cut_off_and_store_that_is_closed_are_logged(desk):
    with capture_logs() as logs:
        told = [desk.answer(320, {**SEND, "m": True}, b"\0\0\0\x09x")]
        desk.store.close()
        told.append(desk.send("orders"))
    assert [one.code for one in told] == [1, 14]
    assert [one["reason"] for one in logs] == [one.remark for one in told]
