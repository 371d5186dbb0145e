"""Searches in the entries of one queue, mapped or read with ``pread``.

Law: entries point at rising physical offsets, so places are found by bisection; an entry that is no
message (a filler, or not written) counts with the message that follows it (K-C2).

How derived: ConsumeQueue.recover, correctMinOffset and truncateDirtyLogicFiles of 4.9 (spec B12,
B16).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Protocol

from rocketstore.format.file_name import parse_queue_id
from rocketstore.format.queue_entry import (
    ENTRY_SIZE_BYTES,
    QueueEntry,
    filler_mask,
    written_mask,
)
from rocketstore.storage.files.disk import system_errors
from rocketstore.units import KiB, QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from rocketstore.format.queue_entry import EntryArray

CHUNK_ENTRIES: Final = 3276
CHUNK_BYTES: Final = CHUNK_ENTRIES * ENTRY_SIZE_BYTES
"""About 64 KiB, a whole number of entries."""
assert 64 * KiB >= CHUNK_BYTES


class _File(Protocol):
    @property
    def base(self) -> int: ...
    @property
    def size(self) -> int: ...


class _Files(Protocol):
    @property
    def files(self) -> Sequence[_File]: ...
    @property
    def min_offset(self) -> int: ...
    def next_file(self, offset: int) -> _File | None: ...


class QueueSearch(ABC):
    """What both kinds of queues answer by searching; a subclass says what stands at an offset."""

    files: _Files
    _min_for = -1
    """The log's minimum offset for which `_min_hint` was found; -1 before the first search."""
    _min_hint = 0

    @property
    def first_offset(self) -> int:
        """Queue offset of the first entry on disk, expired and filler entries included."""
        return max(self.files.min_offset, 0) // ENTRY_SIZE_BYTES

    @abstractmethod
    def entry(self, queue_offset: int) -> QueueEntry | None:
        """Return one entry as stored, fillers too; None where it is missing."""

    @abstractmethod
    def entries(self, start: int, limit: int) -> EntryArray:
        """Return up to `limit` entries from queue offset `start`, within one file, as stored."""

    def _search_end(self) -> int:
        """Return the end of the entries in the last file that has any, by bisection."""
        for file in reversed(self.files.files):
            first = low = file.base // ENTRY_SIZE_BYTES
            high = low + file.size // ENTRY_SIZE_BYTES
            while low < high:
                middle = (low + high) // 2
                entry = self.entry(middle)
                if entry is not None and entry.is_written:
                    low = middle + 1
                else:
                    high = middle
            if low > first:
                return low
        return self.first_offset

    def _search_min(self, log_min: int, end: int) -> int:
        """Return the first queue offset below `end` whose record lies at or after `log_min`."""
        low = self.first_offset
        if log_min >= self._min_for:
            low = min(max(low, self._min_hint), end)
        low = self._bisect(low, end, lambda entry: entry.physical_offset < log_min)
        self._min_hint, self._min_for = self._next_message(low, end)[0], log_min
        return self._min_hint

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
                following = self.files.next_file(at * ENTRY_SIZE_BYTES + 1)
                if following is None:
                    break
                at = following.base // ENTRY_SIZE_BYTES
            elif found := _message_places(entries):
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
        for file in reversed(self.files.files):
            low = max(start, -(-file.base // ENTRY_SIZE_BYTES))
            high = min(stop, (file.base + file.size) // ENTRY_SIZE_BYTES)
            while low < high:
                at = max(low, high - CHUNK_ENTRIES)
                entries = self.entries(at, high - at)
                values = entries.tolist()
                for place in reversed(_message_places(entries)):
                    yield at + place, QueueEntry._make(values[place])
                high = at


def _message_places(entries: EntryArray) -> list[int]:
    """Return the indexes of the entries that are messages."""
    places: list[int] = (written_mask(entries) & ~filler_mask(entries)).nonzero()[0].tolist()
    return places


@system_errors("cannot list the queues of the store")
def listed_queues(root: Path) -> list[QueueKey]:
    """Return the queues that have a directory, in order; as in 4.9, a name must be a number."""
    return sorted(
        QueueKey(topic, queue_id)
        for topic in subdirectories(root)
        for name in subdirectories(root / topic)
        if (queue_id := parse_queue_id(name)) is not None
    )


def subdirectories(directory: Path) -> list[str]:
    """Return the names of the directories in a directory, none where it is missing."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
