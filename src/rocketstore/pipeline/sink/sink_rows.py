"""What tasks do: rows become messages, which are staged in files for the commit.

Rows are checked, and encoded as far as they can be without the store; bodies stay in Arrow's
memory. A staged file, a stream of Arrow IPC, belongs to one attempt of one task and has a name of
its own, so attempts never meet; only those that committed attempts report are used.

Laws: what leaves this module the store takes as it is, and stores as ``MessageStore.put`` would;
what it would refuse is refused here, with the row and the reason. A staged file is on the disk
before its task reports it, and no byte of it is believed before its length and CRC-32 were
compared. Runs on executors, so it may not import the store.
"""

from __future__ import annotations

import os
import socket
import uuid
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from rocketstore.errors import (
    ConfigError,
    InvalidNameError,
    RefusedMessageError,
    StoreDamagedError,
    StoreError,
)
from rocketstore.format.blank import END_FILE_MIN_BLANK_SIZE
from rocketstore.format.host import encode_host
from rocketstore.format.java_hash import string_hash
from rocketstore.format.properties import (
    KEY_SEPARATOR,
    KEYS,
    PROPERTIES_SIZE_MAX,
    TAGS,
    UNIQ_KEY,
    encode_properties,
    joined_keys,
)
from rocketstore.format.record import crc32, host_flags, record_size
from rocketstore.format.refusals import encoded_born_host, refuse_special, refuse_transaction
from rocketstore.format.topic_name import check_queue_id, check_topic
from rocketstore.message import (
    COMPRESSED_FLAG,
    COMPRESSION_TYPE_MASK,
    COMPRESSION_TYPE_ZLIB,
    DEFAULT_HOST,
)
from rocketstore.pipeline.columns import TABLES
from rocketstore.pipeline.files import sync_path
from rocketstore.pipeline.jobs.publishing import plain_write_errors
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rocketstore.pipeline.sink.sink_writer import SinkOptions

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

STAGED: Final = pa.schema(
    {
        "body": pa.large_binary(), "queueId": pa.int32(), "properties": pa.binary(),
        "bornTimestamp": pa.int64(), "topic": pa.string(), "flag": pa.int32(),
        "sysFlag": pa.int32(), "bornHost": pa.string(), "reconsumeTimes": pa.int32(),
        "preparedTransactionOffset": pa.int64(),
    }
)  # fmt: skip
"""What the commit gets of each row; `bornTimestamp` is null for the store time."""

_NAMES: Final = {name.lower(): name for name in COLUMNS}
_ASSIGNED: Final = {name.lower() for name in TABLES["messages"]} - set(_NAMES)
_ZLIB_METHOD: Final = 8

SINK_DIRECTORY: Final = "sink"
"""Below the root of a store; 4.9 knows no such directory and leaves it alone."""

_WRITE: Final = "write"
_NOTHING: Final = "nothing was appended"


def check_columns(types: Sequence[tuple[str, str]], topic: str | None) -> None:
    """Refuse columns by names and types (Spark's simple texts) before any work."""
    seen = set()
    for given, kind in types:
        if given.lower() in _ASSIGNED:
            continue
        name = _NAMES.get(given.lower(), given)
        allowed = COLUMNS.get(name, ())
        if kind in allowed and name not in seen:
            seen.add(name)
            continue
        what, hint = f"column {name} must be {' or '.join(allowed)}, found {kind}", "cast it"
        if not allowed:
            what = f"a message has no column {given!r}"
            hint = f"its columns are {', '.join(COLUMNS)}; drop others or put them in properties"
        elif name in seen:
            what, hint = f"column {name} is there twice", "drop one"
        raise ConfigError(what, key=name, value=kind, hint=hint)
    if "body" not in seen:
        raise ConfigError("there is no column body", key="body", hint="name the column so")
    if topic is not None:
        check_topic(topic)
    elif "topic" not in seen:
        what = "there is neither a column topic nor an option topic"
        raise ConfigError(what, key="topic", hint='give .option("topic", "...") or a column')


class RowEncoder:
    """Encodes the rows of one task, in order; `file_size` is that of a CommitLog file."""

    def __init__(self, options: SinkOptions, file_size: int, partition_id: int) -> None:
        self._options = options
        self._file_size = file_size
        self._store_flags = host_flags(b"", encode_host(options.config.store_host))
        self._partition_id = self._turn = partition_id
        self._first = 0
        self._head_sizes: dict[tuple[object, ...], int] = {}

    def encode(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a batch in chunks of about `chunk_bytes`, with `STAGED` columns.

        Raises `RefusedMessageError` for a row that the store does not take; says which, and why.
        """
        given = zip(batch.schema.names, batch.columns, strict=True)
        columns = {_NAMES.get(name.lower(), ""): column for name, column in given}
        count = batch.num_rows
        self._head_sizes.clear()
        if self._options.topic is not None:
            columns["topic"] = pa.repeat(self._options.topic, count)
        for name in STAGED.names[5:]:
            default = DEFAULT_HOST if name == "bornHost" else 0
            columns[name] = columns.get(name, pa.repeat(default, count)).fill_null(default)
        born = columns.get("bornTimestamp", pa.nulls(count))
        if pa.types.is_timestamp(born.type):
            born = born.cast(pa.timestamp("ms", born.type.tz), safe=False)
        columns["bornTimestamp"] = born
        columns["body"] = columns["body"].cast(pa.large_binary())
        columns["queueId"], columns["properties"] = self._row_by_row(columns)
        arrays = [columns[field.name].cast(field.type) for field in STAGED]
        messages = pa.RecordBatch.from_arrays(arrays, schema=STAGED)
        self._first += count
        rows = max(1, self._options.chunk_bytes * count // max(messages.nbytes, 1))
        for first in range(0, count, rows):
            yield messages.slice(first, rows)

    def _row_by_row(self, columns: dict[str, pa.Array]) -> tuple[pa.Array, pa.Array]:
        """Return the queue and the properties of each row, after all checks."""
        queue_ids, blocks = [], []
        bodies = columns["body"]
        names = ("topic", "bornHost", "sysFlag", "queueId", "properties", "keys", "uniqKey", "tags")
        row, topic = 0, None
        try:
            lists = [columns[one].to_pylist() if one in columns else repeat(None) for one in names]
            sizes = pc.binary_length(bodies).fill_null(-1).to_pylist()
            for row, (size, topic, host, sys_flag, queue_id, *parts) in enumerate(
                zip(sizes, *lists, strict=False)
            ):
                if sys_flag & COMPRESSED_FLAG and size > 0:
                    _check_compressed(sys_flag, bodies[row].as_buffer())
                pairs = _pairs(*parts)
                refuse_special(pairs)
                block = encode_properties(pairs) if pairs else b""
                self._check(size, topic, host, sys_flag, len(block))
                queue_ids.append(self._queue_id(queue_id, pairs))
                blocks.append(block)
        except (RefusedMessageError, InvalidNameError, UnicodeDecodeError) as error:
            what = getattr(error, "message", f"here or further on a text is not UTF-8: {error}")
            raise RefusedMessageError(
                f"row {self._first + row} of task {self._partition_id} (topic {topic!r:.60}) "
                f"cannot be stored: {what}",
                hint=getattr(error, "hint", None)
                or "mend or filter such rows; nothing was written",
            ) from error
        return pa.array(queue_ids, pa.int32()), pa.array(blocks, pa.binary())

    def _check(self, body: int, topic: str, host: str, sys_flag: int, properties: int) -> None:
        """Refuse what the store would not take; of body and properties the sizes are looked at."""
        head = self._head_sizes.get((topic, host, sys_flag))
        if head is None:
            check_topic(topic)
            refuse_transaction(sys_flag)
            flags = self._store_flags | host_flags(encoded_born_host(host), b"")
            head = record_size(
                body_size=0, topic_size=len(topic), properties_size=0, sys_flag=flags
            )
            self._head_sizes[topic, host, sys_flag] = head
        limit = self._options.config.max_message_size
        room = self._file_size - END_FILE_MIN_BLANK_SIZE
        if 0 <= body <= limit and properties <= PROPERTIES_SIZE_MAX:
            if head + body + properties <= room:
                return
            what = f"{head + body + properties} bytes do not fit a CommitLog file of "
            what += f"{self._file_size} bytes, which holds {room}"
        elif body < 0:
            what = "its body is null, and an empty one is b''"
        elif body > limit:
            what = f"body of {body} bytes exceeds maxMessageSize of {limit}"
        else:
            what = f"properties of {properties} bytes exceed the limit of {PROPERTIES_SIZE_MAX}"
        raise RefusedMessageError(what)

    def _queue_id(self, given: int | None, pairs: dict[str, str]) -> int:
        """Return the queue given, else that of the keys, else the next in turn."""
        if given is not None:
            return check_queue_id(given)
        count, keys = self._options.queue_count, pairs.get(KEYS)
        if keys:
            # As SelectMessageQueueByHash of 4.9: Math.abs of the remainder that Java gives.
            return abs(string_hash(keys)) % count
        self._turn += 1
        return (self._turn - 1) % count


def _pairs(given: Any, keys: Any, unique_key: str | None, tags: str | None) -> dict[str, str]:
    """Return properties in stored order; a column wins over an entry of the same name."""
    pairs = dict(given or ())
    if keys and not isinstance(keys, str):
        # What a reader split, with more blanks between, is not joined in another way.
        stored = (pairs.get(KEYS) or "").split(KEY_SEPARATOR)
        keys = None if [key for key in stored if key] == keys else joined_keys(keys)
    if keys:
        pairs[KEYS] = keys
    if unique_key:
        pairs[UNIQ_KEY] = unique_key
    if tags:
        pairs[TAGS] = tags
    return pairs


def _check_compressed(sys_flag: int, body: pa.Buffer) -> None:
    """Refuse a body that its flag calls compressed and that begins in another way."""
    head = body.slice(0, min(body.size, 2)).to_pybytes()
    is_right = body.size > 2 and head[0] & 0xF == _ZLIB_METHOD
    is_right = is_right and int.from_bytes(head, "big") % 31 == 0
    if sys_flag & COMPRESSION_TYPE_MASK in (0, COMPRESSION_TYPE_ZLIB) and not is_right:
        raise RefusedMessageError(
            f"sysFlag {sys_flag:#x} says that the body is compressed, and it is no zlib stream",
            hint='read the source with .option("decompressBody", "false"), or leave sysFlag out',
        )


# --- staging ------------------------------------------------------------------------------------


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
    batch = () if options.batch_id is None else (str(options.batch_id),)
    named = () if options.sink_id is None else (options.sink_id, *batch)
    job = ".".join(("stream" if options.streaming else _WRITE, *named, uuid.uuid4().hex))
    directory = staging_root(options.root) / job
    with plain_write_errors(directory, _NOTHING):
        directory.mkdir(parents=True)
    return job


def jobs_of_sink(root: str | Path, job: str) -> list[str]:
    """Return the job and those of its stream, or of the batch that its write numbered."""
    named = job.rpartition(".")[0]
    if named == _WRITE:
        return [job]
    jobs = {path.name for path in staging_root(root).glob("*")}
    return sorted(one for one in jobs | {job} if one.rpartition(".")[0] == named)


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
                for part in chain((STAGED, first), chunks):
                    content = part.serialize()
                    size += file.write(content)
                    checksum = crc32(content, checksum)
                file.flush()
                os.fsync(file.fileno())
            sync_path(path.parent)  # its name; the driver syncs those of the directories above
        except FileNotFoundError as error:
            # Made here, the directory would be on a disk that the commit does not see.
            raise StoreError(
                f"{path.parent} is not there on {socket.gethostname()}, and the driver made it: "
                f"the directory is not shared, or somebody cleared it; {_NOTHING}",
                hint="write to a directory that the driver and all workers reach under one path",
            ) from error
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return StagedFile(path.name, size, checksum)


def check_staged(directory: Path, files: Iterable[StagedFile]) -> None:
    """Refuse files that are missing or not what was reported, before anything is appended."""
    for file in files:
        path = directory / file.name
        size = checksum = 0
        try:
            with path.open("rb") as content:
                while block := content.read(8 * MiB):
                    size += len(block)
                    checksum = crc32(block, checksum)
        except OSError as error:
            raise _damaged(path, f"cannot be read: {error.strerror}") from error
        if size != file.size:
            raise _damaged(path, f"has {size} bytes, its task wrote {file.size}")
        if checksum != file.crc32:
            raise _damaged(path, f"was changed: checksum {checksum}, of its task {file.crc32}")


def read_chunks(directory: Path, files: Iterable[StagedFile]) -> Iterator[pa.RecordBatch]:
    """Yield the chunks of staged files that were checked; one at a time is held."""
    for file in files:
        path = directory / file.name
        try:
            with pa.OSFile(str(path)) as content:
                yield from pa.ipc.open_stream(content)
        except OSError as error:
            raise _damaged(path, f"cannot be read: {error.strerror}") from error


def _damaged(path: Path, what: str) -> StoreDamagedError:
    return StoreDamagedError(
        f"staged file {path} {what}",
        hint="run the write again; where the store has sink/intent.json, a part of the batch is in "
        "the log: bring the file back, or move the intent away to leave it at that part",
    )
