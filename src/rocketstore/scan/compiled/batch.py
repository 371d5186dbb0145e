"""Compiled: a batch of messages to CommitLog records, written straight into the mapping.

Law: all or nothing. Every row is checked, and the sum of the sizes compared with the room, before
the first byte is written; a record's length, which makes it a record, is written last.

Sources: MessageExtEncoder.encode(MessageExtBatch), DefaultAppendMessageCallback.doAppend of 4.9.8
(spec B3.6, F15).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rocketstore.scan.batch_state import (
    BATCH_COLUMN_COUNT,
    COUNT_SHIFT,
    MESSAGE_FIXED_SIZE,
    NO_TIMESTAMP,
    BatchColumn,
    BatchPlan,
    BatchRefusal,
)
from rocketstore.scan.compiled import BYTES, COLUMNS, WRITABLE_BYTES, inner, kernel, types
from rocketstore.scan.compiled.crc import body_crc_unchecked
from rocketstore.scan.compiled.memory import (
    copy_bytes,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    load_word,
    store_i16,
    store_i32,
    store_i64,
    trailing_zeros,
)
from rocketstore.scan.compiled.walk import hold_names

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
_SPECIAL: Final = int(BatchRefusal.SPECIAL)
_EMPTY: Final = int(BatchRefusal.EMPTY)
_BAD_PROPERTIES: Final = int(BatchRefusal.BAD_PROPERTIES)
_CUT_OFF: Final = int(BatchRefusal.CUT_OFF)
_SHIFT: Final = COUNT_SHIFT
_COUNT: Final = int(BatchPlan.MESSAGE_COUNT)
_STORE_HOST_SIZE: Final = int(BatchPlan.STORE_HOST_SIZE)
_TOPIC_SIZE: Final = int(BatchPlan.TOPIC_SIZE)
_MORE_SIZE: Final = int(BatchPlan.MORE_SIZE)

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

# The name DELAY with what ends it, and the start of INNER_MULTI_DISPATCH, as loads see them.
_DELA: Final = int.from_bytes(b"DELA", "big")
_Y_END: Final = int.from_bytes(b"Y\x01", "big")
_INNER_MU: Final = int.from_bytes(b"INNER_MU", "big")
_TWOS: Final = np.uint64(0x0202020202020202)
_ONES: Final = np.uint64(0x0101010101010101)
_TOPS: Final = np.uint64(0x8080808080808080)


@inner
def _host_size(sys_flag: Any, bit: Any) -> Any:
    return 20 if sys_flag & bit else 8


@inner
def _joint_size(source: Any, at: Any, size: Any, more_size: Any) -> Any:
    """Size of a message's properties followed by those of the batch.

    A zero at the end gets a separator after it: without, they would look cut off.
    """
    last = load_u8(source, at + size - 1) if size > 0 else _SEPARATOR
    if last == 0 or (more_size > 0 and last != _SEPARATOR):
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
    timestamp, store_host_at, store_host_size = store
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
    copy_bytes(target, at + 8, source, store_host_at, store_host_size)
    at += 8 + store_host_size
    store_i32(target, at, row[_RECONSUME])
    store_i64(target, at + 4, row[_PREPARED])
    store_i32(target, at + 12, row[_BODY_SIZE])
    return at + 16


@inner
def _may_be_special(source: Any, at: Any, size: Any) -> Any:
    """Whether a property that begins like DELAY or INNER_MULTI_DISPATCH stands in a block."""
    end = at + size
    while end - at >= 6:
        if load_i32(source, at) == _DELA and load_i16(source, at + 4) == _Y_END:
            return True
        if end - at >= 8 and load_i64(source, at) == _INNER_MU:
            return True
        # Eight bytes at a time to the separator; the usual test for a zero byte in a word.
        while end - at >= 8:
            word = load_word(source, at) ^ _TWOS
            found = (word - _ONES) & ~word & _TOPS
            if found != 0:
                at += trailing_zeros(found) >> 3
                break
            at += 8
        while at < end and load_u8(source, at) != _SEPARATOR:
            at += 1
        at += 1
    return False


@inner
def _parse(source: Any, table: Any, plan: Any) -> Any:
    """Fill one row per message of a client's batch; return how many, or why not.

    Total size, magic and CRC of each message are not looked at, as in 4.9.
    """
    _, end, is_checked, sys_flag, born, host_at, reconsume_times, _, _, _, _, _, _ = plan
    at = 0
    count = 0
    while at < end:
        room = end - at - MESSAGE_FIXED_SIZE
        if room < 0:
            return _CUT_OFF - at
        body_size = load_i32(source, at + 16)
        if body_size < 0 or body_size > room:
            return _CUT_OFF - at
        properties_size = load_i16(source, at + 20 + body_size)
        if properties_size < 0 or properties_size > room - body_size:
            return _CUT_OFF - at
        if count == table.shape[0]:
            return _BAD_TABLE
        properties_at = at + MESSAGE_FIXED_SIZE + body_size
        if is_checked == 0 and _may_be_special(source, properties_at, properties_size):
            return _SPECIAL
        stop = properties_at + properties_size
        if properties_size > 0 and not hold_names(source, properties_at, stop):
            return _BAD_PROPERTIES
        table[count, _FLAG] = load_i32(source, at + 12)
        table[count, _SYS_FLAG] = sys_flag
        table[count, _BORN] = born
        table[count, _HOST_AT] = host_at
        table[count, _RECONSUME] = reconsume_times
        table[count, _PREPARED] = 0
        table[count, _BODY_AT] = at + 20
        table[count, _BODY_SIZE] = body_size
        table[count, _PROPERTIES_AT] = properties_at
        table[count, _PROPERTIES_SIZE] = properties_size
        count += 1
        at = stop
    return count


@inner
def _is_possible(source: Any, table: Any, plan: Any) -> Any:
    """Whether the plan's places are inside the source, and its sizes those of a record."""
    count, batch_size, _, _, _, _, _, host_at, host_size, topic_at, topic_size, more_at, more = plan
    end = len(source)
    return (
        -1 <= count <= table.shape[0]
        and table.shape[1] == BATCH_COLUMN_COUNT
        and 0 <= batch_size <= end
        and (host_size in (8, 20))
        and topic_size <= _TOPIC_MAX
        and _is_inside(host_at, host_size, end)
        and _is_inside(topic_at, topic_size, end)
        and _is_inside(more_at, more, end)
    )


@inner
def _write_record(source: Any, row: Any, plan: Any, queue: Any, timestamp: Any, target: Any) -> Any:
    """Write one record, its length last."""
    _, _, _, _, _, _, _, host_at, host_size, topic_at, topic_size, more_at, more_size = plan
    queue_id, queue_offset, base, at = queue
    body_at = _write_head(
        source,
        row,
        (queue_id, queue_offset, base + at),
        (timestamp, host_at, host_size),
        target,
        at,
    )
    copy_bytes(target, body_at, source, row[_BODY_AT], row[_BODY_SIZE])
    tail = body_at + row[_BODY_SIZE]
    target[tail] = topic_size
    copy_bytes(target, tail + 1, source, topic_at, topic_size)
    tail += 1 + topic_size
    properties_at = row[_PROPERTIES_AT]
    size = row[_PROPERTIES_SIZE]
    joint = _joint_size(source, properties_at, size, more_size)
    store_i16(target, tail, joint)
    copy_bytes(target, tail + 2, source, properties_at, size)
    if joint > size + more_size:
        target[tail + 2 + size] = _SEPARATOR
    copy_bytes(target, tail + 2 + joint - more_size, source, more_at, more_size)
    store_i32(target, at, row[_RECORD_SIZE])


@kernel(
    types.int64(
        BYTES,
        COLUMNS,
        types.UniTuple(types.int64, len(BatchPlan)),
        types.UniTuple(types.int64, 4),
        WRITABLE_BYTES,
        types.int64,
    )
)
def write_batch(
    source: Any, table: Any, plan: Any, numbers: Any, target: Any, position: Any
) -> Any:
    """Write a batch as consecutive records at `position` of `target`.

    Parameters
    ----------
    source
        Holds everything that is copied: a client's batch or bodies and properties, born hosts, and
        what the plan names.
    table
        Rows, filled; or room for as many as the client's batch may have.
    plan
        Numbers by `BatchPlan`.
    numbers
        Queue id, queue offset of the first message, store timestamp in ms, and the physical offset
        of ``target[0]``.
    target, position
        The mapped file, and where its free part begins.

    Returns
    -------
    int
        ``count << 32 | bytes written``, or a `BatchRefusal`.
    """
    queue_id, queue_offset, timestamp, base = numbers
    if not _is_possible(source, table, plan):
        return _BAD_TABLE
    count = plan[_COUNT]
    if count < 0:
        count = _parse(source, table, plan)
    if count < 0:
        return count
    if count == 0:
        return _EMPTY
    for row in range(count):
        if _host_size(table[row, _SYS_FLAG], _STORE_V6) != plan[_STORE_HOST_SIZE]:
            return _BAD_TABLE
    total = _measure(source, table, count, plan[_TOPIC_SIZE], plan[_MORE_SIZE])
    if total < 0:
        return total
    if position < 0 or total > len(target) - _CLOSING_SIZE - position:
        return _NO_ROOM - total
    at = position
    for index in range(count):
        queue = (queue_id, queue_offset + index, base, at)
        _write_record(source, table[index], plan, queue, timestamp, target)
        at += table[index, _RECORD_SIZE]
    return (count << _SHIFT) | total
