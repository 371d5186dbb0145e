"""Put many messages of one queue at once: all of them or none, with consecutive offsets.

Law: a batch is judged as a whole before anything is appended. Its messages get one store time, and
a consumer sees them one by one, like any others.

How derived: MessageExtBatch, MessageExtEncoder.encode and the batch callback of 4.9.8 (spec B3.6,
F15). What 4.9 answers by an exception is a status here (K-P7), and the last file is looked up under
the lock (K-P3). Cost: messages become rows of a table, and one kernel writes all records; what the
interpreter does per message is done by column, for all messages at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from rocketstore.errors import RefusedMessageError, StoreError
from rocketstore.format.client_batch import decode_client_batch
from rocketstore.format.properties import (
    PROPERTIES_SIZE_MAX,
    encode_properties,
    message_properties,
)
from rocketstore.format.record_text import storable_properties
from rocketstore.format.refusals import refuse_special, refuse_transaction
from rocketstore.message import DEFAULT_HOST, Message
from rocketstore.native.batch_state import (
    BATCH_COLUMN_COUNT,
    MESSAGE_FIXED_SIZE,
    NO_TIMESTAMP,
    BatchColumn,
    BatchRefusal,
)
from rocketstore.storage.log.prepared import (
    HOST_BITS,
    is_true,
    refuse_other_types,
    refuse_special_block,
    waits_for_flush,
)
from rocketstore.storage.log.writer import body_bytes, properties_refusal
from rocketstore.storage.results import PutMessageStatus, PutResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from rocketstore.config import StoreConfig
    from rocketstore.native.batch_state import Plan
    from rocketstore.storage.log.append_state import QueueCell
    from rocketstore.storage.log.commit_log import CommitLog
    from rocketstore.storage.log.put_state import AppendedBatch
    from rocketstore.storage.log.writer import StoreWriter
    from rocketstore.storage.statistics import StoreStatistics

    ByteArray = npt.NDArray[np.uint8]
    Table = npt.NDArray[np.int64]

_C: Final = BatchColumn
_FLAG: Final = int(_C.FLAG)
_SYS_FLAG: Final = int(_C.SYS_FLAG)
_BORN: Final = int(_C.BORN_TIMESTAMP)
_HOST_AT: Final = int(_C.BORN_HOST_AT)
_RECONSUME: Final = int(_C.RECONSUME_TIMES)
_PREPARED: Final = int(_C.PREPARED_OFFSET)
_RECORD_SIZE: Final = int(_C.RECORD_SIZE)
_PLACES: Final = slice(int(_C.BODY_AT), int(_C.PROPERTIES_AT) + 1, 2)
_SIZES: Final = slice(int(_C.BODY_SIZE), int(_C.PROPERTIES_SIZE) + 1, 2)
_SLOW_NS: Final = 1_000_000
_ONLY_MESSAGES: Final = {Message}
_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)


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

    # --- messages of our own --------------------------------------------------------------------

    def put_messages(self, messages: Sequence[Message], queue_id: int = 0) -> PutResult:
        """Store messages of one topic; see `MessageStore.put_batch`."""
        began_ns = monotonic_ns()
        appended = self._writer.append_messages(messages, queue_id, self._max_body)
        if appended is not None:
            return self._done(appended, waits=True, began_ns=began_ns)
        count = _count_of(messages)
        refused = self._writer.refusal()
        if refused is not None:
            return refused
        (
            topics, body_column, _, _, properties, _, flags, sys_flags, born_times,
            hosts, reconsume_times, prepared_offsets, waits,
        ) = zip(*map(msgspec.structs.astuple, messages), strict=True)  # fmt: skip
        cell = self._writer.cell_of(topics[0], queue_id)
        if isinstance(cell, PutResult):
            return cell
        if topics.count(topics[0]) != count:
            raise RefusedMessageError(f"a batch has one topic, but others than {topics[0]} came")
        bodies = body_column
        if set(map(type, bodies)) != {bytes}:
            bodies = tuple(body_bytes(body) for body in bodies)
        wait_flush = waits.count(True) == count
        if any(properties):
            wait_flush = all(map(_may_wait, properties)) and wait_flush
        blocks = list(map(message_properties, messages))
        block_sizes = list(map(len, blocks))
        sizes = list(map(len, bodies))
        payload = sum(sizes) + sum(block_sizes)
        refused = self._properties_refusal(blocks, max(block_sizes))
        refused = refused or self._body_refusal(payload + MESSAGE_FIXED_SIZE * count)
        if refused is not None:
            return refused
        table = _placed(sizes, block_sizes)
        columns = table.T
        born_hosts = self._enter_hosts(columns, hosts, sys_flags, payload)
        _enter(columns, _FLAG, "flag", flags, _INT32)
        _enter(columns, _RECONSUME, "reconsume times", reconsume_times, _INT32)
        _enter(columns, _PREPARED, "prepared transaction offset", prepared_offsets, _INT64)
        if born_times.count(None) != count:
            # -1 stands for "the store's time" in the table; as a time of its own it means nothing.
            times = [NO_TIMESTAMP if time is None else time for time in born_times]
            _enter(columns, _BORN, "born time", times, _INT64)
        else:
            columns[_BORN] = NO_TIMESTAMP
        host, topic, at = self._log.store_host, cell.topic, payload + len(born_hosts)
        source = np.frombuffer(b"".join((*bodies, *blocks, born_hosts, host, topic)), np.uint8)
        plan = (
            count, 0, 1, 0, 0, 0, 0, at, len(host), at + len(host), len(topic), 0, 0,
        )  # fmt: skip
        return self._append(cell, source, table, plan, waits=wait_flush, began_ns=began_ns)

    def _properties_refusal(self, blocks: Sequence[bytes], longest: int) -> PutResult | None:
        if longest <= PROPERTIES_SIZE_MAX:
            return None
        refused = next(block for block in blocks if len(block) == longest)
        return self._writer.refuse(*properties_refusal(refused))

    def _enter_hosts(
        self, columns: Table, hosts: Sequence[str], sys_flags: Sequence[int], at: int
    ) -> bytes:
        """Enter sysFlags and places of the born hosts, which are returned back to back."""
        count = len(hosts)
        known = self._writer.born_host
        if hosts.count(hosts[0]) == count and sys_flags.count(0) == count:
            host, bits = known(hosts[0])
            columns[_SYS_FLAG] = bits
            columns[_HOST_AT] = at
            return host
        parts, flags, places = [], [], []
        for text, sys_flag in zip(hosts, sys_flags, strict=True):
            refuse_transaction(_checked("sysFlag", sys_flag, _INT32))
            host, bits = known(text)
            parts.append(host)
            flags.append(sys_flag & ~HOST_BITS | bits)
            places.append(at)
            at += len(host)
        columns[_SYS_FLAG] = flags
        columns[_HOST_AT] = places
        return b"".join(parts)

    # --- a client's batch -----------------------------------------------------------------------

    def put_client_batch(  # noqa: C901, PLR0913 - the fields of a send request, each checked
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
        appended = self._writer.append_encoded(
            topic, queue_id, batch, properties, sys_flag, born_timestamp_ms, born_host,
            reconsume_times, self._max_body,
        )  # fmt: skip
        if appended is not None:
            return self._done(appended, waits=wait_flush, began_ns=began_ns)
        refused = self._writer.refusal()
        if refused is not None:
            return refused
        cell = self._writer.cell_of(topic, queue_id)
        if isinstance(cell, PutResult):
            return cell
        host, bits = self._writer.born_host(born_host)
        if sys_flag:
            refuse_transaction(_checked("sysFlag", sys_flag, _INT32))
            bits |= sys_flag & ~HOST_BITS
        more = properties if type(properties) is bytes else _encoded_more(properties)
        if more:
            more = storable_properties(more)
            refuse_special_block(more)
            wait_flush = wait_flush and waits_for_flush(more)
            if len(more) > PROPERTIES_SIZE_MAX:
                return self._writer.refuse(*properties_refusal(more))
        if type(batch) is not bytes:
            batch = body_bytes(batch)
        size = len(batch)
        refused = self._body_refusal(size)
        if refused is not None:
            return refused
        if reconsume_times:
            _checked("reconsume times", reconsume_times, _INT32)
        if born_timestamp_ms is None:
            born_timestamp_ms = NO_TIMESTAMP
        else:
            _checked("born time", born_timestamp_ms, _INT64)
        store_host, name = self._log.store_host, cell.topic
        store_host_at = size + len(host)
        topic_at = store_host_at + len(store_host)
        source = np.frombuffer(b"".join((batch, host, store_host, name, more)), np.uint8)
        plan = (
            -1, size, 0, bits, born_timestamp_ms, size, reconsume_times, store_host_at,
            len(store_host), topic_at, len(name), topic_at + len(name), len(more),
        )  # fmt: skip
        table = np.empty((size // MESSAGE_FIXED_SIZE + 1, BATCH_COLUMN_COUNT), np.int64)
        return self._append(cell, source, table, plan, waits=wait_flush, began_ns=began_ns)

    # --- both -----------------------------------------------------------------------------------

    def _body_refusal(self, size: int) -> PutResult | None:
        if size <= self._max_body:
            return None
        return self._writer.refuse(
            PutMessageStatus.MESSAGE_ILLEGAL,
            f"batch of {size} bytes exceeds maxMessageSize of {self._max_body}",
        )

    def _append(
        self,
        cell: QueueCell,
        source: ByteArray,
        table: Table,
        plan: Plan,
        *,
        waits: bool,
        began_ns: int,
    ) -> PutResult:
        log = self._log
        try:
            done = log.append_batch(cell, source, table, plan)
            if done == BatchRefusal.SPECIAL:
                _refuse_special_messages(source[: plan[1]].tobytes())
                plan = (*plan[:2], 1, *plan[3:])
                done = log.append_batch(cell, source, table, plan)
        except (StoreError, OSError) as error:
            return self._writer.failed(error)
        if isinstance(done, int):
            return self._refused(done, plan[1])
        appended = (*done, table[: done[-1], _RECORD_SIZE].tobytes())
        return self._done(appended, waits=waits, began_ns=began_ns)

    def _done(self, appended: AppendedBatch, *, waits: bool, began_ns: int) -> PutResult:
        """Return the result of a batch that was appended, once it may be acknowledged."""
        offset, size, queue_offset, timestamp, count, sizes = appended
        status = self._writer.acknowledge(offset + size, waits=waits)
        elapsed_ns = monotonic_ns() - began_ns
        if elapsed_ns >= _SLOW_NS:
            self._statistics.note_slow_put(elapsed_ns // _SLOW_NS, count)
        host = self._log.store_host
        return PutResult(status, offset, queue_offset, size, timestamp, host, count, None, sizes)

    def _refused(self, refusal: int, batch_size: int) -> PutResult:
        """Return the status of a batch that was not appended, or raise what has none."""
        if refusal <= BatchRefusal.NO_ROOM:
            return self._writer.file_refusal(BatchRefusal.NO_ROOM - refusal)
        if refusal == BatchRefusal.PROPERTIES_TOO_LONG:
            return self._writer.refuse(
                PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
                "properties of a message and of its batch together exceed the limit of "
                f"{PROPERTIES_SIZE_MAX} bytes",
            )
        if refusal == BatchRefusal.EMPTY:
            raise _empty()
        if refusal == BatchRefusal.BAD_PROPERTIES:
            raise RefusedMessageError(
                "properties of a message of the batch are not UTF-8, or name nothing",
                hint="send them as name 0x01 value 0x02 …; encode binary values, e.g. as base64",
            )
        if refusal <= BatchRefusal.CUT_OFF:
            raise RefusedMessageError(
                f"batch of {batch_size} bytes ends inside the message at byte "
                f"{BatchRefusal.CUT_OFF - refusal}"
            )
        raise RefusedMessageError("the batch cannot be written as it is")


def _empty() -> RefusedMessageError:
    return RefusedMessageError("a batch has at least one message")


def _encoded_more(properties: Any) -> bytes:
    """Return properties of a batch as bytes."""
    if isinstance(properties, (bytearray, memoryview)):
        return bytes(properties)
    return encode_properties(properties)


def _count_of(messages: object) -> int:
    """Return how many messages a batch has; raise where it is none."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise RefusedMessageError(
            f"a batch is a sequence of messages, or bytes, not {type(messages).__name__}"
        )
    if not messages:
        raise _empty()
    if set(map(type, messages)) != _ONLY_MESSAGES:
        refuse_other_types(messages)
    return len(messages)


def _may_wait(properties: Mapping[str, str]) -> bool:
    """Return whether properties let a put wait for its flush; raise for what is refused."""
    refuse_special(properties)
    return is_true(properties.get("WAIT"))


def _placed(sizes: list[int], block_sizes: list[int]) -> Table:
    """Return a table of bodies, then properties, that stand back to back."""
    count = len(sizes)
    table = np.empty((count, BATCH_COLUMN_COUNT), np.int64)
    columns = table.T
    both = np.array(sizes + block_sizes, np.int64)
    # Two by two: body and properties have their place and size side by side.
    columns[_PLACES] = (both.cumsum() - both).reshape(2, count)
    columns[_SIZES] = both.reshape(2, count)
    return table


def _enter(columns: Table, column: int, name: str, values: Sequence[int], limits: range) -> None:
    """Enter the values of a column, each of which fits its field."""
    if values.count(0) == len(values):
        columns[column] = 0
    else:
        columns[column] = [_checked(name, value, limits) for value in values]


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
