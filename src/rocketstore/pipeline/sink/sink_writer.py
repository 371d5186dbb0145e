"""The options of a write, and its tasks: rows become messages, staged for the commit.

A staged file, a stream of Arrow IPC, belongs to one attempt of one task; only those of committed
attempts are used, and all go with the job's directory.

Laws: the store takes staged messages as they are, and stores them as ``MessageStore.put`` would;
messages that it would refuse are refused here. A staged file is on the disk before its task reports
it, and no byte of it is used before its length and CRC-32 were compared. Executors import no store.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import uuid
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from rocketstore import message
from rocketstore.config import BrokerRole, FlushDiskType
from rocketstore.config.sources import from_properties, load_broker_conf
from rocketstore.config.store_config import FIELD_OF_KEY
from rocketstore.errors import ConfigError, InvalidNameError, RefusedMessageError, StoreError
from rocketstore.format import properties
from rocketstore.format.host import encode_host
from rocketstore.format.java_hash import string_hash
from rocketstore.format.record import crc32, host_flags, record_size
from rocketstore.format.refusals import (
    check_queue_id,
    check_topic,
    encoded_born_host,
    refuse_special,
    refuse_transaction,
)
from rocketstore.pipeline.columns import HEADERS, TABLES
from rocketstore.pipeline.files import is_remote, local_path, refuse_secrets, sync_path
from rocketstore.pipeline.jobs.publishing import plain_write_errors
from rocketstore.pipeline.jobs.sweeping import claim
from rocketstore.pipeline.option_table import SINK
from rocketstore.pipeline.options import GivenOptions
from rocketstore.rules.limits import refused_length, refused_properties, refused_record
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rocketstore.config import StoreConfig

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
the store gives; of rows to be written they are left out."""

KAFKA_COLUMNS: Final = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    HEADERS: ("array<struct<key:string,value:binary>>",),
}
"""The same as a writer to Kafka calls them, who leaves out all others."""

_OF_KAFKA: Final = {
    "value": "body", "key": "keys", "topic": "topic", "partition": "queueId", HEADERS: "properties",
}  # fmt: skip

STAGED: Final = pa.schema(
    {
        "size": pa.int32(), "body": pa.large_binary(), "queueId": pa.int32(),
        "properties": pa.binary(), "bornTimestamp": pa.int64(), "topic": pa.string(),
        "flag": pa.int32(), "sysFlag": pa.int32(), "bornHost": pa.string(),
        "reconsumeTimes": pa.int32(), "preparedTransactionOffset": pa.int64(),
    }
)  # fmt: skip
"""Columns of a row for the commit: `size` is its record's, no `bornTimestamp` the store time."""

_NAMES: Final = {name.lower(): name for name in COLUMNS}
_ASSIGNED: Final = {name.lower() for name in TABLES["messages"]} - set(_NAMES)

SINK_DIRECTORY: Final = "sink"  # below a store's root; 4.9 does not know it and leaves it alone
_NOTHING: Final = "nothing was appended"


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
    path = values.get(values.path_name(), "")
    if not path.strip():
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
    config = from_properties(texts | {key: values[key] for key in FIELD_OF_KEY.keys() & values})
    # A commit flushes once, at its end, and has no replica to wait for.
    is_slave = config.broker_role is BrokerRole.SLAVE
    role = BrokerRole.SLAVE if is_slave else BrokerRole.ASYNC_MASTER
    flush = FlushDiskType.ASYNC_FLUSH
    return replace(config, retention=False, flush_disk_type=flush, broker_role=role)


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
        elif kind not in allowed:
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


class RowEncoder:
    """Encodes the rows of one task, in order; `file_size` is that of a CommitLog file."""

    def __init__(self, options: SinkOptions, file_size: int, partition_id: int) -> None:
        self._options, self._file_size = options, file_size
        self._store_flags = host_flags(b"", encode_host(options.config.store_host))
        self._partition_id, self._turn = partition_id, itertools.count(partition_id)
        self._first = 0
        self._head_sizes: dict[tuple[object, ...], int] = {}

    def encode(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a batch in chunks of about `chunk_bytes`, with `STAGED` columns."""
        given = zip(batch.schema.names, batch.columns, strict=True)
        names = _OF_KAFKA if self._options.has_kafka_names else _NAMES
        columns = {names.get(name.lower(), ""): column for name, column in given}
        if "keys" in columns and pa.types.is_binary(columns["keys"].type):
            # Not looked at here: which row is not UTF-8 is said below.
            columns["keys"] = columns["keys"].cast(pa.string(), safe=False)
        count = batch.num_rows
        self._head_sizes.clear()
        if self._options.topic is not None:
            columns["topic"] = pa.repeat(self._options.topic, count)
        for name in STAGED.names[6:]:
            default = message.DEFAULT_HOST if name == "bornHost" else 0
            columns[name] = columns.get(name, pa.repeat(default, count)).fill_null(default)
        born = columns.get("bornTimestamp", pa.nulls(count))
        if pa.types.is_timestamp(born.type):
            born = born.cast(pa.timestamp("ms", born.type.tz), safe=False)
        columns["bornTimestamp"] = born
        columns["body"] = columns["body"].cast(pa.large_binary())
        columns |= {name: pa.array(one) for name, one in self._row_by_row(columns).items()}
        arrays = [columns[field.name].cast(field.type) for field in STAGED]
        messages = pa.RecordBatch.from_arrays(arrays, schema=STAGED)
        self._first += count
        rows = max(1, self._options.chunk_bytes * count // max(messages.nbytes, 1))
        for first in range(0, count, rows):
            yield messages.slice(first, rows)

    def _row_by_row(self, columns: dict[str, pa.Array]) -> dict[str, list[Any]]:
        """Return size, queue and properties of each row, after all checks."""
        import pyarrow.compute as pc  # noqa: PLC0415 - takes long, and plans and commits need none

        bodies = columns["body"]
        found: dict[str, list[Any]] = {"size": [], "queueId": [], "properties": []}
        add_size, add_queue, add_block = (values.append for values in found.values())
        names = ("topic", "bornHost", "sysFlag", "queueId", "properties", "keys", "uniqKey", "tags")
        row, topic = 0, None
        try:
            lists = [
                columns[one].to_pylist() if one in columns else itertools.repeat(None)
                for one in names
            ]
            sizes = pc.binary_length(bodies).fill_null(-1).to_pylist()
            for row, (size, topic, host, sys_flag, queue_id, *parts) in enumerate(
                zip(sizes, *lists, strict=False)
            ):
                if sys_flag & message.COMPRESSED_FLAG and size > 0:
                    _check_compressed(sys_flag, bodies[row].as_buffer())
                pairs = _pairs(*parts)
                refuse_special(pairs)
                block = properties.encode_properties(pairs) if pairs else b""
                add_size(self._record_size(size, topic, host, sys_flag, block))
                add_queue(self._queue_id(queue_id, pairs))
                add_block(block)
        except (RefusedMessageError, InvalidNameError, UnicodeDecodeError) as error:
            what = getattr(error, "message", f"here or further on a text is not UTF-8: {error}")
            raise RefusedMessageError(
                f"row {self._first + row} of task {self._partition_id} (topic {topic!r:.60}) "
                f"cannot be stored: {what}",
                hint=getattr(error, "hint", None) or f"correct or filter such rows; {_NOTHING}",
            ) from error
        return found

    def _record_size(self, body: int, topic: str, host: str, sys_flag: int, block: bytes) -> int:
        """Return the size of a record, given those of its parts, that the store would take."""
        size = self._head_sizes.get((topic, host, sys_flag))
        if size is None:
            check_topic(topic)
            refuse_transaction(sys_flag)
            flags = self._store_flags | host_flags(encoded_born_host(host), b"")
            size = self._head_sizes[topic, host, sys_flag] = record_size(
                body_size=0, topic_size=len(topic), properties_size=0, sys_flag=flags
            )
        size += body + len(block)
        if body < 0:
            raise RefusedMessageError("its body is null, and an empty one is b''")
        refusal = (
            refused_length("body", body, self._options.config.max_message_size)
            or refused_properties(block)
            or refused_record(size, self._file_size)
        )
        if refusal is not None:
            raise RefusedMessageError(refusal.why)
        return size

    def _queue_id(self, given: int | None, pairs: dict[str, str]) -> int:
        """Return the queue given, else that of the keys, else the next in turn."""
        if given is not None:
            return check_queue_id(given)
        count, keys = self._options.queue_count, pairs.get(properties.KEYS)
        if keys:
            # As SelectMessageQueueByHash of 4.9: Math.abs of the remainder that Java gives.
            return abs(string_hash(keys)) % count
        return next(self._turn) % count


def _pairs(given: Any, keys: Any, unique_key: str | None, tags: str | None) -> dict[str, str]:
    """Return properties in stored order; a column wins over an entry of the same name."""
    is_of_kafka = given and isinstance(given[0], dict)
    pairs = _pairs_of_headers(given) if is_of_kafka else dict(given or ())
    if keys and not isinstance(keys, str):
        # What a reader split, with more blanks between, is not joined in another way.
        stored = properties.split_keys(pairs.get(properties.KEYS) or "")
        keys = None if stored == keys else properties.joined_keys(keys)
    if keys:
        pairs[properties.KEYS] = keys
    if unique_key:
        pairs[properties.UNIQ_KEY] = unique_key
    if tags:
        pairs[properties.TAGS] = tags
    return pairs


def _pairs_of_headers(headers: Any) -> dict[str, str]:
    """Return Kafka's headers as properties, of which none has the name of another."""
    pairs: dict[str, Any] = {}
    for one in headers:
        if one is None or one["key"] in pairs:
            raise RefusedMessageError(f"a header is null, or there twice: {one!r:.100}")
        pairs[one["key"]] = None if one["value"] is None else one["value"].decode()
    return pairs


def _check_compressed(sys_flag: int, body: pa.Buffer) -> None:
    """Refuse a body that its flag calls compressed and that begins in another way."""
    head, kind = (
        int.from_bytes(memoryview(body)[:2], "big"),
        sys_flag & message.COMPRESSION_TYPE_MASK,
    )
    is_zlib = body.size > 2 and head >> 8 & 0xF == zlib.DEFLATED and head % 31 == 0
    if kind in (0, message.COMPRESSION_TYPE_ZLIB) and not is_zlib:
        what = f"sysFlag {sys_flag:#x} calls the body compressed, but it is not a zlib stream"
        hint = 'read the source with .option("decompressBody", "false"), or leave sysFlag out'
        raise RefusedMessageError(what, hint=hint)


class StagedFile(NamedTuple):
    """A staged file as its task reports it."""

    name: str
    size: int
    crc32: int


def staging_root(root: str | Path) -> Path:
    """Return the directory of all jobs that stage for a store."""
    return Path(root) / SINK_DIRECTORY / "staging"


def new_job(options: SinkOptions) -> str:
    """Make the directory that a job's tasks stage in, on the driver; return its name."""
    kind = "stream" if options.streaming and options.sink_id else "write"
    parts = (kind, options.sink_id, options.batch_id, uuid.uuid4().hex)
    job = ".".join(str(part) for part in parts if part is not None)
    directory = staging_root(options.root) / job
    with plain_write_errors(directory, _NOTHING):
        directory.mkdir(parents=True)
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
    size = checksum = 0
    with plain_write_errors(path.parent, _NOTHING):
        try:
            with path.open("xb") as file:
                for part in itertools.chain((STAGED, first), chunks):
                    content = part.serialize()
                    size += file.write(content)
                    checksum = crc32(content, checksum)
                file.flush()
                os.fsync(file.fileno())
            sync_path(path.parent)  # its name; the driver syncs those of the directories above
        except FileNotFoundError as error:
            # If it were made here, it would be on a disk that the commit does not see.
            raise StoreError(
                f"{path.parent} is not there on {socket.gethostname()}, and the driver made it: "
                f"the directory is not shared, or was cleared; {_NOTHING}",
                hint="write to a directory that the driver and all workers reach under one path",
            ) from error
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return StagedFile(path.name, size, checksum)
