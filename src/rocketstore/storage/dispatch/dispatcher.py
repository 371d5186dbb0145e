"""Dispatch: follow the CommitLog, and enter every record into its queue and the index.

A thread walks as far as records may be seen (with SYNC_FLUSH what is on disk, K-D2) and gives the
rows to the compiled loop (`RowDispatch`), which leaves rare cases to `EntryDecisions`. Recovery
uses `force`, to rewrite entries that a crash may have damaged; a second thread walks ahead of it.

Law: no record that can be read is passed over. After damage dispatch goes on at the next
believable record (K-R3) and counts what it stepped over; an error of any kind is tried again, with
growing pauses, from the same record (K-R4, K-C6). Doing a record twice changes nothing. A waiter
announces itself before it looks, and is woken after dispatch has published: no arrival is missed.

How derived: ReputMessageService of 4.9 and what it calls (spec B11, B12, B15.1).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Container, Generator, Iterable, Mapping
from contextlib import closing, contextmanager, suppress
from itertools import cycle, takewhile
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from rocketstore.events import get_logger
from rocketstore.format.queue_entry import MAX_EXT_ADDRESS
from rocketstore.format.record import END_FILE_MIN_BLANK_SIZE
from rocketstore.locks import Lock, begin
from rocketstore.native.dispatch import RowDispatch
from rocketstore.native.row import CallsFor, Int64Array
from rocketstore.rules.expectation import delay_array
from rocketstore.scan import kernels
from rocketstore.scan.columns import Column, RecordColumns, StopReason, new_columns
from rocketstore.scan.queue_search import first_from
from rocketstore.storage.dispatch.entry_decisions import EntryDecisions, ForcedPass
from rocketstore.storage.threads import Changes
from rocketstore.units import ByteRange, MiB, QueueKey

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.storage.files.mapped_file import MappedFile
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.index.index_service import IndexService
    from rocketstore.storage.queues.queue_table import ConsumeQueueTable

_log: Final = get_logger(__name__)

BATCH_RECORDS: Final = 1024
"""Records per walked batch: 230 kB of columns, which stay in the processor's second-level cache."""

BATCHES_AT_ONCE: Final = 64
"""Batches between two waits for the interpreter's lock: some 10 ms of work."""

AHEAD_RECORDS: Final = 4096
"""Those of a batch that is walked ahead: 0.4 ms of work, against 20 µs to hand it over."""

AHEAD_BATCHES: Final = 3
"""One is walked, one is dispatched, one waits: 2.8 MB of columns, whatever the size of the log."""

LEAST_AHEAD_BYTES: Final = 64 * MiB
"""Shorter stretches, such as the tail read after a clean stop, and as much after every break are
walked where they are dispatched: rows that stay in one core's cache cost no more up to there."""

_NOWHERE: Final = (1 << 63) - 1
"""Beyond every log and every time."""

_TOLD: Final = [
    Column.TOPIC_AT, Column.TOPIC_SIZE, Column.QUEUE_ID, Column.QUEUE_OFFSET, Column.CALLS_FOR,
    Column.PHYSICAL_OFFSET, Column.TAGS_CODE, Column.STORE_TIMESTAMP,
]  # fmt: skip
"""What listeners are told of a row."""

# CPython 3.11 finds a member of an enumeration by a call of a function.
_EXTRA_ENTRIES: Final = int(CallsFor.EXTRA_ENTRIES)

_LISTED_DAMAGE: Final = 1000
"""Damaged ranges that a running dispatcher lists; a forced pass lists all of them."""


# --- walking ------------------------------------------------------------------------------------


class WalkedBatch(NamedTuple):
    """Rows, overwritten by the next batch; how far the walk got; and what it met there."""

    columns: RecordColumns
    walked: int
    reason: StopReason


def can_walk_ahead() -> bool:
    """Whether a second thread gains anything: another core, and kernels without the lock."""
    return len(os.sched_getaffinity(0)) > 1 and kernels.is_compiled()


def walk_batches(
    file: MappedFile, start: int, stop: int, matrices: Iterable[Int64Array], *, check_crc: bool
) -> Generator[WalkedBatch]:
    """Walk a stretch of a file, a batch into each matrix, up to what the walk cannot pass."""
    position, reason = start, StopReason.END
    for cols in matrices:
        count, position, found = kernels.walk(
            file.array, position, stop, file.base, file.size, check_crc, cols
        )
        reason = StopReason(found)
        yield WalkedBatch(RecordColumns(file.array, cols[:count], file.base), position, reason)
        if position >= stop or reason is not StopReason.END:
            return


def walked_ahead(
    file: MappedFile, start: int, stop: int, *, check_crc: bool
) -> Generator[WalkedBatch]:
    """Give the batches of a stretch as `walk_batches` does; another thread walks them.

    It is gone when the batches are closed, by whatever way; its error is raised where its batch is
    taken.
    """
    matrices = [new_columns(AHEAD_RECORDS) for _ in range(AHEAD_BATCHES)]
    free: SimpleQueue[bool] = SimpleQueue()
    walked: SimpleQueue[WalkedBatch | BaseException | None] = SimpleQueue()

    def walk() -> None:
        taken = takewhile(lambda _: free.get(), cycle(matrices))
        try:
            for batch in walk_batches(file, start, stop, taken, check_crc=check_crc):
                walked.put(batch)
            walked.put(None)
        except BaseException as error:  # noqa: BLE001 - raised where its batch is taken
            walked.put(error)

    walker = threading.Thread(target=walk, name="rocketstore-walk", daemon=True)
    try:
        try:
            begin(walker)
        except RuntimeError:  # the process may have no more threads: then this one walks
            yield from walk_batches(file, start, stop, cycle(matrices), check_crc=check_crc)
            return
        for matrix in matrices:
            matrix.fill(0)  # its memory is fetched here, while the thread starts or walks
            free.put(item=True)
        while (batch := walked.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            yield batch
            free.put(item=True)
    finally:
        free.put(item=False)
        with suppress(RuntimeError):  # it was not started
            walker.join()


# --- who waits and listens ----------------------------------------------------------------------


class Arrival(NamedTuple):
    """A message that can be read from a queue now; `next_offset` is its queue offset plus one.

    `tags_code` is as in the queue entry, `properties` are the record's, as stored.
    """

    topic: str
    queue_id: int
    next_offset: int
    tags_code: int
    store_timestamp_ms: int
    physical_offset: int
    properties: bytes


if TYPE_CHECKING:
    ArrivalListener: TypeAlias = Callable[[Arrival], None]
    Queues: TypeAlias = Container[QueueKey] | None


class ArrivalBoard:
    """The listeners, for which dispatch makes `Arrival` values, and `changes`, to wait for."""

    def __init__(self) -> None:
        self.listeners: tuple[tuple[ArrivalListener, Queues], ...] = ()
        self._lock = Lock()
        self.changes = Changes()
        self._closed = False

    def add_listener(self, listener: ArrivalListener, queues: Queues = None) -> None:
        """Call `listener` for every message dispatched from now on, on the dispatching thread.

        Unless `queues` is None, only for a message of a queue that is in it then.
        """
        with self._lock:
            self.listeners = (*self.listeners, (listener, queues))

    def remove_listener(self, listener: ArrivalListener) -> None:
        """Stop calling `listener`; one that is unknown is not an error."""
        with self._lock:
            self.listeners = tuple(one for one in self.listeners if one[0] != listener)

    def announce(self, listeners: Iterable[ArrivalListener], arrival: Arrival) -> None:
        """Call listeners; one that raises is logged and does not stop dispatch."""
        for listener in listeners:
            try:
                listener(arrival)
            except Exception:  # noqa: BLE001 - whatever a listener does, dispatch goes on
                hint = "the traceback says where the program's listener raised"
                _log.exception("arrival.listener_failed", topic=arrival.topic, hint=hint)

    def wake(self) -> None:
        """Let waiters look again."""
        if self.changes:
            self.changes.tell()

    def wait_until(self, is_true: Callable[[], bool], timeout_s: float | None) -> bool:
        """Return whether `is_true` became true in time; it is called after progress."""
        self.changes.wait_for(lambda: self._closed or is_true(), timeout_s)
        return is_true()

    def close(self) -> None:
        """Let all waiters go; later ones do not wait."""
        self._closed = True
        self.changes.tell()


# --- dispatching --------------------------------------------------------------------------------


class SteppedOver(NamedTuple):
    """Bytes that dispatch could not read: the damage found, None where the file is missing."""

    range: ByteRange
    reason: StopReason | None


class Dispatcher:
    """Fills `table` and `index` from a log's files; `DispatchService` runs it in a thread.

    `readable_limit` returns the physical offset up to which records may be dispatched. The delays
    of the delay topic's levels are known before recovery dispatches (K-S1). `lmq` says whether
    there are light queues; `forged` has the physical offsets of records whose queue offset a repair
    found to be impossible. Without a `clock` no store time is ahead of it.

    Everything before `dispatched_offset` is dispatched; `stepped_over` has the first ranges that
    could not be read.
    """

    def __init__(  # noqa: PLR0913 - the parts it joins, and two settings by name
        self, log_files: MappedFileQueue, table: ConsumeQueueTable, index: IndexService, *,
        readable_limit: Callable[[], int], delays_ms: Mapping[int, int], lmq: bool = False,
        forged: frozenset[int] = frozenset(), clock: Callable[[], int] = lambda: _NOWHERE,
    ) -> None:  # fmt: skip
        self.board = ArrivalBoard()
        self.dispatched_offset = 0
        self.stepped_over: list[SteppedOver] = []
        self._files = log_files
        self._table = table
        self._readable_limit, self._clock = readable_limit, clock
        self._cols = new_columns(BATCH_RECORDS)
        self._check_crc = False
        self._ahead_from = _NOWHERE
        self._decisions = EntryDecisions(log_files, table, lmq=lmq, forged=forged)
        self._loop = RowDispatch(self._decisions, table.rows, index, delay_array(delays_ms))

    # --- state ------------------------------------------------------------------------

    @property
    def last_store_timestamp_ms(self) -> int:
        """Store time of the newest record dispatched."""
        return int(self._loop.last_store_timestamp_ms)

    @property
    def behind_bytes(self) -> int:
        """Bytes that may be dispatched and are not yet."""
        return max(self._readable_limit() - self.dispatched_offset, 0)

    def start_at(self, physical_offset: int, *, last_store_timestamp_ms: int = 0) -> None:
        """Set the offset before which everything is dispatched."""
        self.dispatched_offset = physical_offset
        # Set, not maximised: a time that recovery judged to be damage must not stay.
        self._loop.last_store_timestamp_ms = last_store_timestamp_ms

    # --- dispatching ----------------------------------------------------------------------------

    def run_once(self, *, as_guest: bool = False) -> bool:
        """Dispatch everything that may be dispatched; return whether there was a record.

        After an error (a file could not be made) the next call goes on at the same record. A guest
        gets one, `NotHereError`, at a record that asks for a decision.
        """
        limit = self._readable_limit()
        if self.dispatched_offset >= limit:
            return False
        self._loop.is_guest = as_guest
        try:
            self._dispatch_to(limit)
        finally:
            self._loop.is_guest = False
            self.board.wake()
        return True

    def dispatch_range(
        self, start: int, stop: int, *, force: bool = True, check_crc: bool = False,
        copy: Callable[[Path, int, int], object] | None = None,
    ) -> None:  # fmt: skip
        """Dispatch the records of [start, stop) now, for recovery.

        `start` is where a record or a file begins. A second thread walks ahead where there is a
        second core, with equal results. With `force` a different queue entry is replaced when the
        record it points at is not intact, or none of that queue and number; `copy` gets the range
        of a file's path before that. With `check_crc` a wrong body checksum is damage.
        """
        self.dispatched_offset = start
        self._check_crc = check_crc
        self._decisions.forced = ForcedPass(start, stop, copy) if force else None
        # A listener wants its batches in step with the walk.
        if can_walk_ahead() and not self.board.listeners:
            self._ahead_from = start
        try:
            self._dispatch_to(stop)
        finally:
            self._ahead_from = _NOWHERE
            self._check_crc = False
            self._decisions.forced = None

    def _dispatch_to(self, limit: int) -> None:
        self._loop.now_ms = self._clock()  # later than every put before the limit
        while (position := self.dispatched_offset) < limit:
            file = self._files.find(position)
            if file is None:
                self._step_to_next_file(position, limit)
            else:
                self._dispatch_file(file, position - file.base, min(limit - file.base, file.size))

    def _step_to_next_file(self, position: int, limit: int) -> None:
        """Continue where the next file begins: files are missing, or were deleted."""
        file = first_from(self._files.files, position)
        following = limit if file is None else min(file.base, limit)
        if file is not None and file in self._files.files[:1]:
            _log.warning("dispatch.behind_retention", position=position, min_offset=file.base)
        self._note_stepped_over(position, following, None)
        self.dispatched_offset = following

    def _dispatch_file(self, file: MappedFile, start: int, stop: int) -> None:
        ahead_from = max(self._ahead_from - file.base, start)
        is_worth_it = stop - ahead_from >= LEAST_AHEAD_BYTES
        if is_worth_it and ahead_from == start:
            walked, reason = self._dispatch_ahead(file, start, stop)
        else:
            until = ahead_from if is_worth_it else stop
            walked, reason = self._dispatch_stretch(file, start, until)
        if reason is StopReason.END:
            self.dispatched_offset = file.base + min(walked, stop)
        elif reason is StopReason.BLANK:
            self.dispatched_offset = file.base + file.size
        else:
            # Nothing whole begins in the last bytes; the page after them may have to be fetched.
            last = stop - END_FILE_MIN_BLANK_SIZE + 1
            found = int(kernels.resync(file.array, walked + 1, last, file.base, file.size))
            following = file.base + (stop if found < 0 else found)
            self._note_stepped_over(file.base + walked, following, reason)
            self.dispatched_offset = following
            if self._ahead_from != _NOWHERE:  # the next break may be close
                self._ahead_from = following + LEAST_AHEAD_BYTES

    def _dispatch_ahead(self, file: MappedFile, start: int, stop: int) -> tuple[int, StopReason]:
        """Dispatch rows that another thread walks; return where the walk ended, and why."""
        walked, reason = start, StopReason.END
        with closing(walked_ahead(file, start, stop, check_crc=self._check_crc)) as batches:
            for columns, walked, reason in batches:  # noqa: B007 - the last ones are returned
                with self._dispatching(columns) as loop:
                    loop.dispatch(columns.buffer, columns.cols)
                    self.dispatched_offset = file.base + walked
        return walked, reason

    def _dispatch_stretch(self, file: MappedFile, start: int, stop: int) -> tuple[int, StopReason]:
        columns = RecordColumns(file.array, self._cols, file.base)
        walked, reason = start, StopReason.END
        while walked < stop and reason is StopReason.END:
            # A listener hears of a batch before the next one overwrites it.
            batches = 1 if self.board.listeners else BATCHES_AT_ONCE
            with self._dispatching(columns) as loop:
                walked, found = loop.dispatch_file(
                    file.array, walked, stop, file.base, file.size, self._check_crc,
                    columns.cols, batches,
                )  # fmt: skip
                reason = StopReason(found)
                self.dispatched_offset = file.base + walked
        return walked, reason

    @contextmanager
    def _dispatching(self, columns: RecordColumns) -> Generator[RowDispatch]:
        """Have decisions made about `columns`, and note afterwards how far dispatch came."""
        decisions, loop = self._decisions, self._loop
        decisions.columns = columns
        loop.cursor = loop.count = 0
        try:
            yield loop
        finally:
            done = loop.cursor
            if done < loop.count:  # an error: the record is walked again from its start
                self.dispatched_offset = int(columns.physical_offset[done])
            if self.board.listeners:
                self._announce(columns, done)
            del decisions.columns

    def _note_stepped_over(self, start: int, stop: int, reason: StopReason | None) -> None:
        if self._decisions.forced is not None or len(self.stepped_over) < _LISTED_DAMAGE:
            self.stepped_over.append(SteppedOver(ByteRange(start, stop), reason))
        what = "file missing" if reason is None else reason.name
        # The unwritten tail is among those of a forced pass: recovery says which are damage.
        log = _log.warning if self._decisions.forced is None else _log.debug
        log("dispatch.stepped_over", start=start, stop=stop, reason=what)

    def _announce(self, columns: RecordColumns, done: int) -> None:
        """Report the first rows to the listeners, for each queue in which one got its entry.

        Who hears of a queue is asked for each: a listener may have heard enough. One that comes
        later looks at the end of its queue first, and finds there what the batch entered.
        """
        decisions, board, data = self._decisions, self.board, columns.buffer.data
        known: dict[tuple[bytes, int], QueueKey] = {}
        for number, row in enumerate(columns.cols[:done, _TOLD].tolist()):
            topic_at, topic_size, queue_id, offset, calls_for, physical, tags, stored_ms = row
            place = bytes(data[topic_at : topic_at + topic_size]), queue_id
            key = known.get(place) or known.setdefault(place, decisions.key_of(number))
            targets = [(key, offset)]
            if calls_for & _EXTRA_ENTRIES:
                targets += decisions.extra_offsets(number) or ()
            for key, offset in targets:
                listeners = [
                    one for one, queues in board.listeners if queues is None or key in queues
                ]
                if not listeners:
                    continue
                queue = self._table.readable(key)
                entry = queue and queue.entry(offset)
                if entry and entry.physical_offset == physical:
                    code = entry.tags_code  # in an extended queue it is the address of its unit
                    code = code if code > MAX_EXT_ADDRESS else tags
                    properties = columns.properties(number)
                    board.announce(
                        listeners, Arrival(*key, offset + 1, code, stored_ms, physical, properties)
                    )
