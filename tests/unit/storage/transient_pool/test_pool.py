"""Buffers are lent, written, committed and free again."""

import errno
import gc
import os

import numpy as np
import pytest

from rocketstore import StoreError, StoreFullError, SystemRefusedError
from rocketstore.storage import transient_pool as pool_module
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.transient_pool import PooledFile, TransientStorePool
from support.said import capture_logs

SIZE = 128 * 1024


def new_pool(count: int = 5, *, lock: bool = False, fails_fast: bool = False) -> TransientStorePool:
    return TransientStorePool(count, SIZE, lock=lock, fails_fast=fails_fast)


def new_file(pool: TransientStorePool, directory, base: int = 0, disk: Disk | None = None):
    path = directory / f"{base:020d}"
    return pool.make_file(path, base=base, size=SIZE, disk=disk or Disk())


def put(file: PooledFile, data: bytes) -> None:
    stop = file.write_position + len(data)
    file.array[file.write_position : stop] = np.frombuffer(data, np.uint8)
    file.write_position = stop


def test_each_buffer_has_the_size_of_a_file_and_comes_zeroed():
    pool = new_pool(3)
    buffers = [pool.borrow() for _ in range(3)]
    assert [len(buffer) for buffer in buffers] == [SIZE] * 3
    assert not any(buffer.any() for buffer in buffers)
    assert pool.free_count == 0
    assert pool.borrow() is None


def test_a_buffer_is_free_again_when_its_last_view_goes_and_is_lent_first():
    pool = new_pool()
    buffer = pool.borrow()
    buffer[0] = 7
    views = [buffer[100:200], memoryview(buffer)[5:9], np.frombuffer(buffer, np.uint8, 10)]
    del buffer
    while views:
        assert pool.free_count == 4
        del views[-1]
    assert pool.free_count == 5
    assert pool.borrow()[0] == 7


def test_a_warning_says_that_less_than_40_percent_is_left():
    pool = new_pool()
    with capture_logs() as lines:
        kept = [pool.borrow() for _ in range(3)]
        assert lines == []
        kept += [pool.borrow() for _ in range(3)]
    assert [(line["event"], line["free"]) for line in lines] == [
        ("pool.low", 1), ("pool.low", 0), ("pool.low", 0)
    ]  # fmt: skip
    assert kept[-1] is None


def test_what_cannot_be_locked_is_used_all_the_same_and_said_once(monkeypatch):
    monkeypatch.setattr(pool_module, "_is_locked", lambda _memory: False)
    with capture_logs() as lines:
        pool = new_pool(lock=True)
    assert [(line["event"], line["buffers"]) for line in lines] == [("pool.not_locked", 5)]
    assert pool.borrow() is not None


def test_a_locked_pool_is_in_memory_for_good():
    locked = []

    class Library:
        def mlock(self, address: int, size: int) -> int:
            locked.append((address, size))
            return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_module, "libc", Library)
        pool = new_pool(2, lock=True)
    assert sorted(locked) == sorted((int(each.ctypes.data), SIZE) for each in two_of(pool))


def two_of(pool: TransientStorePool) -> list[np.ndarray]:
    return [buffer for _ in range(2) if (buffer := pool.borrow()) is not None]


def test_without_memory_for_the_pool_an_error_says_how_much_it_wanted(monkeypatch):
    def refuse(*_arguments: object, **_settings: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(pool_module.mmap, "mmap", refuse)
    with pytest.raises(SystemRefusedError, match=rf"5 x {SIZE} bytes.*Cannot allocate memory"):
        new_pool()


def test_a_closed_pool_keeps_no_memory_and_takes_none_back():
    pool = new_pool(2)
    buffer = pool.borrow()
    pool.close()
    del buffer
    gc.collect()
    assert pool.free_count == 0


# --- files ----------------------------------------------------------------------------------------


def test_bytes_are_in_the_buffer_first_and_in_the_file_after_a_commit(tmp_path):
    file = new_file(new_pool(), tmp_path)
    put(file, b"abc")
    assert file.path.read_bytes() == bytes(SIZE)
    assert (file.write_position, file.readable_position, file.flushed_position) == (3, 0, 0)
    assert file.commit() == file.readable_position == 3
    assert file.path.read_bytes()[:4] == b"abc\0"
    put(file, b"de")
    assert file.commit() == 5
    assert file.path.read_bytes()[:6] == b"abcde\0"


def test_a_flush_covers_what_is_committed(tmp_path):
    file = new_file(new_pool(), tmp_path)
    put(file, b"abc")
    assert file.flush() == 0
    file.commit()
    put(file, b"de")
    assert file.flush() == file.flushed_position == 3


def test_a_flush_takes_nothing_from_the_buffer(tmp_path):
    file = new_file(new_pool(), tmp_path)
    put(file, b"x" * 20 * 4096 + b"abc")
    file.commit()
    put(file, b"de")
    file.flush()
    file.commit()
    assert file.path.read_bytes().rstrip(b"\0") == b"x" * 20 * 4096 + b"abcde"


def test_fewer_pages_than_asked_for_wait_unless_the_file_is_full(tmp_path):
    file = new_file(new_pool(), tmp_path)
    put(file, bytes(2 * 4096 - 1))
    assert file.commit(2) == 0
    put(file, b"x")
    assert file.commit(2) == 2 * 4096
    put(file, bytes(SIZE - 2 * 4096 - 1))
    file.commit()
    put(file, b"y")
    assert file.commit(2) == SIZE


def test_a_full_file_gives_its_buffer_back_and_is_mapped_like_any_other(tmp_path):
    pool = new_pool()
    file = new_file(pool, tmp_path)
    reader = file.array
    put(file, b"abc" * 100)
    file.commit()
    file.write_bytes(300, b"end")
    file.write_position = SIZE
    assert pool.free_count == 4
    assert file.commit() == SIZE
    assert pool.free_count == 4
    assert bytes(reader[297:305]) == b"abcend\0\0"
    del reader
    assert pool.free_count == 5
    assert not file.is_mapped
    assert file.mapping[:SIZE] == file.path.read_bytes()
    assert file.mapping[297:305] == b"abcend\0\0"
    assert file.flush() == SIZE


def test_nothing_of_a_buffer_s_last_file_comes_into_the_next_one(tmp_path):
    pool = new_pool(1)
    first = new_file(pool, tmp_path)
    put(first, b"\xff" * SIZE)
    first.commit()
    second = new_file(pool, tmp_path, SIZE)
    assert isinstance(second, PooledFile)
    put(second, b"abc")
    second.write_bytes(3, b"BLANK")
    second.write_position = SIZE
    second.commit()
    assert second.path.read_bytes() == b"abcBLANK".ljust(SIZE, b"\0")


def test_without_a_free_buffer_a_file_is_written_through_its_mapping(tmp_path):
    pool = new_pool(1)
    first, second = new_file(pool, tmp_path), new_file(pool, tmp_path, SIZE)
    assert isinstance(first, PooledFile)
    assert not isinstance(second, PooledFile)
    second.array[0] = 5
    second.write_position = 1
    assert second.path.read_bytes()[0] == 5
    assert second.commit(1000) == second.readable_position == 1


def test_failing_fast_no_file_is_made_without_a_buffer(tmp_path):
    pool = new_pool(1, fails_fast=True)
    file = new_file(pool, tmp_path)
    with pytest.raises(StoreError, match=r"none of the 1 buffers.*fastFailIfNoBufferInStorePool"):
        new_file(pool, tmp_path, SIZE)
    assert [path.name for path in tmp_path.iterdir()] == [file.path.name]
    file.drop()
    assert isinstance(new_file(pool, tmp_path, SIZE), PooledFile)


def test_a_file_that_cannot_be_made_leaves_its_buffer_free(tmp_path, disk):
    disk.is_full = True
    pool = new_pool()
    with pytest.raises(StoreFullError):
        new_file(pool, tmp_path, disk=disk)
    gc.collect()
    assert pool.free_count == 5


def test_what_the_disk_refuses_stays_in_the_buffer_and_is_written_the_next_time(tmp_path, disk):
    file = new_file(new_pool(), tmp_path, disk=disk)
    put(file, b"abc")
    disk.is_full = True
    with pytest.raises(StoreFullError):
        file.commit()
    assert file.readable_position == 0
    put(file, b"de")
    disk.is_full = False
    assert file.commit() == 5
    assert file.path.read_bytes()[:6] == b"abcde\0"


def test_what_is_put_during_a_commit_is_committed_by_the_next_one(tmp_path):
    class BusyDisk(Disk):
        def write_at(self, descriptor, path, position, data):
            super().write_at(descriptor, path, position, data)
            if file.write_position < 5:
                put(file, b"de")

    file = new_file(new_pool(), tmp_path, disk=BusyDisk())
    put(file, b"abc")
    assert file.commit() == file.readable_position == 3
    assert file.path.read_bytes()[:6] == b"abc\0\0\0"
    assert file.commit() == 5
    assert file.path.read_bytes()[:6] == b"abcde\0"


def test_short_writes_are_gone_on_with(tmp_path, monkeypatch):
    file = new_file(new_pool(), tmp_path)
    put(file, bytes(range(256)))
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, bytes(data[:7]), at))
    assert file.commit() == 256
    assert file.path.read_bytes()[:256] == bytes(range(256))


def test_where_blocks_cannot_be_had_ahead_room_is_probed_beside_what_is_committed(tmp_path, disk):
    disk.is_sparse = True
    file = PooledFile.create(tmp_path / "0", base=0, size=4 * 1024 * 1024, disk=disk)
    pool = TransientStorePool(1, file.size, lock=False, fails_fast=False)
    file.lend(pool.borrow())
    file.reserve(2 * 1024 * 1024 + 5)
    assert file.backed_position % 4096 == 0
    file.reserve(file.size - 1)
    assert file.backed_position == file.size
