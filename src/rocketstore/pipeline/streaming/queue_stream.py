"""A stream of chosen queues: queue offsets through the ConsumeQueue, records from the CommitLog.

Law: an entry says where to look, never what a message is. A queue ends, for a stream, behind the
last entry whose record checks out and names that very queue and number; entries ahead of the log
are not there yet. What lies between two offsets is read from the log by the records' own topic,
queue and number, and counted against the entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.offsets import ANY_BROKER, EARLIEST, LATEST, QueuePlace
from rocketstore.pipeline.queue_range import is_chosen
from rocketstore.pipeline.queues import list_queues, queue_files
from rocketstore.pipeline.stores import SegmentState
from rocketstore.pipeline.streaming.entries import (
    FoundEntries,
    entry_chunks,
    read_entries,
    take_in_log_order,
)
from rocketstore.pipeline.streaming.log_stream import Log, check_named, open_logs
from rocketstore.pipeline.streaming.loss import Losses, once_more_when_a_file_went
from rocketstore.pipeline.streaming.offsets import QUEUES, Evidence, Key, Place, StreamOffset
from rocketstore.pipeline.streaming.records import evidence_of, record_at, segment_at
from rocketstore.pipeline.streaming.tasks import (
    QueueSpan,
    StreamTask,
    cut,
    grouped,
    step_of,
)
from rocketstore.units import ByteRange, QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from rocketstore.format.queue_entry import QueueEntry
    from rocketstore.pipeline.queues import QueueFiles
    from rocketstore.pipeline.streaming.limits import Limits
    from rocketstore.pipeline.streaming.options import StreamOptions
    from rocketstore.pipeline.streaming.records import Seen

LIGHT_QUEUE_PREFIX: Final = "%LMQ%"
"""Light queues point at records of other topics; those are rows under their own topic only."""

_HEAD_BYTES: Final = 8
"""Length and magic number of a record; zeros where none was written."""


@dataclass
class Queue:
    """One queue of one store as it is now; its bounds are looked up once."""

    log: Log
    key: QueueKey
    files: QueueFiles

    @property
    def place_key(self) -> Key:
        """What a stream's offset calls it."""
        return (self.log.store.broker_name, self.key.topic, str(self.key.queue_id))

    @cached_property
    def start(self) -> int:
        """Queue offset of the first message that the log still has."""
        return self.files.min_offset(self.log.start)

    def record(self, queue_offset: int) -> Seen | None:
        """Return the record of an entry; None unless it is intact and says so itself."""
        entry = self.files.entry(queue_offset)
        if entry is None or entry.is_filler:
            return None
        seen = record_at(self.log.store, self.log.segments, entry.physical_offset)
        return seen if self.is_record(seen, queue_offset) else None

    def is_record(self, seen: Seen, queue_offset: int) -> bool:
        """Whether a record is the one of this queue with that number."""
        return (
            seen.is_record
            and int(seen.columns.queue_offset[0]) == queue_offset
            and int(seen.columns.queue_id[0]) == self.key.queue_id
            and seen.columns.topic(0) == self.key.topic
        )

    @cached_property
    def end(self) -> int:
        """Return the queue offset behind the last entry whose record checks out."""
        low, high = self.start, self.files.written_stop()
        if low >= high or self.record(high - 1) is not None:
            return high
        while low < high:
            middle = (low + high) // 2
            at, entry = self.files.next_message(middle, high)
            if entry is None or self._is_beyond_log(entry):
                high = middle
            else:
                low = at + 1
        # A damaged record in front of the end is the reader's matter, one at the end is not there.
        while low > self.start and self.record(low - 1) is None:
            low -= 1
        return low

    def _is_beyond_log(self, entry: QueueEntry) -> bool:
        """Whether nothing was ever written where an entry points."""
        segment = segment_at(self.log.segments, entry.physical_offset)
        if segment is None:
            return entry.physical_offset >= self.log.start
        if segment.state is SegmentState.MISSING:
            return False
        files, _ = files_at(self.log.store.location)
        with opened(files, segment.path) as file:
            return not file.read(entry.physical_offset - segment.base, _HEAD_BYTES).strip(b"\0")

    def first_behind(self, physical_offset: int) -> int:
        """Return the first queue offset whose record starts behind a physical offset."""
        low, high = self.start, self.end
        while low < high:
            middle = (low + high) // 2
            at, entry = self.files.next_message(middle, high)
            if entry is not None and entry.physical_offset <= physical_offset:
                low = at + 1
            else:
                high = middle
        return self.files.next_message(low, self.end)[0]

    def next_record(self, start: int, stop: int) -> tuple[int, Seen | None]:
        """Return the first offset in [start, stop) with an intact record; `stop` and None else."""
        for numbers, _, _ in entry_chunks(self.files, start, stop):
            for number in numbers.tolist():
                seen = self.record(number)
                if seen is not None:
                    return number, seen
        return stop, None

    def place(self, queue_offset: int) -> Place:
        """Return a place with the evidence of the record in front of it."""
        seen = self.record(queue_offset - 1) if queue_offset > 0 else None
        return Place(queue_offset, None if seen is None else evidence_of(seen))

    def __str__(self) -> str:
        return f"queue {self.key} of {self.log.store.location}"


class QueueStream:
    """Offsets and tasks of a stream with a choice of topics or queues."""

    kind = QUEUES

    def __init__(self, options: StreamOptions) -> None:
        self.options = options
        self.losses = Losses(options.read)
        self.turn = 0

    def _queues(self) -> dict[Key, Queue]:
        found = {}
        for log in open_logs(self.options).values():
            for key in list_queues(log.store.location):
                if key.topic.startswith(LIGHT_QUEUE_PREFIX):
                    continue
                if is_chosen(self.options.read, log.store, key):
                    queue = Queue(log, key, queue_files(log.store.location, key))
                    found[queue.place_key] = queue
        return found

    # --- where a query begins -------------------------------------------------------------------

    @once_more_when_a_file_went
    def initial(self) -> StreamOffset:
        """Return where a query that was never run begins.

        Raises
        ------
        ConfigError
            `startingOffsets` names a store that there is not.
        StoreError
            It names an offset that there is not, and `failOnDataLoss` is set.
        """
        brokers = {name for _, name, _ in self.options.queue_offsets} - {ANY_BROKER}
        if brokers:
            check_named(brokers, open_logs(self.options))
        places = {key: self._first_place(queue) for key, queue in self._queues().items()}
        return StreamOffset(QUEUES, places, is_initial=True)

    def _first_place(self, queue: Queue) -> Place:
        if self.options.starting_timestamp_ms is not None:
            return queue.place(_first_since(queue, self.options.starting_timestamp_ms))
        offset = self._asked(queue)
        if offset == LATEST:
            return queue.place(queue.end)
        start = queue.start
        if offset == EARLIEST:
            return queue.place(start)
        end = queue.end
        if not start <= offset <= end:
            resumed = min(max(offset, start), end)
            self.losses.report(
                f"{queue}: startingOffsets asks for {offset}, expected {start} to {end}",
                f"the stream begins at {resumed}",
            )
            return queue.place(resumed)
        return queue.place(offset)

    def _asked(self, queue: Queue) -> int:
        broker = queue.log.store.broker_name
        given = self.options.queue_offsets
        for name in (broker, ANY_BROKER):
            place = QueuePlace(queue.key.topic, name, queue.key.queue_id)
            if place in given:
                return given[place]
        return self.options.start

    # --- the next batch -------------------------------------------------------------------------

    @once_more_when_a_file_went
    def latest(self) -> StreamOffset:
        """Return the end of every chosen queue."""
        places = {key: queue.place(queue.end) for key, queue in self._queues().items()}
        return StreamOffset(QUEUES, places)

    @once_more_when_a_file_went
    def advance(
        self, start: StreamOffset, limits: Limits, target: StreamOffset | None = None
    ) -> StreamOffset:
        """Return the offset behind the next batch; `start` itself when there is nothing new.

        Limits take messages in the order of each log; stores take turns.

        Parameters
        ----------
        start
            Behind the last batch.
        limits
            Of this batch.
        target
            Not to be passed, if given.

        Raises
        ------
        StoreError
            Data was lost, and `failOnDataLoss` is set.
        """
        queues = self._queues()
        self._check_queues(start, queues)
        if target is not None:
            queues = {k: q for k, q in queues.items() if k in target.places or k in start.places}
        begins = {key: self._begin(queue, start) for key, queue in queues.items()}
        stops = {}
        for key, queue in queues.items():
            stop = queue.end
            if target is not None:
                stop = min(stop, target.places.get(key, Place(0)).offset)
            stops[key] = max(stop, begins[key].offset)
        self.turn += 1
        if not limits.is_unlimited:
            stops = take_in_log_order(
                {
                    key: (queue.files, begins[key].offset, stops[key])
                    for key, queue in queues.items()
                    if begins[key].offset < stops[key]
                },
                limits,
                self.turn,
            )
        places = {key: place._replace(since=None) for key, place in start.places.items()}
        settled = dict(places)
        for key, begin in begins.items():
            stop = stops.get(key, begin.offset)
            places[key] = begin
            if stop > begin.offset:
                places[key] = queues[key].place(stop)._replace(since=begin.since)
        is_new = start.is_initial or places != settled
        return StreamOffset(QUEUES, places) if is_new else start

    def _begin(self, queue: Queue, start: StreamOffset) -> Place:
        """Return where the next batch of a queue begins."""
        saved = start.places.get(queue.place_key)
        if saved is None:
            earliest = queue.start
            return queue.place(earliest)._replace(since=earliest)
        begin = self._checked(queue, saved)
        if begin != saved.offset:
            return queue.place(begin)._replace(since=begin)
        return saved._replace(since=begin if start.is_initial else None)

    def _check_queues(self, start: StreamOffset, queues: dict[Key, Queue]) -> None:
        logs = {queue.log.store.broker_name: queue.log for queue in queues.values()}
        if not start.places.keys() <= queues.keys():
            logs |= open_logs(self.options)
        for key in start.places.keys() - queues.keys():
            broker, topic, number = key
            evidence = start.places[key].evidence
            if broker in logs and evidence is not None:
                log = logs[broker]
                seen = record_at(log.store, log.segments, evidence.record)
                if seen.is_record and seen.crc == evidence.crc:
                    # Its records are there, so its files are being made anew.
                    continue
            if start.places[key].offset == 0:
                continue
            self.losses.report(
                f"the checkpoint has queue {topic}/{number} of {broker} at {start.places[key]!s}, "
                "expected its files, found none",
                "it is left out as long as it is not there",
            )

    # --- checks ---------------------------------------------------------------------------------

    def _checked(self, queue: Queue, place: Place) -> int:
        """Return a place's offset if it holds, else where the stream goes on."""
        start = queue.start
        if place.offset < start:
            self.losses.report(
                f"{queue}: the checkpoint has offset {place.offset}, expected it in the queue, "
                f"found that the queue begins at {start}: {start - place.offset} messages are gone",
                f"the stream goes on at {start}",
            )
            return start
        problem = _problem_of(queue, place)
        if problem is None:
            return place.offset
        resumed = max(start, min(place.offset, queue.end))
        if place.evidence is not None and _is_intact(queue, place.offset, place.evidence):
            # Made anew: the records that were read are there, and so are all the others.
            resumed = queue.first_behind(place.evidence.record)
        self.losses.report(
            f"{queue}: the checkpoint has offset {place.offset}: {problem}",
            f"the stream goes on at {resumed}",
        )
        return resumed

    # --- tasks ----------------------------------------------------------------------------------

    @once_more_when_a_file_went
    def plan(self, start: StreamOffset, end: StreamOffset) -> list[tuple[StreamTask, ...]]:
        """Return the tasks of the batch between two offsets, each a row of byte ranges.

        Raises
        ------
        StoreDamagedError
            A queue's entries cannot be believed, and the policy for damage is ``fail``.
        StoreError
            Data was lost, and `failOnDataLoss` is set.
        """
        queues = self._queues()
        moved = {
            key: place
            for key, place in end.places.items()
            if place.since is not None or place.offset != _offset_of(start, key)
        }
        by_log: dict[str, list[tuple[Queue, FoundEntries]]] = {}
        for key, place in moved.items():
            if key not in queues:
                if place.offset > (place.since or _offset_of(start, key) or 0):
                    self.losses.report(
                        f"the batch has queue {'/'.join(key[1:])} of {key[0]} up to "
                        f"{place.offset}, expected its files, found none",
                        "the batch is without it",
                    )
                continue
            found = self._entries(queues[key], start.places.get(key), place)
            if found is not None:
                by_log.setdefault(key[0], []).append((queues[key], found))
        total = sum(
            max(one.high for _, one in found) - min(one.low for _, one in found)
            for found in by_log.values()
        )
        step = step_of(self.options.read, total)
        tasks = [task for found in by_log.values() for task in self._tasks(found, step)]
        return grouped(tasks, step)

    def _entries(self, queue: Queue, start: Place | None, end: Place) -> FoundEntries | None:
        begin = end.since
        if begin is None:
            begin = queue.start if start is None else self._checked(queue, start)
        elif begin < min(queue.start, end.offset):
            begin = self._checked(queue, Place(begin))
        stop = end.offset
        if begin >= stop:
            return None
        problem = _problem_of(queue, end)
        if problem is not None:
            stop = min(stop, queue.end)
            self.losses.report(
                f"{queue}: the batch ends at offset {end.offset}: {problem}",
                f"the batch has what is before {stop}",
            )
        return read_entries(queue.files, begin, stop, self.options.read.damage)

    def _tasks(self, found: list[tuple[Queue, FoundEntries]], step: int) -> Iterator[StreamTask]:
        """Yield the byte ranges of one log that hold wanted records, and how many each holds."""
        log = found[0][0].log
        spans = tuple(
            QueueSpan(*queue.key, one.start, one.stop, one.low, one.high) for queue, one in found
        )
        wanted = ByteRange(min(one.low for one in spans), max(one.high for one in spans) + 1)
        cells = list(cut(log.store, log.segments, wanted, step))
        if not all(one.is_whole for _, one in found):
            yield from (StreamTask(cell, spans) for cell in cells)
            return
        bases = [cell.segment.base for cell in cells]
        starts = np.array([base + cell.start for base, cell in zip(bases, cells, strict=True)])
        stops = np.array([base + cell.stop for base, cell in zip(bases, cells, strict=True)])
        counts = np.zeros(len(cells), dtype=np.int64)
        lows, highs = stops.copy(), starts.copy()
        for queue, one in found:
            for physical, sizes in one.chunks():
                at = np.searchsorted(starts, physical, side="right") - 1
                is_there = at >= 0
                is_there[is_there] = physical[is_there] < stops[at[is_there]]
                self._lose_entries(queue, physical[~is_there])
                at, begin, end = at[is_there], physical[is_there], (physical + sizes)[is_there]
                np.add.at(counts, at, 1)
                np.minimum.at(lows, at, begin)
                np.maximum.at(highs, at, end)
        for number, cell in enumerate(cells):
            if counts[number]:
                start = int(lows[number]) - bases[number]
                stop = min(int(highs[number]) - bases[number], cell.stop)
                yield StreamTask(cell._replace(start=start, stop=stop), spans, int(counts[number]))

    def _lose_entries(self, queue: Queue, physical: npt.NDArray[np.int64]) -> None:
        if len(physical):
            self.losses.report(
                f"{queue}: expected {len(physical)} records from physical offset {physical[0]} on, "
                "found no file that holds them",
                "the batch is without them",
            )


def _problem_of(queue: Queue, place: Place) -> str | None:
    """Return what was expected and found where a saved offset does not hold."""
    offset, evidence = place.offset, place.evidence
    if evidence is None or evidence.record < queue.log.start:
        end = queue.files.written_stop()
        return None if offset <= end else f"expected at most {end}, the queue's end"
    if _is_intact(queue, offset, evidence):
        return _renumbered(queue, offset, evidence)
    seen = record_at(queue.log.store, queue.log.segments, evidence.record)
    return (
        f"expected in front of it, at physical offset {evidence.record}, a record with CRC "
        f"{evidence.crc:08x}, found {seen.what}: the log was cut and written anew, or damaged"
    )


def _is_intact(queue: Queue, offset: int, evidence: Evidence) -> bool:
    seen = record_at(queue.log.store, queue.log.segments, evidence.record)
    return seen.crc == evidence.crc and queue.is_record(seen, offset - 1)


def _renumbered(queue: Queue, offset: int, evidence: Evidence) -> str | None:
    """Say so if a queue whose records are all there counts them otherwise than it did."""
    # A queue that ends before the offset may only be behind the log; its entries come again.
    last = min(offset, queue.files.written_stop()) - 1
    entry = queue.files.entry(last)
    if entry is None or entry.is_filler:
        return None
    expected = evidence.record
    is_behind = last < offset - 1 and entry.physical_offset < expected
    if is_behind or (last == offset - 1 and entry.physical_offset == expected):
        return None
    return (
        f"expected number {offset - 1} at physical offset {expected}, found number {last} at "
        f"{entry.physical_offset}: the topic was deleted and made anew"
    )


def _offset_of(offset: StreamOffset, key: Key) -> int | None:
    place = offset.places.get(key)
    return None if place is None else place.offset


def _first_since(queue: Queue, since_ms: int) -> int:
    """Return the first queue offset that was stored at a time or later, else the end."""
    low, high = queue.start, queue.end
    while low < high:
        middle = (low + high) // 2
        # A damaged record has no time: it counts with what follows it.
        at, seen = queue.next_record(middle, high)
        if seen is not None and int(seen.columns.store_timestamp[0]) < since_ms:
            low = at + 1
        else:
            high = middle
    return low
