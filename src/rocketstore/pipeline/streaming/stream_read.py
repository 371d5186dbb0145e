"""The tasks of one batch: byte ranges of a log, and how an executor reads one.

Law: the planner saw a record after every byte of a task's range, so everything in it is a record,
a filler, or damage. What is not there now (a file that was deleted, a log that was cut, a network
mount that lags) is data loss; it never makes a batch quietly smaller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from rocketstore.errors import StoreError
from rocketstore.events import get_logger
from rocketstore.pipeline.files import opened
from rocketstore.pipeline.log_read import damage_of, passed_over, scanned
from rocketstore.pipeline.planning import SplitTask, bytes_per_task, cut
from rocketstore.pipeline.projection import distinct, in_queues, wanted_batches
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.stores import Segment, StorePlace
    from rocketstore.scan.columns import RecordColumns
    from rocketstore.units import ByteRange

    Numbers: TypeAlias = npt.NDArray[np.int64]

LOOK_BYTES: Final = 8 * MiB
"""Without a record are the end of a file that is being written, however long it is: its zeros may
be there already, and to read a gigabyte of them for each batch costs more than the batch."""

_log = get_logger(__name__)


class Losses:
    """What one stream or task has lost and accepted; what is met again counts once."""

    def __init__(self, options: ReadOptions) -> None:
        self.is_error = options.fail_on_data_loss
        self.accepted: set[str] = set()

    def report(self, what: str, then: str) -> None:
        """Raise or count a loss: `what` says where, expected and found, `then` what follows."""
        if self.is_error:
            hint = 'to go on with what is there: option("failOnDataLoss", "false")'
            raise StoreError(f"data loss: {what}", hint=hint)
        if what not in self.accepted:
            self.accepted.add(what)
            _log.warning("data loss %d of this stream: %s; %s", len(self.accepted), what, then)


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
    """A byte range of one CommitLog file, and what of it belongs to the batch.

    That is every record, or those of `spans`, whose queue offsets are `expected` many if known.
    """

    split: SplitTask
    spans: tuple[QueueSpan, ...] | None = None
    expected: int | None = None


def pieces(
    store: StorePlace, segments: Sequence[Segment], wanted: ByteRange, options: ReadOptions
) -> Iterator[SplitTask]:
    """Yield byte ranges that cover what is there of a range of the log."""
    step = bytes_per_task(wanted.size, options)
    for segment in segments:
        start = max(0, wanted.start - segment.base)
        stop = min(segment.size, wanted.stop - segment.base)
        if start < stop and not segment.is_missing:
            data_stop = min(segment.size, stop + LOOK_BYTES)
            yield from cut(SplitTask(store, segment, start, stop, data_stop=data_stop), step)


def read_tasks(
    tasks: Sequence[StreamTask], options: ReadOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, of which `options` ask what is asked of each record."""
    for task in tasks:
        broker = task.split.store.broker_name
        for columns in _records(task, options):
            yield from wanted_batches(columns, options, (), broker, schema)


def _records(task: StreamTask, options: ReadOptions) -> Iterator[RecordColumns]:
    """Yield the records of a byte range and account for everything in it."""
    split, segment, losses = task.split, task.split.segment, Losses(options)
    spans = None if task.spans is None else _SpanTable(task.spans)
    damaged: list[int] = []

    def lose(what: str) -> None:
        where = f"{segment.path} from physical offset {segment.base + split.start} on"
        losses.report(f"{where}: {what}", "the batch has what is there")

    try:
        with opened(split.store.location, segment.path) as file:
            # A queue's batch may begin in the middle of a damaged range, a log's never does.
            for batch in scanned(split, file, whole_damage=spans is None):
                damaged += [passed_over(split, one, options) for one, _ in damage_of(split, batch)]
                zeros_at, stop = batch.unwritten_at, segment.base + split.stop
                if segment.is_last and zeros_at is not None and zeros_at < stop:
                    lose(f"expected records up to {stop}, found zeros at {zeros_at}")
                wanted = batch.columns if spans is None else spans.of(batch.columns)
                if len(wanted):
                    yield wanted
    except StoreError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        lose("the file is gone")
    if damaged:
        count, size = len(damaged), sum(damaged)
        _log.warning("skipped %d damaged ranges of %d bytes in %s", count, size, segment.path)
    if spans is not None and task.expected is not None:
        found = spans.count(task.expected, segment.path)
        # What is not there because of damage, or was said to be lost, is said already.
        if found < task.expected and not damaged and not losses.accepted:
            lose(f"expected {task.expected} records of the batch's queues, found {found}")


class _SpanTable:
    """The wanted queues, looked up for all records of a batch at once, and what was found."""

    def __init__(self, spans: Sequence[QueueSpan]) -> None:
        self.topics = {topic: code for code, topic in enumerate({one.topic for one in spans})}
        table = np.array(sorted((self.topics[one.topic], *one[1:]) for one in spans), np.int64)
        self.keys = table[:, 0] << 32 | table[:, 1]
        self.bounds = table[:, 2:]
        # A number of its own for each offset of the batch, over all queues.
        sizes = table[:, 3] - table[:, 2]
        self.firsts = np.cumsum(sizes) - sizes - table[:, 2]
        self.found: list[Numbers] = [np.empty(0, dtype=np.int64)]

    def of(self, columns: RecordColumns) -> RecordColumns:
        """Return the records that belong to a wanted queue's range."""
        texts, numbers = distinct(columns, "topic")
        codes = [self.topics.get(text, -1) for text in texts]
        topics: Numbers = np.array([*codes, -1], dtype=np.int64)[numbers]
        keys = topics << 32 | (columns.queue_id & 0xFFFFFFFF)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        start, stop, low, high = self.bounds[at].T
        offset, physical = columns.queue_offset, columns.physical_offset
        mask = (topics >= 0) & (self.keys[at] == keys) & (offset >= start) & (offset < stop)
        mask &= (physical >= low) & (physical <= high) & in_queues(columns)
        self.found.append((self.firsts[at] + offset)[mask])
        return columns.taken(mask)

    def count(self, expected: int, path: str) -> int:
        """Return how many queue offsets the records that were found have."""
        found = np.concatenate(self.found)
        count = len(np.unique(found))
        surplus = len(found) - min(count, expected)
        if surplus:
            _log.warning(
                "%d records in %s state a queue offset that another record has; they are rows of "
                "the batch as well: rocketstore pipeline audit lists them as queue-conflict",
                surplus, path,
            )  # fmt: skip
        return count
