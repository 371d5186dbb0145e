"""Files made ahead: ready when they are needed, never in the way of a put, gone at the end."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocketstore.errors import StoreError, StoreFullError
from rocketstore.storage.files.ahead import Preallocator, WarmUp
from rocketstore.storage.files.mapped_file import MappedFile
from support.failing_disk import FailingDisk, HeldDisk
from support.patience import PATIENCE_S
from support.preallocation import wait_idle

SIZE = 16384


def preallocator(directory: Path, disk: FailingDisk, **options) -> Preallocator:
    return Preallocator(lambda _base: [directory], SIZE, disk=disk, **options)


def names(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in directory.iterdir())


def test_without_its_thread_a_file_is_made_when_it_is_asked_for(tmp_path):
    files = preallocator(tmp_path / "log", FailingDisk())
    assert files.take(0).base == 0
    assert names(tmp_path / "log") == [0]
    files.close()


def test_the_placement_chooses_the_directory_of_a_new_file(tmp_path):
    places = [tmp_path / "a", tmp_path / "b"]
    files = Preallocator(lambda base: [places[base // SIZE % 2]], SIZE, disk=FailingDisk())
    assert [files.take(base, ahead=False).path.parent for base in (0, SIZE)] == places
    files.close()


def test_the_next_two_files_are_made_ahead(tmp_path):
    files = preallocator(tmp_path, FailingDisk())
    files.thread.start()
    files.take(0)
    assert wait_idle(files, PATIENCE_S)
    assert names(tmp_path) == [0, SIZE, 2 * SIZE]
    taken = files.take(SIZE)
    assert (taken.base, taken.write_position) == (SIZE, 0)
    assert wait_idle(files, PATIENCE_S)
    assert names(tmp_path) == [0, SIZE, 2 * SIZE, 3 * SIZE]
    files.close()


def test_a_request_makes_no_file_again_that_a_put_makes_at_that_moment(tmp_path):
    """The thread of the statistics asks by the last file it saw; the next one may be under way."""
    disk = HeldDisk("allocate")
    files = preallocator(tmp_path, disk)
    files.thread.start()
    files.take(0, ahead=False)
    disk.may_go.clear()
    disk.is_waiting.clear()
    taken = []
    put = threading.Thread(target=lambda: taken.append(files.take(SIZE, ahead=False)))
    put.start()
    assert disk.is_waiting.wait(PATIENCE_S)
    files.request(0)
    disk.may_go.set()
    put.join(PATIENCE_S)
    assert wait_idle(files, PATIENCE_S)
    taken[0].write_bytes(0, b"a message")
    assert (tmp_path / f"{SIZE:020}").read_bytes()[:9] == b"a message"
    assert names(tmp_path) == [0, SIZE, 2 * SIZE]
    files.close()


def test_the_first_file_of_a_log_is_made_alone(tmp_path):
    files = preallocator(tmp_path, FailingDisk())
    files.thread.start()
    files.take(0, ahead=False)
    assert wait_idle(files, PATIENCE_S)
    assert names(tmp_path) == [0]
    files.close()


def test_closing_deletes_files_that_nobody_took(tmp_path, disk):
    files = preallocator(tmp_path, disk)
    files.thread.start()
    files.take(0)
    wait_idle(files, PATIENCE_S)
    files.is_in_use = lambda base: base == 0
    files.close()
    assert names(tmp_path) == [0]
    assert disk.calls[-1] == ("fsync_directory", tmp_path.name)


def test_a_file_under_way_is_waited_for_not_made_twice(tmp_path):
    disk = HeldDisk("allocate")
    disk.may_go.clear()
    files = preallocator(tmp_path, disk)
    files.thread.start()
    files.request(-SIZE)
    assert disk.is_waiting.wait(PATIENCE_S)
    threading.Timer(0.05, disk.may_go.set).start()
    assert files.take(0).base == 0
    files.is_in_use = lambda base: base == 0
    files.close()
    assert disk.calls.count(("allocate", f"{0:020d}")) == 1
    assert 0 in names(tmp_path)


def test_a_file_is_waited_for_5_s_and_then_by_the_next_put(tmp_path, monkeypatch):
    disk, waits = HeldDisk("allocate"), []
    disk.may_go.clear()
    files = preallocator(tmp_path, disk)
    files.thread.start()
    files.request(-SIZE)
    assert disk.is_waiting.wait(PATIENCE_S)
    with monkeypatch.context() as patched:
        patched.setattr(files._changes, "wait_for", lambda _is_so, time_s: waits.append(time_s))
        with pytest.raises(StoreError, match="offset 0 was not made within 5"):
            files.take(0, ahead=False)
    assert waits == [5]
    disk.may_go.set()
    assert files.take(0, ahead=False).base == 0
    assert wait_idle(files, PATIENCE_S)
    assert disk.calls.count(("allocate", f"{0:020d}")) == 1
    files.is_in_use = lambda base: base == 0
    files.close()


def test_no_file_is_made_after_one_that_a_put_makes_itself(tmp_path):
    """A reader would take the order of names for a hole in the log."""
    disk = HeldDisk("allocate", lambda path: int(path.name) == SIZE)
    disk.may_go.clear()
    files = preallocator(tmp_path, disk)
    files.thread.start()
    put = threading.Thread(target=files.take, args=(SIZE,))
    put.start()
    assert disk.is_waiting.wait(PATIENCE_S)
    files.request(SIZE)
    assert not wait_idle(files, 0.1)
    disk.may_go.set()
    put.join(PATIENCE_S)
    assert wait_idle(files, PATIENCE_S)
    named = [int(name) for call, name in disk.calls if call == "give_name"]
    assert named == [SIZE, 2 * SIZE, 3 * SIZE]
    files.close()


def test_a_full_disk_fails_the_put_that_needs_the_file_not_the_thread(tmp_path, disk):
    files = preallocator(tmp_path, disk)
    files.thread.start()
    disk.is_full = True
    with pytest.raises(StoreFullError):
        files.take(0)
    files.request(0)
    assert wait_idle(files, PATIENCE_S)
    assert names(tmp_path) == []
    disk.is_full = False
    assert files.take(0).base == 0
    assert wait_idle(files, PATIENCE_S)
    files.close()


def test_no_file_is_made_ahead_that_would_take_the_last_room(tmp_path, disk):
    disk.room = lambda _path: (9 * SIZE, 7 * SIZE, 2 * SIZE - 1)
    files = preallocator(tmp_path, disk)
    files.thread.start()
    files.take(0)
    assert wait_idle(files, PATIENCE_S)
    assert names(tmp_path) == [0]
    files.close()


def test_what_the_system_refuses_is_an_error_of_the_store(tmp_path):
    (tmp_path / "log").write_bytes(b"a file where the directory should be")
    files = preallocator(tmp_path / "log", FailingDisk())
    with pytest.raises(StoreError, match=r"cannot make the directory .*/log: something that"):
        files.take(0)


class RecordingWarmUp(WarmUp):
    def __init__(self) -> None:
        super().__init__(flush_every_pages=2, flush=True)
        self.released = threading.Event()

    def release(self, file: MappedFile) -> None:
        super().release(file)
        self.released.set()


def test_a_warmed_file_is_all_zeros_and_in_memory(tmp_path, disk):
    files = preallocator(tmp_path, disk, warm_up=WarmUp(flush_every_pages=2, flush=True))
    file = files.take(0)
    assert file.path.read_bytes() == bytes(SIZE)
    # Its blocks and its name, then every two pages.
    assert disk.count("fdatasync") == 1 + SIZE // (2 * 4096)
    files.close()


def test_a_full_warmed_file_is_let_go_of_in_the_background(tmp_path):
    warm_up = RecordingWarmUp()
    files = preallocator(tmp_path, FailingDisk(), warm_up=warm_up)
    files.thread.start()
    files.retire(files.take(0))
    assert warm_up.released.wait(PATIENCE_S)
    files.close()


def test_a_file_is_unlocked_while_it_is_mapped(tmp_path, monkeypatch):
    file = MappedFile.create(tmp_path / f"{0:020d}", base=0, size=SIZE, disk=FailingDisk())
    address, unlocked = int(file.array.ctypes.data), []
    library = SimpleNamespace(munlock=lambda *pages: unlocked.append((*pages, file.is_mapped)))
    monkeypatch.setattr("rocketstore.storage.files.ahead.libc", lambda: library)
    WarmUp(flush_every_pages=1, flush=False).release(file)
    assert unlocked == [(address, SIZE, True)]
    file.drop()
    WarmUp(flush_every_pages=1, flush=False).release(file)
    assert len(unlocked) == 1
