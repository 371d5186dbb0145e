"""Enter the records of a walk into their queues and the index.

Each row becomes a queue entry, written straight into the mapped queue file, and an index item per
key. That runs without the interpreter. Rare cases (an unknown queue, a queue file that is not
mapped, a gap, a different entry, extra queues, a full index file) are left to ordinary Python
(``storage.dispatch.entry_decisions``), and the tables are looked up again.

Law: dispatching a record again changes nothing, so a pass that an error ended is started again at
``cursor``. An entry's bytes are written before ``NEXT`` admits them: a reader never sees half an
entry.

Sources: DefaultMessageStore.ReputMessageService.doReput, ConsumeQueue.putMessagePositionInfo,
IndexService.buildIndex (spec B11, B12, B15.1, F5).
"""

from __future__ import annotations

from typing import Any

from rocketstore.format.queue_entry import MAX_QUEUE_OFFSET

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

if not cython.compiled:
    from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES as _ENTRY_SIZE
    from rocketstore.format.queue_entry import FILLER_SIZE as _FILLER_SIZE
    from rocketstore.message import INNER_BATCH as _INNER_BATCH
    from rocketstore.native import view
    from rocketstore.native.columns import entry_code, find_queue, next_key
    from rocketstore.native.index import key_hash_of, put_item
    from rocketstore.native.row import CallsFor, Column, PutEntry, QueueColumn, StopReason
    from rocketstore.native.view import Bytes, Numbers
    from rocketstore.native.walk import walk_rows

_MAX_QUEUE_OFFSET = MAX_QUEUE_OFFSET


class NotHereError(Exception):
    """A guest came to a record that asks for a decision, which may make a file."""


def is_in_file(queue: Numbers, at: int) -> bool:
    """Return whether the file that is mapped for a queue holds the entry at a byte position."""
    return queue[QueueColumn.FILE_START] <= at and at + _ENTRY_SIZE <= queue[QueueColumn.FILE_STOP]


def put_entry(queue: Numbers, at: int, physical: int, size: int, code: int, overwrite: bool) -> int:
    """Put one entry into that file, at the queue's end or before; return the outcome.

    With `overwrite` it replaces another message's.
    """
    start = queue[QueueColumn.ADDRESS] - queue[QueueColumn.FILE_START]
    entry = view.bytes_mapped(start + at, _ENTRY_SIZE)
    if at < queue[QueueColumn.NEXT]:
        old_physical, old_size = view.load_i64(entry, 0), view.load_i32(entry, 8)
        old_code = view.load_i64(entry, 12)
        if old_physical == physical and old_size == size and old_code == code:
            return PutEntry.REPEATED
        is_filler = old_physical == 0 and old_size == _FILLER_SIZE and old_code == 0
        if old_size > 0 and old_physical >= 0 and not is_filler and not overwrite:
            return PutEntry.REFUSED
    view.store_i64(entry, 0, physical)
    view.store_i32(entry, 8, size)
    view.store_i64(entry, 12, code)
    queue[QueueColumn.CHANGES] += 1
    if size != _FILLER_SIZE:  # which no record has (K-C2)
        queue[QueueColumn.MAX_PHYSICAL] = max(queue[QueueColumn.MAX_PHYSICAL], physical + size)
    if at == queue[QueueColumn.NEXT]:
        view.publish(queue, QueueColumn.NEXT, at + _ENTRY_SIZE)
    return PutEntry.WRITTEN


def put_mapped(row: Numbers, at: int, physical: int, size: int, code: int, overwrite: bool) -> int:
    """Put one entry as dispatch does; `row` has the numbers of its queue, of ``queues``."""
    queue = view.numbers_of(row)
    if row.shape[0] <= QueueColumn.CHANGES or not is_in_file(queue, at):
        return PutEntry.REFUSED
    return put_entry(queue, at, physical, size, code, overwrite)


class RowDispatch:
    """Dispatches rows into queues (``QueueRows``) and the index.

    `decisions` (``EntryDecisions``) handles rare cases. `delays_ms` has the delay of each level
    from index 1 on, none when it is shorter than two. `cursor` is the row that is being
    dispatched, of `count` rows of its batch. A delay counts from the store time, and from `now_ms`
    where that is earlier: store times never go back, and so may be ahead of the clock. For a thread
    that `is_guest`, and may not wait for a disk, nothing is decided: `NotHereError`.
    """

    count: int

    def __init__(self, decisions: Any, table: Any, index: Any, delays_ms: Any) -> None:
        self.decisions, self.table, self.index = decisions, table, index
        self.delays_kept = delays_ms
        self.delays_ms, self.delay_count = view.numbers_of(delays_ms), len(delays_ms)
        self.is_indexed = index.is_enabled
        self.slot_limit, self.item_limit = index.layout.slot_count, index.layout.item_count
        self.last_store_timestamp_ms = self.cursor = 0
        self.tables_kept: Any = None
        self.now_ms = (1 << 63) - 1
        self.is_guest = False

    def dispatch(self, buffer: Bytes, cols: Numbers) -> None:
        """Dispatch all rows of `cols`, whose bytes are in `buffer`; ``cursor`` says how many were.

        After an error (a file could not be made) the row at ``cursor`` is not done.
        """
        self.data, self.rows, self.count = view.bytes_of(buffer), view.rows_of(cols), cols.shape[0]
        self.cursor = 0
        self.look_up_tables()
        try:
            with cython.nogil:
                self.dispatch_rows()
        finally:
            self.let_go()

    def dispatch_file(
        self, buffer: Bytes, position: int, stop: int, base: int, file_size: int, check_crc: bool,
        cols: Numbers, batches: int,
    ) -> tuple[int, int]:  # fmt: skip
        """Walk a file as ``walk.walk`` does and dispatch it, at most `batches` times all of `cols`.

        Returns the first byte that is not dispatched, and what stands there. It waits for the
        interpreter's lock once: a busy writer gives that up only every few milliseconds, in which
        it puts more than fits `cols`.
        """
        self.data, self.rows, self.count = view.bytes_of(buffer), view.rows_of(cols), 0
        at, end = max(position, 0), min(stop, file_size, self.data.size)
        limit = cols.shape[0]
        verdict: int = StopReason.END
        batch = 0
        self.look_up_tables()
        try:
            with cython.nogil:
                while batch < batches and at < end and verdict == StopReason.END:
                    self.cursor = self.count = 0
                    count, at, verdict = walk_rows(
                        self.data, at, end, base, file_size, check_crc, self.rows, limit
                    )
                    self.count = count
                    self.dispatch_rows()
                    batch += 1
        finally:
            self.let_go()
        return int(at), int(verdict)

    def let_go(self) -> None:
        """Keep no file mapped."""
        self.tables_kept = None
        if not cython.compiled:  # there pointers, here views
            del self.data, self.index_file

    def look_up_tables(self) -> None:
        """Use the current tables: a decision may have replaced one."""
        table, index = self.table, self.index
        self.tables_kept = (table.slots, table.topics, table.queues, index.newest_bytes)
        self.slots, self.slot_count = view.rows_of(table.slots), len(table.slots)
        self.topics, self.queues = view.bytes_of(table.topics), view.rows_of(table.queues)
        self.index_file = view.bytes_of(index.newest_bytes)
        self.last_indexed = view.numbers_of(index.last_indexed)

    def dispatch_rows(self) -> int:
        """Dispatch the rows from the cursor on."""
        while self.cursor < self.count:
            row = view.row_at(self.rows, self.cursor)
            self.prefetch_text(self.cursor + 8)  # about a microsecond
            self.enter(row)
            if row[Column.CALLS_FOR] & CallsFor.EXTRA_ENTRIES:
                with cython.gil:
                    self.decider().enter_extra_queues(self.cursor, self.count)
                    self.look_up_tables()
            if self.is_indexed:
                self.put_keys(row)
            self.cursor += 1
            self.last_store_timestamp_ms = max(
                self.last_store_timestamp_ms, row[Column.STORE_TIMESTAMP]
            )
        return 0

    def decider(self) -> Any:
        """Return who decides about a record."""
        if self.is_guest:
            raise NotHereError
        return self.decisions

    def prefetch_text(self, number: int) -> None:
        """Prefetch the text of a row that comes soon: another core may have read it."""
        if number < self.count:
            at = view.row_at(self.rows, number)[Column.TOPIC_AT]
            view.prefetch(self.data, at)
            view.prefetch(self.data, at + 64)

    # --- the queue entry ----------------------------------------------------------------------

    def enter(self, row: Numbers) -> int:
        """Write one record's queue entry, if it is to have one."""
        if row[Column.CALLS_FOR] & CallsFor.ENTRY == 0:
            return 0
        if row[Column.SYS_FLAG] & _INNER_BATCH:
            with cython.gil:
                is_entered = self.decider().enter_batch(self.cursor)
            if is_entered:
                return 0
        number = self.ready_queue(row)
        if number < 0:
            return 0
        queue = view.queue_at(self.queues, number)
        at = row[Column.QUEUE_OFFSET] * _ENTRY_SIZE
        physical = row[Column.PHYSICAL_OFFSET]
        size = row[Column.SIZE]
        code = entry_code(row, self.delays_ms, self.delay_count)
        if row[Column.CALLS_FOR] & CallsFor.DUE_TIME and self.delay_count > 1:
            ahead_ms = max(row[Column.STORE_TIMESTAMP] - self.now_ms, 0)
            code -= ahead_ms - ahead_ms % 1000
        if queue[QueueColumn.IS_EXTENDED]:
            with cython.gil:
                code = self.decider().extended_code(self.cursor, code)
        if put_entry(queue, at, physical, size, code, False) == PutEntry.REFUSED:
            with cython.gil:
                gives_way = self.decider().gives_way(self.cursor)
            if gives_way:
                put_entry(queue, at, physical, size, code, True)
        return 0

    def ready_queue(self, row: Numbers) -> int:
        """Return the number of a record's queue once its entry can be written, -1 if it cannot."""
        is_answered, is_next = True, False
        while is_answered:
            number = find_queue(self.slots, self.slot_count, self.topics, self.data, row)
            if number < 0:
                with cython.gil:
                    is_answered = self.decider().take_in_queue(self.cursor)
                    self.look_up_tables()
                continue
            queue = view.queue_at(self.queues, number)
            offset = row[Column.QUEUE_OFFSET]
            is_next |= row[Column.PHYSICAL_OFFSET] >= queue[QueueColumn.MAX_PHYSICAL]
            is_possible = offset >= 0 and offset <= _MAX_QUEUE_OFFSET
            if is_possible and not is_next and offset * _ENTRY_SIZE >= queue[QueueColumn.NEXT]:
                with cython.gil:
                    is_answered = is_next = self.decider().comes_after_all(self.cursor)
                continue
            if not is_possible or offset * _ENTRY_SIZE > queue[QueueColumn.NEXT]:
                with cython.gil:
                    is_answered = self.decider().fill_gap(self.cursor, self.count)
                    self.look_up_tables()
                continue
            if is_in_file(queue, offset * _ENTRY_SIZE):
                return number
            with cython.gil:
                is_answered = self.decider().map_queue_file(self.cursor)
                self.look_up_tables()
        return -1

    # --- the index items ------------------------------------------------------------------------

    def put_keys(self, row: Numbers) -> int:
        """Put the index items of one record that are not there yet."""
        if row[Column.CALLS_FOR] & CallsFor.ITEMS == 0:
            return 0
        if row[Column.UNIQUE_KEY_SIZE] == 0 and row[Column.KEYS_SIZE] == 0:
            return 0
        if row[Column.PHYSICAL_OFFSET] < self.last_indexed[1]:
            return 0
        # K-I8: the items of the last record are counted, not guessed from its offset.
        done = 0
        if row[Column.PHYSICAL_OFFSET] == self.last_indexed[1]:
            done = self.last_indexed[0]
        ordinal = 0
        at, end = next_key(self.data, row, -1)
        while end > 0:
            if ordinal >= done:
                self.put_key(row, at, end - at, ordinal)
            ordinal += 1
            at, end = next_key(self.data, row, end)
        return 0

    def put_key(self, row: Numbers, at: int, size: int, ordinal: int) -> int:
        """Put one item of a record, into the next file if this one is full."""
        key_hash = key_hash_of(self.data, at, size, row[Column.TOPIC_HASH])
        physical, timestamp = row[Column.PHYSICAL_OFFSET], row[Column.STORE_TIMESTAMP]
        while self.index_file.size == 0 or not put_item(
            self.index_file, self.slot_limit, self.item_limit, key_hash, physical, timestamp
        ):
            self.roll_index()
        self.last_indexed[0] = ordinal + 1
        self.last_indexed[1] = physical
        return 0

    def roll_index(self) -> int:
        """Have an index file that takes items."""
        with cython.gil:
            self.decider()
            self.index.roll()
            self.look_up_tables()
        return 0
