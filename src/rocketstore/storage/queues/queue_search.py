"""Searches in the entries of one queue, mapped or read with ``pread``.

Law: entries point at rising physical offsets, so one is found by bisection; an entry that is no
message (a filler, or not written) counts with the message that follows it (K-C2).

How derived: ConsumeQueue.recover, correctMinOffset and truncateDirtyLogicFiles of 4.9 (spec B12,
B16).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING, Final

from rocketstore.errors import FormatError, StoreDamagedError
from rocketstore.format.file_name import parse_queue_id
from rocketstore.format.metadata_json import TOPICS_FILE, batch_topics
from rocketstore.format.queue_entry import (
    ENTRY_SIZE_BYTES,
    FILLER,
    QueueEntry,
    entry_array,
    equal_mask,
    written_mask,
)
from rocketstore.storage.files.disk import system_errors
from rocketstore.storage.files.pread_files import first_from
from rocketstore.storage.files.whole_file import read_with_backup
from rocketstore.units import KiB, QueueKey
from rocketstore.verification.newer import ROCKSDB_MARK, rocksdb_queues
from rocketstore.verification.queue_kinds import compare_kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from mmap import mmap
    from pathlib import Path

    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.queue_extension.units import UnitReader
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.files.pread_files import PreadFiles
    from rocketstore.storage.layout import StoreLayout

CHUNK_ENTRIES: Final = 3276
CHUNK_BYTES: Final = CHUNK_ENTRIES * ENTRY_SIZE_BYTES
"""About 64 KiB, a whole number of entries."""
assert 64 * KiB >= CHUNK_BYTES


class QueueSearch(ABC):
    """What both kinds of queues answer alike; a subclass says what stands at an offset."""

    files: MappedFileQueue | PreadFiles
    extension: UnitReader | None = None
    """Reads what entries with an address in place of a tags code refer to (spec F7)."""
    _log_min_offset: Callable[[], int]
    _min_for = -1
    """The log's minimum offset for which `_min_hint` was found; -1 before the first search."""
    _min_hint = 0

    @property
    @abstractmethod
    def max_offset(self) -> int:
        """One past the last entry."""

    @abstractmethod
    def entry(self, queue_offset: int) -> QueueEntry | None:
        """Return one entry as stored, fillers too; None where it is missing."""

    @abstractmethod
    def bytes_at(self, start: int, limit: int) -> tuple[mmap | bytes, int, int, bool] | None:
        """Return bytes that hold the entry `start`, and of `limit` more what is in its file.

        With them come the queue offset of their first entry, that after their last one, and whether
        they are the mapping of a file. None where the file is missing.
        """

    # --- entries --------------------------------------------------------------------------------

    def entry_bytes(self, start: int, limit: int) -> memoryview | None:
        """Return up to `limit` entries from `start` on, within one file; None for none.

        As stored, also after the end: the caller asks for what lies before `max_offset`.
        """
        window = self.bytes_at(start, limit) if start >= 0 and limit > 0 else None
        if window is None:
            return None
        held, first, end, _ = window
        low, high = start - first, min(start + limit, end) - first
        return memoryview(held)[low * ENTRY_SIZE_BYTES : high * ENTRY_SIZE_BYTES]

    def entries(self, start: int, limit: int) -> EntryArray:
        """Return `entry_bytes` as an array, without a row where there is none."""
        return entry_array(self.entry_bytes(start, limit) or b"")

    @property
    def entries_per_file(self) -> int:
        """How many entries one file holds; at least 1."""
        return max(1, self.files.file_size // ENTRY_SIZE_BYTES)

    # --- the first and the last one -------------------------------------------------------------

    @property
    def first_offset(self) -> int:
        """Queue offset of the first entry on disk, expired and filler entries included."""
        return max(self.files.min_offset, 0) // ENTRY_SIZE_BYTES

    @property
    def min_offset(self) -> int:
        """First queue offset whose record has not expired; the maximum when all have.

        With the case that no record is left handled (K-C3). Source: ConsumeQueue.correctMinOffset.
        """
        log_min, first, end = self._log_min_offset(), self.first_offset, self.max_offset
        if log_min != self._min_for or not first <= self._min_hint <= end:
            low = min(max(first, self._min_hint), end) if log_min >= self._min_for else first
            low = self._bisect(low, end, lambda entry: entry.physical_offset < log_min)
            self._min_hint, self._min_for = self._next_message(low, end)[0], log_min
        return self._min_hint

    def end_within(self, physical_limit: int) -> int:
        """Return the queue offset after the last entry whose record ends before an offset."""
        return self._bisect(
            self.first_offset,
            self.max_offset,
            lambda entry: entry.physical_offset + entry.record_size <= physical_limit,
        )

    def _search_end(self) -> int:
        """Return the end of the entries in the last file that has any, by bisection.

        The first steps find a chunk, which is read once for all that follow. Nothing is read where
        the file system knows of no data: the kernel would read megabytes of zeros ahead.
        """

        def is_empty(position: int) -> bool:
            return not ((entry := self.entry(position // ENTRY_SIZE_BYTES)) and entry.is_written)

        for file in self.files.files[::-1]:
            stop = file.base + file.data_stop()
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

    # --- messages -------------------------------------------------------------------------------

    def _bisect(self, low: int, high: int, is_before: Callable[[QueueEntry], bool]) -> int:
        """Return the queue offset after the last message of [low, high) that `is_before`."""
        while low < high:
            middle = (low + high) // 2
            at, entry = self._next_message(middle, high)
            if entry is not None and is_before(entry):
                low = at + 1
            else:
                high = middle
        return low

    def _next_message(self, start: int, stop: int) -> tuple[int, QueueEntry | None]:
        """Return the first entry in [start, stop) that is a message; (stop, None) without one."""
        at = start
        while at < stop:
            entry = self.entry(at)  # nearly always the answer
            if entry is not None and entry.is_message:
                return at, entry
            entries = self.entries(at, min(stop - at, CHUNK_ENTRIES))
            if not len(entries):
                following = first_from(self.files.files, at * ENTRY_SIZE_BYTES + 1)
                if following is None:
                    break
                at = following.base // ENTRY_SIZE_BYTES
            elif found := _message_rows(entries):
                return at + found[0], QueueEntry._make(entries[found[0]].tolist())
            else:
                at += len(entries)
        return stop, None

    def _backwards(self, start: int, stop: int) -> Iterator[tuple[int, QueueEntry]]:
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
                for row in reversed(_message_rows(entries)):
                    yield at + row, QueueEntry._make(values[row])
                high = at


def _message_rows(entries: EntryArray) -> list[int]:
    rows: list[int] = (written_mask(entries) & ~equal_mask(entries, FILLER)).nonzero()[0].tolist()
    return rows


def batch_topics_in(layout: StoreLayout) -> frozenset[str]:
    """Return the batch topics, and raise where the table does not say so of one with such queues.

    Such a topic has a directory from the moment at which it is made.
    """
    batch_queues = listed_queues(layout.batch_consume_queue)
    has_queues = bool(_subdirectories(layout.batch_consume_queue))
    decode = partial(batch_topics, has_queues=has_queues)
    try:
        names = read_with_backup(layout.config / TOPICS_FILE, decode) or frozenset()
    except FormatError:
        if not batch_queues:
            raise
        names = frozenset()  # the queues say better what is lost
    for one in compare_kinds(names, [], batch_queues).findings:
        raise StoreDamagedError(f"{layout.root}/{one.file}: {one.reason}", hint=one.action)
    return names


@system_errors("cannot list the queues of the store")
def listed_queues(root: Path) -> list[QueueKey]:
    """Return the queues that have a directory, in order; as in 4.9, a name must be a number.

    Raises `StoreError` where they are in RocksDB.
    """
    if (root / ROCKSDB_MARK).is_file():
        raise rocksdb_queues(root)
    return sorted(
        QueueKey(topic, queue_id)
        for topic in _subdirectories(root)
        for name in _subdirectories(root / topic)
        if (queue_id := parse_queue_id(name)) is not None
    )


def _subdirectories(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
