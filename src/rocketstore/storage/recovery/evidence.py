"""Keep what recovery and repair cut, in ``repair/<time>/`` inside the store; cut the log.

Law: bytes are cut only after their copy is durable, and a copy that has its final name is complete.
Doing the same cut again is harmless: cut bytes are zeros, and zeros need no copy. A file is never
shrunk; files go from the last to the first, and the tail after them, so that an interruption leaves
a log that recovery ends at the same offset again.

Names: a copied range lies at its file's own path below ``repair/<time>/``, as
``<file>@<start>-<stop>`` with positions inside the file; a file that was taken away whole keeps its
name. ``repair/<time>`` is the time of the repair in UTC.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from rocketstore.events import get_logger
from rocketstore.rules.findings import Finding, Severity
from rocketstore.storage.files.disk import Disk, read_at
from rocketstore.storage.files.whole_file import has_data, nonzero_extent, replace_whole
from rocketstore.units import OS_PAGE_SIZE_BYTES, ByteRange, MiB

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.storage.files.mapped_file import MappedFile
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.layout import StoreLayout

_log: Final = get_logger(__name__)


class Evidence:
    """The directory of one recovery or repair; made when the first thing is kept."""

    def __init__(self, layout: StoreLayout, disk: Disk, now_ms: int) -> None:
        self._root = layout.root
        self._disk = disk
        self._directory = layout.repair_at(now_ms)
        self._kept_count = 0

    @property
    def directory(self) -> str | None:
        """Directory of the copies, relative to the store; None without any."""
        return self._directory.relative_to(self._root).as_posix() if self._kept_count else None

    def cut_range(self, path: Path, start: int, stop: int) -> int:
        """Copy what is not zero in a range of a file, then make the range zero, durably.

        Returns how many bytes, up to the last that was not zero; 0 means nothing changed.
        """
        first, past = self.copy_range(path, start, stop)
        if past > first:
            with self._disk.opened(path, writable=True) as descriptor:
                self._disk.zero_range(descriptor, path, first, past)
                self._disk.fdatasync(descriptor, path)
        return past - first

    def copy_range(self, path: Path, start: int, stop: int) -> tuple[int, int]:
        """Copy what is not zero in a range of a file; return the range copied, empty for none."""
        with self._disk.opened(path, writable=False) as descriptor:
            extent = nonzero_extent(descriptor, path, start, stop)
        if extent is None:
            return start, start
        # A record begins with zeros of its length: keep them with it.
        first = max(start, extent[0] - extent[0] % OS_PAGE_SIZE_BYTES)
        self._keep(path, first, extent[1])
        return first, extent[1]

    def copy_file(self, path: Path) -> None:
        """Copy a file that is about to be written over."""
        self._keep(path, 0, path.stat().st_size)

    def shorten_file(self, path: Path, size: int) -> None:
        """Replace a file by its own beginning, and keep the whole of it."""
        self.copy_file(path)
        self._copy(path, path, 0, size)

    def take_file(self, path: Path) -> None:
        """Move a whole file here; by a copy where it lies on another file system.

        Or a directory, a pipe or a link that stands in the place of a file: only moved.
        """
        target = self._target(path, "")
        size = path.lstat().st_size
        if target.exists():
            target = target.with_name(f"{target.name}.{self._kept_count}")
        try:
            self._disk.replace(path, target)
        except OSError as error:
            if error.errno != errno.EXDEV or not path.is_file():
                raise
            self._copy(path, target, 0, path.stat().st_size)
            self._disk.unlink(path)
        self._disk.fsync_directory(target.parent)
        self._disk.fsync_directory(path.parent)
        self._note(target, size)

    def take_tree(self, directory: Path) -> None:
        """Move every file below a directory here, and the directory away, unless it has more."""
        self.take_files(directory)
        with contextlib.suppress(OSError):
            for path in [*sorted(directory.rglob("*"), reverse=True), directory]:
                path.rmdir()

    def take_files(self, directory: Path) -> None:
        """Move every file below a directory here."""
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                self.take_file(path)

    def _keep(self, path: Path, start: int, stop: int) -> None:
        target = self._target(path, f"@{start}-{stop}")
        if not target.exists():
            self._copy(path, target, start, stop)
        self._note(target, stop - start)

    def _note(self, target: Path, size: int) -> None:
        self._kept_count += 1
        _log.info("evidence.kept", path=str(target), size_bytes=size)

    def _target(self, path: Path, suffix: str) -> Path:
        try:
            directory = self._directory / path.relative_to(self._root).parent
        except ValueError:  # a CommitLog directory outside the store
            directory = self._directory / path.parent.name
        self._disk.make_directory(directory)
        return directory / (path.name + suffix)

    def _copy(self, path: Path, target: Path, start: int, stop: int) -> None:
        with self._disk.opened(path, writable=False) as descriptor:
            pieces = (
                read_at(descriptor, path, position, min(MiB, stop - position))
                for position in range(start, stop, MiB)
            )
            replace_whole(target, pieces, self._disk)


def cut_log(
    log: MappedFileQueue,
    end: int,
    *,
    leftovers: Iterable[ByteRange] = (),
    evidence: Evidence,
    now_ms: int,
    data_stop: Callable[[MappedFile], int] = attrgetter("size"),
) -> list[Finding]:
    """Make `end` the end of the loaded log, where none of its files follows; say what was cut.

    Old records inside it (`leftovers`) become zeros, so that no reader takes them for messages.
    `data_stop` returns the position after which a file is known to have only zeros.
    """
    findings = []

    def note(file: MappedFile, offset: int, size: int, reason: str, action: str) -> None:
        name = relative_name(file.path)
        findings.append(Finding(Severity.WARNING, "log-cut", name, offset, size, reason, action))

    for file in reversed([file for file in log.files if file.base >= end and file.writable]):
        if file.base == end and file is log.files[0]:
            continue  # an empty log keeps its first file
        with file.descriptor() as descriptor:
            is_written = has_data(descriptor, file.path, 0, file.size)
        if is_written:
            evidence.take_file(file.path)
            reason = "the whole file lies past the log's end"
            note(file, 0, file.size, reason, "moved to repair/")
        log.remove([file], now_ms=now_ms)
    reason = "bytes after the log's last record"
    for start, stop in [(end, None), *sorted(leftovers, reverse=True)]:
        last = log.find(start)
        if last is not None and last.writable:
            at = start - last.base
            past = data_stop(last) if stop is None else stop - last.base
            size = evidence.cut_range(last.path, at, past)
            if size:
                note(last, at, size, reason, "kept below repair/, then zeroed")
        reason = "records that an earlier log left behind"
    log.truncate_after(end, now_ms=now_ms)
    return findings


def relative_name(path: Path) -> str:
    """Return directory and name of a log file, as findings show it."""
    return f"{path.parent.name}/{path.name}"
