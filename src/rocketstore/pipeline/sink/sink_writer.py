"""What Spark calls: the options of a write, the writer of a task, the commit or abort of a job.

Spark pickles a batch's writer to its tasks and to its commit. Of a stream it makes a writer for
each micro-batch and another one to commit it, so the job's name travels with the messages of the
tasks. An attempt that failed is not reported to Python; its files stay until the job's directory
goes.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Self

import msgspec
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from rocketstore.config import (
    BrokerRole,
    FlushDiskType,
    StoreConfig,
    from_properties,
    load_broker_conf,
)
from rocketstore.errors import ConfigError
from rocketstore.pipeline.environment import plain_errors
from rocketstore.pipeline.files import is_remote, local_path, refuse_secrets
from rocketstore.pipeline.options import SINK, GivenOptions
from rocketstore.pipeline.sink.sink_rows import (
    RowEncoder,
    StagedFile,
    check_columns,
    new_job,
    stage_chunks,
)
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

_STORE_KEYS: Final = (
    "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum",
    "maxMessageSize",
)  # fmt: skip
_SINK_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class SinkOptions:
    """What a write asked for: the store's absolute path, its settings, and the sink's own."""

    root: str
    config: StoreConfig
    streaming: bool
    topic: str | None
    sink_id: str | None
    batch_id: int | None
    queue_count: int
    chunk_bytes: int
    lock_timeout_s: float


def parse_sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Return the options of a write; raises `ConfigError` for what cannot be meant."""
    values = GivenOptions(given, frozenset({SINK}))
    sink_id, batch_id = values.get("sinkId"), values.number("batchId")
    if sink_id is not None and _SINK_ID.fullmatch(sink_id) is None:
        raise values.refused("sinkId", "must be letters, digits, _, . and -, 100 at most")
    if streaming and sink_id is None:
        raise ConfigError(
            "writeStream needs option sinkId, under which the store remembers its batches",
            key="sinkId",
            hint='give each query a name of its own: .option("sinkId", "orders-copy")',
        )
    if streaming and batch_id is not None:
        raise values.refused("batchId", "is for write: Spark numbers a stream's")
    if not streaming and (sink_id is None) != (batch_id is None):
        name = "batchId" if batch_id is None else "sinkId"
        raise ConfigError(
            f"sinkId and batchId come together, and {name} is missing",
            key=name,
            hint="give both for a write that takes effect once, or neither",
        )
    # Another sink has the store for as long as it appends one batch: several GB in a minute.
    lock_timeout_s = values.seconds("lockTimeout")
    return SinkOptions(
        root=_root(values),
        config=_config(values),
        streaming=streaming,
        topic=values.get("topic"),
        sink_id=sink_id,
        batch_id=batch_id,
        queue_count=values.number("queueCount", 1, 65_536) or 4,  # as DefaultMQProducer of 4.9
        chunk_bytes=values.byte_count("chunkBytes", 1024 * MiB) or 8 * MiB,
        lock_timeout_s=60.0 if lock_timeout_s is None else lock_timeout_s,
    )


def _root(values: GivenOptions) -> str:
    path = values.get("path", "").strip()
    if not path:
        raise ConfigError("no store is named", key="path", hint="give its directory to save()")
    refuse_secrets(path)
    if is_remote(path):
        what = "must be a directory: a store is appended to in place"
        raise values.refused("path", what, "write to a directory that driver and executors share")
    # Without `..`, and links stay as a user wrote them.
    return os.path.abspath(local_path(path))  # noqa: PTH100


def _config(values: GivenOptions) -> StoreConfig:
    """Return the settings of the store, from the file and the options that give them."""
    texts = load_broker_conf(values["storeConfig"]) if "storeConfig" in values else {}
    config = from_properties(texts | {key: values[key] for key in _STORE_KEYS if key in values})
    # A commit flushes once, at its end, and no replica is there to wait for.
    is_slave = config.broker_role is BrokerRole.SLAVE
    return msgspec.structs.replace(
        config,
        retention=False,
        flush_disk_type=FlushDiskType.ASYNC_FLUSH,
        broker_role=BrokerRole.SLAVE if is_slave else BrokerRole.ASYNC_MASTER,
    )


@dataclass
class TaskCommit(WriterCommitMessage):
    """What a task reports to the commit; `file` is None when it had no row."""

    job: str
    file: StagedFile | None


@dataclass
class _Sink:
    """What both kinds of sink do alike."""

    streaming: ClassVar[bool]
    sink_options: SinkOptions
    file_size: int
    job: str

    @classmethod
    def planned(cls, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> Self:
        """Return the sink, after all that can be refused before any work."""
        from rocketstore.pipeline.sink import sink_commit  # noqa: PLC0415 - on the driver only

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
        file_size = sink_commit.check_target(options)
        return cls(options, file_size, new_job(options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Encode and stage the rows of one task; runs on an executor."""
        from pyspark import TaskContext  # noqa: PLC0415 - of the worker that runs the task

        context = TaskContext.get()
        partition_id = 0 if context is None else context.partitionId()
        encoder = RowEncoder(self.sink_options, self.file_size, partition_id)
        with plain_errors():
            chunks = (chunk for batch in iterator for chunk in encoder.encode(batch))
            file = stage_chunks(self.sink_options.root, self.job, partition_id, chunks)
            return TaskCommit(self.job, file)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int | None = None,  # noqa: N803 - Spark's name; of a stream only
    ) -> None:
        """Append what the tasks staged, unless this batch is in the store; on the driver."""
        from rocketstore.pipeline.sink import sink_commit  # noqa: PLC0415 - on the driver only

        reports = [message for message in messages if isinstance(message, TaskCommit)]
        # A stream is committed by a writer that did not plan it: the tasks know the job.
        job = reports[0].job if reports else self.job
        files = [report.file for report in reports if report.file is not None]
        batch_id = self.sink_options.batch_id if batchId is None else batchId
        with plain_errors():
            sink_commit.commit_batch(self.sink_options, job, files, batch_id)

    def abort(self, *_: object) -> None:
        """Take away what the tasks staged."""
        from rocketstore.pipeline.sink import sink_commit  # noqa: PLC0415 - on the driver only

        sink_commit.sweep_job(self.sink_options, self.job)


class BatchSink(_Sink, DataSourceArrowWriter):
    """The sink of one ``df.write``."""

    streaming = False


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """The sink of one micro-batch of ``df.writeStream``."""

    streaming = True
