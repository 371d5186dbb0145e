"""Plan a read of the CommitLog: which byte ranges hold what a query asks for, and who reads them.

Left out without being read: stores of another name, files whose store times or offsets lie outside
the asked range, ranges that hold no record of the asked queues.

Law: pruning never loses a row. Store times are believed with a margin, queue entries only after
their record was looked at, and where a queue might lack a record (`Doubt`) all is read. What is not
dispatched yet lies after the last record that any queue has, and is always read.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from rocketstore.errors import FormatError, StoreDamagedError
from rocketstore.events import get_logger
from rocketstore.format.queue_entry import KEPT_PLACE_BYTES
from rocketstore.format.record import decode_record
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.options import ANY_BROKER
from rocketstore.pipeline.queues import (
    Doubt,
    QueueRange,
    check_brokers,
    is_chosen,
    list_queues,
    queue_files,
    queue_ranges,
)
from rocketstore.pipeline.stores import (
    SegmentState,
    find_stores,
    first_store_timestamp_ms,
    list_segments,
)
from rocketstore.scan.split import SegmentFile, plan_splits
from rocketstore.units import ByteRange, MiB, QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.queues import QueueFiles
    from rocketstore.pipeline.stores import Segment, StorePlace

_log = get_logger(__name__)

CLOCK_MARGIN_MS: Final = 600_000
"""How far a broker's clock may have been set back inside a file: ten minutes."""

MOST_TASKS: Final = 100_000
"""Of one read. The heap that Spark gives its driver, 1 GB, does not hold a million of them: its
scheduler dies of it without a word to the query, which waits for ever. A larger log has larger
tasks."""

PIECES_OF_TASK: Final = 1024
"""That hold nothing: to open one costs about what 256 KiB of records do."""

FIRST_LOOKS: Final = 1024
"""Files whose first record planning looks at before it looks at those beside the bounds."""

LOOKS_AT_ONCE: Final = 16
"""What planning looks into side by side: on an object store each look is a request."""

MOST_QUEUES: Final = 64
"""Whose entries a task looks for, each by a search; with more of them it scans."""

_MOST_RECORD_BYTES: Final = 64 * MiB
"""That an entry may state: one that lies must not decide how much is read."""

Piece = TypeVar("Piece")


class SplitTask(NamedTuple):
    """A byte range of one CommitLog file.

    Attributes
    ----------
    start, stop
        Positions in the file.
    queue_ranges
        The wanted range of each queue that has one.
    data_stop
        Position after which the file holds zeros and nobody writes; None: to be looked up.
    queues, dispatched
        Queues that have an entry of each wanted record before a physical offset; none: not known.
    """

    store: StorePlace
    segment: Segment
    start: int
    stop: int
    queue_ranges: tuple[QueueRange, ...]
    data_stop: int | None = None
    queues: tuple[QueueKey, ...] = ()
    dispatched: int = 0

    @property
    def byte_count(self) -> int:
        """Bytes to read."""
        return self.stop - self.start


def plan_log(options: ReadOptions) -> list[tuple[SplitTask, ...]]:
    """Return the tasks of a read, each a row of byte ranges.

    Raises
    ------
    StoreError
        Files are missing between others or an offset is not there, and `failOnDataLoss` is set; or
        something cannot be read.
    """
    stores = find_stores(options)
    check_brokers(stores, options)
    pieces: list[SplitTask] = []
    for store in stores:
        pieces += _plan_store(store, list_segments(store), options)
    limit = bytes_per_task(sum(piece.byte_count for piece in pieces), options)
    weight = stored_weight(limit)
    return grouped(
        (part for piece in pieces for part in _cut(piece, limit)),
        limit,
        lambda part: weight(part.store.location, part.segment, part.start, part.stop),
    )


def _plan_store(
    store: StorePlace, listed: Sequence[Segment], options: ReadOptions
) -> list[SplitTask]:
    segments = [one for one in listed if one.state is not SegmentState.MISSING]
    if len(segments) < len(listed) and options.fail_on_data_loss and options.table != "damage":
        raise _hole_error(next(one for one in listed if one.state is SegmentState.MISSING))
    if not segments:
        return []
    ranges = queue_ranges(store, segments, options) if options.has_offsets else ()
    whole = []
    low, high = options.starting_timestamp_ms, options.ending_timestamp_ms
    for segment in in_time(store, segments, low, high):
        written = _data_stop(store, segment)
        # Of a file made in advance the end is found by reading what was never written: once is
        # enough where nobody writes.
        known = written if segment.is_last and not store.is_open else None
        whole.append(SplitTask(store, segment, 0, written, ranges, known))
    total = sum(one.byte_count for one in whole)
    limit = max(options.max_split_bytes, -(-total // MOST_TASKS))
    kept = [part for one in whole for part in _split(one, limit)]
    if options.has_topic_choice and kept:
        kept = _within_queues(kept, store, segments, options)
    chosen = options.topics or options.topic_pattern or options.queues or "all topics"
    _log.info(
        "%s: reads %d of %d bytes of the log for %s",
        store.location,
        sum(one.byte_count for one in kept),
        sum(one.size for one in segments),
        chosen if isinstance(chosen, str) else sorted(chosen),
    )
    return kept


def _hole_error(missing: Segment) -> StoreDamagedError:
    return StoreDamagedError(
        f"{missing.path} is missing: {missing.size} bytes of the log from physical offset "
        f"{missing.base} on",
        hint='to read what is there: option("failOnDataLoss", "false"); for a log in '
        "several directories name them: storePathCommitLog",
    )


def _data_stop(store: StorePlace, segment: Segment) -> int:
    """Return where tasks need not look any further: files are made long before they are full."""
    if not segment.is_last:
        return segment.size
    files, _ = files_at(store.location)
    with opened(files, segment.path) as file:
        return file.data_stop(segment.size)


def _split(task: SplitTask, max_split_bytes: int) -> Iterator[SplitTask]:
    # Cut where the whole file would be cut, so that the cuts do not depend on the filters.
    file = SegmentFile(task.segment.path, task.segment.base, task.segment.size)
    for part in plan_splits([file], max_split_bytes):
        if part.start < task.stop:
            yield task._replace(start=part.start, stop=min(part.stop, task.stop))


# --- queues -------------------------------------------------------------------------------------


def _within_queues(
    pieces: list[SplitTask],
    store: StorePlace,
    segments: Sequence[Segment],
    options: ReadOptions,
) -> list[SplitTask]:
    """Return what of some ranges can hold records of the chosen queues; all where queues lie."""
    try:
        spans, queues, dispatched = _wanted_spans(store, segments, options, pieces[0].queue_ranges)
    except Doubt as doubt:
        _log.warning(
            "%s: all of the log is read for the chosen queues, since %s", store.location, doubt
        )
        return pieces
    said = [one._replace(queues=queues, dispatched=dispatched) for one in pieces]
    return [part for one in said for part in _within(one, spans)]


def _within(task: SplitTask, spans: Sequence[ByteRange]) -> Iterator[SplitTask]:
    base = task.segment.base
    first = bisect_right(spans, base + task.start, key=lambda span: span.stop)
    for span in itertools.islice(spans, first, None):
        start, stop = max(task.start, span.start - base), min(task.stop, span.stop - base)
        if span.start >= base + task.stop:
            return
        yield task._replace(start=start, stop=stop)


def _wanted_spans(
    store: StorePlace,
    segments: Sequence[Segment],
    options: ReadOptions,
    ranges: Sequence[QueueRange],
) -> tuple[list[ByteRange], tuple[QueueKey, ...], int]:
    """Return where records of the chosen queues start, in order and apart.

    And the queues that have an entry of each such record before a physical offset, none where not
    all do, and that offset.
    """
    by_key = {QueueKey(one.topic, one.queue_id): one for one in ranges}
    listed = list_queues(store.location)
    chosen = [key for key in listed if is_chosen(options, store, key)]
    _check_complete(chosen, by_key, options, store.broker_name)
    log = _Log(store, segments)
    with ThreadPoolExecutor(LOOKS_AT_ONCE, thread_name_prefix="rocketstore-plan") as pool:
        # First: a writer that goes on must not get further in another queue than in these.
        tail = []
        dispatched = log.end
        wanted = [by_key.get(key, QueueRange(*key, 0, None)) for key in chosen]
        if not options.fail_on_data_loss or any(one.stop is None for one in wanted):
            ends = pool.map(log.last_record, listed)
            dispatched = max((end for end in ends if end is not None), default=log.start)
            tail = [ByteRange(dispatched, log.end)]
        spans = [one for one in pool.map(log.span, wanted) if one is not None]
    is_whole = len(chosen) <= MOST_QUEUES and not any(span.start < log.start for span in spans)
    return _merged([*spans, *tail]), tuple(chosen) if is_whole else (), dispatched


def _check_complete(
    chosen: Sequence[QueueKey],
    by_key: Mapping[QueueKey, QueueRange],
    options: ReadOptions,
    broker: str,
) -> None:
    """Doubt where a queue that the query may mean has no directory."""
    wanted = set(by_key)
    for place in options.queues or ():
        if place.broker in (ANY_BROKER, broker):
            wanted.add(QueueKey(place.topic, place.queue_id))
    if options.queues is None:
        counts = dict.fromkeys(options.topics or (), 1)
        for key in chosen:
            counts[key.topic] = max(counts.get(key.topic, 0), key.queue_id + 1)
        # A queue whose directory was lost leaves a gap in the numbers, or no directory at all.
        for topic, count in counts.items():
            wanted |= {QueueKey(topic, number) for number in range(count)}
    for key in sorted(wanted - set(chosen)):
        raise Doubt(f"there is no queue {key}")


def _merged(spans: list[ByteRange]) -> list[ByteRange]:
    merged: list[ByteRange] = []
    for one in sorted(spans):
        if merged and one.start <= merged[-1].stop:
            merged[-1] = ByteRange(merged[-1].start, max(merged[-1].stop, one.stop))
        else:
            merged.append(one)
    return merged


def _check_whole(queue: QueueFiles, stop: int) -> None:
    """Doubt a queue that lacks a file, or has entries after the zeros that should end it."""
    if stop == queue.first_offset:
        raise Doubt(f"queue {queue.key} has no entries")
    for one, other in itertools.pairwise(queue.files):
        if one.first + one.entry_count != other.first:
            raise Doubt(f"queue {queue.key} has no file of entry {one.first + one.entry_count}")
    for _, entries in queue.entries(stop, queue.data_stop()):
        if entries.tobytes().replace(KEPT_PLACE_BYTES, b"").strip(b"\0"):
            raise Doubt(f"queue {queue.key} ends at entry {stop} and has other bytes after that")


def segment_at(segments: Sequence[Segment], physical_offset: int) -> Segment | None:
    """Return the file that holds an offset of the log; None where no file does."""
    number = bisect_right(segments, physical_offset, key=lambda one: one.base) - 1
    found = segments[number] if number >= 0 else None
    return found if found is not None and physical_offset < found.base + found.size else None


class _Log:
    """The files of a log, as a queue's entries point into them."""

    def __init__(self, store: StorePlace, segments: Sequence[Segment]) -> None:
        self.store = store
        self.segments = segments
        self.files, _ = files_at(store.location)
        self.start = segments[0].base
        self.end = segments[-1].base + segments[-1].size

    def last_record(self, key: QueueKey) -> int | None:
        """Return where the record of a queue's last entry starts; None where none does."""
        queue = queue_files(self.store.location, key)
        return self._record_start(queue, queue.written_stop() - 1)

    def span(self, wanted: QueueRange) -> ByteRange | None:
        """Return where records of a queue's range start, from the first to the last, if any do."""
        queue = queue_files(self.store.location, QueueKey(wanted.topic, wanted.queue_id))
        maximum = queue.written_stop()
        _check_whole(queue, maximum)
        first = self._first_kept(queue)
        start = first if wanted.start <= first else queue.next_message(wanted.start, maximum)[0]
        stop = maximum if wanted.stop is None else min(wanted.stop, maximum)
        if start >= stop:
            return None
        low, high = self._stated_start(queue, start), self._stated_start(queue, stop - 1)
        if low > high:
            raise Doubt(f"entry {stop - 1} of queue {queue.key} points before entry {start}")
        before = queue.entry(first - 1)
        if wanted.start <= first and first > 0 and (before is None or before.is_filler):
            # The log may hold records before the first kept entry, since no entry is before it.
            # Fillers say nothing: 4.9 writes them for records that it did not enter after a crash.
            low = self.start - 1  # which says so
        return ByteRange(low, high + 1)

    def _stated_start(self, queue: QueueFiles, number: int) -> int:
        """Return where the record of an entry starts, which says so itself."""
        at = self._record_start(queue, number)
        if at is None:
            raise Doubt(f"entry {number} of queue {queue.key} leads to no record that says so")
        return at

    def _first_kept(self, queue: QueueFiles) -> int:
        """Return the first entry that points into the log; fillers and expired ones come before."""

        def is_kept(number: int) -> bool:
            entry = queue.entry(number)
            if entry is None:
                raise Doubt(f"entry {number} of queue {queue.key} was never written")
            return entry.is_message and entry.physical_offset >= self.start

        if is_kept(queue.first_offset):
            return queue.first_offset
        first = queue.min_offset(self.start)
        # One entry that lies can lead a search past what is before it.
        for number in (first - (1 << power) for power in range(63)):
            if number < queue.first_offset:
                break
            if is_kept(number):
                raise Doubt(f"entry {number} of queue {queue.key} comes before expired ones")
        return first

    def _record_start(self, queue: QueueFiles, number: int) -> int | None:
        """Return where the record of an entry starts, None unless the record says so itself."""
        entry = queue.entry(number)
        if entry is None or entry.is_filler or entry.record_size > _MOST_RECORD_BYTES:
            return None
        at = entry.physical_offset
        segment = segment_at(self.segments, at)
        if segment is None:
            return None
        with opened(self.files, segment.path) as file:
            content = file.read(at - segment.base, entry.record_size)
        try:
            found = decode_record(content, 0, base=at, check_crc=False)
        except FormatError:
            return None
        stated = (found.topic, found.queue_id, found.queue_offset)
        return at if stated == (*queue.key, number) else None


# --- time ---------------------------------------------------------------------------------------


def in_time(
    store: StorePlace, segments: Sequence[Segment], low: int | None, high: int | None
) -> list[Segment]:
    """Leave out files whose records were all stored before or after the asked times.

    Of a long log not every first record is looked at: some in equal steps, and then those of the
    files at both ends of what they leave.
    """
    if low is None and high is None:
        return list(segments)
    step = -(-len(segments) // FIRST_LOOKS)
    times: dict[int, int] = {}

    def look(numbers: Iterable[int]) -> range:
        places = [number for number in numbers if number not in times]
        found = pool.map(
            lambda number: first_store_timestamp_ms(store.location, segments[number]), places
        )
        times.update((at, time) for at, time in zip(places, found, strict=True) if time is not None)
        return _between(times, len(segments), low, high)

    with ThreadPoolExecutor(LOOKS_AT_ONCE, thread_name_prefix="rocketstore-plan") as pool:
        kept = look([*range(0, len(segments), step), len(segments) - 1])
        if step > 1:
            kept = look([*kept[:step], *kept[-step:]])
    return list(segments[kept.start : kept.stop])


def _between(times: Mapping[int, int], count: int, low: int | None, high: int | None) -> range:
    """Return the files that can hold records of a time, by the first times of some of them."""
    known = sorted(times.items())
    if [time for _, time in known] != sorted(times.values()):
        # A clock was set back by more than a file is long: times say nothing about places.
        return range(count)
    early = [at for at, time in known if low is not None and time + CLOCK_MARGIN_MS < low]
    late = [at for at, time in known if high is not None and time > high + CLOCK_MARGIN_MS]
    start = early[-1] if early else 0
    return range(start, max(start, late[0]) if late else count)


# --- tasks --------------------------------------------------------------------------------------


def bytes_per_task(byte_count: int, options: ReadOptions) -> int:
    """Return how many of so many bytes a task reads: as asked, in about `MOST_TASKS` at most."""
    wanted = min(options.max_split_bytes, -(-byte_count // options.min_partitions))
    # Pieces that do not fit together leave half a task empty at worst.
    return max(1, wanted, -(-2 * byte_count // MOST_TASKS))


def grouped(
    pieces: Iterable[Piece], limit: int, size_of: Callable[[Piece], int]
) -> list[tuple[Piece, ...]]:
    """Put neighbours together, as many as have `limit` bytes; a larger piece stands alone."""
    groups: list[tuple[Piece, ...]] = []
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        if group and size + size_of(piece) > limit:
            groups.append(tuple(group))
            group, size = [], 0
        group.append(piece)
        size += size_of(piece)
    return [*groups, tuple(group)] if group else groups


def stored_weight(limit: int) -> Callable[[str, Segment, int, int], int]:
    """Return the function that says what a range of a file weighs in tasks of `limit` bytes.

    It takes the store's location, the file, and where the range begins and ends. What was never
    written weighs next to nothing: a task costs Spark 0.1 s, a hole a question.
    """

    @cache
    def stored_stop(location: str, segment: Segment) -> int:
        files, _ = files_at(location)
        return files.stored_stop(segment.path, segment.size)

    def weight(location: str, segment: Segment, start: int, stop: int) -> int:
        stored = min(stop, stored_stop(location, segment)) - start
        return max(stored, min(stop - start, limit // PIECES_OF_TASK))

    return weight


def _cut(task: SplitTask, limit: int) -> list[SplitTask]:
    """Cut a piece that is larger than a task, where many of them are asked for."""
    count = -(-task.byte_count // limit)
    edges = [task.start + task.byte_count * part // count for part in range(count + 1)]
    return [task._replace(start=a, stop=b) for a, b in itertools.pairwise(edges)]
