"""A row of equally long files, each named by the offset of its first byte.

Law: the files are in order of their offsets and none overlaps another; `files` is replaced as a
whole, never changed in place, so a reader that took it needs no lock; one thread may append files
while another removes the first. Files are deleted whole or not at all, and every deletion is
followed by a sync of the directory.

How derived: MappedFileQueue and MultiPathMappedFileQueue of 4.9 (spec B6, F1.1, F2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

from rocketstore.errors import StoreDamagedError, StoreError
from rocketstore.format.file_name import file_name
from rocketstore.locks import Lock
from rocketstore.rules.files import FileFinding, FileProblem, in_order
from rocketstore.rules.findings import DANGLING_HINT
from rocketstore.scan.queue_search import last_up_to
from rocketstore.storage.files.disk import Disk, real_path
from rocketstore.storage.files.mapped_file import MappedFile, MappedFiles
from rocketstore.storage.files.pread_files import LogFile, listed_files
from rocketstore.storage.files.whole_file import grow_file, holds_data

_ONE_FILE_HINT: Final = (
    "remove the link that is no part of the store; where both are, replace one by a copy"
)


def refuse_one_file(files: Iterable[LogFile], inodes: dict[int, Path]) -> None:
    """Raise where two names are of one file; `inodes` has those of files that were looked at."""
    for one in files:
        other = inodes.setdefault(one.inode, one.path)
        if other is not one.path and other.samefile(one.path):
            raise StoreError(f"{one.path} and {other} are one file", hint=_ONE_FILE_HINT)


def refuse_dangling(findings: Iterable[FileFinding[Path]]) -> None:
    """Raise where a link leads to no file: the next message would take its place."""
    for path in (one.path for one in findings if one.problem is FileProblem.DANGLING_LINK):
        what = f"{path} is a link to {real_path(path)}, which is not there"
        raise StoreDamagedError(what, hint=DANGLING_HINT)


class MappedFileQueue:
    """Files of one CommitLog, which a `Preallocator` makes, or of one ConsumeQueue.

    Files of `read_only_directories` are never written or deleted. `mapped_files`, if given, bounds
    how many stay mapped.
    """

    def __init__(
        self,
        directories: Path | Sequence[Path],
        file_size: int,
        *,
        disk: Disk,
        read_only_directories: Sequence[Path] = (),
        mapped_files: MappedFiles | None = None,
    ) -> None:
        self.directories = [directories] if isinstance(directories, Path) else list(directories)
        self.read_only_directories = list(read_only_directories)
        self.file_size = file_size
        self.files: tuple[MappedFile, ...] = ()
        self._changing = Lock()
        self._disk = disk
        self._mapped_files = mapped_files

    # --- loading --------------------------------------------------------------------------------

    def load(
        self, *, after_crash: bool = False, inodes: dict[int, Path] | None = None
    ) -> list[FileFinding[Path]]:
        """Load the files that exist, in order, and return the faults that were tolerated.

        `inodes` has those of the files that were loaded before, by other queues too.

        Nothing is mapped yet. A short last file, as a crash or a copy leaves it, reaches its size
        with zeros; files after it that hold nothing were made ahead, and count as if they were not
        there. After a crash so does a short file that others with content follow: a power cut may
        take a file's length, and the caller writes again what was in it. Any other one of a wrong
        length is a `StoreDamagedError`: offsets after it cannot be trusted. One file of two names
        is a `StoreError`: what is written by one would be overwritten by the other.
        """
        problems: list[FileFinding[Path]] = []
        found = self._listed(problems)
        refuse_one_file(found.values(), {} if inodes is None else inodes)
        files: list[MappedFile] = []
        for base, (_, length, path, _) in found.items():
            writable = path.parent not in self.read_only_directories
            if length != self.file_size:
                is_last = not any(holds_data(found[later].path) for later in found if later > base)
                expected, seen = f"{self.file_size} bytes", f"{length} bytes"
                if length > self.file_size or not (is_last or after_crash):
                    raise StoreDamagedError(
                        f"{path} has a wrong length: expected {expected}, found {seen}",
                        hint="set the file size the store was written with; if it is set right, "
                        "run rocketstore store repair, which keeps what the file holds",
                    )
                # An empty last file may be new; any other held what was promised once.
                problem = FileProblem.WRONG_SIZE if length or not is_last else FileProblem.EMPTY
                problems.append(FileFinding(path, problem, expected, seen))
                if not writable:
                    continue
                grow_file(path, self.file_size, self._disk)
            following = files[-1].base + self.file_size if files else base
            if following != base:
                missing, before = path.with_name(file_name(following)), f"a file before {path.name}"
                problems.append(FileFinding(missing, FileProblem.MISSING, before, "none"))
            size, disk = self.file_size, self._disk
            file = MappedFile(path, base=base, size=size, disk=disk, writable=writable)
            file.mapped_files = self._mapped_files
            files.append(file)
        self.files = tuple(files)
        return problems

    def _listed(self, problems: list[FileFinding[Path]]) -> dict[int, LogFile]:
        """Return every file whose name is an offset that one can have, by that offset, in order."""
        found: dict[int, LogFile] = {}
        directories = [*self.directories, *self.read_only_directories]
        for file in in_order(listed_files(directories, problems), self.file_size):
            path, base = file.path, file.base
            if base % self.file_size:
                expected = f"a multiple of {self.file_size}"
                problems.append(FileFinding(path, FileProblem.MISPLACED, expected, str(base)))
            elif (first := found.setdefault(base, file)) is not file:
                expected, seen = "one file of a name", str(first.path)
                problems.append(FileFinding(path, FileProblem.DUPLICATE, expected, seen))
        refuse_dangling(problems)
        return found

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
        for file in self.files:
            if file.flushed_position < file.size:
                return file.base + file.flushed_position
        return self.max_offset

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
        if not 0 <= index < len(files) or not 0 <= offset - files[index].base < self.file_size:
            # Only a row of files with a gap gets here.
            file = last_up_to(files, offset)
            return None if file is None or offset >= file.base + self.file_size else file
        return files[index]

    def read(self, offset: int, size: int) -> bytes | None:
        """Return up to `size` bytes at `offset` by `pread`, as far as one file goes, or None.

        No file stays open for it.
        """
        file = self.find(offset)
        if file is None:
            return None
        try:
            return file.read_at(offset - file.base, size)
        except FileNotFoundError:  # retention was faster
            return None
        finally:
            file.close_descriptor()

    def ending_after(self, offset: int) -> list[MappedFile]:
        """Return the files that end after an offset, usually the last one."""
        files = reversed(self.files)
        return [*takewhile(lambda file: file.base + file.size > offset, files)][::-1]

    def flush(self, least_pages: int = 0, names: list[MappedFile] | None = None) -> bool:
        """Make written bytes durable; return whether all that were written before the call are.

        For `names` see `MappedFile.sync`.
        """
        is_complete = True
        for file in self.files:
            wanted = file.write_position
            is_complete &= file.flush(least_pages, names) >= wanted
            file.close_descriptor()
        return is_complete

    # --- creating and deleting ------------------------------------------------------------------

    def create(self, base: int) -> MappedFile:
        """Make and take in the file at `base`, the last; its first flush makes its name durable."""
        path = self.directories[0] / file_name(base)
        file = MappedFile.create(path, base=base, size=self.file_size, disk=self._disk, sync=False)
        self.adopt(file)
        return file

    def adopt(self, file: MappedFile) -> None:
        """Take in a file that was made ahead of time."""
        with self._changing:
            files = self.files
            if files and file.base < files[-1].base + self.file_size:
                raise ValueError(f"{file.path} does not come after {files[-1].path}")
            self.files = (*files, file)
        file.mapped_files = self._mapped_files
        if file.is_mapped and file.mapped_files is not None:
            file.mapped_files.add(file)

    def truncate_after(self, offset: int, *, now_ms: int) -> bool:
        """Set the end of the written bytes to `offset`; delete the files that begin after it.

        The file that covers it gets it as its write and flushed position; the bytes after it are
        left to the caller, who may want a copy before `MappedFile.clear_tail`. Source:
        MappedFileQueue.truncateDirtyFiles.
        """
        covering = self.find(offset)
        if covering is not None:
            covering.set_end(offset - covering.base)
        later = [file for file in self.files if file.base > offset]
        self.remove(later, now_ms=now_ms)
        return bool(later)

    def remove(self, files: Sequence[MappedFile], *, now_ms: int) -> None:
        """Delete the given files in spite of their readers, and forget them."""
        self.files = tuple(file for file in self.files if file not in files)
        for file in files:
            file.destroy(0, now_ms=now_ms)
        for directory in {file.path.parent for file in files}:
            self._disk.fsync_directory(directory)

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

    def remove_leading(self, may_go: Callable[[int], bool], **when: int) -> tuple[list[Path], bool]:
        """Delete files before an offset that `may_go`, never the last; false: one has to stay."""
        gone: list[Path] = []
        while len(self.files) > 1 and may_go(self.files[1].base):
            path = self.remove_first(**when)
            if path is None:
                return gone, False
            gone.append(path)
        return gone, True

    def drop(self) -> None:
        """Let go of all mappings and descriptors."""
        for file in self.files:
            file.drop(for_good=True)
