"""Whatever a request says, it is answered, held or dropped; nothing of it is a surprise."""

import logging
import random
import re

import pytest

from rocketstore.broker.held_pulls import LOOK_MS
from rocketstore.remoting.fields import field_rows
from support.fault_settings import base_seed, odd_request_count

TEXTS = [
    "0", "1", "-1", "4", "2147483647", "-2147483648", "9223372036854775807", "true", "x", "",
    "orders", "%RETRY%G", "TBW102", "a/b", "..", "\0", "é" * 5, "G", "SQL92", "||", "a || b",
    "x" * 200, "KEYS\1k\2WAIT\1false", "DELAY\1x", "DELAY\0013", "TRAN_MSG\1true\2PGROUP\1P",
    "REPLY_TO_CLIENT\1c", "REPLY_TO_CLIENT\1x\2\2\1",
    "INNER_MULTI_DISPATCH\1q", "\1\2\1", "A\1b\2\2",
]  # fmt: skip
USUAL = {"int": ["0"], "long": ["0"], "boolean": ["false"], "string": ["orders", "G", "TBW102"]}
BODIES = [
    b"", b"x", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 5000, b"[" * 500 + b"]" * 500,
    b"\0" * 40,
    b'{"mqSet":[{"brokerName":"b","queueId":0,"topic":"t"}]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[{"topic":"o"}]}]}',
    b'{"clientID":"c","producerDataSet":[{"groupName":"P"}]}',
    b'{"groupName":"H"}', b'{"groupName":"a b"}', b'{"subscriptionData":{"topic":"t"}}',
    bytes.fromhex("0000001e0000000000000000000000000000000000016100"),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_odd_request_fails_by_itself_and_by_name(desk, seed, caplog):
    caplog.set_level(logging.WARNING, "rocketstore")  # of refusals there are many
    chance = random.Random(base_seed() + seed)
    desk.send("orders")
    rows = list(desk.table.rows.values())
    for number in range(odd_request_count() // 3):
        row = chance.choice(rows)
        fields = {
            one.name: chance.choice(TEXTS if chance.random() < 0.45 else USUAL[one.type])
            for one in field_rows(row.header)
            if chance.random() < 0.93
        }
        said = fields if chance.random() < 0.98 else None
        desk.call(int(row.code), said, chance.choice(BODIES))
        if number % 50 == 0:
            desk.store.wait_dispatched()
            desk.clock.now_ms += LOOK_MS
            desk.table.pulling.sweep()
    assert [one for one in caplog.messages if "failed" in one] == []
    assert desk.answer(30, {"topic": "orders", "queueId": 0}).code == 0


@pytest.mark.parametrize("body", [one for one in BODIES if b'":"' in one])
def test_half_a_character_in_a_body_is_a_question_mark_as_java_stores_it(desk, caplog, body):
    halved = re.sub(rb'":"', rb'":"\\ud83d', body)
    marked = re.sub(rb'":"', rb'":"?', body)
    for row in list(desk.table.rows.values()):
        answers = [desk.call(int(row.code), {}, one) for one in (halved, marked)]
        assert len({one and (one.code, one.remark, one.body) for one in answers}) == 1, row.code
    assert "request.failed" not in caplog.text
