"""How far a clock is set: by NTP, by a zone's hour, on a board without a battery."""

import pytest

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FORTH = {"30 s": 30_000, "1 h": HOUR_MS, "400 d": 400 * DAY_MS}

ahead = pytest.mark.parametrize("jump_ms", FORTH.values(), ids=FORTH.keys())
either_way = pytest.mark.parametrize(
    "jump_ms",
    [sign * ms for sign in (1, -1) for ms in FORTH.values()],
    ids=[sign + text for sign in "+-" for text in FORTH],
)
