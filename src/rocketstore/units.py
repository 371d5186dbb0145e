"""Units, and pairs of numbers that belong together.

Two offsets of this store are easily confused: a *physical offset* counts bytes in the CommitLog, a
*queue offset* counts entries of one ConsumeQueue. Names say which one is meant.
"""

import contextlib
import resource
import time
from typing import Any, Final, NamedTuple, NoReturn

from rocketstore.events import get_logger

_log: Final = get_logger(__name__)

KiB: Final = 1024
MiB: Final = 1024 * KiB
GiB: Final = 1024 * MiB

HOUR_MS: Final = 3_600_000

OS_PAGE_SIZE_BYTES: Final = 4096
"""Page size in every flush computation of RocketMQ (MappedFile.OS_PAGE_SIZE)."""

_MANY_DESCRIPTORS: Final = 1 << 20
"""Stands for no limit."""


def system_clock_ms() -> int:
    """Return the system's time in ms; the compiled append reads the same clock itself."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return ms of a clock that never goes back, for pauses and ages within this process."""
    return time.monotonic_ns() // 1_000_000


def most_descriptors() -> int:
    """Return how many files and sockets this process may have open at present."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MANY_DESCRIPTORS if limit == resource.RLIM_INFINITY else limit


def raise_descriptors(wanted: int = _MANY_DESCRIPTORS) -> int:
    """Ask the system for so many files and sockets, and return how many it grants.

    A Java VM takes all that it may have as it starts.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = _MANY_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MANY_DESCRIPTORS)
    wanted = min(wanted, most)
    before = most_descriptors()
    if wanted > before:
        with contextlib.suppress(OSError, ValueError):  # it may refuse what its own limit grants
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            _log.info("descriptors.raised", soft_limit=wanted, before=before)
    return most_descriptors()


def leaves_descriptors(count: int) -> bool:
    """Whether `count` are no more than half of what this process may have, raised if need be."""
    is_short = count > most_descriptors() // 2
    return not is_short or count <= raise_descriptors(4 * count) // 2


def counted(count: int, noun: str, many: str | None = None) -> str:
    """Return a count with its noun: "1 entry", "2,000 entries"."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


class OfOneProcess:
    """Base of an open store and its parts, of which no other process can have a copy."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} belongs to this process: give the other one the store's path")


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
