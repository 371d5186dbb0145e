"""Rows of a DataFrame become messages as the commit takes them, after all checks.

Law: what `whole_columns` makes of a batch at once is what is made of it row by row here, which says
of each row that the store would refuse why it does.
"""

from __future__ import annotations

import itertools
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from rocketstore import message
from rocketstore.errors import ConfigError, InvalidNameError, RefusedMessageError
from rocketstore.format import properties
from rocketstore.format.host import encode_host
from rocketstore.format.java_hash import string_hash
from rocketstore.format.record import host_flags, record_size
from rocketstore.format.refusals import (
    check_queue_id,
    check_topic,
    encoded_born_host,
    refuse_special,
    refuse_transaction,
)
from rocketstore.pipeline.columns import HEADERS, TABLES
from rocketstore.pipeline.sink.sink_writer import NOTHING
from rocketstore.pipeline.sink.whole_columns import (
    UnlikeError,
    first_equal,
    java_hashes,
    property_blocks,
)
from rocketstore.rules.limits import refused_length, refused_properties, refused_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
        "size": pa.int32(), "body": pa.large_binary(), "properties": pa.binary(),
        "bornTimestamp": pa.int64(), "topic": pa.string(), "queueId": pa.int32(),
        "flag": pa.int32(), "sysFlag": pa.int32(), "bornHost": pa.string(),
        "reconsumeTimes": pa.int32(), "preparedTransactionOffset": pa.int64(),
    }
)  # fmt: skip
"""Columns of a row for the commit: `size` is its record's, no `bornTimestamp` the store time."""

ABOUT: Final = tuple(STAGED.names[4:])
"""Those in which many rows are equal; the first one of its chunk that is is staged as `like`."""

_NAMES: Final = {name.lower(): name for name in COLUMNS}
_ASSIGNED: Final = {name.lower() for name in TABLES["messages"]} - set(_NAMES)


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
        self._partition_id = self._turn = partition_id
        self._first = 0
        self._head_sizes: dict[tuple[object, ...], int] = {}

    def encode(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a batch in chunks of about `chunk_bytes`, with `STAGED` columns."""
        count, columns = batch.num_rows, self.columns_of(batch)
        self._head_sizes.clear()
        try:
            columns |= self._at_once(columns)
        except (UnlikeError, RefusedMessageError, InvalidNameError, ValueError):
            columns |= {name: pa.array(one) for name, one in self._row_by_row(columns).items()}
        arrays = [columns[field.name].cast(field.type) for field in STAGED]
        messages = pa.RecordBatch.from_arrays(arrays, schema=STAGED)
        self._first += count
        rows = max(1, self._options.chunk_bytes * count // max(messages.nbytes, 1))
        for first in range(0, count, rows):
            yield with_first_equal(messages.slice(first, rows))

    def columns_of(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return the columns of a batch as those of messages, with what is to stand for nulls."""
        given = zip(batch.schema.names, batch.columns, strict=True)
        names = _OF_KAFKA if self._options.has_kafka_names else _NAMES
        columns = {names.get(name.lower(), ""): column for name, column in given}
        if "keys" in columns and pa.types.is_binary(columns["keys"].type):
            # Not looked at here: which row is not UTF-8 is said below.
            columns["keys"] = columns["keys"].cast(pa.string(), safe=False)
        count = batch.num_rows
        if self._options.topic is not None:
            columns["topic"] = pa.repeat(self._options.topic, count)
        for name in ABOUT[2:]:
            default = message.DEFAULT_HOST if name == "bornHost" else 0
            columns[name] = columns.get(name, pa.repeat(default, count)).fill_null(default)
        born = columns.get("bornTimestamp", pa.nulls(count))
        if pa.types.is_timestamp(born.type):
            born = born.cast(pa.timestamp("ms", born.type.tz), safe=False)
        columns["bornTimestamp"] = born
        columns["body"] = columns["body"].cast(pa.large_binary())
        return columns

    def _at_once(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Return the same as `_row_by_row`; raises where a row has to be looked at by itself."""
        import pyarrow.compute as pc  # noqa: PLC0415 - takes long, and plans and commits need none

        topics, bodies = columns["topic"], columns["body"]
        count = len(bodies)
        if not count or bodies.null_count or topics.null_count:
            raise UnlikeError
        blocks, keys = property_blocks(columns, count)
        body_sizes = pc.binary_length(bodies).to_numpy()
        block_sizes = pc.binary_length(blocks).to_numpy()
        first = first_equal((topics, columns["bornHost"], columns["sysFlag"]), count)
        heads = np.zeros(count, dtype=np.int64)
        for row in np.unique(first).tolist():
            one = (columns[name][row].as_py() for name in ("topic", "bornHost", "sysFlag"))
            heads[row] = self._head_size(*one)
        sizes = heads[first] + body_sizes + block_sizes
        longest = blocks[int(block_sizes.argmax())].as_py()
        self._check_sizes(int(body_sizes.max()), longest, int(sizes.max()))
        packed = columns["sysFlag"].to_numpy() & message.COMPRESSED_FLAG
        for row in np.flatnonzero((packed != 0) & (body_sizes > 0)).tolist():
            _check_compressed(columns["sysFlag"][row].as_py(), bodies[row].as_buffer())
        given = columns.get("queueId", pa.nulls(count, pa.int32()))
        queues = given.fill_null(0).to_numpy().astype(np.int64)
        check_queue_id(int(queues.max()))
        check_queue_id(int(queues.min()))
        is_open, has_key = (
            mask.to_numpy(zero_copy_only=False) for mask in (given.is_null(), keys.is_valid())
        )
        by_key, in_turn = np.flatnonzero(is_open & has_key), np.flatnonzero(is_open & ~has_key)
        # As SelectMessageQueueByHash of 4.9: Math.abs of the remainder that Java gives.
        queues[by_key] = np.abs(java_hashes(keys.take(by_key))) % self._options.queue_count
        queues[in_turn] = (self._turn + np.arange(len(in_turn))) % self._options.queue_count
        self._turn += len(in_turn)
        return {"size": pa.array(sizes), "queueId": pa.array(queues), "properties": blocks}

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
                hint=getattr(error, "hint", None) or f"correct or filter such rows; {NOTHING}",
            ) from error
        return found

    def _record_size(self, body: int, topic: str, host: str, sys_flag: int, block: bytes) -> int:
        """Return the size of a record, given those of its parts, that the store would take."""
        size = self._head_size(topic, host, sys_flag) + body + len(block)
        if body < 0:
            raise RefusedMessageError("its body is null, and an empty one is b''")
        self._check_sizes(body, block, size)
        return size

    def _head_size(self, topic: str, host: str, sys_flag: int) -> int:
        """Return the size of a record without body and properties."""
        size = self._head_sizes.get((topic, host, sys_flag))
        if size is None:
            check_topic(topic)
            refuse_transaction(sys_flag)
            flags = self._store_flags | host_flags(encoded_born_host(host), b"")
            size = self._head_sizes[topic, host, sys_flag] = record_size(
                body_size=0, topic_size=len(topic), properties_size=0, sys_flag=flags
            )
        return size

    def _check_sizes(self, body: int, block: bytes, size: int) -> None:
        refusal = (
            refused_length("body", body, self._options.config.max_message_size)
            or refused_properties(block)
            or refused_record(size, self._file_size)
        )
        if refusal is not None:
            raise RefusedMessageError(refusal.why)

    def _queue_id(self, given: int | None, pairs: dict[str, str]) -> int:
        """Return the queue given, else that of the keys, else the next in turn."""
        if given is not None:
            return check_queue_id(given)
        count, keys = self._options.queue_count, pairs.get(properties.KEYS)
        if keys:
            # As SelectMessageQueueByHash of 4.9: Math.abs of the remainder that Java gives.
            return abs(string_hash(keys)) % count
        self._turn += 1
        return (self._turn - 1) % count


def with_first_equal(chunk: pa.RecordBatch) -> pa.RecordBatch:
    """Return a chunk with column `like`."""
    like = first_equal(map(chunk.column, ABOUT), chunk.num_rows)
    return chunk.append_column("like", pa.array(like, pa.int32()))


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
