"""What Spark calls: the writer of a task, and the commit or abort of a job.

Spark pickles a batch's writer to its tasks and to its commit. Of a stream it makes a writer for
each micro-batch and another one to commit it, so what the commit has to know travels with the
messages of the tasks. An attempt that failed is not reported to Python; its files stay until the
job's directory goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from rocketstore.errors import ConfigError
from rocketstore.pipeline.sink.options import parse_sink_options
from rocketstore.pipeline.sink.rows import RowEncoder, check_columns
from rocketstore.pipeline.sink.staging import (
    JobOwner,
    StagedFile,
    StagingWriter,
    make_job_directory,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from rocketstore.pipeline.sink.options import SinkOptions
    from rocketstore.pipeline.sink.rows import EncodeSettings


@dataclass
class TaskCommit(WriterCommitMessage):
    """What a task tells the commit; `file` is None when it had no row."""

    owner: JobOwner
    file: StagedFile | None


class BatchSink(DataSourceArrowWriter):
    """The sink of one ``df.write``."""

    def __init__(self, options: SinkOptions, owner: JobOwner, settings: EncodeSettings) -> None:
        self.sink_options = options
        self.owner = owner
        self.settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Encode and stage the rows of one task; runs on an executor."""
        return _stage(self.sink_options, self.owner, self.settings, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append what the tasks staged; runs once, on the driver."""
        _commit(self.sink_options, self.owner, messages, self.sink_options.batch_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's
        """Take away what the tasks staged."""
        _abort(self.sink_options, self.owner)


class StreamSink(DataSourceStreamArrowWriter):
    """The sink of one micro-batch of ``df.writeStream``."""

    def __init__(self, options: SinkOptions, owner: JobOwner, settings: EncodeSettings) -> None:
        self.sink_options = options
        self.owner = owner
        self.settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Encode and stage the rows of one task; runs on an executor."""
        return _stage(self.sink_options, self.owner, self.settings, iterator)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """Append what the tasks staged, unless this batch is in the store; on the driver."""
        _commit(self.sink_options, self.owner, messages, batchId)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],  # noqa: ARG002 - Spark's
        batchId: int,  # noqa: ARG002, N803 - Spark's
    ) -> None:
        """Take away what the tasks staged."""
        _abort(self.sink_options, self.owner)


def batch_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchSink:
    """Return the sink of ``df.write``, after all that can be refused before any work."""
    return BatchSink(*_prepared(given, schema, overwrite=overwrite, streaming=False))


def stream_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> StreamSink:
    """Return the sink of a micro-batch, as `batch_writer`."""
    return StreamSink(*_prepared(given, schema, overwrite=overwrite, streaming=True))


def _prepared(
    given: Mapping[str, str], schema: StructType, *, overwrite: bool, streaming: bool
) -> tuple[SinkOptions, JobOwner, EncodeSettings]:
    from rocketstore.pipeline.sink.driver_commit import (  # noqa: PLC0415 - on the driver only
        check_target,
        encode_settings,
    )

    options = parse_sink_options(given, streaming=streaming)
    if overwrite:
        kind = "output mode complete" if streaming else "mode overwrite"
        raise ConfigError(
            f"{kind} would replace the messages of {options.root}: a log is only appended to",
            key="mode",
            hint='use mode "append", and to begin anew name a directory that is not there',
        )
    types = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    check_columns(types, options.topic)
    check_target(options)
    settings = encode_settings(options)
    owner = JobOwner.new(options.sink_id, streaming=streaming)
    make_job_directory(options.root, owner)
    return options, owner, settings


def _stage(
    options: SinkOptions,
    owner: JobOwner,
    settings: EncodeSettings,
    batches: Iterator[pa.RecordBatch],
) -> TaskCommit:
    from pyspark import TaskContext  # noqa: PLC0415 - of the worker that runs the task

    from rocketstore.pipeline.source import plain_errors  # noqa: PLC0415 - which imports this

    context = TaskContext.get()
    partition_id = 0 if context is None else context.partitionId()
    encoder = RowEncoder(settings, partition_id)
    staged = StagingWriter(
        options.root, owner, partition_id=partition_id, chunk_bytes=options.chunk_bytes
    )
    with plain_errors():
        try:
            for batch in batches:
                for row in encoder.encode(batch):
                    staged.add(row)
            return TaskCommit(owner, staged.finish())
        except BaseException:
            staged.discard()
            raise


def _commit(
    options: SinkOptions,
    owner: JobOwner,
    messages: list[WriterCommitMessage | None],
    batch_id: int | None,
) -> None:
    from rocketstore.pipeline.sink.driver_commit import (  # noqa: PLC0415 - on the driver only
        commit_batch,
    )
    from rocketstore.pipeline.source import plain_errors  # noqa: PLC0415 - which imports this

    reports = [message for message in messages if isinstance(message, TaskCommit)]
    # A stream is committed by a writer that did not plan it: the tasks know the job.
    job = reports[0].owner if reports else owner
    files = [report.file for report in reports if report.file is not None]
    with plain_errors():
        commit_batch(options, job, files, batch_id)


def _abort(options: SinkOptions, owner: JobOwner) -> None:
    from rocketstore.pipeline.sink.driver_commit import (  # noqa: PLC0415 - on the driver only
        sweep_job,
    )

    sweep_job(options, owner)
