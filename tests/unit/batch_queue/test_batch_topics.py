"""Batch topics: one record and one entry for many messages, which are read one by one."""

import json
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from rocketstore import GetMessageStatus, Message, MessageStore, PutMessageStatus, StoreConfig
from rocketstore.config import BrokerRole, FlushDiskType
from rocketstore.errors import (
    ConfigError,
    InvalidNameError,
    RefusedMessageError,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
)
from rocketstore.format.batch_queue_entry import BATCH_ENTRY_SIZE_BYTES, decode_batch_entry
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.format.properties import encode_properties
from rocketstore.units import QueueKey
from support.batch_stores import BATCHES, PLAIN, bodies, mark, numbered, open_batches, put
from support.clock import Clock
from support.reading import all_messages

OK, ILLEGAL = PutMessageStatus.PUT_OK, PutMessageStatus.MESSAGE_ILLEGAL
UNWRAP, INNER = 0x40, 0x80


@pytest.fixture
def store(root):
    with open_batches(root) as opened:
        yield opened


# --- whole ----------------------------------------------------------------------------------------


def test_messages_of_a_batch_are_one_record_and_one_entry_and_are_read_one_by_one(root):
    with open_batches(root) as store:
        result = put(store, "a", "b", "c", tags="t", flag=7)
        assert (result.status, result.queue_offset, result.message_count) == (OK, 0, 3)
        assert put(store, "d", "e").queue_offset == 3
        page = store.get(BATCHES, 0, 0)
        assert bodies(page) == numbered(*"abcde")
        assert page[2:] == (5, 0, 5, 0)
        first = page.messages[0]
        assert (first.tags, first.flag, first.sys_flag) == ("t", 7, 0)
        assert first.physical_offset == page.messages[2].physical_offset == 0
        assert first.body_crc == zlib.crc32(b"a") & 0x7FFFFFFF
        assert store.queue_count == 1
        assert store.queues() == [QueueKey(BATCHES, 0)]
        record = store.by_id(result.message_id)
        assert record.sys_flag == UNWRAP | INNER
        assert record.properties == {"INNER_NUM": "3", "INNER_BASE": "0"}
        assert record.body == encode_client_batch(
            [(7, b, b"TAGS\x01t") for b in (b"a", b"b", b"c")]
        )
        assert not (root / "consumequeue").exists() or not any((root / "consumequeue").iterdir())
    content = (root / "batchconsumequeue" / BATCHES / "0" / f"{0:020d}").read_bytes()
    assert len(content) % BATCH_ENTRY_SIZE_BYTES == 0
    entry = decode_batch_entry(content, BATCH_ENTRY_SIZE_BYTES)
    assert entry == (result.size, entry.record_size, 0, entry.store_timestamp_ms, 3, 2, -1, 0)
    assert not any(content[2 * BATCH_ENTRY_SIZE_BYTES :])


def test_the_messages_within_a_part_of_the_log_end_with_a_whole_record(store):
    first, second = put(store, "a", "b", "c"), put(store, "d", "e")
    begin, end = second.physical_offset, second.physical_offset + second.size
    limits = (0, first.size - 1, first.size, begin, end - 1, end, end + 1)
    found = [store.end_within(BATCHES, 0, limit) for limit in limits]
    assert found == [0, 0, 3, 3, 3, 5, 5]


@pytest.mark.parametrize("threads", [False, True])
def test_a_store_that_is_opened_again_goes_on(root, threads):
    with open_batches(root, threads=threads) as store:
        put(store, "a", "b")
        store.put(Message(topic=PLAIN, body=b"p"))
    with open_batches(root, threads=threads) as store:
        assert store.next_queue_offset(BATCHES, 0) == 2
        assert put(store, "c").queue_offset == 2
        assert bodies(store.get(BATCHES, 0, 0)) == numbered("a", "b", "c")
        assert bodies(store.get(PLAIN, 0, 0)) == [(0, "p")]


def test_a_message_by_itself_counts_one(store):
    assert store.put(Message(topic=BATCHES, body=b"x", keys="k")).queue_offset == 0
    assert store.put(Message(topic=BATCHES, body=b"y")).queue_offset == 1  # by the quick way
    assert store.put_prepared(store.prepare(Message(topic=BATCHES, body=b"z"))).queue_offset == 2
    assert put(store, "a", "b").queue_offset == 3
    assert bodies(store.get(BATCHES, 0, 0)) == numbered(*"xyzab")
    denied = Message(topic=BATCHES, properties={"INNER_NUM": "2"})
    assert store.put(denied).status is ILLEGAL  # nor by the quick way
    assert [message.body for message in store.find(BATCHES, "k")] == [b"x"]


def test_a_batch_as_a_producer_sends_it_is_stored_unchanged(root):
    batch = encode_client_batch([(1, b"a", b"K\x01v"), (2, b"", b"TAGS\x01t")])
    with open_batches(root) as store:
        result = store.put_client_batch(
            BATCHES, 3, batch, properties={"UNIQ_KEY": "u"}, born_host="1.2.3.4:5",
            born_timestamp_ms=77, reconsume_times=2,
        )  # fmt: skip
        assert (result.status, result.message_count) == (OK, 2)
        store.wait_dispatched()
        record = store.by_id(result.message_id)
        assert record.raw_body == batch
        assert record.properties == {"UNIQ_KEY": "u", "INNER_NUM": "2", "INNER_BASE": "0"}
        one, two = store.get(BATCHES, 3, 0).messages
        assert (one.flag, one.properties, one.body) == (1, {"K": "v"}, b"a")
        assert (two.flag, two.tags, two.body) == (2, "t", b"")
        assert (two.born_host, two.born_timestamp_ms, two.reconsume_times) == ("1.2.3.4:5", 77, 2)
        assert [found.message_id for found in store.find(BATCHES, "u")] == [result.message_id]


def test_a_compressed_batch_is_inflated_before_it_is_divided(root):
    batch = encode_client_batch([(0, b"a" * 500, b""), (0, b"b", b"")])
    with open_batches(root) as store:
        result = store.put_client_batch(BATCHES, 0, zlib.compress(batch), sys_flag=1)
        assert result.message_count == 2
        store.wait_dispatched()
        assert bodies(store.get(BATCHES, 0, 1)) == [(1, "b")]
        assert store.get(BATCHES, 0, 0).messages[0].body == b"a" * 500


def test_a_batch_with_sync_flush_is_on_the_disk(root):
    with open_batches(root, threads=True, flush_disk_type=FlushDiskType.SYNC_FLUSH) as store:
        result = put(store, "a", "b")
        assert result.status is OK
        assert store.flushed_physical_offset >= result.physical_offset + result.size
        assert bodies(store.get(BATCHES, 0, 0)) == numbered("a", "b")


def test_a_slave_takes_no_batch(root):
    with open_batches(root, broker_role=BrokerRole.SLAVE) as store:
        assert put(store, "a").status is PutMessageStatus.SERVICE_NOT_AVAILABLE


def test_consumers_and_callers_that_wait_see_each_message(root):
    with open_batches(root, threads=True) as store:
        put(store, *"abc")
        put(store, *"de")
        assert store.wait_for(BATCHES, 0, 4)
        consumer = store.consume(BATCHES, "g", start="first", idle_timeout_s=0)
        assert [message.body for message in consumer] == [b"a", b"b", b"c", b"d", b"e"]
        heard = []
        store.add_listener(heard.append)
        put(store, "f", "g")
        store.wait_until(lambda: bool(heard), 10)
        assert [(one.topic, one.next_offset) for one in heard] == [(BATCHES, 6)]


def test_threads_that_put_at_once_get_places_of_their_own(root):
    with open_batches(root, threads=True) as store:

        def work(name: str) -> None:
            for number in range(20):
                if name == "0":
                    store.put(Message(topic=BATCHES, body=f"{name}.{number}".encode()))
                else:
                    messages = [Message(topic=BATCHES, body=f"{name}.{number}".encode())] * 3
                    assert store.put_batch(messages).status is OK

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, "012"))
        store.wait_dispatched()
        assert store.max_offset(BATCHES, 0) == 20 + 2 * 60
        seen = [*all_messages(store, BATCHES)]
    assert [message.queue_offset for message in seen] == list(range(140))
    assert sum(message.body.startswith(b"0.") for message in seen) == 20


# --- reading --------------------------------------------------------------------------------------


def test_a_get_may_begin_and_end_inside_a_batch(store):
    put(store, *"abcd")
    put(store, *"ef")
    page = store.get(BATCHES, 0, 2, max_messages=3)
    assert bodies(page) == numbered("c", "d", "e", first=2)
    assert page.next_offset == 5
    page = store.get(BATCHES, 0, 0, max_messages=2)
    assert (bodies(page), page.next_offset) == (numbered("a", "b", first=0), 2)
    assert bodies(store.get(BATCHES, 0, 5)) == [(5, "f")]
    for offset, status, following in (
        (6, GetMessageStatus.OFFSET_OVERFLOW_ONE, 6),
        (9, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 6),
        (-1, GetMessageStatus.OFFSET_TOO_SMALL, 0),
    ):
        assert store.get(BATCHES, 0, offset)[:3] == (status, [], following)
    assert store.get(BATCHES, 8, 0).status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE


def test_tags_are_those_of_each_message(store):
    store.put_batch([Message(topic=BATCHES, body=b, tags=t) for b, t in ((b"a", "x"), (b"b", "y"))])
    store.wait_dispatched()
    page = store.get(BATCHES, 0, 0, tags="y")
    assert (bodies(page), page.next_offset) == ([(1, "b")], 2)
    page = store.get(BATCHES, 0, 0, tags="z")
    assert (page.status, page.next_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 2)


def test_raw_records_are_whole(store):
    first, second = put(store, *"abc"), put(store, *"de")
    assert all(store.is_in_memory(BATCHES, 0, offset) for offset in range(9))
    page = store.get_raw(BATCHES, 0, 1)
    assert (page.message_count, page.next_offset) == (2, 5)
    assert len(page.records) == first.size + second.size
    page = store.get_raw(BATCHES, 0, 1, max_messages=3)
    assert (page.message_count, page.next_offset) == (1, 3)
    (view,) = store.get_views(BATCHES, 0, 4).records
    assert struct.unpack_from(">i", view)[0] == second.size
    del view


def test_times_and_limits_are_those_of_the_messages(root):
    clock = Clock()
    with open_batches(root, clock=clock) as store:
        times = []
        for text in ("ab", "cd", "e"):
            times.append(clock.now_ms)
            put(store, *text)
            clock.now_ms += 1000
        assert [store.offset_at(BATCHES, 0, time) for time in times] == [0, 2, 4]
        assert store.offset_at(BATCHES, 0, times[1] + 1) == 4
        assert store.offset_at(BATCHES, 0, times[2] + 1) == 5  # K-T6
        assert store.offset_at(BATCHES, 0, 0) == 0
        assert store.store_timestamp(BATCHES, 0, 3) == times[1]
        assert store.store_timestamp(BATCHES, 0, 5) is None
        assert store.earliest_timestamp(BATCHES, 0) == times[0]
        assert store.message_count(BATCHES, 0) == 5
        assert [at for at, _ in store.queue_entries(BATCHES, 0)] == [0, 2, 4]
        assert [at for at, _ in store.queue_entries(BATCHES, 0, 3, 1)] == [2]
        assert (store.min_offset(BATCHES, 9), store.max_offset(BATCHES, 9)) == (0, 0)


# --- what is refused ------------------------------------------------------------------------------

BATCH = encode_client_batch([(0, b"a", b""), (0, b"b", b"")])


@pytest.mark.parametrize(
    "fields",
    [
        {"properties": {"INNER_NUM": "2"}},
        {"properties": {"INNER_NUM": "3"}, "sys_flag": UNWRAP | INNER, "body": BATCH},
        {"properties": {"INNER_NUM": "x"}, "sys_flag": UNWRAP | INNER, "body": BATCH},
        {"sys_flag": UNWRAP | INNER, "body": b""},
        {"sys_flag": UNWRAP | INNER, "body": BATCH, "properties": {"DELAY": "1"}},
        {"sys_flag": INNER, "body": encode_client_batch([(0, b"", b"")] * 32768)},
    ],
)
def test_what_cannot_be_a_batch_is_illegal_and_not_stored(fields, store):
    result = store.put(Message(topic=BATCHES, **fields))
    assert (result.status, bool(result.detail)) == (ILLEGAL, True)
    assert store.max_physical_offset == 0
    assert store.statistics.failed_puts == 1


def test_a_batch_that_is_encoded_already_may_be_put_as_a_message(store):
    put(store, "x")
    properties = {"INNER_NUM": "2", "INNER_BASE": "77", "K": "v"}
    message = Message(topic=BATCHES, body=BATCH, sys_flag=UNWRAP | INNER, properties=properties)
    assert store.put(message).queue_offset == 1
    assert store.put_prepared(store.prepare(message)).queue_offset == 3
    store.wait_dispatched()
    assert bodies(store.get(BATCHES, 0, 0)) == numbered(*"xabab")
    record = store.at_physical_offset(store.get(BATCHES, 0, 1).messages[0].physical_offset)
    assert record.properties == {"K": "v", "INNER_NUM": "2", "INNER_BASE": "1"}


@pytest.mark.parametrize("prepared", [False, True])
def test_a_batch_of_another_topic_is_illegal(prepared, store):
    store.put(Message(topic=PLAIN))
    message = Message(topic=PLAIN, body=BATCH, sys_flag=INNER, properties={"INNER_NUM": "2"})
    put = store.put_prepared if prepared else store.put
    assert put(store.prepare(message) if prepared else message).status is ILLEGAL
    assert store.next_queue_offset(PLAIN, 0) == 1


@pytest.mark.parametrize(
    "batch", [BATCH[:-1], BATCH + b"\0", BATCH[:16] + b"\xff" * 4 + BATCH[20:], b"\x7f" * 100]
)
def test_a_batch_with_a_broken_length_is_refused(batch, store):
    with pytest.raises(RefusedMessageError):
        store.put_client_batch(BATCHES, 0, batch)
    assert store.max_physical_offset == 0


def test_messages_that_cannot_be_in_one_batch_are_refused(store):
    plain = Message(topic=BATCHES)
    for other in (
        Message(topic=BATCHES, sys_flag=2),
        Message(topic=BATCHES, properties={"P": "v" * 40000}),
    ):
        assert store.put_batch([plain, other]).status is ILLEGAL
    zipped = Message(topic=BATCHES, body=zlib.compress(b"x"), sys_flag=1)
    assert store.put_batch([zipped, zipped]).status is ILLEGAL
    for wrong in (
        [],
        [plain, Message(topic=PLAIN)],
        [plain, Message(topic=BATCHES, properties={"DELAY": "3"})],
    ):
        with pytest.raises(RefusedMessageError):
            store.put_batch(wrong)
    with pytest.raises(InvalidNameError):
        store.put_batch([plain], queue_id=-1)
    assert store.put_client_batch(BATCHES, 0, b"").status is ILLEGAL
    long = encode_client_batch([(0, b"x" * (store.config.max_message_size + 1), b"")])
    assert store.put_client_batch(BATCHES, 0, long).status is ILLEGAL
    assert store.max_physical_offset == 0


def test_a_closed_store_refuses_as_for_any_topic(root):
    store = open_batches(root)
    put(store, "a")
    store.close()
    with pytest.raises(StoreClosedError):
        store.get(BATCHES, 0, 0)
    with pytest.raises(StoreClosedError):
        store.max_offset(BATCHES, 0)


# --- which topics ---------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [False, True])
def test_a_topic_that_is_made_a_batch_topic_stays_one(root, threads):
    with MessageStore.open(root, StoreConfig.small(), threads=threads) as store:
        store.put(Message(topic=PLAIN, body=b"p"))
        store.batch_topics.create(BATCHES, queue_count=4)
        store.batch_topics.create(BATCHES)
        put(store, "a", "b")
        assert bodies(store.get(BATCHES, 0, 0)) == numbered("a", "b")
        assert bodies(store.get(PLAIN, 0, 0)) == [(0, "p")]
    table = json.loads((root / "config" / "topics.json").read_bytes())
    entry = table["topicConfigTable"][BATCHES]
    assert entry["attributes"] == {"queue.type": "BatchCQ"}
    assert (entry["writeQueueNums"], table["dataVersion"]["counter"]) == (4, 1)
    with MessageStore.open(root, StoreConfig.small()) as store:
        assert bodies(store.get(BATCHES, 0, 0)) == numbered("a", "b")


def test_a_topic_that_is_of_another_kind_stays_so(store):
    store.put(Message(topic="has-messages"))
    for topic in ("has-messages", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"):
        with pytest.raises(StoreError, match="cannot be"):
            store.batch_topics.create(topic)
    with pytest.raises(InvalidNameError):
        store.batch_topics.create("a/b")
    store.wait_dispatched()
    with pytest.raises(StoreError, match="has messages"):
        store.batch_topics.create("has-messages")


def test_what_a_newer_broker_wrote_into_the_table_stays(root):
    with open_batches(root) as store:
        store.batch_topics.create("second")
    table = json.loads((root / "config" / "topics.json").read_bytes())["topicConfigTable"]
    assert table[BATCHES]["newer"] == 1
    assert set(table) == {BATCHES, PLAIN, "second"}


@pytest.mark.parametrize("threads", [False, True])
def test_files_of_the_other_kind_are_an_error_that_says_what_to_do(root, threads):
    with open_batches(root) as store:
        put(store, "a")
    (root / "config" / "topics.json").unlink()
    with pytest.raises(StoreDamagedError, match="is no batch topic"):
        MessageStore.open(root, StoreConfig.small(), threads=threads)
    mark(root, BATCHES)
    with open_batches(root) as store:
        assert bodies(store.get(BATCHES, 0, 0)) == [(0, "a")]


def test_the_size_of_a_file_is_set_learnt_or_that_of_as_many_entries(root):
    sizes = []
    for name, setting in (("set", 100), ("unset", None)):
        mark(root / name, BATCHES)
        with open_batches(root / name, mapped_file_size_batch_queue=setting) as store:
            for number in range(7):
                put(store, str(number), "x")
        with open_batches(root / name) as store:  # learnt
            put(store, "z")
            assert store.max_offset(BATCHES, 0) == 15
            assert bodies(store.get(BATCHES, 0, 0)) == [
                *((n, "x" if n % 2 else str(n // 2)) for n in range(14)), (14, "z"),
            ]  # fmt: skip
        with pytest.raises(ConfigError, match="mapperFileSizeBatchConsumeQueue is 920, but"):
            open_batches(root / name, mapped_file_size_batch_queue=920)
        files = sorted((root / name / "batchconsumequeue" / BATCHES / "0").iterdir())
        sizes.append([(int(file.name), file.stat().st_size) for file in files])
    assert sizes[0] == [(0, 138), (138, 138), (276, 138)]  # three entries each
    assert sizes[1] == [(0, 1024 * BATCH_ENTRY_SIZE_BYTES)]


def test_without_batch_topics_nothing_of_them_is_made(root):
    with MessageStore.open(root, StoreConfig.small(), threads=False) as store:
        put(store, "a", "b", topic=PLAIN)
        assert "put" not in vars(store)
    assert not (root / "batchconsumequeue").exists()


def test_properties_of_a_batch_do_not_hide_those_of_its_messages(store):
    inner = encode_properties({"KEYS": "own"})
    batch = encode_client_batch([(0, b"a", inner)])
    store.put_client_batch(BATCHES, 0, batch, properties={"KEYS": "whole"})
    store.wait_dispatched()
    assert store.get(BATCHES, 0, 0).messages[0].keys == ("own",)
    (found,) = store.find(BATCHES, "whole")
    assert found.sys_flag & INNER


# --- beside a writer ------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", FlushDiskType)
def test_a_reader_beside_the_writer_sees_what_is_dispatched(root, flush):
    with open_batches(root, flush_disk_type=flush) as store:
        put(store, "p", topic=PLAIN)
        put(store, *"abc")
        with MessageStore.open(root, read_only=True) as reader:
            assert bodies(reader.get(BATCHES, 0, 1)) == [(1, "b"), (2, "c")]
            assert reader.queues() == store.queues()
            put(store, *"de")
            assert reader.wait_for(BATCHES, 0, 4)
            page = reader.get(BATCHES, 0, 0)
            assert (bodies(page), page.skipped_entries) == (numbered(*"abcde"), 0)
            assert reader.get_raw(BATCHES, 0, 3).records == store.get_raw(BATCHES, 0, 3).records
            assert list(reader.queue_entries(BATCHES, 0)) == list(store.queue_entries(BATCHES, 0))
            assert reader.offset_at(BATCHES, 0, 0) == 0
            assert bodies(reader.get(PLAIN, 0, 0)) == [(0, "p")]
    with MessageStore.open(root, read_only=True) as reader:
        assert bodies(reader.get(BATCHES, 0, 0)) == numbered(*"abcde")
        assert (reader.min_offset(BATCHES, 7), reader.get(BATCHES, 7, 0).messages) == (0, [])
