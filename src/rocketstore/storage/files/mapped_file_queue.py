"""A row of equally long files, each named by the offset of its first byte.

Law: the files are in order of their offsets and none overlaps another; `files` is replaced as a
whole, never changed in place, so a reader that took it needs no lock; one thread may append files
while another removes the first. Files are deleted whole or not at all, and every creation and
deletion is followed by a sync of the directory.

How derived: MappedFileQueue and MultiPathMappedFileQueue of 4.9 (spec B6, F1.1, F2).
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import TYPE_CHECKING

from rocketstore.errors import StoreDamagedError
from rocketstore.format.file_name import file_name
from rocketstore.storage.files.mapped_file import MappedFile
from rocketstore.storage.files.new_file import grow_file, remove_empty
from rocketstore.storage.files.pread_files import listed_files
from rocketstore.storage.files.written import holds_data
from rocketstore.verification.file_rules import FileFinding, FileProblem
from rocketstore.verification.findings import DANGLING_HINT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rocketstore.storage.files.disk import Disk


class MappedFileQueue:
    """Files of one CommitLog or one ConsumeQueue.

    New files are made in the first of `directories`, unless `place` chooses one by the file's
    offset. Files of `read_only_directories` are never written or deleted. Without `writable` all
    are mapped read-only. `name_levels`: see `MappedFile`; 1 where the directory is there before its
    files.
    """

    def __init__(  # noqa: PLR0913 - by name, all but two with defaults
        self,
        directories: Path | Sequence[Path],
        file_size: int,
        *,
        disk: Disk,
        read_only_directories: Sequence[Path] = (),
        place: Callable[[int], Path] | None = None,
        writable: bool = True,
        name_levels: int = 1,
    ) -> None:
        listed = [directories] if isinstance(directories, Path) else list(directories)
        self.directories = listed
        self.read_only_directories = list(read_only_directories)
        self.file_size = file_size
        self.files: tuple[MappedFile, ...] = ()
        self.writable = writable
        self._name_levels = name_levels
        self._changing = threading.Lock()
        self._disk = disk
        self._place = place if place is not None else lambda _base: listed[0]

    def __repr__(self) -> str:
        return f"MappedFileQueue({self.directories[0]}, files={len(self.files)})"

    # --- loading --------------------------------------------------------------------------------

    def load(self, *, after_crash: bool = False) -> list[FileFinding[Path]]:
        """Take in the files that exist, in order, and return what was passed over or tolerated.

        Nothing is mapped yet. A short last file, as a crash or a copy leaves it, reaches its size
        with zeros; files after it that hold nothing were made ahead, and count as if they were not
        there. After a crash so does a short file that others with content follow: a power cut may
        take a file's length, and the caller writes again what was in it.

        Raises
        ------
        StoreDamagedError
            A file in the middle is shorter than it should be, or any is longer: offsets after it
            cannot be trusted.
        """
        problems: list[FileFinding[Path]] = []
        found = self._listed(problems)
        files: list[MappedFile] = []
        bases = sorted(found)
        for base in bases:
            path, length = found[base]
            if length != self.file_size:
                is_last = not any(holds_data(found[later][0]) for later in bases if later > base)
                if length > self.file_size or not (is_last or after_crash):
                    raise _wrong_length(path, self.file_size, length)
                # An empty last file may be new; any other held what was promised once.
                is_new = is_last and not length
                problem = FileProblem.EMPTY if is_new else FileProblem.WRONG_SIZE
                expected, seen = f"{self.file_size} bytes", f"{length} bytes"
                problems.append(FileFinding(path, problem, expected, seen))
                if not self.writable:
                    continue
                grow_file(path, self.file_size, self._disk)
            following = files[-1].base + self.file_size if files else base
            if following != base:
                missing = path.with_name(file_name(following))
                problems.append(
                    FileFinding(missing, FileProblem.MISSING, f"a file before {path.name}", "none")
                )
            files.append(self._opened(path, base))
        self.files = tuple(files)
        return problems

    def _listed(self, problems: list[FileFinding[Path]]) -> dict[int, tuple[Path, int]]:
        """Return path and length by offset of every file whose name is an offset."""
        found: dict[int, tuple[Path, int]] = {}
        for file in listed_files([*self.directories, *self.read_only_directories], problems):
            if file.base % self.file_size:
                expected = f"a multiple of {self.file_size}"
                problems.append(
                    FileFinding(file.path, FileProblem.MISPLACED, expected, str(file.base))
                )
            elif file.base in found:
                other = str(found[file.base][0])
                problems.append(
                    FileFinding(file.path, FileProblem.DUPLICATE, "one file of a name", other)
                )
            else:
                found[file.base] = (file.path, file.size)
        for path, problem, _, _ in problems:
            if problem is FileProblem.DANGLING_LINK and self.writable:
                # What is written next would stand in its place, or follow a hole.
                raise StoreDamagedError(
                    f"{path} is a link to {path.resolve()}, which is not there", hint=DANGLING_HINT
                )
        return found

    def _opened(self, path: Path, base: int) -> MappedFile:
        writable = self.writable and path.parent not in self.read_only_directories
        file = MappedFile.open(
            path, base=base, size=self.file_size, disk=self._disk, writable=writable
        )
        file.name_levels = self._name_levels
        return file

    # --- reading --------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        """Offset of the first byte that may be read; -1 without files."""
        for file in self.files:
            if file.is_available:
                return file.base
        files = self.files
        return files[-1].base + self.file_size if files else -1

    @property
    def max_offset(self) -> int:
        """Offset after the last written byte; 0 without files."""
        files = self.files
        return files[-1].end if files else 0

    @property
    def flushed_offset(self) -> int:
        """Offset up to which every byte is known to be on the disk."""
        files = self.files
        for file in files:
            if file.flushed_position < file.write_position or not file.is_full:
                return file.base + file.flushed_position
        return files[-1].end if files else 0

    def last(self) -> MappedFile | None:
        """Return the last file."""
        files = self.files
        return files[-1] if files else None

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that covers `offset`."""
        files = self.files
        if not files:
            return None
        index = (offset - files[0].base) // self.file_size
        if 0 <= index < len(files):
            file = files[index]
            if file.base <= offset < file.base + file.size:
                return file
        # Only a row with a gap comes here.
        index = bisect_right([file.base for file in files], offset) - 1
        if index >= 0 and offset < files[index].base + files[index].size:
            return files[index]
        return None

    def next_file(self, offset: int) -> MappedFile | None:
        """Return the first file that starts at `offset` or after it."""
        files = self.files
        at = bisect_left(files, offset, key=lambda file: file.base)
        return files[at] if at < len(files) else None

    def slice(self, offset: int, size: int) -> memoryview | None:
        """Return a view of written bytes; None where they are not, or cross into the next file."""
        file = self.find(offset)
        return None if file is None else file.slice(offset - file.base, size)

    # --- creating and deleting ------------------------------------------------------------------

    def create(self, base: int, *, sync: bool = True) -> MappedFile:
        """Make the file that begins at `base`, after all others, and take it in."""
        directory = self._place(base)
        self._disk.make_directory(directory, sync=sync)
        remove_empty(directory / file_name(base), self._disk)
        file = MappedFile.create(
            directory, base=base, size=self.file_size, disk=self._disk, sync=sync
        )
        file.name_levels = self._name_levels
        self.adopt(file)
        return file

    def adopt(self, file: MappedFile) -> None:
        """Take in a file that was made ahead of time."""
        with self._changing:
            files = self.files
            if files and file.base < files[-1].base + self.file_size:
                raise ValueError(f"{file.path} does not come after {files[-1].path}")
            self.files = (*files, file)

    def truncate_after(self, offset: int, *, now_ms: int) -> list[Path]:
        """Say that written bytes end at `offset`; delete the files that begin after it.

        The file that covers it gets it as its write and flushed position; the bytes after it are
        left to the caller, who may want a copy before `MappedFile.zero_tail`. Source:
        MappedFileQueue.truncateDirtyFiles.
        """
        kept: list[MappedFile] = []
        later: list[MappedFile] = []
        for file in self.files:
            if file.base + file.size <= offset:
                kept.append(file)
            elif file.base <= offset:
                file.set_end(offset - file.base)
                kept.append(file)
            else:
                later.append(file)
        self.files = tuple(kept)
        return self._destroy(later, now_ms)

    def remove(self, files: Sequence[MappedFile], *, now_ms: int) -> list[Path]:
        """Delete the given files in spite of their readers, and forget them."""
        gone = {id(file) for file in files}
        self.files = tuple(file for file in self.files if id(file) not in gone)
        return self._destroy(files, now_ms)

    def remove_first(self, *, force_after_ms: int, now_ms: int) -> Path | None:
        """Delete the first file unless a reader holds it; None when it has to stay for now."""
        files = self.files
        if not files or not files[0].writable:
            return None
        first = files[0]
        if not first.destroy(force_after_ms, now_ms=now_ms):
            return None
        with self._changing:
            if self.files[0] is first:
                self.files = self.files[1:]
        self._disk.fsync_directory(first.path.parent)
        return first.path

    def _destroy(self, files: Sequence[MappedFile], now_ms: int) -> list[Path]:
        for file in files:
            file.destroy(0, now_ms=now_ms)
        for directory in {file.path.parent for file in files}:
            self._disk.fsync_directory(directory)
        return [file.path for file in files]

    # --- durability -----------------------------------------------------------------------------

    def flush(self, least_pages: int = 0) -> int:
        """Flush every file that has something to flush; return the flushed offset.

        Unlike 4.9, which flushes one file per call (K-D5), this goes on to the last. The error is
        that of the first file that fails; the flushed offset ends before it.
        """
        for file in self.files:
            if file.flushed_position < file.write_position:
                file.flush(least_pages)
        return self.flushed_offset

    def drop(self) -> None:
        """Let go of all mappings and descriptors."""
        for file in self.files:
            file.drop()


def _wrong_length(path: Path, expected: int, found: int) -> StoreDamagedError:
    return StoreDamagedError(
        f"{path} has a wrong length: expected {expected} bytes, found {found} bytes",
        hint="set the file size the store was written with, or move the file away and repair",
    )
