"""Searching the entries of one BatchConsumeQueue, however its files are read.

Law: entries stand in the order of their queue offsets and of the log, so both are searched for by
bisection; where damage misleads that, the whole queue is looked through. An entry is a hint: who
uses it compares the record.

How derived: BatchConsumeQueue.getBatchMsgIndexBuffer and correctMinOffset of 5.3.1 (spec F9, B13).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from rocketstore.format.batch_queue_entry import (
    BATCH_ENTRY_SIZE_BYTES,
    FIELDS,
    BatchEntry,
    decode_batch_entry,
)
from rocketstore.format.queue_entry import QueueEntry

if TYPE_CHECKING:
    import numpy.typing as npt

    BatchEntryArray: TypeAlias = npt.NDArray[np.void]

BATCH_ENTRY_DTYPE: Final[np.dtype[np.void]] = np.dtype(
    [(field.name, f">{'i2' if field.code == 'h' else field.code}") for field in FIELDS]
)


def stored_entries(content: bytes | bytearray) -> BatchEntryArray:
    """Return the entries that the files of a queue hold, up to the last one that is not zeros."""
    count = -(-len(content.rstrip(b"\0")) // BATCH_ENTRY_SIZE_BYTES)
    # The last numbers of an entry may be zeros.
    whole = content[: count * BATCH_ENTRY_SIZE_BYTES].ljust(count * BATCH_ENTRY_SIZE_BYTES, b"\0")
    return np.frombuffer(whole, BATCH_ENTRY_DTYPE)


def written_count(array: BatchEntryArray) -> int:
    """Return how many entries at the beginning of an array are written, each after the one before.

    Their records stand in the order of the log, and no two have a message in common.
    """
    fits = (array["physical_offset"] >= 0) & (array["record_size"] > 0)
    fits &= (array["base_offset"] >= 0) & (array["message_count"] > 0)
    stops = array["base_offset"].astype(np.int64) + array["message_count"]
    fits[1:] &= array["base_offset"][1:] >= stops[:-1]
    ends = array["physical_offset"].astype(np.int64) + array["record_size"]
    fits[1:] &= array["physical_offset"][1:] >= ends[:-1]
    wrong = np.flatnonzero(~fits)
    return int(wrong[0]) if wrong.size else len(array)


class BatchEntries:
    """The entries of one queue by their place in it, from `first_place` up to `stop_place`."""

    files: Any
    """See `scan.queue_search.Files`."""
    stop_place: int

    @property
    def first_place(self) -> int:
        """Place of the first entry on disk."""
        return max(int(self.files.min_offset), 0) // BATCH_ENTRY_SIZE_BYTES

    @property
    def entries_per_file(self) -> int:
        """How many entries one file holds; 1 where there is no file to tell."""
        return max(1, int(self.files.file_size) // BATCH_ENTRY_SIZE_BYTES)

    def read(self, place: int, count: int) -> bytes:
        """Return up to `count` entries from a place on, of one file; nothing where it is gone."""
        size = BATCH_ENTRY_SIZE_BYTES
        held: bytes = self.files.read(place * size, count * size) or b""
        return held[: len(held) - len(held) % size]

    def at(self, place: int) -> BatchEntry | None:
        """Return the entry of a place; None where it cannot be read."""
        held = self.read(place, 1)
        return decode_batch_entry(held) if len(held) == BATCH_ENTRY_SIZE_BYTES else None

    def _of(self, place: int) -> BatchEntry:
        return self.at(place) or BatchEntry(0, 0, 0, 0, 0, 0)

    def arrays(self) -> Iterator[tuple[int, BatchEntryArray]]:
        """Yield the entries of each file, with the place of its first."""
        place = self.first_place
        while place < self.stop_place:
            left = min(self.entries_per_file - place % self.entries_per_file, 1 << 16)
            held = self.read(place, min(left, self.stop_place - place))
            yield place, np.frombuffer(held, BATCH_ENTRY_DTYPE)
            place += left

    # --- what a queue says ----------------------------------------------------------------------

    @property
    def max_offset(self) -> int:
        """One past the queue offset of the last message; 0 without entries."""
        stop = self.stop_place
        return self._of(stop - 1).stop_offset if stop > self.first_place else 0

    @property
    def first_offset(self) -> int:
        """Queue offset of the first message on disk, expired ones included."""
        stop, first = self.stop_place, self.first_place
        return self._of(first).base_offset if first < stop else 0

    def first_left(self, log_min: int) -> int:
        """Return the first queue offset whose record has not expired; the maximum when all have."""
        return self._first_where(lambda entry: entry.physical_offset >= log_min)

    def end_within(self, physical_limit: int) -> int:
        """Return the queue offset after the last message whose record ends before an offset."""
        return self._first_where(
            lambda entry: entry.physical_offset + entry.record_size > physical_limit
        )

    def _first_where(self, test: Callable[[BatchEntry], bool]) -> int:
        """Return the first queue offset from which on a test holds, else the maximum."""
        places = range(self.first_place, self.stop_place)
        at = bisect_left(places, 1, key=lambda place: test(self._of(place)))
        return self._of(places[at]).base_offset if at < len(places) else self.max_offset

    def place_of(self, offset: int) -> int:
        """Return the place of the entry that has a queue offset, else of the next one after it."""
        places = range(self.first_place, self.stop_place)
        at = bisect_right(places, offset, key=lambda place: self._of(place).base_offset) - 1
        entry = self._of(places[at]) if at >= 0 else None
        if entry is not None and entry.base_offset <= offset < entry.stop_offset:
            return places[at]
        for place, array in self.arrays():
            stops = array["base_offset"].astype(np.int64) + array["message_count"]
            rows = np.flatnonzero((stops > offset) & (array["message_count"] > 0))
            if rows.size:
                return place + int(rows[0])
        return places.stop

    def entry(self, queue_offset: int) -> QueueEntry | None:
        """Return what an entry of a ConsumeQueue would say of the message of a queue offset."""
        entry = self.at(self.place_of(queue_offset))
        return None if entry is None else QueueEntry(*entry[:3])

    def entries_from(self, start: int, stop: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """Yield first queue offset and fields of what `entry` returns, of [start, stop)."""
        for place in range(self.place_of(start), self.stop_place):
            entry = self.at(place)
            if entry is not None:
                if entry.base_offset >= stop:
                    return
                yield entry.base_offset, entry[:3]

    def written_stop(self) -> int:
        """Return the place after the last entry of those that follow each other without a fault."""
        stop, before = self.first_place, np.empty(0, BATCH_ENTRY_DTYPE)
        for place, array in self.arrays():
            if place != stop:
                break  # in front of it a file is missing, or an entry
            rows = np.concatenate((before, array))
            stop += written_count(rows) - len(before)
            before = array[-1:]
        return stop
