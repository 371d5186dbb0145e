"""Moments on the command line: one syntax for every ``--begin`` and ``--end``.

Law: a range begins with ``--begin``, which it includes, and ends before ``--end``.
"""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Final

from rocketstore.errors import ConfigError

_AGO: Final = re.compile(r"-(\d{1,9})(ms|s|m|h|d|w)")
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000,
                   "w": 604_800_000}  # fmt: skip
_EARLIEST_MS: Final = 10**11
"""A smaller number (before March 1973) cannot be a store's time: it is an offset or seconds."""


def parse_time(text: str, now_ms: int | None = None) -> int:
    """Return milliseconds since 1970.

    Parameters
    ----------
    text
        Milliseconds since 1970; a date or time of ISO 8601, in the zone of this machine if it names
        none; or how long ago: ``-90s``, ``-2h``, ``-7d``.
    now_ms
        What "ago" counts from; None takes the clock.

    Raises
    ------
    ConfigError
        It is not one of them.
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        return now_ms - int(ago[1]) * _UNIT_MS[ago[2]]
    is_number = text.isascii() and text.isdecimal()
    if is_number and (int(text) == 0 or int(text) >= _EARLIEST_MS):
        return int(text)
    try:
        # Eight digits alone are a date; datetime would read longer numbers as times, too.
        if not is_number or len(text) == 8:
            return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    raise ConfigError(
        f"{text!r} is not a time",
        value=text,
        hint="give milliseconds since 1970, a time such as 2026-11-21T10:00:00+01:00, or how "
        "long ago, such as -90s, -2h or -7d",
    )
