"""Which places the records of a queue get that is made again from the log, as dispatch gives them.

Law: what a queue holds depends on its records alone, in the order of the log, and neither on how
they are divided into blocks nor on when they were written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rocketstore.rules.queue_numbers import is_continued, is_likely_beginning, may_follow

if TYPE_CHECKING:
    from rocketstore.format.queue_entry import EntryArray


class EntryPlaces:
    """Decides which records of a queue get the entries that they ask for, as dispatch does.

    Dispatch enters records in the order of the log: the first record of a queue chooses the file in
    which the queue begins, an existing entry stays, a gap is filled if so many records can be
    missing, and a late record gets a place that only a filler holds
    (ConsumeQueue.putMessagePositionInfo; spec B12, F6).

    `following` is one past the last place that is taken, -1 while there is none; fillers hold
    `holes`, in order.
    """

    def __init__(self, entries_per_file: int) -> None:
        self.following = -1
        self.refused_count = 0
        self.holes: list[tuple[int, int]] = []
        self._room = entries_per_file
        self._reached = 0

    def take(
        self, first: int, entries: EntryArray, next_number: int | None
    ) -> Iterator[tuple[int, int, int]]:
        """Yield rows ``[start, stop)`` of entries that get the places from a queue offset on.

        The first row states the queue offset `first`, each later one one more, the record after
        them `next_number`.
        """
        physical, count, row = entries["physical_offset"], len(entries), 0
        if self.following < 0:
            # A forged number would refuse all records after it.
            goes_on = count > 1 or is_continued(first, next_number, self._room)
            if not (goes_on or is_likely_beginning(first, int(physical[0]))):
                self.refused_count += 1
                return
            self.following = first - first % self._room
        while row < count:
            offset, stop, is_taken = first + row, row + 1, False
            if offset < self.following:
                is_taken = self._takes_hole(offset)
            # As dispatch: a later message may stand where lost ones stood (decision 0014).
            elif may_follow(offset, self.following, int(physical[row]) - self._reached, self._room):
                if offset > self.following:
                    self.holes.append((self.following, offset))
                stop, self.following, is_taken = count, first + count, True
            if is_taken:
                yield row, stop, offset
                end = int(physical[stop - 1]) + int(entries["record_size"][stop - 1])
                self._reached = max(self._reached, end)
            else:
                self.refused_count += 1
            row = stop

    def _takes_hole(self, offset: int) -> bool:
        """Give a late record its place, if a filler holds it."""
        at = bisect_right(self.holes, offset, key=lambda hole: hole[0]) - 1
        if at < 0 or offset >= self.holes[at][1]:
            return False
        start, stop = self.holes[at]
        left = [(start, offset), (offset + 1, stop)]
        self.holes[at : at + 1] = [part for part in left if part[0] < part[1]]
        return True
