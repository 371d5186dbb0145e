"""The sink as Spark calls it: planned and committed on the driver, written by tasks.

Of a stream Spark makes a writer for each micro-batch and another one to commit it, so the job's
name travels with what tasks report.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from pyspark.sql import datasource

from rocketstore.errors import ConfigError
from rocketstore.pipeline.environment import plain_errors
from rocketstore.pipeline.jobs.publishing import remove_empty
from rocketstore.pipeline.sink import sink_writer
from rocketstore.places.files import missing_directories

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass
class TaskCommit(datasource.WriterCommitMessage):
    """A task's report to the commit; `file` is None when it had no row."""

    job: str
    file: sink_writer.StagedFile | None
    query_id: str | None = None


@dataclass
class _Sink:
    """The common part of both kinds of sink."""

    streaming: ClassVar[bool]
    sink_options: sink_writer.SinkOptions
    file_size: int
    job: str
    made: list[Path]

    @classmethod
    def planned(cls, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> Self:
        """Return the sink, after all checks that need no work."""
        from rocketstore.pipeline.sink import sink_commit  # noqa: PLC0415 - on the driver only

        options = sink_writer.parse_sink_options(given, streaming=cls.streaming)
        if overwrite:
            kind = "mode overwrite"
            hint = 'use mode "append"; for a new log name a directory that is not there'
            if cls.streaming:
                kind = "output mode complete"
                hint = "append each result by itself: foreachBatch, with options sinkId and batchId"
            what = f"{kind} would replace the messages of {options.root}: a log is only appended to"
            raise ConfigError(what, key="mode", hint=hint)
        types = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        sink_writer.check_columns(types, options.topic, has_kafka_names=options.has_kafka_names)
        size = sink_commit.check_target(options)
        made = missing_directories(sink_writer.staging_root(options.root))
        return cls(options, size, sink_writer.new_job(options), made)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Encode and stage the rows of one task; runs on an executor."""
        from pyspark import TaskContext  # noqa: PLC0415 - of the worker that runs the task

        from rocketstore.pipeline.sink.row_encoder import RowEncoder  # noqa: PLC0415 - as above

        context = TaskContext.get()
        partition_id = 0 if context is None else context.partitionId()
        encoder = RowEncoder(self.sink_options, self.file_size, partition_id)
        chunks = itertools.chain.from_iterable(map(encoder.encode, iterator))
        with plain_errors():
            file = sink_writer.stage_chunks(self.sink_options.root, self.job, partition_id, chunks)
            query_id = context.getLocalProperty("sql.streaming.queryId") if context else None
            return TaskCommit(self.job, file, query_id)

    def commit(self, messages: list[datasource.WriterCommitMessage | None], *number: int) -> None:
        """Append what the tasks staged, unless this batch, which a stream numbers, is there."""
        from rocketstore.pipeline.sink import sink_commit  # noqa: PLC0415 - on the driver only

        options, reports = self.sink_options, self._reports(messages)
        files = [report.file for report in reports if report.file]
        is_unnamed = bool(number) and options.sink_id is None
        with plain_errors():
            if is_unnamed:
                # The query's id in its checkpoint, however often it is started from that.
                options = replace(options, sink_id=reports[0].query_id)
            if is_unnamed and files and options.sink_id is None:
                what, hint = "the query has no id here", "give option sinkId a name of its own"
                raise ConfigError(what, key="sinkId", hint=hint)
            batch_id = number[0] if number else options.batch_id
            sink_commit.commit_batch(options, reports[0].job, files, batch_id)
            if is_unnamed and self.job != reports[0].job:  # whose name does not say whose it is
                sink_commit.sweep_job(options, self.job)

    def abort(self, messages: list[datasource.WriterCommitMessage | None], *_: object) -> None:
        """Remove the files that the tasks staged."""
        from rocketstore.pipeline.sink import sink_commit  # noqa: PLC0415 - on the driver only

        sink_commit.sweep_job(self.sink_options, self._reports(messages)[0].job)
        remove_empty(self.made)

    def _reports(self, messages: Iterable[object]) -> list[TaskCommit]:
        """Return what tasks reported: a stream's writer did not plan it, and they know the job."""
        reports = [message for message in messages if isinstance(message, TaskCommit)]
        return reports or [TaskCommit(self.job, None)]


class BatchSink(_Sink, datasource.DataSourceArrowWriter):
    """The sink of one ``df.write``."""

    streaming = False


class StreamSink(_Sink, datasource.DataSourceStreamArrowWriter):
    """The sink of one micro-batch of ``df.writeStream``."""

    streaming = True
