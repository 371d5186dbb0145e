"""What Spark calls: the writer of a task, and the commit or abort of a job.

Spark pickles a batch's writer to its tasks and to its commit. Of a stream it makes a writer for
each micro-batch and another one to commit it, so what the commit has to know travels with the
messages of the tasks. An attempt that failed is not reported to Python; its files stay until the
job's directory goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from rocketstore.errors import ConfigError
from rocketstore.pipeline.sink.sink_rows import RowEncoder, check_columns
from rocketstore.pipeline.sink.sink_settings import parse_sink_options
from rocketstore.pipeline.sink.sink_staging import (
    StagedFile,
    StagingJob,
    make_job_directory,
    stage_chunks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from rocketstore.pipeline.sink.sink_rows import EncodeSettings
    from rocketstore.pipeline.sink.sink_settings import SinkOptions


@dataclass
class TaskCommit(WriterCommitMessage):
    """What a task tells the commit; `file` is None when it had no row."""

    job: StagingJob
    file: StagedFile | None


class _Sink:
    """What both kinds of sink do alike."""

    streaming: ClassVar[bool]

    def __init__(self, options: SinkOptions, job: StagingJob, settings: EncodeSettings) -> None:
        self.sink_options = options
        self.job = job
        self.settings = settings

    @classmethod
    def planned(cls, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> Self:
        """Return the sink, after all that can be refused before any work.

        Raises
        ------
        ConfigError, StoreError
            It cannot be written so, or there.
        """
        from rocketstore.pipeline.sink.sink_commit import (  # noqa: PLC0415 - on the driver only
            check_target,
            encode_settings,
        )

        options = parse_sink_options(given, streaming=cls.streaming)
        if overwrite:
            kind = "output mode complete" if cls.streaming else "mode overwrite"
            raise ConfigError(
                f"{kind} would replace the messages of {options.root}: a log is only appended to",
                key="mode",
                hint='use mode "append"; for a new log name a directory that is not there',
            )
        types = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        check_columns(types, options.topic)
        check_target(options)
        settings = encode_settings(options)
        job = StagingJob.new(options.sink_id, streaming=cls.streaming)
        make_job_directory(options.root, job)
        return cls(options, job, settings)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Encode and stage the rows of one task; runs on an executor."""
        from pyspark import TaskContext  # noqa: PLC0415 - of the worker that runs the task

        from rocketstore.pipeline.source import plain_errors  # noqa: PLC0415 - which imports this

        context = TaskContext.get()
        partition_id = 0 if context is None else context.partitionId()
        options = self.sink_options
        encoder = RowEncoder(self.settings, partition_id, options.chunk_bytes)
        with plain_errors():
            chunks = (chunk for batch in iterator for chunk in encoder.encode(batch))
            file = stage_chunks(options.root, self.job, partition_id, chunks)
            return TaskCommit(self.job, file)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int | None = None,  # noqa: N803 - Spark's name; of a stream only
    ) -> None:
        """Append what the tasks staged, unless this batch is in the store; on the driver."""
        from rocketstore.pipeline.sink.sink_commit import (  # noqa: PLC0415 - on the driver only
            commit_batch,
        )
        from rocketstore.pipeline.source import plain_errors  # noqa: PLC0415 - which imports this

        reports = [message for message in messages if isinstance(message, TaskCommit)]
        # A stream is committed by a writer that did not plan it: the tasks know the job.
        job = reports[0].job if reports else self.job
        files = [report.file for report in reports if report.file is not None]
        batch_id = self.sink_options.batch_id if batchId is None else batchId
        with plain_errors():
            commit_batch(self.sink_options, job, files, batch_id)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],  # noqa: ARG002 - Spark's
        batchId: int | None = None,  # noqa: ARG002, N803 - Spark's
    ) -> None:
        """Take away what the tasks staged."""
        from rocketstore.pipeline.sink.sink_commit import (  # noqa: PLC0415 - on the driver only
            sweep_job,
        )

        sweep_job(self.sink_options, self.job)


class BatchSink(_Sink, DataSourceArrowWriter):
    """The sink of one ``df.write``."""

    streaming = False


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """The sink of one micro-batch of ``df.writeStream``."""

    streaming = True
