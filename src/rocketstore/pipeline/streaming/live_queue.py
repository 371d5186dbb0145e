"""One queue as a stream follows it: its files say where to look, the log has the records.

Law: an entry says where to look, never what a message is. A queue ends, for a stream, after the
last entry whose record checks out and names that very queue and number; entries ahead of the log
are not there yet. What lies between two offsets is read from the log by the records' own topic,
queue and number, and counted against the entries.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from rocketstore.errors import StoreDamagedError
from rocketstore.events import get_logger
from rocketstore.format.queue_entry import filler_mask, written_mask
from rocketstore.pipeline.queues import queue_files
from rocketstore.pipeline.stores import SegmentState, store_timestamp_ms
from rocketstore.pipeline.streaming.stream_options import Place
from rocketstore.pipeline.streaming.stream_reader import QueueSpan, StreamTask, pieces
from rocketstore.units import ByteRange, QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from rocketstore.format.queue_entry import QueueEntry
    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.streaming.following import Move
    from rocketstore.pipeline.streaming.live_log import LiveLog
    from rocketstore.pipeline.streaming.stream_options import Key, Limits
    from rocketstore.pipeline.streaming.stream_reader import Losses

    Numbers = npt.NDArray[np.int64]

LIMITED_ENTRIES: Final = 2_000_000
"""Most entries of a store that are held to find out which come first in its log: 32 MB."""

_log = get_logger(__name__)


class LiveQueue:
    """One queue of one store; bounds are looked up once."""

    unit = "offset"

    def __init__(self, log: LiveLog, queue: QueueKey) -> None:
        self.log = log
        self.store = log.store
        self.queue = queue
        self.key: Key = (log.store.broker_name, queue.topic, str(queue.queue_id))
        self.files = queue_files(log.store.location, queue)

    def __str__(self) -> str:
        return f"queue {self.queue} of {self.store.location}"

    # --- places ---------------------------------------------------------------------------------

    @cached_property
    def start(self) -> int:
        """First offset there is."""
        return self.files.min_offset(self.log.start)

    @cached_property
    def written_stop(self) -> int:
        """What comes after the last entry, whether its record is there or not."""
        return self.files.written_stop()

    @cached_property
    def end(self) -> Place:
        """What comes after the last record that can be believed."""
        place = self.place(self.written_stop)
        if place.record is not None or place.offset <= self.start:
            return place
        low = self._first_where(lambda entry: entry.physical_offset >= self.log.end.offset)
        # A damaged record before the end is the reader's matter, one at the end is not there.
        while low > self.start and self.place(low).record is None:
            low -= 1
        return self.place(low)

    def _first_where(self, test: Callable[[QueueEntry], bool], high: int | None = None) -> int:
        """Return the first offset from which on a test of entries holds, `high` if none."""
        low, high = self.start, self.written_stop if high is None else high
        while low < high:
            middle = (low + high) // 2
            # What has no record counts with what follows it.
            at, entry = self.files.next_message(middle, high)
            if entry is None or test(entry):
                high = middle
            else:
                low = at + 1
        return low

    def place(self, offset: int) -> Place:
        """Return a place; its evidence is the record before if that is intact and says so."""
        entry = self.files.entry(offset - 1) if offset else None
        if entry is None or entry.is_filler:
            return Place(offset)
        seen = self.log.record(entry.physical_offset)
        stated = [
            (columns.topic(0), int(columns.queue_id[0]), int(columns.queue_offset[0]))
            for columns in [seen.columns]
            if seen.is_record
        ]
        if stated != [(*self.queue, offset - 1)]:
            return Place(offset)
        return Place(offset, entry.physical_offset, seen.crc)

    def problem(self, place: Place) -> str | None:
        """Return what was expected and found where a place does not hold."""
        offset, stop = place.offset, self.written_stop
        if offset < self.start:
            return (
                f"expected it in the queue, found that the queue begins at {self.start}: "
                f"{self.start - offset} messages are gone"
            )
        if place.record is None or place.record < self.log.start:
            return None if offset <= stop else f"expected at most {stop}, the queue's end"
        problem = self.log.record(place.record).problem(place)
        # A queue that ends before the offset may only be late; its entries come again.
        last = min(offset, stop) - 1
        entry = self.files.entry(last)
        if problem is not None or entry is None or entry.is_filler:
            return problem
        at = entry.physical_offset
        if at == place.record if last == offset - 1 else at < place.record:
            return None
        return (
            f"expected number {offset - 1} at physical offset {place.record}, found number {last} "
            f"at {at}: the topic was deleted and made again"
        )

    def resume(self, place: Place) -> int:
        """Return where to go on when a place does not hold."""
        at, end = place.record, self.end.offset
        is_there = at is not None and self.log.record(at).problem(place) is None
        if at is None or not is_there or place.offset < self.start:
            return max(self.start, min(place.offset, end))
        # Made again: what was read is there, and so is all that came after it.
        low = self._first_where(lambda entry: entry.physical_offset > at, end)
        return self.files.next_message(low, end)[0]

    def first_since(self, since_ms: int) -> int | None:
        """Return the first offset that was stored at a time or later."""

        def is_since(entry: QueueEntry) -> bool:
            at, segment = entry.physical_offset, self.log.segment_at(entry.physical_offset)
            if segment is None or segment.state is SegmentState.MISSING:
                return True
            stored_ms = store_timestamp_ms(self.store.location, segment, at)
            # What has no time may be as late as any.
            return stored_ms is None or stored_ms >= since_ms

        found = self._first_where(is_since, self.end.offset)
        return found if found < self.end.offset else None

    # --- batches --------------------------------------------------------------------------------

    def count(self, move: Move, most: int) -> int:
        """Return how many records a move has, `most` if there are more."""
        return min(move.goal.offset - move.begin.offset, most)

    def entries(self, start: int, stop: int) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
        """Yield queue offsets, physical offsets and sizes of a range's entries with a record."""
        for first, entries in self.files.entries(start, stop):
            is_message = written_mask(entries) & ~filler_mask(entries)
            yield (
                first + np.flatnonzero(is_message),
                entries["physical_offset"][is_message].astype(np.int64),
                entries["record_size"][is_message].astype(np.int64),
            )

    @classmethod
    def cut(cls, moves: Sequence[Move], limits: Limits) -> dict[Key, Place]:
        """Return how far the queues of one store go: its limits take what its log has first."""
        most = min(limits.max_rows or LIMITED_ENTRIES, LIMITED_ENTRIES)
        room = max(1, min(most, LIMITED_ENTRIES // len(moves)))
        stops = [one.begin.offset for one in moves]
        parts = []
        frontier = np.iinfo(np.int64).max
        for number, (queue, begin, goal) in enumerate(moves):
            seen_stop = min(goal.offset, begin.offset + room)
            found = list(queue.entries(begin.offset, seen_stop))
            parts += [(np.full(len(one[0]), number), *one) for one in found]
            last = [int(one[1][-1]) for one in found if len(one[1])]
            if not last:
                # A hole as far as was looked: the batch goes through it, and its plan reports it.
                stops[number] = seen_stop
            elif seen_stop < goal.offset:
                # After the last entry that was looked at, this queue may have earlier ones.
                frontier = min(frontier, last[-1])
        numbers, offsets, physical, sizes = map(np.concatenate, zip(*parts, strict=True))
        order = np.argsort(physical, kind="stable")
        order = order[physical[order] <= frontier]
        taken = order[: limits.fitting(sizes[order])]
        for number in np.unique(numbers[taken]).tolist():
            stops[number] = int(offsets[taken[numbers[taken] == number]].max()) + 1
        return {
            queue.key: queue.place(stop)
            for (queue, begin, _), stop in zip(moves, stops, strict=True)
            if stop > begin.offset
        }

    @classmethod
    def tasks(
        cls, moves: Sequence[Move], options: ReadOptions, losses: Losses
    ) -> Iterator[StreamTask]:
        """Yield the byte ranges that hold records of one store's queues, and how many each has."""
        looked = [(queue, queue.look_at(a.offset, b.offset, options)) for queue, a, b in moves]
        found = [(queue, *one) for queue, one in looked if one is not None]
        if not found:
            return
        log, spans = found[0][0].log, tuple(span for _, span, _ in found)
        wanted = ByteRange(min(one.low for one in spans), max(one.high for one in spans) + 1)
        cells = list(pieces(log.store, log.segments, wanted, options))
        if not all(is_whole for _, _, is_whole in found):
            yield from (StreamTask(cell, spans) for cell in cells)
            return
        starts = np.array([cell.segment.base + cell.start for cell in cells], dtype=np.int64)
        stops = np.array([cell.segment.base + cell.stop for cell in cells], dtype=np.int64)
        counts = np.zeros(len(cells) + 1, dtype=np.int64)
        for queue, span, _ in found:
            for _, physical, _ in queue.entries(span.start, span.stop):
                at = np.searchsorted(stops, physical, side="right")
                is_there = np.append(starts, wanted.stop)[at] <= physical
                if not is_there.all():
                    lost = physical[~is_there]
                    losses.report(
                        f"{queue}: expected {len(lost)} records from physical offset {lost[0]} "
                        "on, found no file that holds them",
                        "the batch is without them",
                    )
                counts += np.bincount(at[is_there], minlength=len(counts))
        for cell, count in zip(cells, counts[:-1].tolist(), strict=True):
            if count:
                yield StreamTask(cell, spans, count)

    def look_at(self, start: int, stop: int, options: ReadOptions) -> tuple[QueueSpan, bool] | None:
        """Return where the records of a range lie, and whether its entries say so of each.

        None when not one of its entries has a record. Entries that are missing between others, or
        point backwards, are damage.
        """
        low, high = np.iinfo(np.int64).max, -1
        kept = fillers = 0
        is_rising = True
        for _, entries in self.files.entries(start, stop):
            is_filler = filler_mask(entries)
            physical = entries["physical_offset"][written_mask(entries) & ~is_filler]
            fillers += int(is_filler.sum())
            kept += len(physical)
            if len(physical):
                is_rising &= int(physical[0]) > high and bool((physical[1:] > physical[:-1]).all())
                low, high = min(low, int(physical.min())), max(high, int(physical.max()))
        if fillers:
            # Those who put them there reported the loss; `get` steps over them as well.
            _log.warning(
                "%s: %d offsets between %d and %d are fillers in the place of lost messages",
                self, fillers, start, stop,
            )  # fmt: skip
        kept += fillers
        is_whole = is_rising and kept == stop - start
        if not is_whole:
            what = (
                f"{self}: expected {stop - start} entries from offset {start} on, each after the "
                f"one before in the log, found {kept}{' in disorder' * (not is_rising)}"
            )
            if options.damage == "fail":
                hint = (
                    'to stream what the log has: option("damage", "skip"); to make the queue again '
                    "from the log: rocketstore queue rebuild"
                )
                raise StoreDamagedError(f"damage: {what}", hint=hint)
            _log.warning("damage: %s", what)
        return (QueueSpan(*self.queue, start, stop, low, high), is_whole) if high >= 0 else None
