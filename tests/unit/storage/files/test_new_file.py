"""Making a file: no moment shows a name without its size."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from rocketstore.errors import StoreError, StoreFullError
from rocketstore.holes import data_stop
from rocketstore.places.files import LocalFiles
from rocketstore.storage.files import whole_file
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.whole_file import make_file, nonzero_extent, replace_whole
from support.descriptors import open_descriptors
from support.faulty_disk import FaultyDisk, nth
from support.hooked_disk import KilledError, dying_disk

SIZE = 3 * 4096


class NoUnnamedFiles(Disk):
    """A file system like NFS."""

    def create_unnamed(self, path: Path) -> int | None:
        return None


@pytest.mark.parametrize("disk", [Disk(), NoUnnamedFiles()], ids=["unnamed", "named at once"])
def test_a_new_file_has_its_name_its_size_and_its_blocks(tmp_path, disk):
    path = tmp_path / "new"
    descriptor, backed = make_file(path, SIZE, disk=disk)
    try:
        assert backed
        assert path.read_bytes() == bytes(SIZE)
        assert path.stat().st_blocks * 512 >= SIZE
        assert os.path.samestat(os.fstat(descriptor), path.stat())
        assert Path(f"/proc/self/fd/{descriptor}").readlink() == path, "lsof would say (deleted)"
    finally:
        os.close(descriptor)
    assert open_descriptors(tmp_path) == 0


def test_a_killed_writer_leaves_no_file_of_another_size(tmp_path):
    """The Java store would load neither a CommitLog nor a ConsumeQueue with one."""
    names = []
    for calls in range(6):
        directory = tmp_path / str(calls)
        directory.mkdir()
        try:
            make_file(directory / "new", SIZE, disk=dying_disk(calls))
        except KilledError:
            # What is named by then stays there, as after a real kill.
            names.append(sorted(path.name for path in directory.iterdir()))
        assert all(path.stat().st_size == SIZE for path in directory.iterdir())
    assert names == [[], [], [], [], ["new"]]


@pytest.mark.parametrize(
    "call", ["create_file", "allocate", "fdatasync", "give_name", "fsync_directory"]
)
def test_a_fault_leaves_nothing_not_even_after_the_name(tmp_path, call):
    disk = FaultyDisk(nth(call, 0))
    with pytest.raises(OSError, match="Input/output error"):
        make_file(tmp_path / "new", SIZE, disk=disk)
    assert disk.failures
    assert list(tmp_path.iterdir()) == []
    assert open_descriptors(tmp_path) == 0


@pytest.mark.parametrize(
    ("call", "make"),
    [
        ("posix_fallocate", lambda path: make_file(path, SIZE, disk=Disk())),
        ("pwrite", lambda path: replace_whole(path, b"content", Disk())),
    ],
)
@pytest.mark.parametrize(
    ("code", "advice"), [(errno.ENOSPC, r"\(df\) or inodes"), (errno.EDQUOT, "within the quota")]
)
def test_what_is_used_up_is_said_disk_or_quota(tmp_path, monkeypatch, call, make, code, advice):
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(StoreFullError, match=f"no room for .*; free space {advice}"):
        make(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
    assert open_descriptors(tmp_path) == 0


def test_a_small_file_that_was_replaced_is_open_no_more(tmp_path):
    replace_whole(tmp_path / "small", b"content", Disk())
    assert open_descriptors(tmp_path) == 0


@pytest.mark.parametrize("disk", [Disk(), NoUnnamedFiles()], ids=["unnamed", "named at once"])
def test_a_file_that_is_there_is_not_touched(tmp_path, disk):
    path = tmp_path / "old"
    path.write_bytes(b"kept")
    with pytest.raises(StoreError, match="something of that name is there already"):
        make_file(path, SIZE, disk=disk)
    assert path.read_bytes() == b"kept"


def test_where_a_file_has_bytes_is_asked_before_any_are_read(tmp_path, monkeypatch):
    """What is read ahead counts as bytes: looked for later, they would go on to the file's end."""
    path, asked, pieces = tmp_path / "file", [], []
    path.write_bytes(b"a")
    os.truncate(path, 1 << 30)
    whence_of, read_at = os.lseek, whole_file.read_at

    def lseek(descriptor: int, position: int, whence: int) -> int:
        asked.append(len(pieces))
        return whence_of(descriptor, position, whence)

    def read(*given: Any) -> bytes:
        pieces.append(given)
        return read_at(*given)

    monkeypatch.setattr(os, "lseek", lseek)
    monkeypatch.setattr(whole_file, "read_at", read)
    with Disk().opened(path, writable=False) as descriptor:
        assert nonzero_extent(descriptor, path, 0, 1 << 30) == (0, 1)
    assert pieces
    assert set(asked) == {0}


def test_a_file_is_read_to_its_end_where_the_file_system_cannot_tell(tmp_path, monkeypatch):
    (path := tmp_path / "file").write_bytes(bytes(5000) + b"a" + bytes(100))

    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "it has no such call")

    monkeypatch.setattr(os, "lseek", refuse)
    with Disk().opened(path, writable=False) as descriptor:
        assert nonzero_extent(descriptor, path, 0, 5101) == (5000, 5001)
        assert data_stop(descriptor, 5101) == 5101
    assert whole_file.holds_data(path)
    with contextlib.closing(LocalFiles().open(str(path))) as file:
        assert file.data_stop(5101) == 5101
