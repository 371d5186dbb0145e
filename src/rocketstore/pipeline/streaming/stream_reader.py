"""The stream as Spark's Python Data Source API wants it, and what an executor does for it.

One reader lives in a process of its own as long as the query runs and is asked for offsets and
tasks; others are pickled to executors and asked to ``read``. So nothing is kept here that a task or
a restart needs: that is in the offsets. ``commit`` is left alone, as Spark never calls it for the
last batch.

Law: the planner saw a record after every byte of a task's range, so everything in it is a record,
a filler, or damage. What is not there now (a file that was deleted, a log that was cut, a network
mount that lags) is data loss; it never makes a batch quietly smaller.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from rocketstore.errors import StoreError
from rocketstore.events import get_logger
from rocketstore.message import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.log_read import damage_of, described, refused, scanned
from rocketstore.pipeline.planning import SplitTask, bytes_per_task
from rocketstore.pipeline.projection import record_batches, select
from rocketstore.pipeline.source import TaskPartition, check_schema, plain_errors
from rocketstore.pipeline.stores import SegmentState
from rocketstore.pipeline.streaming.stream_options import (
    UNLIMITED,
    from_json,
    latest_json,
    parse_stream_options,
)
from rocketstore.scan.columns import RecordColumns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.stores import Segment, StorePlace
    from rocketstore.pipeline.streaming.following import Stream
    from rocketstore.pipeline.streaming.stream_options import StreamOffset, StreamOptions
    from rocketstore.scan.scanner import ScanBatch
    from rocketstore.units import ByteRange

    Numbers = npt.NDArray[np.int64]

HINT: Final = 'to go on with what is there: option("failOnDataLoss", "false")'

_log = get_logger(__name__)


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a store as a stream; see ``docs/guide/spark-streaming.md``."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        # Not parsed yet: where making a reader fails, PySpark 4.3 reports a failure of its own.
        self.given = dict(given)
        self.row_schema = schema
        self.target: StreamOffset | None = None
        self.reached: StreamOffset | None = None

    @cached_property
    def stream_options(self) -> StreamOptions:
        """What the stream was asked for."""
        options = parse_stream_options(self.given)
        check_schema(options.read, self.row_schema)
        return options

    @cached_property
    def stream(self) -> Stream:
        """What decides; executors have no need of it."""
        from rocketstore.pipeline.streaming.following import Stream  # noqa: PLC0415 - not on executors

        return Stream(self.stream_options)

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Return where a query that was never run begins."""
        return self.stream.initial().to_json()

    @plain_errors()
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return what Spark hands to ``latestOffset`` unless it wants all there is."""
        if self.stream_options.limits == UNLIMITED:
            return ReadAllAvailable()
        return ReadMaxRows(self.stream_options.limits.max_rows or 1)  # a sign; ours are looked up

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset after the next batch; `start` itself where there is nothing to do."""
        begin = from_json(start, self.stream.kind)
        is_all = isinstance(limit, ReadAllAvailable)
        limits = UNLIMITED if is_all else self.stream_options.limits
        self.reached = self.stream.advance(begin, limits, self.target)
        return start if self.reached is begin else self.reached.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return where the store ended when ``latestOffset`` looked; Spark asks right after it."""
        if self.reached is None:
            return None
        return latest_json(str(self.stream_options), self.stream.ends, self.reached)

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where the log ends now; later messages are for a later run."""
        self.target = self.stream.latest()

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch."""
        kind = self.stream.kind
        tasks = self.stream.plan(from_json(start, kind), from_json(end, kind))
        return [TaskPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - executors only

        if partition.value is None:
            return
        schema = to_arrow_schema(self.row_schema, timezone="UTC")
        with plain_errors():
            yield from read_tasks(partition.value, self.stream_options.row_options, schema)

    def __getstate__(self) -> dict[str, Any]:
        return {"given": self.given, "row_schema": self.row_schema}


# --- tasks --------------------------------------------------------------------------------------


class Losses:
    """What one stream or task has lost; `count` is of those that were accepted."""

    def __init__(self, options: ReadOptions) -> None:
        self.is_error = options.fail_on_data_loss
        self._reported: set[str] = set()

    @property
    def count(self) -> int:
        """How many were reported; one that the next batch meets again counts once."""
        return len(self._reported)

    def report(self, what: str, then: str) -> None:
        """Raise or count a loss: `what` says where, expected and found, `then` what follows."""
        if self.is_error:
            raise StoreError(f"data loss: {what}", hint=HINT)
        if what not in self._reported:
            self._reported.add(what)
            _log.warning("data loss %d of this stream: %s; %s", self.count, what, then)


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

    Attributes
    ----------
    spans
        The wanted queues; None is every record.
    expected
        Queue offsets whose records start in the range, as far as that is known.
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
        while start < stop and segment.state is not SegmentState.MISSING:
            # Cut where the whole file would be cut, so that small batches do not cut much.
            edge = min(stop, (start // step + 1) * step)
            yield SplitTask(store, segment, start, edge, ())
            start = edge


def read_tasks(
    tasks: Sequence[StreamTask], options: ReadOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, of which `options` ask what is asked of each record.

    Raises
    ------
    StoreDamagedError
        The range is damaged, and the policy is ``fail``.
    StoreError
        A record of the batch is not there, and `failOnDataLoss` is set.
    """
    for task in tasks:
        broker = task.split.store.broker_name
        for columns in _records(task, options):
            wanted = select(columns, options, (), broker)
            if len(wanted):
                yield from record_batches(
                    wanted, schema, broker=broker, decompress=options.decompress_body
                )


def _records(task: StreamTask, options: ReadOptions) -> Iterator[RecordColumns]:
    """Yield the records of a byte range and account for everything in it."""
    split, segment, losses = task.split, task.split.segment, Losses(options)
    spans = None if task.spans is None else _SpanTable(task.spans)
    damaged: list[int] = []

    def lose(what: str) -> None:
        where = f"{segment.path} from physical offset {segment.base + split.start} on"
        losses.report(f"{where}: {what}", "the batch has what is there")

    try:
        with opened(files_at(split.store.location)[0], segment.path) as file:
            # A queue's batch may begin in the middle of a damaged range, a log's never does.
            for batch in scanned(split, file, whole_damage=spans is None):
                damaged += _damage(split, batch, options)
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
        if found < task.expected and not damaged and not losses.count:
            lose(f"expected {task.expected} records of the batch's queues, found {found}")


def _damage(split: SplitTask, batch: ScanBatch, options: ReadOptions) -> Iterator[int]:
    """Yield how many bytes each damage has, unless it is refused."""
    for one, _ in damage_of(split, batch):
        if options.damage == "fail":
            raise refused(split, one)
        if options.damage == "report":
            _log.warning("skipped damage: %s", described(split, one))
        yield one.range.size


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
        texts: Any = columns.to_arrow(["topic"]).column(0)
        encoded = texts.dictionary_encode()
        codes = [self.topics.get(text, -1) for text in encoded.dictionary.to_pylist()]
        numbers = encoded.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False)
        topics: Numbers = np.array([*codes, -1], dtype=np.int64)[numbers]
        keys = topics << 32 | (columns.queue_id & 0xFFFFFFFF)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        start, stop, low, high = self.bounds[at].T
        kind = columns.sys_flag & TRANSACTION_MASK
        offset, physical = columns.queue_offset, columns.physical_offset
        mask = (topics >= 0) & (self.keys[at] == keys) & (offset >= start) & (offset < stop)
        mask &= (physical >= low) & (physical <= high)
        mask &= (kind != TRANSACTION_PREPARED) & (kind != TRANSACTION_ROLLBACK)
        self.found.append((self.firsts[at] + offset)[mask])
        return RecordColumns(columns.buffer, columns.cols[mask], columns.base)

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
