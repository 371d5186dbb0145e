"""What dispatch decides about a record's queue entry when the kernel cannot.

The kernel enters the common case by itself. It asks about a queue it does not know, a queue file
that is not mapped, a gap, another entry in the record's place, and extra queues. Each answer leaves
the kernel's state so that it goes on: with the same step, or after it.

Law: a record's header has no checksum, so its topic, queue id and queue offset are believed only as
far as they harm nobody: a name that cannot be a directory, or an impossible gap, gives no entry.

How derived: ConsumeQueue.putMessagePositionInfo and multiDispatchLmqQueue of 4.9 (spec B12, F8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from rocketstore.events import get_logger
from rocketstore.format.properties import decode_properties
from rocketstore.format.queue_entry import (
    ENTRY_SIZE_BYTES,
    MAX_QUEUE_OFFSET,
    QueueEntry,
    is_likely_beginning,
    may_follow,
)
from rocketstore.format.topic_name import LMQ_PREFIX
from rocketstore.native.dispatch_state import QueueColumn, State, Step
from rocketstore.scan import kernels
from rocketstore.scan.columns import Column, RecordColumns, new_columns
from rocketstore.storage.dispatch.arrival import Arrival
from rocketstore.storage.queues.consume_queue import PutEntry
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from rocketstore.native.dispatch_state import Int64Array
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.queues.consume_queue import ConsumeQueue
    from rocketstore.storage.queues.queue_table import ConsumeQueueTable

_log: Final = get_logger(__name__)

PREPARED_BIT: Final = 0x4
"""Set in prepared and in rollback records, which have no queue entry."""

_CHECK_CRC: Final = True
_OUTCOMES: Final = {
    PutEntry.WRITTEN: State.ENTRIES_WRITTEN,
    PutEntry.REPEATED: State.ENTRIES_REPEATED,
    PutEntry.REFUSED: State.ENTRIES_REFUSED,
}


class EntryDecisions:
    """Answers about the record at the kernel's cursor.

    Parameters
    ----------
    log_files
        The files of the CommitLog.
    table
        The queues.
    state
        The kernel's ``State`` numbers.
    delays_ms
        Delay of each level, from index 1.
    lmq
        Whether names that begin with ``%LMQ%`` are queue 0 of themselves.
    forged
        Physical offsets of records whose queue offset is known to be impossible.

    Attributes
    ----------
    columns
        The rows that are being dispatched.
    forced_range
        Where a forced pass began and ends; None outside one.
    extra_arrivals
        Messages entered into extra queues since somebody took the list.
    """

    def __init__(
        self,
        log_files: MappedFileQueue,
        table: ConsumeQueueTable,
        *,
        state: Int64Array,
        delays_ms: Int64Array,
        lmq: bool,
        forged: frozenset[int] = frozenset(),
    ) -> None:
        self.columns: RecordColumns | None = None
        self.forced_range: tuple[int, int] | None = None
        self.extra_arrivals: list[Arrival] = []
        self._files = log_files
        self._table = table
        self._state = state
        self._delays = delays_ms
        self._lmq = lmq
        self._forged = forged

    # --- the kernel's questions -----------------------------------------------------------------

    def on_unknown_queue(self) -> None:
        """Take in the queue of a record."""
        name, key = self._name_of(self._cursor), self._key_of(self._cursor)
        queue = self._table.get_or_create(key)
        if queue is None:
            self._refuse("topic or queue id cannot name a directory")
        else:
            # Also for bytes that are not UTF-8: Java reads them as this name.
            self._table.rows.add_name(name, key.queue_id, queue.row)

    def on_queue_roll(self) -> None:
        """Give the kernel the queue file of a record, making the next one if need be."""
        queue = self._queue_at_cursor()
        if not queue.map_for_write(self._row()[Column.QUEUE_OFFSET] * ENTRY_SIZE_BYTES):
            self._refuse("it belongs before the queue's first file, or into a missing one")

    def on_queue_gap(self) -> None:
        """Fill the queue up to a record with fillers (K-C1)."""
        queue = self._queue_at_cursor()
        row = self._row()
        offset = row[Column.QUEUE_OFFSET]
        if not self._is_plausible_gap(queue, offset, row[Column.PHYSICAL_OFFSET]):
            self._refuse("so many messages cannot be missing before it")
            return
        if queue.files.files:
            _log.warning(
                "dispatch.gap",
                queue=str(queue.key),
                missing=offset - queue.max_offset,
                physical_offset=row[Column.PHYSICAL_OFFSET],
            )
        if not queue.fill_to(offset * ENTRY_SIZE_BYTES):
            self._refuse("a file of its queue is missing before it")

    def on_queue_conflict(self) -> None:
        """Decide between a record and the entry that stands in its place, in a forced pass.

        The entry stays when it points at an intact record of this queue and number that lies before
        this one; else it is replaced. So a queue ends up as if built from nothing, where the first
        record of a number gets it.
        """
        queue = self._queue_at_cursor()
        row = self._row()
        offset = row[Column.QUEUE_OFFSET]
        old = queue.entry(offset)
        if (
            old is not None
            and old.physical_offset < row[Column.PHYSICAL_OFFSET]
            and self._is_intact(old, queue.key, offset)
        ):
            self._refuse("an earlier record has its place")
            return
        queue.put(offset, self.entry_of(row, queue), overwrite=True)
        self._state[State.ENTRIES_WRITTEN] += 1
        self._state[State.STEP] = Step.ENTERED

    def on_multi_dispatch(self) -> None:
        """Enter a record into its extra queues (spec F8)."""
        columns = self._rows()
        properties = columns.properties(self._cursor)
        values = decode_properties(properties)
        names = values.get("INNER_MULTI_DISPATCH", "").split(",")
        offsets = values.get("INNER_MULTI_QUEUE_OFFSET", "").split(",")
        row = self._row()
        if len(names) == len(offsets):
            for name, text in zip(names, offsets, strict=True):
                self._enter_extra(row, name, text, properties)
        else:
            _log.warning(
                "dispatch.multi_mismatch",
                names=len(names),
                offsets=len(offsets),
                physical_offset=row[Column.PHYSICAL_OFFSET],
            )
        self._state[State.STEP] = Step.MULTI_DISPATCHED

    # --- what the answers rest on ---------------------------------------------------------------

    @property
    def _cursor(self) -> int:
        return int(self._state[State.CURSOR])

    def _rows(self) -> RecordColumns:
        assert self.columns is not None
        return self.columns

    def _row(self) -> list[int]:
        row: list[int] = self._rows().cols[self._cursor].tolist()
        return row

    def _name_of(self, number: int) -> bytes:
        return self._rows().bytes_of(number, Column.TOPIC_AT, Column.TOPIC_SIZE)

    def _key_of(self, number: int) -> QueueKey:
        """Return the queue of a record; a topic that is not UTF-8 is read as Java reads it."""
        queue_id = int(self._rows().cols[number, Column.QUEUE_ID])
        return QueueKey(self._name_of(number).decode("utf-8", "replace"), queue_id)

    def queue_of(self, number: int) -> ConsumeQueue | None:
        """Return the queue of a record that was dispatched, None when it has none."""
        return self._table.get(self._key_of(number))

    def _queue_at_cursor(self) -> ConsumeQueue:
        queue = self.queue_of(self._cursor)
        assert queue is not None, "the kernel knew this queue"
        return queue

    def entry_of(self, row: list[int], queue: ConsumeQueue) -> QueueEntry:
        """Return the entry that the kernel writes for a record."""
        tags_code = row[Column.TAGS_CODE]
        level = row[Column.DELAY_LEVEL]
        last_level = len(self._delays) - 1
        is_delay = self._table.rows.value(queue.row, QueueColumn.IS_DELAY)
        if is_delay and level > 0 and last_level > 0:
            tags_code = row[Column.STORE_TIMESTAMP] + int(self._delays[min(level, last_level)])
        return QueueEntry(row[Column.PHYSICAL_OFFSET], row[Column.SIZE], tags_code)

    def _is_plausible_gap(self, queue: ConsumeQueue, offset: int, physical_offset: int) -> bool:
        """Whether all records between the last one of the queue and this one may be missing."""
        if not 0 <= offset <= MAX_QUEUE_OFFSET or physical_offset in self._forged:
            return False
        if not queue.files.files:
            return self._is_plausible_beginning(queue, offset, physical_offset)
        before = queue.max_physical_offset
        if before > physical_offset:
            before = 0 if self.forced_range is None else self.forced_range[0]
        places = queue.files.file_size // ENTRY_SIZE_BYTES
        stop = max(queue.max_offset, queue.given_stop)
        return may_follow(offset, stop, physical_offset - before, places)

    def _is_plausible_beginning(
        self, queue: ConsumeQueue, offset: int, physical_offset: int
    ) -> bool:
        """Whether a queue without a file may begin at a number: old files may be gone.

        A forged number would refuse every later message, so it is believed where the log in
        front of the record has room for that many messages, or where the next record goes on there.
        """
        if is_likely_beginning(offset, physical_offset):
            return True
        places = queue.files.file_size // ENTRY_SIZE_BYTES
        columns, following = self._rows(), self._cursor + 1
        is_own = columns.queue_id[following:] == queue.key.queue_id
        is_own &= (columns.sys_flag[following:] & PREPARED_BIT) == 0
        # One that can have no place at all says nothing about this one.
        is_own &= columns.queue_offset[following:] >= 0
        is_own &= columns.queue_offset[following:] <= MAX_QUEUE_OFFSET
        for row in (np.flatnonzero(is_own) + following).tolist():
            if self._key_of(row) == queue.key:
                return 0 <= int(columns.queue_offset[row]) - offset <= places
        return True

    def _is_intact(self, entry: QueueEntry, key: QueueKey, queue_offset: int) -> bool:
        """Whether an entry points at an intact record of its queue and number."""
        file = self._files.find(entry.physical_offset)
        stop = entry.physical_offset + entry.record_size
        if file is None or (self.forced_range is not None and stop > self.forced_range[1]):
            return False
        cols = new_columns(1)
        at = entry.physical_offset - file.base
        count, _, _ = kernels.walk(file.array, at, at + 1, file.base, file.size, _CHECK_CRC, cols)
        if count == 0:
            return False
        row = cols[0].tolist()
        topic = RecordColumns(file.array, cols, file.base).topic(0)
        found = (row[Column.SIZE], row[Column.QUEUE_ID], row[Column.QUEUE_OFFSET], topic)
        expected = (entry.record_size, key.queue_id, queue_offset, key.topic)
        return found == expected and not row[Column.SYS_FLAG] & PREPARED_BIT

    def _enter_extra(self, row: list[int], name: str, text: str, properties: bytes) -> None:
        key = QueueKey(name, row[Column.QUEUE_ID])
        if self._lmq and name.startswith(LMQ_PREFIX):
            key = QueueKey(name, 0)
        # Compatible: an extra queue keeps the tags code, also where the first one has another.
        entry = QueueEntry(row[Column.PHYSICAL_OFFSET], row[Column.SIZE], row[Column.TAGS_CODE])
        offset = int(text) if text.isascii() and text.isdigit() else -1
        outcome = self._put_extra(key, offset, entry)
        self._state[_OUTCOMES[outcome]] += 1
        self.extra_arrivals.append(
            Arrival(
                key.topic,
                key.queue_id,
                offset + 1,
                entry.tags_code,
                row[Column.STORE_TIMESTAMP],
                entry.physical_offset,
                properties,
            )
        )

    def _put_extra(self, key: QueueKey, offset: int, entry: QueueEntry) -> PutEntry:
        queue = self._table.get_or_create(key)
        if queue is None or offset < 0:
            return PutEntry.REFUSED
        if offset > queue.max_offset and not self._is_plausible_gap(
            queue, offset, entry.physical_offset
        ):
            return PutEntry.REFUSED
        old = queue.entry(offset)
        # The record that has the place cannot be asked: it knows the number in its first queue.
        is_later = old is not None and old.physical_offset > entry.physical_offset
        return queue.put(offset, entry, overwrite=self.forced_range is not None and is_later)

    def _refuse(self, why: str) -> None:
        """Leave the record at the cursor without a queue entry and go on with its index items."""
        row = self._row()
        self._state[State.ENTRIES_REFUSED] += 1
        self._state[State.STEP] = Step.ENTERED
        _log.warning(
            "dispatch.refused",
            why=why,
            physical_offset=row[Column.PHYSICAL_OFFSET],
            queue_id=row[Column.QUEUE_ID],
            queue_offset=row[Column.QUEUE_OFFSET],
        )
