"""The files of a log or a queue, read with ``pread`` and nothing else.

For a store that another process may be writing: the writer, ours or a Java broker, adds files,
deletes old ones and may cut them short, and a memory map of a file that shrinks kills the process.
``pread`` at worst returns fewer bytes.

Law: nothing is written, created or locked, and a file that is not what its name and its neighbours
say it should be is reported (`FileFinding`), never guessed about.

How derived: MappedFileQueue.load and findMappedFileByOffset of 4.9 (spec F2, B6). A descriptor is
held by an object that closes it when the last reader lets go, so dropping one from the cache never
pulls it from under a ``pread`` of another thread.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocketstore.errors import SystemRefusedError
from rocketstore.format.file_name import is_judged, parse_file_name
from rocketstore.holes import data_stop
from rocketstore.rules.files import FileFinding, FileProblem, usable_files, usual_size
from rocketstore.scan.queue_search import last_up_to
from rocketstore.storage.files.disk import (
    BadSectors,
    Disk,
    fill,
    read_at,
    real_path,
    system_error,
    system_errors,
)
from rocketstore.storage.files.whole_file import holds_data
from rocketstore.units import ByteRange

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.native.row import ByteArray


DEFAULT_OPEN_FILES: Final = 256
"""Descriptors that one `OpenFiles` keeps; a quarter of the usual limit of a process."""


class LogFile(NamedTuple):
    """One file of the sequence."""

    base: int
    size: int
    path: Path
    inode: int

    @property
    def range(self) -> ByteRange:
        """Offsets that the file really holds."""
        return ByteRange(self.base, self.base + self.size)

    def read_into(self, position: int, view: memoryview) -> int:
        """Fill `view` with the bytes from `position` on; return how many there were."""
        with Disk().opened(self.path, writable=False) as descriptor:
            return fill(descriptor, self.path, position, view)

    def data_stop(self) -> int:
        """Return the position from which on the file system knows that there are only zeros."""
        try:
            with self.path.open("rb", buffering=0) as file:
                return data_stop(file.fileno(), self.size)
        except OSError:
            return self.size  # the read that follows says why


class ReadLogFile:
    """One CommitLog file, read piece by piece; what a file cut short lacks counts as zeros.

    What the disk cannot read is an error; where it is `spared` zeros too, noted in `bad`.
    """

    def __init__(self, file: LogFile, size: int, *, spared: bool = False) -> None:
        self.bad = BadSectors(file.read_into)
        self._read = self.bad.read_into if spared else file.read_into
        self.base = file.base
        self.size = size
        self.path = file.path

    def holds(self, physical_offset: int) -> bool:
        """Whether a physical offset is in this file."""
        return self.base <= physical_offset < self.base + self.size

    def read_into(self, position: int, view: memoryview) -> int:
        """Fill `view` with the bytes from `position` on; return how many there were."""
        try:
            return self._read(position, view)
        except FileNotFoundError:  # deleted by retention meanwhile
            return 0

    @property
    def array(self) -> ByteArray:
        """All bytes of the file, read again each time, but for zeros that the file system knows."""
        array = np.zeros(self.size, np.uint8)
        self.read_into(0, array.data[: self.data_stop()])
        return array

    def data_stop(self) -> int:
        """Return the position after which the file holds no byte."""
        try:
            with Disk().opened(self.path, writable=False) as descriptor:
                return data_stop(descriptor, min(self.size, os.fstat(descriptor).st_size))
        except FileNotFoundError:  # as `read_into`
            return 0


class OpenFile:
    """A descriptor that is closed when the last reference to it goes."""

    fd = -1

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        descriptor, self.fd = self.fd, -1
        if descriptor >= 0:
            os.close(descriptor)

    close = __del__


class OpenFiles:
    """Bounded cache of descriptors, shared by all files of a store.

    What the disk cannot read is an error; with `spares`, zeros, noted in `bad`.
    """

    def __init__(self, limit: int = DEFAULT_OPEN_FILES, *, spares: bool = False) -> None:
        self._open = lru_cache(limit)(OpenFile)
        self._spares = spares
        self.bad: dict[Path, BadSectors] = {}

    def read(self, path: Path, position: int, size: int) -> bytes | None:
        """Return `size` bytes at `position`, fewer where the file ends; None if it is gone."""
        try:
            return self._read(path, position, size)
        except SystemRefusedError as error:
            if self._spares and error.errno == errno.EIO:
                view = memoryview(bytearray(size))
                bad = self.bad.setdefault(path, BadSectors(LogFile(0, 0, path, 0).read_into))
                return bytes(view[: bad.read_into(position, view)])
            if error.errno != errno.ESTALE:
                raise
        # Deleted, or put back from a copy, on a file system of another machine: its name tells.
        self.close()
        return self._read(path, position, size)

    def _read(self, path: Path, position: int, size: int) -> bytes | None:
        try:
            file = self._open(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise system_error(f"cannot open {path} for reading", error) from error
        return read_at(file.fd, path, position, size)

    def close(self) -> None:
        """Let go of all files; reads that are under way finish."""
        self._open.cache_clear()


class PreadFiles:
    """The files of one sequence: equally sized, each named by the offset of its first byte.

    A CommitLog with many paths has several directories (spec F1.1). A `file_size` of None is
    learnt: it is the commonest size of the files. `is_replaced` says whether some file was deleted
    and made again since: what was read from it is invalid.
    """

    def __init__(
        self, directories: Sequence[Path], *, open_files: OpenFiles | None = None,
        file_size: int | None = None,
    ) -> None:  # fmt: skip
        self._directories = tuple(directories)
        self._open_files = OpenFiles() if open_files is None else open_files
        self._given_size = file_size
        self.file_size = file_size or 0
        self.files: list[LogFile] = []
        self.findings: list[FileFinding[Path]] = []
        self.is_replaced = False
        self.refresh()

    @property
    def min_offset(self) -> int:
        """Offset of the first byte on disk; -1 when there is no file."""
        if self.files and not _is_still(self.files[0]):
            self.refresh()  # retention took it, or the queue was deleted and made again
        return self.files[0].base if self.files else -1

    @property
    def max_offset(self) -> int:
        """One past the last byte on disk, written or not; 0 when there is no file."""
        return self.files[-1].range.stop if self.files else 0

    @property
    def holes(self) -> list[ByteRange]:
        """Ranges between the first and the last file that no file holds."""
        return [
            ByteRange(before.range.stop, after.base)
            for before, after in zip(self.files, self.files[1:], strict=False)
            if before.range.stop < after.base
        ]

    @system_errors("cannot list the files of the store")
    def refresh(self) -> bool:
        """List the directories again and return whether the files changed."""
        holes: set[Path] = set()
        while True:
            findings: list[FileFinding[Path]] = []
            found = [*listed_files(self._directories, findings)]
            file_size = self._given_size or usual_size(sorted(found))
            files = usable_files(found, file_size, findings)
            missing = {one.path for one in findings if one.problem is FileProblem.MISSING}
            if not missing or missing & holes:
                break
            # A listing is not atomic: a file that a writer made while it ran may be absent
            # although one made after it is there. A hole is one that is seen twice.
            holes = missing
        changed = files != self.files
        inodes = {file.path: file.inode for file in files}
        gone = [old.path for old in self.files if inodes.get(old.path) != old.inode]
        if gone:  # or their descriptors would keep their bytes on the disk
            self._open_files.close()
            self.is_replaced |= not inodes.keys().isdisjoint(gone)
        self.file_size, self.findings = file_size, findings
        if changed:  # so that a caller that keeps the list can compare its identity
            self.files = files
        return changed

    def find(self, offset: int) -> LogFile | None:
        """Return the file that holds the byte at `offset`, listing again to find one."""
        while True:
            file = last_up_to(self.files, offset)
            if file is not None and offset < file.range.stop:
                return file
            if offset < self.max_offset or not self.refresh():
                return None

    def read(self, offset: int, size: int) -> bytes | None:
        """Return up to `size` bytes at `offset`, as far as one file goes; None without a file."""
        file = self.find(offset)
        if file is None:
            return None
        size = min(size, file.range.stop - offset)
        read = self._open_files.read(file.path, offset - file.base, size)
        if read is None:
            self.refresh()
        return read


def listed_files(
    directories: Sequence[Path],
    findings: list[FileFinding[Path]],
    parse_name: Callable[[str], int | None] = parse_file_name,
    named: str = "20 digits",
) -> Iterator[LogFile]:
    """Yield the files of directories whose names are offsets, by directory and name.

    Other names go to `findings`; a missing directory counts as empty.
    """
    for directory in directories:
        try:
            names = sorted(os.listdir(directory))  # noqa: PTH208 - names, not paths
        except (FileNotFoundError, NotADirectoryError):
            continue
        for name in names:
            path = directory / name
            base = parse_name(name)
            if base is None:
                if is_judged(name, names):
                    findings.append(FileFinding(path, FileProblem.WRONG_NAME, named, repr(name)))
                continue
            try:
                status = path.stat()
            except FileNotFoundError:
                if path.is_symlink() and not path.exists():  # or it was just deleted
                    found = f"nothing at {real_path(path)}"
                    problem, expected = FileProblem.DANGLING_LINK, "the file it is a link to"
                    findings.append(FileFinding(path, problem, expected, found))
                continue
            if stat.S_ISREG(status.st_mode):
                yield LogFile(base, status.st_size, path, status.st_ino)
            else:
                problem = FileProblem.NOT_A_FILE
                findings.append(FileFinding(path, problem, "a file", "something else"))


def file_lengths(directories: Sequence[Path]) -> list[tuple[Path, int]]:
    """Return the files of directories, whose sizes are to be learnt, and how long they are."""
    return [(file.path, file.size) for file in listed_files(directories, [])]


def made_files(files: Iterable[tuple[Path, int]], wanted: int | None) -> Iterator[tuple[Path, int]]:
    """Yield the files whose lengths tell something, where one of `wanted` bytes is set.

    A file of zeros that is shorter than that was being made when the power went.
    """
    return ((path, size) for path, size in files if size >= (wanted or 0) or holds_data(path))


def _is_still(file: LogFile) -> bool:
    try:
        return file.path.stat().st_ino == file.inode
    except OSError:
        return False
