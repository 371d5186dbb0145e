"""Byte ranges of a log as the tasks of one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rocketstore.pipeline.planning import SplitTask
from rocketstore.pipeline.stores import SegmentState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.stores import Segment, StorePlace
    from rocketstore.units import ByteRange


class QueueSpan(NamedTuple):
    """Queue offsets ``[start, stop)`` of a queue, and where in the log their records lie.

    Attributes
    ----------
    low, high
        Physical offsets of the first and of the last record. A queue that was deleted and made
        anew has records of the same numbers elsewhere in the log.
    """

    topic: str
    queue_id: int
    start: int
    stop: int
    low: int
    high: int


class StreamTask(NamedTuple):
    """A byte range of one CommitLog file, and what of it belongs to the batch.

    Attributes
    ----------
    spans
        The wanted queues; None is every record.
    expected
        Wanted records that start in the range, as far as that is known.
    """

    split: SplitTask
    spans: tuple[QueueSpan, ...] | None = None
    expected: int | None = None


def cut(
    store: StorePlace, segments: Sequence[Segment], wanted: ByteRange, step: int
) -> Iterator[SplitTask]:
    """Yield byte ranges of at most `step` bytes that cover what is there of a range of the log."""
    for segment in segments:
        if segment.state is SegmentState.MISSING:
            continue
        start = max(0, wanted.start - segment.base)
        stop = min(segment.size, wanted.stop - segment.base)
        while start < stop:
            # Cut where the whole file would be cut, so that small batches do not cut much.
            edge = min(stop, (start // step + 1) * step)
            yield SplitTask(store, segment, start, edge, ())
            start = edge


def step_of(options: ReadOptions, total_bytes: int) -> int:
    """Return the most bytes of a task, so that there are `minPartitions` of them."""
    return max(1, min(options.max_split_bytes, -(-total_bytes // options.min_partitions)))


def grouped(tasks: Sequence[StreamTask], step: int) -> list[tuple[StreamTask, ...]]:
    """Put small neighbours into one task."""
    groups: list[tuple[StreamTask, ...]] = []
    group: list[StreamTask] = []
    size = 0
    for task in tasks:
        if group and size + task.split.byte_count > step:
            groups.append(tuple(group))
            group, size = [], 0
        group.append(task)
        size += task.split.byte_count
    return [*groups, tuple(group)] if group else groups
