"""Logs and queues as a stream follows them while others write, cut and delete them.

Law: a stream only stands after a record that is valid by chain and CRC. Bytes after the last such
record, such as a torn one, are left to a later look. No lock is taken, so:

- A break is believed only when a second look with fresh bytes finds it at the same place: the
  writer may be filling a page that was copied before the one after it.
- After a break in the file that is being written, records may be what an earlier, longer log left
  there (decision 0004). They are taken for the log's only when the broken record's length leads to
  them, or when they are not older than the record before the break.
- An entry only says where to look: a queue ends after the last one whose record
  checks out and names that very queue and number.
"""

from __future__ import annotations

import zlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from rocketstore.errors import FormatError, StoreDamagedError
from rocketstore.events import get_logger
from rocketstore.format.queue_entry import FILLER, QueueEntry, equal_mask
from rocketstore.format.record import BLANK_MAGIC, decode_record
from rocketstore.pipeline.files import opened, read_part
from rocketstore.pipeline.log_read import scanned
from rocketstore.pipeline.planning import SplitTask, bytes_per_task, cut, in_time
from rocketstore.pipeline.queues import QueueFiles
from rocketstore.pipeline.stores import list_segments, segment_at, store_timestamp_ms
from rocketstore.pipeline.streaming.stream_options import (
    LOG,
    QUEUES,
    WHOLE_LOG,
    BatchLimits,
    Key,
    Place,
)
from rocketstore.rules.extra_queues import offset_in
from rocketstore.units import MiB, QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.pipeline.log_read import Losses
    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.stores import Segment, StorePlace
    from rocketstore.scan.columns import RecordColumns
    from rocketstore.scan.scanner import ScanBatch

    Numbers: TypeAlias = npt.NDArray[np.int64]

NEAR_BYTES: Final = MiB  # before where a log ended lately: there a look for its end begins
LIMITED_ENTRIES: Final = 2_000_000  # held of a store, to find which are first in its log: 64 MB
LOOK_BYTES: Final = 8 * MiB
"""Without a record are the end of a file that is being written, however long it is: its zeros may
be there already, and to read a gigabyte of them for each batch costs more than the batch."""

_log = get_logger(__name__)


class Move(NamedTuple):
    """The part of a log or a queue in a batch: from `begin` to the place `goal`."""

    feed: Any
    begin: Place
    goal: Place


Moves: TypeAlias = list[Move]


class QueueSpan(NamedTuple):
    """Queue offsets ``[start, stop)`` of a queue, and where its first and last record start.

    A queue that was deleted and made again has records of the same numbers elsewhere in the log.
    """

    topic: str
    queue_id: int
    start: int
    stop: int
    low: int
    high: int


class StreamTask(NamedTuple):
    """A byte range, and the part of it in a batch: all, or the queue offsets in `spans`."""

    split: SplitTask
    spans: tuple[QueueSpan, ...] | None = None
    expected: int | None = None


class LiveLog:
    """The log of one store; bounds are looked up once.

    `begin` is where the next batch begins. Where that is far from the end, the end is found from
    `ended`, where it was lately: a longer log may have ended there that was cut meanwhile, so what
    comes after `sure_stop` is no part of a batch before it was looked for again.
    """

    kind = LOG
    unit = "physical offset"
    queue = WHOLE_LOG

    def __init__(
        self, store: StorePlace, begin: Place | None = None, ended: Place | None = None
    ) -> None:
        self.store = store
        self.key: Key = (store.broker_name,)
        self.segments = list_segments(store)
        self.start = self.segments[0].base if self.segments else 0
        tail = next((one.base for one in self.segments if one.is_last), self.start)
        is_far = begin is not None and begin.offset < tail
        self.sure_stop = tail if is_far and ended is not None else None
        self._near = ended if is_far else begin

    def __str__(self) -> str:
        return self.store.location

    def record(self, offset: int) -> tuple[StoredMessage | None, int, str]:
        """Return the intact record at a physical offset, its CRC-32, and a description of it."""
        segment = segment_at(self.segments, offset)
        if segment is None or segment.is_missing:
            return None, 0, "nothing"
        position, left = offset - segment.base, segment.base + segment.file_size - offset
        with opened(self.store.location, segment.path) as file:
            data = file.read(position, min(128, left))
            total = int.from_bytes(data[:4], "big", signed=True)
            if len(data) < total <= left:
                data = file.read(position, total)
        if not data.strip(b"\0"):
            return None, 0, "zeros" if data else "nothing"
        try:
            found = decode_record(data, 0, base=offset)
        except FormatError as error:
            return None, 0, f"no record ({error.message})"
        crc = zlib.crc32(data[: found.size])
        return found, crc, f"a record with CRC {crc:08x}"

    def cut_before(self, place: Place) -> str | None:
        """Return what was expected and found unless a place's evidence, which it has, is there."""
        assert place.record is not None
        record, crc, what = self.record(place.record)
        if record is not None and crc == place.crc:
            return None
        return (
            f"expected before it, at physical offset {place.record}, a record with CRC "
            f"{place.crc:08x}, found {what}: the log was cut and written again, or damaged"
        )

    def after(self, offset: int) -> Place:
        """Return the place after a record: in the next file if only filler follows it."""
        (record, crc, _), segment = self.record(offset), segment_at(self.segments, offset)
        if record is None or segment is None:
            return Place(offset)
        stop, file_stop = offset + record.size, segment.base + segment.file_size
        filler = (file_stop - stop).to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big")
        found = read_part(self.store.location, segment.path, stop - segment.base, len(filler))
        return Place(file_stop if found == filler else stop, offset, crc)

    @cached_property
    def end(self) -> Place:
        """What comes after the last record that can be believed."""
        position, last, near = self.start, None, self._near
        for segment in (one for one in self.segments if one.is_last):
            start = segment.base
            if near and near.record and near.record > start and self.problem(near) is None:
                start = max(start, near.record - NEAR_BYTES)
            found, position = self._checked_end(segment, start)
            if found is None:
                found, position = self._checked_end(segment, segment.base)
            last = last if found is None else found
            if position < segment.base + segment.file_size:
                break
        place = Place(position) if last is None else self.after(last)
        return place if place.offset == position else Place(position)

    def _checked_end(self, segment: Segment, position: int) -> tuple[int | None, int]:
        """Return the last record of a file being written, and where the next one begins."""
        last = last_ms = None
        seen_breaks: set[int] = set()
        stop, is_again = segment.base + segment.size, True
        while is_again and position < stop:
            begin, is_again, look_stop = position, False, min(position + LOOK_BYTES, stop)
            for batch in self._batches(segment, position, look_stop):
                columns = batch.columns
                if len(columns) and batch.run_starts:
                    is_again = position not in seen_breaks
                    seen_breaks.add(position)
                    head = read_part(self.store.location, segment.path, position - segment.base, 4)
                    leads_on = position + int.from_bytes(head, "big") == columns.physical_offset[0]
                    is_newer = last_ms is None or columns.store_timestamp[0] >= last_ms
                    if is_again or not (leads_on or is_newer):
                        break
                if len(columns):
                    last = int(columns.physical_offset[-1])
                    last_ms = int(columns.store_timestamp[-1])
                    position = last + int(columns.size[-1])
                if [one.physical_offset for one in batch.blanks] == [position]:
                    position = segment.base + segment.file_size
            is_again = is_again or (begin < position and look_stop < stop)
        return last, position

    def place(self, offset: int) -> Place:
        """Return a place, for which there is no evidence."""
        return Place(offset)

    def problem(self, place: Place) -> str | None:
        """Return what was expected and found where a place does not hold."""
        if place.offset < self.start:
            return (
                f"expected it in the log, found that the log begins at {self.start}: "
                f"{self.start - place.offset} bytes were deleted"
            )
        if place.record is not None and place.record >= self.start:
            return self.cut_before(place)
        record, _, what = self.record(place.offset)
        if record is not None or place.offset in (self.start, self.end.offset):
            return None
        return f"expected a record's start or the log's end, found {what}"

    def resume(self, place: Place) -> int:
        """Return the first record at a place that does not hold or after it, else the end."""
        if place.offset <= self.start:
            return self.start
        return next(self.records(place.offset, self.end.offset), self.end.offset)

    def first_since(self, since_ms: int) -> int | None:
        """Return the first record that was stored at a time or later."""
        files = in_time(self.store, self.segments, since_ms, None)
        begin = files[0].base if files else self.start
        return next(self.records(begin, self.end.offset, since_ms), None)

    def over(self, start: int, stop: int) -> list[Segment]:
        """Return the files, there or missing, that have some of a range."""
        return [
            one for one in self.segments if max(start, one.base) < min(stop, one.base + one.size)
        ]

    def _batches(self, segment: Segment, start: int, stop: int) -> Iterator[ScanBatch]:
        """Yield what starts in a stretch of a file, given by physical offsets."""
        end = min(segment.size, stop - segment.base)
        split = SplitTask(self.store, segment, start - segment.base, end, data_stop=end)
        with opened(self.store.location, segment.path) as file:
            # Looks begin at a record that was checked.
            yield from scanned(split, file, lookback_bytes=4096)

    def scan(self, start: int, stop: int) -> Iterator[RecordColumns]:
        """Yield the intact records that start in a stretch of the log."""
        for one in self.over(start, stop):
            if not one.is_missing:
                for batch in self._batches(one, max(start, one.base), stop):
                    yield batch.columns

    def records(self, start: int, stop: int, since_ms: int = 0) -> Iterator[int]:
        """Yield where records of a stretch of the log start that were stored at a time or later."""
        for columns in self.scan(start, stop):
            yield from columns.physical_offset[columns.store_timestamp >= since_ms].tolist()

    @classmethod
    def cut(cls, moves: Moves, limits: BatchLimits) -> dict[Key, Place]:
        """Return the place after the last record of a store's log that fits within limits."""
        ((log, begin, stop),) = moves
        rows = size_bytes = last = 0
        for columns in log.scan(begin.offset, stop.offset):
            count = limits.fitting(columns.size, rows, size_bytes)
            if count:
                rows += count
                size_bytes += int(columns.size[:count].sum())
                last = int(columns.physical_offset[count - 1])
            if count < len(columns):
                stop = log.after(last)
                break
        if log.sure_stop is not None and log.sure_stop < stop.offset:
            stop = min(stop, LiveLog(log.store).end, key=lambda place: place.offset)
        return {log.key: stop}

    @classmethod
    def tasks(cls, moves: Moves, options: ReadOptions, losses: Losses) -> Iterator[StreamTask]:
        """Yield the byte ranges of one store's log."""
        ((log, begin, goal),) = moves
        for one in log.over(begin.offset, goal.offset):
            if one.is_missing:
                what = f"{one.path} is missing: expected {one.size} bytes of the log from physical "
                what += f"offset {one.base} on, found none"
                losses.report(what, f"the stream goes on at {one.base + one.size}")
        yield from map(StreamTask, log.splits(begin.offset, goal.offset, options))

    def splits(self, start: int, stop: int, options: ReadOptions) -> Iterator[SplitTask]:
        """Yield splits that cover what is there of a range of the log."""
        step = bytes_per_task(stop - start, options)
        for one in self.over(start, stop):
            if not one.is_missing:
                first, last = max(0, start - one.base), min(one.size, stop - one.base)
                data_stop = min(one.size, last + LOOK_BYTES)
                yield from cut(SplitTask(self.store, one, first, last, data_stop=data_stop), step)


class LiveQueue:
    """One queue of one store, read from the log by what records say; bounds are looked up once."""

    kind = QUEUES
    unit = "offset"

    def __init__(self, log: LiveLog, queue: QueueKey) -> None:
        self.log = log
        self.store = log.store
        self.queue = queue
        self.key: Key = (log.store.broker_name, queue.topic, str(queue.queue_id))
        self.files = QueueFiles(log.store.location, queue)

    def __str__(self) -> str:
        return f"queue {self.queue} of {self.store.location}"

    @cached_property
    def start(self) -> int:
        """First offset there is."""
        return self.files.first_left(self.log.start)

    @cached_property
    def end(self) -> Place:
        """What comes after the last record that can be believed."""
        place = self.place(self.files.max_offset)
        if place.record is not None or place.offset <= self.start:
            return place
        low = self._first_where(lambda entry: entry.physical_offset >= self.log.end.offset)
        # A damaged record before the end is the reader's matter, one at the end is not there.
        while low > self.start and self.place(low).record is None:
            low -= 1
        return self.place(low)

    def _first_where(self, test: Callable[[QueueEntry], bool]) -> int:
        return self.files.first_where(self.start, self.files.max_offset, test)

    def place(self, offset: int) -> Place:
        """Return a place; its evidence is the record before if that is intact and says so."""
        entry = self.files.entry(offset - 1) if offset else None
        if entry is None or not entry.is_message:
            return Place(offset)
        found, crc, _ = self.log.record(entry.physical_offset)
        is_its = found is not None and offset_in(found, self.queue) == offset - 1
        return Place(offset, entry.physical_offset, crc) if is_its else Place(offset)

    def problem(self, place: Place) -> str | None:
        """Return what was expected and found where a place does not hold."""
        offset, stop = place.offset, self.files.max_offset
        if offset < self.start:
            return (
                f"expected it in the queue, found that the queue begins at {self.start}: "
                f"{self.start - offset} messages are gone"
            )
        if place.record is None or place.record < self.log.start:
            return None if offset <= stop else f"expected at most {stop}, the queue's end"
        problem = self.log.cut_before(place)
        last = min(offset, stop) - 1  # a queue that ends before may be late: its entries come again
        entry = self.files.entry(last)
        if problem is not None or entry is None or not entry.is_message:
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
        at, low = place.record, place.offset
        if at is not None and low >= self.start and self.log.cut_before(place) is None:
            # Made again: what was read is there, and so is all that came after it.
            low = self._first_where(lambda entry: entry.physical_offset > at)
            low, _ = self.files.next_message(low, self.end.offset)
        return max(self.start, min(low, self.end.offset))

    def first_since(self, since_ms: int) -> int | None:
        """Return the first offset that was stored at a time or later."""

        def is_since(entry: QueueEntry) -> bool:
            segment = segment_at(self.log.segments, entry.physical_offset)
            stored_ms = store_timestamp_ms(self.store.location, segment, entry.physical_offset)
            return stored_ms is None or stored_ms >= since_ms  # as late as any if it has none

        found = self._first_where(is_since)
        return found if found < self.end.offset else None

    def records(self, start: int, stop: int) -> range:
        """Return the offsets of a stretch of the queue, each of which has a record."""
        return range(start, stop)

    @classmethod
    def cut(cls, moves: Moves, limits: BatchLimits) -> dict[Key, Place]:
        """Return how far the queues of one store go: its limits take what its log has first."""
        room = max(1, min(limits.max_rows or LIMITED_ENTRIES, LIMITED_ENTRIES // len(moves)))
        stops = [one.begin.offset for one in moves]
        parts: list[Numbers] = []
        frontier = np.iinfo(np.int64).max
        for number, (queue, begin, goal) in enumerate(moves):
            seen_stop = min(goal.offset, begin.offset + room)
            found = np.empty((4, 0), dtype=np.int64)
            for offsets, entries in queue.files.messages(begin.offset, seen_stop):
                columns = [offsets, entries["physical_offset"], entries["record_size"]]
                found = np.hstack([found, [*columns, np.full(len(offsets), number)]])
            parts.append(found)
            if not found.size:
                # A hole as far as was looked: the batch goes through it, and its plan reports it.
                stops[number] = seen_stop
            elif seen_stop < goal.offset:
                # After the last entry that was looked at, this queue may have earlier ones.
                frontier = min(frontier, int(found[1, -1]))
        entries = np.concatenate(parts, axis=1)
        entries = entries[:, entries[1] <= frontier]
        entries = entries[:, np.argsort(entries[1], kind="stable")]
        offsets, _, _, numbers = entries[:, : limits.fitting(entries[2])]
        for number in np.unique(numbers).tolist():
            stops[number] = int(offsets[numbers == number].max()) + 1
        return {
            queue.key: queue.place(stop)
            for (queue, begin, _), stop in zip(moves, stops, strict=True)
            if stop > begin.offset
        }

    @classmethod
    def tasks(cls, moves: Moves, options: ReadOptions, losses: Losses) -> Iterator[StreamTask]:
        """Yield the byte ranges that hold records of one store's queues, and how many each has."""
        log, found = moves[0].feed.log, [(one.feed, *one.feed.span(one, options)) for one in moves]
        spans = tuple(span for _, span, _ in found if span.high >= 0)
        if not spans:
            return
        low, stop = min(one.low for one in spans), max(one.high for one in spans) + 1
        splits = list(log.splits(low, stop, options))
        is_whole = all(is_whole for *_, is_whole in found)
        edges = np.array([one.segment.base + at for one in splits for at in (one.start, one.stop)])
        counts = np.zeros(len(edges) + 1, dtype=np.int64)
        for feed, span, _ in found:
            for _, entries in feed.files.messages(span.start, span.stop):
                at = np.searchsorted(edges, entries["physical_offset"], side="right")
                counts += np.bincount(at, minlength=len(counts))
        # Between the bytes of one task and those of the next there is no file.
        if is_whole and (lost := int(counts[::2].sum())):
            what = f"{log}: expected {lost} records between physical offsets {low} and {stop}"
            what += " in files that are not there"
            losses.report(what, "the batch is without them")
        for split, count in zip(splits, counts[1::2].tolist(), strict=True):
            if count or not is_whole:
                yield StreamTask(split, spans, count if is_whole else None)

    def span(self, move: Move, options: ReadOptions) -> tuple[QueueSpan, bool]:
        """Return where the records of a move lie, and whether its entries say so of each.

        Entries that are missing between others, or point backwards, are damage.
        """
        start, stop = move.begin.offset, move.goal.offset
        low, high, kept, is_rising = np.iinfo(np.int64).max, -1, 0, True
        for _, entries in self.files.messages(start, stop):
            physical = entries["physical_offset"].astype(np.int64)
            kept += len(physical)
            if len(physical):
                is_rising &= bool((np.diff(physical, prepend=high) > 0).all())
                low, high = min(low, int(physical.min())), max(high, int(physical.max()))
        others = self.files.chunks(start, stop) if kept < stop - start else ()
        if fillers := sum(int(equal_mask(one, FILLER).sum()) for _, one in others):
            # Those who put them there reported the loss; `get` steps over them as well.
            _log.warning("stream.fillers", queue=self, start=start, stop=stop, lost=fillers)
            kept += fillers
        is_whole = is_rising and kept == stop - start
        if not is_whole:
            what = (
                f"damage: {self}: expected {stop - start} entries from offset {start} on, each "
                f"after the one before in the log, found {kept}{' in disorder' * (not is_rising)}"
            )
            if options.damage == "fail":
                hint = 'to stream what the log has: option("damage", "skip"); to make the queue '
                hint += "again from the log: rocketstore queue rebuild"
                raise StoreDamagedError(what, hint=hint)
            _log.warning("stream.damage", what=what)
        return QueueSpan(*self.queue, start, stop, low, high), is_whole
