"""Dispatch: follow the CommitLog, and enter every record into its queue and the index.

A thread asks how far records may be seen (`readable_limit`: in SYNC_FLUSH what is on disk, K-D2),
and gives everything up to there to the ``follow`` kernel, file by file. The kernel comes back only
with a question: a new queue, a queue file, a gap, a full index file. Recovery uses the same way,
synchronously and with `force`, to rewrite what a crash may have spoilt.

Law: no record that can be read is passed over. After damage dispatch goes on at the next
believable record (K-R3) and counts what it stepped over; an error of any kind is tried again, with
growing pauses, from the same record (K-R4, K-C6). Doing a record twice changes nothing.

How derived: DefaultMessageStore.ReputMessageService, CommitLogDispatcherBuildConsumeQueue,
CommitLogDispatcherBuildIndex of 4.9 (spec B11, B12, B15.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocketstore.events import get_logger
from rocketstore.native.dispatch_state import (
    NO_LEVEL_DELAY_MS,
    STATE_COUNT,
    DispatchStop,
    State,
    Step,
)
from rocketstore.scan import kernels
from rocketstore.scan.columns import Column, RecordColumns, StopReason, new_columns
from rocketstore.storage.dispatch.arrival import Arrival, ArrivalBoard
from rocketstore.storage.dispatch.entry_decisions import PREPARED_BIT, EntryDecisions
from rocketstore.storage.dispatch.walk_ahead import (
    LEAST_AHEAD_BYTES,
    can_walk_ahead,
    walked_ahead,
)
from rocketstore.units import ByteRange

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rocketstore.native.dispatch_state import Int64Array
    from rocketstore.storage.files.mapped_file import MappedFile
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.index.index_service import IndexService
    from rocketstore.storage.queues.queue_table import ConsumeQueueTable

_log: Final = get_logger(__name__)

BATCH_RECORDS: Final = 1024
"""Records per walked batch: 230 kB of columns, which stay in the processor's second-level cache."""

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
        self._delays = _level_array(delays_ms)
        self._cols = new_columns(BATCH_RECORDS)
        self._columns: RecordColumns | None = None
        self._walks_ahead = False
        self._state: Int64Array = np.zeros(STATE_COUNT, np.int64)
        self._state[State.MULTI_DISPATCH] = multi_dispatch
        self._decisions = EntryDecisions(
            log_files, table, state=self._state, delays_ms=self._delays, lmq=lmq, forged=forged
        )
        self._stepped_over_bytes = 0
        self._stepped_over_ranges = 0

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
        # Set, not raised: a time that recovery judged to be damage must not stay.
        self._state[State.LAST_STORE_TIMESTAMP] = last_store_timestamp_ms

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
        state = self._state
        state[State.FORCE], state[State.CHECK_CRC] = force, check_crc
        self._decisions.forced_range = (start, stop) if force else None
        # A listener wants its batches in step with the walk.
        self._walks_ahead = can_walk_ahead() and not self.board.has_listeners
        try:
            self._dispatch_to(stop)
        finally:
            self._walks_ahead = False
            state[State.FORCE] = state[State.CHECK_CRC] = 0
            self._decisions.forced_range = None
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
        file = self._files.next_file(position)
        following = limit if file is None else min(file.base, limit)
        if file is not None and file in self._files.files[:1]:
            _log.warning("dispatch.behind_retention", position=position, min_offset=file.base)
        self._note_stepped_over(position, following, None)
        self.dispatched_offset = following

    def _follow(self, file: MappedFile, start: int, stop: int) -> None:
        """Dispatch one file from `start` to `stop`, positions inside it."""
        state = self._state
        state[State.WALKED] = start
        self._forget_rows()
        self._use_rows(file, self._cols)
        reached = None
        ahead_from = start
        try:
            while reached is None:
                walked = int(state[State.WALKED])
                if not self._walks_ahead or stop - max(walked, ahead_from) < LEAST_AHEAD_BYTES:
                    code = self._dispatch_rows(file, stop)
                elif walked >= ahead_from:
                    code = self._follow_ahead(file, stop)
                else:
                    code = self._dispatch_rows(file, ahead_from)
                if code is DispatchStop.WALK_ENDED:
                    reached = self._after_walk(file, stop)
                    # The next break may be close.
                    ahead_from = int(state[State.WALKED]) + LEAST_AHEAD_BYTES
                elif state[State.WALKED] >= stop:
                    reached = file.base + stop
        finally:
            # After an error the record that was under way is walked again from its start.
            self.dispatched_offset = self._reached(file) if reached is None else reached
            self._columns = self._decisions.columns = None
            self._decisions.extra_arrivals.clear()

    def _follow_ahead(self, file: MappedFile, stop: int) -> DispatchStop:
        """Dispatch what another thread walks, up to `stop` or what the walk cannot pass."""
        state = self._state
        start, code = int(state[State.WALKED]), DispatchStop.DONE
        with walked_ahead(file, start, stop, check_crc=bool(state[State.CHECK_CRC])) as batches:
            for batch in batches:
                self._forget_rows()
                self._use_rows(file, batch.cols)
                state[State.FILLED] = batch.filled
                state[State.WALKED] = batch.walked
                state[State.WALK_STOP] = batch.reason
                code = self._dispatch_rows(file, batch.walked)
        self._use_rows(file, self._cols)
        return code

    def _use_rows(self, file: MappedFile, cols: Int64Array) -> None:
        """Let kernel and decisions look at the rows of this matrix."""
        self._columns = self._decisions.columns = RecordColumns(file.array, cols, file.base)

    def _dispatch_rows(self, file: MappedFile, stop: int) -> DispatchStop:
        """Dispatch, and walk what is not walked, up to `stop` or what the walk cannot pass."""
        while True:
            code = self._call_kernel(file, stop)
            if code in (DispatchStop.DONE, DispatchStop.WALK_ENDED):
                return code
            self._answer(code)

    def _call_kernel(self, file: MappedFile, stop: int) -> DispatchStop:
        self._state[State.STOP_AFTER_BATCH] = (
            max(self._state[State.STOP_AFTER_BATCH], 1) if self.board.has_listeners else 0
        )
        rows, index, columns = self._table.rows, self._index, self._columns
        assert columns is not None
        return DispatchStop(
            kernels.follow(
                file.array,
                stop,
                file.base,
                file.size,
                columns.cols,
                rows.slots,
                rows.topics,
                rows.queues,
                index.kernel_file,
                index.kernel_state,
                self._delays,
                self._state,
            )
        )

    def _reached(self, file: MappedFile) -> int:
        state, columns = self._state, self._columns
        cursor = int(state[State.CURSOR])
        if columns is not None and cursor < state[State.FILLED]:
            return int(columns.physical_offset[cursor])
        return file.base + int(state[State.WALKED])

    def _forget_rows(self) -> None:
        state = self._state
        state[State.CURSOR] = state[State.FILLED] = 0
        state[State.STEP] = Step.NEW
        state[State.WALK_STOP] = StopReason.END
        state[State.STOP_AFTER_BATCH] = 0

    def _after_walk(self, file: MappedFile, stop: int) -> int | None:
        """Go on after what the walk could not pass; return the offset when that ends the file."""
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
        if self._decisions.forced_range is not None or len(self.stepped_over) < _LISTED_DAMAGE:
            self.stepped_over.append(SteppedOver(ByteRange(start, stop), reason))
        what = "file missing" if reason is None else reason.name
        if self._decisions.forced_range is None:
            _log.warning("dispatch.stepped_over", start=start, stop=stop, reason=what)
        else:
            # The unwritten tail is among them; recovery says which of them are damage.
            _log.debug("dispatch.stepped_over", start=start, stop=stop, reason=what)

    # --- the kernel's questions -----------------------------------------------------------------

    def _answer(self, code: DispatchStop) -> None:
        decisions = self._decisions
        match code:
            case DispatchStop.UNKNOWN_QUEUE:
                decisions.on_unknown_queue()
            case DispatchStop.QUEUE_ROLL:
                decisions.on_queue_roll()
            case DispatchStop.QUEUE_GAP:
                decisions.on_queue_gap()
            case DispatchStop.QUEUE_CONFLICT:
                decisions.on_queue_conflict()
            case DispatchStop.MULTI_DISPATCH:
                decisions.on_multi_dispatch()
            case DispatchStop.INDEX_FULL:
                self._index.roll()
            case _:
                self._announce()

    def _announce(self) -> None:
        """Report the batch that is done to the listeners."""
        columns, decisions = self._columns, self._decisions
        assert columns is not None
        arrivals = decisions.extra_arrivals
        decisions.extra_arrivals = []
        for number, row in enumerate(columns.cols[: self._state[State.FILLED]].tolist()):
            queue = decisions.queue_of(number)
            if queue is None or row[Column.SYS_FLAG] & PREPARED_BIT:
                continue
            arrivals.append(
                Arrival(
                    queue.key.topic,
                    queue.key.queue_id,
                    row[Column.QUEUE_OFFSET] + 1,
                    decisions.entry_of(row, queue).tags_code,
                    row[Column.STORE_TIMESTAMP],
                    row[Column.PHYSICAL_OFFSET],
                    columns.properties(number),
                )
            )
        self.board.announce(arrivals)


def _level_array(delays_ms: Mapping[int, int]) -> Int64Array:
    """Return the delays by level; a level that is missing waits a second (spec F5)."""
    delays = np.full(max(delays_ms, default=0) + 1, NO_LEVEL_DELAY_MS, np.int64)
    for level, delay_ms in delays_ms.items():
        delays[level] = delay_ms
    return delays
