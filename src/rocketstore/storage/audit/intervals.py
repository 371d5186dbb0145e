"""A set of whole numbers that come in long runs, such as the queue offsets that have a record.

Law: intervals are half-open, sorted, disjoint and never touch; adding at the end costs nothing.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt


class Intervals:
    """Numbers, kept as runs."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._stops, strict=True)

    def __contains__(self, number: int) -> bool:
        at = bisect.bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._stops[at]

    @property
    def count(self) -> int:
        """How many numbers the set has."""
        return sum(self._stops) - sum(self._starts)

    @property
    def stop(self) -> int:
        """One past the largest number; 0 for the empty set."""
        return self._stops[-1] if self._stops else 0

    def add(self, start: int, stop: int) -> None:
        """Add the numbers from `start` up to `stop`."""
        if start >= stop:
            return
        first = bisect.bisect_left(self._stops, start)
        behind = bisect.bisect_right(self._starts, stop)
        if first < behind:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[behind - 1])
        self._starts[first:behind] = [start]
        self._stops[first:behind] = [stop]

    def add_numbers(self, numbers: npt.NDArray[np.int64]) -> None:
        """Add numbers in any order."""
        if not numbers.size:
            return
        ordered = np.unique(numbers)
        breaks = np.flatnonzero(np.diff(ordered) != 1)
        firsts = ordered[np.concatenate(([0], breaks + 1))]
        lasts = ordered[np.concatenate((breaks, [ordered.size - 1]))]
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            self.add(first, last + 1)

    def gaps(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of numbers between `start` and `stop` that are not in the set."""
        at = start
        for first, behind in self:
            if behind <= at:
                continue
            if first >= stop:
                break
            if first > at:
                yield at, first
            at = behind
        if at < stop:
            yield at, stop
