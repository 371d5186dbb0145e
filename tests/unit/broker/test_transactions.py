"""Ends of transactions, and whom a check asks."""

import pytest

from rocketstore.remoting.command import Command
from support.broker_desk import Desk, fields_of, place_of
from support.oracle.record import decode_record

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


def begin(desk: Desk) -> dict[str, object]:
    """Send a half message; return the fields of its end."""
    sent = desk.send("paid", b"half", "TRAN_MSG\1true\2PGROUP\1P\2UNIQ_KEY\1u", f=4, e=1)
    return {
        "producerGroup": "P", "tranStateTableOffset": fields_of(sent)["queueOffset"],
        "commitLogOffset": place_of(sent), "msgId": "u",
    }  # fmt: skip


def end(desk: Desk, fields: dict[str, object], how: int) -> Command:
    return desk.answer(37, {**fields, "commitOrRollback": how})


def test_commit_puts_the_message_where_consumers_find_it(desk):
    assert end(desk, begin(desk), COMMIT).code == 0
    desk.store.wait_dispatched()
    [message] = desk.store.get("paid", 1, 0).messages
    assert (message.body, message.properties["CLUSTER"]) == (b"half", "DefaultCluster")


def test_rollback_puts_nothing_and_is_not_ended_again(desk):
    fields = begin(desk)
    rolled_back, committed = (end(desk, fields, how) for how in (ROLLBACK, COMMIT))
    assert (rolled_back.code, committed.code, committed.remark) == (0, 0, None)
    assert rolled_back.remark == "not set any response code"  # as 4.9 says it
    desk.store.wait_dispatched()
    assert desk.store.max_offset("paid", 1) == 0


def test_group_that_ends_a_transaction_is_that_of_the_property(desk):
    """As in 4.9, which asks this group, and does not look at that of the header."""
    desk.send("paid", b"half", "TRAN_MSG\1true\2PGROUP\1P", a="other")
    offsets = {"tranStateTableOffset": 0, "commitLogOffset": 0}
    assert end(desk, {**offsets, "producerGroup": "other"}, COMMIT).remark == (
        "The producer group wrong"
    )
    assert end(desk, {**offsets, "producerGroup": "P"}, COMMIT).code == 0


def test_half_message_gets_the_group_and_the_unique_key_that_it_lacks(desk):
    """Nobody could end it in 4.9; the group is that of the request."""
    desk.dispatched("paid", b"half", "TRAN_MSG\1true", a="P")
    [half] = desk.store.get("RMQ_SYS_TRANS_HALF_TOPIC", 0, 0).messages
    assert half.properties["PGROUP"] == "P"
    assert half.unique_key
    offsets = {"tranStateTableOffset": 0, "commitLogOffset": half.physical_offset}
    assert end(desk, {**offsets, "producerGroup": "P"}, COMMIT).code == 0


def test_producer_that_does_not_know_gets_no_answer(desk, caplog):
    fields = begin(desk)
    assert desk.call(37, {**fields, "commitOrRollback": UNKNOWN}) is None
    assert "request.failed" not in caplog.text
    assert end(desk, fields, 7).remark == "commitOrRollback field wrong"


@pytest.mark.parametrize(
    ("wrong", "remark"),
    [
        ({"commitLogOffset": 9_999}, "Find prepared transaction message failed"),
        ({"producerGroup": "Q"}, "The producer group wrong"),
        ({"tranStateTableOffset": 7}, "The transaction state table offset wrong"),
        ({"tranStateTableOffset": 0, "commitLogOffset": 9_999}, "The commit log offset wrong"),
    ],
)
def test_end_that_names_another_half_message_is_refused(desk, wrong, remark):
    fields = begin(desk)
    desk.store.wait_dispatched()
    found = end(desk, {**fields, **wrong}, COMMIT)
    if wrong == {"commitLogOffset": 9_999}:  # the half queue says where it lies
        remark = "The commit log offset wrong"
    assert (found.code, found.remark) == (1, remark)


def test_check_asks_a_producer_with_the_message_as_it_will_be(desk):
    begin(desk)
    body = b'{"clientID":"p","producerDataSet":[{"groupName":"P"}]}'
    desk.answer(34, None, body)
    desk.store.wait_dispatched()
    desk.clock.now_ms += desk.store.config.transaction_time_out + 1
    checks = desk.store.transaction_checks
    assert checks.turn(desk.clock.now_ms) == 1
    question = desk.peer.last
    assert (question.code, question.fields and question.fields["msgId"]) == (39, "u")
    assert question.fields
    offset = int(question.fields["commitLogOffset"])
    message = decode_record(memoryview(question.body), 0, base=offset)
    assert (message.topic, message.queue_id, message.body) == ("paid", 1, b"half")
    answer = {"producerGroup": "P", "fromTransactionCheck": True, **question.fields}
    assert desk.answer(37, {**answer, "commitOrRollback": COMMIT}).code == 0


def test_check_without_a_producer_asks_nobody(desk):
    begin(desk)
    desk.store.wait_dispatched()
    desk.clock.now_ms += desk.store.config.transaction_time_out + 1
    heard = len(desk.peer.heard)
    desk.store.transaction_checks.turn(desk.clock.now_ms)
    assert len(desk.peer.heard) == heard
