"""Units, and pairs of numbers that belong together.

Two offsets of this store are easily confused: a *physical offset* counts bytes in the CommitLog, a
*queue offset* counts entries of one ConsumeQueue. Names say which one is meant.
"""

import time
from typing import Any, Final, NamedTuple

KiB: Final = 1024
MiB: Final = 1024 * KiB
GiB: Final = 1024 * MiB

HOUR_MS: Final = 3_600_000

OS_PAGE_SIZE_BYTES: Final = 4096
"""Page size in every flush computation of RocketMQ (MappedFile.OS_PAGE_SIZE)."""

_LONGEST_PAUSE_MS: Final = 5000
"""Of a longer pause no more counts: a loop that is busy for seconds is as late as its machine."""


def system_clock_ms() -> int:
    """Return the system's time in ms; the compiled append reads the same clock itself."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return ms of a clock that never goes back, for pauses and ages within this process."""
    return time.monotonic_ns() // 1_000_000


class AwakeClock:
    """`monotonic_ms` without the time in which nobody could ask for it.

    Event loops ask every second. A longer pause was one of this process (``docker pause``, SIGSTOP)
    or of its loop: what others sent meanwhile is not read yet, and they do not count as silent.
    """

    def __init__(self) -> None:
        self._asked_ms = self._lost_ms = 0

    def __call__(self) -> int:
        """Return the time in ms."""
        now_ms = monotonic_ms()
        pause_ms, self._asked_ms = now_ms - self._asked_ms, now_ms
        if pause_ms > _LONGEST_PAUSE_MS:
            self._lost_ms += pause_ms - _LONGEST_PAUSE_MS
        return now_ms - self._lost_ms


awake_ms: Final = AwakeClock()
"""For limits on the silence of others; one for all who compare what it says."""


def counted(count: int, noun: str, many: str | None = None) -> str:
    """Return a count with its noun: "1 entry", "2,000 entries"."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


class QueueKey(NamedTuple):
    """One queue of one topic."""

    topic: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}"


class ByteRange(NamedTuple):
    """Half-open range of physical offsets, ``start <= offset < stop``."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.stop - self.start

    def __str__(self) -> str:
        return f"[{self.start}, {self.stop})"


class Window(NamedTuple):
    """Bytes at hand of a log or queue: the first one has offset `base`, `size` may be read.

    `file` is the mapped file that `buffer` belongs to, if any.
    """

    buffer: Any
    base: int
    size: int
    file: Any = None
