"""The options and columns of a write, and the files in which its tasks stage messages.

A staged file, a stream of Arrow IPC, belongs to one attempt of one task; only those of committed
attempts are used, and all go with the job's directory.

Laws: the store takes staged messages as they are, and stores them as ``MessageStore.put`` would;
messages that it would refuse are refused by `row_encoder`. A staged file is on the disk before its
task reports it, and no byte of it is used before its length and CRC-32 were compared. Executors
import no store.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from rocketstore.config import BrokerRole, FlushDiskType, StoreConfig
from rocketstore.config.sources import from_properties, load_broker_conf
from rocketstore.config.store_config import FIELD_OF_KEY
from rocketstore.errors import ConfigError, StoreError
from rocketstore.format.record import crc32
from rocketstore.format.refusals import check_topic
from rocketstore.pipeline.columns import HEADERS, TABLES
from rocketstore.pipeline.jobs.publishing import plain_write_errors
from rocketstore.pipeline.jobs.sweeping import claim
from rocketstore.pipeline.option_table import SINK
from rocketstore.pipeline.options import GivenOptions
from rocketstore.places.files import make_directories, sync_path
from rocketstore.places.location import is_remote, local_path, refuse_secrets
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


SINK_DIRECTORY: Final = "sink"  # below a store's root; 4.9 does not know it and leaves it alone
NOTHING: Final = "nothing was appended"

COLUMNS: Final = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("array<string>", "string"),
    "uniqKey": ("string",),
    "properties": ("map<string,string>",),
    "queueId": ("int", "bigint"),
    "flag": ("int",),
    "sysFlag": ("int",),
    "bornTimestamp": ("bigint", "timestamp"),
    "bornHost": ("string",),
    "reconsumeTimes": ("int",),
    "preparedTransactionOffset": ("bigint", "int"),
}
"""Columns that become parts of a message, and the types they may have. Others of table ``messages``
the store gives; in rows to be written they are left out."""

KAFKA_COLUMNS: Final = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    HEADERS: ("array<struct<key:string,value:binary>>",),
}
"""The same by their names in Kafka, whose writer leaves out all others."""

KAFKA_NAMES: Final = {
    "value": "body", "key": "keys", "topic": "topic", "partition": "queueId", HEADERS: "properties",
}  # fmt: skip

STAGED: Final = pa.schema(
    {
        "size": pa.int32(), "body": pa.large_binary(), "properties": pa.binary(),
        "bornTimestamp": pa.int64(), "topic": pa.string(), "queueId": pa.int32(),
        "flag": pa.int32(), "sysFlag": pa.int32(), "bornHost": pa.string(),
        "reconsumeTimes": pa.int32(), "preparedTransactionOffset": pa.int64(),
    }
)  # fmt: skip
"""Columns of a row for the commit: `size` is its record's, no `bornTimestamp` the store time."""

ABOUT: Final = tuple(STAGED.names[4:])
"""Those in which many rows are equal; the first one of its chunk that is is staged as `like`."""

NAMES: Final = {name.lower(): name for name in COLUMNS}
_ASSIGNED: Final = {name.lower() for name in TABLES["messages"]} - set(NAMES)


@dataclass(frozen=True)
class SinkOptions:
    """Options of a write: the store's absolute path, its settings, and the sink's own."""

    root: str
    config: StoreConfig
    streaming: bool
    has_kafka_names: bool
    topic: str | None
    sink_id: str | None
    batch_id: int | None
    queue_count: int
    chunk_bytes: int
    lock_timeout_s: float


def parse_sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Return the options of a write; raises `ConfigError` for impossible ones."""
    values = GivenOptions(given, frozenset({SINK}))
    sink_id, batch_id = values.get("sinkId"), values.number("batchId")
    if sink_id is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", sink_id):
        raise values.refused("sinkId", "must be letters, digits, _, . and -, 100 at most")
    if streaming and batch_id is not None:
        raise values.refused("batchId", "is for write: Spark numbers a stream's")
    if not streaming and (sink_id is None) != (batch_id is None):
        name = "batchId" if batch_id is None else "sinkId"
        what = f"sinkId and batchId come together, and {name} is missing"
        hint = "give both for a write that takes effect once, or neither"
        raise ConfigError(what, key=name, hint=hint)
    if not values.is_on("includeHeaders") or (
        "includeHeaders" in values and not values.has_kafka_names
    ):
        hint = "to write no headers, leave out their column"
        raise values.refused("includeHeaders", "must be true, with columnNames kafka", hint)
    return SinkOptions(
        root=_root(values),
        config=_config(values),
        streaming=streaming,
        has_kafka_names=values.has_kafka_names,
        topic=values.get("topic"),
        sink_id=sink_id,
        batch_id=batch_id,
        queue_count=values.number("queueCount", 1, 65_536) or 4,  # as DefaultMQProducer of 4.9
        chunk_bytes=values.byte_count("chunkBytes", 1024 * MiB) or 8 * MiB,
        # Another sink holds the store while it appends one batch: several GB in a minute.
        lock_timeout_s=values.seconds("lockTimeout", 60),
    )


def _root(values: GivenOptions) -> str:
    name = values.path_name()
    path = values.get(name, "")
    if not path.strip():
        hint = "give its directory to save(); INSERT INTO works with a temporary view, not a table"
        raise ConfigError("no store is named", key="path", hint=hint)
    refuse_secrets(path)
    if is_remote(path):
        what = "must be a directory: a store is appended to in place"
        raise values.refused(name, what, "write to a directory that driver and executors share")
    return local_path(path)


def _config(values: GivenOptions) -> StoreConfig:
    """Return the settings of the store, from the file and the options that give them."""
    texts = load_broker_conf(values["storeConfig"]) if "storeConfig" in values else {}
    config = from_properties(texts | {key: values[key] for key in FIELD_OF_KEY.keys() & values})
    # A commit flushes once, at its end, and has no replica to wait for.
    is_slave = config.broker_role is BrokerRole.SLAVE
    role = BrokerRole.SLAVE if is_slave else BrokerRole.ASYNC_MASTER
    flush = FlushDiskType.ASYNC_FLUSH
    return replace(config, flush_disk_type=flush, broker_role=role)


def check_columns(
    types: Iterable[tuple[str, str]], topic: str | None, *, has_kafka_names: bool = False
) -> None:
    """Refuse columns by names and types (Spark's simple texts) before any work."""
    known = KAFKA_COLUMNS if has_kafka_names else COLUMNS
    names, body = {one.lower(): one for one in known}, next(iter(known))
    seen = set()
    for given, kind in types:
        name = names.get(given.lower(), given)
        allowed = known.get(name, ())
        if not allowed and (has_kafka_names or given.lower() in _ASSIGNED):
            continue
        if not allowed:
            what = f"a message has no column {given!r}"
            hint = f"its columns are {', '.join(COLUMNS)}; drop others or put them in properties"
        elif name in seen:
            what, hint = f"column {name} is there twice", "drop one"
        elif kind.lower() not in allowed:
            what, hint = f"column {name} must be {' or '.join(allowed)}, found {kind}", "cast it"
        else:
            seen.add(name)
            continue
        raise ConfigError(what, key=name, value=kind, hint=hint)
    if body not in seen:
        raise ConfigError(f"there is no column {body}", key=body, hint="name the column so")
    if topic is not None:
        check_topic(topic)
    elif "topic" not in seen:
        what = "there is neither a column topic nor an option topic"
        raise ConfigError(what, key="topic", hint='give .option("topic", "...") or a column')


class StagedFile(NamedTuple):
    """A staged file as its task reports it."""

    name: str
    size: int
    crc32: int


class _Summed:
    """Hands what is written on to a file as it is, and knows its size and checksum."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.size, self.crc32 = file, 0, 0

    def write(self, content: Any) -> None:
        """Write some bytes."""
        self.size += self._file.write(content)
        self.crc32 = crc32(content, self.crc32)


def staging_root(root: str | Path) -> Path:
    """Return the directory of all jobs that stage for a store."""
    return Path(root) / SINK_DIRECTORY / "staging"


def new_job(options: SinkOptions) -> str:
    """Make the directory that a job's tasks stage in, on the driver; return its name."""
    kind = "stream" if options.streaming and options.sink_id else "write"
    parts = (kind, options.sink_id, options.batch_id, uuid.uuid4().hex)
    job = ".".join(str(part) for part in parts if part is not None)
    directory = staging_root(options.root) / job
    with plain_write_errors(directory, NOTHING):
        make_directories(directory)
        claim(directory)
    return job


def stage_chunks(
    root: str | Path, job: str, partition_id: int, chunks: Iterator[pa.RecordBatch]
) -> StagedFile | None:
    """Write the chunks of one attempt of a task and sync them; None when there is none."""
    first = next(chunks, None)
    if first is None:
        return None
    path = staging_root(root) / job / f"{partition_id:05}-{uuid.uuid4().hex}.arrows"
    with plain_write_errors(path.parent, NOTHING):
        try:
            with path.open("xb") as file:
                content = _Summed(file)
                with pa.ipc.new_stream(content, first.schema) as stream:
                    for part in itertools.chain((first,), chunks):
                        stream.write_batch(part)
                file.flush()
                os.fsync(file.fileno())
            sync_path(path.parent)  # its name; the driver syncs those of the directories above
        except FileNotFoundError as error:
            # If it were made here, it would be on a disk that the commit does not see.
            raise StoreError(
                f"{path.parent} is not there on {socket.gethostname()}, and the driver made it: "
                f"the directory is not shared, or was cleared; {NOTHING}",
                hint="write to a directory that the driver and all workers reach under one path",
            ) from error
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return StagedFile(path.name, content.size, content.crc32)
