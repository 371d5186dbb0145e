"""The stream as Spark's Python Data Source API wants it: a thin shell.

One object lives in a process of its own as long as the query runs and is asked for offsets and
partitions; others are pickled to executors and asked to ``read``. So nothing is kept here that a
task or a restart needs: that is in the offsets. ``commit`` is left alone, as Spark never calls it
for the last batch.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from rocketstore.pipeline.source import TaskPartition, check_schema, plain_errors
from rocketstore.pipeline.streaming.stream_offsets import StreamOffset, from_json, latest_json
from rocketstore.pipeline.streaming.stream_options import parse_stream_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from rocketstore.pipeline.streaming.following import Stream
    from rocketstore.pipeline.streaming.stream_options import StreamOptions


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
        return stream_of(self.stream_options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Return where a query that was never run begins."""
        with plain_errors():
            return self.stream.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that Spark hands to ``latestOffset``."""
        with plain_errors():
            limit: ReadLimit = self.stream_options.default_limit()
            return limit

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset after the next batch; `start` itself where there is nothing to do."""
        with plain_errors():
            begin = from_json(start, self.stream.kind)
            limits = self.stream_options.limits_of(limit)
            self.reached = self.stream.advance(begin, limits, self.target)
            return start if self.reached is begin else self.reached.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return where the store ended when ``latestOffset`` looked; Spark asks right after it."""
        if self.reached is None:
            return None
        return latest_json(str(self.stream_options), self.stream.ends, self.reached)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where the log ends now; later messages are for a later run."""
        with plain_errors():
            self.target = self.stream.latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch."""
        with plain_errors():
            kind = self.stream.kind
            tasks = self.stream.plan(from_json(start, kind), from_json(end, kind))
            return [TaskPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - executors only

        from rocketstore.pipeline.streaming.stream_read import read_tasks  # noqa: PLC0415 - above

        if partition.value is None:
            return
        schema = to_arrow_schema(self.row_schema, timezone="UTC")
        with plain_errors():
            yield from read_tasks(partition.value, self.stream_options.row_options, schema)

    def __getstate__(self) -> dict[str, Any]:
        return {"given": self.given, "row_schema": self.row_schema}


def stream_of(options: StreamOptions, **given: Any) -> Stream:
    """Return the stream that the options ask for."""
    from rocketstore.pipeline.streaming.following import Stream  # noqa: PLC0415 - not on executors
    from rocketstore.pipeline.streaming.live_log import LiveLog  # noqa: PLC0415 - needs numpy
    from rocketstore.pipeline.streaming.live_queue import LiveQueue  # noqa: PLC0415 - as above

    return Stream(options, LiveQueue if options.read.has_topic_choice else LiveLog, **given)
