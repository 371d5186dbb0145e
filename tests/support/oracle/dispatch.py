"""Plain Python: enter the records of a walk into their queues and the index.

The twin of ``rocketstore.native.dispatch``, which explains the law.
"""

import ctypes
import struct
from typing import Any, Final

from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, FILLER_SIZE, MAX_QUEUE_OFFSET
from rocketstore.native.row import ByteArray, Int64Array, QueueColumn
from rocketstore.scan.columns import Column
from support.oracle.entries import find_queue, key_places
from support.oracle.index import positive_hash, put_item
from support.oracle.java_hash import java_hash

_ENTRY: Final = struct.Struct(">qiq")
_TRANSACTION_MASK: Final = 0xC
_PREPARED: Final = 0x4
_ROLLBACK: Final = 0xC
_DELAY_TOPIC: Final = b"SCHEDULE_TOPIC_XXXX"
_MULTI_DISPATCH_NAME: Final = b"INNER_MULTI_DISPATCH\x01"


class RowDispatch:
    """Dispatches rows; parameters as those of ``native.dispatch.RowDispatch``."""

    def __init__(self, decisions: Any, table: Any, index: Any, delays_ms: Int64Array) -> None:
        self.decisions = decisions
        self.table = table
        self.index = index
        self.delays_ms = delays_ms
        self.last_store_timestamp_ms = self.cursor = 0

    def dispatch(self, buffer: ByteArray, cols: Int64Array) -> None:
        """Dispatch all rows."""
        self.buffer, self.count = buffer, len(cols)
        for self.cursor, row in enumerate(cols.tolist()):
            self.enter(row)
            if not row[Column.SYS_FLAG] & _PREPARED and self.has_extra_queues(row):
                self.decisions.enter_extra_queues(self.cursor, len(cols))
            if self.index.is_enabled and row[Column.SYS_FLAG] & _TRANSACTION_MASK != _ROLLBACK:
                self.put_keys(row)
            stored = row[Column.STORE_TIMESTAMP]
            self.last_store_timestamp_ms = max(self.last_store_timestamp_ms, stored)
        self.cursor = len(cols)

    def tags_code(self, row: list[int]) -> int:
        """Return what the entry keeps as tags code: in the delay topic, when to deliver."""
        level = row[Column.DELAY_LEVEL]
        last_level = len(self.delays_ms) - 1
        is_delayed = self._bytes(row[Column.TOPIC_AT], row[Column.TOPIC_SIZE]) == _DELAY_TOPIC
        if is_delayed and level > 0 and last_level > 0:
            delay_ms = int(self.delays_ms[min(level, last_level)])
            return row[Column.STORE_TIMESTAMP] + delay_ms
        return row[Column.TAGS_CODE]

    def fill_gap(self, number: int) -> bool:
        """Ask whether a gap before a record is filled."""
        return self.decisions.fill_gap(number, self.count)

    def enter(self, row: list[int]) -> None:
        """Write one record's queue entry, if it is to have one."""
        if row[Column.SYS_FLAG] & _TRANSACTION_MASK in (_PREPARED, _ROLLBACK):
            return
        is_next = False
        while True:
            queue = find_queue(self.buffer, row, self.table.slots, self.table.topics)
            if queue < 0:
                answer = self.decisions.take_in_queue
            elif not 0 <= row[Column.QUEUE_OFFSET] <= MAX_QUEUE_OFFSET:
                answer = self.fill_gap
            else:
                at = row[Column.QUEUE_OFFSET] * ENTRY_SIZE_BYTES
                columns = self.table.queues[queue].tolist()
                start, stop = columns[QueueColumn.FILE_START], columns[QueueColumn.FILE_STOP]
                is_before = row[Column.PHYSICAL_OFFSET] < columns[QueueColumn.MAX_PHYSICAL]
                if at >= columns[QueueColumn.NEXT] and is_before and not is_next:
                    answer, is_next = self.decisions.comes_after_all, True
                elif at > columns[QueueColumn.NEXT]:
                    answer = self.fill_gap
                elif at < start or at + ENTRY_SIZE_BYTES > stop:
                    answer = self.decisions.map_queue_file
                else:
                    break
            if not answer(self.cursor):
                return
        address = columns[QueueColumn.ADDRESS] + at - start
        entry = (row[Column.PHYSICAL_OFFSET], row[Column.SIZE], self.tags_code(row))
        if at < columns[QueueColumn.NEXT]:
            old = _ENTRY.unpack(ctypes.string_at(address, ENTRY_SIZE_BYTES))
            if old == entry:
                return
            is_message = old[1] > 0 and old[0] >= 0 and old != (0, FILLER_SIZE, 0)
            if is_message and not self.decisions.gives_way(self.cursor):
                return
        ctypes.memmove(address, _ENTRY.pack(*entry), ENTRY_SIZE_BYTES)
        numbers = self.table.queues[queue]
        numbers[QueueColumn.CHANGES] += 1
        numbers[QueueColumn.MAX_PHYSICAL] = max(
            columns[QueueColumn.MAX_PHYSICAL], entry[0] + entry[1]
        )
        if at == columns[QueueColumn.NEXT]:
            numbers[QueueColumn.NEXT] = at + ENTRY_SIZE_BYTES

    def has_extra_queues(self, row: list[int]) -> bool:
        """Whether the properties have ``INNER_MULTI_DISPATCH``."""
        properties = self._bytes(row[Column.PROPERTIES_AT], row[Column.PROPERTIES_SIZE])
        return any(part.startswith(_MULTI_DISPATCH_NAME) for part in properties.split(b"\x02"))

    def put_keys(self, row: list[int]) -> None:
        """Put the index items of one record that are not there yet."""
        places = list(key_places(self.buffer, row))
        physical_offset = row[Column.PHYSICAL_OFFSET]
        if not places and not row[Column.KEYS_SIZE]:
            return
        items, end_offset = self.index.last_indexed.tolist()
        if physical_offset < end_offset:
            return
        done = items if physical_offset == end_offset else 0
        for ordinal, (at, size) in enumerate(places[done:], done):
            seed = row[Column.TOPIC_HASH] * 31 + ord("#")
            while not len(self.index.newest_bytes) or not put_item(
                self.index.newest_bytes,
                self.index.layout.slot_count,
                self.index.layout.item_count,
                positive_hash(java_hash(self.buffer, at, size, seed)),
                physical_offset,
                row[Column.STORE_TIMESTAMP],
            ):
                self.index.roll()
            self.index.last_indexed[:] = ordinal + 1, physical_offset

    def _bytes(self, at: int, size: int) -> bytes:
        return self.buffer[at : at + size].tobytes()
