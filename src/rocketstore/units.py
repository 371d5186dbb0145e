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


def system_clock_ms() -> int:
    """Return the system's time in ms; the compiled append reads the same clock itself."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return ms of a clock that never goes back, for pauses and ages within this process."""
    return time.monotonic_ns() // 1_000_000


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
