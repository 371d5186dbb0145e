"""Compiled: a batch of messages to CommitLog records, written straight into the mapping.

Law: all or nothing. Every row is checked, and the sum of the sizes compared with the room, before
the first byte is written; a record's length, which makes it a record, is written last.

Sources: MessageExtEncoder.encode(MessageExtBatch), DefaultAppendMessageCallback.doAppend of 4.9.8
(spec B3.6, F15).
"""

from __future__ import annotations

from typing import Any, Final

from rocketstore.scan.batch_state import (
    BATCH_COLUMN_COUNT,
    MESSAGE_FIXED_SIZE,
    NO_TIMESTAMP,
    BatchColumn,
    BatchRefusal,
)
from rocketstore.scan.compiled import BYTES, COLUMNS, WRITABLE_BYTES, inner, kernel, types
from rocketstore.scan.compiled.crc import body_crc_unchecked
from rocketstore.scan.compiled.memory import (
    copy_bytes,
    load_i16,
    load_i32,
    load_u8,
    store_i16,
    store_i32,
    store_i64,
)

_FLAG: Final = int(BatchColumn.FLAG)
_SYS_FLAG: Final = int(BatchColumn.SYS_FLAG)
_BORN: Final = int(BatchColumn.BORN_TIMESTAMP)
_HOST_AT: Final = int(BatchColumn.BORN_HOST_AT)
_RECONSUME: Final = int(BatchColumn.RECONSUME_TIMES)
_PREPARED: Final = int(BatchColumn.PREPARED_OFFSET)
_BODY_AT: Final = int(BatchColumn.BODY_AT)
_BODY_SIZE: Final = int(BatchColumn.BODY_SIZE)
_PROPERTIES_AT: Final = int(BatchColumn.PROPERTIES_AT)
_PROPERTIES_SIZE: Final = int(BatchColumn.PROPERTIES_SIZE)
_RECORD_SIZE: Final = int(BatchColumn.RECORD_SIZE)
_NO_ROOM: Final = int(BatchRefusal.NO_ROOM)
_BAD_TABLE: Final = int(BatchRefusal.BAD_TABLE)
_TOO_LONG: Final = int(BatchRefusal.PROPERTIES_TOO_LONG)

_MAGIC: Final = 0xDAA320A7
_SEPARATOR: Final = 2
_CLOSING_SIZE: Final = 8
_FIXED_SIZE: Final = 83
"""Bytes of a record besides born host, body, topic, properties, with an IPv4 store host."""
_V6_EXTRA: Final = 12
_BORN_V6: Final = 0x10
_STORE_V6: Final = 0x20
_PROPERTIES_MAX: Final = 32767
_TOPIC_MAX: Final = 127
_INT32_MAX: Final = 0x7FFFFFFF


@kernel(types.int64(BYTES, COLUMNS, types.UniTuple(types.int64, 4)))
def client_batch_table(batch: Any, table: Any, common: Any) -> Any:
    """Fill one row per message of a client's batch.

    `common` is what all messages share: sysFlag, born timestamp in ms, place of the born host,
    reconsume times. Returns how many messages there are, also when `table` has fewer rows and only
    those were filled; ``-1 - position`` of the message that is cut off or has a negative length.
    Total size, magic and CRC of each message are not looked at, as in 4.9.
    """
    at = 0
    count = 0
    end = len(batch)
    while at < end:
        if end - at < MESSAGE_FIXED_SIZE:
            return -1 - at
        body_size = load_i32(batch, at + 16)
        room = end - at - MESSAGE_FIXED_SIZE
        if body_size < 0 or body_size > room:
            return -1 - at
        properties_size = load_i16(batch, at + 20 + body_size)
        if properties_size < 0 or properties_size > room - body_size:
            return -1 - at
        if count < table.shape[0]:
            table[count, _SYS_FLAG] = common[0]
            table[count, _BORN] = common[1]
            table[count, _HOST_AT] = common[2]
            table[count, _RECONSUME] = common[3]
            table[count, _PREPARED] = 0
            table[count, _FLAG] = load_i32(batch, at + 12)
            table[count, _BODY_AT] = at + 20
            table[count, _BODY_SIZE] = body_size
            table[count, _PROPERTIES_AT] = at + MESSAGE_FIXED_SIZE + body_size
            table[count, _PROPERTIES_SIZE] = properties_size
        count += 1
        at += MESSAGE_FIXED_SIZE + body_size + properties_size
    return count


@inner
def _host_size(sys_flag: Any, bit: Any) -> Any:
    return 20 if sys_flag & bit else 8


@inner
def _joint_size(source: Any, at: Any, size: Any, more_size: Any) -> Any:
    """Size of a message's properties followed by those of the batch."""
    if size > 0 and more_size > 0 and load_u8(source, at + size - 1) != _SEPARATOR:
        return size + 1 + more_size
    return size + more_size


@inner
def _is_inside(at: Any, size: Any, end: Any) -> Any:
    return 0 <= at <= end and 0 <= size <= end - at


@inner
def _measure(source: Any, table: Any, count: Any, topic_size: Any, more_size: Any) -> Any:
    """Write every row's record size; return their sum, or why not."""
    total = 0
    end = len(source)
    for row in range(count):
        sys_flag = table[row, _SYS_FLAG]
        body_size = table[row, _BODY_SIZE]
        size = table[row, _PROPERTIES_SIZE]
        host_size = _host_size(sys_flag, _BORN_V6)
        if not (
            _is_inside(table[row, _BODY_AT], body_size, end)
            and _is_inside(table[row, _PROPERTIES_AT], size, end)
            and _is_inside(table[row, _HOST_AT], host_size, end)
        ):
            return _BAD_TABLE
        joint = _joint_size(source, table[row, _PROPERTIES_AT], size, more_size)
        if joint > _PROPERTIES_MAX:
            return _TOO_LONG
        record = _FIXED_SIZE + host_size + body_size + topic_size + joint
        if sys_flag & _STORE_V6:
            record += _V6_EXTRA
        table[row, _RECORD_SIZE] = record
        total += record
        if total > _INT32_MAX:
            return _BAD_TABLE
    return total


@inner
def _write_head(source: Any, row: Any, queue: Any, store: Any, target: Any, at: Any) -> Any:
    """Write magic to body size of one record; return where its body begins."""
    queue_id, queue_offset, physical_offset = queue
    timestamp, store_host = store
    sys_flag = row[_SYS_FLAG]
    born = row[_BORN]
    store_i32(target, at + 4, _MAGIC)
    store_i32(target, at + 8, body_crc_unchecked(source, row[_BODY_AT], row[_BODY_SIZE]))
    store_i32(target, at + 12, queue_id)
    store_i32(target, at + 16, row[_FLAG])
    store_i64(target, at + 20, queue_offset)
    store_i64(target, at + 28, physical_offset)
    store_i32(target, at + 36, sys_flag)
    store_i64(target, at + 40, timestamp if born == NO_TIMESTAMP else born)
    host_size = _host_size(sys_flag, _BORN_V6)
    copy_bytes(target, at + 48, source, row[_HOST_AT], host_size)
    at += 48 + host_size
    store_i64(target, at, timestamp)
    copy_bytes(target, at + 8, store_host, 0, len(store_host))
    at += 8 + len(store_host)
    store_i32(target, at, row[_RECONSUME])
    store_i64(target, at + 4, row[_PREPARED])
    store_i32(target, at + 12, row[_BODY_SIZE])
    return at + 16


@kernel(
    types.int64(
        BYTES,
        COLUMNS,
        types.UniTuple(BYTES, 3),
        types.UniTuple(types.int64, 5),
        WRITABLE_BYTES,
        types.int64,
    )
)
def write_batch(
    source: Any, table: Any, common: Any, numbers: Any, target: Any, position: Any
) -> Any:
    """Write the first rows of `table` as consecutive records at `position` of `target`.

    Parameters
    ----------
    source
        Holds bodies, properties and born hosts.
    common
        Topic, store host, and properties that are added to those of every message.
    numbers
        How many rows, queue id, queue offset of the first message, store timestamp in ms, and the
        physical offset of ``target[0]``.
    target, position
        The mapped file, and where its free part begins.

    Returns
    -------
    int
        Bytes written, or a `BatchRefusal`.
    """
    topic, store_host, more = common
    count, queue_id, queue_offset, timestamp, base = numbers
    if count < 0 or count > table.shape[0] or table.shape[1] != BATCH_COLUMN_COUNT:
        return _BAD_TABLE
    if len(topic) > _TOPIC_MAX:
        return _BAD_TABLE
    for row in range(count):
        if len(store_host) != _host_size(table[row, _SYS_FLAG], _STORE_V6):
            return _BAD_TABLE
    total = _measure(source, table, count, len(topic), len(more))
    if total < 0:
        return total
    if position < 0 or total > len(target) - _CLOSING_SIZE - position:
        return _NO_ROOM
    at = position
    for index in range(count):
        row = table[index]
        queue = (queue_id, queue_offset + index, base + at)
        body_at = _write_head(source, row, queue, (timestamp, store_host), target, at)
        body_size = row[_BODY_SIZE]
        copy_bytes(target, body_at, source, row[_BODY_AT], body_size)
        tail = body_at + body_size
        target[tail] = len(topic)
        copy_bytes(target, tail + 1, topic, 0, len(topic))
        tail += 1 + len(topic)
        properties_at = row[_PROPERTIES_AT]
        size = row[_PROPERTIES_SIZE]
        joint = _joint_size(source, properties_at, size, len(more))
        store_i16(target, tail, joint)
        copy_bytes(target, tail + 2, source, properties_at, size)
        if joint > size + len(more):
            target[tail + 2 + size] = _SEPARATOR
        copy_bytes(target, tail + 2 + joint - len(more), more, 0, len(more))
        store_i32(target, at, row[_RECORD_SIZE])
        at += row[_RECORD_SIZE]
    return total
