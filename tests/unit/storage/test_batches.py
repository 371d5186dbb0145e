"""Batches: all messages with consecutive offsets, or none (spec B3.6, F15)."""

import struct

import pytest

from rocketstore import Message, PutMessageStatus, RefusedMessageError
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.format.record import encode_blank
from rocketstore.native.log_end import Record
from rocketstore.units import QueueKey
from support.clock import START_MS
from support.configured_store import LOG_FILE_BYTES, open_small
from support.inside import parts_of
from support.mapped_bytes import bytes_at

OK = PutMessageStatus.PUT_OK
TOPIC = "TopicTest"


@pytest.fixture
def store(tmp_path):
    with open_small(tmp_path / "store") as opened:
        yield opened


def messages(count, size=10):
    return [Message(topic=TOPIC, body=bytes([n]) * size, keys=f"k{n}") for n in range(count)]


def read(store, count):
    store.wait_dispatched()
    return store.get(TOPIC, 0, 0, count).messages


def test_messages_of_a_batch_follow_each_other_in_queue_and_log(store):
    store.put(Message(topic=TOPIC, body=b"before"))
    result = store.put_batch([*messages(4), Message(topic=TOPIC, body=b"")])
    stored = read(store, 10)[1:]
    assert (result.status, result.message_count) == (OK, 5)
    assert [m.queue_offset for m in stored] == [1, 2, 3, 4, 5]
    assert result.queue_offset == 1
    assert [m.physical_offset for m in stored] == result.record_offsets
    assert sum(m.size for m in stored) == result.size
    assert [m.body for m in stored] == [*(bytes([n]) * 10 for n in range(4)), b""]
    assert {m.store_timestamp_ms for m in stored} == {START_MS}
    assert result.message_id == ",".join(m.message_id for m in stored)
    assert store.put(Message(topic=TOPIC, body=b"after")).queue_offset == 6


def test_a_batch_is_stored_byte_for_byte_like_its_messages_one_by_one(tmp_path):
    logs = []
    for name in ("single", "batch"):
        with open_small(tmp_path / name) as store:
            store.put(messages(1)[0])  # the batch is a plain one then
            if name == "batch":
                store.put_batch(messages(7))
            else:
                for message in messages(7):
                    store.put(message)
            logs.append(bytes_at(store._log.files, 0, store.max_physical_offset))
    assert logs[0] == logs[1]


def test_a_batch_that_does_not_fit_goes_to_the_next_file_as_a_whole(store):
    store.put(Message(topic=TOPIC, body=bytes(LOG_FILE_BYTES - 3000)))
    end = store.max_physical_offset
    result = store.put_batch(messages(20, size=100))
    assert result.physical_offset == LOG_FILE_BYTES
    first = (store.layout.commit_log_directories[0] / f"{0:020d}").read_bytes()
    free = LOG_FILE_BYTES - end
    assert first[end:] == encode_blank(free) + bytes(free - 8)
    assert [m.queue_offset for m in read(store, 32)] == list(range(21))


def test_a_batch_larger_than_the_limit_is_a_status_and_no_exception(tmp_path):
    with open_small(tmp_path / "store", max_message_size=1000) as store:
        for puts in (0, 1):  # after a put it could be a plain one
            end = sum(store.put(message).size for message in messages(puts))
            refused = store.put_batch(messages(11, size=100))
            assert refused.status is PutMessageStatus.MESSAGE_ILLEGAL
            assert "exceeds maxMessageSize of 1000" in refused.detail
            assert store.max_physical_offset == end


def test_a_batch_that_fits_no_file_is_illegal(store):
    end = store.put_batch(messages(1)).size
    refused = store.put_batch(messages(7, size=10_000))
    assert refused.status is PutMessageStatus.MESSAGE_ILLEGAL
    assert (store.next_queue_offset(TOPIC, 0), store.max_physical_offset) == (1, end)


@pytest.mark.parametrize(
    "odd",
    [
        {"properties": {"DELAY": "1"}},
        {"properties": {"INNER_MULTI_DISPATCH": "q"}},
        {"sys_flag": 4},
        {"flag": 2**31},
        {"topic": "Other"},
        {"body": "text"},
    ],
    ids=str,
)
def test_one_message_that_is_refused_refuses_the_whole_batch(store, odd):
    batch = [*messages(3), Message(**({"topic": TOPIC, "body": b"x"} | odd))]
    with pytest.raises(RefusedMessageError):
        store.put_batch(batch)
    assert (store.max_physical_offset, store.next_queue_offset(TOPIC, 0)) == (0, 0)


def test_a_batch_of_nothing_is_refused(store):
    for put in (lambda: store.put_batch([]), lambda: store.put_client_batch(TOPIC, 0, b"")):
        with pytest.raises(RefusedMessageError, match="at least one message"):
            put()


# --- as a client encodes it -----------------------------------------------------------------------


def encoded(*parts):
    return encode_client_batch(parts)


def test_a_client_s_batch_becomes_records_with_their_own_checksum(store):
    batch = bytearray(encoded((7, b"a", b"K\x01v"), (8, b"bb", b"")))
    # What a client writes as total size, magic and CRC of a message is not believed.
    struct.pack_into(">ii", batch, 4, 123, 456)
    result = store.put_client_batch(
        TOPIC, 0, bytes(batch), born_host="10.0.0.9:1", born_timestamp_ms=3, reconsume_times=2
    )
    one, two = read(store, 2)
    assert (result.message_count, result.status) == (2, OK)
    assert (one.body, one.flag, one.properties) == (b"a", 7, {"K": "v"})
    assert (two.body, two.flag, two.properties) == (b"bb", 8, {})
    assert {(m.born_host, m.born_timestamp_ms, m.reconsume_times) for m in (one, two)} == {
        ("10.0.0.9:1", 3, 2)
    }


def test_properties_of_the_batch_are_added_after_one_separator(store):
    store.put_client_batch(
        TOPIC,
        0,
        encoded((0, b"a", b"K\x01v"), (0, b"b", b"K\x01v\x02"), (0, b"c", b"")),
        properties={"CLUSTER": "c1"},
    )
    assert [m.raw_properties for m in read(store, 3)] == [
        b"K\x01v\x02CLUSTER\x01c1",
        b"K\x01v\x02CLUSTER\x01c1",
        b"CLUSTER\x01c1",
    ]


def test_properties_too_long_together_are_a_status(store):
    refused = store.put_client_batch(
        TOPIC, 0, encoded((0, b"a", b"K\x01" + b"v" * 20_000)), properties=b"C\x01" + b"w" * 20_000
    )
    assert refused.status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
    assert store.max_physical_offset == 0


def test_a_batch_that_is_cut_off_is_refused_with_its_place(store):
    batch = encoded((0, b"a", b""), (0, b"b", b""))
    with pytest.raises(RefusedMessageError, match="ends inside a message at offset 23"):
        store.put_client_batch(TOPIC, 0, batch[:-1])
    assert store.max_physical_offset == 0


@pytest.mark.parametrize(
    ("properties", "fields"),
    [(b"DELAY\x012", {}), (b"", {"sys_flag": 0x8}), (b"", {"properties": {"DELAY": "2"}})],
    ids=["message", "transaction", "batch"],
)
def test_a_client_s_batch_with_delay_or_transaction_is_refused(store, properties, fields):
    with pytest.raises(RefusedMessageError):
        store.put_client_batch(TOPIC, 0, encoded((0, b"a", properties)), **fields)
    assert store.max_physical_offset == 0


def test_messages_of_a_batch_are_counted_one_by_one(store):
    store.put_batch(messages(5))
    store.put_client_batch(TOPIC, 0, encoded((0, b"a", b""), (0, b"b", b"")))
    assert store.statistics.total_put().messages == 7


class LateLock:
    """A lock that lets something happen between the call of a put and its turn."""

    def __init__(self, lock, before):
        self._lock = lock
        self._before = before

    def acquire(self):
        before, self._before = self._before, None
        if before is not None:
            before()
        return self._lock.acquire()

    def release(self):
        self._lock.release()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *error):
        self.release()


def nearly_full_log(store, monkeypatch):
    """Return a log whose last file is full by the time that the next put has its turn."""
    store.put(Message(topic=TOPIC, body=bytes(LOG_FILE_BYTES - 3000)))
    log = parts_of(store).log
    own_lock = log.lock

    def roll():
        monkeypatch.setattr(log, "lock", own_lock)
        assert store.put(Message(topic=TOPIC, body=bytes(5000))).physical_offset == LOG_FILE_BYTES
        monkeypatch.setattr(log, "lock", late)

    late = LateLock(own_lock, roll)
    monkeypatch.setattr(log, "lock", late)
    return log


def test_a_batch_goes_into_the_file_that_is_last_when_its_turn_comes(store, monkeypatch):
    nearly_full_log(store, monkeypatch)
    # It would have fitted into the first file, which was the last one when it was called.
    # A body that is no bytes is not plain, so that the lock is taken.
    batch = [Message(topic=TOPIC, body=bytearray(b"x" * n)) for n in range(3)]
    result = store.put_batch(batch)
    assert result.physical_offset > LOG_FILE_BYTES + 5000
    assert [m.queue_offset for m in read(store, 32)] == [0, 1, 2, 3, 4]


def test_a_message_goes_into_the_file_that_is_last_when_its_turn_comes(store, monkeypatch):
    log = nearly_full_log(store, monkeypatch)
    assert log.append(
        log.counter(QueueKey(TOPIC, 0)), [Record(b"x", b"", log.end.store_host)]
    ).physical_offset > (LOG_FILE_BYTES + 5000)
    assert [m.queue_offset for m in read(store, 32)] == [0, 1, 2]


@pytest.mark.parametrize("count", [1, 3])
def test_room_is_judged_when_the_lock_is_held(store, monkeypatch, count):
    """Whoever had the lock before may have taken the room, or made the next file."""
    store.put(Message(topic=TOPIC, body=bytes(LOG_FILE_BYTES - 3000)))
    log = parts_of(store).log
    own_lock = log.lock

    def put_first(size):
        def put_by_another():
            monkeypatch.setattr(log, "lock", own_lock)
            return store.put(Message(topic=TOPIC, body=bytes(size)))

        monkeypatch.setattr(log, "lock", LateLock(own_lock, put_by_another))

    records = [Record(b"x" * (1200 // count), b"", log.end.store_host)] * count
    counter = log.counter(QueueKey(TOPIC, 0))
    put_first(1800)  # there was room before, and is none now
    assert log.append(counter, records).physical_offset == LOG_FILE_BYTES
    assert store.max_physical_offset < LOG_FILE_BYTES + 2000

    store.put(Message(topic=TOPIC, body=bytes(LOG_FILE_BYTES - log.end.position - 700)))
    put_first(5000)  # there was no room before, and now the next file is there
    placed = log.append(counter, records).physical_offset
    assert 2 * LOG_FILE_BYTES + 5000 < placed < 3 * LOG_FILE_BYTES

    store.put(Message(topic=TOPIC, body=bytes(LOG_FILE_BYTES - log.end.position - 700)))
    put_first(LOG_FILE_BYTES - 1000)  # nor is there room in the file that is there now
    assert log.append(counter, records).physical_offset == 4 * LOG_FILE_BYTES
    assert [m.queue_offset for m in read(store, 32)] == list(range(6 + 3 * count))
