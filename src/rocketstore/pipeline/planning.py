"""Plan a read of the CommitLog: which byte ranges hold what a query asks for, and who reads them.

Left out without being read: stores of another name, files whose store times or offsets lie outside
the asked range, ranges that hold no record of the asked queues.

Law: pruning never loses a row. Store times are believed with a margin, queue entries only after
their record was looked at (`queue_range`).
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from rocketstore.errors import StoreDamagedError
from rocketstore.events import get_logger
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.queue_range import (
    LOOKS_AT_ONCE,
    Doubt,
    QueueRange,
    QueueSpans,
    check_brokers,
    queue_ranges,
    wanted_spans,
)
from rocketstore.pipeline.stores import (
    SegmentState,
    find_stores,
    first_store_timestamp_ms,
    list_segments,
)
from rocketstore.scan.split import SegmentFile, plan_splits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.stores import Segment, StorePlace
    from rocketstore.units import ByteRange, QueueKey

_log = get_logger(__name__)

CLOCK_MARGIN_MS: Final = 600_000
"""How far a broker's clock may have been set back inside a file: ten minutes."""

MOST_TASKS: Final = 100_000
"""Of one read. The heap that Spark gives its driver, 1 GB, does not hold a million of them: its
scheduler dies of it without a word to the query, which waits for ever. A larger log has larger
tasks."""

PIECES_OF_TASK: Final = 64
"""That hold nothing: to open one costs about what 4 MiB of records do."""

FIRST_LOOKS: Final = 1024
"""Files whose first record planning looks at before it looks at those beside the bounds."""

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
    StoreDamagedError
        Files are missing between others, and `failOnDataLoss` is set.
    StoreError
        Something cannot be read, or an offset is not there.
    ConfigError
        Queues of a store that is not read are named.
    """
    stores = find_stores(options)
    check_brokers(stores, options)
    pieces: list[SplitTask] = []
    for store in stores:
        pieces += _plan_store(store, list_segments(store), options)
    limit = bytes_per_task(sum(piece.byte_count for piece in pieces), options)
    if options.min_partitions > 1:
        pieces = [part for piece in pieces for part in _cut(piece, limit)]
        return grouped(pieces, limit, lambda piece: piece.byte_count)
    weight = stored_weight(limit)
    return grouped(
        pieces, limit, lambda one: weight(one.store.location, one.segment, one.start, one.stop)
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
    spans = _spans(store, segments, options, ranges) if options.has_topic_choice else None
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
    if spans is not None:
        said = [one._replace(queues=spans.queues, dispatched=spans.dispatched) for one in kept]
        kept = [part for one in said for part in _within(one, spans.ranges)]
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


def _spans(
    store: StorePlace,
    segments: Sequence[Segment],
    options: ReadOptions,
    ranges: tuple[QueueRange, ...],
) -> QueueSpans | None:
    """Return where records of the chosen queues start; None where only the log knows."""
    try:
        return wanted_spans(store, segments, options, ranges)
    except Doubt as doubt:
        _log.warning(
            "%s: all of the log is read for the chosen queues, since %s", store.location, doubt
        )
        return None


def _within(task: SplitTask, spans: Sequence[ByteRange]) -> Iterator[SplitTask]:
    base = task.segment.base
    first = bisect_right(spans, base + task.start, key=lambda span: span.stop)
    for span in itertools.islice(spans, first, None):
        start, stop = max(task.start, span.start - base), min(task.stop, span.stop - base)
        if span.start >= base + task.stop:
            return
        yield task._replace(start=start, stop=stop)


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
    count = -(-task.byte_count // limit)
    edges = [task.start + task.byte_count * part // count for part in range(count + 1)]
    return [task._replace(start=a, stop=b) for a, b in itertools.pairwise(edges)]
