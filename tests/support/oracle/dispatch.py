"""Plain Python: follow a CommitLog file, and enter its records into their queues and the index.

The twin of ``rocketstore.native.dispatch``, which explains the steps and the law.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Final

from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, FILLER_SIZE, MAX_QUEUE_OFFSET
from rocketstore.native.dispatch_state import (
    DispatchStop,
    IndexColumn,
    QueueColumn,
    SlotColumn,
    State,
    Step,
    slot_of,
)
from rocketstore.scan.columns import Column, StopReason
from support.oracle.index import positive_hash, put_item
from support.oracle.java_hash import java_hash
from support.oracle.walk import walk

if TYPE_CHECKING:
    from rocketstore.native.dispatch_state import ByteArray, Int64Array

_ENTRY: Final = struct.Struct(">qiq")
_TRANSACTION_MASK: Final = 0xC
_PREPARED: Final = 0x4
_ROLLBACK: Final = 0xC
_MULTI_DISPATCH_NAME: Final = b"INNER_MULTI_DISPATCH\x01"
_END_OFFSET: Final = struct.Struct(">q")


class _Pass:
    """The arrays of one call."""

    def __init__(
        self,
        buffer: ByteArray,
        slots: Int64Array,
        topics: ByteArray,
        queues: Int64Array,
        index_file: ByteArray,
        index_state: Int64Array,
        delays_ms: Int64Array,
        state: Int64Array,
    ) -> None:
        self.buffer = buffer
        self.slots = slots
        self.topics = topics
        self.queues = queues
        self.index_file = index_file
        self.index_state = index_state
        self.delays_ms = delays_ms
        self.state = state

    def find_queue(self, row: list[int]) -> int:
        """Return the number of a record's queue, or -1."""
        topic_hash, queue_id = row[Column.TOPIC_HASH], row[Column.QUEUE_ID]
        topic = self._bytes(row[Column.TOPIC_AT], row[Column.TOPIC_SIZE])
        slot_count = self.slots.shape[0]
        number = slot_of(topic_hash, queue_id, slot_count)
        while self.slots[number, SlotColumn.QUEUE] >= 0:
            slot = self.slots[number].tolist()
            at, size = slot[SlotColumn.TOPIC_AT], slot[SlotColumn.TOPIC_SIZE]
            if (
                slot[SlotColumn.TOPIC_HASH] == topic_hash
                and slot[SlotColumn.QUEUE_ID] == queue_id
                and self.topics[at : at + size].tobytes() == topic
            ):
                return int(slot[SlotColumn.QUEUE])
            number = (number + 1) % slot_count
        return -1

    def tags_code(self, row: list[int], queue: int) -> int:
        """Return what the entry keeps as tags code: in the delay topic, when to deliver."""
        level = row[Column.DELAY_LEVEL]
        last_level = len(self.delays_ms) - 1
        if self.queues[queue, QueueColumn.IS_DELAY] != 0 and level > 0 and last_level > 0:
            delay_ms = int(self.delays_ms[min(level, last_level)])
            return row[Column.STORE_TIMESTAMP] + delay_ms
        return row[Column.TAGS_CODE]

    def enter(self, row: list[int]) -> int:
        """Write one record's queue entry, or say what is missing."""
        state = self.state
        if row[Column.SYS_FLAG] & _TRANSACTION_MASK in (_PREPARED, _ROLLBACK):
            state[State.WITHOUT_ENTRY] += 1
            return DispatchStop.DONE
        queue = self.find_queue(row)
        if queue < 0:
            return DispatchStop.UNKNOWN_QUEUE
        if not 0 <= row[Column.QUEUE_OFFSET] <= MAX_QUEUE_OFFSET:
            return DispatchStop.QUEUE_GAP
        at = row[Column.QUEUE_OFFSET] * ENTRY_SIZE_BYTES
        columns = self.queues[queue].tolist()
        if at > columns[QueueColumn.NEXT]:
            return DispatchStop.QUEUE_GAP
        start, stop = columns[QueueColumn.FILE_START], columns[QueueColumn.FILE_STOP]
        if at < start or at + ENTRY_SIZE_BYTES > stop:
            return DispatchStop.QUEUE_ROLL
        address = columns[QueueColumn.ADDRESS] + at - start
        entry = (row[Column.PHYSICAL_OFFSET], row[Column.SIZE], self.tags_code(row, queue))
        if at < columns[QueueColumn.NEXT]:
            old = _ENTRY.unpack(ctypes.string_at(address, ENTRY_SIZE_BYTES))
            if old == entry:
                state[State.ENTRIES_REPEATED] += 1
                return DispatchStop.DONE
            if old[1] > 0 and old[0] >= 0 and old != (0, FILLER_SIZE, 0):
                if state[State.FORCE] != 0:
                    return DispatchStop.QUEUE_CONFLICT
                state[State.ENTRIES_REFUSED] += 1
                return DispatchStop.DONE
        ctypes.memmove(address, _ENTRY.pack(*entry), ENTRY_SIZE_BYTES)
        self.queues[queue, QueueColumn.CHANGES] += 1
        self.queues[queue, QueueColumn.MAX_PHYSICAL] = max(
            columns[QueueColumn.MAX_PHYSICAL], entry[0] + entry[1]
        )
        state[State.ENTRIES_WRITTEN] += 1
        if at == columns[QueueColumn.NEXT]:
            self.queues[queue, QueueColumn.NEXT] = at + ENTRY_SIZE_BYTES
        return DispatchStop.DONE

    def has_extra_queues(self, row: list[int]) -> bool:
        """Whether the properties have ``INNER_MULTI_DISPATCH``."""
        properties = self._bytes(row[Column.PROPERTIES_AT], row[Column.PROPERTIES_SIZE])
        return any(part.startswith(_MULTI_DISPATCH_NAME) for part in properties.split(b"\x02"))

    def index(self, row: list[int]) -> int:
        """Put the index items of one record that are not there yet."""
        if row[Column.SYS_FLAG] & _TRANSACTION_MASK == _ROLLBACK:
            return DispatchStop.DONE
        places = self._key_places(row)
        if row[Column.UNIQUE_KEY_SIZE] == 0 and row[Column.KEYS_SIZE] == 0:
            return DispatchStop.DONE
        if self.index_file.shape[0] == 0:
            return DispatchStop.INDEX_FULL
        (end_offset,) = _END_OFFSET.unpack_from(self.index_file.data, 24)
        physical_offset = row[Column.PHYSICAL_OFFSET]
        if physical_offset < end_offset:
            return DispatchStop.DONE
        done = 0
        if physical_offset == end_offset:
            done = int(self.index_state[IndexColumn.ITEMS_AT_END])
        for ordinal, (at, size) in enumerate(places):
            if ordinal < done:
                continue
            seed = row[Column.TOPIC_HASH] * 31 + ord("#")
            if not put_item(
                self.index_file,
                int(self.index_state[IndexColumn.SLOT_LIMIT]),
                int(self.index_state[IndexColumn.ITEM_LIMIT]),
                positive_hash(java_hash(self.buffer, at, size, seed)),
                physical_offset,
                row[Column.STORE_TIMESTAMP],
            ):
                return DispatchStop.INDEX_FULL
            self.index_state[IndexColumn.ITEMS_AT_END] = ordinal + 1
            self.state[State.INDEX_ITEMS] += 1
        return DispatchStop.DONE

    def _key_places(self, row: list[int]) -> list[tuple[int, int]]:
        """Return position and size of the unique key and of every key, in the order of items."""
        places = []
        if row[Column.UNIQUE_KEY_SIZE] > 0:
            places.append((row[Column.UNIQUE_KEY_AT], row[Column.UNIQUE_KEY_SIZE]))
        at = row[Column.KEYS_AT]
        for key in self._bytes(at, row[Column.KEYS_SIZE]).split(b" "):
            if key:
                places.append((at, len(key)))
            at += len(key) + 1
        return places

    def _bytes(self, at: int, size: int) -> bytes:
        return self.buffer[at : at + size].tobytes()

    def dispatch(self, cols: Int64Array) -> int:
        """Dispatch the rows from the cursor on."""
        state = self.state
        while state[State.CURSOR] < state[State.FILLED]:
            row = cols[state[State.CURSOR]].tolist()
            if state[State.STEP] == Step.NEW:
                code = self.enter(row)
                if code != DispatchStop.DONE:
                    return code
                state[State.STEP] = Step.ENTERED
            if state[State.STEP] == Step.ENTERED:
                if (
                    state[State.MULTI_DISPATCH] != 0
                    and row[Column.SYS_FLAG] & _PREPARED == 0
                    and self.has_extra_queues(row)
                ):
                    return DispatchStop.MULTI_DISPATCH
                state[State.STEP] = Step.MULTI_DISPATCHED
            if self.index_state[IndexColumn.ENABLED] != 0:
                code = self.index(row)
                if code != DispatchStop.DONE:
                    return code
            state[State.STEP] = Step.NEW
            state[State.CURSOR] += 1
            state[State.RECORDS] += 1
            state[State.LAST_STORE_TIMESTAMP] = max(
                state[State.LAST_STORE_TIMESTAMP], row[Column.STORE_TIMESTAMP]
            )
            state[State.LAST_PHYSICAL_STOP] = row[Column.PHYSICAL_OFFSET] + row[Column.SIZE]
        return DispatchStop.DONE


def follow(
    buffer: ByteArray,
    stop: int,
    base: int,
    file_size: int,
    cols: Int64Array,
    slots: Int64Array,
    topics: ByteArray,
    queues: Int64Array,
    index_file: ByteArray,
    index_state: Int64Array,
    delays_ms: Int64Array,
    state: Int64Array,
) -> int:
    """Walk and dispatch from where `state` stands up to `stop`."""
    work = _Pass(buffer, slots, topics, queues, index_file, index_state, delays_ms, state)
    while True:
        code = work.dispatch(cols)
        if code != DispatchStop.DONE:
            return code
        if state[State.STOP_AFTER_BATCH] == 1:
            state[State.STOP_AFTER_BATCH] = 2
            if state[State.FILLED] > 0:
                return DispatchStop.BATCH
        if state[State.WALK_STOP] != StopReason.END:
            return DispatchStop.WALK_ENDED
        if state[State.WALKED] >= stop:
            return DispatchStop.DONE
        count, walked, reason = walk(
            buffer,
            int(state[State.WALKED]),
            stop,
            base,
            file_size,
            bool(state[State.CHECK_CRC]),
            cols,
        )
        if state[State.STOP_AFTER_BATCH] == 2:
            state[State.STOP_AFTER_BATCH] = 1
        state[State.CURSOR] = 0
        state[State.FILLED] = count
        state[State.WALKED] = walked
        state[State.WALK_STOP] = reason
        if count == 0 and reason == StopReason.END:
            return DispatchStop.DONE
