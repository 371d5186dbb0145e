"""The files of a log or a queue as they are listed, and how tasks read them."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rocketstore.errors import StoreError
from rocketstore.format.file_name import file_name, is_directory_name, parse_file_name
from rocketstore.format.markers import CONSUME_QUEUE_DIRECTORY, CONSUME_QUEUE_EXT_DIRECTORY
from rocketstore.format.queue_entry import ENTRY_DTYPE, ENTRY_SIZE_BYTES
from rocketstore.pipeline.files import files_at, opened
from rocketstore.scan.scanner import scan_window
from rocketstore.verification.file_rules import FileFinding, FileProblem, usable_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.pipeline.files import FileEntry
    from rocketstore.scan.scanner import ScanBatch
    from rocketstore.units import QueueKey


@contextlib.contextmanager
def passing_over_deleted() -> Iterator[None]:
    """Pass over a file that retention deleted since it was listed."""
    try:
        yield
    except StoreError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise


class StoreFile(NamedTuple):
    """One file of a log or a queue; `base` is the offset in its name, `size` what is usable."""

    base: int
    size: int
    path: str

    @property
    def stop(self) -> int:
        """Offset past its last byte."""
        return self.base + self.size


class FileRow(NamedTuple):
    """The files of one log or queue."""

    files: tuple[StoreFile, ...]
    problems: tuple[FileFinding[str], ...]

    @property
    def first(self) -> int:
        """Offset of the first byte, 0 without files."""
        return self.files[0].base if self.files else 0

    @property
    def stop(self) -> int:
        """Offset past the last byte there is room for, 0 without files."""
        return self.files[-1].stop if self.files else 0


def row_of(listings: Iterable[Iterable[FileEntry]], file_size: int) -> FileRow:
    """Return the files that were listed, each of which should have `file_size` bytes."""
    problems: list[FileFinding[str]] = []
    found: list[StoreFile] = []
    for entry in itertools.chain.from_iterable(listings):
        base = parse_file_name(entry.name)
        if base is None:
            wrong = FileProblem.WRONG_NAME, "20 digits", repr(entry.name)
            problems.append(FileFinding(entry.path, *wrong))
        elif entry.is_directory:
            wrong = FileProblem.NOT_A_FILE, "a file", "something else"
            problems.append(FileFinding(entry.path, *wrong))
        else:
            found.append(StoreFile(base, entry.size, entry.path))
    return FileRow(tuple(usable_files(sorted(found), file_size, problems)), tuple(problems))


class Cut(NamedTuple):
    """A byte range of a file, and the physical offsets whose index items are compared with it.

    After `data_stop` the file is zeros; None: look it up. Cuts leave no item between them.
    """

    path: str
    base: int
    start: int
    stop: int
    file_size: int
    data_stop: int | None
    items_start: int = 0
    items_stop: int = 0


def scanned(cut: Cut, location: str, log_file_bytes: int) -> Iterator[ScanBatch]:
    """Yield what starts in a range of the log; a file cut short ends in zeros, as after repair."""
    with opened(files_at(location)[0], cut.path) as file:
        stop = cut.data_stop
        yield from scan_window(
            file,
            base=cut.base,
            size=log_file_bytes,
            start=cut.start,
            stop=cut.stop,
            data_stop=min(cut.file_size, file.data_stop(cut.file_size)) if stop is None else stop,
            whole_damage=True,
        )


class QueueSource:
    """Reads the entries of a queue; without a list of its files, by the names that they must have.

    `has_lost` becomes true when a file was not there.
    """

    def __init__(
        self, location: str, file_bytes: int, key: QueueKey, listed: Sequence[StoreFile] | None
    ) -> None:
        self._files, root = files_at(location)
        self._file_bytes, self._listed = file_bytes, listed
        below = f"{key.topic}/{key.queue_id}" if is_directory_name(key.topic) else ""
        self._directory = f"{root.rstrip('/')}/{CONSUME_QUEUE_DIRECTORY}/{below}" if below else ""
        self._extension = f"{root.rstrip('/')}/{CONSUME_QUEUE_EXT_DIRECTORY}/{below}"
        self.has_lost = False

    def read(self, start: int, count: int) -> EntryArray:
        """Return entries from a queue offset, zeros where no file or byte is."""
        content = np.zeros(count * ENTRY_SIZE_BYTES, dtype=np.uint8)
        at, stop = start * ENTRY_SIZE_BYTES, (start + count) * ENTRY_SIZE_BYTES
        for file in self._holding(at, stop):
            begin, end = max(at, file.base), min(stop, file.stop)
            try:
                with opened(self._files, file.path) as source:
                    source.read_into(begin - file.base, content[begin - at : end - at].data)
            except StoreError as error:
                if not isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError)):
                    raise
                self.has_lost = True
        return content.view(ENTRY_DTYPE)

    def _holding(self, at: int, stop: int) -> Iterable[StoreFile]:
        if self._listed is not None:
            return (one for one in self._listed if one.base < stop and at < one.stop)
        size = self._file_bytes
        bases = range(at - at % size, stop, size) if self._directory else ()
        return (StoreFile(base, size, f"{self._directory}/{file_name(base)}") for base in bases)

    def listed_again(self) -> tuple[StoreFile, ...]:
        """Return the queue's files as they are by now."""
        return row_of([self._files.list(self._directory)], self._file_bytes).files

    def has_extension(self) -> bool:
        """Whether the queue's tags may stand in an extension."""
        return any(not one.is_directory for one in self._files.list(self._extension))
