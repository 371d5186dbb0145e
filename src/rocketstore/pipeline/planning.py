"""Plan a read of the CommitLog: which byte ranges hold what a query asks for, and who reads them.

Left out without being read: stores of another name, files whose store times or offsets lie outside
the asked range, ranges that hold no record of the asked queues.

Law: pruning never loses a row. Store times are believed with a margin, queue entries only after
their record was looked at (`queues`).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.errors import ConfigError, StoreDamagedError
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.queue_range import (
    QueueRange,
    are_records,
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
from rocketstore.units import ByteRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.stores import Segment, StorePlace

CLOCK_MARGIN_MS: Final = 600_000
"""How far a broker's clock may have been set back inside a file: ten minutes."""


MOST_TASKS: Final = 250_000
"""Of one read. The heap that Spark gives its driver, 1 GB, does not hold a million of them: Spark's
scheduler dies of it without a word to the query, which waits for ever."""


class SplitTask(NamedTuple):
    """A byte range of one CommitLog file.

    Attributes
    ----------
    start, stop
        Positions in the file.
    queue_ranges
        The wanted range of each queue that has one.
    data_stop
        Position behind which the file holds zeros and nobody writes; None: to be looked up.
    """

    store: StorePlace
    segment: Segment
    start: int
    stop: int
    queue_ranges: tuple[QueueRange, ...]
    data_stop: int | None = None

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
        Queues of a store that is not read are named, or the splits are too small.
    """
    pieces: list[SplitTask] = []
    stores = find_stores(options)
    check_brokers(stores, options)
    for store in stores:
        segments = list_segments(store)
        if options.fail_on_data_loss and options.table != "damage":
            _refuse_holes(segments)
        present = [one for one in segments if one.state is not SegmentState.MISSING]
        pieces += _plan_store(store, present, options)
    return _grouped(pieces, options)


def _plan_store(
    store: StorePlace,
    segments: Sequence[Segment],
    options: ReadOptions,
) -> list[SplitTask]:
    if not segments:
        return []
    ranges: tuple[QueueRange, ...] = ()
    spans = None
    if options.has_offsets:
        ranges = queue_ranges(store, segments, options)
        spans = wanted_spans(store, segments, options, ranges)
    pieces = []
    for segment in _in_time(store, segments, options):
        written = _data_stop(store, segment)
        # Of a file made in advance the end is found by reading what was never written: once is
        # enough where nobody writes.
        known = written if segment.is_last and not store.is_open else None
        if written:
            pieces.append(SplitTask(store, segment, 0, written, ranges, known))
    check_task_count(sum(one.byte_count for one in pieces), options)
    split = [part for one in pieces for part in _split(one, options.max_split_bytes)]
    if spans is None:
        return split
    # An entry that lies would leave its record outside: it is noticed where ranges end.
    edges = {at for one in split for at in spans.edges(_physical(one))}
    if not are_records(store, segments, edges):
        return split
    narrowed = [(one, spans.within(_physical(one))) for one in split]
    return [
        one._replace(start=part.start - one.segment.base, stop=part.stop - one.segment.base)
        for one, part in narrowed
        if part is not None
    ]


def _data_stop(store: StorePlace, segment: Segment) -> int:
    """Return where tasks need not look any further: files are made long before they are full."""
    if not segment.is_last:
        return segment.size
    files, _ = files_at(store.location)
    with opened(files, segment.path) as file:
        return file.data_stop(segment.size)


def _physical(task: SplitTask) -> ByteRange:
    return ByteRange(task.segment.base + task.start, task.segment.base + task.stop)


def _split(task: SplitTask, max_split_bytes: int) -> list[SplitTask]:
    # Cut where the whole file would be cut, so that the cuts do not depend on the filters.
    file = SegmentFile(task.segment.path, task.segment.base, task.segment.size)
    parts = []
    for part in plan_splits([file], max_split_bytes):
        start, stop = max(part.start, task.start), min(part.stop, task.stop)
        if start < stop:
            parts.append(task._replace(start=start, stop=stop))
    return parts


def _refuse_holes(segments: Sequence[Segment]) -> None:
    for segment in segments:
        if segment.state is SegmentState.MISSING:
            raise StoreDamagedError(
                f"{segment.path} is missing: {segment.size} bytes of the log from physical offset "
                f"{segment.base} on",
                hint='to read what is there: option("failOnDataLoss", "false"); for a log in '
                "several directories name them: storePathCommitLog",
            )


# --- time ---------------------------------------------------------------------------------------


def _in_time(
    store: StorePlace,
    segments: Sequence[Segment],
    options: ReadOptions,
) -> list[Segment]:
    """Leave out files whose records were all stored before or behind the asked time."""
    low, high = options.starting_timestamp_ms, options.ending_timestamp_ms
    if low is None and high is None:
        return list(segments)
    firsts = [first_store_timestamp_ms(store.location, segment) for segment in segments]
    known = [first for first in firsts if first is not None]
    if known != sorted(known):
        # A clock was set back by more than a file is long: times say nothing about places.
        return list(segments)
    kept = []
    for number, segment in enumerate(segments):
        # Of times that are not known, the nearest known ones on either side are bounds.
        first = next((one for one in reversed(firsts[: number + 1]) if one is not None), None)
        next_first = next((one for one in firsts[number + 1 :] if one is not None), None)
        is_before = _is_before(next_first, low, CLOCK_MARGIN_MS)
        is_behind = _is_before(high, first, CLOCK_MARGIN_MS)
        if not is_before and not is_behind:
            kept.append(segment)
    return kept


def _is_before(earlier: int | None, later: int | None, margin: int) -> bool:
    return earlier is not None and later is not None and earlier + margin < later


def check_task_count(byte_count: int, options: ReadOptions) -> None:
    """Refuse splits so small that Spark would not survive their number.

    Raises
    ------
    ConfigError
        They are.
    """
    for key, count in (
        ("maxSplitBytes", -(-byte_count // options.max_split_bytes)),
        ("minPartitions", min(byte_count, options.min_partitions)),
    ):
        if count > MOST_TASKS:
            raise ConfigError(
                f"option {key} asks for {count} tasks, Spark's driver bears {MOST_TASKS}",
                key=key,
                hint="maxSplitBytes is in bytes: 256m is 268435456",
            )


# --- tasks --------------------------------------------------------------------------------------


def _grouped(pieces: list[SplitTask], options: ReadOptions) -> list[tuple[SplitTask, ...]]:
    """Put small neighbours into one task, and cut further where more tasks are wanted."""
    total = sum(piece.byte_count for piece in pieces)
    limit = options.max_split_bytes
    if options.min_partitions > 1:
        limit = max(1, min(limit, -(-total // options.min_partitions)))
        pieces = [part for piece in pieces for part in _cut(piece, limit)]
    tasks: list[tuple[SplitTask, ...]] = []
    group: list[SplitTask] = []
    size = 0
    for piece in pieces:
        if group and size + piece.byte_count > limit:
            tasks.append(tuple(group))
            group, size = [], 0
        group.append(piece)
        size += piece.byte_count
    return [*tasks, tuple(group)] if group else tasks


def _cut(task: SplitTask, limit: int) -> list[SplitTask]:
    count = -(-task.byte_count // limit)
    edges = [task.start + task.byte_count * part // count for part in range(count + 1)]
    return [task._replace(start=a, stop=b) for a, b in itertools.pairwise(edges)]
