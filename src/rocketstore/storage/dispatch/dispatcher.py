"""Dispatch: follow the CommitLog, and enter every record into its queue and the index.

A thread asks how far records may be seen (`readable_limit`: in SYNC_FLUSH what is on disk, K-D2),
walks up to there, file by file and batch by batch, and gives the rows to the compiled loop
(`RowDispatch`), which asks `EntryDecisions` what is rare. Recovery uses the same way, synchronously
and with `force`, to rewrite what a crash may have spoilt.

Law: no record that can be read is passed over. After damage dispatch goes on at the next
believable record (K-R3) and counts what it stepped over; an error of any kind is tried again, with
growing pauses, from the same record (K-R4, K-C6). Doing a record twice changes nothing.

How derived: DefaultMessageStore.ReputMessageService, CommitLogDispatcherBuildConsumeQueue,
CommitLogDispatcherBuildIndex of 4.9 (spec B11, B12, B15.1).
"""

from __future__ import annotations

from contextlib import closing
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.events import get_logger
from rocketstore.native.dispatch import RowDispatch
from rocketstore.scan import kernels
from rocketstore.scan.columns import Column, RecordColumns, StopReason, new_columns
from rocketstore.storage.dispatch.arrival import Arrival, ArrivalBoard
from rocketstore.storage.dispatch.entry_decisions import EntryDecisions
from rocketstore.storage.dispatch.walk_ahead import (
    LEAST_AHEAD_BYTES,
    WalkedBatch,
    can_walk_ahead,
    walk_batches,
    walked_ahead,
)
from rocketstore.storage.queues.consume_queue import PutEntry
from rocketstore.units import ByteRange
from rocketstore.verification.expectation import delay_array

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from rocketstore.storage.files.mapped_file import MappedFile
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.index.index_service import IndexService
    from rocketstore.storage.queues.queue_table import ConsumeQueueTable

_log: Final = get_logger(__name__)

BATCH_RECORDS: Final = 1024
"""Records per walked batch: 230 kB of columns, which stay in the processor's second-level cache."""

_NOWHERE: Final = 1 << 63
"""Beyond every log."""

_LISTED_DAMAGE: Final = 1000
"""Ranges that a running dispatcher lists; a forced pass lists all of them."""


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
    forged
        Physical offsets of records whose queue offset a repair found to be impossible.

    Attributes
    ----------
    dispatched_offset
        Physical offset up to which everything is dispatched.
    stepped_over
        The first ranges that could not be read; the counts have all of them.
    board
        Listeners and waiters.
    """

    def __init__(  # noqa: PLR0913 - the parts it joins, and three settings by name
        self,
        log_files: MappedFileQueue,
        table: ConsumeQueueTable,
        index: IndexService,
        *,
        readable_limit: Callable[[], int],
        delays_ms: Mapping[int, int],
        multi_dispatch: bool = False,
        lmq: bool = False,
        forged: frozenset[int] = frozenset(),
    ) -> None:
        self.board = ArrivalBoard()
        self.dispatched_offset = 0
        self.stepped_over: list[SteppedOver] = []
        self._files = log_files
        self._table = table
        self._index = index
        self._readable_limit = readable_limit
        self._delays = delay_array(delays_ms)
        self._cols = new_columns(BATCH_RECORDS)
        self._check_crc = False
        self._ahead_from = _NOWHERE
        self._decisions = EntryDecisions(log_files, table, lmq=lmq, forged=forged)
        self._loop = RowDispatch(self._decisions, table.rows, index, self._delays, multi_dispatch)
        self._stepped_over_bytes = 0
        self._stepped_over_ranges = 0

    # --- what others ask ------------------------------------------------------------------------

    @property
    def counts(self) -> DispatchCounts:
        """What was dispatched so far."""
        loop, extra = self._loop, self._decisions.extra_entries
        return DispatchCounts(
            loop.records,
            loop.entries_written + extra[PutEntry.WRITTEN],
            loop.entries_repeated + extra[PutEntry.REPEATED],
            loop.entries_refused + extra[PutEntry.REFUSED],
            loop.without_entry,
            loop.index_items,
            self._stepped_over_bytes,
            self._stepped_over_ranges,
        )

    @property
    def last_store_timestamp_ms(self) -> int:
        """Store time of the newest record dispatched."""
        return int(self._loop.last_store_timestamp_ms)

    @property
    def behind_bytes(self) -> int:
        """How much may be dispatched and is not yet."""
        return max(self._readable_limit() - self.dispatched_offset, 0)

    def start_at(self, physical_offset: int, *, last_store_timestamp_ms: int = 0) -> None:
        """Say that everything before an offset is dispatched."""
        self.dispatched_offset = physical_offset
        # Set, not raised: a time that recovery judged to be damage must not stay.
        self._loop.last_store_timestamp_ms = last_store_timestamp_ms

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

        A second thread walks ahead where there is a second core (`walk_ahead`), with equal results.

        Parameters
        ----------
        start, stop
            Physical offsets; `start` is where a record or a file begins.
        force
            Replace a queue entry that says something else when the record it points at is not
            intact, or stands after the new one: then the queue ends up as if built from nothing.
        check_crc
            Take a record with a wrong body checksum for damage.

        Returns
        -------
        DispatchCounts
            Of this range alone.
        """
        before = self.counts
        self.dispatched_offset = start
        self._check_crc = check_crc
        self._decisions.forced_range = (start, stop) if force else None
        # A listener wants its batches in step with the walk.
        if can_walk_ahead() and not self.board.has_listeners:
            self._ahead_from = start
        try:
            self._dispatch_to(stop)
        finally:
            self._ahead_from = _NOWHERE
            self._check_crc = False
            self._decisions.forced_range = None
        return DispatchCounts._make(
            after - start_count for after, start_count in zip(self.counts, before, strict=True)
        )

    def _dispatch_to(self, limit: int) -> None:
        while (position := self.dispatched_offset) < limit:
            file = self._files.find(position)
            if file is None:
                self._step_to_next_file(position, limit)
            else:
                self._dispatch_file(file, position - file.base, min(limit - file.base, file.size))

    def _step_to_next_file(self, position: int, limit: int) -> None:
        """Go on where the next file begins: files are missing, or retention was faster."""
        file = self._files.next_file(position)
        following = limit if file is None else min(file.base, limit)
        if file is not None and file in self._files.files[:1]:
            _log.warning("dispatch.behind_retention", position=position, min_offset=file.base)
        self._note_stepped_over(position, following, None)
        self.dispatched_offset = following

    def _dispatch_file(self, file: MappedFile, start: int, stop: int) -> None:
        """Dispatch one file from `start` to `stop`, or to what follows a break."""
        walked, reason = start, StopReason.END
        with closing(self._batches(file, start, stop)) as batches:
            for batch in batches:
                walked, reason = batch.walked, batch.reason
                self._dispatch_rows(batch.columns, file.base + min(walked, stop))
        if reason is StopReason.BLANK:
            self.dispatched_offset = file.base + file.size
        elif reason is not StopReason.END:
            found = int(kernels.resync(file.array, walked + 1, stop, file.base, file.size))
            following = file.base + (stop if found < 0 else found)
            self._note_stepped_over(file.base + walked, following, reason)
            self.dispatched_offset = following
            if self._ahead_from != _NOWHERE:  # the next break may be close
                self._ahead_from = following + LEAST_AHEAD_BYTES

    def _batches(self, file: MappedFile, start: int, stop: int) -> Generator[WalkedBatch]:
        """Walk a file, or a part of it."""
        ahead_from = max(self._ahead_from - file.base, start)
        if ahead_from == start and stop - start >= LEAST_AHEAD_BYTES:
            return walked_ahead(file, start, stop, check_crc=self._check_crc)
        if stop - ahead_from >= LEAST_AHEAD_BYTES:
            stop = ahead_from
        return walk_batches(file, start, stop, repeat(self._cols), check_crc=self._check_crc)

    def _dispatch_rows(self, columns: RecordColumns, reached: int) -> None:
        """Dispatch walked rows, after which the log is dispatched up to `reached`."""
        decisions, loop = self._decisions, self._loop
        decisions.columns = columns
        loop.cursor = 0
        try:
            loop.dispatch(columns.buffer, columns.cols)
        finally:
            done = loop.cursor
            if done < len(columns):  # an error: the record is walked again from its start
                reached = int(columns.physical_offset[done])
            self.dispatched_offset = reached
            if self.board.has_listeners:
                self._announce(columns.taken(slice(done)))
            decisions.extra_arrivals.clear()
            del decisions.columns

    def _note_stepped_over(self, start: int, stop: int, reason: StopReason | None) -> None:
        self._stepped_over_bytes += stop - start
        self._stepped_over_ranges += 1
        if self._decisions.forced_range is not None or len(self.stepped_over) < _LISTED_DAMAGE:
            self.stepped_over.append(SteppedOver(ByteRange(start, stop), reason))
        what = "file missing" if reason is None else reason.name
        if self._decisions.forced_range is None:
            _log.warning("dispatch.stepped_over", start=start, stop=stop, reason=what)
        else:
            # The unwritten tail is among them; recovery says which of them are damage.
            _log.debug("dispatch.stepped_over", start=start, stop=stop, reason=what)

    def _announce(self, columns: RecordColumns) -> None:
        """Report the records that got an entry to the listeners."""
        arrivals = list(self._decisions.extra_arrivals)
        for number, row in enumerate(columns.cols.tolist()):
            queue = self._table.get(self._decisions.key_of(number))
            entry = queue and queue.entry(row[Column.QUEUE_OFFSET])
            if queue and entry and entry.physical_offset == row[Column.PHYSICAL_OFFSET]:
                arrivals.append(
                    Arrival(
                        queue.key.topic,
                        queue.key.queue_id,
                        row[Column.QUEUE_OFFSET] + 1,
                        entry.tags_code,
                        row[Column.STORE_TIMESTAMP],
                        row[Column.PHYSICAL_OFFSET],
                        columns.properties(number),
                    )
                )
        self.board.announce(arrivals)
