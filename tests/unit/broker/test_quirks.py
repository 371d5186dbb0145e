"""What a broker of 4.9 does that nobody would guess, and clients count on; by the numbers of the
table "Odd habits that are kept" of docs/compatibility.md.
"""

from contextlib import closing

import pytest

from rocketstore.format.client_batch import encode_client_batch
from support.broker_desk import SEND, Desk, fields_of, place_of
from unit.broker.test_pulling import PULL, heartbeat

LONG = {
    "topic": "orders", "queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0,
}  # fmt: skip
QUEUE = {"topic": "orders", "queueId": 0}


def offset_of(desk: Desk, code: int, **fields: object) -> int:
    return int(fields_of(desk.answer(code, {**QUEUE, **fields}))["offset"])


def filled(desk: Desk, count: int = 3) -> Desk:
    for number in range(count):
        desk.clock.now_ms += 1000
        assert desk.send("orders", b"%d" % number).code == 0
    desk.store.wait_dispatched()
    return desk


def test_4_a_field_that_is_missing_matters_with_letters_only(desk):
    assert desk.send("orders").code == 0
    assert desk.answer(10, LONG, b"x").code == 0  # no producer group, no template
    assert desk.answer(35, {"consumerGroup": "G"}).code == 0  # its connection says who leaves
    desk.store.wait_dispatched()
    for flags in (4, 5):  # with nothing to commit nothing is, though the flag says so
        fields = {name: value for name, value in PULL.items() if name != "commitOffset"}
        assert desk.answer(11, {**fields, "sysFlag": flags}).code == 0
        assert "orders@G" not in desk.store.consumer_offsets.snapshot()
    for letter in "abcdefgh":
        fields = {name: value for name, value in SEND.items() if name != letter}
        reply = desk.answer(310, fields, b"x")
        assert (reply.code, reply.remark) == (1, f"the custom field <{letter}> is null")


def test_5_a_1_is_not_true(desk):
    body = encode_client_batch([(0, b"a", b""), (0, b"b", b"")])
    assert desk.send("orders").code == 0
    for text, count in (("1", 1), ("true", 2), ("TRUE", 2)):
        reply = desk.answer(10, {**LONG, "batch": text}, body)
        assert len(fields_of(reply)["msgId"].split(",")) == count


def test_8_a_topic_that_was_made_is_answered_with_a_remark(desk):
    topic = {"topic": "made", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    reply = desk.answer(17, topic)
    assert (reply.code, reply.remark) == (0, "not set any response code")


@pytest.mark.parametrize(
    ("code", "changed", "answer"),
    [
        (10, {}, 0), (310, {}, 0), (320, {"m": "true"}, 1), (310, {"b": "a b"}, 1),
        (310, {"e": 99}, 1), (310, {"b": "SCHEDULE_TOPIC_XXXX"}, 16), (310, {"c": "none"}, 17),
        (310, {"i": "p\1" + "x" * 32_767}, 13), (310, {"i": "DELAY\1soon"}, 13),
    ],
)  # fmt: skip
def test_9_a_reply_to_a_send_says_region_and_trace_whatever_became_of_it(
    desk, code, changed, answer
):
    fields = {**LONG, "defaultTopic": "TBW102", "defaultTopicQueueNums": 1} if code == 10 else SEND
    reply = desk.answer(code, {**fields, **changed}, b"x")
    assert reply.code == answer
    assert fields_of(reply).items() >= {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}.items()


def test_9_region_and_trace_of_a_reply_are_settings(tmp_path):
    with closing(Desk(tmp_path, region_id="north", trace_on=False)) as desk:
        reply = desk.answer(310, SEND, b"x")
    assert fields_of(reply).items() >= {"MSG_REGION": "north", "TRACE_ON": "false"}.items()


def test_10_keys_of_bodies_are_numbers_and_objects(desk):
    filled(desk)
    queue = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:{'
    assert desk.answer(202, {"topic": "orders"}).body.startswith(queue)
    desk.answer(15, {**QUEUE, "consumerGroup": "G", "commitOffset": 1})
    stats = desk.answer(208, {"consumerGroup": "G"}).body
    assert stats.startswith(b'{"consumeTps":0.0,' + queue[1:])


def test_11_an_expression_of_sql92_is_refused_and_never_taken_for_all(desk):
    """4.9 with enablePropertyFilter takes a text that does not compile for every message."""
    filled(desk)
    for text in ("a > 1", "a >"):
        wanted = {"subscription": text, "expressionType": "SQL92", "sysFlag": 4}
        reply = desk.answer(11, {**PULL, **wanted})
        assert (reply.code, reply.body) == (1, b"")
        heartbeat(desk, tags=text, expressionType="SQL92")
        reply = desk.answer(11, {**PULL, "sysFlag": 0, "subVersion": 1})
        assert (reply.code, reply.body) == (1, b"")


@pytest.mark.parametrize(("asked", "got"), [(-1, 1), (0, 1), (1, 1), (32, 32), (33, 32), (99, 32)])
def test_12_a_pull_gets_one_message_at_least_and_32_at_most(desk, asked, got):
    filled(desk, 40)
    reply = desk.answer(11, {**PULL, "sysFlag": 4, "maxMsgNums": asked})
    assert fields_of(reply)["nextBeginOffset"] == str(got)


def test_13_a_topic_that_nobody_knows_begins_and_ends_at_0(desk):
    assert [offset_of(desk, code, topic="none") for code in (30, 31)] == [0, 0]
    assert "none" not in desk.topics.table.content.topic_config_table


def test_14_later_than_all_is_the_last_message(desk):
    filled(desk)
    now_ms = desk.clock.now_ms
    found = [offset_of(desk, 29, timestamp=at) for at in (0, now_ms, now_ms + 1, 2**62)]
    assert found == [0, 2, 2, 2]
    assert offset_of(desk, 29, timestamp=0, topic="none") == 0


def test_15_a_new_group_in_a_young_queue_begins_at_its_beginning(desk):
    filled(desk)
    assert offset_of(desk, 14, consumerGroup="new") == 0
    desk.answer(15, {**QUEUE, "consumerGroup": "new", "commitOffset": -1})
    assert offset_of(desk, 14, consumerGroup="new") == 0  # a -1 is kept, and means nothing


def test_17_and_18_a_delayed_message_waits_under_another_name(desk):
    assert desk.send("orders", properties="DELAY\0013").code == 0
    reply = desk.send("orders", properties="DELAY\0013", e=1)
    assert (fields_of(reply)["queueId"], fields_of(reply)["queueOffset"]) == ("1", "1")
    desk.store.wait_dispatched()
    [waiting] = desk.store.get("SCHEDULE_TOPIC_XXXX", 2, 1, 1).messages
    kept = {"DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "1"}
    assert waiting.properties.items() >= kept.items()
    desk.clock.now_ms += 10_000
    assert desk.store.delays is not None
    for _ in range(2):  # the first turn finds out what was delivered before
        desk.store.delays.turn()
    desk.store.wait_dispatched()
    [delivered] = desk.store.get("orders", 1, 0, 1).messages
    assert delivered.properties == waiting.properties


def test_17_a_committed_message_keeps_what_a_half_one_had(desk):
    half = desk.send("orders", properties="TRAN_MSG\1true\2PGROUP\1P", f=4, h=7, j=2)
    end = {
        "producerGroup": "P", "tranStateTableOffset": fields_of(half)["queueOffset"],
        "commitLogOffset": place_of(half), "commitOrRollback": 8, "msgId": "-",
    }  # fmt: skip
    assert desk.answer(37, end).code == 0
    desk.store.wait_dispatched()
    [message] = desk.store.get("orders", 0, 0, 1).messages
    kept = {"TRAN_MSG": "true", "PGROUP": "P", "REAL_TOPIC": "orders", "REAL_QID": "0"}
    assert message.properties.items() >= kept.items()
    assert (message.flag, message.reconsume_times) == (7, 2)


def test_19_a_dead_letter_counts_one_more_try_in_a_topic_of_one_queue(desk):
    filled(desk, 1)
    assert desk.answer(36, {"offset": 0, "group": "G", "delayLevel": -1}).code == 0
    desk.store.wait_dispatched()
    topic = desk.topics.get("%DLQ%G")
    assert topic is not None
    assert (topic.perm, topic.read_queue_nums, topic.write_queue_nums) == (6, 1, 1)
    [dead] = desk.store.get("%DLQ%G", 0, 0, 1).messages
    assert dead.reconsume_times == 1
    kept = {"DELAY": "0", "WAIT": "false", "RETRY_TOPIC": "orders"}
    assert dead.properties.items() >= kept.items()


@pytest.mark.parametrize(("wanted", "read", "used"), [(1, 8, 1), (8, 1, 1), (2, 8, 2), (8, 3, 3)])
def test_what_is_given_back_goes_where_it_is_read_and_no_further(desk, wanted, read, used):
    filled(desk, 1)
    for name in ("%RETRY%G", "%DLQ%G"):
        topic = {"topic": name, "readQueueNums": read, "writeQueueNums": 8, "perm": 6}
        assert desk.answer(17, topic).code == 0
    group = b'{"groupName":"G","retryQueueNums":%d}' % wanted
    assert desk.answer(200, None, group).code == 0
    desk.told.waits = True  # for topics of others
    for _ in range(50):
        for level in (1, -1):
            assert desk.answer(36, {"offset": 0, "group": "G", "delayLevel": level}).code == 0
    desk.store.wait_dispatched()
    waiting = [
        message.properties["REAL_QID"]
        for offset in (0, 32)
        for message in desk.store.get("SCHEDULE_TOPIC_XXXX", 0, offset, 32).messages
    ]
    assert sorted(set(waiting)) == [str(queue_id) for queue_id in range(used)]
    assert desk.store.max_offset("%DLQ%G", 0) == 50


def test_20_properties_of_a_batch_are_those_of_each_message(desk):
    body = encode_client_batch([(0, b"a", b"TAGS\1x"), (0, b"b", b""), (0, b"c", b"A\1b\2")])
    assert desk.answer(320, {**SEND, "m": "true", "i": "WAIT\1true\2K\1v\2"}, body).code == 0
    desk.store.wait_dispatched()
    joint = b"WAIT\1true\2K\1v\2CLUSTER\1DefaultCluster"
    messages = desk.store.get("orders", 0, 0, 3).messages
    said = [one.raw_properties for one in messages]
    assert said == [b"TAGS\1x\2" + joint, joint, b"A\1b\2" + joint]
    first, second, _ = messages
    assert second.physical_offset == first.physical_offset + first.size


@pytest.mark.parametrize("own", ["UNIQ_KEY\1k{}", "a\1b\2UNIQ_KEY\1k{}\2", "a\1b"])
def test_messages_of_a_batch_keep_the_unique_keys_that_their_producer_was_told(desk, own):
    """A client of 5.x gives the batch one as well, which all of them would be known by."""
    rows = [(0, b"x", own.format(number).encode()) for number in range(3)]
    for given in ("UNIQ_KEY\1batch\2MINE\1y\2", "MINE\1y\2UNIQ_KEY\1batch", "MINE\1UNIQ_KEY"):
        fields = {**SEND, "i": given, "m": True}
        assert desk.answer(320, fields, encode_client_batch(rows)).code == 0
    desk.store.wait_dispatched()
    found = desk.store.get("orders", 0, 0).messages
    keys = ["k0", "k1", "k2"] * 3 if "UNIQ" in own else ["batch"] * 6 + [None] * 3
    assert [one.unique_key for one in found] == keys
    assert [one.properties["MINE"] for one in found] == ["y"] * 6 + ["UNIQ_KEY"] * 3


def test_21_and_23_checksums_lack_their_top_bit_and_a_body_may_be_empty(desk):
    for body in (b"", b"a", b"orders"):  # the last two have one with the bit set
        assert desk.send("orders", body).code == 0
    desk.store.wait_dispatched()
    found = desk.store.get("orders", 0, 0, 3).messages
    assert [one.body for one in found] == [b"", b"a", b"orders"]
    assert found[0].body_crc == 0
    assert all(0 <= one.body_crc < 2**31 for one in found)


def test_24_a_group_without_members_has_a_code_for_each_request(desk):
    group = {"consumerGroup": "none"}
    answers = [desk.answer(code, group) for code in (38, 203)]
    assert [(one.code, one.remark) for one in answers] == [
        (1, "no consumer for this group, none"),
        (206, "the consumer group[none] not online"),
    ]
