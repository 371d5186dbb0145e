"""Distributions from counted buckets: percentiles and histograms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.pipeline.jobs.report.buckets import bucket_bounds

if TYPE_CHECKING:
    from collections.abc import Iterable


BARS_MIN: Final = 8
"""Bars of a histogram, so that values that are all alike do not fill it as a wall."""


class Bar(NamedTuple):
    """Values from `low` to `high`, both included, and how many messages had them."""

    low: int
    high: int
    messages: int


class Distribution:
    """How many values fell into each bucket.

    Parameters
    ----------
    counts
        Buckets (``bucket_numbers``) and counts; a bucket may come more than once.
    least, most
        The extremes where they are known better than by their buckets.
    exact
        Values and counts of the same messages, where each value is known: percentiles are read from
        them and are exact.
    """

    def __init__(
        self,
        counts: Iterable[tuple[int, int]],
        least: int | None = None,
        most: int | None = None,
        exact: Iterable[tuple[int, int]] | None = None,
    ) -> None:
        self.values = None if exact is None else sorted(exact)
        totals: dict[int, int] = {}
        for bucket, count in counts:
            totals[bucket] = totals.get(bucket, 0) + count
        self.buckets = sorted(totals.items())
        self.count = sum(totals.values())
        self.least = least
        self.most = most
        if self.buckets:
            self.least = bucket_bounds(self.buckets[0][0])[0] if least is None else least
            self.most = bucket_bounds(self.buckets[-1][0])[1] if most is None else most

    @property
    def is_exact(self) -> bool:
        """Whether percentiles are exact."""
        return self.values is not None

    def percentile(self, percent: float) -> int | None:
        """Return the least value that so many percent do not exceed.

        At most an eighth too high where `is_exact` says that it is read from buckets.
        """
        wanted = self.count * percent / 100
        seen = 0
        for value, count in self.values or ():
            seen += count
            if seen >= wanted:
                return value
        seen = 0
        for bucket, count in self.buckets:
            seen += count
            if seen >= wanted:
                high = bucket_bounds(bucket)[1]
                return high if self.most is None else min(high, self.most)
        return None

    def share_below(self, value: int) -> int:
        """Return how many values lie in buckets that end before `value`."""
        return sum(count for bucket, count in self.buckets if bucket_bounds(bucket)[1] < value)

    def bars(self) -> list[Bar]:
        """Return the counts by power of two, empty ones between others and around few included.

        All negative values are one bar, and so is 0.
        """
        negative = self.share_below(0)
        powers: dict[int, int] = {}
        for bucket, count in self.buckets:
            low, _ = bucket_bounds(bucket)
            if low >= 0:
                powers[low.bit_length()] = powers.get(low.bit_length(), 0) + count
        bars = [Bar(self.least or -1, -1, negative)] if negative else []
        if not powers:
            return bars
        first, last = min(powers), max(powers)
        lacking = max(0, BARS_MIN - (last - first + 1))
        first = max(0, first - lacking // 2)
        last = max(last, first + BARS_MIN - 1)
        for power in range(first, last + 1):
            low = 0 if power == 0 else 1 << (power - 1)
            bars.append(Bar(low, max(0, (1 << power) - 1), powers.get(power, 0)))
        return bars
