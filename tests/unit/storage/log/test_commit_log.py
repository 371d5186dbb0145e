"""Append: records one behind the other, files closed by a BLANK, offsets that never lie."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rocketstore.config import FlushDiskType, StoreConfig
from rocketstore.errors import RefusedMessageError, StoreClosedError, StoreFullError
from rocketstore.format.host import encode_host
from rocketstore.message import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rocketstore.native.log_end import Record
from rocketstore.units import QueueKey
from support.log_parts import LOG_FILE_BYTES, LogParts
from support.mapped_bytes import is_read_at_random
from support.oracle.record import decode_record
from support.store_oracle import read_log
from support.synthetic_log import record_bytes

BORN = encode_host("10.0.0.1:1234")
ORDERS = QueueKey("orders", 2)


@pytest.fixture
def parts(tmp_path):
    return LogParts(tmp_path)


def append(parts: LogParts, body: bytes = b"body", *, sys_flag: int = 0, key: QueueKey = ORDERS):
    record = Record(
        body, b"TAGS\x01a", BORN, flag=7, sys_flag=sys_flag, born_timestamp_ms=5,
        reconsume_times=1, prepared_offset=9,
    )  # fmt: skip
    done = parts.log.append(parts.log.counter(key), [record])
    return done.physical_offset, done.size, done.queue_offset, done.store_timestamp_ms


def test_a_record_stands_as_the_format_says(parts):
    offset, size, queue_offset, stored = append(parts)
    expected = record_bytes(
        topic=b"orders", body=b"body", properties=b"TAGS\x01a", queue_id=2, queue_offset=0,
        physical_offset=0, born_timestamp_ms=5, born_host=BORN,
        store_timestamp_ms=parts.clock.now_ms, store_host=parts.log.end.store_host, flag=7,
        reconsume_times=1, prepared_transaction_offset=9,
    )  # fmt: skip
    assert (offset, size, queue_offset, stored) == (0, len(expected), 0, parts.clock.now_ms)
    assert parts.written() == expected


def test_records_follow_each_other_and_each_queue_counts_for_itself(parts):
    first = append(parts)
    second = append(parts, b"longer body")
    other = append(parts, key=QueueKey("orders", 3))
    assert second[0] == first[1]
    assert other[0] == second[0] + second[1]
    assert [result[2] for result in (first, second, other)] == [0, 1, 0]
    assert parts.log.max_offset == other[0] + other[1]
    assert parts.log.next_queue_offset(ORDERS) == 2
    assert parts.log.next_queue_offset(QueueKey("orders", 9)) == 0


def test_nothing_is_appended_once_the_last_append_is_settled(parts):
    append(parts)
    before = parts.written()
    parts.log.settle()
    with pytest.raises(StoreClosedError, match="the store was closed"):
        append(parts)
    assert parts.written() == before


def test_a_thread_that_sleeps_until_the_next_append_is_woken_by_that_one_only(tmp_path):
    master, slave = LogParts(tmp_path / "master"), LogParts(tmp_path / "slave")
    append(master)
    rung = []
    master.log.ring_at_next_append(lambda: rung.append("put"))
    slave.log.ring_at_next_append(lambda: rung.append("replicated"))
    for _ in range(2):
        append(master)
        end = slave.log.max_offset
        slave.log.append_replicated(end, memoryview(master.written())[end:], master.clock.now_ms)
    assert rung == ["put", "replicated"]


def test_the_log_of_a_slave_begins_where_a_file_can(tmp_path):
    master, slave = LogParts(tmp_path / "master"), LogParts(tmp_path / "slave")
    append(master)
    records, stored_ms = memoryview(master.written()), master.clock.now_ms
    with pytest.raises(ValueError, match=f"no file begins at {LOG_FILE_BYTES + 1}"):
        slave.log.append_replicated(LOG_FILE_BYTES + 1, records, stored_ms)
    slave.log.append_replicated(LOG_FILE_BYTES, records, stored_ms)
    assert [file.base for file in slave.files.files] == [LOG_FILE_BYTES]


def test_the_log_goes_on_where_recovery_found_its_end(tmp_path, parts):
    end = append(parts)[1]
    again = LogParts(tmp_path)
    again.files.truncate_after(end, now_ms=0)
    again.log.seed({ORDERS: 41}, last_store_timestamp_ms=5)
    assert append(again)[::2] == (end, 41)


def test_the_last_store_time_of_a_former_run_counts_too(parts):
    parts.log.seed({}, last_store_timestamp_ms=parts.clock.now_ms + 1000)
    assert append(parts)[3] == parts.clock.now_ms + 1000


@pytest.mark.parametrize("kind", [TRANSACTION_PREPARED, TRANSACTION_ROLLBACK])
def test_prepared_and_rollback_records_take_no_place_in_the_queue(kind, parts):
    append(parts)
    placed, _, queue_offset, _ = append(parts, sys_flag=kind)
    assert queue_offset == int.from_bytes(parts.written()[placed + 20 :][:8], "big") == 0
    assert append(parts, sys_flag=TRANSACTION_COMMIT)[2] == 1
    assert append(parts)[2] == 2


@pytest.mark.parametrize(
    ("field", "limit"),
    [
        ("flag", 2**31),
        ("sys_flag", 2**31),
        ("reconsume_times", 2**31),
        ("born_timestamp_ms", 2**63),
        ("prepared_offset", 2**63),
    ],
)
def test_a_number_that_does_not_fit_its_field_makes_no_record(field, limit):
    for good in (limit - 1, -limit):
        Record(b"", b"", BORN, **{field: good})
    for odd, said in [
        (limit, "does not fit its field"),
        (-limit - 1, "does not fit its field"),
        ("1", "is an int, not str: '1'"),
        (1.0, "is an int, not float: 1.0"),
        ([None], "is an int, not list"),
    ]:
        with pytest.raises(RefusedMessageError, match=said):
            Record(b"", b"", BORN, **{field: odd})


def test_a_sparse_file_is_written_page_by_page_after_probing(tmp_path, disk):
    disk.is_sparse = True
    parts = LogParts(tmp_path, disk=disk, log_file_bytes=4 * 1024 * 1024)
    for _ in range(2000):
        append(parts, bytes(1000))
    file = parts.files.files[0]
    assert file.backed_position >= file.write_position
    disk.is_full = True
    size = append(parts, bytes(1000))[1]
    for _ in range((file.backed_position - 8 - file.write_position) // size):
        append(parts, bytes(1000))
    with pytest.raises(StoreFullError):
        append(parts, bytes(1000))
    position = 0
    while position < file.write_position:
        position += decode_record(file.mapping, position, base=0).size
    assert position == file.write_position


def test_dispatch_may_read_flushed_bytes_only_when_flushes_are_waited_for(tmp_path):
    parts = LogParts(tmp_path, StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH))
    size = append(parts)[1]
    assert parts.log.readable_limit == 0
    parts.flusher.flush()
    assert parts.log.readable_limit == size


@pytest.mark.parametrize("mode", FlushDiskType)
def test_only_a_file_whose_every_put_is_synced_is_kept_in_single_pages(tmp_path, mode):
    is_synced = mode is FlushDiskType.SYNC_FLUSH
    parts = LogParts(tmp_path / "master", StoreConfig(flush_disk_type=mode))
    append(parts, bytes(3000))
    append(parts, bytes(2000))
    assert [is_read_at_random(file.path) for file in parts.files.files] == [[False], [is_synced]]
    first, last = (file.read_at(0, file.write_position) for file in parts.files.files)
    slave = LogParts(tmp_path / "slave", StoreConfig(flush_disk_type=mode))
    slave.log.append_replicated(0, memoryview(first), 5)
    slave.log.append_replicated(len(first), memoryview(last), 5)
    if is_synced:
        assert [is_read_at_random(file.path) for file in slave.files.files] == [[False], [True]]
    else:  # nothing zeroes pages that are then overwritten
        assert not any(file.is_mapped for file in slave.files.files)


def test_a_full_file_is_let_go_of_on_a_slave_too(tmp_path, monkeypatch):
    """K-M5: a slave of 4.9 keeps it locked in memory."""
    master, slave = LogParts(tmp_path / "master"), LogParts(tmp_path / "slave")
    retired = []
    monkeypatch.setattr(slave.log.preallocator, "retire", retired.append)
    append(master, bytes(3000))
    append(master, bytes(2000))
    for file in master.files.files:
        content = file.read_at(0, file.write_position)
        slave.log.append_replicated(file.base, memoryview(content), 5)
    assert [file.base for file in retired] == [0]


def test_many_threads_leave_one_unbroken_row(tmp_path):
    parts = LogParts(tmp_path, log_file_bytes=65_536)
    is_held = set()

    def clock() -> int:
        is_held.add(parts.log.lock.locked())
        return parts.clock.now_ms

    parts.log.clock = clock

    def put_many(queue_id: int) -> None:
        for number in range(200):
            append(parts, bytes(number), key=QueueKey("orders", queue_id))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put_many, range(4)))
    assert is_held == {True}
    content = read_log(tmp_path / "commitlog", 65_536)
    assert content.damage == []
    for queue_id in range(4):
        found = [one.queue_offset for one in content.records if one.queue.queue_id == queue_id]
        assert found == [*range(200)]


def test_readers_get_a_window_that_ends_with_the_written_bytes(parts):
    append(parts, b"abc")
    for base in (0, LOG_FILE_BYTES):
        file = parts.log.files.find(base)
        assert parts.log.bytes_at(base + 1, 8) == (file.mapping, base, file.write_position, file)
        append(parts, bytes(LOG_FILE_BYTES - 200))
    assert parts.log.bytes_at(parts.log.max_offset + LOG_FILE_BYTES, 8) is None
