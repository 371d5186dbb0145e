"""Entries of queues as a stream's planner reads them: in chunks, checked, in the log's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocketstore.errors import StoreDamagedError
from rocketstore.events import get_logger
from rocketstore.format.queue_entry import filler_mask, written_mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from rocketstore.pipeline.queues import QueueFiles
    from rocketstore.pipeline.streaming.limits import Limits
    from rocketstore.pipeline.streaming.offsets import Key

    Numbers = npt.NDArray[np.int64]

_log = get_logger(__name__)

LIMITED_ENTRIES: Final = 2_000_000
"""Most entries that are held to find out which come first in the log: 32 MB."""


class FoundEntries(NamedTuple):
    """The entries ``[start, stop)`` of a queue.

    Attributes
    ----------
    low, high
        Physical offsets of the first and of the last record.
    is_whole
        Every entry is written, and each lies behind the one before; fillers, which a recovery or a
        rebuild put in the place of lost records, apart.
    """

    files: QueueFiles
    start: int
    stop: int
    low: int
    high: int
    is_whole: bool

    def chunks(self) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield physical offsets and sizes of written entries."""
        for _, physical, sizes in entry_chunks(self.files, self.start, self.stop):
            yield physical, sizes


def entry_chunks(
    files: QueueFiles, start: int, stop: int
) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """Yield queue offsets, physical offsets and sizes of a range's entries that have a record."""
    for first, entries in files.entries(start, stop):
        is_message = written_mask(entries) & ~filler_mask(entries)
        yield (
            first + np.flatnonzero(is_message),
            entries["physical_offset"][is_message].astype(np.int64),
            entries["record_size"][is_message].astype(np.int64),
        )


def read_entries(files: QueueFiles, start: int, stop: int, damage: str) -> FoundEntries | None:
    """Return the entries of a range; None when not one of them is written.

    Raises
    ------
    StoreDamagedError
        Entries are missing between written ones, or point backwards, and `damage` is ``fail``.
    """
    low = high = -1
    count = 0
    is_rising = True
    for numbers, physical, _ in entry_chunks(files, start, stop):
        if not len(physical):
            continue
        is_rising = is_rising and bool((np.diff(physical) > 0).all()) and int(physical[0]) > high
        low = int(physical.min()) if low < 0 else min(low, int(physical.min()))
        high = max(high, int(physical.max()))
        count += len(numbers)
    fillers = 0 if count == stop - start else _count_fillers(files, start, stop)
    is_whole = is_rising and count + fillers == stop - start
    if fillers:
        # Whoever put them there reported the loss; `get` steps over them as well.
        _log.warning(
            "queue %s: %d offsets between %d and %d are fillers in the place of lost messages",
            files.key, fillers, start, stop,
        )  # fmt: skip
    if not is_whole:
        order = "" if is_rising else " in disorder"
        what = (
            f"queue {files.key}: expected {stop - start} entries from offset {start} on, each "
            f"behind the one before in the log, found {count + fillers}{order}"
        )
        if damage == "fail":
            raise StoreDamagedError(
                f"damage: {what}",
                hint='to stream what the log has: option("damage", "skip"); to make the queue '
                "anew from the log: rocketstore queue rebuild",
            )
        _log.warning("damage: %s", what)
    return FoundEntries(files, start, stop, low, high, is_whole) if count else None


def _count_fillers(files: QueueFiles, start: int, stop: int) -> int:
    return sum(int(filler_mask(one).sum()) for _, one in files.entries(start, stop))


class _Candidates(NamedTuple):
    """Entries of one store that a batch may take, in the order of its log.

    Attributes
    ----------
    numbers
        Which of all queues each belongs to.
    """

    numbers: Numbers
    offsets: Numbers
    sizes: Numbers


def take_in_log_order(
    ranges: Mapping[Key, tuple[QueueFiles, int, int]], limits: Limits, turn: int = 0
) -> dict[Key, int]:
    """Return how far each queue may go so that all together stay within the limits.

    Of each store the messages that were stored first are taken, so no queue waits for another.
    Physical offsets of two stores say nothing about each other: stores take turns, row by row.

    Parameters
    ----------
    ranges
        Of each queue its files, the offset it stands at, and the one it may go to.
    limits
        Not unlimited.
    turn
        Says whose turn is first; one more for each batch.
    """
    if not ranges:
        return {}
    most = LIMITED_ENTRIES if limits.max_rows is None else min(limits.max_rows, LIMITED_ENTRIES)
    room = max(1, min(most, LIMITED_ENTRIES // len(ranges)))
    keys = list(ranges)
    stops = {key: start for key, (_, start, _) in ranges.items()}
    brokers = sorted({key[0] for key in keys})
    first = turn % len(brokers)
    found = [
        _candidates(ranges, [at for at, key in enumerate(keys) if key[0] == broker], room, stops)
        for broker in (*brokers[first:], *brokers[:first])
    ]
    numbers, offsets, sizes = (np.concatenate(one) for one in zip(*found, strict=True))
    order = np.argsort(
        np.concatenate([np.arange(len(one.numbers)) for one in found]), kind="stable"
    )
    count = len(order) if limits.max_rows is None else min(len(order), limits.max_rows)
    if limits.max_bytes is not None:
        totals = np.cumsum(sizes[order])
        count = min(count, int(totals.searchsorted(limits.max_bytes, side="right")))
    taken = order[: max(count, 1)]
    for number, key in enumerate(keys):
        own = offsets[taken[numbers[taken] == number]]
        if len(own):
            stops[key] = int(own.max()) + 1
    return stops


def _candidates(
    ranges: Mapping[Key, tuple[QueueFiles, int, int]],
    own: Sequence[int],
    room: int,
    stops: dict[Key, int],
) -> _Candidates:
    """Return the first entries of one store's queues; move `stops` of queues that have a hole."""
    keys = list(ranges)
    nothing = np.empty(0, dtype=np.int64)
    parts: list[tuple[Numbers, Numbers, Numbers, Numbers]] = [(nothing,) * 4]
    frontier = np.iinfo(np.int64).max
    for number in own:
        files, start, stop = ranges[keys[number]]
        seen_stop = min(stop, start + room)
        last = -1
        for offsets, physical, sizes in entry_chunks(files, start, seen_stop):
            parts.append((np.full(len(offsets), number), offsets, physical, sizes))
            last = int(physical[-1]) if len(physical) else last
        if last < 0:
            # A hole as far as was looked: the batch goes through it, and its plan reports it.
            stops[keys[number]] = seen_stop
        elif seen_stop < stop:
            # Behind the last entry that was looked at, this queue may have earlier ones.
            frontier = min(frontier, last)
    numbers, offsets, physical, sizes = (np.concatenate(one) for one in zip(*parts, strict=True))
    order = np.argsort(physical, kind="stable")
    order = order[physical[order] <= frontier]
    return _Candidates(numbers[order], offsets[order], sizes[order])
