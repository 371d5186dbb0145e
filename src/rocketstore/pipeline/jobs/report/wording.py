"""Numbers as people read them: with units, thousands separators, and times in UTC."""

from __future__ import annotations

import datetime as dt
from typing import Final

from rocketstore.pipeline.jobs.report.buckets import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

MINUS: Final = "\u2212"

NOTHING: Final = "\u2013"
"""Where there is nothing to say."""

_SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_YEAR_MS: Final = 365.25 * DAY_MS
_UNITS: Final = (
    (_YEAR_MS, "y"),
    (DAY_MS, "d"),
    (HOUR_MS, "h"),
    (MINUTE_MS, "min"),
    (SECOND_MS, "s"),
)


def count_text(count: int | None) -> str:
    """Return a whole number with separators."""
    return NOTHING if count is None else f"{count:,}".replace("-", MINUS)


def plural(count: int, noun: str, many: str | None = None) -> str:
    """Return a count with its noun."""
    return f"{count_text(count)} {noun if count == 1 else many or noun + 's'}"


def size_text(size: float | None) -> str:
    """Return a number of bytes in a unit that leaves three digits or so."""
    if size is None:
        return NOTHING
    power = 0
    while abs(size) >= 1000 and power < len(_SIZE_UNITS) - 1:
        size /= 1024
        power += 1
    return f"{_short(size)} {_SIZE_UNITS[power]}"


def duration_text(milliseconds: float | None) -> str:
    """Return a length of time in one unit."""
    if milliseconds is None:
        return NOTHING
    sign = MINUS if milliseconds < 0 else ""
    amount = abs(milliseconds)
    for unit, name in _UNITS:
        if amount >= unit:
            return f"{sign}{_short(amount / unit)} {name}"
    return f"{sign}{_short(amount)} ms"


def rough_duration_text(milliseconds: float) -> str:
    """Return a length of time to two digits, for the axis of a chart."""
    text = duration_text(milliseconds)
    number, _, unit = text.partition(" ")
    amount = float(number.replace(",", "").replace(MINUS, "-"))
    return f"{amount:.2g} {unit}" if abs(amount) < 100 else text


def bound_text(text: str, *, is_exact: bool) -> str:
    """Return a figure, marked where the value itself may be less."""
    return text if is_exact or text == NOTHING else f"≤ {text}"


def share_text(part: float, whole: float) -> str:
    """Return a share in percent; what is there is never 0."""
    if not whole:
        return NOTHING
    percent = 100 * part / whole
    if 0 < percent < 0.05:
        return "< 0.1 %"
    if part < whole and percent > 99.9:
        return "> 99.9 %"
    return f"{percent:.1f} %"


def moment_text(timestamp_ms: int | None, *, with_zone: bool = False) -> str:
    """Return a time to the second."""
    if timestamp_ms is None:
        return NOTHING
    return moment(timestamp_ms).strftime("%Y-%m-%d %H:%M:%S") + (" UTC" if with_zone else "")


def moment(timestamp_ms: int) -> dt.datetime:
    """Return a time of the calendar, its first or last when there is none."""
    limit = 253_402_300_799_999
    at = min(max(timestamp_ms, 0), limit)
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=at)


def _short(number: float) -> str:
    if number >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}".rstrip("0").rstrip(".")
