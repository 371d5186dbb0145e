"""One mapped file: room before bytes, positions that follow the truth, readers that keep it."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rocketstore.errors import FlushFailedError, StoreFullError
from rocketstore.format.file_name import file_name
from rocketstore.storage.files.mapped_file import MappedFile
from rocketstore.units import MiB
from support.descriptors import open_descriptors
from support.failing_disk import FailingDisk, HeldDisk
from support.mapped_bytes import append_bytes, is_read_at_random, resident_bytes
from support.patience import PATIENCE_S

SIZE = 16384
NAME = file_name(SIZE)


def create(directory: Path, disk: FailingDisk, **options: bool) -> MappedFile:
    return MappedFile.create(directory / NAME, base=SIZE, size=SIZE, disk=disk, **options)


@pytest.fixture
def file(tmp_path, disk):
    return create(tmp_path, disk)


def test_a_new_file_has_its_name_its_size_and_only_zeros(file):
    assert file.path.name == "00000000000000016384"
    assert file.path.read_bytes() == bytes(SIZE)
    assert (file.base, file.size, file.write_position, file.flushed_position) == (SIZE, SIZE, 0, 0)
    assert file.path.stat().st_blocks * 512 >= SIZE


def test_a_new_file_is_durable_before_anybody_writes_to_it(tmp_path, disk):
    create(tmp_path, disk)
    assert disk.calls == [
        ("make_directory", tmp_path.name),
        ("create_file", NAME),
        ("allocate", NAME),
        ("fdatasync", NAME),
        ("give_name", NAME),
        ("fsync_directory", tmp_path.name),
    ]


def test_a_file_whose_sync_was_put_off_gets_its_names_synced_by_the_first_flush(tmp_path, disk):
    file = create(tmp_path / "topic" / "queue", disk, sync=False)
    assert disk.count("fsync_directory") == 0
    names = [("fsync_directory", name) for name in ("queue", "topic", tmp_path.name)]
    for _ in range(2):
        append_bytes(file, b"x")
        file.flush()
        assert [call for call in disk.calls if call[0] == "fsync_directory"] == names


def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path, disk):
    disk.is_full = True
    with pytest.raises(StoreFullError, match="no room"):
        create(tmp_path, disk)
    assert list(tmp_path.iterdir()) == []


def test_an_old_file_counts_as_full_and_flushed(tmp_path, disk):
    create(tmp_path, disk)
    file = MappedFile(tmp_path / NAME, base=SIZE, size=SIZE, disk=disk)
    assert (file.write_position, file.flushed_position) == (SIZE, SIZE)
    assert not file.is_mapped
    assert len(file.array) == SIZE
    assert file.is_mapped


def test_a_file_opened_for_reading_cannot_be_written(tmp_path, disk):
    create(tmp_path, disk)
    path = tmp_path / NAME
    file = MappedFile(path, base=SIZE, size=SIZE, disk=disk, writable=False)
    with pytest.raises(TypeError):
        file.mapping[0] = 1
    assert not file.array.flags.writeable


def test_a_sparse_file_of_java_gets_blocks_before_it_is_written(tmp_path, disk):
    path = tmp_path / "00000000000000000000"
    with path.open("wb") as stream:
        stream.truncate(SIZE)
    file = MappedFile(path, base=0, size=SIZE, disk=disk)
    file.set_end(100)
    file.reserve(101)
    assert file.backed_position == SIZE
    assert path.stat().st_blocks * 512 >= SIZE


def test_without_fallocate_each_page_is_written_by_the_system_before_the_mapping(tmp_path, disk):
    disk.is_sparse = True
    size = 4 * 1024 * 1024
    file = MappedFile.create(tmp_path / "file", base=0, size=size, disk=disk)
    assert file.backed_position == 0
    append_bytes(file, b"abc")
    assert 3 <= file.backed_position < size
    probed = file.backed_position
    disk.is_full = True
    file.set_end(probed)
    with pytest.raises(StoreFullError):
        append_bytes(file, b"behind")
    assert file.write_position == probed


def test_probing_a_page_keeps_what_stands_in_it(tmp_path, disk):
    disk.is_sparse = True
    path = tmp_path / "00000000000000000000"
    with path.open("wb") as stream:
        stream.write(b"old bytes")
        stream.truncate(SIZE)
    file = MappedFile(path, base=0, size=SIZE, disk=disk)
    file.set_end(9)
    append_bytes(file, b", new bytes")
    assert path.read_bytes()[:20] == b"old bytes, new bytes"


def test_flush_moves_the_flushed_position_and_does_nothing_twice(disk, file):
    syncs = disk.count("fdatasync")
    append_bytes(file, b"abc")
    assert file.flush() == 3
    assert file.flush() == 3
    assert disk.count("fdatasync") == syncs + 1


def test_flush_waits_for_enough_pages_unless_the_file_is_full(file):
    append_bytes(file, bytes(2 * 4096 - 1))
    assert file.flush(least_pages=2) == 0
    append_bytes(file, b"x")
    assert file.flush(least_pages=2) == 2 * 4096
    append_bytes(file, b"x")
    assert file.flush(least_pages=2) == 2 * 4096
    append_bytes(file, bytes(SIZE - file.write_position))
    assert file.flush(least_pages=100) == SIZE


def test_many_pages_leave_the_mapping_before_a_sync_and_keep_their_bytes(tmp_path):
    # Left mapped, each is taken from all processors one by one while it is written.
    size = 64 * 4096
    mapped = []

    class LookingDisk(FailingDisk):
        def fdatasync(self, descriptor, path):
            mapped.append(resident_bytes(path))
            super().fdatasync(descriptor, path)

    file = MappedFile.create(tmp_path / NAME, base=SIZE, size=size, disk=LookingDisk())
    written = bytes(range(1, 251)) * 800
    view = file.array[: len(written)]
    append_bytes(file, written[:100_001])
    file.flush()
    append_bytes(file, written[100_001:])
    file.flush()
    assert mapped[-2:] == [0, 0]
    assert bytes(view) == file.path.read_bytes()[: len(written)] == written


def test_a_few_pages_stay_mapped(file):
    file.array[:3] = 1
    file.write_position = 3
    file.flush()
    assert resident_bytes(file.path) > 0


def test_single_pages_are_those_after_the_written_ones_until_the_file_is_full(file):
    append_bytes(file, bytes(4096 + 1))
    assert is_read_at_random(file.path) == [False]
    file.write_single_pages(file.write_position)
    assert is_read_at_random(file.path) == [False, True]
    file.read_ahead()
    assert is_read_at_random(file.path) == [False]


def test_a_failed_flush_raises_and_moves_nothing(disk, file):
    append_bytes(file, b"abc")
    disk.fails_sync = {"*"}
    with pytest.raises(FlushFailedError, match="fdatasync"):
        file.flush()
    assert file.flushed_position == 0


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("sync", [MappedFile.flush, lambda file: file.sync_by(lambda by: by)])
def test_a_flush_that_cannot_open_its_file_fails_as_one_whose_sync_does(tmp_path, code, sync):
    class Refusing(FailingDisk):
        refuses = False

        def open_file(self, path, *, writable):
            if self.refuses:
                raise OSError(code, os.strerror(code))
            return super().open_file(path, writable=writable)

    disk = Refusing()
    file = create(tmp_path, disk)
    append_bytes(file, b"abc")
    file.close_descriptor()
    disk.refuses = True
    with pytest.raises(FlushFailedError, match=os.strerror(code)):
        sync(file)
    assert file.flushed_position == 0


def test_zeroing_the_tail_keeps_the_size_and_the_bytes_before(file):
    append_bytes(file, b"x" * SIZE)
    file.clear_tail(5000)
    assert file.path.read_bytes() == b"x" * 5000 + bytes(SIZE - 5000)


READS = (lambda file: memoryview(file.mapping)[1:3], lambda file: file.array[1:3])


@pytest.mark.parametrize("read", READS)
def test_a_file_that_is_being_read_stays_until_its_readers_let_go(read, file):
    append_bytes(file, b"abc")
    view = read(file)
    assert not file.destroy(1000, now_ms=0)
    assert not file.is_available
    assert file.path.exists()
    assert bytes(view) == b"bc" == bytes(read(file))
    del view
    assert file.destroy(1000, now_ms=1)
    assert not file.path.exists()


def test_a_file_that_was_read_and_let_go_is_deleted_at_once(file):
    append_bytes(file, b"abc")
    assert file.mapping[:3] == b"abc" == file.array[:3].tobytes()
    assert file.destroy(1000, now_ms=0)


def test_a_file_read_for_too_long_goes_by_force_and_views_stay_valid(file):
    append_bytes(file, b"abc")
    view = memoryview(file.mapping)[:3]
    assert not file.destroy(1000, now_ms=0)
    assert not file.destroy(1000, now_ms=999)
    assert file.destroy(1000, now_ms=1000)
    assert not file.path.exists()
    assert bytes(view) == b"abc"


def test_dropping_a_file_gives_its_descriptors_back(tmp_path, disk):
    before = open_descriptors(tmp_path)
    file = create(tmp_path, disk)
    array = file.array
    view = memoryview(file.mapping)
    file.drop()
    assert array[0] == 0
    del array, view
    assert open_descriptors(tmp_path) == before


def test_a_read_that_the_store_s_close_has_overtaken_leaves_no_descriptor(tmp_path, disk):
    file = create(tmp_path, disk)
    file.drop(for_good=True)
    for _ in range(2):
        assert file.read_at(0, 1) == b"\0"
        with file.descriptor() as descriptor, file.descriptor():
            file.read_at(0, 1)
            file.close_descriptor()
            os.fstat(descriptor)
        assert file.array[0] == 0
        file.unmap()
        assert open_descriptors(tmp_path) == 0


def test_a_file_is_mapped_while_the_disk_of_another_one_hangs(tmp_path, disk):
    hanging = HeldDisk("open_file")
    hanging.may_go.clear()
    other = create(tmp_path / "other", disk)
    slow = MappedFile(create(tmp_path, disk).path, base=SIZE, size=SIZE, disk=hanging)
    with ThreadPoolExecutor(2) as pool:
        try:
            waiting = pool.submit(lambda: slow.array)
            assert hanging.is_waiting.wait(PATIENCE_S)
            assert len(pool.submit(lambda: other.array).result(timeout=PATIENCE_S)) == SIZE
            assert not waiting.done()
        finally:
            hanging.may_go.set()


def test_array_and_mapping_are_the_same_bytes(file):
    file.array[3] = 7
    assert file.mapping[3] == 7
    assert isinstance(file.array, np.ndarray)


def test_pages_whose_zeros_are_on_the_disk_stay_in_memory(tmp_path, disk, monkeypatch):
    path, dropped = tmp_path / NAME, []
    path.write_bytes(bytes(8 * MiB))
    monkeypatch.setattr(os, "posix_fadvise", lambda _file, at, *_: dropped.append(at))
    file = MappedFile(path, base=SIZE, size=8 * MiB, disk=disk)
    file.forget(MiB)
    file.close_descriptor()
    assert dropped == [6 * MiB]
