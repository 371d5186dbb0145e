"""Compiled: follow a CommitLog file, and enter its records into their queues and the index.

One call walks everything there is to walk and dispatches it without the interpreter: the walk
fills columns, each row becomes a queue entry written straight into the mapped queue file, and an
index item per key. It returns to Python only for what needs a file or a decision: a queue it does
not know, a queue file that is not mapped, a gap, an entry that says something else, a full index
file, extra queues of a multi-dispatch record, the end of the walk.

Law: a record is done in steps that can be repeated. Python answers the question and calls again;
the kernel goes on at the same record and the same step.

Law: an entry's bytes stand before ``NEXT`` admits them, so a reader never sees half an entry.

Sources: DefaultMessageStore.ReputMessageService.doReput, ConsumeQueue.putMessagePositionInfo,
IndexService.buildIndex (spec B11, B12, B15.1, F5).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import types

from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, FILLER_SIZE, MAX_QUEUE_OFFSET
from rocketstore.scan.columns import Column, StopReason
from rocketstore.scan.compiled import BYTES, COLUMNS, NUMBERS, WRITABLE_BYTES, inner, kernel
from rocketstore.scan.compiled.index import positive_hash, put_item
from rocketstore.scan.compiled.java_hash import java_hash_unchecked
from rocketstore.scan.compiled.memory import (
    load_i32_address,
    load_i64,
    load_i64_address,
    prefetch,
    publish,
    store_i32_address,
    store_i64_address,
)
from rocketstore.scan.compiled.walk import walk
from rocketstore.scan.dispatch_state import (
    QUEUE_COLUMN_COUNT,
    DispatchStop,
    IndexColumn,
    QueueColumn,
    SlotColumn,
    State,
    Step,
)

_TRANSACTION_MASK: Final = 0xC
_PREPARED: Final = 0x4
_ROLLBACK: Final = 0xC
_BLANK_CHARACTER: Final = 0x20
_MULTI_DISPATCH_NAME: Final = np.frombuffer(b"INNER_MULTI_DISPATCH\x01", dtype=np.uint8)

_AHEAD_ROWS: Final = 8
"""How many records ahead text is asked for: about a microsecond."""
_CACHE_LINE: Final = 64
_WALK_END: Final = int(StopReason.END)

_DONE: Final = int(DispatchStop.DONE)
_UNKNOWN_QUEUE: Final = int(DispatchStop.UNKNOWN_QUEUE)
_QUEUE_ROLL: Final = int(DispatchStop.QUEUE_ROLL)
_QUEUE_GAP: Final = int(DispatchStop.QUEUE_GAP)
_QUEUE_CONFLICT: Final = int(DispatchStop.QUEUE_CONFLICT)
_INDEX_FULL: Final = int(DispatchStop.INDEX_FULL)
_MULTI_DISPATCH: Final = int(DispatchStop.MULTI_DISPATCH)
_BATCH: Final = int(DispatchStop.BATCH)
_WALK_ENDED: Final = int(DispatchStop.WALK_ENDED)


@inner
def _find_queue(slots: Any, topics: Any, buffer: Any, row: Any) -> Any:
    """Return the number of a record's queue, or -1."""
    mask = slots.shape[0] - 1
    topic_hash = row[Column.TOPIC_HASH]
    queue_id = row[Column.QUEUE_ID]
    at = row[Column.TOPIC_AT]
    size = row[Column.TOPIC_SIZE]
    mixed = (topic_hash * 0x9E3779B1) ^ (queue_id * 0x85EBCA77)
    slot = (mixed ^ (mixed >> 15)) & mask
    while slots[slot, SlotColumn.QUEUE] >= 0:
        if (
            slots[slot, SlotColumn.TOPIC_HASH] == topic_hash
            and slots[slot, SlotColumn.QUEUE_ID] == queue_id
            and slots[slot, SlotColumn.TOPIC_SIZE] == size
        ):
            begin = slots[slot, SlotColumn.TOPIC_AT]
            k = 0
            while k < size and topics[begin + k] == buffer[at + k]:
                k += 1
            if k == size:
                return slots[slot, SlotColumn.QUEUE]
        slot = (slot + 1) & mask
    return -1


@inner
def _tags_code(row: Any, is_delay: Any, delays_ms: Any) -> Any:
    """Return what the entry keeps as tags code: in the delay topic, when to deliver (spec F5)."""
    level = row[Column.DELAY_LEVEL]
    if is_delay != 0 and level > 0 and delays_ms.shape[0] > 1:
        level = min(level, delays_ms.shape[0] - 1)
        return row[Column.STORE_TIMESTAMP] + delays_ms[level]
    return row[Column.TAGS_CODE]


@inner
def _enter(
    buffer: Any, row: Any, slots: Any, topics: Any, queues: Any, delays_ms: Any, state: Any
) -> Any:
    """Write one record's queue entry, or say what is missing."""
    kind = row[Column.SYS_FLAG] & _TRANSACTION_MASK
    if kind in (_PREPARED, _ROLLBACK):
        state[State.WITHOUT_ENTRY] += 1
        return _DONE
    queue = _find_queue(slots, topics, buffer, row)
    if queue < 0:
        return _UNKNOWN_QUEUE
    if row[Column.QUEUE_OFFSET] < 0 or row[Column.QUEUE_OFFSET] > MAX_QUEUE_OFFSET:
        return _QUEUE_GAP
    at = row[Column.QUEUE_OFFSET] * ENTRY_SIZE_BYTES
    following = queues[queue, QueueColumn.NEXT]
    if at > following:
        return _QUEUE_GAP
    if (
        at < queues[queue, QueueColumn.FILE_START]
        or at + ENTRY_SIZE_BYTES > queues[queue, QueueColumn.FILE_STOP]
    ):
        return _QUEUE_ROLL
    address = queues[queue, QueueColumn.ADDRESS] + (at - queues[queue, QueueColumn.FILE_START])
    physical = row[Column.PHYSICAL_OFFSET]
    size = row[Column.SIZE]
    tags_code = _tags_code(row, queues[queue, QueueColumn.IS_DELAY], delays_ms)
    if at < following:
        old_physical = load_i64_address(address)
        old_size = load_i32_address(address + 8)
        old_tags_code = load_i64_address(address + 12)
        if old_physical == physical and old_size == size and old_tags_code == tags_code:
            state[State.ENTRIES_REPEATED] += 1
            return _DONE
        is_filler = old_physical == 0 and old_size == FILLER_SIZE and old_tags_code == 0
        if old_size > 0 and old_physical >= 0 and not is_filler:
            if state[State.FORCE] != 0:
                return _QUEUE_CONFLICT
            state[State.ENTRIES_REFUSED] += 1
            return _DONE
    store_i64_address(address, physical)
    store_i32_address(address + 8, size)
    store_i64_address(address + 12, tags_code)
    queues[queue, QueueColumn.CHANGES] += 1
    queues[queue, QueueColumn.MAX_PHYSICAL] = max(
        queues[queue, QueueColumn.MAX_PHYSICAL], physical + size
    )
    state[State.ENTRIES_WRITTEN] += 1
    if at == following:
        publish(queues, queue * QUEUE_COLUMN_COUNT + QueueColumn.NEXT, at + ENTRY_SIZE_BYTES)
    return _DONE


@inner
def _has_extra_queues(buffer: Any, row: Any) -> Any:
    """Whether the properties have ``INNER_MULTI_DISPATCH``."""
    name = _MULTI_DISPATCH_NAME
    at = row[Column.PROPERTIES_AT]
    stop = at + row[Column.PROPERTIES_SIZE]
    while at + name.shape[0] <= stop:
        k = 0
        while k < name.shape[0] and buffer[at + k] == name[k]:
            k += 1
        if k == name.shape[0]:
            return True
        while at < stop and buffer[at] != 2:
            at += 1
        at += 1
    return False


@inner
def _put_key(buffer: Any, row: Any, at: Any, size: Any, index_file: Any, index_state: Any) -> Any:
    seed = row[Column.TOPIC_HASH] * 31 + 35  # 35 is '#'
    return put_item(
        index_file,
        index_state[IndexColumn.SLOT_LIMIT],
        index_state[IndexColumn.ITEM_LIMIT],
        positive_hash(java_hash_unchecked(buffer, at, size, seed)),
        row[Column.PHYSICAL_OFFSET],
        row[Column.STORE_TIMESTAMP],
    )


@inner
def _index(buffer: Any, row: Any, index_file: Any, index_state: Any, state: Any) -> Any:
    """Put the index items of one record that are not there yet, or say that the file is full."""
    if row[Column.SYS_FLAG] & _TRANSACTION_MASK == _ROLLBACK:
        return _DONE
    if row[Column.UNIQUE_KEY_SIZE] == 0 and row[Column.KEYS_SIZE] == 0:
        return _DONE
    if index_file.shape[0] == 0:
        return _INDEX_FULL
    end_offset = load_i64(index_file, 24)
    if row[Column.PHYSICAL_OFFSET] < end_offset:
        return _DONE
    # K-I8: what the last record already has is counted, not guessed from its offset.
    done = index_state[IndexColumn.ITEMS_AT_END] if row[Column.PHYSICAL_OFFSET] == end_offset else 0
    ordinal = 0
    if row[Column.UNIQUE_KEY_SIZE] > 0:
        if ordinal >= done:
            at = row[Column.UNIQUE_KEY_AT]
            if not _put_key(buffer, row, at, row[Column.UNIQUE_KEY_SIZE], index_file, index_state):
                return _INDEX_FULL
            index_state[IndexColumn.ITEMS_AT_END] = ordinal + 1
            state[State.INDEX_ITEMS] += 1
        ordinal += 1
    at = row[Column.KEYS_AT]
    stop = at + row[Column.KEYS_SIZE]
    while at < stop:
        end = at
        while end < stop and buffer[end] != _BLANK_CHARACTER:
            end += 1
        if end > at:
            if ordinal >= done:
                if not _put_key(buffer, row, at, end - at, index_file, index_state):
                    return _INDEX_FULL
                index_state[IndexColumn.ITEMS_AT_END] = ordinal + 1
                state[State.INDEX_ITEMS] += 1
            ordinal += 1
        at = end + 1
    return _DONE


@inner
def _prefetch_text(buffer: Any, cols: Any, number: Any, filled: Any) -> None:
    """Ask for topic and properties of a row that comes soon: another core may have read them."""
    if number < filled:
        at = cols[number, Column.TOPIC_AT]
        prefetch(buffer, at)
        prefetch(buffer, at + _CACHE_LINE)


@inner
def _dispatch(
    buffer: Any,
    cols: Any,
    slots: Any,
    topics: Any,
    queues: Any,
    index_file: Any,
    index_state: Any,
    delays_ms: Any,
    state: Any,
) -> Any:
    """Dispatch the rows from the cursor on."""
    while state[State.CURSOR] < state[State.FILLED]:
        row = cols[state[State.CURSOR]]
        _prefetch_text(buffer, cols, state[State.CURSOR] + _AHEAD_ROWS, state[State.FILLED])
        if state[State.STEP] == Step.NEW:
            code = _enter(buffer, row, slots, topics, queues, delays_ms, state)
            if code != _DONE:
                return code
            state[State.STEP] = Step.ENTERED
        if state[State.STEP] == Step.ENTERED:
            if (
                state[State.MULTI_DISPATCH] != 0
                and row[Column.SYS_FLAG] & 0x4 == 0
                and _has_extra_queues(buffer, row)
            ):
                return _MULTI_DISPATCH
            state[State.STEP] = Step.MULTI_DISPATCHED
        if index_state[IndexColumn.ENABLED] != 0:
            code = _index(buffer, row, index_file, index_state, state)
            if code != _DONE:
                return code
        state[State.STEP] = Step.NEW
        state[State.CURSOR] += 1
        state[State.RECORDS] += 1
        state[State.LAST_STORE_TIMESTAMP] = max(
            state[State.LAST_STORE_TIMESTAMP], row[Column.STORE_TIMESTAMP]
        )
        publish(state, State.LAST_PHYSICAL_STOP, row[Column.PHYSICAL_OFFSET] + row[Column.SIZE])
    return _DONE


@kernel(
    types.int64(
        BYTES,
        types.int64,
        types.int64,
        types.int64,
        COLUMNS,
        COLUMNS,
        BYTES,
        COLUMNS,
        WRITABLE_BYTES,
        NUMBERS,
        NUMBERS,
        NUMBERS,
    )
)
def follow(
    buffer: Any,
    stop: Any,
    base: Any,
    file_size: Any,
    cols: Any,
    slots: Any,
    topics: Any,
    queues: Any,
    index_file: Any,
    index_state: Any,
    delays_ms: Any,
    state: Any,
) -> Any:
    """Walk and dispatch from where `state` stands up to `stop`.

    Parameters
    ----------
    buffer
        The bytes of one CommitLog file.
    stop
        Position in `buffer` that must not be passed: the end of what may be dispatched.
    base
        Physical offset of ``buffer[0]``.
    file_size
        Size of that file; a BLANK record must say what remains up to there.
    cols
        Matrix for the walk, ``columns.new_columns``; its length is the batch size.
    slots, topics, queues
        The table of queues, see ``dispatch_state``.
    index_file, index_state
        The bytes of the open index file, empty when there is none, and its state.
    delays_ms
        Delay of each level, from index 1; shorter than two elements means that none is known.
    state
        Where the pass stands (``dispatch_state.State``), changed in place.

    Returns
    -------
    int
        A ``DispatchStop``.
    """
    while True:
        code = _dispatch(
            buffer, cols, slots, topics, queues, index_file, index_state, delays_ms, state
        )
        if code != _DONE:
            return code
        if state[State.STOP_AFTER_BATCH] == 1:
            # Asked for once per batch: Python sets it again after it has looked at the rows.
            state[State.STOP_AFTER_BATCH] = 2
            if state[State.FILLED] > 0:
                return _BATCH
        if state[State.WALK_STOP] != _WALK_END:
            return _WALK_ENDED
        if state[State.WALKED] >= stop:
            return _DONE
        count, walked, reason = walk(
            buffer, state[State.WALKED], stop, base, file_size, state[State.CHECK_CRC] != 0, cols
        )
        if state[State.STOP_AFTER_BATCH] == 2:
            state[State.STOP_AFTER_BATCH] = 1
        state[State.CURSOR] = 0
        state[State.FILLED] = count
        state[State.WALKED] = walked
        state[State.WALK_STOP] = reason
        if count == 0 and reason == _WALK_END:
            return _DONE
