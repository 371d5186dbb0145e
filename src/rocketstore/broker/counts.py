"""What a broker counts for administrators: what groups were given of late, and messages by day.

How derived: BrokerStats, and BrokerStatsManager with StatsItem, of 4.9.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.message_store import MessageStore

SAMPLE_MS: Final = 10_000
_SAMPLES: Final = 7
"""So that a rate is that of a minute."""


class GivenCounts:
    """How many messages of a topic a group was given; counted and sampled on the loop."""

    def __init__(self, monotonic: Callable[[], int]) -> None:
        self._monotonic = monotonic
        self._counts: Counter[tuple[str, str]] = Counter()
        self._samples: dict[tuple[str, str], deque[tuple[int, int]]] = {}

    def note(self, topic: str, group: str, count: int) -> None:
        """Count messages that a group was given."""
        self._counts[topic, group] += count

    def sample(self) -> None:
        """Take the sample of these ten seconds; what is new had nothing before."""
        now_ms = self._monotonic()
        for key, count in list(self._counts.items()):
            samples = self._samples.setdefault(key, deque([(now_ms - SAMPLE_MS, 0)], _SAMPLES))
            samples.append((now_ms, count))
            if samples[0][1] == count:  # nothing for a minute: it is new the next time
                del self._counts[key], self._samples[key]

    def per_second(self, topic: str, group: str) -> float:
        """Return the rate of the last minute; from any thread."""
        if (samples := self._samples.get((topic, group))) is None:
            return 0.0
        (began_ms, before), (ended_ms, after) = samples[0], samples[-1]
        return (after - before) * 1000 / (ended_ms - began_ms)


class DayTotals:
    """Messages put and got since the start: now, and at the last two midnights."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._day = self._today()
        self._mornings = ((0, 0), (0, 0))

    def note_midnight(self) -> None:
        """Take note of the totals if another day has begun."""
        if self._day != (today := self._today()):
            self._day = today
            self._mornings = self._mornings[1], self._now()

    def told(self) -> dict[str, str]:
        """Return the totals by the keys of 4.9."""
        names = ("YesterdayMorning", "TodayMorning", "TodayNow")
        rows = zip(names, (*self._mornings, self._now()), strict=True)
        return {
            f"msg{what}Total{name}": str(count)
            for name, counts in rows
            for what, count in zip(("Put", "Get"), counts, strict=True)
        }

    def _now(self) -> tuple[int, int]:
        statistics = self._store.statistics
        return statistics.total_put().messages, statistics.gets.messages

    def _today(self) -> tuple[int, int]:
        moment = time.localtime(self._store.clock() / 1000)
        return moment.tm_year, moment.tm_yday
