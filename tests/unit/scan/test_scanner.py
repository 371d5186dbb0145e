"""Each way a CommitLog can be broken, and what a scan says about it."""

import mmap
import resource

import numpy as np
import pytest

from rocketstore.scan import kernels
from rocketstore.scan.arrow import to_arrow
from rocketstore.scan.scanner import Blank, DamageReason, scan_window
from rocketstore.units import ByteRange, KiB, MiB
from support.guarded_memory import guarded
from support.synthetic_log import MAGIC_V1, SyntheticLog, blank_bytes, record_bytes

BASE = 1 << 20


def healthy(count=3, **fields):
    log = SyntheticLog(BASE)
    for number in range(count):
        log.add(queue_offset=number, body=b"body %d" % number, **fields)
    return log


@pytest.fixture
def log():
    return healthy(2)


def scan(data, **options):
    (batch,) = scan_window(bytes(data), base=BASE, **options)
    return batch


def queue_offsets(batch):
    return batch.columns.queue_offset.tolist()


def only_damage(batch):
    (damage,) = batch.damage
    return ByteRange(damage.range.start - BASE, damage.range.stop - BASE), damage.reason


def with_bytes(log, position, replacement):
    data = bytearray(log.data)
    data[position : position + len(replacement)] = replacement
    return data


@pytest.mark.parametrize(
    ("place", "replacement", "reason", "evidence"),
    [
        (0, (3).to_bytes(4, "big"), DamageReason.BAD_LENGTH, "found 3"),
        (0, (-1).to_bytes(4, "big", signed=True), DamageReason.BAD_LENGTH, "found -1"),
        (0, (2**31 - 1).to_bytes(4, "big"), DamageReason.BAD_LENGTH, "found 2147483647"),
        (4, b"\xda\xa3\x20\xa8", DamageReason.BAD_MAGIC, "found daa320a8"),
        (28, bytes(8), DamageReason.BAD_ADDRESS, "found 0"),
        (36, b"\0\0\0\x10", DamageReason.BAD_FIELDS, "do not add up"),
        (84, (2**31 - 1).to_bytes(4, "big"), DamageReason.BAD_FIELDS, "do not add up"),
        (84, (-1).to_bytes(4, "big", signed=True), DamageReason.BAD_FIELDS, "do not add up"),
        (94, b"\xff", DamageReason.BAD_FIELDS, "do not add up"),
        (105, b"\x7f", DamageReason.BAD_FIELDS, "do not add up"),
        (90, b"X", DamageReason.BAD_CRC, "body CRC: expected"),
    ],
)
def test_one_broken_field_costs_one_record(place, replacement, reason, evidence):
    log = healthy()
    position, size = log.records[1]
    batch = scan(with_bytes(log, position + place, replacement))
    assert queue_offsets(batch) == [0, 2]
    assert only_damage(batch) == (ByteRange(position, position + size), reason)
    assert evidence in batch.damage[0].evidence
    assert batch.run_starts == [1]
    assert batch.end_of_data == BASE + len(log.data)


def test_a_broken_body_passes_when_checksums_are_not_asked_for():
    log = healthy()
    data = with_bytes(log, log.records[1][0] + 90, b"X")
    assert queue_offsets(scan(data, check_crc=False)) == [0, 1, 2]


def test_an_empty_body_has_no_checksum_whatever_the_field_says():
    log = SyntheticLog(BASE).add(body=b"", crc=5).add(body=b"", crc=-5).add(body=b"")
    assert len(scan(log.data).columns) == 3
    log.garbage(b"\xff").add(body=b"", crc=7, queue_offset=1)
    assert queue_offsets(scan(log.data)) == [0, 0, 0, 1]


def test_a_record_that_states_another_address_is_no_record():
    log = healthy(1)
    foreign = record_bytes(BASE, body=b"copied from elsewhere")
    log.garbage(foreign).add(queue_offset=9)
    batch = scan(log.data)
    assert queue_offsets(batch) == [0, 9]
    assert only_damage(batch)[1] is DamageReason.BAD_ADDRESS


def test_a_whole_record_hidden_in_a_body_is_not_found():
    address = BASE + 88
    log = SyntheticLog(BASE).add(body=record_bytes(address, body=b"hidden", queue_offset=77))
    log.add(queue_offset=1)
    assert queue_offsets(scan(log.data)) == [0, 1]


def test_a_copied_record_in_a_damaged_record_is_not_found():
    log = SyntheticLog(BASE).add(body=record_bytes(BASE, body=b"copy", queue_offset=77))
    log.add(queue_offset=1)
    log.data[4:8] = b"\0\0\0\1"
    assert queue_offsets(scan(log.data)) == [1]


def test_garbage_with_the_right_magic_is_passed_over():
    log = healthy(1)
    for length in (0, 7, 91, 2**31 - 1):
        log.garbage(length.to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big") + b"\x07" * 90)
    log.add(queue_offset=5)
    assert queue_offsets(scan(log.data)) == [0, 5]


def test_a_torn_record_at_the_end_is_damage_and_the_zeros_after_it_are_unwritten(log):
    end = len(log.data)
    torn = record_bytes(BASE + end, body=b"z" * 40)[:70]
    batch = scan(log.garbage(torn).zeros(500).data)
    written = len(torn.rstrip(b"\0"))
    assert only_damage(batch)[0] == ByteRange(end, end + written)
    assert batch.end_of_data == BASE + end
    assert batch.unwritten_at == BASE + end + written


def test_zeros_to_the_end_are_unwritten_and_no_damage():
    batch = scan(healthy(2).zeros(4096).data)
    assert batch.damage == []
    assert batch.unwritten_at == batch.end_of_data


@pytest.mark.parametrize("zeros", [1, 4, 5, 8, 9, 100, 5000])
def test_zeros_before_a_record_are_a_hole(zeros):
    log = healthy(1)
    begin = len(log.data)
    batch = scan(log.zeros(zeros).add(queue_offset=5).data)
    assert queue_offsets(batch) == [0, 5]
    hole = ByteRange(begin, begin + zeros)
    assert only_damage(batch)[0] == hole
    # The length of the next record begins with three zeros; with fewer than five before them the
    # rest of that length reads as a magic number.
    expected = DamageReason.UNWRITTEN_HOLE if zeros >= 5 else DamageReason.BAD_MAGIC
    assert only_damage(batch)[1] is expected


def test_zeros_before_garbage_are_a_hole_up_to_the_last_written_byte():
    log = healthy(1)
    begin = len(log.data)
    batch = scan(log.zeros(100).garbage(b"\x09").zeros(50).data)
    assert only_damage(batch) == (ByteRange(begin, begin + 101), DamageReason.UNWRITTEN_HOLE)
    assert batch.unwritten_at == BASE + begin + 101


def test_a_blank_takes_everything_up_to_the_end_of_the_file(log):
    end = len(log.data)
    batch = scan(log.blank(300).data)
    assert batch.blanks == [Blank(BASE + end, 300)]
    assert batch.damage == []
    assert batch.unwritten_at is None
    assert batch.end_of_data == BASE + end + 300


@pytest.mark.parametrize("says", [0, 7, 299, 301, -1])
def test_a_blank_that_does_not_say_what_remains_is_damage(says, log):
    data = bytearray(log.blank(300).data)
    data[-300:-296] = says.to_bytes(4, "big", signed=True)
    batch = scan(data)
    assert batch.blanks == []
    assert only_damage(batch)[1] is DamageReason.BAD_LENGTH


def test_a_blank_is_found_after_damage():
    log = healthy(1).garbage(b"\x01" * 50).blank(300)
    batch = scan(log.data)
    assert len(batch.blanks) == 1
    assert batch.run_starts == []


def test_a_blank_of_the_smallest_size_closes_the_file():
    log = healthy(1)
    batch = scan(log.garbage(blank_bytes(8)).data)
    assert batch.blanks[0].size == 8


def test_a_file_cut_inside_a_record_reports_it_truncated():
    log = healthy(3)
    position, size = log.records[2]
    cut = position + size - 5
    batch = scan(log.data[:cut], file_size=4096)
    assert queue_offsets(batch) == [0, 1]
    assert only_damage(batch)[1] is DamageReason.TRUNCATED
    assert f"{size} bytes, but the file ends after {size - 5}" in batch.damage[0].evidence


def test_a_file_cut_inside_a_length_reports_it_truncated(log):
    position, _ = log.records[1]
    batch = scan(log.data[: position + 4], file_size=4096)
    assert only_damage(batch)[1] is DamageReason.TRUNCATED


def test_a_record_must_not_reach_beyond_the_file(log):
    position, size = log.records[1]
    batch = scan(log.data, file_size=position + size - 1)
    assert queue_offsets(batch) == [0]
    assert only_damage(batch)[1] is DamageReason.BAD_LENGTH


def test_records_with_every_kind_of_host_and_magic_are_read():
    log = SyntheticLog(BASE)
    for flag in (0, 0x10, 0x20, 0x30):
        log.add(sys_flag=flag, prepared_transaction_offset=flag + 1, reconsume_times=flag + 2)
    log.add(magic=0xDAA320AB, topic=b"t" * 300)
    columns = scan(log.data).columns
    assert columns.prepared_offset.tolist() == [1, 0x11, 0x21, 0x31, 0]
    assert columns.reconsume_times.tolist() == [2, 0x12, 0x22, 0x32, 0]
    assert set(columns.store_timestamp.tolist()) == {1_600_000_000_123}
    assert columns.topic(4) == "t" * 300
    rows = to_arrow(columns, ["bornHost", "storeHost", "msgId"]).to_pylist()
    v4, v6 = "10.0.0.1:1234", "[2001:db8::1]:10911"
    assert [(row["bornHost"], row["storeHost"]) for row in rows] == [
        (v4, v4), (v6, v4), (v4, v6), (v6, v6), (v4, v4)
    ]  # fmt: skip
    addresses = columns.physical_offset.tolist()
    assert rows[3]["msgId"] == f"20010DB800000000000000000000000100002A9F{addresses[3]:016X}"
    assert rows[4]["msgId"] == f"0A000001000004D2{addresses[4]:016X}"


def test_a_topic_longer_than_a_signed_byte_is_no_v1_record():
    log = SyntheticLog(BASE).add(topic=b"t" * 128)
    assert only_damage(scan(log.data))[1] is DamageReason.BAD_FIELDS


def test_a_malformed_topic_becomes_the_replacement_character_in_arrow():
    log = SyntheticLog(BASE).add(topic=b"T\xff", properties=b"TAGS\x01t\x02KEYS\x01k")
    (row,) = to_arrow(scan(log.data).columns, ["topic", "tags", "keys", "uniqKey"]).to_pylist()
    assert row == {"topic": "T�", "tags": "t", "keys": "k", "uniqKey": None}


def test_an_empty_file_gives_one_empty_batch():
    batch = scan(b"")
    assert len(batch.columns) == 0
    assert batch.end_of_data == BASE
    assert batch.unwritten_at is None
    assert to_arrow(batch.columns).num_rows == 0


def test_a_scan_may_start_and_stop_between_records():
    log = healthy(4)
    second, last = log.records[1][0], log.records[3][0]
    batch = scan(log.data, start=second, stop=last - 1)
    assert queue_offsets(batch) == [1, 2]
    assert batch.end_of_data == BASE + last


@pytest.mark.parametrize("torn_bytes", [0, 1, 50, 400])
def test_knowing_where_zeros_begin_changes_nothing_that_is_found(torn_bytes):
    log = healthy(2).garbage(b"\xff" * 30).add(queue_offset=2, body=b"x" * 300)
    whole = bytes(log.add(queue_offset=3, body=b"y" * 500).data)
    data = whole[: len(whole) - 600 + torn_bytes]
    written = len(data.rstrip(b"\0"))
    data += bytes(5000 - len(data))
    for data_stop in (written, written + 1, written + 777, len(data)):
        found, plain = scan(data, data_stop=data_stop), scan(data)
        assert found.columns.cols.tolist() == plain.columns.cols.tolist()
        assert (found.damage, found.unwritten_at) == (plain.damage, plain.unwritten_at)
        assert found.end_of_data == plain.end_of_data


def test_what_is_known_to_be_zeros_is_not_read(monkeypatch, log):
    data_stop = len(log.data)
    data = with_bytes(log.zeros(1000).add(queue_offset=9), 4, b"\xff")
    assert queue_offsets(scan(data)) == [1, 9]
    looked_at = []
    resync, last_nonzero = kernels.resync, kernels.last_nonzero

    def noted_resync(array, position, stop, base, size):
        looked_at.append(stop)
        return resync(array, position, stop, base, size)

    def noted_last(array, position, stop):
        looked_at.append(stop)
        return last_nonzero(array, position, stop)

    monkeypatch.setattr(kernels, "resync", noted_resync)
    monkeypatch.setattr(kernels, "last_nonzero", noted_last)
    torn = with_bytes(log, log.records[1][0] + 90, b"\xff")
    assert queue_offsets(scan(torn, data_stop=data_stop)) == [0]
    assert looked_at == [data_stop, data_stop]


def test_a_mapping_a_memoryview_and_an_array_are_scanned_in_place(tmp_path, log):
    path = tmp_path / "log"
    path.write_bytes(log.data)
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    for buffer in (mapping, memoryview(log.data), np.frombuffer(log.data, dtype=np.uint8)):
        (batch,) = scan_window(buffer, base=BASE)
        assert queue_offsets(batch) == [0, 1]
        assert np.shares_memory(batch.columns.buffer, np.frombuffer(buffer, dtype=np.uint8))


@pytest.mark.parametrize("array", [np.zeros(4, dtype=np.int32), np.zeros((2, 2), dtype=np.uint8)])
def test_an_array_of_anything_but_bytes_in_a_row_is_refused(array):
    with pytest.raises(TypeError, match="contiguous bytes"):
        list(scan_window(array, base=0))


@pytest.mark.parametrize("noise", range(1, 24))
def test_resync_finds_a_record_at_every_alignment(noise):
    log = SyntheticLog(BASE).garbage(b"\xda" * noise).add(body=b"x" * 70).add()
    array = np.frombuffer(log.data, dtype=np.uint8)
    size = len(array)
    assert kernels.resync(array, 0, size, BASE, size) == noise
    assert kernels.resync(array, noise, size, BASE, size) == noise
    assert kernels.resync(array, noise + 1, size, BASE, size) == log.records[1][0]
    assert kernels.resync(array, 0, noise, BASE, size) == -1


def test_where_no_record_has_room_any_more_a_blank_is_expected():
    content = (99).to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big") + bytes(13)
    [batch] = scan_window(content, base=0)
    assert batch.damage[0].evidence == "expected a blank of 21, found 99"


@pytest.mark.parametrize("filling", [0, 0xDA, 0xCB, 1])
def test_resync_reads_no_further_than_the_magic_number_of_the_last_place(filling):
    """The page after may be one that the kernel would have to bring, with many zeros more."""
    room = guarded(bytes([filling]) * mmap.PAGESIZE).base[mmap.PAGESIZE :]  # its second page
    for start in range(0, mmap.PAGESIZE, 509):
        assert kernels.resync(room, start, mmap.PAGESIZE - 7, BASE, len(room)) == -1


def test_resync_looks_at_no_zeros_after_where_it_is_to_stop():
    """In a file of 1 GiB whose end was never written it would bring all of them into memory."""
    size, stop = 256 * MiB, 64 * KiB
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as zeros:
        array = np.frombuffer(zeros, np.uint8)
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        assert kernels.resync(array, 0, stop, BASE, size) == -1
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
        del array
    assert faults < 64  # of 16 pages; all would be 128, where they are huge, or 65,536
