"""Warming: every page present, locked and read ahead before a put needs the file (spec B7)."""

import functools
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from rocketstore.storage.files.ahead import WarmUp
from rocketstore.storage.files.disk import libc
from rocketstore.storage.files.mapped_file import MappedFile
from support.mapped_bytes import is_read_at_random, resident_bytes

SIZE = 16 * 4096


@pytest.mark.parametrize(("flush", "syncs"), [(True, 4), (False, 0)])
def test_warming_syncs_after_so_many_pages_only_with_sync_flush(tmp_path, disk, flush, syncs):
    file = MappedFile.create(tmp_path / "file", base=0, size=SIZE, disk=disk)
    before = disk.calls.count(("fdatasync", file.path.name))
    WarmUp(flush_every_pages=4, flush=flush).warm(file)
    assert disk.calls.count(("fdatasync", file.path.name)) == before + syncs
    assert is_read_at_random(file.path) == [flush]


def test_warming_leaves_a_file_of_zeros_with_every_page_present(tmp_path, disk, monkeypatch):
    without_locks = SimpleNamespace(madvise=libc().madvise, mlock=lambda _address, _size: -1)
    stand_in(monkeypatch, without_locks)
    file = MappedFile.create(tmp_path / "file", base=0, size=SIZE, disk=disk)
    WarmUp(flush_every_pages=4096, flush=False).warm(file)
    assert file.path.read_bytes() == bytes(SIZE)
    assert resident_bytes(file.path) == SIZE


def stand_in(monkeypatch: pytest.MonkeyPatch, library: object) -> None:
    for module in ("ahead", "mapped_file"):
        monkeypatch.setattr(f"rocketstore.storage.files.{module}.libc", lambda: library)


class Recorder:
    """Stands for the C library and notes what it is asked."""

    def __init__(self, *, populates: bool) -> None:
        self.calls: list[tuple[str, int, int]] = []
        self._populates = populates

    def madvise(self, _address, size, advice):
        self.calls.append(("madvise", size, advice))
        return 0 if self._populates or advice != POPULATE_WRITE else -1

    def mlock(self, _address, size):
        self.calls.append(("mlock", size, 0))
        return 0

    def munlock(self, _address, size):
        self.calls.append(("munlock", size, 0))
        return 0


POPULATE_WRITE, WILLNEED = 23, 3


def test_after_its_pages_a_file_is_locked_whole_and_read_ahead_is_asked_for(
    tmp_path, disk, monkeypatch
):
    library = Recorder(populates=True)
    stand_in(monkeypatch, library)
    file = MappedFile.create(tmp_path / "file", base=0, size=SIZE, disk=disk)
    warm_up = WarmUp(flush_every_pages=8, flush=False)
    warm_up.warm(file)
    half = SIZE // 2
    assert library.calls == [
        ("madvise", half, POPULATE_WRITE),
        ("madvise", half, POPULATE_WRITE),
        ("mlock", SIZE, 0),
        ("madvise", SIZE, WILLNEED),
    ]
    warm_up.release(file)
    assert library.calls[-1] == ("munlock", SIZE, 0)


def test_where_the_kernel_cannot_every_page_is_written_while_others_run(
    tmp_path, disk, monkeypatch, request
):
    stand_in(monkeypatch, Recorder(populates=False))
    size = 2500 * 4096
    file = MappedFile.create(tmp_path / "file", base=0, size=size, disk=disk)
    warm_up = WarmUp(flush_every_pages=4096, flush=False)
    warm_up.warm(file)
    assert resident_bytes(file.path) == size

    turns = 0
    done = threading.Event()

    def take_turns() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            time.sleep(0)

    request.addfinalizer(functools.partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(60)  # another thread runs only where this one lets it
    other = threading.Thread(target=take_turns)
    other.start()
    for _ in range(100):
        file.drop()
        assert file.array.size == size, "mapped again, so that each page costs a fault"
        before = turns
        warm_up.warm(file)
        if turns > before:
            break
    done.set()
    other.join()
    assert turns > before


def test_a_page_that_cannot_be_locked_is_no_error(tmp_path, disk, monkeypatch):
    library = Recorder(populates=True)
    library.mlock = lambda _address, _size: -1
    stand_in(monkeypatch, library)
    file = MappedFile.create(tmp_path / "file", base=0, size=SIZE, disk=disk)
    WarmUp(flush_every_pages=8, flush=False).warm(file)
    assert library.calls[-1] == ("madvise", SIZE, WILLNEED)
