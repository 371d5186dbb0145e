"""What dispatch decides about a record's queue entry when the compiled loop cannot.

The loop (``native.dispatch.RowDispatch``) enters the common case by itself. It calls these methods
with the number of a row for a queue it does not know, a queue file that is not mapped, a gap,
another entry in the record's place, and extra queues.

Law: a record's header has no checksum, so its topic, queue id and queue offset are used only as far
as they do no harm: a name that cannot be a directory, or an impossible gap, gives no entry.

How derived: ConsumeQueue.putMessagePositionInfo and multiDispatchLmqQueue of 4.9 (spec B12, F8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from rocketstore.events import get_logger
from rocketstore.format.queue_entry import (
    ENTRY_SIZE_BYTES,
    MAX_QUEUE_OFFSET,
    QueueEntry,
    is_due_time,
)
from rocketstore.format.record import FIXED_SIZE
from rocketstore.native.row import CallsFor
from rocketstore.rules.batch_entries import entry_of
from rocketstore.rules.extra_queues import extra_queue_offsets
from rocketstore.rules.queue_numbers import is_continued, is_likely_beginning, may_follow
from rocketstore.scan import kernels
from rocketstore.scan.columns import Column, RecordColumns, new_columns
from rocketstore.units import KiB, QueueKey

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.storage.files.mapped_file import MappedFile
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.queues.consume_queue import ConsumeQueue
    from rocketstore.storage.queues.queue_table import ConsumeQueueTable
    from rocketstore.storage.queues.topic_kinds import TopicKind

_LOOKED_BACK_BYTES: Final = 64 * KiB

_log: Final = get_logger(__name__)


def record_at(file: MappedFile, position: int) -> RecordColumns | None:
    """Return the intact record at a position of a file, None without one."""
    cols, check_crc = new_columns(1), True
    count, _, _ = kernels.walk(
        file.array, position, position + 1, file.base, file.size, check_crc, cols
    )
    return RecordColumns(file.array, cols, file.base) if count else None


def fits_record(record: RecordColumns, entry: QueueEntry, key: QueueKey, queue_offset: int) -> bool:
    """Whether an entry that points at a record is the one that this record calls for."""
    row = record.cols[0].tolist()
    found = (row[Column.SIZE], row[Column.QUEUE_ID], row[Column.QUEUE_OFFSET])
    return (
        found == (entry.record_size, key.queue_id, queue_offset)
        and record.topic(0) == key.topic
        and row[Column.CALLS_FOR] & CallsFor.ENTRY != 0
    )


def is_elsewhere(file: MappedFile, entry: QueueEntry, key: QueueKey, queue_offset: int) -> bool:
    """Whether an entry points at an intact record that does not call for it, or into one.

    Where the record is damaged, that cannot be said.
    """
    position = entry.physical_offset - file.base
    record = record_at(file, position)
    if record is None:
        back = max(position - _LOOKED_BACK_BYTES, 0)
        start = int(kernels.resync(file.array, back, position, file.base, file.size))
        cols, check_crc = new_columns(_LOOKED_BACK_BYTES // FIXED_SIZE), True
        walked = kernels.walk(file.array, start, position, file.base, file.size, check_crc, cols)
        return start >= 0 and walked[1] > position
    is_further = record.call_for(CallsFor.EXTRA_ENTRIES)[0]
    return not is_further and not fits_record(record, entry, key, queue_offset)


class ForcedPass(NamedTuple):
    """A pass from `start` to `stop` that replaces entries, as recovery makes.

    `copy` is given path, start and stop of what it is about to write over.
    """

    start: int
    stop: int
    copy: Callable[[Path, int, int], object] | None


@dataclass(eq=False)
class EntryDecisions:
    """Answers about `columns`, the rows being dispatched; parameters as `Dispatcher`.

    `forced` is the forced pass that runs, None outside one.
    """

    _files: MappedFileQueue
    _table: ConsumeQueueTable
    lmq: bool
    forged: frozenset[int]
    columns: RecordColumns = field(init=False)

    def __post_init__(self) -> None:
        self.forced: ForcedPass | None = None
        self._copied: set[Path] = set()
        self._refused: Counter[str] = Counter()

    def enter_batch(self, number: int) -> bool:
        """Enter a record that holds a batch, if its topic is a batch topic.

        A record with a batch also makes its topic one, if the table does not say so: a slave gets
        the log alone.
        """
        topic, kinds = self.columns.topic(number), self._table.kinds
        is_told = topic not in kinds and entry_of(self.columns, number).is_written
        return self._enter(number, kinds.learn(topic) if is_told else kinds.get(topic))

    def _enter(self, number: int, kind: TopicKind | None) -> bool:
        """Enter a record into the queue of its topic's kind; False for a plain topic."""
        if kind is None or not kind.is_on_disk:
            return False
        kind.enter(self.columns, number)
        return True

    # --- called by the loop; False: it writes no entry ------------------------------------------

    def take_in_queue(self, number: int) -> bool:
        """Take in the queue of a record; that of a special topic gets its entry here."""
        key = self.key_of(number)
        if self._enter(number, self._table.kinds.get(key.topic)):
            return False
        queue = self._table.get_or_create(key)
        if queue is None:
            return self._refuse(number, "topic or queue id cannot name a directory")
        # Also for bytes that are not UTF-8: Java reads them as this name.
        name = self.columns.bytes_of(number, Column.TOPIC_AT, Column.TOPIC_SIZE)
        # Again, if an interrupt came between adding the queue and adding its name.
        self._table.rows.add_name(name, key.queue_id, queue.row)
        return True

    def map_queue_file(self, number: int) -> bool:
        """Map the queue file of a record, making the next one if need be."""
        offset = int(self.columns.queue_offset[number])
        if self._queue_of(number).map_for_write(offset * ENTRY_SIZE_BYTES) is not None:
            return True
        return self._refuse(number, "it belongs before the queue's first file, or into a lost one")

    def comes_after_all(self, number: int) -> bool:
        """Whether a record with a number past its queue's end comes after all that the queue has.

        One from before its topic was deleted and made again does not; nor does it come back with
        4.9, which passes over what lies before a queue's last record.
        """
        queue = self._queue_of(number)
        return not self._is_before_last(number, queue) or self._refuse(
            number, "its queue has later records with lower numbers"
        )

    def _is_before_last(self, number: int, queue: ConsumeQueue) -> bool:
        """Whether a record lies before the one of its queue's last entry, if that is intact."""
        own, last = int(self.columns.physical_offset[number]), queue.last_message()
        if self.forced is None or last is None or last[1].physical_offset <= own:
            return False
        at, entry = last
        return self._is_of_other(entry, own, queue.key, at)

    def fill_gap(self, number: int, count: int) -> bool:
        """Fill the queue up to a record, one of `count`, with fillers (K-C1)."""
        queue = self._queue_of(number)
        offset = int(self.columns.queue_offset[number])
        if not self._is_plausible_gap(number, queue, offset, count):
            return self._refuse(number, "so many messages cannot be missing before it")
        if queue.files.files:
            at, missing = int(self.columns.physical_offset[number]), offset - queue.max_offset
            _log.warning("dispatch.gap", queue=str(queue.key), missing=missing, physical_offset=at)
        is_filled = queue.fill_to(offset * ENTRY_SIZE_BYTES)
        return is_filled or self._refuse(number, "a file of its queue is missing before it")

    def gives_way(self, number: int) -> bool:
        """Whether the entry that stands in a record's place is replaced: in a forced pass only.

        It stays when it points at another intact record of this queue and number, which consumers
        get there: 4.9 gives numbers again. The time at which a record is due stays as it was first
        entered, whatever levels and clock say now (K-S6).
        """
        queue = self._queue_of(number)
        offset = int(self.columns.queue_offset[number])
        old = queue.entry(offset)
        if self.forced is None or self._keeps_due_time(number, old):
            return False
        own = int(self.columns.physical_offset[number])
        if old is not None and self._is_of_other(old, own, queue.key, offset):
            return self._refuse(number, "another record has its place")
        self._keep_file(queue, offset)
        return True

    def _keep_file(self, queue: ConsumeQueue, offset: int) -> None:
        """Have a queue's file copied before the first of its entries is replaced."""
        file, copy = queue.files.find(offset * ENTRY_SIZE_BYTES), self.forced and self.forced.copy
        if copy is not None and file is not None and file.path not in self._copied:
            copy(file.path, 0, file.size)
            self._copied.add(file.path)

    def _keeps_due_time(self, number: int, old: QueueEntry | None) -> bool:
        row = self.columns.cols[number].tolist()
        places = (row[Column.PHYSICAL_OFFSET], row[Column.SIZE])
        if old is None or old[:2] != places or not row[Column.CALLS_FOR] & CallsFor.DUE_TIME:
            return False
        return bool(is_due_time(old.tags_code, row[Column.STORE_TIMESTAMP]))

    def extended_code(self, number: int, tags_code: int) -> int:
        """Return what the entry of a record keeps in a queue with an extension (spec F7)."""
        row, queue = self.columns.cols[number], self._queue_of(number)
        assert queue.extension is not None, "dispatch asks for no other queue"
        return queue.extension.code_for(
            int(row[Column.QUEUE_OFFSET]),
            QueueEntry(int(row[Column.PHYSICAL_OFFSET]), int(row[Column.SIZE]), tags_code),
            int(row[Column.STORE_TIMESTAMP]),
            self.columns.properties(number),
            lambda: self.gives_way(number),
        )

    def enter_extra_queues(self, number: int, count: int) -> None:
        """Enter a record, one of `count`, into its extra queues (spec F8)."""
        row: list[int] = self.columns.cols[number].tolist()
        targets = self.extra_offsets(number)
        if targets is None:
            _log.warning(
                "dispatch.no_extra_queues",
                reason="its names and offsets of extra queues do not match",
                physical_offset=row[Column.PHYSICAL_OFFSET],
            )
        # Compatible: an extra queue keeps the tags code, also where the first one has another.
        entry = QueueEntry(row[Column.PHYSICAL_OFFSET], row[Column.SIZE], row[Column.TAGS_CODE])
        for key, offset in targets or ():
            self._put_extra(number, key, offset, entry, count)

    # --- parts of the answers ---------------------------------------------------------------

    def key_of(self, number: int) -> QueueKey:
        """Return the queue of a record; a topic that is not UTF-8 is read as Java reads it."""
        return QueueKey(self.columns.topic(number), int(self.columns.queue_id[number]))

    def extra_offsets(self, number: int) -> list[tuple[QueueKey, int]] | None:
        """Return the extra queues of a record, each with its queue offset there."""
        own, properties = int(self.columns.queue_id[number]), self.columns.properties(number)
        return extra_queue_offsets(properties, own, lmq=self.lmq)

    def _queue_of(self, number: int) -> ConsumeQueue:
        queue = self._table.get(self.key_of(number))
        assert queue is not None, "dispatch knew this queue"
        return queue

    def _is_plausible_gap(self, number: int, queue: ConsumeQueue, offset: int, count: int) -> bool:
        """Whether all records between the last one of the queue and this one may be missing."""
        physical_offset = int(self.columns.physical_offset[number])
        if not 0 <= offset <= MAX_QUEUE_OFFSET or physical_offset in self.forged:
            return False
        file_entries = queue.entries_per_file
        if not queue.files.files:
            return is_likely_beginning(offset, physical_offset) or is_continued(
                offset, self._next_offset(queue.key, slice(number + 1, count)), file_entries
            )
        before = queue.max_physical_offset
        if before > physical_offset:
            before = 0 if self.forced is None else self.forced.start
        return may_follow(offset, queue.given_stop, physical_offset - before, file_entries)

    def _next_offset(self, key: QueueKey, following: slice) -> int | None:
        """Return the queue offset of the first of some rows that is of a queue; None without."""
        columns = self.columns.taken(following)
        is_own = columns.queue_id == key.queue_id
        is_own &= columns.call_for(CallsFor.ENTRY)
        # A number that no file can have says nothing about the others.
        is_own &= (columns.queue_offset >= 0) & (columns.queue_offset <= MAX_QUEUE_OFFSET)
        for row in np.flatnonzero(is_own).tolist():
            if columns.topic(row) == key.topic:
                return int(columns.queue_offset[row])
        return None

    def _is_of_other(self, entry: QueueEntry, own: int, key: QueueKey, offset: int) -> bool:
        """Whether an entry points at an intact record, not the `own` one, that calls for it there.

        That may be one of another queue, which states its number in this one.
        """
        assert self.forced is not None, "only a forced pass replaces entries"
        at, size, _ = entry
        file = self._files.find(at)
        if file is None or at == own or at + size > self.forced.stop:
            return False
        record = record_at(file, at - file.base)
        if record is None:
            return False
        if fits_record(record, entry, key, offset):
            return True
        targets = extra_queue_offsets(record.properties(0), int(record.queue_id[0]), lmq=self.lmq)
        return int(record.size[0]) == size and (key, offset) in (targets or ())

    def _put_extra(
        self, number: int, key: QueueKey, offset: int, entry: QueueEntry, count: int
    ) -> None:
        queue = None if offset < 0 else self._table.get_or_create(key)
        if queue is None:
            return
        if offset > queue.max_offset and not self._is_plausible_gap(number, queue, offset, count):
            return
        if offset >= queue.max_offset and self._is_before_last(number, queue):
            return
        old = queue.entry(offset)
        is_replaced = (
            self.forced is not None
            and old is not None
            and old.is_message
            and old != entry  # torn, say: an entry may lie on two pages
            and not self._is_of_other(old, entry.physical_offset, key, offset)
        )
        if is_replaced:
            self._keep_file(queue, offset)
        queue.put(offset, entry, overwrite=is_replaced)

    def _refuse(self, number: int, why: str) -> Literal[False]:
        """Leave a record without a queue entry; its index items follow. Say the first of 50,000."""
        self._refused[why] += 1
        if self._refused[why] % 50_000 == 1:
            at, offset = self.columns.physical_offset[number], self.columns.queue_offset[number]
            _log.warning(
                "dispatch.refused", reason=why, count=self._refused[why], physical_offset=int(at),
                queue=str(self.key_of(number)), queue_offset=int(offset),
            )  # fmt: skip
        return False
