"""Put many messages of one queue at once: all of them or none, with consecutive offsets.

Law: a batch is judged as a whole before anything is appended. Its messages get one store time, and
a consumer sees them one by one, like any others.

How derived: MessageExtBatch, MessageExtEncoder.encode and the batch callback of 4.9.8 (spec B3.6,
F15). What 4.9 answers by an exception is a status here (K-P7), and the last file is looked up under
the lock (K-P3). Cost: messages become rows of a table, and one kernel writes all records.
"""

from __future__ import annotations

from operator import attrgetter
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rocketstore.errors import RefusedMessageError, StoreError
from rocketstore.format.client_batch import decode_client_batch
from rocketstore.format.properties import (
    PROPERTIES_SIZE_MAX,
    encode_properties,
    message_properties,
)
from rocketstore.format.record import host_flags
from rocketstore.message import DEFAULT_HOST
from rocketstore.scan import kernels
from rocketstore.scan.batch_state import (
    BATCH_COLUMN_COUNT,
    MESSAGE_FIXED_SIZE,
    NO_TIMESTAMP,
    BatchColumn,
)
from rocketstore.storage.commit_log import BatchTooLargeError
from rocketstore.storage.prepared import (
    HOST_BITS,
    encoded_born_host,
    is_true,
    may_be_special,
    refuse_special,
    refuse_special_block,
    refuse_transaction,
    waits_for_flush,
)
from rocketstore.storage.results import PutMessageStatus, PutResult
from rocketstore.storage.writer import body_bytes, properties_refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from rocketstore.config import StoreConfig
    from rocketstore.message import Message
    from rocketstore.storage.commit_log import CommitLog, QueueCell
    from rocketstore.storage.statistics import StoreStatistics
    from rocketstore.storage.writer import StoreWriter

    ByteArray = npt.NDArray[np.uint8]
    Table = npt.NDArray[np.int64]

_C: Final = BatchColumn
_PLACES: Final = slice(int(_C.BODY_AT), int(_C.PROPERTIES_AT) + 1, 2)
_SIZES: Final = slice(int(_C.BODY_SIZE), int(_C.PROPERTIES_SIZE) + 1, 2)
_SYS_FLAG: Final = int(_C.SYS_FLAG)
_BORN: Final = int(_C.BORN_TIMESTAMP)
_HOST_AT: Final = int(_C.BORN_HOST_AT)
_RECORD_SIZE: Final = int(_C.RECORD_SIZE)
_DEFAULT_HOST: Final = encoded_born_host(DEFAULT_HOST)
_GUESSED_MESSAGE_BYTES: Final = 128
_SLOW_NS: Final = 1_000_000
_NOTHING: Final = np.zeros(0, np.uint8)
_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)

_details: Final = attrgetter(
    "flag", "sys_flag", "born_timestamp_ms", "born_host", "reconsume_times",
    "prepared_transaction_offset", "wait_flush", "properties",
)  # fmt: skip
_NO_DETAILS: Final[tuple[object, ...]] = (0, 0, None, DEFAULT_HOST, 0, 0, True, {})
"""`_details` of a message that has nothing but topic, body, keys and tags."""


class _Batch(NamedTuple):
    """What `BatchWriter._append` needs to know besides the table."""

    message_count: int
    more: ByteArray
    waits: bool
    began_ns: int


class BatchWriter:
    """The part of an open store that takes batches; parameters as `StoreWriter`."""

    def __init__(
        self,
        writer: StoreWriter,
        log: CommitLog,
        *,
        statistics: StoreStatistics,
        config: StoreConfig,
    ) -> None:
        self._writer = writer
        self._log = log
        self._statistics = statistics
        self._max_body = config.max_message_size
        self._store_bits = host_flags(b"", log.store_host)

    # --- messages of our own --------------------------------------------------------------------

    def put_messages(self, messages: Sequence[Message], queue_id: int = 0) -> PutResult:
        """Store messages of one topic; see `MessageStore.put_batch`."""
        began_ns = monotonic_ns()
        if not messages:
            raise RefusedMessageError("a batch has at least one message")
        refused = self._writer.refusal()
        if refused is not None:
            return refused
        topic = messages[0].topic
        cell = self._writer.cell_of(topic, queue_id)
        if isinstance(cell, PutResult):
            return cell
        if [message.topic for message in messages].count(topic) != len(messages):
            raise RefusedMessageError(
                f"a batch has one topic, {topic!r:.130}, but others were given"
            )
        bodies = [message.body for message in messages]
        if set(map(type, bodies)) != {bytes}:
            bodies = [body_bytes(body) for body in bodies]
        blocks = list(map(message_properties, messages))
        sizes, block_sizes = list(map(len, bodies)), list(map(len, blocks))
        payload = sum(sizes) + sum(block_sizes)
        longest = max(block_sizes)
        if longest > PROPERTIES_SIZE_MAX:
            return self._writer.refuse(
                *properties_refusal(next(block for block in blocks if len(block) == longest))
            )
        refused = self._body_refusal(payload + MESSAGE_FIXED_SIZE * len(messages))
        if refused is not None:
            return refused
        table, host = _table_of(sizes, block_sizes, self._store_bits)
        details = list(map(_details, messages))
        waits = True
        hosts = [host]
        if details.count(_NO_DETAILS) != len(details):
            waits = all(_waits(message) for message in messages)
            hosts = self._enter_details(messages, table)
        source = np.frombuffer(b"".join([*bodies, *blocks, *hosts]), np.uint8)
        return self._append(cell, source, table, _Batch(len(messages), _NOTHING, waits, began_ns))

    def _enter_details(self, messages: Sequence[Message], table: Table) -> list[bytes]:
        """Enter what is not the same for all messages; return their born hosts."""
        hosts = []
        host_at = int(table[0, _C.BORN_HOST_AT])
        for row, message in zip(table, messages, strict=True):
            refuse_special(message.properties)
            refuse_transaction(_checked("sys_flag", message.sys_flag, _INT32))
            host = encoded_born_host(message.born_host)
            hosts.append(host)
            row[_C.FLAG] = _checked("flag", message.flag, _INT32)
            row[_C.SYS_FLAG] = (
                message.sys_flag & ~HOST_BITS | self._store_bits | host_flags(host, b"")
            )
            row[_C.BORN_HOST_AT] = host_at
            if message.born_timestamp_ms is not None:
                # -1 stands for "the store's time" in the table, as an own time it means nothing.
                row[_C.BORN_TIMESTAMP] = _checked("born time", message.born_timestamp_ms, _INT64)
            row[_C.RECONSUME_TIMES] = _checked("reconsume times", message.reconsume_times, _INT32)
            row[_C.PREPARED_OFFSET] = _checked(
                "prepared transaction offset", message.prepared_transaction_offset, _INT64
            )
            host_at += len(host)
        return hosts

    # --- a client's batch -----------------------------------------------------------------------

    def put_client_batch(  # noqa: PLR0913 - the fields of a send request
        self,
        topic: str,
        queue_id: int,
        batch: bytes | bytearray | memoryview,
        *,
        properties: Mapping[str, str] | bytes = b"",
        sys_flag: int = 0,
        born_timestamp_ms: int | None = None,
        born_host: str = DEFAULT_HOST,
        reconsume_times: int = 0,
        wait_flush: bool = True,
    ) -> PutResult:
        """Store messages as a producer encoded them; see `MessageStore.put_client_batch`."""
        began_ns = monotonic_ns()
        refused = self._writer.refusal()
        if refused is not None:
            return refused
        cell = self._writer.cell_of(topic, queue_id)
        if isinstance(cell, PutResult):
            return cell
        refuse_transaction(_checked("sys_flag", sys_flag, _INT32))
        more = properties if isinstance(properties, bytes) else encode_properties(properties)
        refuse_special_block(more)
        batch = body_bytes(batch)
        if may_be_special(batch):
            _refuse_special_messages(batch)
        if len(more) > PROPERTIES_SIZE_MAX:
            return self._writer.refuse(*properties_refusal(more))
        refused = self._body_refusal(len(batch))
        if refused is not None:
            return refused
        host = encoded_born_host(born_host)
        common = (
            sys_flag & ~HOST_BITS | self._store_bits | host_flags(host, b""),
            NO_TIMESTAMP
            if born_timestamp_ms is None
            else _checked("born time", born_timestamp_ms, _INT64),
            len(batch),
            _checked("reconsume times", reconsume_times, _INT32),
        )
        table, count = _parsed(batch, common)
        source = np.frombuffer(batch + host, np.uint8)
        waits = wait_flush and waits_for_flush(more)
        added = np.frombuffer(more, np.uint8) if more else _NOTHING
        return self._append(cell, source, table, _Batch(count, added, waits, began_ns))

    # --- both -----------------------------------------------------------------------------------

    def _body_refusal(self, size: int) -> PutResult | None:
        if size <= self._max_body:
            return None
        return self._writer.refuse(
            PutMessageStatus.MESSAGE_ILLEGAL,
            f"batch of {size} bytes exceeds maxMessageSize of {self._max_body}",
        )

    def _append(self, cell: QueueCell, source: ByteArray, table: Table, batch: _Batch) -> PutResult:
        count, more, waits, began_ns = batch
        if len(more):
            longest = int(table[:count, _C.PROPERTIES_SIZE].max()) + 1 + len(more)
            if longest > PROPERTIES_SIZE_MAX:
                return self._writer.refuse(
                    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
                    f"properties of a message and of its batch, {longest} bytes, exceed the limit "
                    f"of {PROPERTIES_SIZE_MAX}",
                )
        try:
            offset, size, queue_offset, timestamp = self._log.append_batch(
                cell, source, table, count, more
            )
        except BatchTooLargeError as error:
            return self._writer.file_refusal(error.size)
        except (StoreError, OSError) as error:
            return self._writer.failed(error)
        status = self._writer.acknowledge(offset + size, waits=waits)
        elapsed_ns = monotonic_ns() - began_ns
        if elapsed_ns >= _SLOW_NS:
            self._statistics.note_slow_put(elapsed_ns // _SLOW_NS)
        return PutResult(
            status, offset, queue_offset, size, timestamp, self._log.store_host, count, None,
            tuple(table[:count, _RECORD_SIZE].tolist()),
        )  # fmt: skip


def _waits(message: Message) -> bool:
    """Return whether a message asks to wait for its flush."""
    return message.wait_flush and is_true(message.properties.get("WAIT"))


def _table_of(sizes: list[int], block_sizes: list[int], store_bits: int) -> tuple[Table, bytes]:
    """Return the table of plain messages whose bodies, then properties, stand back to back."""
    count = len(sizes)
    table = np.zeros((count, BATCH_COLUMN_COUNT), np.int64)
    columns = table.T
    both = np.array(sizes + block_sizes, np.int64)
    stops = both.cumsum()
    # Two by two: body and properties have their place and size side by side.
    columns[_PLACES] = (stops - both).reshape(2, count)
    columns[_SIZES] = both.reshape(2, count)
    columns[_SYS_FLAG] = store_bits
    columns[_BORN] = NO_TIMESTAMP
    columns[_HOST_AT] = stops[-1]
    return table, _DEFAULT_HOST


def _parsed(batch: bytes, common: tuple[int, int, int, int]) -> tuple[Table, int]:
    """Return a table with the places of a client's messages, and how many there are.

    Raises
    ------
    RefusedMessageError
        The batch is empty, or is cut off inside a message.
    """
    raw = np.frombuffer(batch, np.uint8)
    rows = max(len(batch) // _GUESSED_MESSAGE_BYTES, 16)
    table = np.empty((rows, BATCH_COLUMN_COUNT), np.int64)
    count = kernels.client_batch_table(raw, table, common)
    if count > rows:
        table = np.empty((count, BATCH_COLUMN_COUNT), np.int64)
        count = kernels.client_batch_table(raw, table, common)
    if count < 0:
        raise RefusedMessageError(
            f"batch of {len(batch)} bytes ends inside the message at byte {-1 - count}"
        )
    if count == 0:
        raise RefusedMessageError("a batch has at least one message")
    return table, count


def _refuse_special_messages(batch: bytes) -> None:
    """Look message by message, where something in the batch looks like a property refused."""
    for message in decode_client_batch(batch):
        refuse_special_block(message.properties)


def _checked(name: str, value: Any, limits: range) -> int:
    """Return a number that fits its field."""
    if isinstance(value, int) and value in limits:
        return value
    raise RefusedMessageError(
        f"{name} {value!r:.40} does not fit its field ({limits.start} to {limits.stop - 1})"
    )
