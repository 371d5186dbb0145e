"""A row of mapped files: names, finding, loading what is not as it should be (spec B6, F1, F2)."""

from __future__ import annotations

import pytest

from rocketstore.errors import StoreDamagedError
from rocketstore.format.file_name import file_name
from rocketstore.storage.mapped_file_queue import FileProblemReason, MappedFileQueue
from rocketstore.units import ByteRange
from support.failing_disk import FailingDisk

SIZE = 4096


@pytest.fixture
def disk():
    return FailingDisk()


@pytest.fixture
def row(tmp_path, disk):
    return MappedFileQueue(tmp_path, SIZE, disk=disk)


def fill(row: MappedFileQueue, count: int, base: int = 0) -> None:
    for number in range(count):
        file = row.create(base + number * SIZE)
        file.append_bytes(bytes([number + 1]) * SIZE)


def loaded(tmp_path, disk, **options):
    row = MappedFileQueue(tmp_path, SIZE, disk=disk)
    return row, row.load(**options)


def test_each_file_is_named_by_the_offset_of_its_first_byte(row, tmp_path):
    fill(row, 3, base=2 * SIZE)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "00000000000000008192",
        "00000000000000012288",
        "00000000000000016384",
    ]


def test_a_created_name_is_synced_with_its_directory(row, disk, tmp_path):
    row.create(0)
    assert disk.calls[-1] == ("fsync_directory", tmp_path.name)


def test_without_files_there_is_no_minimum_and_nothing_written(row):
    assert (row.min_offset, row.max_offset, row.last()) == (-1, 0, None)
    assert row.find(0) is None


def test_minimum_and_maximum_are_those_of_the_first_and_last_file(row):
    fill(row, 2, base=SIZE)
    row.create(3 * SIZE).append_bytes(b"abc")
    assert (row.min_offset, row.max_offset) == (SIZE, 3 * SIZE + 3)


def test_the_minimum_passes_over_a_first_file_that_is_being_deleted(row):
    fill(row, 2)
    row.files[0].hold()
    row.files[0].destroy(120_000, now_ms=0)
    assert row.min_offset == SIZE


def test_an_offset_finds_the_file_that_covers_it(row):
    fill(row, 3, base=SIZE)
    assert row.find(SIZE - 1) is None
    assert row.find(SIZE).base == SIZE
    assert row.find(3 * SIZE - 1).base == 2 * SIZE
    assert row.find(4 * SIZE) is None


def test_an_offset_behind_a_missing_file_is_found_and_the_gap_is_not(row):
    row.create(0)
    row.create(3 * SIZE)
    assert row.find(SIZE) is None
    assert row.find(3 * SIZE + 7).base == 3 * SIZE


def test_the_next_file_begins_at_the_next_multiple(row):
    assert [row.roll_next(offset) for offset in (0, 1, SIZE - 1, SIZE)] == [
        SIZE, SIZE, SIZE, 2 * SIZE,
    ]  # fmt: skip


def test_a_slice_never_crosses_into_the_next_file(row):
    fill(row, 2)
    assert bytes(row.slice(SIZE - 2, 2)) == b"\x01\x01"
    assert row.slice(SIZE - 2, 3) is None
    assert bytes(row.slice(SIZE, 1)) == b"\x02"


def test_files_do_not_overlap(row):
    row.create(SIZE)
    with pytest.raises(ValueError, match="does not come behind"):
        row.create(SIZE - 1)


# --- cutting and deleting -------------------------------------------------------------------------


def test_truncating_sets_the_end_and_deletes_the_files_behind_it(row, disk, tmp_path):
    fill(row, 4)
    row.flush()
    gone = row.truncate_after(SIZE + 10, now_ms=0)
    assert [path.name for path in gone] == [file_name(2 * SIZE), file_name(3 * SIZE)]
    assert row.max_offset == row.flushed_offset == SIZE + 10
    assert sorted(path.name for path in tmp_path.iterdir()) == [file_name(0), file_name(SIZE)]
    assert disk.calls[-1] == ("fsync_directory", tmp_path.name)


def test_the_first_file_goes_and_the_directory_is_synced(row, disk, tmp_path):
    fill(row, 2)
    assert row.remove_first(force_after_ms=0, now_ms=0).name == file_name(0)
    assert row.min_offset == SIZE
    assert disk.calls[-1] == ("fsync_directory", tmp_path.name)


def test_a_first_file_that_is_read_stays_in_the_row(row):
    fill(row, 2)
    row.files[0].hold()
    assert row.remove_first(force_after_ms=120_000, now_ms=0) is None
    assert len(row.files) == 2


# --- flushing -------------------------------------------------------------------------------------


def test_one_flush_reaches_every_file(row):
    fill(row, 3)
    row.create(3 * SIZE).append_bytes(b"x")
    assert row.flush() == 3 * SIZE + 1
    assert row.flushed_offset == 3 * SIZE + 1


def test_the_flushed_offset_ends_before_the_first_byte_that_is_not_synced(row):
    fill(row, 3)
    row.files[0].flush()
    row.files[2].flush()
    assert row.flushed_offset == SIZE


# --- loading --------------------------------------------------------------------------------------


def test_files_are_loaded_in_order_and_nothing_is_mapped(row, tmp_path, disk):
    fill(row, 11)
    again, problems = loaded(tmp_path, disk)
    assert problems == []
    assert [file.base for file in again.files] == [number * SIZE for number in range(11)]
    assert not any(file.is_mapped for file in again.files)
    assert again.file_ranges[1] == ByteRange(SIZE, 2 * SIZE)


def test_the_first_file_need_not_begin_at_0(row, tmp_path, disk):
    fill(row, 2, base=5 * SIZE)
    again, problems = loaded(tmp_path, disk)
    assert (again.min_offset, problems) == (5 * SIZE, [])


def test_a_missing_directory_is_a_row_without_files(tmp_path, disk):
    row, problems = loaded(tmp_path / "missing", disk)
    assert (row.files, problems) == ((), [])


def test_a_gap_between_files_is_reported_and_not_waited_on(row, tmp_path, disk):
    fill(row, 3)
    (tmp_path / file_name(SIZE)).unlink()
    again, problems = loaded(tmp_path, disk)
    assert [file.base for file in again.files] == [0, 2 * SIZE]
    assert [(p.reason, p.expected, p.found) for p in problems] == [
        (FileProblemReason.GAP, SIZE, 2 * SIZE)
    ]


def test_a_short_last_file_gets_its_size_and_loses_no_byte(row, tmp_path, disk):
    fill(row, 2)
    last = tmp_path / file_name(SIZE)
    last.write_bytes(b"\x02" * 100)
    again, problems = loaded(tmp_path, disk)
    assert [p.reason for p in problems] == [FileProblemReason.SHORT_LAST]
    assert last.read_bytes() == b"\x02" * 100 + bytes(SIZE - 100)
    assert len(again.files) == 2


@pytest.mark.parametrize(("number", "length"), [(0, 100), (0, SIZE + 1), (2, SIZE + 1), (1, 0)])
def test_a_file_of_a_wrong_length_is_named_and_nothing_is_lost(row, tmp_path, disk, number, length):
    fill(row, 3)
    wrong = tmp_path / file_name(number * SIZE)
    wrong.write_bytes(bytes(length))
    again = MappedFileQueue(tmp_path, SIZE, disk=disk)
    with pytest.raises(StoreDamagedError, match=f"{wrong.name}.*found {length} bytes"):
        again.load()
    assert len(list(tmp_path.iterdir())) == 3


def test_what_is_no_file_of_the_row_is_reported_and_left_alone(row, tmp_path, disk):
    fill(row, 1)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / file_name(SIZE)).mkdir()
    (tmp_path / file_name(7)).write_bytes(bytes(SIZE))
    again, problems = loaded(tmp_path, disk)
    assert {p.path.name: p.reason for p in problems} == {
        "notes.txt": FileProblemReason.STRANGE_NAME,
        file_name(SIZE): FileProblemReason.NOT_A_FILE,
        file_name(7): FileProblemReason.MISPLACED,
    }
    assert [file.base for file in again.files] == [0]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_files_of_several_directories_are_one_row(tmp_path, disk):
    first, second = tmp_path / "a", tmp_path / "b"
    row = MappedFileQueue(
        [first, second], SIZE, disk=disk, place=lambda base: (first, second)[base // SIZE % 2]
    )
    fill(row, 4)
    assert len(list(first.iterdir())) == len(list(second.iterdir())) == 2
    again = MappedFileQueue([first, second], SIZE, disk=disk)
    assert again.load() == []
    assert [file.base for file in again.files] == [0, SIZE, 2 * SIZE, 3 * SIZE]


def test_of_two_files_of_one_name_the_second_is_reported(tmp_path, disk):
    first, second = tmp_path / "a", tmp_path / "b"
    for directory in (first, second):
        fill(MappedFileQueue(directory, SIZE, disk=disk), 1)
    again = MappedFileQueue([first, second], SIZE, disk=disk)
    assert [(p.path, p.reason) for p in again.load()] == [
        (second / file_name(0), FileProblemReason.DUPLICATE)
    ]


def test_files_of_a_read_only_directory_are_read_and_never_deleted(tmp_path, disk):
    old, new = tmp_path / "old", tmp_path / "new"
    fill(MappedFileQueue(old, SIZE, disk=disk), 1)
    row = MappedFileQueue(new, SIZE, disk=disk, read_only_directories=[old])
    row.load()
    row.create(SIZE)
    assert bytes(row.slice(0, 2)) == b"\x01\x01"
    assert row.remove_first(force_after_ms=0, now_ms=0) is None
    assert (old / file_name(0)).exists()
