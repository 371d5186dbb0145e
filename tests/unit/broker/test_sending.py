"""Sends: which topic they make, what is stored of them, and when they are answered."""

from contextlib import closing

import pytest

from rocketstore import StoreConfig
from rocketstore.config import FlushDiskType
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.format.metadata_json import TopicConfig
from rocketstore.format.stored_message import StoredMessage
from rocketstore.storage.results import PutMessageStatus, PutResult
from support.broker_desk import SEND, Desk, Peer, fields_of, place_of
from support.oracle.record import decode_record


def stored(desk: Desk, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    desk.store.wait_dispatched()
    return desk.store.get(topic, queue_id, 0).messages


def test_message_is_stored_with_the_cluster_and_without_wait(desk):
    sent = desk.send("orders", b"one", "KEYS\1k\2WAIT\1true\2TAGS\1a", g=5, h=7)
    assert sent.code == 0
    [message] = stored(desk, "orders")
    assert message.properties == {"KEYS": "k", "TAGS": "a", "CLUSTER": "DefaultCluster"}
    assert (message.body, message.born_timestamp_ms, message.flag) == (b"one", 5, 7)
    assert message.born_host == desk.peer.address
    assert sent.fields == {
        "msgId": message.message_id, "queueId": "0", "queueOffset": "0",
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("properties", "kept"),
    [("", {}), ("A\1b\2", {"A": "b"}), ("WAIT\1true", {}),
     ("A\1b\2WAIT\1false\2C\1d", {"A": "b", "C": "d"}),
     ("XWAIT\1b\2CLUSTER\1other", {"XWAIT": "b"})],
)  # fmt: skip
def test_properties_in_every_form_keep_the_others(desk, properties, kept):
    desk.send("orders", properties=properties)
    [message] = stored(desk, "orders")
    assert message.properties == {**kept, "CLUSTER": "DefaultCluster"}


@pytest.mark.parametrize(("code", "lacks"), [(310, "b"), (320, "g"), (10, "topic"), (310, None)])
def test_send_whose_header_cannot_be_parsed_is_answered_with_the_name_of_the_field(
    desk, code, lacks
):
    fields = lacks and {key: one for key, one in SEND.items() if key != lacks}
    refused = desk.answer(code, fields or None)
    assert (refused.code, refused.fields) == (1, None)
    assert f"<{lacks or 'a'}>" in (refused.remark or "")
    assert desk.store.max_physical_offset == 0


def test_topic_gets_as_many_queues_as_asked_for_and_the_template_has(desk):
    desk.send("few", d=2)
    desk.send("many", d=99)
    few, many = desk.topics.get("few"), desk.topics.get("many")
    assert few
    assert (few.read_queue_nums, few.write_queue_nums, few.perm) == (2, 2, 6)
    assert many
    assert many.write_queue_nums == 8


@pytest.mark.parametrize(("topic", "flag"), [("orders", 1), ("%RETRY%G", 2)])
@pytest.mark.parametrize("template", ["TBW102", "none"])
def test_topic_of_a_unit_is_marked_as_one_that_sends_or_that_consumes(desk, topic, flag, template):
    desk.send(topic, c=template, k=True)
    known = desk.topics.get(topic)
    assert (known and known.topic_sys_flag) == (None if topic + template == "ordersnone" else flag)


@pytest.mark.parametrize("name", ["RMQ_SYS_TRACE_TOPIC", "traces"])
def test_traces_have_a_topic_where_none_is_made_if_the_file_says_so(tmp_path, name):
    """Nobody else can make the first: its name is reserved."""
    settings = {"auto_create_topic_enable": False, "msg_trace_topic_name": name}
    for is_on, answer in ((False, 17), (True, 0)):
        path = tmp_path / str(is_on)
        with closing(Desk(path, trace_topic_enable=is_on, **settings)) as desk:
            assert desk.send(name).code == answer
            wanted = {"topic": name, "readQueueNums": 8, "writeQueueNums": 8, "perm": 6}
            taken = "conflict with system topic" in (desk.answer(17, wanted).remark or "")
            assert taken is (is_on or name.startswith("RMQ_SYS"))


def test_settings_of_the_first_topics_count_at_each_start(tmp_path):
    for count in (8, 2):
        name = f"orders-{count}"
        with closing(Desk(tmp_path, default_topic_queue_nums=count)) as desk:
            assert desk.send(name, d=16).code == 0
            known = desk.topics.get(name)
            assert known is not None
            assert known.write_queue_nums == count


@pytest.mark.parametrize(
    ("setting", "topic"),
    [("cluster_topic_enable", "DefaultCluster"), ("broker_topic_enable", "broker-a")],
)
def test_topics_of_cluster_and_broker_are_open_unless_settings_say_no(tmp_path, setting, topic):
    for is_on, perm in ((True, 7), (False, 1)):
        with closing(Desk(tmp_path, **{setting: is_on})) as desk:
            assert getattr(desk.topics.get(topic), "perm", None) == perm


def test_broker_that_may_not_be_written_takes_nothing_back_and_no_messages_in_order(tmp_path):
    with closing(Desk(tmp_path, broker_permission=4)) as desk:
        assert desk.send("orders").code == 0  # as in 4.9
        desk.topics.settle(TopicConfig(topic_name="orders", order=True))
        back = {"offset": 0, "group": "G", "delayLevel": 0}
        for refused in (desk.send("orders"), desk.answer(36, back)):
            assert refused.code == 16
            assert refused.remark == "the broker[127.0.0.1] sending message is forbidden"


def test_topic_is_not_made_where_that_is_off(tmp_path):
    desk = Desk(tmp_path, auto_create_topic_enable=False)
    assert desk.send("orders").code == 17
    assert desk.topics.get("TBW102") is None  # clients find no route of it that they try
    assert desk.send("%RETRY%G").code == 0  # that of a group is made all the same
    desk.close()


def test_reply_waits_until_name_servers_know_a_new_topic(desk):
    desk.told.waits = True
    assert desk.call(310, SEND, b"x") is None
    assert len(stored(desk, "orders")) == 1
    desk.told.waiting.pop()()
    assert desk.peer.last.code == 0
    assert desk.call(310, SEND, b"x") is not None


@pytest.mark.parametrize("bits", [0x10, 0x20, 0x30])
def test_bits_of_a_client_do_not_say_how_long_hosts_are(desk, bits):
    """4.9 stores them over hosts of four bytes, a record that no reader gets through."""
    for properties in ("", "TRAN_MSG\1true\2PGROUP\1P"):
        sent = desk.send("orders", b"one", properties, f=bits | 2)
        found = desk.answer(33, {"offset": place_of(sent)})
        message = decode_record(memoryview(found.body), 0, base=int.from_bytes(found.body[28:36]))
        assert (message.sys_flag, message.body) == (2, b"one")
    batch = encode_client_batch([(0, b"1", b"")])
    desk.send("orders", batch, f=bits, m=True)
    assert stored(desk, "orders")[1].sys_flag == 0


def test_delayed_message_waits_in_its_level(desk):
    desk.send("orders")
    sent = desk.send("orders", b"later", "CLUSTER\1x\2WAIT\1true\2DELAY\0012")
    assert (fields_of(sent)["queueId"], fields_of(sent)["queueOffset"]) == ("0", "0")
    [message] = stored(desk, "SCHEDULE_TOPIC_XXXX", 1)
    assert message.properties == {  # 4.9 keeps WAIT of those, unlike of others
        "REAL_TOPIC": "orders", "REAL_QID": "0", "DELAY": "2", "WAIT": "true",
        "CLUSTER": "DefaultCluster",
    }  # fmt: skip


@pytest.mark.parametrize(
    "topic",
    [
        "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC", "OFFSET_MOVED_EVENT",
    ],
)  # fmt: skip
def test_what_waits_and_what_ends_it_is_put_by_the_broker_alone(desk, topic):
    """An op message of a client would end a transaction of another."""
    for more in ({}, {"m": True}, {"i": "TRAN_MSG\1true\2PGROUP\1P"}):
        refused = desk.send(topic, b"0", **more)
        assert refused.remark == f"Sending message to topic[{topic}] is forbidden."
        assert refused.code == 16
    assert desk.store.max_physical_offset == 0
    assert desk.send("SELF_TEST_TOPIC", b"0").code == 0


def test_producer_and_a_value_with_a_separator_of_names_go_wherever_a_message_does(desk):
    """4.9 stores and reads it; what cannot be given back would stop its group."""
    odd = "odd\1a\1b"
    sent = [
        desk.send("orders", properties=odd),
        desk.send("orders", properties=f"{odd}\2DELAY\0011"),
        desk.send("orders", properties=f"{odd}\2TRAN_MSG\1true\2PGROUP\1P"),
        desk.send("%RETRY%G", properties=odd, j=16),
    ]
    give_back = {"offset": 0, "group": "G"}
    other = Peer(50_001)
    sent += [desk.answer(36, {**give_back, "delayLevel": level}, peer=other) for level in (0, -1)]
    assert {one.code for one in sent} == {0}
    half = place_of(sent[2])
    end = {"producerGroup": "P", "tranStateTableOffset": 0, "commitLogOffset": half}
    assert desk.answer(37, {**end, "commitOrRollback": 8}, peer=other).code == 0
    places = [("orders", 0), ("SCHEDULE_TOPIC_XXXX", 0), ("SCHEDULE_TOPIC_XXXX", 2), ("%DLQ%G", 0)]
    found = [one for place in places for one in stored(desk, *place)]
    kept = [(one.properties["odd"], one.born_host) for one in found]
    assert kept == [("a\1b", desk.peer.address)] * 6


def test_batch_is_stored_as_its_messages_with_the_properties_of_the_request(desk):
    batch = encode_client_batch([(0, b"1", b"TAGS\1a"), (0, b"2", b"")])
    sent = desk.send("orders", batch, "WAIT\1true", m=True)
    found = stored(desk, "orders")
    kept = [(one.body, one.born_host) for one in found]
    assert kept == [(body, desk.peer.address) for body in (b"1", b"2")]
    assert found[0].properties == {"TAGS": "a", "WAIT": "true", "CLUSTER": "DefaultCluster"}
    assert fields_of(sent)["msgId"] == ",".join(one.message_id for one in found)


def test_half_message_is_seen_by_no_consumer(desk):
    properties = "TRAN_MSG\1true\2PGROUP\1P\2UNIQ_KEY\1u"
    sent = desk.send("orders", b"half", properties, f=4, e=2)
    assert (fields_of(sent)["queueId"], fields_of(sent)["queueOffset"]) == ("2", "0")
    assert stored(desk, "orders", 2) == []
    [half] = stored(desk, "RMQ_SYS_TRANS_HALF_TOPIC")
    wanted = {"REAL_TOPIC": "orders", "REAL_QID": "2", "PGROUP": "P", "TRAN_MSG": "true"}
    assert half.properties.items() >= wanted.items()


@pytest.mark.parametrize(
    ("more", "tries", "is_half"),
    [("", 0, True), ("", 1, True), ("DELAY\0010", 1, True), ("DELAY\0011", -1, True),
     ("DELAY\0011", 1, False)],
)  # fmt: skip
def test_second_try_with_a_delay_of_old_clients_is_no_half_message(desk, more, tries, *, is_half):
    """Those before 4.6.1 send what they give back themselves with the properties it came with."""
    properties = "WAIT\1true\2TRAN_MSG\1true\2PGROUP\1P\2UNIQ_KEY\1u\2"
    assert desk.send("orders", properties=properties + more, j=tries).code == 0
    half = stored(desk, "RMQ_SYS_TRANS_HALF_TOPIC")
    assert bool(half) is is_half
    assert [one.properties["WAIT"] for one in half] == ["true"] * is_half  # as 4.9 stores it


def test_half_messages_are_refused_where_that_is_set(tmp_path):
    desk = Desk(tmp_path, reject_transaction_message=True)
    assert desk.send("orders", properties="TRAN_MSG\1true\2PGROUP\1P", f=4).code == 16
    desk.close()


@pytest.mark.parametrize(
    ("times", "limit", "version", "topic"),
    [(15, None, 399, "%RETRY%G"), (16, None, 399, "%DLQ%G"), (2, 2, 399, "%DLQ%G"),
     (2, 2, 63, "%RETRY%G")],
)  # fmt: skip
def test_last_try_that_a_consumer_sends_itself_is_a_dead_letter(desk, times, limit, version, topic):
    desk.topics.settle(TopicConfig(topic_name="%RETRY%G", read_queue_nums=2, write_queue_nums=2))
    is_dead = topic == "%DLQ%G"
    fields = {**SEND, "b": "%RETRY%G", "e": 1, "j": times, "i": "DELAY\0011" if is_dead else ""}
    if limit is not None:
        fields["l"] = limit
    sent = desk.answer(310, fields, b"x", version=version)
    assert (sent.code, sent.fields and sent.fields["queueId"]) == (0, "1")  # also of a dead letter
    assert len(stored(desk, topic, 0 if is_dead else 1)) == 1


def test_message_without_a_queue_goes_to_any_and_its_producer_is_told_which(desk):
    told = [(desk.send("orders", e=-1).fields or {})["queueId"] for _ in range(99)]
    desk.store.wait_dispatched()
    lengths = [desk.store.max_offset("orders", one) for one in range(4)]
    assert lengths == [told.count(str(one)) for one in range(4)]
    assert min(lengths) > 0


@pytest.mark.parametrize("kind", ["one", "batch"])
def test_message_without_a_queue_is_refused_where_nothing_is_written(desk, kind):
    desk.topics.settle(TopicConfig(topic_name="orders", read_queue_nums=4, write_queue_nums=0))
    body = encode_client_batch([(0, b"x", b"")])
    for queue_id, code in ((-1, 1), (0, 0)):
        assert desk.send("orders", body, e=queue_id, m=kind == "batch").code == code


def test_topic_of_several_tags_marks_its_messages(desk):
    for name in ("tags", "%RETRY%G", "%DLQ%H"):
        desk.topics.settle(TopicConfig(topic_name=name, topic_filter_type="MULTI_TAG"))
    for name, times in (("tags", 0), ("%RETRY%G", 0), ("%RETRY%G", 16), ("%RETRY%H", 16)):
        desk.send(name, j=times)
    flags = {"tags": 2, "%RETRY%G": 2, "%DLQ%G": 0, "%DLQ%H": 2}  # a dead letter has another topic
    assert {name: stored(desk, name)[0].sys_flag for name in flags} == flags


def test_broker_takes_nothing_before_its_time(tmp_path):
    desk = Desk(tmp_path, start_accept_send_request_time_stamp=2**62)
    refused = desk.send("orders")
    assert (refused.code, refused.fields) == (
        1, {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"},
    )  # fmt: skip
    desk.close()


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (PutMessageStatus.FLUSH_DISK_TIMEOUT, 10),
        (PutMessageStatus.SLAVE_NOT_AVAILABLE, 11),
        (PutMessageStatus.FLUSH_SLAVE_TIMEOUT, 12),
        (PutMessageStatus.MESSAGE_ILLEGAL, 13),
        (PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, 13),
        (PutMessageStatus.SERVICE_NOT_AVAILABLE, 14),
        (PutMessageStatus.CREATE_MAPEDFILE_FAILED, 1),
        (PutMessageStatus.OS_PAGECACHE_BUSY, 1),
        (PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED, 1),
        (PutMessageStatus.UNKNOWN_ERROR, 1),
    ],
)
def test_status_of_the_store_has_its_code(desk, monkeypatch, status, code):
    result = PutResult(status, physical_offset=7 if code in (10, 11, 12) else -1)
    monkeypatch.setattr(desk.store._writer, "put_encoded", lambda *_, **__: result)
    reply = desk.send("orders")
    assert reply.code == code
    assert ("msgId" in fields_of(reply)) == result.is_stored


def test_what_is_too_large_is_refused_with_the_limit_that_is_set(tmp_path):
    desk = Desk(tmp_path, StoreConfig.small(max_message_size=5000))
    refused = desk.send("orders", b"x" * 5001)
    desk.close()
    assert (refused.code, "body length limit 5000B" in (refused.remark or "")) == (13, True)


@pytest.mark.parametrize(("wait", "waits"), [("true", True), ("false", False), ("", True)])
@pytest.mark.parametrize("kind", ["TAGS\1a", "TRAN_MSG\1true\2PGROUP\1P", "DELAY\0011", "batch"])
def test_message_that_waits_for_its_sync_is_answered_after_it(tmp_path, wait, kind, *, waits):
    desk = Desk(tmp_path, StoreConfig.small(flush_disk_type=FlushDiskType.SYNC_FLUSH))
    desk.send("orders", properties="WAIT\1false")  # makes the topic
    desk.told.waits = True  # for topics of others
    is_batch = kind == "batch"
    properties = ("" if is_batch else kind) + (f"\2WAIT\1{wait}" if wait else "")
    body = encode_client_batch([(0, b"x", b"")]) if is_batch else b"x"
    reply = desk.call(310, {**SEND, "i": properties, "m": is_batch}, body)
    assert (reply is None) == waits
    if waits:
        [(result, then)] = desk.loop.pending
        then(result)
    assert [one.code for one in desk.peer.heard] == [0, 0]
    desk.close()


def test_message_of_a_memory_topic_is_given_back_by_its_offset_and_found_by_its_id(tmp_path):
    desk = Desk(tmp_path, StoreConfig.small(memory_topic_enable=True))
    desk.store.memory_topics.create("orders", 1)
    sent = desk.send("orders", b"first")
    offset = place_of(sent)
    [message] = stored(desk, "orders")
    assert desk.answer(33, {"offset": offset}).body[-20:]
    assert desk.store.by_id(fields_of(sent)["msgId"]) == message
    assert desk.answer(36, {"offset": offset, "group": "G", "delayLevel": -1}).code == 0
    [dead] = stored(desk, "%DLQ%G")
    assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"first", "orders")
    assert desk.answer(33, {"offset": offset + 1}).code == 1
    desk.close()


@pytest.mark.parametrize(
    ("changed", "cut", "code"),
    [
        ({}, 1, 1),
        ({"i": "DELAY\0013"}, 0, 13),
        ({"f": 4}, 0, 13),
        ({"i": "K\1" + "v" * 32_767}, 0, 13),
    ],
)
def test_batch_that_is_cut_off_is_an_error_and_any_other_illegal(desk, changed, cut, code):
    body = encode_client_batch([(0, b"a", b"TAGS\1x"), (0, b"b", b"")])
    reply = desk.answer(320, {**SEND, "m": True, **changed}, body[: len(body) - cut])
    assert (reply.code, "TRACE_ON" in (reply.fields or {})) == (code, True)
    assert stored(desk, "orders") == []
