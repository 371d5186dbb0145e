"""Putting single messages: what is stored where, and every way of being refused (spec B3)."""

import errno
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from rocketstore import (
    BrokerRole,
    FlushDiskType,
    InvalidNameError,
    Message,
    PutMessageStatus,
    RefusedMessageError,
)
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.format.host import decode_message_id, encode_host
from rocketstore.format.properties import GIVE_BACK_ROOM, encode_properties
from rocketstore.format.record import encode_blank, record_size
from rocketstore.native.log_end import Record
from rocketstore.rules.waiting import delayed
from rocketstore.storage.running_flags import RunningFlag
from rocketstore.units import QueueKey
from support.clock import START_MS, Clock
from support.configured_store import LOG_FILE_BYTES, open_small
from support.failing_disk import HeldDisk
from support.inside import parts_of, workers_of
from support.log_parts import LogParts
from support.mapped_bytes import bytes_at
from support.oracle.record import decode_record
from support.patience import PATIENCE_S
from support.said import capture_logs

OK = PutMessageStatus.PUT_OK
ILLEGAL = PutMessageStatus.MESSAGE_ILLEGAL
UNAVAILABLE = PutMessageStatus.SERVICE_NOT_AVAILABLE
CLOSED = "the store was closed, and has to be opened again"
TOPIC = "TopicTest"


@pytest.fixture
def store(tmp_path, clock, disk):
    with open_small(tmp_path / "store", clock, disk=disk) as opened:
        yield opened


def log_bytes(store, base=0):
    return (store.layout.commit_log_directories[0] / f"{base:020d}").read_bytes()


def plain_size(body):
    return record_size(body_size=len(body), topic_size=len(TOPIC), properties_size=0, sys_flag=0)


# --- what is stored -------------------------------------------------------------------------------


def test_a_record_holds_what_was_put_and_where_it_stands(store):
    message = Message(
        topic=TOPIC, body=b"Hello", tags="TagA", keys=("k1", "k2"), properties={"a": "b"},
        unique_key="U1", flag=7, sys_flag=0x1 | 0x2, born_timestamp_ms=5, born_host="10.0.0.1:1234",
        reconsume_times=3, prepared_transaction_offset=99,
    )  # fmt: skip
    result = store.put(message, queue_id=4)
    stored = decode_record(memoryview(log_bytes(store)), result.physical_offset, base=0)
    assert (stored.topic, stored.queue_id, stored.raw_body) == (TOPIC, 4, b"Hello")
    assert stored.raw_properties == b"a\x01b\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01U1\x02TAGS\x01TagA"
    assert (stored.flag, stored.sys_flag, stored.reconsume_times) == (7, 0x3, 3)
    assert (stored.born_timestamp_ms, stored.born_host) == (5, "10.0.0.1:1234")
    assert (stored.store_timestamp_ms, stored.store_host) == (START_MS, "127.0.0.1:10911")
    assert stored.prepared_transaction_offset == 99
    assert (stored.queue_offset, stored.physical_offset) == (0, result.physical_offset)


def test_the_result_says_where_when_and_how_large(store):
    store.put(Message(topic=TOPIC, body=b"first"))
    result = store.put(Message(topic=TOPIC, body=b"second"))
    assert (result.status, result.is_stored, result.message_count) == (OK, True, 1)
    assert result.physical_offset == plain_size(b"first")
    assert result.size == plain_size(b"second")
    assert (result.queue_offset, result.store_timestamp_ms) == (1, START_MS)
    assert decode_message_id(result.message_id) == ("127.0.0.1:10911", result.physical_offset)


def test_nothing_is_added_to_a_message_but_the_store_time_for_an_absent_born_time(store):
    result = store.put(Message(topic=TOPIC))
    stored = store.at_physical_offset(result.physical_offset)
    assert (stored.raw_properties, stored.properties) == (b"", {})
    assert (stored.born_timestamp_ms, stored.reconsume_times) == (START_MS, 0)
    assert (stored.raw_body, stored.body_crc, result.size) == (b"", 0, plain_size(b""))


def test_each_queue_counts_its_own_messages_from_0(store):
    offsets = [
        store.put(Message(topic=topic, body=b"x"), queue_id).queue_offset
        for topic, queue_id in [("a", 0), ("b", 0), ("a", 0), ("a", 1), ("b", 0), ("a", 0)]
    ]
    assert offsets == [0, 0, 1, 0, 1, 2]
    assert store.next_queue_offset("a", 0) == 3


def test_all_topics_share_one_log_without_gaps(store):
    results = [
        store.put(Message(topic=f"t{n % 3}", body=bytes(4000 + n)), n % 2) for n in range(40)
    ]
    rolled = {result.physical_offset // LOG_FILE_BYTES: result for result in reversed(results)}
    for number, first in rolled.items():
        assert first.physical_offset == number * LOG_FILE_BYTES
    assert sorted(rolled) == [0, 1, 2]
    for one, following in pairwise(results):
        if following not in rolled.values():
            assert following.physical_offset == one.physical_offset + one.size
    assert store.max_physical_offset == results[-1].physical_offset + results[-1].size
    for number, result in enumerate(results):
        assert store.at_physical_offset(result.physical_offset).body == bytes(4000 + number)
    store.wait_dispatched()
    for n in range(6):
        page = store.get(f"t{n % 3}", n % 2, 0)
        assert [len(message.body) - 4000 for message in page.messages] == [*range(n, 40, 6)]


def test_puts_and_their_bytes_are_counted_by_topic(store):
    for puts in (1, 2):  # the second ones are plain puts
        one = store.put(Message(topic="a", body=b"x"))
        two = store.put(Message(topic="a", body=b"yy"), 1)
        batch = store.put_batch([Message(topic="b", body=b"z")] * 3)
        assert store.statistics.put_by_topic() == {
            "a": (2 * puts, (one.size + two.size) * puts),
            "b": (3 * puts, batch.size * puts),
        }
    store.put(Message(topic="t" * 200))
    assert store.statistics.failed_puts == 1


def test_what_an_earlier_opening_put_is_not_counted_again(tmp_path):
    with open_small(tmp_path / "store") as store:
        store.put(Message(topic="a", body=b"x"))
        store.put_batch([Message(topic="b", body=b"z")] * 3)
    with open_small(tmp_path / "store") as store:
        assert store.statistics.total_put() == (0, 0)
        again = store.put(Message(topic="a", body=b"yy"))
        assert store.statistics.put_by_topic()["a"] == (1, again.size)
        assert store.statistics.total_put() == (1, again.size)


def test_retry_and_dead_letter_topics_are_topics_like_others(store):
    message = Message(
        topic="%RETRY%group_a", body=b"again", reconsume_times=2,
        properties={"RETRY_TOPIC": TOPIC, "ORIGIN_MESSAGE_ID": "C0A82A83"},
    )  # fmt: skip
    store.put(message)
    store.put(Message(topic="%DLQ%group_a", body=b"given up"))
    store.wait_dispatched()
    (again,) = store.get("%RETRY%group_a", 0, 0).messages
    assert (again.reconsume_times, again.properties["RETRY_TOPIC"]) == (2, TOPIC)
    assert store.get("%DLQ%group_a", 0, 0).messages[0].body == b"given up"


def test_hosts_of_ipv6_set_their_flags_and_take_20_bytes(tmp_path):
    with open_small(tmp_path / "v6", store_host="[2001:db8::1]:10911") as store:
        result = store.put(Message(topic=TOPIC, body=b"x", born_host="[2001:db8::2]:4"))
        stored = store.at_physical_offset(result.physical_offset)
    assert stored.sys_flag == 0x10 | 0x20
    assert (stored.born_host, stored.store_host) == ("[2001:db8::2]:4", "[2001:db8::1]:10911")
    assert result.size == plain_size(b"x") + 24
    assert len(result.message_id) == 56


# --- time -----------------------------------------------------------------------------------------


def test_store_times_follow_the_clock_and_never_go_back(store, clock):
    times = []
    for now_ms in (START_MS, START_MS + 5, START_MS - 60_000, START_MS + 6):
        clock.now_ms = now_ms
        times.append(store.put(Message(topic=TOPIC, body=b"x")).store_timestamp_ms)
    assert times == [START_MS, START_MS + 5, START_MS + 5, START_MS + 6]
    assert store.runtime_info()["storeTimeStepsBack"] == "1"


# --- the end of a file ----------------------------------------------------------------------------


def fill_to(store, free):
    """Put messages until exactly `free` bytes are left in the first file."""
    while (left := LOG_FILE_BYTES - store.max_physical_offset - free) > 30_000:
        store.put(Message(topic=TOPIC, body=bytes(20_000)))
    store.put(Message(topic=TOPIC, body=bytes(left - plain_size(b""))))
    assert store.max_physical_offset == LOG_FILE_BYTES - free


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_record_that_leaves_8_bytes_still_fits(store, *, is_reopened):
    fill_to(store, plain_size(b"x") + 8)
    if is_reopened:
        store.close()
        store = open_small(store.layout.root)
    result = store.put(Message(topic=TOPIC, body=b"x"))
    assert result.physical_offset + result.size == LOG_FILE_BYTES - 8
    longest = LOG_FILE_BYTES - 8 - plain_size(b"")  # of all that a file can hold
    assert store.put(Message(topic=TOPIC, body=bytes(longest))).size == LOG_FILE_BYTES - 8
    refused = store.put(Message(topic=TOPIC, body=bytes(longest + 1)))
    assert refused.status is PutMessageStatus.MESSAGE_ILLEGAL
    store.close()


@pytest.mark.parametrize("free", [plain_size(b"x") + 7, 8], ids=["7 bytes left", "smallest blank"])
def test_a_record_that_would_leave_7_bytes_goes_to_the_next_file_after_a_blank(store, free):
    fill_to(store, free)
    result = store.put(Message(topic=TOPIC, body=b"x"))
    assert (result.status, result.physical_offset) == (OK, LOG_FILE_BYTES)
    first = log_bytes(store)
    assert first[-free:] == encode_blank(free) + bytes(free - 8)
    assert log_bytes(store, LOG_FILE_BYTES)[: result.size] == bytes(
        bytes_at(store._log.files, LOG_FILE_BYTES, result.size)
    )


def test_queue_offsets_go_on_over_files(store):
    results = [store.put(Message(topic=TOPIC, body=bytes(9000))) for _ in range(30)]
    assert [r.queue_offset for r in results] == list(range(30))
    assert {r.physical_offset // LOG_FILE_BYTES for r in results} == {0, 1, 2, 3, 4}
    for base in range(0, 5 * LOG_FILE_BYTES, LOG_FILE_BYTES):
        content = memoryview(log_bytes(store, base))
        assert len(content) == LOG_FILE_BYTES
        placed = [
            r for r in results if r.physical_offset // LOG_FILE_BYTES * LOG_FILE_BYTES == base
        ]
        records = [decode_record(content, r.physical_offset - base, base=base) for r in placed]
        assert [one.queue_offset for one in records] == [r.queue_offset for r in placed]


def test_without_room_for_the_next_file_the_put_says_so_and_a_smaller_one_still_fits(store, disk):
    fill_to(store, 200)
    disk.is_full = True
    (path,) = store.layout.commit_log_directories[0].iterdir()
    before = path.read_bytes()
    refused = store.put(Message(topic=TOPIC, body=bytes(100)))
    assert refused.status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
    assert not refused.is_stored
    assert "no room" in refused.detail
    assert path.read_bytes() == before, "4.9 has ended it with a BLANK"
    small = store.put(Message(topic=TOPIC, body=b"x"))
    assert small.status is OK
    disk.is_full = False
    assert store.put(Message(topic=TOPIC, body=bytes(100))).physical_offset == LOG_FILE_BYTES


def test_the_first_file_without_room_is_a_status_too(tmp_path, disk):
    with open_small(tmp_path / "store", disk=disk) as store:
        disk.is_full = True
        result = store.put(Message(topic=TOPIC, body=b"x"))
        assert result.status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
        disk.is_full = False
        assert store.put(Message(topic=TOPIC, body=b"x")).queue_offset == 0


def test_an_error_of_the_disk_is_an_unknown_error(store, disk, monkeypatch):
    def broken(*_arguments):
        raise OSError(errno.EIO, "Input/output error")

    disk.is_sparse = True
    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_at", broken)  # what probes the pages of a sparse file
        result = store.put(Message(topic=TOPIC, body=b"x"))
    assert result.status is PutMessageStatus.UNKNOWN_ERROR
    assert "Input/output error" in result.detail
    assert store.put(Message(topic=TOPIC, body=b"x")).queue_offset == 0


def test_what_the_system_refuses_otherwise_is_an_unknown_error(store):
    shutil.rmtree(store.layout.commit_log_directories[0], ignore_errors=True)
    store.layout.commit_log_directories[0].write_text("no directory any more")
    result = store.put(Message(topic=TOPIC, body=b"x"))
    assert result.status in {
        PutMessageStatus.UNKNOWN_ERROR,
        PutMessageStatus.CREATE_MAPEDFILE_FAILED,
    }
    assert not result.is_stored
    store.layout.commit_log_directories[0].unlink()


# --- limits ---------------------------------------------------------------------------------------


def test_a_body_of_the_limit_is_stored_and_one_byte_more_is_illegal(tmp_path):
    with open_small(tmp_path / "store", max_message_size=1000) as store:
        assert store.put(Message(topic=TOPIC, body=bytes(1000))).status is OK
        refused = store.put(Message(topic=TOPIC, body=bytes(1001)))
    assert refused.status is ILLEGAL
    assert refused.detail == "body of 1001 bytes exceeds maxMessageSize of 1000"


def test_properties_do_not_count_against_the_limit_of_the_body(tmp_path):
    with open_small(tmp_path / "store", max_message_size=1000) as store:
        message = Message(topic=TOPIC, body=bytes(1000), properties={"a": "x" * 5000})
        assert store.put(message).status is OK


def test_a_record_larger_than_a_file_is_illegal(store):
    end = store.put(Message(topic=TOPIC)).size
    refused = store.put(Message(topic=TOPIC, body=bytes(LOG_FILE_BYTES)))
    assert (refused.status, store.max_physical_offset) == (ILLEGAL, end)
    assert f"do not fit a CommitLog file of {LOG_FILE_BYTES} bytes" in refused.detail


def test_a_topic_of_127_bytes_is_stored_and_128_are_illegal(store):
    assert store.put(Message(topic="t" * 127, body=b"x")).status is OK
    refused = store.put(Message(topic="t" * 128, body=b"x"))
    assert refused.status is ILLEGAL
    assert refused.detail == "topic of 128 bytes exceeds the limit of 127"


def test_properties_of_32767_bytes_are_stored_and_one_more_is_illegal(store):
    store.put(Message(topic=TOPIC, body=b"x"))  # what follows is a plain put, if it can be one
    value = "v" * (32_767 - len("a\x01"))
    refused = store.put(Message(topic=TOPIC, properties={"a": value + "v"}))
    assert refused.status is ILLEGAL
    assert "properties of 32768 bytes exceed the limit of 32767" in refused.detail
    assert store.put(Message(topic=TOPIC, properties={"a": value})).status is OK


@pytest.mark.parametrize("way", ["put", "prepared", "batch", "client batch", "async", "delayed"])
@pytest.mark.parametrize("spare", [GIVE_BACK_ROOM - 1, GIVE_BACK_ROOM])
def test_a_put_says_that_properties_leave_no_room_to_be_given_back(store, way, spare):
    store.put(Message(topic=TOPIC, body=b"x"))  # what follows is a plain put, if it can be one
    value = "v" * (32_767 - len("a\x01") - spare)
    message = Message(topic=TOPIC, properties={"a": value})
    if way == "prepared":
        result = store.put_prepared(store.prepare(message))
    elif way == "batch":
        result = store.put_batch([message, Message(topic=TOPIC)])
    elif way == "client batch":
        batch = encode_client_batch([(0, b"", encode_properties({"a": value}))])
        result = store.put_client_batch(TOPIC, 0, batch)
    elif way == "async":
        result = store.put_async(message).result(PATIENCE_S)
    elif way == "delayed":
        shorter = value[: -len("DELAY1REAL_TOPICREAL_QID0" + TOPIC) - 6]
        properties = {"a": shorter, "DELAY": "1"}
        result = store.put(Message(topic=TOPIC, properties=properties))
    else:
        result = store.put(message)
    assert result.status is OK
    if spare < GIVE_BACK_ROOM:
        assert "a copy that a consumer gives back may lack the longest" in result.detail
    else:
        assert result.detail is None


def test_properties_too_long_only_as_utf8_have_their_own_status(store):
    refused = store.put(Message(topic=TOPIC, properties={"a": "é" * (32_767 - len("a\x01"))}))
    assert refused.status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED


@pytest.mark.parametrize(
    "topic", ["", "..", ".", "a/b", "../../x", "a\0b", "a b", "日本", "a.b", "a#b"]
)
def test_a_topic_that_is_no_name_is_refused_before_any_path_is_made(store, topic):
    with pytest.raises(InvalidNameError):
        store.put(Message(topic=topic, body=b"x"))
    store.wait_dispatched()
    assert not store.layout.consume_queue.exists()
    assert store.max_physical_offset == 0


@pytest.mark.parametrize("queue_id", [-1, 2**31, "0", 1.5, True, None])
def test_a_queue_id_that_is_no_number_of_a_queue_is_refused(store, queue_id):
    with pytest.raises(InvalidNameError):
        store.put(Message(topic=TOPIC, body=b"x"), queue_id)


@pytest.mark.parametrize(
    "fields", [{"sys_flag": 0x4}, {"sys_flag": 0x8}, {"sys_flag": 0xC}], ids=str
)
def test_what_would_be_delivered_wrongly_is_refused_and_not_stored(store, fields):
    message = Message(topic=TOPIC, body=b"x", **fields)
    with pytest.raises(RefusedMessageError, match="transaction bits"):
        store.put(message)
    with pytest.raises(RefusedMessageError, match="transaction bits"):
        store.put_prepared(store.prepare(message))
    with pytest.raises(RefusedMessageError, match="transaction bits"):
        store.put_batch([Message(topic=TOPIC, body=b"x"), message])
    with pytest.raises(RefusedMessageError, match="transaction bits"):
        store.put_encoded(TOPIC, 0, b"x", **fields)
    with pytest.raises(RefusedMessageError, match="transaction bits"):
        store.put_client_batch(TOPIC, 0, encode_client_batch([(0, b"x", b"")]), **fields)
    assert store.max_physical_offset == 0


@pytest.mark.parametrize("level", ["0", "-1", "+0"])
def test_a_delay_of_0_or_less_is_no_delay(store, level):
    delayed = Message(topic=TOPIC, body=b"x", properties={"DELAY": level})
    assert store.put(delayed).status is OK
    assert store.put_prepared(store.prepare(delayed)).status is OK
    assert store.next_queue_offset(TOPIC, 0) == 2


@pytest.mark.parametrize(
    ("level", "stored"),
    [("1", "1"), ("18", "18"), ("19", "18"), ("2147483647", "18"), ("+03", "+03")],
)
def test_a_delayed_message_goes_to_the_queue_of_its_level(store, level, stored):
    """Levels beyond the last are the last; otherwise 4.9 leaves the text as it is."""
    message = Message(topic=TOPIC, body=b"x", tags="t", properties={"DELAY": level, "a": "b"})
    assert store.put(message, 5).status is OK
    assert store.put_prepared(store.prepare(message), b"other", 6).status is OK
    store.wait_dispatched()
    found = store.get("SCHEDULE_TOPIC_XXXX", int(stored) - 1, 0).messages
    assert [one.body for one in found] == [b"x", b"other"]
    for one, queue_id in zip(found, "56", strict=True):
        assert one.properties == {
            "DELAY": stored, "REAL_TOPIC": TOPIC, "REAL_QID": queue_id, "TAGS": "t", "a": "b",
        }  # fmt: skip
    assert store.next_queue_offset(TOPIC, 5) == store.next_queue_offset(TOPIC, 6) == 0


@pytest.mark.parametrize(("sys_flag", "is_delayed"), [(4, False), (12, False), (8, True)])
def test_prepared_and_rolled_back_messages_are_not_delayed(sys_flag, is_delayed):
    record = Record(b"x", b"DELAY\x013", encode_host("127.0.0.1:1"), sys_flag=sys_flag)
    level, stored = delayed(record, TOPIC, 0, 18)
    assert level == (3 if is_delayed else 0)
    assert (stored is record) is not is_delayed


@pytest.mark.parametrize("level", ["x", "", "1.5", "3s", " 0 ", "1_0", "2147483648", "9" * 99])
def test_a_delay_that_is_no_number_is_refused(store, level):
    message = Message(topic=TOPIC, body=b"x", properties={"DELAY": level})
    with pytest.raises(RefusedMessageError, match="is not a delay level"):
        store.put(message)
    with pytest.raises(RefusedMessageError, match="is not a delay level"):
        store.prepare(message)
    with pytest.raises(RefusedMessageError, match="is not a delay level"):
        store.begin(message)  # a 4.9 broker could never commit it
    assert store.max_physical_offset == 0


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_a_delayed_message_for_a_topic_that_nothing_is_delivered_to_is_refused(store, topic):
    """4.9 takes it, and drops it when it is due."""
    message = Message(topic=topic, body=b"x", properties={"DELAY": "1"})
    for put in (store.put, lambda one: store.put_prepared(store.prepare(one))):
        with pytest.raises(RefusedMessageError, match=f"put to {topic} itself cannot ask for"):
            put(message)
    assert store.max_physical_offset == 0


def test_a_delayed_message_that_could_never_be_delivered_is_illegal(store):
    """Its copy has a longer topic than the record that waits, and would fit no file."""
    topic = "t" * 127
    room = LOG_FILE_BYTES - 8 - record_size(
        body_size=0, topic_size=127, sys_flag=0,
        properties_size=len(f"REAL_TOPIC\x01{topic}\x02DELAY\x011\x02REAL_QID\x010"),
    )  # fmt: skip
    for size, status in ((room + 1, ILLEGAL), (room, OK)):
        message = Message(topic=topic, body=bytes(size), properties={"DELAY": "1"})
        assert store.put(message).status is status


@pytest.mark.parametrize("properties", [{"a\x01": "b"}, {"a": "b\x02"}, {"": "b"}])
def test_separators_inside_properties_are_refused(store, properties):
    with pytest.raises(RefusedMessageError):
        store.put(Message(topic=TOPIC, body=b"x", properties=properties))
    assert store.max_physical_offset == 0


@pytest.mark.parametrize(
    "fields", [{"flag": 2**31}, {"reconsume_times": -(2**31) - 1}, {"born_timestamp_ms": 2**63}]
)
def test_a_number_that_does_not_fit_is_refused_and_leaves_no_byte(store, fields):
    before = store.put(Message(topic=TOPIC, body=b"x"))
    with pytest.raises(RefusedMessageError, match="does not fit"):
        store.put(Message(topic=TOPIC, body=b"y", **fields))
    end = before.physical_offset + before.size
    assert log_bytes(store)[end:] == bytes(LOG_FILE_BYTES - end)
    assert store.put(Message(topic=TOPIC, body=b"z")).queue_offset == 1


# --- states of the store --------------------------------------------------------------------------


def test_a_slave_takes_no_messages_of_its_own(tmp_path):
    with open_small(tmp_path / "store", broker_role=BrokerRole.SLAVE) as store:
        result = store.put(Message(topic=TOPIC, body=b"x"))
    assert result.status is UNAVAILABLE
    assert "SLAVE" in result.detail


def test_a_put_that_does_not_wait_for_the_flush_wakes_it(tmp_path, monkeypatch):
    with open_small(tmp_path / "store", flush_disk_type=FlushDiskType.SYNC_FLUSH) as store:
        woken = []
        flushed = store.put(Message(topic=TOPIC, body=b"x")).size
        monkeypatch.setattr(workers_of(store).flusher, "wake", lambda: woken.append(None))
        assert store.put(Message(topic=TOPIC, body=b"x", wait_flush=False)).status is OK
        assert len(woken) == 1
        assert store.flushed_physical_offset == flushed


def test_a_synchronous_master_stores_and_says_that_no_replica_has_it(tmp_path):
    with open_small(tmp_path / "store", broker_role=BrokerRole.SYNC_MASTER) as store:
        result = store.put(Message(topic=TOPIC, body=b"x"))
        batch = store.put_batch([Message(topic=TOPIC, body=b"y")])
        unasked = store.put(Message(topic=TOPIC, body=b"z", wait_flush=False))
        store.wait_dispatched()
        assert [m.body for m in store.get(TOPIC, 0, 0).messages] == [b"x", b"y", b"z"]
    assert result.status is batch.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
    assert result.is_stored
    assert unasked.status is OK


@pytest.mark.parametrize(
    "flag",
    [flag for flag in RunningFlag if flag is not RunningFlag.NOT_READABLE],
    ids=lambda flag: flag.name,
)
def test_any_flag_against_writing_refuses_puts_until_it_goes(store, flag):
    for topic in (TOPIC, "new"):
        store.put(Message(topic=TOPIC, body=b"x"))  # the next one is a plain put
        assert store.running_flags.set(flag, "because the test says so")
        assert not store.running_flags.set(flag, "because the test says so")
        refused = store.put(Message(topic=topic, body=b"x"))
        assert refused.status is UNAVAILABLE
        assert refused.detail == f"{flag.name}: because the test says so"
        assert store.running_flags.clear(flag)
        assert not store.running_flags.clear(flag)
    assert store.put(Message(topic=TOPIC, body=b"x")).status is OK


def test_refusals_by_a_closed_store_are_logged_as_rarely_as_others(store):
    store.close()
    with capture_logs() as logs:
        details = {store.put(Message(topic=TOPIC, body=b"x")).detail for _ in range(3)}
    assert details == {CLOSED}
    assert [(log["event"], log["reason"]) for log in logs] == [("put.refused", CLOSED)]


def test_refusals_are_logged_once_in_50_000_and_counted_again_when_puts_are_taken(
    store, monkeypatch
):
    logged = []
    monkeypatch.setattr(
        "rocketstore.storage.statistics._log.warning",
        lambda event, **fields: logged.append((event, fields["count"])),
        raising=False,
    )
    message = Message(topic=TOPIC, body=b"x")
    store.running_flags.set(RunningFlag.DISK_FULL, "full")
    for _ in range(50_001):
        store.put(message)
    assert logged == [("put.refused", 1), ("put.refused", 50_001)]
    store.running_flags.clear(RunningFlag.DISK_FULL)
    store.put(message)
    store.running_flags.set(RunningFlag.DISK_FULL, "full again")
    store.put(message)
    assert logged[2:] == [("put.refused", 1)]


@pytest.mark.parametrize("way", ["put", "batch"])
def test_a_put_of_more_than_half_a_second_is_logged(store, monkeypatch, way):
    message = Message(topic=TOPIC, body=b"x")
    put = store.put if way == "put" else lambda one: store.put_batch([one, one])
    logged = []
    monkeypatch.setattr(
        "rocketstore.storage.statistics._log.warning",
        lambda event, **fields: logged.append((event, fields)),
        raising=False,
    )
    store._writer.plain.close()  # which reads the clock itself
    put(message)  # the first of a store may take its time
    times = iter([0, 500_000_000, 0, 501_000_000])
    monkeypatch.setattr("rocketstore.storage.log.writer.time_ns", lambda: next(times))
    put(message)
    assert logged == []
    put(message)
    assert logged == [("put.slow", {"took_ms": 501})]


@pytest.mark.parametrize(
    ("settings", "limit_ms"), [({}, 1000), ({"os_page_cache_busy_time_out_mills": 50}, 50)]
)
def test_a_lock_held_for_a_second_is_a_busy_page_cache_and_for_hours_a_moved_clock(
    tmp_path, clock, settings, limit_ms
):
    with open_small(tmp_path / "store", clock, **settings) as store:
        parts_of(store).log.monotonic = clock
        for held_ms in (limit_ms, limit_ms + 1, 9_999_999, 10_000_000):
            parts_of(store).log.end.locked_since_ms = clock.now_ms - held_ms
            result = store.put(Message(topic=TOPIC, body=b"x"))
            busy = limit_ms < held_ms < 10_000_000
            assert result.status is (PutMessageStatus.OS_PAGECACHE_BUSY if busy else OK)
            if busy:
                assert f"held for {held_ms} ms, more than {limit_ms} ms" in result.detail


@pytest.mark.parametrize("batch", [False, True], ids=["message", "batch"])
def test_while_the_disk_lets_one_put_wait_others_are_told_that_the_page_cache_is_busy(
    tmp_path, clock, batch
):
    disk = HeldDisk("allocate", lambda path: path.parent.name == "commitlog")
    disk.may_go.clear()
    message = Message(topic=TOPIC, body=b"x")
    with open_small(tmp_path / "store", clock, disk=disk) as store, ThreadPoolExecutor(1) as pool:
        parts_of(store).log.monotonic = clock
        try:
            first = (
                pool.submit(store.put_batch, [message])
                if batch
                else pool.submit(store.put, message)
            )
            assert disk.is_waiting.wait(PATIENCE_S)
            clock.now_ms += 1700
            refused = [store.put(message), store.put_batch([message])]
        finally:
            disk.may_go.set()
        assert [result.status for result in refused] == [PutMessageStatus.OS_PAGECACHE_BUSY] * 2
        assert "held for 1700 ms, more than 1000 ms" in refused[0].detail
        assert first.result(PATIENCE_S).status is OK
        assert store.put(message).queue_offset == 1


class SlowLock:
    """A lock that one gets a while after asking for it."""

    def __init__(self, lock, clock, waited_ms) -> None:
        self._lock, self._clock, self._waited_ms = lock, clock, waited_ms

    def __enter__(self) -> bool:
        taken = self._lock.acquire()
        self._clock.now_ms += self._waited_ms
        return taken

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_the_store_time_is_when_the_lock_was_taken_not_when_it_was_asked_for(tmp_path, clock):
    parts = LogParts(tmp_path, clock=clock)
    parts.log.lock = SlowLock(parts.log.lock, clock, 30)
    message = Message(topic=TOPIC, body=bytearray(b"x"))  # not plain: one that takes the lock
    assert parts.writer.put(message).store_timestamp_ms == START_MS + 30
    batch = parts.writer.put_messages([message])
    assert batch.store_timestamp_ms == START_MS + 60


class FailingClock(Clock):
    """A clock that fails once it is told to, which an append asks under the lock."""

    fails = False

    def __call__(self):
        if self.fails:
            self.fails = False
            raise ZeroDivisionError
        return super().__call__()


def fail_before_the_lock(store, _disk, _clock):
    with pytest.raises(RefusedMessageError):
        store.put(Message(topic=TOPIC, flag=2**40))


def fail_for_want_of_a_file(store, disk, _clock):
    disk.is_full = True
    result = store.put(Message(topic=TOPIC, body=bytes(LOG_FILE_BYTES - 200)))
    disk.is_full = False
    assert result.status is PutMessageStatus.CREATE_MAPEDFILE_FAILED


def fail_at_the_clock(store, _disk, clock):
    clock.fails = True
    log = parts_of(store).log
    with pytest.raises(ZeroDivisionError):
        log.append(log.counter(QueueKey(TOPIC, 0)), [Record(b"x", b"", log.end.store_host)])


def fail_at_further_queues(store, _disk, _clock):
    log = parts_of(store).log
    with pytest.raises(ZeroDivisionError):
        log.append(
            log.counter(QueueKey(TOPIC, 0)), [Record(b"x", b"", log.end.store_host)],
            lambda: 1 // 0,
        )  # fmt: skip


@pytest.mark.parametrize(
    "fail",
    [fail_before_the_lock, fail_for_want_of_a_file, fail_at_the_clock, fail_at_further_queues],
)
def test_the_lock_is_free_after_any_failure(tmp_path, disk, fail):
    clock = FailingClock()
    with open_small(tmp_path / "store", clock, disk=disk) as store:
        store.put(Message(topic=TOPIC, body=bytes(100)))
        fail(store, disk, clock)
        assert parts_of(store).log.end.locked_since_ms == 0
        assert not parts_of(store).log.lock.locked()
        clock.now_ms += 10_000  # which would be long for one who holds the lock
        result = store.put(Message(topic=TOPIC, body=b"after"))
        assert (result.status, result.queue_offset) == (OK, 1)


def test_the_state_of_the_store_is_looked_at_before_the_message(tmp_path):
    with open_small(tmp_path / "store", broker_role=BrokerRole.SLAVE) as store:
        topic = "t" * 200
        long = Message(topic=topic, body=b"x")
        batch = encode_client_batch([(0, b"x", b"")])
        assert store.put(long).status is UNAVAILABLE
        assert store.put_batch([long, long]).status is UNAVAILABLE
        assert store.put_client_batch(topic, 0, batch).status is UNAVAILABLE
        assert store.put_client_batch(topic, 0, bytearray(batch)).status is UNAVAILABLE
        # What would be an error otherwise is none where nothing is taken.
        assert store.put_batch([Message(topic=TOPIC, flag=2**40)]).status is UNAVAILABLE
        assert store.put_client_batch(TOPIC, 0, batch[:-1]).status is UNAVAILABLE


def test_of_several_reasons_against_puts_the_first_is_named(tmp_path):
    with open_small(tmp_path / "store", broker_role=BrokerRole.SLAVE) as store:
        store.running_flags.set(RunningFlag.DISK_FULL, "the disk is full")
        assert "SLAVE" in store.put(Message(topic=TOPIC, body=b"x")).detail
    assert store.put(Message(topic=TOPIC, body=b"x")).detail == CLOSED


# --- prepared messages, waiting -------------------------------------------------------------------


def test_a_prepared_message_may_have_another_body_at_each_put(store):
    prepared = store.prepare(Message(topic=TOPIC, body=b"default"))
    store.put_prepared(prepared)
    store.put_prepared(prepared, b"other")
    store.wait_dispatched()
    assert [m.body for m in store.get(TOPIC, 0, 0).messages] == [b"default", b"other"]
