"""Rows of a DataFrame become messages as the commit takes them, after all checks; on workers.

Rows are made and checked by whole columns. Where a batch has one that the store would refuse, the
first such row is searched, and made by itself for the reason.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketstore import message
from rocketstore.errors import InvalidNameError, RefusedMessageError
from rocketstore.format.host import encode_host
from rocketstore.format.record import host_flags, record_size
from rocketstore.format.refusals import (
    check_queue_id,
    check_topic,
    encoded_born_host,
    refuse_transaction,
)
from rocketstore.pipeline.sink.sink_writer import ABOUT, KAFKA_NAMES, NAMES, NOTHING, STAGED
from rocketstore.pipeline.sink.whole_columns import property_blocks
from rocketstore.rules.limits import refused_length, refused_properties, refused_record
from rocketstore.scan.arrow import first_equal, java_hashes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketstore.pipeline.sink.sink_writer import SinkOptions

_REFUSALS: Final = (RefusedMessageError, InvalidNameError, UnicodeDecodeError)


class RowEncoder:
    """Encodes the rows of one task, in order; `file_size` is that of a CommitLog file."""

    def __init__(self, options: SinkOptions, file_size: int, partition_id: int) -> None:
        self._options, self._file_size = options, file_size
        self._store_flags = host_flags(b"", encode_host(options.config.store_host))
        self._partition_id = self._turn = partition_id
        self._first = 0

    def encode(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a batch in chunks of about `chunk_bytes`, with `STAGED` columns."""
        count, columns = batch.num_rows, self._columns_of(batch)
        if not count:
            return
        try:
            columns |= self._made(columns)
        except _REFUSALS:
            self._refuse(columns, count)
        arrays = [columns[field.name].cast(field.type) for field in STAGED]
        messages = pa.RecordBatch.from_arrays(arrays, schema=STAGED)
        self._first += count
        rows = max(1, self._options.chunk_bytes * count // max(messages.nbytes, 1))
        for first in range(0, count, rows):
            chunk = messages.slice(first, rows)
            like = first_equal(map(chunk.column, ABOUT), chunk.num_rows)
            yield chunk.append_column("like", pa.array(like, pa.int32()))

    def _refuse(self, columns: dict[str, Any], count: int) -> None:
        """Raise the reason of the first row that the store would refuse."""

        def refusal(start: int, stop: int) -> Exception | None:
            try:
                self._made({name: one[start:stop] for name, one in columns.items()})
            except _REFUSALS as error:
                return error
            return None

        row = bisect_left(range(count), 1, key=lambda row: refusal(0, row + 1) is not None)
        error = refusal(row, row + 1)
        topic = columns["topic"].cast(pa.binary())[row].as_py()
        named = None if topic is None else topic.decode("utf-8", "backslashreplace")
        what = getattr(error, "message", f"a text is not UTF-8: {error}")
        raise RefusedMessageError(
            f"row {self._first + row} of task {self._partition_id} (topic {named!r:.60}) "
            f"cannot be stored: {what}",
            hint=getattr(error, "hint", None) or f"correct or filter such rows; {NOTHING}",
        ) from error

    def _columns_of(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return the columns of a batch as those of messages, with what is to stand for nulls."""
        given = zip(batch.schema.names, batch.columns, strict=True)
        names = KAFKA_NAMES if self._options.has_kafka_names else NAMES
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
            # Down, before 1970 as well: a cast goes towards it.
            born = pc.floor_temporal(born.cast(pa.timestamp("us")), unit="millisecond")
            born = born.cast(pa.timestamp("ms"))
        columns["bornTimestamp"] = born
        columns["body"] = columns["body"].cast(pa.large_binary())
        return columns

    def _made(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Return size, queue and properties of rows, after all checks."""
        topics, bodies = columns["topic"], columns["body"]
        count = len(bodies)
        if bodies.null_count:
            raise RefusedMessageError("its body is null, and an empty one is b''")
        if topics.null_count:
            check_topic(None)
        blocks, keys = property_blocks(columns, count)
        body_sizes = pc.binary_length(bodies).to_numpy()
        block_sizes = pc.binary_length(blocks).to_numpy()
        first = first_equal((topics, columns["bornHost"], columns["sysFlag"]), count)
        heads = np.zeros(count, dtype=np.int64)
        for row in np.flatnonzero(first == np.arange(count)).tolist():
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
        is_open = given.is_null().to_numpy(zero_copy_only=False)
        has_key = keys.is_valid().to_numpy(zero_copy_only=False)
        by_key, in_turn = np.flatnonzero(is_open & has_key), np.flatnonzero(is_open & ~has_key)
        # As SelectMessageQueueByHash of 4.9: Math.abs of the remainder that Java gives.
        queues[by_key] = np.abs(java_hashes(keys.take(by_key))) % self._options.queue_count
        queues[in_turn] = (self._turn + np.arange(len(in_turn))) % self._options.queue_count
        self._turn += len(in_turn)
        return {"size": pa.array(sizes), "queueId": pa.array(queues), "properties": blocks}

    def _head_size(self, topic: str, host: str, sys_flag: int) -> int:
        """Return the size of a record without body and properties."""
        check_topic(topic)
        refuse_transaction(sys_flag)
        flags = self._store_flags | host_flags(encoded_born_host(host), b"")
        return record_size(body_size=0, topic_size=len(topic), properties_size=0, sys_flag=flags)

    def _check_sizes(self, body: int, block: bytes, size: int) -> None:
        refusal = (
            refused_length("body", body, self._options.config.max_message_size)
            or refused_properties(block)
            or refused_record(size, self._file_size)
        )
        if refusal is not None:
            raise RefusedMessageError(refusal.why)


def _check_compressed(sys_flag: int, body: pa.Buffer) -> None:
    """Refuse a body that its flag calls compressed and that begins in another way."""
    head = int.from_bytes(memoryview(body)[:2], "big")
    kind = sys_flag & message.COMPRESSION_TYPE_MASK
    is_zlib = body.size > 2 and head >> 8 & 0xF == zlib.DEFLATED and head % 31 == 0
    if kind in (0, message.COMPRESSION_TYPE_ZLIB) and not is_zlib:
        what = f"sysFlag {sys_flag:#x} calls the body compressed, but it is not a zlib stream"
        hint = 'read the source with .option("decompressBody", "false"), or leave sysFlag out'
        raise RefusedMessageError(what, hint=hint)
