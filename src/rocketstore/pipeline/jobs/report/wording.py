"""Numbers as people read them, and names in which everything can be seen."""

from __future__ import annotations

import datetime as dt
import unicodedata
from typing import Final

MINUS: Final = "\u2212"

NOTHING: Final = "\u2013"
"""Where there is nothing to say."""

DAY_MS: Final = 86_400_000

_SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_TIME_UNITS: Final = (
    (365.25 * DAY_MS, "y"), (DAY_MS, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"),
    (1, "ms"),
)  # fmt: skip
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories: controls, formats (bidirectional overrides among them), halves of pairs."""


def visible(text: str) -> str:
    r"""Return a text in which everything can be seen.

    Examples
    --------
    >>> print(visible("a\u202eb\x00"))
    a\u202eb\u0000
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        f"\\u{ord(one):04x}" if unicodedata.category(one) in _UNSEEN else one for one in text
    )


def count_text(count: float | None) -> str:
    """Return a whole number with separators."""
    return NOTHING if count is None else f"{round(count):,}".replace("-", MINUS)


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
    amount = abs(milliseconds)
    unit, name = next((one for one in _TIME_UNITS if amount >= one[0]), _TIME_UNITS[-1])
    return f"{MINUS if milliseconds < 0 else ''}{_short(amount / unit)} {name}"


def bound_text(text: str, is_exact: bool | None) -> str:  # noqa: FBT001 - a filter's argument
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


def moment_text(timestamp_ms: int | None, pattern: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time of the calendar, its first or last where there is no such time."""
    if timestamp_ms is None:
        return NOTHING
    at = min(max(timestamp_ms, 0), 253_402_300_799_999)
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=at)
    return moment.strftime(pattern)


def width_text(width_ms: int) -> str:
    """Return what a bar stands for, to come after "per"."""
    names = {1_000: "second", 60_000: "minute", 3_600_000: "hour", DAY_MS: "day"}
    return names.get(width_ms, duration_text(width_ms))


def _short(number: float) -> str:
    if number >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}".rstrip("0").rstrip(".")
