"""A batch of messages to CommitLog records, written straight into the mapping.

Law: all or nothing. Every row is checked, and the sum of the sizes compared with the room, before
the first byte is written; a record's length, which makes it a record, is written last.

Sources: MessageExtEncoder.encode(MessageExtBatch), DefaultAppendMessageCallback.doAppend of 4.9.8
(spec B3.6, F15).
"""

from __future__ import annotations

from rocketstore.native.batch_state import BatchRefusal

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

if not cython.compiled:
    from rocketstore.native.batch_state import BATCH_COLUMN_COUNT, BatchColumn
    from rocketstore.native.batch_state import MESSAGE_FIXED_SIZE as _MESSAGE_FIXED_SIZE
    from rocketstore.native.batch_state import NO_TIMESTAMP as _NO_TIMESTAMP
    from rocketstore.native.view import (
        Bytes,
        Numbers,
        batch_row_at,
        bytes_of,
        copy_bytes,
        crc_of,
        find_byte,
        load_i16,
        load_i32,
        load_i64,
        load_u8,
        rows_of,
        store_i16,
        store_i32,
        store_i64,
        store_u8,
    )
    from rocketstore.native.walk import hold_names

    _FLAG, _SYS_FLAG, _BORN, _HOST_AT, _RECONSUME, _PREPARED = map(int, list(BatchColumn)[:6])
    _BODY_AT, _BODY_SIZE, _PROPERTIES_AT, _PROPERTIES_SIZE, _RECORD_SIZE = map(
        int, list(BatchColumn)[6:]
    )
    _BAD_TABLE = int(BatchRefusal.BAD_TABLE)
    _TOO_LONG = int(BatchRefusal.PROPERTIES_TOO_LONG)
    _SPECIAL = int(BatchRefusal.SPECIAL)
    _EMPTY = int(BatchRefusal.EMPTY)
    _BAD_PROPERTIES = int(BatchRefusal.BAD_PROPERTIES)
    _CUT_OFF = int(BatchRefusal.CUT_OFF)

_MAGIC = 0xDAA320A7 - (1 << 32)
_NO_ROOM = int(BatchRefusal.NO_ROOM)
# The name DELAY with what ends it, and the start of INNER_MULTI_DISPATCH, as loads see them.
_DELA = int.from_bytes(b"DELA", "big")
_Y_END = int.from_bytes(b"Y\x01", "big")
_INNER_MU = int.from_bytes(b"INNER_MU", "big")


def host_size_of(sys_flag: int, bit: int) -> int:
    """Return the bytes of a host whose bit of sysFlag says whether it is IPv6."""
    return 20 if sys_flag & bit else 8


def is_inside(at: int, size: int, end: int) -> bool:
    """Return whether a range is inside the first `end` bytes."""
    return 0 <= at <= end and 0 <= size <= end - at


def may_be_special(source: Bytes, at: int, size: int) -> bool:
    """Return whether a property that begins like DELAY or INNER_MULTI_DISPATCH is in a block."""
    end = at + size
    while end - at >= 6:
        if load_i32(source, at) == _DELA and load_i16(source, at + 4) == _Y_END:
            return True
        if end - at >= 8 and load_i64(source, at) == _INNER_MU:
            return True
        at = find_byte(source, at, end, 2) + 1
    return False


class Batch:
    """A batch to be written, and what all its records share (``native.batch_state.BatchPlan``)."""

    source: Bytes
    target: Bytes
    table: Numbers
    most: int
    count: int
    size: int
    is_checked: int
    sys_flag: int
    born: int
    host_at: int
    reconsume_times: int
    store_host_at: int
    store_host_size: int
    topic_at: int
    topic_size: int
    more_at: int
    more_size: int
    queue_id: int
    queue_offset: int
    timestamp: int
    base: int

    def joint_size(self, at: int, size: int) -> int:
        """Size of a message's properties followed by those of the batch.

        A zero at the end gets a separator after it: without, they would look cut off.
        """
        last = load_u8(self.source, at + size - 1) if size > 0 else 2
        if last == 0 or (self.more_size > 0 and last != 2):
            return size + 1 + self.more_size
        return size + self.more_size

    def is_possible(self) -> bool:
        """Return whether the plan's places are inside the source, its sizes those of a record."""
        end = self.source.size
        return (
            -1 <= self.count <= self.most
            and 0 <= self.size <= end
            and (self.store_host_size == 8 or self.store_host_size == 20)
            and self.topic_size <= 127
            and is_inside(self.store_host_at, self.store_host_size, end)
            and is_inside(self.topic_at, self.topic_size, end)
            and is_inside(self.more_at, self.more_size, end)
        )

    def parse(self) -> int:
        """Fill one row per message of a client's batch; return how many, or why not.

        Total size, magic and CRC of each message are not looked at, as in 4.9.
        """
        source = self.source
        end = self.size
        at = 0
        count = 0
        while at < end:
            room = end - at - _MESSAGE_FIXED_SIZE
            if room < 0:
                return _CUT_OFF - at
            body_size = load_i32(source, at + 16)
            if body_size < 0 or body_size > room:
                return _CUT_OFF - at
            properties_size = load_i16(source, at + 20 + body_size)
            if properties_size < 0 or properties_size > room - body_size:
                return _CUT_OFF - at
            if count == self.most:
                return _BAD_TABLE
            properties_at = at + _MESSAGE_FIXED_SIZE + body_size
            if self.is_checked == 0 and may_be_special(source, properties_at, properties_size):
                return _SPECIAL
            stop = properties_at + properties_size
            if properties_size > 0 and not hold_names(source, properties_at, stop):
                return _BAD_PROPERTIES
            row = batch_row_at(self.table, count)
            row[_FLAG] = load_i32(source, at + 12)
            row[_SYS_FLAG] = self.sys_flag
            row[_BORN] = self.born
            row[_HOST_AT] = self.host_at
            row[_RECONSUME] = self.reconsume_times
            row[_PREPARED] = 0
            row[_BODY_AT] = at + 20
            row[_BODY_SIZE] = body_size
            row[_PROPERTIES_AT] = properties_at
            row[_PROPERTIES_SIZE] = properties_size
            count += 1
            at = stop
        return count

    def measure(self) -> int:
        """Write every row's record size; return their sum, or why not."""
        total = 0
        end = self.source.size
        for number in range(self.count):
            row = batch_row_at(self.table, number)
            sys_flag = row[_SYS_FLAG]
            body_size = row[_BODY_SIZE]
            size = row[_PROPERTIES_SIZE]
            host_size = host_size_of(sys_flag, 0x10)
            if not (
                host_size_of(sys_flag, 0x20) == self.store_host_size
                and is_inside(row[_BODY_AT], body_size, end)
                and is_inside(row[_PROPERTIES_AT], size, end)
                and is_inside(row[_HOST_AT], host_size, end)
            ):
                return _BAD_TABLE
            joint = self.joint_size(row[_PROPERTIES_AT], size)
            if joint > 32767:
                return _TOO_LONG
            record = 75 + host_size + self.store_host_size + body_size + self.topic_size + joint
            row[_RECORD_SIZE] = record
            total += record
            if total > 0x7FFFFFFF:
                return _BAD_TABLE
        return total

    def write_head(self, row: Numbers, number: int, at: int) -> int:
        """Write magic to body size of one record; return where its body begins."""
        source = self.source
        target = self.target
        born = row[_BORN]
        store_i32(target, at + 4, _MAGIC)
        store_i32(target, at + 8, crc_of(source, row[_BODY_AT], row[_BODY_SIZE]))
        store_i32(target, at + 12, self.queue_id)
        store_i32(target, at + 16, row[_FLAG])
        store_i64(target, at + 20, self.queue_offset + number)
        store_i64(target, at + 28, self.base + at)
        store_i32(target, at + 36, row[_SYS_FLAG])
        store_i64(target, at + 40, self.timestamp if born == _NO_TIMESTAMP else born)
        host_size = host_size_of(row[_SYS_FLAG], 0x10)
        copy_bytes(target, at + 48, source, row[_HOST_AT], host_size)
        at += 48 + host_size
        store_i64(target, at, self.timestamp)
        copy_bytes(target, at + 8, source, self.store_host_at, self.store_host_size)
        at += 8 + self.store_host_size
        store_i32(target, at, row[_RECONSUME])
        store_i64(target, at + 4, row[_PREPARED])
        store_i32(target, at + 12, row[_BODY_SIZE])
        return at + 16

    def write_record(self, row: Numbers, number: int, at: int) -> None:
        """Write one record, its length last."""
        source = self.source
        target = self.target
        body_at = self.write_head(row, number, at)
        copy_bytes(target, body_at, source, row[_BODY_AT], row[_BODY_SIZE])
        tail = body_at + row[_BODY_SIZE]
        store_u8(target, tail, self.topic_size)
        copy_bytes(target, tail + 1, source, self.topic_at, self.topic_size)
        tail += 1 + self.topic_size
        size = row[_PROPERTIES_SIZE]
        joint = self.joint_size(row[_PROPERTIES_AT], size)
        store_i16(target, tail, joint)
        copy_bytes(target, tail + 2, source, row[_PROPERTIES_AT], size)
        if joint > size + self.more_size:
            store_u8(target, tail + 2 + size, 2)
        copy_bytes(target, tail + 2 + joint - self.more_size, source, self.more_at, self.more_size)
        store_i32(target, at, row[_RECORD_SIZE])

    def write(self, position: int) -> int:
        """Do what `write_batch` says."""
        if not self.is_possible():
            return _BAD_TABLE
        if self.count < 0:
            self.count = self.parse()
        if self.count <= 0:
            return self.count if self.count < 0 else _EMPTY
        total = self.measure()
        if total < 0:
            return total
        if position < 0 or total > self.target.size - 8 - position:
            return _NO_ROOM - total
        at = position
        for number in range(self.count):
            row = batch_row_at(self.table, number)
            self.write_record(row, number, at)
            at += row[_RECORD_SIZE]
        return total


def write_batch(
    source: Bytes,
    table: Numbers,
    plan: tuple[int, ...],
    numbers: tuple[int, ...],
    target: Bytes,
    position: int,
) -> int:
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
    if table.shape[1] != BATCH_COLUMN_COUNT:
        return _BAD_TABLE
    batch = Batch()
    batch.source = bytes_of(source)
    batch.target = bytes_of(target)
    batch.table = rows_of(table)
    batch.most = table.shape[0]
    (
        batch.count,
        batch.size,
        batch.is_checked,
        batch.sys_flag,
        batch.born,
        batch.host_at,
        batch.reconsume_times,
        batch.store_host_at,
        batch.store_host_size,
        batch.topic_at,
        batch.topic_size,
        batch.more_at,
        batch.more_size,
    ) = plan
    batch.queue_id, batch.queue_offset, batch.timestamp, batch.base = numbers
    with cython.nogil:
        done = batch.write(position)
    return int(done if done < 0 else batch.count << 32 | done)
