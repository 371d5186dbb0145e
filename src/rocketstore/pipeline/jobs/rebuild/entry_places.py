"""Which records of a queue get the entries that they ask for, decided as dispatch decides it.

Dispatch enters records in the order of the log: the first record of a queue chooses the file in
which the queue begins, what stands in a place already stays, a gap is filled if so many records can
be missing, and a record that comes late gets a place that only a filler holds.

Law: decisions are made run by run (queue offsets that rise by one), never record by record.

How derived: ConsumeQueue.putMessagePositionInfo (spec B12, F6), as ``EntryDecisions`` of dispatch.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rocketstore.format.queue_entry import is_likely_beginning
from rocketstore.format.record import FIXED_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketstore.scan.dispatch_state import Int64Array


class PlacedEntries(NamedTuple):
    """Rows ``[start, stop)`` that get the places from `queue_offset` on."""

    start: int
    stop: int
    queue_offset: int


class EntryPlaces:
    """The places of one queue.

    Parameters
    ----------
    entries_per_file
        Of a queue file.

    Attributes
    ----------
    begin
        Queue offset at which the queue's first file begins; -1 while there is none.
    following
        One past the last place that is taken.
    refused_count
        Records without an entry.
    """

    def __init__(self, entries_per_file: int) -> None:
        self.begin = -1
        self.following = 0
        self.refused_count = 0
        self._entries_per_file = entries_per_file
        self._max_physical = 0
        self._hole_starts: list[int] = []
        self._hole_stops: list[int] = []

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Places that fillers hold."""
        return list(zip(self._hole_starts, self._hole_stops, strict=True))

    def take(
        self,
        queue_offsets: Int64Array,
        physical_offsets: Int64Array,
        sizes: Int64Array,
        next_number: int | None = None,
    ) -> Iterator[PlacedEntries]:
        """Yield where the next records of the log get their places.

        Parameters
        ----------
        next_number
            What the record behind these states; None when there is none.
        """
        if not len(queue_offsets):
            return
        breaks = np.flatnonzero(np.diff(queue_offsets) != 1) + 1
        bounds = [0, *breaks.tolist(), len(queue_offsets)]
        for start, stop in itertools.pairwise(bounds):
            at = start
            first = int(queue_offsets[start])
            if self.begin < 0 and stop - start == 1:
                behind_it = int(queue_offsets[stop]) if stop < len(queue_offsets) else next_number
                if not self._may_begin(first, int(physical_offsets[start]), behind_it):
                    self.refused_count += 1
                    continue
            while at < stop:
                offset = first + at - start
                if self.begin < 0:
                    self._begin_at(offset)
                if offset > self.following:
                    at = self._bridge(queue_offsets, physical_offsets, at, stop)
                elif offset == self.following:
                    yield PlacedEntries(at, stop, offset)
                    self.following += stop - at
                    self._reach(physical_offsets, sizes, stop - 1)
                    at = stop
                else:
                    behind = min(stop, at + self.following - offset)
                    for run in self._late(at, behind, offset):
                        yield run
                        self._reach(physical_offsets, sizes, run.stop - 1)
                    at = behind

    def _may_begin(self, offset: int, physical_offset: int, next_number: int | None) -> bool:
        """Whether a queue may begin at a number: a forged one would refuse all behind it."""
        if is_likely_beginning(offset, physical_offset):
            return True
        return next_number is None or 0 <= next_number - offset <= self._entries_per_file

    def _begin_at(self, offset: int) -> None:
        self.begin = offset - offset % self._entries_per_file
        self.following = offset
        if self.begin < offset:
            self._hole_starts.append(self.begin)
            self._hole_stops.append(offset)

    def _reach(self, physical_offsets: Int64Array, sizes: Int64Array, row: int) -> None:
        end = int(physical_offsets[row]) + int(sizes[row])
        self._max_physical = max(self._max_physical, end)

    def _bridge(
        self, queue_offsets: Int64Array, physical_offsets: Int64Array, at: int, stop: int
    ) -> int:
        """Fill up to the first row before which so many records can be missing; return that row."""
        # As dispatch: a later message may stand where lost ones stood (decision 0014).
        between = np.maximum(physical_offsets[at:stop] - self._max_physical, 0)
        room = between // FIXED_SIZE + self._entries_per_file
        is_plausible = queue_offsets[at:stop] - self.following <= room
        found = int(is_plausible.argmax())
        if not is_plausible[found]:
            self.refused_count += stop - at
            return stop
        self.refused_count += found
        offset = int(queue_offsets[at + found])
        if offset > self.following:
            self._hole_starts.append(self.following)
            self._hole_stops.append(offset)
            self.following = offset
        return at + found

    def _late(self, at: int, stop: int, offset: int) -> list[PlacedEntries]:
        """Give rows that come late the places that fillers hold."""
        runs: list[PlacedEntries] = []
        low, high = offset, offset + stop - at
        number = max(0, bisect_right(self._hole_starts, low) - 1)
        while number < len(self._hole_starts) and self._hole_starts[number] < high:
            hole = (self._hole_starts[number], self._hole_stops[number])
            begin, end = max(low, hole[0]), min(high, hole[1])
            if begin >= end:
                number += 1
                continue
            runs.append(PlacedEntries(at + begin - offset, at + end - offset, begin))
            left = [part for part in ((hole[0], begin), (end, hole[1])) if part[0] < part[1]]
            self._hole_starts[number : number + 1] = [part[0] for part in left]
            self._hole_stops[number : number + 1] = [part[1] for part in left]
            number += len(left)
        self.refused_count += stop - at - sum(run.stop - run.start for run in runs)
        return runs
