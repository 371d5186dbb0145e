"""Dispatch: follow the CommitLog, and enter every record into its queue and the index.

A thread asks how far records may be seen (`readable_limit`: in SYNC_FLUSH what is on disk, K-D2),
and gives everything up to there to the ``follow`` kernel, file by file. The kernel comes back only
with a question: a new queue, a queue file, a gap, a full index file. Recovery uses the same way,
synchronously and with `force`, to rewrite what a crash may have spoilt.

Law: no record that can be read is passed over. Behind damage dispatch goes on at the next
believable record (K-R3) and counts what it stepped over; an error of any kind is tried again, with
growing pauses, from the same record (K-R4, K-C6). Doing a record twice changes nothing.

How derived: DefaultMessageStore.ReputMessageService, CommitLogDispatcherBuildConsumeQueue,
CommitLogDispatcherBuildIndex of 4.9 (spec B11, B12, B15.1).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import structlog

from rocketstore.format.properties import decode_properties
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, QueueEntry
from rocketstore.scan import kernels
from rocketstore.scan.columns import Column, RecordColumns, StopReason, new_columns
from rocketstore.scan.dispatch_state import (
    STATE_COUNT,
    DispatchStop,
    QueueColumn,
    State,
    Step,
)
from rocketstore.storage.arrival import Arrival, ArrivalBoard
from rocketstore.storage.consume_queue import ConsumeQueue, PutEntry
from rocketstore.storage.record_access import LMQ_PREFIX
from rocketstore.units import ByteRange, QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rocketstore.scan.dispatch_state import Int64Array
    from rocketstore.storage.index import IndexService
    from rocketstore.storage.mapped_file import MappedFile
    from rocketstore.storage.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.queue_table import ConsumeQueueTable

_log: Final = structlog.get_logger(__name__)

BATCH_RECORDS: Final = 1024
"""Records per walked batch: 230 kB of columns, which stay in the processor's second-level cache."""

SMALLEST_RECORD_BYTES: Final = 91
"""A record without body, topic and properties (spec F3)."""

_LISTED_DAMAGE: Final = 1000
_PREPARED_BIT: Final = 0x4


class SteppedOver(NamedTuple):
    """Bytes of the CommitLog that dispatch could not read.

    Attributes
    ----------
    reason
        What the walk found, or None where the file is missing.
    """

    range: ByteRange
    reason: StopReason | None


class DispatchCounts(NamedTuple):
    """What was dispatched since the dispatcher was made.

    Attributes
    ----------
    entries_repeated
        Entries that stood there already, equal.
    entries_refused
        Records without an entry because another one stands in its place, or because topic, queue
        id or queue offset cannot be true.
    without_entry
        Prepared and rollback records, which have no queue entry.
    """

    records: int
    entries_written: int
    entries_repeated: int
    entries_refused: int
    without_entry: int
    index_items: int
    stepped_over_bytes: int
    stepped_over_ranges: int


class Dispatcher:
    """Dispatches the records of a CommitLog; `DispatchService` runs it in a thread.

    Parameters
    ----------
    log_files
        The files of the CommitLog.
    table, index
        What is filled.
    readable_limit
        Returns the physical offset up to which records may be dispatched, a record's boundary.
    delays_ms
        Delay of each level of the delay topic; known before recovery dispatches (K-S1).
    multi_dispatch, lmq
        ``enableMultiDispatch``, ``enableLmq``.

    Attributes
    ----------
    dispatched_offset
        Physical offset up to which everything is dispatched.
    stepped_over
        The first ranges that could not be read; the counts have all of them.
    board
        Listeners and waiters.
    """

    def __init__(
        self,
        log_files: MappedFileQueue,
        table: ConsumeQueueTable,
        index: IndexService,
        *,
        readable_limit: Callable[[], int],
        delays_ms: Mapping[int, int],
        multi_dispatch: bool = False,
        lmq: bool = False,
    ) -> None:
        self.board = ArrivalBoard()
        self.dispatched_offset = 0
        self.stepped_over: list[SteppedOver] = []
        self._files = log_files
        self._table = table
        self._index = index
        self._readable_limit = readable_limit
        self._delays = _level_array(delays_ms)
        self._lmq = lmq
        self._cols = new_columns(BATCH_RECORDS)
        self._state: Int64Array = np.zeros(STATE_COUNT, np.int64)
        self._state[State.MULTI_DISPATCH] = multi_dispatch
        self._force_start = -1
        self._range_stop = 0
        self._stepped_over_bytes = 0
        self._stepped_over_ranges = 0
        self._extra_arrivals: list[Arrival] = []
        self._file: MappedFile | None = None

    # --- what others ask ------------------------------------------------------------------------

    @property
    def counts(self) -> DispatchCounts:
        """What was dispatched so far."""
        state = self._state.tolist()
        return DispatchCounts(
            state[State.RECORDS],
            state[State.ENTRIES_WRITTEN],
            state[State.ENTRIES_REPEATED],
            state[State.ENTRIES_REFUSED],
            state[State.WITHOUT_ENTRY],
            state[State.INDEX_ITEMS],
            self._stepped_over_bytes,
            self._stepped_over_ranges,
        )

    @property
    def last_store_timestamp_ms(self) -> int:
        """Store time of the newest record dispatched."""
        return int(self._state[State.LAST_STORE_TIMESTAMP])

    @property
    def behind_bytes(self) -> int:
        """How much may be dispatched and is not yet."""
        return max(self._readable_limit() - self.dispatched_offset, 0)

    def start_at(self, physical_offset: int, *, last_store_timestamp_ms: int = 0) -> None:
        """Say that everything before an offset is dispatched."""
        self.dispatched_offset = physical_offset
        self._state[State.LAST_STORE_TIMESTAMP] = max(
            last_store_timestamp_ms, self.last_store_timestamp_ms
        )

    # --- dispatching ----------------------------------------------------------------------------

    def run_once(self) -> bool:
        """Dispatch everything that may be; return whether there was anything.

        Raises
        ------
        RocketStoreError, OSError
            A file could not be made; nothing is lost, the next call goes on at the same record.
        """
        limit = self._readable_limit()
        if self.dispatched_offset >= limit:
            return False
        try:
            self._dispatch_to(limit)
        finally:
            self.board.wake()
        return True

    def dispatch_range(
        self, start: int, stop: int, *, force: bool = True, check_crc: bool = False
    ) -> DispatchCounts:
        """Dispatch the records of [start, stop) now, on this thread; for recovery.

        Parameters
        ----------
        start, stop
            Physical offsets; `start` is where a record or a file begins.
        force
            Replace a queue entry that says something else when the record it points at is not
            intact, or stands behind the new one: then the queue ends up as if built from nothing.
        check_crc
            Take a record with a wrong body checksum for damage.

        Returns
        -------
        DispatchCounts
            Of this range alone.
        """
        before = self.counts
        self.dispatched_offset = start
        state = self._state
        state[State.FORCE], state[State.CHECK_CRC] = force, check_crc
        self._force_start, self._range_stop = (start if force else -1), stop
        try:
            self._dispatch_to(stop)
        finally:
            state[State.FORCE] = state[State.CHECK_CRC] = 0
            self._force_start = -1
        return DispatchCounts._make(
            after - start_count for after, start_count in zip(self.counts, before, strict=True)
        )

    def _dispatch_to(self, limit: int) -> None:
        while self.dispatched_offset < limit:
            position = self.dispatched_offset
            file = self._files.find(position)
            if file is None:
                self._step_to_next_file(position, limit)
                continue
            stop = min(limit - file.base, file.size)
            self._follow(file, position - file.base, stop)

    def _step_to_next_file(self, position: int, limit: int) -> None:
        """Go on where the next file begins: files are missing, or retention was faster."""
        bases = [file.base for file in self._files.files]
        at = bisect_left(bases, position)
        following = min(bases[at], limit) if at < len(bases) else limit
        if at == 0 and bases:
            _log.warning("dispatch.behind_retention", position=position, min_offset=bases[0])
        self._note_stepped_over(position, following, None)
        self.dispatched_offset = following

    def _follow(self, file: MappedFile, start: int, stop: int) -> None:
        """Dispatch one file from `start` to `stop`, positions inside it."""
        state = self._state
        state[State.WALKED] = start
        self._forget_rows()
        self._file = file
        reached = None
        try:
            while reached is None:
                code = self._call_kernel(file, stop)
                if code == DispatchStop.DONE:
                    reached = file.base + stop
                elif code == DispatchStop.WALK_ENDED:
                    reached = self._after_walk(file, stop)
                else:
                    _ANSWERS[DispatchStop(code)](self)
        finally:
            # After an error the record that was under way is walked again from its start.
            self.dispatched_offset = self._reached(file) if reached is None else reached
            self._file = None
            self._extra_arrivals.clear()

    def _call_kernel(self, file: MappedFile, stop: int) -> int:
        self._state[State.STOP_AFTER_BATCH] = (
            max(self._state[State.STOP_AFTER_BATCH], 1) if self.board.has_listeners else 0
        )
        rows, index = self._table.rows, self._index
        code: int = kernels.follow(
            file.array,
            stop,
            file.base,
            file.size,
            self._cols,
            rows.slots,
            rows.topics,
            rows.queues,
            index.kernel_file,
            index.kernel_state,
            self._delays,
            self._state,
        )
        return code

    def _reached(self, file: MappedFile) -> int:
        state = self._state
        cursor = int(state[State.CURSOR])
        if cursor < state[State.FILLED]:
            return int(self._cols[cursor, Column.PHYSICAL_OFFSET])
        return file.base + int(state[State.WALKED])

    def _forget_rows(self) -> None:
        state = self._state
        state[State.CURSOR] = state[State.FILLED] = 0
        state[State.STEP] = Step.NEW
        state[State.WALK_STOP] = StopReason.END
        state[State.STOP_AFTER_BATCH] = 0

    def _after_walk(self, file: MappedFile, stop: int) -> int | None:
        """Go on behind what the walk could not pass; return the offset when that ends the file."""
        state = self._state
        reason = StopReason(int(state[State.WALK_STOP]))
        position = int(state[State.WALKED])
        if reason is StopReason.BLANK:
            return file.base + file.size
        found = int(kernels.resync(file.array, position + 1, stop, file.base, file.size))
        following = stop if found < 0 else found
        self._note_stepped_over(file.base + position, file.base + following, reason)
        if found < 0:
            return file.base + stop
        state[State.WALKED] = found
        self._forget_rows()
        return None

    def _note_stepped_over(self, start: int, stop: int, reason: StopReason | None) -> None:
        self._stepped_over_bytes += stop - start
        self._stepped_over_ranges += 1
        if len(self.stepped_over) < _LISTED_DAMAGE:
            self.stepped_over.append(SteppedOver(ByteRange(start, stop), reason))
        what = "file missing" if reason is None else reason.name
        _log.warning("dispatch.stepped_over", start=start, stop=stop, reason=what)

    # --- the kernel's questions -----------------------------------------------------------------

    def _row(self) -> list[int]:
        row: list[int] = self._cols[self._state[State.CURSOR]].tolist()
        return row

    def _columns(self) -> RecordColumns:
        assert self._file is not None
        return RecordColumns(self._file.array, self._cols, self._file.base)

    def _key_of(self, row_number: int) -> QueueKey | None:
        """Return the queue of a record, None when its topic is no text."""
        name = self._columns().bytes_of(row_number, Column.TOPIC_AT, Column.TOPIC_SIZE)
        try:
            return QueueKey(name.decode(), int(self._cols[row_number, Column.QUEUE_ID]))
        except UnicodeDecodeError:
            return None

    def _queue_at_cursor(self) -> ConsumeQueue:
        key = self._key_of(int(self._state[State.CURSOR]))
        queue = None if key is None else self._table.get(key)
        assert queue is not None, "the kernel knew this queue"
        return queue

    def _on_unknown_queue(self) -> None:
        key = self._key_of(int(self._state[State.CURSOR]))
        if key is None or self._table.get(key) is not None:
            self._refuse("topic")
        elif self._table.get_or_create(key) is None:
            self._refuse("topic or queue id")

    def _on_queue_roll(self) -> None:
        queue = self._queue_at_cursor()
        position = self._row()[Column.QUEUE_OFFSET] * ENTRY_SIZE_BYTES
        if not queue.map_for_write(position):
            self._refuse("queue offset before the queue's first file")

    def _on_queue_gap(self) -> None:
        queue = self._queue_at_cursor()
        row = self._row()
        offset = row[Column.QUEUE_OFFSET]
        if not self._is_plausible_gap(queue, offset, row[Column.PHYSICAL_OFFSET]):
            self._refuse("queue offset")
            return
        if queue.files.files:
            _log.warning(
                "dispatch.gap",
                queue=str(queue.key),
                missing=offset - queue.max_offset,
                physical_offset=row[Column.PHYSICAL_OFFSET],
            )
        queue.fill_to(offset * ENTRY_SIZE_BYTES)

    def _is_plausible_gap(self, queue: ConsumeQueue, offset: int, physical_offset: int) -> bool:
        """Whether so many records of the queue can stand between its last one and this one.

        The header of a record has no checksum, so a changed queue offset must not fill the disk.
        """
        if not 0 <= offset < 2**58:
            return False
        if not queue.files.files:
            return True
        before = queue.max_physical_offset
        if before > physical_offset:
            before = max(self._force_start, 0)
        room = max(physical_offset - before, 0) // SMALLEST_RECORD_BYTES
        return offset - queue.max_offset <= room

    def _on_queue_conflict(self) -> None:
        """Decide between the entry that stands there and the record; see `dispatch_range`."""
        queue = self._queue_at_cursor()
        row = self._row()
        offset = row[Column.QUEUE_OFFSET]
        old = queue.entry(offset)
        is_kept = (
            old is not None
            and old.physical_offset <= row[Column.PHYSICAL_OFFSET]
            and self._is_intact(old, queue.key, offset)
        )
        if is_kept:
            self._refuse("its place is taken by an earlier record")
            return
        queue.put(offset, self._entry_of(row, queue), overwrite=True)
        self._state[State.ENTRIES_WRITTEN] += 1
        self._state[State.STEP] = Step.ENTERED

    def _entry_of(self, row: list[int], queue: ConsumeQueue) -> QueueEntry:
        """Return the entry that the kernel writes for a record."""
        tags_code = row[Column.TAGS_CODE]
        level = row[Column.DELAY_LEVEL]
        last_level = len(self._delays) - 1
        is_delay = self._table.rows.value(queue.row, QueueColumn.IS_DELAY)
        if is_delay and level > 0 and last_level > 0:
            delay_ms = int(self._delays[min(level, last_level)])
            tags_code = row[Column.STORE_TIMESTAMP] + delay_ms
        return QueueEntry(row[Column.PHYSICAL_OFFSET], row[Column.SIZE], tags_code)

    def _is_intact(self, entry: QueueEntry, key: QueueKey, queue_offset: int) -> bool:
        """Whether an entry points at an intact record of its queue and number."""
        stop = entry.physical_offset + entry.record_size
        file = self._files.find(entry.physical_offset)
        if file is None or stop > self._range_stop:
            return False
        cols = new_columns(1)
        at = entry.physical_offset - file.base
        count, _, _ = kernels.walk(file.array, at, at + 1, file.base, file.size, True, cols)  # noqa: FBT003
        if count == 0:
            return False
        columns = RecordColumns(file.array, cols, file.base)
        return (
            int(cols[0, Column.SIZE]) == entry.record_size
            and int(cols[0, Column.QUEUE_ID]) == key.queue_id
            and int(cols[0, Column.QUEUE_OFFSET]) == queue_offset
            and not int(cols[0, Column.SYS_FLAG]) & _PREPARED_BIT
            and columns.bytes_of(0, Column.TOPIC_AT, Column.TOPIC_SIZE) == key.topic.encode()
        )

    def _on_index_full(self) -> None:
        self._index.roll()

    def _on_multi_dispatch(self) -> None:
        """Enter a record into its extra queues (spec F8)."""
        number = int(self._state[State.CURSOR])
        row = self._row()
        properties = self._columns().properties(number)
        values = decode_properties(properties)
        names = values.get("INNER_MULTI_DISPATCH", "").split(",")
        offsets = values.get("INNER_MULTI_QUEUE_OFFSET", "").split(",")
        if len(names) == len(offsets):
            for name, text in zip(names, offsets, strict=True):
                self._enter_extra(row, name, text, properties)
        else:
            _log.warning(
                "dispatch.multi_mismatch", names=len(names), offsets=len(offsets),
                physical_offset=row[Column.PHYSICAL_OFFSET],
            )  # fmt: skip
        self._state[State.STEP] = Step.MULTI_DISPATCHED

    def _enter_extra(self, row: list[int], name: str, text: str, properties: bytes) -> None:
        queue_id = row[Column.QUEUE_ID]
        if self._lmq and name.startswith(LMQ_PREFIX):
            queue_id = 0
        queue = self._table.get_or_create(QueueKey(name, queue_id))
        if queue is None or not (text.isascii() and text.isdigit()):
            self._state[State.ENTRIES_REFUSED] += 1
            return
        offset = int(text)
        physical_offset = row[Column.PHYSICAL_OFFSET]
        if offset > queue.max_offset and not self._is_plausible_gap(queue, offset, physical_offset):
            self._state[State.ENTRIES_REFUSED] += 1
            return
        # Compatible: an extra queue keeps the tags code, also where the first one has another.
        entry = QueueEntry(physical_offset, row[Column.SIZE], row[Column.TAGS_CODE])
        outcome = queue.put(offset, entry, overwrite=self._is_replaced(queue, offset, entry))
        column = {
            PutEntry.WRITTEN: State.ENTRIES_WRITTEN,
            PutEntry.REPEATED: State.ENTRIES_REPEATED,
            PutEntry.REFUSED: State.ENTRIES_REFUSED,
        }[outcome]
        self._state[column] += 1
        if self.board.has_listeners:
            self._extra_arrivals.append(
                Arrival(
                    name,
                    queue_id,
                    offset + 1,
                    entry.tags_code,
                    row[Column.STORE_TIMESTAMP],
                    physical_offset,
                    properties,
                )  # fmt: skip
            )

    def _is_replaced(self, queue: ConsumeQueue, offset: int, entry: QueueEntry) -> bool:
        """Whether a forced pass puts `entry` in the place of what an extra queue has there.

        The record that stands there cannot be asked for the number: it knows its first queue's.
        """
        old = queue.entry(offset)
        return (
            self._force_start >= 0
            and old is not None
            and old.physical_offset > entry.physical_offset
        )

    def _on_batch(self) -> None:
        """Tell listeners about the batch that is done."""
        columns = self._columns()
        arrivals = self._extra_arrivals.copy()
        self._extra_arrivals.clear()
        for number in range(int(self._state[State.FILLED])):
            if self._cols[number, Column.SYS_FLAG] & _PREPARED_BIT:
                continue
            key = self._key_of(number)
            queue = None if key is None else self._table.get(key)
            if queue is None:
                continue
            row = self._cols[number].tolist()
            arrivals.append(
                Arrival(
                    queue.key.topic,
                    queue.key.queue_id,
                    row[Column.QUEUE_OFFSET] + 1,
                    self._entry_of(row, queue).tags_code,
                    row[Column.STORE_TIMESTAMP],
                    row[Column.PHYSICAL_OFFSET],
                    columns.properties(number),
                )  # fmt: skip
            )
        self.board.announce(arrivals)

    def _refuse(self, why: str) -> None:
        """Leave the record at the cursor without a queue entry and go on with its index items."""
        row = self._row()
        self._state[State.ENTRIES_REFUSED] += 1
        self._state[State.STEP] = Step.ENTERED
        _log.warning(
            "dispatch.refused", why=why, physical_offset=row[Column.PHYSICAL_OFFSET],
            queue_id=row[Column.QUEUE_ID], queue_offset=row[Column.QUEUE_OFFSET],
        )  # fmt: skip


_ANSWERS: Final[dict[DispatchStop, Callable[[Dispatcher], None]]] = {
    DispatchStop.UNKNOWN_QUEUE: Dispatcher._on_unknown_queue,  # noqa: SLF001
    DispatchStop.QUEUE_ROLL: Dispatcher._on_queue_roll,  # noqa: SLF001
    DispatchStop.QUEUE_GAP: Dispatcher._on_queue_gap,  # noqa: SLF001
    DispatchStop.QUEUE_CONFLICT: Dispatcher._on_queue_conflict,  # noqa: SLF001
    DispatchStop.INDEX_FULL: Dispatcher._on_index_full,  # noqa: SLF001
    DispatchStop.MULTI_DISPATCH: Dispatcher._on_multi_dispatch,  # noqa: SLF001
    DispatchStop.BATCH: Dispatcher._on_batch,  # noqa: SLF001
}


def _level_array(delays_ms: Mapping[int, int]) -> Int64Array:
    """Return the delays by level; a level that is missing waits a second (spec F5)."""
    delays = np.full(max(delays_ms, default=0) + 1, 1000, np.int64)
    for level, delay_ms in delays_ms.items():
        delays[level] = delay_ms
    return delays
