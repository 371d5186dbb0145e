"""Plan a read of the CommitLog: the byte ranges that a query needs, divided into tasks.

Left out without being read: stores of another name, files whose store times or offsets lie outside
the asked range, ranges that hold no record of the asked queues.

Law: pruning never loses a row. Store times are used with a margin, queue entries only after their
record was looked at. Where a queue might lack a record (`ScanNeeded`), the whole log is read. What
is not dispatched yet lies after the last record that any queue has, and is always read.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from rocketstore.errors import StoreDamagedError
from rocketstore.events import get_logger
from rocketstore.format.file_name import BATCH_CONSUME_QUEUE_DIRECTORY, CONSUME_QUEUE_DIRECTORY
from rocketstore.native.decode import decode
from rocketstore.pipeline import queues
from rocketstore.pipeline.queues import ALL_OFFSETS
from rocketstore.places.files import opened, side_by_side, stored_stop
from rocketstore.places.location import is_remote
from rocketstore.places.log_files import (
    Segment,
    SegmentState,
    list_segments,
    log_bytes,
    segments_of_job,
    store_timestamp_ms,
)
from rocketstore.places.queue_files import QueueFiles, ScanNeeded, list_queues
from rocketstore.rules.extra_queues import offset_in
from rocketstore.rules.runs import joined, pairs
from rocketstore.units import ByteRange, KiB, MiB, QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.places.files import OpenFile
    from rocketstore.places.stores import StorePlace
    from rocketstore.scan.scanner import ScanBatch

_log = get_logger(__name__)

CLOCK_MARGIN_MS: Final = 600_000  # how far a clock may have been set back inside a file
MOST_TASKS: Final = 100_000
"""Of one read; a larger log has larger tasks. A million do not fit into the heap of 1 GB: Spark's
scheduler dies without a word to the query, which waits for ever."""

LEAST_SPLIT_BYTES: Final = MiB  # a split is smaller only where `FEW_TASKS` are enough for all
FEW_TASKS: Final = 2000
PIECES_OF_TASK: Final = 1024  # at most: to open an empty one costs what 256 KiB of records do
LATE_BYTES: Final = 16 * MiB  # most of the log that is searched for topics without a queue
FIRST_LOOKS: Final = 1024  # files, in equal steps, whose first record is looked at in a first round
MANY_QUEUES: Final = 64  # a task for more queues scans, and does not search their entries
_MOST_RECORD_BYTES: Final = 64 * MiB  # an entry that says more is not believed, and not read

Piece = TypeVar("Piece")


class SplitTask(NamedTuple):
    """A byte range of one CommitLog file; `start` and `stop` are positions in it.

    `queue_ranges` are of queues of which not all is wanted, `choices` what a stream kept of those
    it is told to read, see `queues.choosing`. After `data_stop` the file holds zeros
    and has no writer (None: to be looked up). `queues`, if known, have an entry of each wanted
    record before the physical offset `dispatched`.
    """

    store: StorePlace
    segment: Segment
    start: int
    stop: int
    queue_ranges: Mapping[QueueKey, range] = {}
    data_stop: int | None = None
    queues: tuple[QueueKey, ...] = ()
    dispatched: int = 0
    choices: tuple[Mapping[str, str] | None, ...] = ()

    @property
    def byte_count(self) -> int:
        """Bytes to read."""
        return self.stop - self.start

    def scanned(self, file: OpenFile, **asked: Any) -> Iterator[ScanBatch]:
        """Yield what starts in the range; `asked` are more keywords of ``scan_window``."""
        from rocketstore.scan.scanner import scan_window  # noqa: PLC0415 - hardly any plan needs it

        one = self.segment
        sizes = {"base": one.base, "size": one.size, "file_size": one.file_size}
        place = {"start": self.start, "stop": self.stop, "data_stop": self.data_stop}
        return scan_window(file, **{**sizes, **place, **asked})


def plan_log(options: ReadOptions) -> list[tuple[SplitTask, ...]]:
    """Return the tasks of a read, each a row of byte ranges; with `failOnDataLoss` none is lost."""
    stores = queues.chosen_stores(options)
    plans = [plan_store(store, options) for store in stores]
    ranges = [one for kept, _ in plans for one in kept]
    chosen = options.topics or options.topic_pattern or options.queues or "all topics"
    asked = chosen if isinstance(chosen, str) else sorted(chosen)
    reads, of = sum(one.byte_count for one in ranges), sum(size for _, size in plans)
    where = ", ".join(one.location for one in stores)
    _log.info("plan.reads", stores=where, bytes=reads, of=of, chosen=asked)
    if unknown := queues.unknown_topics(stores, options):
        size = sum(one.byte_count for one in ranges)
        late = _topics_in(ranges) if size <= LATE_BYTES else unknown
        queues.refuse_unknown(stores, {one: unknown[one] for one in unknown.keys() - {*late}})
    return plan_ranges(ranges, options)


def _topics_in(ranges: Sequence[SplitTask]) -> set[str]:
    """Return the topics of records in some short ranges that no queue has entries for yet."""
    from rocketstore.scan.arrow import to_arrow  # noqa: PLC0415 - as above

    found: set[str] = set()
    for one in ranges:
        with opened(one.store.location, one.segment.path) as file:
            for batch in one.scanned(file):
                found.update(to_arrow(batch.columns, ["topic"]).column(0).to_pylist())
    return found


def plan_ranges(ranges: Sequence[SplitTask], options: ReadOptions) -> list[tuple[SplitTask, ...]]:
    """Return the tasks that read some ranges."""
    return tasks_of(ranges, bytes_per_task(sum(one.byte_count for one in ranges), options))


def plan_store(store: StorePlace, options: ReadOptions) -> tuple[list[SplitTask], int]:
    """Return the part to read of each file of a store, and how many bytes its files have."""
    listed = (segments_of_job if options.fail_on_data_loss else list_segments)(store)
    if options.table == "damage":
        return [whole_file(store, one, {}) for one in listed], sum(one.size for one in listed)
    segments = [one for one in listed if not one.is_missing]
    hole = next((one for one in listed if one.is_missing), None)
    if hole is not None and options.fail_on_data_loss:
        raise StoreDamagedError(
            f"{hole.path} is missing: {hole.size} bytes of the log from physical offset "
            f"{hole.base} on",
            hint='to read what is there: option("failOnDataLoss", "false"); for a log in '
            "several directories name them: storePathCommitLog",
        )
    ranges = queues.queue_ranges(store, segments, options)
    low, high = options.starting_timestamp_ms, options.ending_timestamp_ms
    times: dict[Any, int] = {} if low is None else {None: low}
    queues.check_times(store, segments, options, times | options.starting_times_ms)
    if not segments:
        return [], 0
    kept = [whole_file(store, one, ranges) for one in in_time(store, segments, low, high)]
    if options.has_topic_choice and kept:
        try:
            kept = _within_queues(kept, store, segments, options)
        except ScanNeeded as reason:
            _log.warning("plan.reads_all", store=store.location, reason=reason)
    return kept, sum(one.size for one in segments)


def whole_file(store: StorePlace, segment: Segment, ranges: Mapping[QueueKey, range]) -> SplitTask:
    """Return all of a file that tasks need to look at: files are made long before they are full."""
    task = SplitTask(store, segment, 0, segment.size, ranges)
    if not segment.is_last:
        return task
    with opened(store.location, segment.path) as file:
        stop = data_stop = file.data_stop(segment.size)
        if not is_remote(store.location):
            # What comes later begins after the last byte there is, and is not of this read.
            begin = max(0, data_stop - 64 * KiB)
            stop = begin + len(file.read(begin, data_stop - begin).rstrip(b"\0"))
    # The end is found by reading unwritten zeros: once is enough where no process writes.
    return task._replace(stop=stop, data_stop=None if store.is_open else data_stop)


# --- queues -------------------------------------------------------------------------------------


def _within_queues(
    files: Sequence[SplitTask], store: StorePlace, segments: Sequence[Segment], options: ReadOptions
) -> list[SplitTask]:
    """Return the parts of some files that can hold records of the chosen queues.

    Raises `ScanNeeded` where the queues are wrong.
    """
    ranges = files[0].queue_ranges
    chosen = queues.chosen_queues(store, options, CONSUME_QUEUE_DIRECTORY)
    for key in queues.chosen_queues(store, options, BATCH_CONSUME_QUEUE_DIRECTORY):
        raise ScanNeeded(f"{key} is a batch queue, in which a read looks for nothing")
    queues.check_none_lost(store, options, chosen)
    log = _Log(store, segments)
    # First: a writer that goes on must not get further in another queue than in these.
    tail, dispatched = [], log.end
    wanted = {key: ranges.get(key, ALL_OFFSETS) for key in chosen}
    is_to_end = not wanted or any(one.stop == ALL_OFFSETS.stop for one in wanted.values())
    if is_to_end or not options.fail_on_data_loss:
        dispatched = log.dispatched()
        tail = [ByteRange(dispatched, log.end)]
    found = side_by_side(store.location, len(wanted))(log.span, wanted, wanted.values())
    spans = [one for one in found if one is not None]
    # With fewer entries than records, or with many queues, a task has to scan.
    is_scanned = len(chosen) > MANY_QUEUES or any(span.start < log.start for span in spans)
    said: dict[str, Any] = {"queues": () if is_scanned else tuple(chosen), "dispatched": dispatched}
    spans = [ByteRange(*one) for one in pairs(joined([[*spans, *tail]]))]
    return [part._replace(**said) for one in files for part in _within(one, spans)]


def _within(task: SplitTask, spans: Sequence[ByteRange]) -> Iterator[SplitTask]:
    begin, end = task.segment.base + task.start, task.segment.base + task.stop
    first = bisect_right(spans, begin, key=lambda span: span.stop)
    for span in itertools.takewhile(lambda span: span.start < end, spans[first:]):
        start, stop = max(begin, span.start), min(end, span.stop)
        yield task._replace(start=start - task.segment.base, stop=stop - task.segment.base)


class _Log:
    """The files of a log, as a queue's entries point into them."""

    def __init__(self, store: StorePlace, segments: Sequence[Segment]) -> None:
        self.store, self.segments = store, segments
        self.start, self.end = segments[0].base, segments[-1].base + segments[-1].size

    def dispatched(self) -> int:
        """Return a place before which every record has its entry.

        One of the last records tells; without one each queue is asked how far it has come.
        """
        written = [one for one in self.segments if one.state is not SegmentState.UNWRITTEN]
        for one in written[-1:]:
            if (found := last_dispatched(self.store, one, self.end)) is not None:
                return found
        listed = list_queues(self.store.location)
        ends = side_by_side(self.store.location, len(listed))(self._last_record, listed)
        return max((end for end in ends if end is not None), default=self.start)

    def _last_record(self, key: QueueKey) -> int | None:
        """Return where the record of a queue's last entry starts; None where none does."""
        queue = QueueFiles(self.store.location, key)
        return record_start(self.store, self.segments, queue, queue.max_offset - 1)

    def span(self, key: QueueKey, wanted: range) -> ByteRange | None:
        """Return where records of a queue start, from the first to the last, if any do."""
        queue = QueueFiles(self.store.location, key)
        maximum = queue.max_offset
        queue.check_whole()
        first = queue.first_kept(self.start)
        start = first if wanted.start <= first else queue.next_message(wanted.start, maximum)[0]
        stop = min(wanted.stop, maximum)
        if start >= stop:
            return None
        low, high = (record_start(self.store, self.segments, queue, at) for at in (start, stop - 1))
        if low is None or high is None:
            number = start if low is None else stop - 1
            raise ScanNeeded(f"entry {number} of queue {key} leads to no record that says so")
        if low > high:
            raise ScanNeeded(f"entry {stop - 1} of queue {key} points before entry {start}")
        before = queue.entry(first - 1)
        if wanted.start <= first and first > 0 and (before is None or not before.is_message):
            # The log may hold records before the first kept entry, since no entry is before it.
            # Fillers say nothing: 4.9 writes them for records that it did not enter after a crash.
            low = self.start - 1  # which says so
        return ByteRange(low, high + 1)


def record_start(
    store: StorePlace, segments: Sequence[Segment], queue: QueueFiles, number: int
) -> int | None:
    """Return where the record of an entry starts, None unless the record says so itself."""
    entry = queue.entry(number)
    if entry is None or not 0 < entry.record_size <= _MOST_RECORD_BYTES:
        return None
    at = entry.physical_offset
    content = log_bytes(store, segments, at, entry.record_size)
    found = decode(content, 0, at, check_crc=False)
    return at if found is not None and offset_in(found, queue.key) == number else None


def last_dispatched(store: StorePlace, segment: Segment, stop: int) -> int | None:
    """Return where a record ends that has its entry, of a file's last ones before a place.

    Entries are made in the log's order, so one that has it vouches for all before it. Looked at are
    the last one, and ever fewer of those before it.
    """
    from rocketstore.scan.scanner import scan_window  # noqa: PLC0415 - as above

    with opened(store.location, segment.path) as file:
        end = file.data_stop(min(stop - segment.base, segment.size))
        begin = max(0, end - MiB)
        data = file.read(begin, end - begin)
    place: Any = {"base": segment.base + begin, "file_size": segment.file_size - begin}
    found = [one.columns for one in scan_window(data, **place)]
    rows = [(columns, row) for columns in found for row in range(len(columns))]
    for columns, row in (rows[-(1 << power)] for power in range(len(rows).bit_length())):
        at, number = int(columns.physical_offset[row]), int(columns.queue_offset[row])
        key = QueueKey(columns.topic(row), int(columns.queue_id[row]))
        entry = QueueFiles(store.location, key).entry(number)
        if entry is not None and entry.physical_offset == at:
            return at + int(columns.size[row])
    return None


# --- time ---------------------------------------------------------------------------------------


def in_time(
    store: StorePlace, segments: Sequence[Segment], low: int | None, high: int | None
) -> list[Segment]:
    """Leave out files whose records were all stored before or after the asked times."""
    if not segments or (low is None and high is None):
        return list(segments)
    step = -(-len(segments) // FIRST_LOOKS)
    times: dict[int, int] = {}

    def look(numbers: Iterable[int]) -> range:
        places = [number for number in numbers if number not in times]
        files = [segments[number] for number in places]
        found = mapped(partial(store_timestamp_ms, store.location), files)
        times.update((at, time) for at, time in zip(places, found, strict=True) if time is not None)
        return _between(times, len(segments), low, high)

    # In a long log some files are looked at, in equal steps, and then both ends of what they leave.
    mapped = side_by_side(store.location, len(segments))
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
    most = split_bytes(byte_count, options.max_split_bytes)
    # Pieces that do not fit together leave half a task empty at worst.
    least = max(1, -(-2 * byte_count // MOST_TASKS))
    return max(least, min(most, -(-byte_count // options.min_partitions)))


def split_bytes(byte_count: int, asked: int) -> int:
    """Return the most bytes of a split, as asked: more where that would be many tiny tasks."""
    least = min(LEAST_SPLIT_BYTES, -(-byte_count // FEW_TASKS))
    if asked < least:
        _warn_of_tiny_splits(asked)
    return max(asked, least, -(-2 * byte_count // MOST_TASKS))


@cache
def _warn_of_tiny_splits(asked: int) -> None:
    what = f"splits of {asked} bytes are raised, up to {LEAST_SPLIT_BYTES}: each task costs 0.1 s"
    hint = f"{256 * MiB} is usual"
    _log.warning("plan.tiny_splits", what=what, option="maxSplitBytes", hint=hint)


def tasks_of(ranges: Iterable[SplitTask], limit: int) -> list[tuple[SplitTask, ...]]:
    """Cut ranges to `limit` bytes, and put together what is less than that."""
    stop_of = cache(stored_stop)

    def weight(part: SplitTask) -> int:
        # Unwritten bytes cost next to nothing: a task costs Spark 0.1 s.
        stored = stop_of(part.store.location, part.segment.path, part.segment.size)
        least = min(part.byte_count, limit // PIECES_OF_TASK)
        return max(min(part.stop, stored) - part.start, least)

    return grouped((part for one in ranges for part in cut(one, limit)), limit, weight)


def grouped(
    pieces: Iterable[Piece], limit: int, size_of: Callable[[Piece], int]
) -> list[tuple[Piece, ...]]:
    """Join neighbours up to `limit` bytes; a larger piece stays alone."""
    groups: list[list[Piece]] = []
    size = limit + 1
    for piece in pieces:
        weight = size_of(piece)
        if size + weight > limit:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += weight
    return [tuple(group) for group in groups]


def cut(task: SplitTask, limit: int) -> list[SplitTask]:
    """Cut a range that is larger than a task into equal parts."""
    count = -(-task.byte_count // limit)
    edges = [task.start + task.byte_count * part // max(1, count) for part in range(count + 1)]
    return [task._replace(start=a, stop=b) for a, b in itertools.pairwise(edges)]
