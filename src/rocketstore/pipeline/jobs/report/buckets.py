"""Buckets that numbers and times are counted in: fixed, so that any split of the work agrees.

Numbers go into buckets as wide as an eighth of their power of two, and numbers below 16 into one of
their own: a percentile read from the counts is at most an eighth too high. Times go into buckets of
a width from a ladder whose steps divide each other, so that narrow ones can be put together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

EIGHTHS_BITS: Final = 3
"""Two to this power buckets for each power of two: HdrHistogram's way, at one digit."""

NUMBER_MAX: Final = 2**52
"""Larger numbers are counted as this one: up to here, a float tells the power of two exactly."""

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

WIDTHS_MS: Final = (
    SECOND_MS,
    10 * SECOND_MS,
    MINUTE_MS,
    5 * MINUTE_MS,
    15 * MINUTE_MS,
    HOUR_MS,
    6 * HOUR_MS,
    DAY_MS,
    10 * DAY_MS,
    100 * DAY_MS,
    1_000 * DAY_MS,
    10_000 * DAY_MS,
    1_000_000 * DAY_MS,
)
"""Each divides the next. The last is longer than all time from 1970 to the year 9999."""


def bucket_numbers(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the bucket of each value; those of negative values are negative."""
    magnitudes = np.minimum(np.abs(np.clip(values, -NUMBER_MAX, NUMBER_MAX)), NUMBER_MAX)
    powers = np.frexp(magnitudes.astype(np.float64))[1].astype(np.int64) - 1
    shifts = np.maximum(powers - EIGHTHS_BITS, 0)
    numbers = (shifts << EIGHTHS_BITS) + (magnitudes >> shifts)
    return np.where(values < 0, -numbers, numbers)


def bucket_bounds(number: int) -> tuple[int, int]:
    """Return the lowest and the highest value of a bucket.

    Examples
    --------
    >>> [bucket_bounds(number) for number in (15, 16, 24, -16)]
    [(15, 15), (16, 17), (32, 35), (-17, -16)]
    """
    if number < 0:
        low, high = bucket_bounds(-number)
        return -high, -low
    shift = max((number >> EIGHTHS_BITS) - 1, 0)
    part = number - (shift << EIGHTHS_BITS)
    return part << shift, ((part + 1) << shift) - 1


def next_width_ms(width_ms: int) -> int | None:
    """Return the next wider bucket of the ladder; None behind the last."""
    position = WIDTHS_MS.index(width_ms) + 1
    return WIDTHS_MS[position] if position < len(WIDTHS_MS) else None
