"""Searches in the entries of one queue, mapped or read with ``pread``.

Law: entries point at rising physical offsets, so places are found by bisection; an entry that is no
message (a filler, or not written) counts with the message that follows it (K-C2).

How derived: ConsumeQueue.correctMinOffset and truncateDirtyLogicFiles of 4.9 (spec B12, B16.4).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Protocol

from rocketstore.format.queue_entry import (
    ENTRY_SIZE_BYTES,
    QueueEntry,
    filler_mask,
    written_mask,
)
from rocketstore.units import KiB

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.format.queue_entry import EntryArray

CHUNK_ENTRIES: Final = 3276
CHUNK_BYTES: Final = CHUNK_ENTRIES * ENTRY_SIZE_BYTES
"""About 64 KiB, a whole number of entries."""
assert 64 * KiB >= CHUNK_BYTES


class _File(Protocol):
    @property
    def base(self) -> int: ...


class _Files(Protocol):
    def next_file(self, offset: int) -> _File | None: ...


class QueueSearch(ABC):
    """What both kinds of queues answer by searching; a subclass says what stands at an offset."""

    files: _Files
    _min_for = -1
    """The log's minimum offset for which `_min_hint` was found; -1 before the first search."""
    _min_hint = 0

    @property
    @abstractmethod
    def first_offset(self) -> int:
        """Queue offset of the first entry on disk, expired and filler entries included."""

    @abstractmethod
    def entry(self, queue_offset: int) -> QueueEntry | None:
        """Return one entry as stored; None where it is missing."""

    @abstractmethod
    def entries(self, start: int, limit: int) -> EntryArray:
        """Return up to `limit` entries from queue offset `start`, within one file, as stored."""

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
            elif found := message_places(entries):
                return at + found[0], QueueEntry._make(entries[found[0]].tolist())
            else:
                at += len(entries)
        return stop, None


def message_places(entries: EntryArray) -> list[int]:
    """Return the indexes of the entries that are messages."""
    places: list[int] = (written_mask(entries) & ~filler_mask(entries)).nonzero()[0].tolist()
    return places
