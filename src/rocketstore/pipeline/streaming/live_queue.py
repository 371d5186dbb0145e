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
from rocketstore.pipeline.queue_range import is_chosen
from rocketstore.pipeline.queues import list_queues, queue_files
from rocketstore.pipeline.stores import SegmentState, store_timestamp_ms
from rocketstore.pipeline.streaming.following import named_stores
from rocketstore.pipeline.streaming.live_log import LiveLog
from rocketstore.pipeline.streaming.stream_offsets import QUEUES, Key, Place
from rocketstore.pipeline.streaming.stream_read import QueueSpan, StreamTask, pieces
from rocketstore.units import ByteRange, QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from rocketstore.format.queue_entry import QueueEntry
    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.streaming.following import Losses, Move
    from rocketstore.pipeline.streaming.live_log import Seen
    from rocketstore.pipeline.streaming.stream_options import Limits, StreamOptions

    Numbers = npt.NDArray[np.int64]

LIGHT_QUEUE_PREFIX: Final = "%LMQ%"
"""Such queues point at records of other topics, which are rows under their own topic only."""

LIMITED_ENTRIES: Final = 2_000_000
"""Most entries of a store that are held to find out which come first in its log: 32 MB."""

_log = get_logger(__name__)


class LiveQueue:
    """One queue of one store; bounds are looked up once."""

    kind = QUEUES
    unit = "offset"

    def __init__(self, log: LiveLog, queue: QueueKey) -> None:
        self.log = log
        self.store = log.store
        self.queue = queue
        self.key = (log.store.broker_name, queue.topic, str(queue.queue_id))
        self.files = queue_files(log.store.location, queue)

    @classmethod
    def found(cls, options: StreamOptions, *_: Mapping[Key, Place]) -> dict[Key, LiveQueue]:
        """Return the queues there are; where they ended lately is of no use."""
        queues = [
            cls(log, key)
            for log in map(LiveLog, named_stores(options).values())
            for key in list_queues(log.store.location)
            if not key.topic.startswith(LIGHT_QUEUE_PREFIX)
            and is_chosen(options.read, log.store, key)
        ]
        return {queue.key: queue for queue in queues}

    @classmethod
    def is_kept(cls, options: StreamOptions, key: Key, place: Place) -> bool:
        """Whether its records are there: then its files are only being made again."""
        store = named_stores(options).get(key[0])
        if store is None or place.evidence is None:
            return place.offset == 0
        return LiveLog(store).record(place.evidence.record).problem(place.evidence) is None

    def __str__(self) -> str:
        return f"queue {self.queue} of {self.store.location}"

    # --- places ---------------------------------------------------------------------------------

    def record(self, queue_offset: int) -> Seen | None:
        """Return the record of an entry; None unless it is intact and says so itself."""
        entry = self.files.entry(queue_offset)
        if entry is None or entry.is_filler:
            return None
        seen = self.log.record(entry.physical_offset)
        if not seen.is_record:
            return None
        queue = QueueKey(seen.columns.topic(0), int(seen.columns.queue_id[0]))
        is_own = queue == self.queue and int(seen.columns.queue_offset[0]) == queue_offset
        return seen if is_own else None

    @cached_property
    def start(self) -> int:
        """First offset there is."""
        return self.files.min_offset(self.log.start)

    @cached_property
    def end(self) -> Place:
        """What comes after the last record that can be believed."""
        low, high = self.start, self.files.written_stop()
        place = self.place(high)
        if low >= high or place.evidence is not None:
            return place
        low = self._first_where(low, high, self._is_beyond_log)
        # A damaged record before the end is the reader's matter, one at the end is not there.
        while low > self.start and self.record(low - 1) is None:
            low -= 1
        return self.place(low)

    def _first_where(self, low: int, high: int, test: Callable[[QueueEntry], bool]) -> int:
        """Return the first offset from which on a test of entries holds, `high` if none."""
        while low < high:
            middle = (low + high) // 2
            # What has no record counts with what follows it.
            at, entry = self.files.next_message(middle, high)
            if entry is None or test(entry):
                high = middle
            else:
                low = at + 1
        return low

    def _is_beyond_log(self, entry: QueueEntry) -> bool:
        """Whether nothing was ever written where an entry points."""
        segment = self.log.segment_at(entry.physical_offset)
        if segment is None:
            return entry.physical_offset >= self.log.start
        head = self.log.read(entry.physical_offset, 8)
        return segment.state is not SegmentState.MISSING and not head.strip(b"\0")

    def place(self, offset: int) -> Place:
        """Return a place with what evidence there is for it."""
        seen = self.record(offset - 1) if offset > 0 else None
        return Place(offset, None if seen is None else seen.evidence)

    def problem(self, place: Place) -> str | None:
        """Return what was expected and found where a place does not hold."""
        offset, evidence = place.offset, place.evidence
        if offset < self.start:
            return (
                f"expected it in the queue, found that the queue begins at {self.start}: "
                f"{self.start - offset} messages are gone"
            )
        stop = self.files.written_stop()
        if evidence is None or evidence.record < self.log.start:
            return None if offset <= stop else f"expected at most {stop}, the queue's end"
        problem = self.log.record(evidence.record).problem(evidence)
        # A queue that ends before the offset may only be late; its entries come again.
        last = min(offset, stop) - 1
        entry = self.files.entry(last)
        if problem is not None or entry is None or entry.is_filler:
            return problem
        at, expected = entry.physical_offset, evidence.record
        if at == expected if last == offset - 1 else at < expected:
            return None
        return (
            f"expected number {offset - 1} at physical offset {expected}, found number {last} at "
            f"{at}: the topic was deleted and made again"
        )

    def resume(self, place: Place) -> int:
        """Return where to go on when a place does not hold."""
        start, end, evidence = self.start, self.end.offset, place.evidence
        if evidence is not None and place.offset >= start:
            at = evidence.record
            if self.log.record(at).problem(evidence) is None:
                # Made again: what was read is there, and so is all that came after it.
                low = self._first_where(start, end, lambda entry: entry.physical_offset > at)
                return self.files.next_message(low, end)[0]
        return max(start, min(place.offset, end))

    def first_since(self, since_ms: int) -> int | None:
        """Return the first offset that was stored at a time or later."""

        def is_since(entry: QueueEntry) -> bool:
            at, segment = entry.physical_offset, self.log.segment_at(entry.physical_offset)
            if segment is None or segment.state is SegmentState.MISSING:
                return True
            stored_ms = store_timestamp_ms(self.store.location, segment, at)
            # What has no time may be as late as any.
            return stored_ms is None or stored_ms >= since_ms

        found = self._first_where(self.start, self.end.offset, is_since)
        return found if found < self.end.offset else None

    # --- batches --------------------------------------------------------------------------------

    def entries(self, start: int, stop: int) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
        """Yield queue offsets, physical offsets and sizes of a range's entries with a record."""
        for first, entries in self.files.entries(start, stop):
            is_message = written_mask(entries) & ~filler_mask(entries)
            yield (
                first + np.flatnonzero(is_message),
                entries["physical_offset"][is_message].astype(np.int64),
                entries["record_size"][is_message].astype(np.int64),
            )

    def count(self, move: Move, most: int) -> int:
        """Return how many records a move has, `most` if there are more."""
        return min(move.goal.offset - move.begin.offset, most)

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
        bases = np.array([cell.segment.base for cell in cells], dtype=np.int64)
        starts = bases + np.array([cell.start for cell in cells], dtype=np.int64)
        stops = bases + np.array([cell.stop for cell in cells], dtype=np.int64)
        counts, lows, highs = np.zeros_like(starts), stops.copy(), starts.copy()
        for queue, span, _ in found:
            for _, physical, sizes in queue.entries(span.start, span.stop):
                at = np.searchsorted(starts, physical, side="right") - 1
                is_there = (at >= 0) & (physical < np.append(stops, 0)[at])
                if not is_there.all():
                    lost = physical[~is_there]
                    losses.report(
                        f"{queue}: expected {len(lost)} records from physical offset {lost[0]} "
                        "on, found no file that holds them",
                        "the batch is without them",
                    )
                at = at[is_there]
                np.add.at(counts, at, 1)
                np.minimum.at(lows, at, physical[is_there])
                np.maximum.at(highs, at, (physical + sizes)[is_there])
        for number in np.flatnonzero(counts).tolist():
            start, stop = int(lows[number] - bases[number]), int(highs[number] - bases[number])
            cell = cells[number]._replace(start=start, stop=min(stop, cells[number].stop))
            yield StreamTask(cell, spans, int(counts[number]))

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
        if not is_rising or kept < stop - start:
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
        is_whole = is_rising and kept == stop - start
        return (QueueSpan(*self.queue, start, stop, low, high), is_whole) if high >= 0 else None
