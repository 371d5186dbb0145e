"""The stream as Spark's Python Data Source API wants it: a thin shell.

One object of this class lives in a process of its own as long as the query runs and is asked for
offsets and partitions; others are pickled to executors and asked to ``read``. So nothing that a
task needs may be kept here, and nothing that a restart needs either: that is in the offsets.

``commit`` is left alone. Spark calls it for a batch when it plans the next one, so never for the
last one; nothing may hang on it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from rocketstore.pipeline.source import TaskPartition, check_schema, plain_errors
from rocketstore.pipeline.streaming.limits import default_limit, limits_of
from rocketstore.pipeline.streaming.offsets import StreamOffset, from_json
from rocketstore.pipeline.streaming.options import parse_stream_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from rocketstore.pipeline.streaming.log_stream import LogStream
    from rocketstore.pipeline.streaming.options import StreamOptions
    from rocketstore.pipeline.streaming.queue_stream import QueueStream


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a store as a stream; see ``docs/guide/spark-streaming.md``."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        # Not parsed yet: where making a reader fails, PySpark 4.3 tells of a failure of its own.
        self.given = dict(given)
        self.row_schema = schema
        self.target: StreamOffset | None = None
        self._stream: LogStream | QueueStream | None = None

    @cached_property
    def stream_options(self) -> StreamOptions:
        """What the stream was asked for."""
        options = parse_stream_options(self.given)
        check_schema(options.read, self.row_schema)
        return options

    @property
    def stream(self) -> LogStream | QueueStream:
        """What decides; made on first use, since executors have no need of it."""
        if self._stream is None:
            self._stream = stream_of(self.stream_options)
        return self._stream

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Return where a query that was never run begins."""
        with plain_errors():
            return self.stream.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that Spark hands to ``latestOffset``."""
        with plain_errors():
            limit: ReadLimit = default_limit(self.stream_options)
            return limit

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset behind the next batch."""
        with plain_errors():
            begin = from_json(start, self.stream.kind)
            limits = limits_of(limit, self.stream_options)
            end = self.stream.advance(begin, limits, self.target)
            return start if end is begin else end.to_json()

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

        from rocketstore.pipeline.streaming.task_read import read_tasks  # noqa: PLC0415 - as above

        if partition.value is None:
            return
        schema = to_arrow_schema(self.row_schema, timezone="UTC")
        with plain_errors():
            yield from read_tasks(partition.value, self.stream_options.row_options, schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stream": None}


def stream_of(options: StreamOptions) -> LogStream | QueueStream:
    """Return the stream that the options ask for."""
    if options.has_queues:
        from rocketstore.pipeline.streaming.queue_stream import (  # noqa: PLC0415 - needs numpy
            QueueStream,
        )

        return QueueStream(options)
    from rocketstore.pipeline.streaming.log_stream import LogStream  # noqa: PLC0415 - needs numpy

    return LogStream(options)
