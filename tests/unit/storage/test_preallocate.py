"""Files made ahead of the log, warmed and locked on request (spec B7)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rocketstore.errors import StoreError, StoreFullError
from rocketstore.format.file_name import file_name
from rocketstore.storage.disk import has_all_blocks
from rocketstore.storage.mapped_file import MappedFile
from rocketstore.storage.preallocate import Preallocator
from rocketstore.storage.warm_up import WarmUp
from support.failing_disk import FailingDisk

SIZE = 16 * 4096
WAIT_S = 30


class SlowDisk(FailingDisk):
    """Makes a file only when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()

    def allocate(self, descriptor, path, size):
        self.may_go_on.wait(WAIT_S)
        return super().allocate(descriptor, path, size)


@pytest.fixture
def disk():
    return FailingDisk()


@pytest.fixture
def preallocator(tmp_path, disk):
    made = Preallocator(lambda _base: tmp_path, SIZE, disk=disk)
    yield made
    made.close()


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_the_two_files_behind_the_one_in_use_are_made_ahead(preallocator, tmp_path):
    preallocator.start()
    preallocator.take(0)
    assert preallocator.wait_idle(WAIT_S)
    assert names(tmp_path) == [file_name(0), file_name(SIZE), file_name(2 * SIZE)]
    assert preallocator.ready_count == 2


def test_a_file_made_ahead_is_handed_out_and_not_made_again(preallocator, disk):
    preallocator.start()
    preallocator.take(0)
    preallocator.wait_idle(WAIT_S)
    file = preallocator.take(SIZE)
    assert file.base == SIZE
    preallocator.wait_idle(WAIT_S)
    allocated = [name for what, name in disk.calls if what == "allocate"]
    assert sorted(allocated) == [file_name(number * SIZE) for number in range(4)]


def test_what_is_handed_out_is_complete(preallocator):
    preallocator.start()
    preallocator.take(0)
    preallocator.wait_idle(WAIT_S)
    file = preallocator.take(SIZE)
    assert has_all_blocks(file.fd, SIZE)
    assert file.path.read_bytes() == bytes(SIZE)


def test_without_its_thread_a_file_is_made_when_it_is_asked_for(preallocator, tmp_path):
    assert preallocator.take(3 * SIZE).base == 3 * SIZE
    assert names(tmp_path) == [file_name(3 * SIZE)]


def test_files_that_nobody_took_are_deleted_at_an_orderly_close(preallocator, tmp_path, disk):
    preallocator.start()
    preallocator.take(0)
    preallocator.wait_idle(WAIT_S)
    preallocator.close()
    assert names(tmp_path) == [file_name(0)]
    assert disk.calls[-1] == ("fsync_directory", tmp_path.name)


def test_a_put_waits_for_the_file_that_is_being_made(tmp_path):
    disk = SlowDisk()
    preallocator = Preallocator(lambda _base: tmp_path, SIZE, disk=disk)
    preallocator.start()
    preallocator.request(0)
    taken: list[MappedFile] = []
    taker = threading.Thread(target=lambda: taken.append(preallocator.take(SIZE)))
    taker.start()
    disk.may_go_on.set()
    taker.join(WAIT_S)
    assert taken[0].base == SIZE
    preallocator.close()


def test_nothing_is_made_ahead_when_it_would_take_the_last_room(preallocator, disk, tmp_path):
    disk.free_bytes = lambda _path: SIZE
    preallocator.start()
    preallocator.take(0)
    preallocator.wait_idle(WAIT_S)
    assert names(tmp_path) == [file_name(0)]


def test_a_full_disk_fails_only_the_put_that_needs_the_file(preallocator, disk, tmp_path):
    preallocator.start()
    disk.is_full = True
    preallocator.request(0)
    preallocator.wait_idle(WAIT_S)
    with pytest.raises(StoreFullError):
        preallocator.take(SIZE)
    disk.is_full = False
    assert preallocator.take(SIZE).base == SIZE


def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(disk, tmp_path):
    (tmp_path / "commitlog").write_text("a file, not a directory")
    preallocator = Preallocator(lambda _base: tmp_path / "commitlog", SIZE, disk=disk)
    with pytest.raises(StoreError, match=r"cannot make the file at 0 in .*commitlog"):
        preallocator.take(0)


# --- warming --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flush", "syncs"), [(True, 4), (False, 0)])
def test_warming_syncs_after_so_many_pages_only_with_sync_flush(tmp_path, disk, flush, syncs):
    file = MappedFile.create(tmp_path, base=0, size=SIZE, disk=disk)
    before = disk.count("fdatasync")
    WarmUp(flush_every_pages=4, flush=flush, lock=False).warm(file)
    assert disk.count("fdatasync") == before + syncs


def test_warming_leaves_a_file_of_zeros_with_every_page_present(tmp_path, disk):
    file = MappedFile.create(tmp_path, base=0, size=SIZE, disk=disk)
    WarmUp(flush_every_pages=4096, flush=False).warm(file)
    assert file.path.read_bytes() == bytes(SIZE)
    assert resident_bytes(file.path) == SIZE


def resident_bytes(path) -> int:
    """What of a file this process has mapped and present, from the kernel's own account."""
    lines = Path("/proc/self/smaps").read_text("utf-8").splitlines()
    for at, line in enumerate(lines):
        if line.endswith(str(path)):
            rss = next(below for below in lines[at:] if below.startswith("Rss:"))
            return int(rss.split()[1]) * 1024
    return 0


def test_a_warm_up_is_done_by_the_thread_that_makes_the_file(tmp_path, disk):
    warmed: list[tuple[int, str]] = []

    class Noting(WarmUp):
        def warm(self, file):
            warmed.append((file.base, threading.current_thread().name))

    preallocator = Preallocator(
        lambda _base: tmp_path,
        SIZE,
        disk=disk,
        warm_up=Noting(flush_every_pages=1, flush=False),
    )
    preallocator.start()
    preallocator.request(0)
    preallocator.wait_idle(WAIT_S)
    preallocator.close()
    assert warmed == [(SIZE, "rocketstore-preallocate"), (2 * SIZE, "rocketstore-preallocate")]


def test_a_full_file_is_unlocked_while_its_mapping_lives(tmp_path, disk):
    released = threading.Event()
    were_mapped: list[bool] = []

    class Noting(WarmUp):
        def warm(self, file):
            file.slice(0, 0)

        def release(self, file):
            were_mapped.append(file.is_mapped)
            released.set()

    preallocator = Preallocator(
        lambda _base: tmp_path,
        SIZE,
        disk=disk,
        warm_up=Noting(flush_every_pages=1, flush=False),
    )
    preallocator.start()
    preallocator.retire(preallocator.take(0))
    assert released.wait(WAIT_S)
    preallocator.close()
    assert were_mapped == [True]
