"""One mapped file: room first, positions that do not lie, readers that keep it (spec B5)."""

from __future__ import annotations

import mmap

import pytest

from rocketstore.errors import FlushFailedError, FormatError, StoreFullError
from rocketstore.storage.disk import has_all_blocks
from rocketstore.storage.mapped_file import MappedFile
from rocketstore.units import OS_PAGE_SIZE_BYTES
from support.failing_disk import FailingDisk

SIZE = 8 * OS_PAGE_SIZE_BYTES


@pytest.fixture
def disk():
    return FailingDisk()


@pytest.fixture
def file(tmp_path, disk):
    return MappedFile.create(tmp_path, base=SIZE, size=SIZE, disk=disk)


def test_pages_are_counted_in_4096_bytes():
    assert OS_PAGE_SIZE_BYTES == 4096


def test_a_new_file_is_named_by_its_offset_and_all_zeros_of_full_size(file):
    assert file.path.name == f"{SIZE:020d}"
    assert file.path.read_bytes() == bytes(SIZE)
    assert (file.write_position, file.flushed_position, file.end) == (0, 0, SIZE)


def test_a_new_file_owns_its_blocks_and_its_name_is_durable(file, disk):
    assert has_all_blocks(file.fd, SIZE)
    name = file.path.name
    wanted = [("allocate", name), ("fdatasync", name), ("fsync_directory", file.path.parent.name)]
    assert disk.calls == wanted


def test_without_room_no_file_is_left_behind(tmp_path, disk):
    disk.is_full = True
    with pytest.raises(StoreFullError, match=f"{SIZE} bytes needed"):
        MappedFile.create(tmp_path, base=0, size=SIZE, disk=disk)
    assert list(tmp_path.iterdir()) == []


def test_a_sparse_file_gets_room_by_pwrite_before_its_mapping_is_touched(tmp_path, disk):
    disk.is_sparse = True
    file = MappedFile.create(tmp_path, base=0, size=SIZE, disk=disk)
    assert file.append_bytes(b"first")
    assert ("write", file.path.name) in disk.calls


def test_a_sparse_file_on_a_full_disk_is_an_error_and_no_signal(tmp_path, disk):
    disk.is_sparse = True
    file = MappedFile.create(tmp_path, base=0, size=SIZE, disk=disk)
    disk.is_full = True
    with pytest.raises(StoreFullError):
        file.append_bytes(b"first")
    assert file.write_position == 0


def test_an_old_file_counts_as_full_until_recovery_says_more(file, disk):
    again = MappedFile.open(file.path, base=SIZE, size=SIZE, disk=disk)
    assert again.is_full
    assert again.flushed_position == SIZE
    again.set_end(100)
    assert (again.write_position, again.flushed_position) == (100, 100)


def test_a_file_of_another_length_is_named_with_both_lengths(file, disk):
    with pytest.raises(FormatError, match=f"expected {2 * SIZE} bytes, found {SIZE} bytes") as got:
        MappedFile.open(file.path, base=SIZE, size=2 * SIZE, disk=disk)
    assert got.value.path == file.path


def test_an_old_file_is_mapped_only_when_somebody_reads_it(file, disk):
    again = MappedFile.open(file.path, base=SIZE, size=SIZE, disk=disk)
    assert not again.is_mapped
    again.slice(0, 1)
    assert again.is_mapped


def test_appended_bytes_are_in_the_file_at_the_write_position(file):
    assert file.append_bytes(b"one")
    assert file.append_bytes(b"two")
    assert file.write_position == 6
    assert file.path.read_bytes()[:6] == b"onetwo"


def test_bytes_that_do_not_fit_are_not_appended(file):
    assert file.append_bytes(bytes(SIZE - 1))
    assert not file.append_bytes(b"ab")
    assert file.write_position == SIZE - 1
    assert not file.is_full
    assert file.append_bytes(b"a")
    assert file.is_full


def test_a_copy_that_fails_does_not_move_the_position(file):
    with pytest.raises(TypeError):
        file.append_bytes("text")
    assert file.write_position == 0


def test_readers_see_written_bytes_only(file):
    file.append_bytes(b"12345678")
    assert bytes(file.slice(2, 6)) == b"345678"
    assert file.slice(2, 7) is None
    assert file.slice(9, 0) is None
    assert file.slice(-1, 1) is None


# --- flushing -------------------------------------------------------------------------------------


def test_flush_below_the_least_pages_does_nothing(file, disk):
    file.append_bytes(bytes(3 * OS_PAGE_SIZE_BYTES + 4095))
    before = disk.count("fdatasync")
    assert file.flush(4) == 0
    assert disk.count("fdatasync") == before
    file.append_bytes(b"x")
    assert file.flush(4) == 4 * OS_PAGE_SIZE_BYTES
    assert disk.count("fdatasync") == before + 1


def test_flush_of_no_least_pages_syncs_a_single_byte(file):
    file.append_bytes(b"x")
    assert file.flush(0) == 1


def test_a_full_file_is_flushed_however_few_pages_are_new(file):
    file.append_bytes(bytes(SIZE - 1))
    file.flush()
    file.append_bytes(b"x")
    assert file.flush(100) == SIZE


def test_flush_of_nothing_new_does_not_ask_the_system(file, disk):
    file.append_bytes(b"x")
    file.flush()
    before = disk.count("fdatasync")
    file.flush()
    assert disk.count("fdatasync") == before


def test_a_failed_sync_does_not_move_the_flushed_position(file, disk):
    file.append_bytes(b"x")
    disk.fails_sync = {file.path.name}
    with pytest.raises(FlushFailedError, match=r"fdatasync of .* failed: .*Input/output error"):
        file.flush()
    assert file.flushed_position == 0


def test_the_first_flush_makes_a_name_durable_that_creation_did_not(tmp_path, disk):
    file = MappedFile.create(tmp_path, base=0, size=SIZE, disk=disk, sync=False)
    assert disk.count("fsync_directory") == 0
    file.append_bytes(b"x")
    file.flush()
    assert disk.count("fsync_directory") == 1


def test_a_tail_is_zeroed_durably_and_the_file_keeps_its_size(file, disk):
    file.append_bytes(b"\xff" * SIZE)
    before = disk.count("fdatasync")
    file.zero_tail(5000)
    assert file.path.read_bytes() == b"\xff" * 5000 + bytes(SIZE - 5000)
    assert disk.count("fdatasync") == before + 1


# --- readers and the end --------------------------------------------------------------------------


def test_a_file_that_nobody_holds_is_deleted_at_once(file):
    assert file.reference_count == 1
    assert file.destroy(120_000, now_ms=0)
    assert not file.path.exists()
    assert not file.is_mapped


def test_a_file_that_a_reader_holds_stays_until_it_is_given_back(file):
    assert file.hold()
    assert not file.destroy(120_000, now_ms=1000)
    assert file.path.exists()
    assert not file.is_available
    file.release()
    assert file.destroy(120_000, now_ms=2000)
    assert not file.path.exists()


def test_a_file_that_is_being_deleted_takes_no_new_reader(file):
    file.hold()
    file.destroy(120_000, now_ms=1000)
    assert not file.hold()


def test_a_reader_delays_a_deletion_only_for_so_long(file):
    file.hold()
    assert not file.destroy(120_000, now_ms=1000)
    assert not file.destroy(120_000, now_ms=120_999)
    assert file.destroy(120_000, now_ms=121_000)
    assert not file.path.exists()
    assert file.reference_count < 0


def test_a_view_outlives_the_deletion_of_its_file(file):
    file.append_bytes(b"still here")
    view = file.slice(0, 10)
    file.hold()
    file.destroy(0, now_ms=0)
    assert not file.path.exists()
    assert bytes(view) == b"still here"


def test_the_mapping_goes_with_its_last_view(file):
    file.append_bytes(b"x")
    mapping = file.mapping
    file.destroy(0, now_ms=0)
    assert isinstance(mapping, mmap.mmap)
    mapping.close()  # raises BufferError if anything still pointed into it
