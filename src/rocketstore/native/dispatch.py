"""Follow a CommitLog file, and enter its records into their queues and the index.

One call walks everything there is to walk and dispatches it without the interpreter: the walk
fills columns, each row becomes a queue entry written straight into the mapped queue file, and an
index item per key. It returns to Python only for what needs a file or a decision: a queue it does
not know, a queue file that is not mapped, a gap, an entry that says something else, a full index
file, extra queues of a multi-dispatch record, the end of the walk.

Law: a record is done in steps that can be repeated. Python answers the question and calls again;
the pass goes on at the same record and the same step.

Law: an entry's bytes stand before ``NEXT`` admits them, so a reader never sees half an entry.

Sources: DefaultMessageStore.ReputMessageService.doReput, ConsumeQueue.putMessagePositionInfo,
IndexService.buildIndex (spec B11, B12, B15.1, F5).
"""

from __future__ import annotations

from rocketstore.format.queue_entry import MAX_QUEUE_OFFSET

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

if not cython.compiled:
    from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES as _ENTRY_SIZE
    from rocketstore.format.queue_entry import FILLER_SIZE as _FILLER_SIZE
    from rocketstore.native.columns import find_queue, has_extra_queues, key_hash_of
    from rocketstore.native.dispatch_state import (
        DispatchStop,
        IndexColumn,
        QueueColumn,
        State,
        Step,
    )
    from rocketstore.native.index import put_item
    from rocketstore.native.row import Column, StopReason
    from rocketstore.native.view import (
        Bytes,
        Numbers,
        bytes_mapped,
        bytes_of,
        find_byte,
        load_i32,
        load_i64,
        numbers_of,
        prefetch,
        publish,
        queue_at,
        row_at,
        rows_of,
        store_i32,
        store_i64,
    )
    from rocketstore.native.walk import walk_on

_MAX_QUEUE_OFFSET = MAX_QUEUE_OFFSET


class Pass:
    """The arrays of one call."""

    data: Bytes
    topics: Bytes
    index_file: Bytes
    rows: Numbers
    slots: Numbers
    queues: Numbers
    index: Numbers
    delays_ms: Numbers
    state: Numbers
    slot_count: int
    delay_count: int
    most: int

    def tags_code(self, row: Numbers, is_delay: bool) -> int:
        """Return what the entry keeps as tags code: in the delay topic, when to deliver (F5)."""
        level = row[Column.DELAY_LEVEL]
        if is_delay and level > 0 and self.delay_count > 1:
            level = min(level, self.delay_count - 1)
            return row[Column.STORE_TIMESTAMP] + self.delays_ms[level]
        return row[Column.TAGS_CODE]

    def enter(self, row: Numbers) -> int:
        """Write one record's queue entry, or say what is missing."""
        kind = row[Column.SYS_FLAG] & 0xC
        if kind == 0x4 or kind == 0xC:  # prepared, rolled back
            self.state[State.WITHOUT_ENTRY] += 1
            return DispatchStop.DONE
        number = find_queue(self.slots, self.slot_count, self.topics, self.data, row)
        if number < 0:
            return DispatchStop.UNKNOWN_QUEUE
        if row[Column.QUEUE_OFFSET] < 0 or row[Column.QUEUE_OFFSET] > _MAX_QUEUE_OFFSET:
            return DispatchStop.QUEUE_GAP
        queue = queue_at(self.queues, number)
        at = row[Column.QUEUE_OFFSET] * _ENTRY_SIZE
        following = queue[QueueColumn.NEXT]
        if at > following:
            return DispatchStop.QUEUE_GAP
        if at < queue[QueueColumn.FILE_START] or at + _ENTRY_SIZE > queue[QueueColumn.FILE_STOP]:
            return DispatchStop.QUEUE_ROLL
        entry = bytes_mapped(
            queue[QueueColumn.ADDRESS] + (at - queue[QueueColumn.FILE_START]), _ENTRY_SIZE
        )
        physical = row[Column.PHYSICAL_OFFSET]
        size = row[Column.SIZE]
        tags_code = self.tags_code(row, queue[QueueColumn.IS_DELAY] != 0)
        if at < following:
            old_physical = load_i64(entry, 0)
            old_size = load_i32(entry, 8)
            old_tags_code = load_i64(entry, 12)
            if old_physical == physical and old_size == size and old_tags_code == tags_code:
                self.state[State.ENTRIES_REPEATED] += 1
                return DispatchStop.DONE
            is_filler = old_physical == 0 and old_size == _FILLER_SIZE and old_tags_code == 0
            if old_size > 0 and old_physical >= 0 and not is_filler:
                if self.state[State.FORCE] != 0:
                    return DispatchStop.QUEUE_CONFLICT
                self.state[State.ENTRIES_REFUSED] += 1
                return DispatchStop.DONE
        store_i64(entry, 0, physical)
        store_i32(entry, 8, size)
        store_i64(entry, 12, tags_code)
        queue[QueueColumn.CHANGES] += 1
        queue[QueueColumn.MAX_PHYSICAL] = max(queue[QueueColumn.MAX_PHYSICAL], physical + size)
        self.state[State.ENTRIES_WRITTEN] += 1
        if at == following:
            publish(queue, QueueColumn.NEXT, at + _ENTRY_SIZE)
        return DispatchStop.DONE

    def put_key(self, row: Numbers, at: int, size: int, ordinal: int) -> bool:
        """Put one item of a record; return whether the file had room for it."""
        if not put_item(
            self.index_file,
            self.index[IndexColumn.SLOT_LIMIT],
            self.index[IndexColumn.ITEM_LIMIT],
            key_hash_of(self.data, row, at, size),
            row[Column.PHYSICAL_OFFSET],
            row[Column.STORE_TIMESTAMP],
        ):
            return False
        self.index[IndexColumn.ITEMS_AT_END] = ordinal + 1
        self.state[State.INDEX_ITEMS] += 1
        return True

    def put_keys(self, row: Numbers) -> int:
        """Put the index items of one record that are not there yet, or say that it is full."""
        if row[Column.SYS_FLAG] & 0xC == 0xC:
            return DispatchStop.DONE
        if row[Column.UNIQUE_KEY_SIZE] == 0 and row[Column.KEYS_SIZE] == 0:
            return DispatchStop.DONE
        if self.index_file.size == 0:
            return DispatchStop.INDEX_FULL
        end_offset = load_i64(self.index_file, 24)
        if row[Column.PHYSICAL_OFFSET] < end_offset:
            return DispatchStop.DONE
        # K-I8: what the last record already has is counted, not guessed from its offset.
        done = 0
        if row[Column.PHYSICAL_OFFSET] == end_offset:
            done = self.index[IndexColumn.ITEMS_AT_END]
        ordinal = 0
        if row[Column.UNIQUE_KEY_SIZE] > 0:
            if ordinal >= done and not self.put_key(
                row, row[Column.UNIQUE_KEY_AT], row[Column.UNIQUE_KEY_SIZE], ordinal
            ):
                return DispatchStop.INDEX_FULL
            ordinal += 1
        at = row[Column.KEYS_AT]
        stop = at + row[Column.KEYS_SIZE]
        while at < stop:
            end = find_byte(self.data, at, stop, 32)
            if end > at:
                if ordinal >= done and not self.put_key(row, at, end - at, ordinal):
                    return DispatchStop.INDEX_FULL
                ordinal += 1
            at = end + 1
        return DispatchStop.DONE

    def prefetch_text(self, number: int) -> None:
        """Ask for the text of a row that comes soon: another core may have read it."""
        if number < self.state[State.FILLED]:
            at = row_at(self.rows, number)[Column.TOPIC_AT]
            prefetch(self.data, at)
            prefetch(self.data, at + 64)

    def dispatch(self) -> int:
        """Dispatch the rows from the cursor on."""
        state = self.state
        while state[State.CURSOR] < state[State.FILLED]:
            row = row_at(self.rows, state[State.CURSOR])
            self.prefetch_text(state[State.CURSOR] + 8)  # about a microsecond
            if state[State.STEP] == Step.NEW:
                code = self.enter(row)
                if code != DispatchStop.DONE:
                    return code
                state[State.STEP] = Step.ENTERED
            if state[State.STEP] == Step.ENTERED:
                if (
                    state[State.MULTI_DISPATCH] != 0
                    and row[Column.SYS_FLAG] & 0x4 == 0
                    and has_extra_queues(self.data, row)
                ):
                    return DispatchStop.MULTI_DISPATCH
                state[State.STEP] = Step.MULTI_DISPATCHED
            if self.index[IndexColumn.ENABLED] != 0:
                code = self.put_keys(row)
                if code != DispatchStop.DONE:
                    return code
            state[State.STEP] = Step.NEW
            state[State.CURSOR] += 1
            state[State.RECORDS] += 1
            state[State.LAST_STORE_TIMESTAMP] = max(
                state[State.LAST_STORE_TIMESTAMP], row[Column.STORE_TIMESTAMP]
            )
            publish(state, State.LAST_PHYSICAL_STOP, row[Column.PHYSICAL_OFFSET] + row[Column.SIZE])
        return DispatchStop.DONE

    def follow(self, stop: int, base: int, file_size: int) -> int:
        """Walk and dispatch up to `stop`."""
        state = self.state
        while True:
            code = self.dispatch()
            if code != DispatchStop.DONE:
                return code
            if state[State.STOP_AFTER_BATCH] == 1:
                # Asked for once per batch: Python sets it again after it has looked at the rows.
                state[State.STOP_AFTER_BATCH] = 2
                if state[State.FILLED] > 0:
                    return DispatchStop.BATCH
            if state[State.WALK_STOP] != StopReason.END:
                return DispatchStop.WALK_ENDED
            if state[State.WALKED] >= stop:
                return DispatchStop.DONE
            count, walked, reason = walk_on(
                self.data,
                max(state[State.WALKED], 0),
                min(stop, file_size, self.data.size),
                base,
                file_size,
                state[State.CHECK_CRC] != 0,
                self.rows,
                self.most,
            )
            if state[State.STOP_AFTER_BATCH] == 2:
                state[State.STOP_AFTER_BATCH] = 1
            state[State.CURSOR] = 0
            state[State.FILLED] = count
            state[State.WALKED] = walked
            state[State.WALK_STOP] = reason
            if count == 0 and reason == StopReason.END:
                return DispatchStop.DONE


def follow(
    buffer: Bytes,
    stop: int,
    base: int,
    file_size: int,
    cols: Numbers,
    slots: Numbers,
    topics: Bytes,
    queues: Numbers,
    index_file: Bytes,
    index_state: Numbers,
    delays_ms: Numbers,
    state: Numbers,
) -> int:
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
    run = Pass()
    run.data = bytes_of(buffer)
    run.topics = bytes_of(topics)
    run.index_file = bytes_of(index_file)
    run.rows = rows_of(cols)
    run.most = cols.shape[0]
    run.slots = rows_of(slots)
    run.slot_count = slots.shape[0]
    run.queues = rows_of(queues)
    run.index = numbers_of(index_state)
    run.delays_ms = numbers_of(delays_ms)
    run.delay_count = delays_ms.shape[0]
    run.state = numbers_of(state)
    with cython.nogil:
        code = run.follow(stop, base, file_size)
    return int(code)
