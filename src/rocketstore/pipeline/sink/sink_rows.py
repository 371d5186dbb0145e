"""Rows to messages: checked, and encoded as far as they can be without the store.

Law: what leaves this module the store takes as it is, and stores as ``MessageStore.put`` would;
what it would refuse is refused here, with the row and the reason, before anything is written to it.
Runs on executors, so it may not import the store; tests hold the two equal.

Bodies stay in Arrow's memory: what a task holds besides the batch that Spark gave it is one chunk.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rocketstore.errors import ConfigError, FormatError, RefusedMessageError
from rocketstore.format.blank import END_FILE_MIN_BLANK_SIZE
from rocketstore.format.host import encode_host
from rocketstore.format.java_hash import string_hash
from rocketstore.format.properties import (
    DELAY,
    INNER_MULTI_DISPATCH,
    KEY_SEPARATOR,
    KEYS,
    PROPERTIES_SIZE_MAX,
    TAGS,
    UNIQ_KEY,
    encode_properties,
)
from rocketstore.format.record import TOPIC_SIZE_MAX, host_flags, record_size
from rocketstore.message import (
    COMPRESSED_FLAG,
    COMPRESSION_TYPE_MASK,
    COMPRESSION_TYPE_ZLIB,
    DEFAULT_HOST,
    TRANSACTION_MASK,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

QUEUE_ID_MAX: Final = 2**31 - 1

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
"""Columns that become parts of a message, and the types they may have."""

ASSIGNED_COLUMNS: Final = (
    "brokerName", "queueOffset", "storeTimestamp", "physicalOffset", "size", "storeHost", "bodyCRC",
    "msgId",
)  # fmt: skip
"""Columns of table ``messages`` that the store gives; of rows to be written they are left out."""

STAGED_COLUMNS: Final = (
    "body", "queueId", "topic", "properties", "flag", "sysFlag", "bornTimestamp", "bornHost",
    "reconsumeTimes", "preparedTransactionOffset",
)  # fmt: skip
"""What the commit gets of each row, in this order; `bornTimestamp` is null for the store time."""

_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_ZLIB_METHOD: Final = 8


@dataclass(frozen=True)
class EncodeSettings:
    """What encoding needs to know of the store; `topic` wins over the column."""

    topic: str | None
    queue_count: int
    max_message_size: int
    file_size: int
    store_host: bytes


def check_columns(types: Sequence[tuple[str, str]], topic: str | None) -> None:
    """Check names and types (Spark's simple texts) of the columns to be written.

    Raises
    ------
    ConfigError
        A column is missing, unknown, there twice, or of a type that it may not have.
    """
    known = {name.lower(): name for name in COLUMNS}
    assigned = {name.lower() for name in ASSIGNED_COLUMNS}
    seen = set()
    for given, kind in types:
        if given.lower() in assigned:
            continue
        name = known.get(given.lower())
        if name is None:
            raise ConfigError(
                f"a message has no column {given!r}",
                key=given,
                hint=f"its columns are {', '.join(COLUMNS)}; drop others or put them in properties",
            )
        if name in seen:
            raise ConfigError(f"column {name} is there twice", key=name, hint="drop one")
        seen.add(name)
        if kind not in COLUMNS[name]:
            raise ConfigError(
                f"column {name} must be {' or '.join(COLUMNS[name])}, found {kind}",
                key=name,
                value=kind,
                hint="cast it",
            )
    if "body" not in seen:
        raise ConfigError("there is no column body", key="body", hint="name the column so")
    if topic is None and "topic" not in seen:
        raise ConfigError(
            "there is neither a column topic nor an option topic",
            key="topic",
            hint='give .option("topic", "...") or a column',
        )
    if topic is not None:
        check_topic(topic)


class RowEncoder:
    """Encodes the rows of one task, in order, in chunks of about `chunk_bytes`."""

    def __init__(self, settings: EncodeSettings, partition_id: int, chunk_bytes: int) -> None:
        self._settings = settings
        self._partition_id = partition_id
        self._chunk_bytes = chunk_bytes
        self._turn = partition_id
        self._rows = 0
        self._topics: set[str] = set()

    def encode(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a batch in chunks of the columns that `sink_commit` puts.

        Raises
        ------
        RefusedMessageError
            A row is no message that the store takes; says which row, and why.
        """
        known = {name.lower(): name for name in COLUMNS}
        names = [known.get(name.lower(), "") for name in batch.schema.names]
        rows = max(1, self._chunk_bytes * batch.num_rows // max(batch.nbytes, 1))
        for first in range(0, batch.num_rows, rows):
            part = batch.slice(first, rows)
            yield self._encoded({name: part.column(at) for at, name in enumerate(names) if name})

    def _encoded(self, columns: dict[str, pa.Array[Any]]) -> pa.RecordBatch:
        import pyarrow as pa  # noqa: PLC0415 - kept out of planning processes

        body = columns.pop("body").cast(pa.large_binary())
        lists = {
            name: (_born_ms(column) if name == "bornTimestamp" else column).to_pylist()
            for name, column in columns.items()
        }
        made = []
        for at, scalar in enumerate(body):
            row = {name: values[at] for name, values in lists.items()}
            try:
                made.append(self._message(row, scalar.as_buffer()))
            except (RefusedMessageError, FormatError) as error:
                topic = self._settings.topic or row.get("topic")
                raise RefusedMessageError(
                    f"row {self._rows} of task {self._partition_id} (topic {topic!r:.60}) cannot "
                    f"be stored: {error.args[0]}",
                    hint=error.hint or "mend or filter such rows; nothing was written",
                ) from error
            self._rows += 1
        kinds = (
            pa.int32(), pa.string(), pa.binary(), pa.int32(), pa.int32(), pa.int64(), pa.string(),
            pa.int32(), pa.int64(),
        )  # fmt: skip
        values = zip(*made, strict=True)
        others = [pa.array(one, kind) for one, kind in zip(values, kinds, strict=True)]
        return pa.RecordBatch.from_arrays([body, *others], names=list(STAGED_COLUMNS))

    def _message(self, row: dict[str, Any], body: pa.Buffer | None) -> tuple[Any, ...]:
        """Return the fields of a message as they are staged, without the body."""
        settings = self._settings
        topic: Any = settings.topic or row.get("topic")
        if topic not in self._topics:
            self._topics.add(check_topic(topic))
        if body is None:
            raise RefusedMessageError("its body is null", hint="an empty body is b''; filter nulls")
        if body.size > settings.max_message_size:
            raise RefusedMessageError(
                f"body of {body.size} bytes exceeds maxMessageSize of {settings.max_message_size}"
            )
        pairs = _properties(row)
        properties = encode_properties(pairs) if pairs else b""
        if len(properties) > PROPERTIES_SIZE_MAX:
            raise RefusedMessageError(
                f"properties of {len(properties)} bytes exceed the limit of {PROPERTIES_SIZE_MAX}"
            )
        host = row.get("bornHost") or DEFAULT_HOST
        size = record_size(
            body_size=body.size,
            topic_size=len(topic),
            properties_size=len(properties),
            sys_flag=host_flags(_born_host(host), settings.store_host),
        )
        if size + END_FILE_MIN_BLANK_SIZE > settings.file_size:
            raise RefusedMessageError(
                f"{size} bytes do not fit a CommitLog file of {settings.file_size} bytes, "
                f"which holds {settings.file_size - END_FILE_MIN_BLANK_SIZE}"
            )
        return (
            self._queue_id(row.get("queueId"), pairs), topic, properties, row.get("flag") or 0,
            _sys_flag(row.get("sysFlag"), body), row.get("bornTimestamp"), host,
            row.get("reconsumeTimes") or 0, row.get("preparedTransactionOffset") or 0,
        )  # fmt: skip

    def _queue_id(self, given: int | None, pairs: dict[str, str]) -> int:
        """Return the queue given, else that of the keys, else the next in turn."""
        if given is not None:
            if not 0 <= given <= QUEUE_ID_MAX:
                raise RefusedMessageError(f"queue id {given} is outside 0 to {QUEUE_ID_MAX}")
            return given
        count = self._settings.queue_count
        keys = pairs.get(KEYS)
        if keys:
            # As SelectMessageQueueByHash of 4.9: Math.abs of the remainder that Java gives.
            return abs(string_hash(keys)) % count
        turn = self._turn % count
        self._turn += 1
        return turn


def check_topic(topic: object) -> str:
    """Return `topic` if the store takes it as a name; as ``storage.topic_name.check_topic``."""
    if not isinstance(topic, str) or not topic:
        raise RefusedMessageError("a row has no topic", hint="fill the column, or name a topic")
    if _TOPIC.fullmatch(topic) is None:
        raise RefusedMessageError(
            f"topic {topic!r:.150} has characters outside %|a-zA-Z0-9_-",
            hint="use letters, digits, %, |, _ and - only",
        )
    if len(topic) > TOPIC_SIZE_MAX:
        raise RefusedMessageError(
            f"topic of {len(topic)} bytes exceeds the limit of {TOPIC_SIZE_MAX}"
        )
    return topic


def _born_ms(column: pa.Array[Any]) -> pa.Array[Any]:
    import pyarrow as pa  # noqa: PLC0415 - kept out of planning processes

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    return column.cast(pa.int64())


def _properties(row: dict[str, Any]) -> dict[str, str]:
    """Return the properties in stored order; a column wins over an entry of the same name."""
    pairs = dict(row.get("properties") or ())
    keys = row.get("keys")
    if keys is not None and not isinstance(keys, str):
        if any(key is None or KEY_SEPARATOR in key for key in keys):
            raise RefusedMessageError("a key is null or contains a blank, the separator of keys")
        # What a reader split, with blanks of its own, is not joined anew.
        stored = (pairs.get(KEYS) or "").split(KEY_SEPARATOR)
        keys = None if [key for key in stored if key] == keys else KEY_SEPARATOR.join(keys)
    for name, value in ((KEYS, keys), (UNIQ_KEY, row.get("uniqKey")), (TAGS, row.get("tags"))):
        if value:
            pairs[name] = value  # noqa: PERF403 - two or three of them
    for name, value in pairs.items():
        if value is None:
            raise RefusedMessageError(f"property {name!r:.60} is null", hint="leave it out")
    if INNER_MULTI_DISPATCH in pairs:
        raise RefusedMessageError(
            f"property {INNER_MULTI_DISPATCH} asks for delivery to several queues"
        )
    delay = pairs.get(DELAY)
    if delay is not None and not _is_no_delay(delay):
        raise RefusedMessageError(
            f"property {DELAY}={delay!r:.20} asks for a delayed delivery",
            hint="take the property out, or put such messages through a broker",
        )
    return pairs


def _is_no_delay(text: str) -> bool:
    try:
        return int(text) <= 0
    except ValueError:
        return False


def _born_host(host: str) -> bytes:
    try:
        return encode_host(host)
    except FormatError as error:
        raise RefusedMessageError(f"born host {host!r:.60} is not ip:port or [v6]:port") from error


def _sys_flag(sys_flag: int | None, body: pa.Buffer) -> int:
    """Return sysFlag if the store takes it with this body."""
    if not sys_flag:
        return 0
    if sys_flag & TRANSACTION_MASK:
        raise RefusedMessageError(
            f"sysFlag {sys_flag:#x} has transaction bits (mask 0xC)",
            hint="filter such rows: the store does not take transactional messages yet",
        )
    kind = sys_flag & COMPRESSION_TYPE_MASK
    if sys_flag & COMPRESSED_FLAG and kind in (0, COMPRESSION_TYPE_ZLIB) and not _is_zlib(body):
        raise RefusedMessageError(
            f"sysFlag {sys_flag:#x} says that the body is compressed, and it is no zlib stream",
            hint='read the source with .option("decompressBody", "false"), or leave sysFlag out',
        )
    return sys_flag


def _is_zlib(body: pa.Buffer) -> bool:
    """Whether a body begins as a zlib stream does, or is empty, which nobody inflates."""
    head = body.slice(0, min(body.size, 2)).to_pybytes()
    if not head:
        return True
    is_deflate = head[0] & 0xF == _ZLIB_METHOD
    return body.size > 2 and is_deflate and int.from_bytes(head, "big") % 31 == 0
