"""Searches in the entries of one queue, however its files are read: mapped, ``pread``, by ranges.

Law: entries point at rising physical offsets, so one is found by bisection; an entry without a
message (a filler, or not written) counts with the next message (K-C2).

How derived: ConsumeQueue.recover, correctMinOffset and truncateDirtyLogicFiles of 4.9 (spec B12,
B16).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import numpy as np

from rocketstore.format.queue_entry import (
    ENTRY_DTYPE,
    ENTRY_SIZE_BYTES,
    ENTRY_STRUCT,
    FILLER,
    QueueEntry,
    entry_array,
    equal_mask,
    written_mask,
)
from rocketstore.units import KiB, Window

if TYPE_CHECKING:
    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.native.row import Int64Array


CHUNK_ENTRIES: Final = 3276
CHUNK_BYTES: Final = CHUNK_ENTRIES * ENTRY_SIZE_BYTES
"""About 64 KiB, a whole number of entries."""
assert 64 * KiB >= CHUNK_BYTES

_PIECE: Final = 64
"""Entries that are made values of Python at once: often the first one is all that is wanted."""

_base_of: Final = attrgetter("base")


class Files(Protocol):
    """The files of a queue, in order; between two of them one may be missing."""

    file_size: int

    @property
    def files(self) -> Sequence[Any]:
        """Each with `base`, the offset of its first byte in the queue, and its `size`."""

    @property
    def min_offset(self) -> int:
        """Offset of the first byte; -1 without files."""

    def read(self, offset: int, size: int) -> bytes | None:
        """Return up to `size` bytes at an offset, as far as one file goes; None without a file."""


_Based = TypeVar("_Based")


def first_from(files: Sequence[_Based], offset: int) -> _Based | None:
    """Return the first of files in order that starts at `offset` or after it."""
    at = bisect_left(files, offset, key=_base_of)
    return files[at] if at < len(files) else None


def last_up_to(files: Sequence[_Based], offset: int) -> _Based | None:
    """Return the last of files in order that starts at `offset` or before it."""
    at = bisect_right(files, offset, key=_base_of)
    return files[at - 1] if at else None


def padded(files: Files, start: int, count: int) -> EntryArray:
    """Return entries from a queue offset on, zeros where no file or byte is."""
    content = np.zeros(count * ENTRY_SIZE_BYTES, np.uint8)
    begin = at = start * ENTRY_SIZE_BYTES
    stop = begin + content.size
    while at < stop:
        if raw := files.read(at, stop - at):
            content[at - begin : at - begin + len(raw)] = np.frombuffer(raw, np.uint8)
            at += len(raw)
        elif following := first_from(files.files, at + 1):
            at = following.base
        else:
            break
    return content.view(ENTRY_DTYPE)


class QueueSearch(ABC):
    """The entries of a queue, however its files are read."""

    files: Any
    """`Files`; a queue that is written knows their real type."""
    chunk_entries = CHUNK_ENTRIES
    """Entries read at once in a search over many."""
    extension: Any = None
    """Reads the units of entries with an address in place of a tags code (spec F7)."""
    records: Any = None
    """The log of the queue's messages, a `LogAtHand`, where that is not the store's."""
    _log_min_offset: Callable[[], int]
    _min_for = -1
    """The log's minimum offset for which `_min_hint` was found; -1 before the first search."""
    _min_hint = 0

    @property
    @abstractmethod
    def max_offset(self) -> int:
        """One past the last entry."""

    # --- entries --------------------------------------------------------------------------------

    def entry(self, queue_offset: int) -> QueueEntry | None:
        """Return one entry as stored, fillers too; None where it is missing."""
        raw = self.files.read(queue_offset * ENTRY_SIZE_BYTES, ENTRY_SIZE_BYTES) or b""
        return QueueEntry._make(ENTRY_STRUCT.unpack(raw)) if len(raw) == ENTRY_SIZE_BYTES else None

    def bytes_at(self, start: int, limit: int) -> Window | None:
        """Return bytes that hold the entry `start`, and of `limit` more what is in its file.

        None where the file is missing.
        """
        raw = self.files.read(start * ENTRY_SIZE_BYTES, limit * ENTRY_SIZE_BYTES) or b""
        size = len(raw) - len(raw) % ENTRY_SIZE_BYTES
        return Window(raw, start * ENTRY_SIZE_BYTES, size) if size else None

    def entries(self, start: int, limit: int) -> EntryArray:
        """Return up to `limit` entries from `start` on, within one file.

        As stored, also after the end: the caller asks for what lies before `max_offset`.
        """
        window = self.bytes_at(start, limit) if start >= 0 and limit > 0 else None
        if window is None:
            return entry_array(b"")
        low = start * ENTRY_SIZE_BYTES - window.base
        held = memoryview(window.buffer)[low : min(low + limit * ENTRY_SIZE_BYTES, window.size)]
        return entry_array(held)

    def chunks(self, start: int, stop: int) -> Iterator[tuple[int, EntryArray]]:
        """Yield the entries of a range that are there, as stored, with the offset of the first."""
        while start < stop:
            entries = self.entries(start, min(stop - start, self.chunk_entries))
            if len(entries):
                yield start, entries
                start += len(entries)
            elif following := first_from(self.files.files, start * ENTRY_SIZE_BYTES + 1):
                start = -(-following.base // ENTRY_SIZE_BYTES)
            else:
                return

    def entries_from(self, start: int, stop: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """Yield queue offset and fields of the entries of a range that are there."""
        for first, entries in self.chunks(start, stop):
            for at in range(0, len(entries), _PIECE):
                yield from enumerate(entries[at : at + _PIECE].tolist(), first + at)

    @property
    def entries_per_file(self) -> int:
        """How many entries one file holds; at least 1."""
        return max(1, int(self.files.file_size) // ENTRY_SIZE_BYTES)

    # --- the first and the last one -------------------------------------------------------------

    @property
    def first_offset(self) -> int:
        """Queue offset of the first entry on disk, expired and filler entries included."""
        return max(int(self.files.min_offset), 0) // ENTRY_SIZE_BYTES

    @property
    def min_offset(self) -> int:
        """First queue offset whose record has not expired; the maximum when all have."""
        return self.first_left(self._log_min_offset())

    def first_left(self, log_min: int) -> int:
        """Return the first queue offset whose record has not expired; the maximum when all have.

        With the case that no record is left handled (K-C3). Source: ConsumeQueue.correctMinOffset.
        """
        first, end = self.first_offset, self.max_offset
        if log_min != self._min_for or not first <= self._min_hint <= end:
            low = min(max(first, self._min_hint), end) if log_min >= self._min_for else first
            low = self.first_where(low, end, lambda entry: entry.physical_offset >= log_min)
            self._min_hint, self._min_for = self.next_message(low, end)[0], log_min
        return self._min_hint

    def end_within(self, physical_limit: int) -> int:
        """Return the queue offset after the last entry whose record ends before an offset."""
        return self.first_where(
            self.first_offset,
            self.max_offset,
            lambda entry: entry.physical_offset + entry.record_size > physical_limit,
        )

    def search_end(self) -> int:
        """Return the end of the entries in the last file that has any, by bisection.

        The first steps find a chunk, which is read once for all that follow. Nothing is read where
        the file system knows of no data: the kernel would read megabytes of zeros ahead.
        """

        def is_empty(position: int) -> bool:
            return not ((entry := self.entry(position // ENTRY_SIZE_BYTES)) and entry.is_written)

        for file in self.files.files[::-1]:
            stop = file.base + self._data_stop(file)
            chunks = range(file.base, max(stop, file.base + 1), CHUNK_BYTES)
            start = chunks[bisect_left(chunks, 1, 1, key=is_empty) - 1]
            size = (file.base + file.size - start) // ENTRY_SIZE_BYTES * ENTRY_SIZE_BYTES
            raw = self.files.read(start, min(size, CHUNK_BYTES, stop - start)) or b""
            # The end of the last entry may be zeros that were never written.
            is_written = written_mask(entry_array(raw.ljust(min(size, CHUNK_BYTES), b"\0")))
            end = start // ENTRY_SIZE_BYTES + bisect_left((~is_written).tolist(), 1)
            if end * ENTRY_SIZE_BYTES > file.base:
                return end
        return self.first_offset

    def _data_stop(self, file: Any) -> int:
        """Return the position after which a file is known to hold only zeros."""
        stop: int = file.data_stop()
        return stop

    # --- messages -------------------------------------------------------------------------------

    def first_where(self, low: int, high: int, test: Callable[[QueueEntry], bool]) -> int:
        """Return the first of [low, high) from which on a test of messages holds, `high` if none.

        An entry without a message inside a queue stands for a lost one, and counts with the next.
        """
        while low < high:
            middle = (low + high) // 2
            at, entry = self.next_message(middle, high)
            if entry is None or test(entry):
                high = middle
            else:
                low = at + 1
        return low

    def next_message(self, start: int, stop: int) -> tuple[int, QueueEntry | None]:
        """Return the first entry in [start, stop) that is a message; (stop, None) without one."""
        entry = self.entry(start) if start < stop else None  # nearly always the answer
        if entry is not None and entry.is_message:
            return start, entry
        for offsets, entries in self.messages(start, stop):
            if len(offsets):
                return int(offsets[0]), QueueEntry._make(entries[0].tolist())
        return stop, None

    def messages(self, start: int, stop: int) -> Iterator[tuple[Int64Array, EntryArray]]:
        """Yield chunks of the entries that are messages, with the queue offset of each."""
        for first, entries in self.chunks(start, stop):
            rows = _message_rows(entries)
            yield first + rows, entries if len(rows) == len(entries) else entries[rows]

    def backwards(self, start: int, stop: int) -> Iterator[tuple[int, QueueEntry]]:
        """Yield the messages of [start, stop) with their queue offsets, the last one first."""
        last = self.entry(stop - 1) if start < stop else None  # nearly always the answer
        if last is not None and last.is_message:
            yield stop - 1, last
            stop -= 1
        for file in self.files.files[::-1]:
            low = max(start, -(-file.base // ENTRY_SIZE_BYTES))
            high = min(stop, (file.base + file.size) // ENTRY_SIZE_BYTES)
            while low < high:
                at = max(low, high - CHUNK_ENTRIES)
                entries = self.entries(at, high - at)
                values = entries.tolist()
                for row in reversed(_message_rows(entries).tolist()):
                    yield at + row, QueueEntry._make(values[row])
                high = at


def _message_rows(entries: EntryArray) -> Int64Array:
    rows: Int64Array = (written_mask(entries) & ~equal_mask(entries, FILLER)).nonzero()[0]
    return rows
