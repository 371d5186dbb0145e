"""Traffic over time as a chart shows it: one axis for all charts, bars of a width that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.pipeline.jobs.report.buckets import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from rocketstore.pipeline.jobs.report.charts import TimeAxis

if TYPE_CHECKING:
    from collections.abc import Sequence

    Rows = Sequence[dict[str, Any]]

BARS_MAX: Final = 180
"""A bar and its gap then have four pixels of a page a thousand wide."""

BARS_MIN: Final = 20
"""So that one minute of traffic does not look like all there is."""

SHORT_MS: Final = 10 * MINUTE_MS
"""A shorter store is drawn by the second."""

OUTLIER_SHARE: Final = 0.001
"""Of the messages, at either end: drawn only when they do not squeeze the others together."""

OUTLIER_STRETCH: Final = 4
"""How many times longer they may make the axis."""

_WIDTHS_MS: Final = (
    *(SECOND_MS * n for n in (1, 2, 5, 10, 20, 30)),
    *(MINUTE_MS * n for n in (1, 2, 5, 10, 15, 30)),
    *(HOUR_MS * n for n in (1, 2, 3, 6, 12)),
    *(DAY_MS * n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 1_000_000)),
)


class Timeline(NamedTuple):
    """Bars over time.

    Attributes
    ----------
    messages, sizes
        Per bar.
    by_topic
        Messages over time of each topic, maybe in wider bars than the axis has.
    left_out
        Messages too far from all others to be drawn.
    """

    axis: TimeAxis
    messages: list[int]
    sizes: list[int]
    by_topic: dict[str, list[int]]
    left_out: int


def timeline(minutes: Rows, traffic: Rows, seconds: Rows) -> Timeline:
    """Return the bars of a store.

    Parameters
    ----------
    minutes
        Messages and bytes by time; at least one row.
    traffic
        The same by time and topic, maybe in wider buckets.
    seconds
        The same by time and topic in narrower buckets; maybe none.
    """
    totals = minutes
    if seconds and seconds[-1]["startMs"] - seconds[0]["startMs"] <= SHORT_MS:
        totals = traffic = seconds
    axis = _axis(totals)
    messages, sizes = [0] * axis.bar_count, [0] * axis.bar_count
    left_out = 0
    for row in totals:
        number = _bar_of(row, axis)
        if number is None:
            left_out += row["messages"]
            continue
        messages[number] += row["messages"]
        sizes[number] += row["bytes"]
    return Timeline(axis, messages, sizes, _by_topic(traffic), left_out)


def _by_topic(traffic: Rows) -> dict[str, list[int]]:
    axis = _axis(traffic)
    found: dict[str, list[int]] = {}
    for row in traffic:
        number = _bar_of(row, axis)
        if number is not None:
            found.setdefault(row["topic"], [0] * axis.bar_count)[number] += row["messages"]
    return found


def _bar_of(row: dict[str, Any], axis: TimeAxis) -> int | None:
    number: int = (row["startMs"] - axis.start_ms) // axis.width_ms
    return number if 0 <= number < axis.bar_count else None


def _axis(rows: Rows) -> TimeAxis:
    row_width = rows[0]["widthMs"]
    first, last = _drawn_range(rows)
    fitting = (
        width
        for width in _WIDTHS_MS
        if width % row_width == 0 and last // width - first // width < BARS_MAX
    )
    width = next(fitting, _WIDTHS_MS[-1])
    start = first // width * width
    count = (last - start) // width + 1
    if count < BARS_MIN:
        start = max(0, start - (BARS_MIN - count) // 2 * width)
        count = BARS_MIN
    return TimeAxis(start, width, count)


def _drawn_range(rows: Rows) -> tuple[int, int]:
    """Return the starts of the first and the last bucket to draw."""
    ordered = sorted((row["startMs"], row["messages"]) for row in rows)
    first, last = ordered[0][0], ordered[-1][0]
    outliers = OUTLIER_SHARE * sum(messages for _, messages in ordered)
    low = _start_behind(ordered, outliers)
    high = _start_behind(ordered[::-1], outliers)
    bulk = high - low + BARS_MIN * rows[0]["widthMs"]
    return (first, last) if last - first <= OUTLIER_STRETCH * bulk else (low, high)


def _start_behind(ordered: Sequence[tuple[int, int]], messages: float) -> int:
    """Return the first start at which more than so many messages have been passed."""
    seen = 0
    for start, count in ordered:
        seen += count
        if seen > messages:
            return start
    return ordered[-1][0]
