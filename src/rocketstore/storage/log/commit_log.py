"""The CommitLog: one endless sequence of records, written by one thread at a time.

Law: a record gets its queue offset, physical offset and store time under one lock, and the end of
the log moves only after all its bytes are in the mapping. Store times never go back. What a failed
append leaves after the end is zero.
Law: an append happens as a whole or not at all, wherever an exception ends it: a signal handler may
raise one between any two lines. The last file's write position alone is the end of the log, and
setting it completes an append. All other changes are noted, as values, before the first byte is
written, and the next thread that takes the lock settles them (docs/decisions/0020).
How derived: CommitLog.asyncPutMessage and DefaultAppendMessageCallback.doAppend of 4.9 (spec B3.4,
B3.5, F3.1). `native.put` does all of this without the lock, for a plain put.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rocketstore.errors import StoreClosedError
from rocketstore.format.record import END_FILE_MIN_BLANK_SIZE, encode_blank
from rocketstore.locks import Lock
from rocketstore.native.group import SyncGroup
from rocketstore.native.log_end import NEVER, LogEnd, QueueCounter, Record
from rocketstore.storage.files.ahead import LEADS, TOUCH_BYTES, Preallocator, TouchAhead
from rocketstore.storage.files.disk import system_errors
from rocketstore.storage.queues.topic_kinds import TopicKinds
from rocketstore.storage.results import PutMessageStatus, PutResult
from rocketstore.storage.statistics import SyncTimes
from rocketstore.units import QueueKey, Window, monotonic_ms

if TYPE_CHECKING:
    from rocketstore.storage.files.mapped_file import MappedFile
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue


class _Append(NamedTuple):
    """What an append changes, once the file's write position is `stop`."""

    file: MappedFile
    start: int
    stop: int
    now_ms: int
    counter: QueueCounter
    next_offset: int
    stored_bytes: int
    put_count: int
    put_bytes: int
    others: Sequence[tuple[QueueCounter, int]] = ()


@dataclass(eq=False)
class CommitLog:
    """The log of a store that is open for writing.

    Its files are loaded and recovered: the last file's write position is the end of the log. With
    `sync_flush` readers see flushed bytes only; without `touch_ahead` a put faults its pages in.
    `counters`, by topic and queue id, is the same object as long as the log; `put_group` waits for
    its end to be on the disk, and `sync_times` says how long that takes; `clock_steps_back` counts
    the appends at which the clock showed an earlier time than the last record's, which was
    repeated. With `has_buffers`, of a transient store pool, only `commit` writes to the files.
    `kinds` are the topics of a special kind.
    """

    files: MappedFileQueue
    preallocator: Preallocator
    clock: Callable[[], int]
    store_host: bytes
    sync_flush: bool = False
    touch_ahead: TouchAhead | None = None
    kinds: TopicKinds = field(default_factory=TopicKinds)
    has_buffers: bool = False
    monotonic: Callable[[], int] = monotonic_ms

    is_mapped = True

    def __post_init__(self) -> None:
        files = self.files
        self.clock_steps_back = 0
        self.lock = Lock()
        self.counters: dict[tuple[str, int], QueueCounter] = {}
        self.sync_times = SyncTimes()
        self.put_group = SyncGroup(self.sync_times.note)
        self.end = LogEnd(self.store_host, self._look)
        self.end.max_offset = files.max_offset
        self.flushed_offset = files.flushed_offset
        self._committed_offset = files.max_offset
        self._committing = Lock()
        self._is_closing = False
        self._stretch_begun_ms, self._stretch_stop = 0, -1
        self._ring: Callable[[], None] | None = None
        self._replicated = _counter(QueueKey("", 0), 0)
        self._under_way: _Append | None = None

    def drop(self) -> None:
        """Drop all files, and what an append keeps of the last one."""
        self.end.drop()
        self.files.drop()

    # --- for readers -----------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte that is still there; 0 without files."""
        return max(self.files.min_offset, 0)

    @property
    def max_offset(self) -> int:
        """One past the last byte of the last complete record."""
        return self.end.max_offset

    @property
    def last_store_timestamp_ms(self) -> int:
        """Store time of the last record."""
        return self.end.last_store_timestamp_ms

    @property
    def flushed_offset(self) -> int:
        """One past the last byte that is on the disk, as the group knows it round by round."""
        return self.put_group.flushed_offset

    @flushed_offset.setter
    def flushed_offset(self, offset: int) -> None:
        self.put_group.flushed_offset = offset

    @property
    def committed_offset(self) -> int:
        """One past the last byte that is in a file; with buffers, not yet all that was put."""
        return self._committed_offset if self.has_buffers else self.end.max_offset

    @property
    def readable_limit(self) -> int:
        """One past the last byte that dispatch, and with it every reader, may see (K-D2)."""
        return self.flushed_offset if self.sync_flush else self.committed_offset

    def bytes_at(self, offset: int, _size: int) -> Window | None:
        """Return the mapping of the file that has the byte at `offset`; None without."""
        file = self.files.find(offset)
        if file is None or not file.is_available:
            return None
        readable = file.write_position
        if self.has_buffers:
            readable = min(readable, self._committed_offset - file.base)
        try:
            return Window(file.mapping, file.base, readable, file)
        except FileNotFoundError:  # deleted by retention just now
            return None

    # --- queue offsets --------------------------------------------------------------------------

    def seed(
        self, queue_offsets: Mapping[QueueKey, int], *, last_store_timestamp_ms: int = 0
    ) -> None:
        """Take the next offset of every queue and the last store time, as recovery found them.

        Source: DefaultMessageStore.recoverTopicQueueTable (spec B16.4).
        """
        self.counters.clear()
        for key, offset in queue_offsets.items():
            self._counters_of(key.topic)[key] = _counter(key, offset)
        self.end.close()
        self.end.last_store_timestamp_ms = last_store_timestamp_ms
        self.end.put_count = self.end.put_bytes = 0
        self.end.max_offset = self._committed_offset = self.files.max_offset
        self.flushed_offset = self.files.flushed_offset

    def counter(self, key: QueueKey) -> QueueCounter:
        """Return the counter of a queue, a new one from 0 if need be; the name was checked."""
        counters = self._counters_of(key[0])
        counter = counters.get(key)
        return counters.setdefault(key, _counter(key, 0)) if counter is None else counter

    def _counters_of(self, topic: str) -> dict[tuple[str, int], QueueCounter]:
        """Return the counters among which a topic's are: a plain put looks only at those here."""
        kind = self.kinds.get(topic)
        return self.counters if kind is None else kind.counters

    def every_counter(self) -> list[QueueCounter]:
        """Return the counters of all queues."""
        every = (self.counters, *(kind.counters for kind in self.kinds.known.values()))
        return [counter for counters in every for counter in list(counters.values())]

    def put_totals(self) -> tuple[int, int]:
        """Return how many messages were put since the opening, and how many bytes they take."""
        apart = (kind for kind in self.kinds.known.values() if not kind.is_on_disk)
        counters = [counter for kind in apart for counter in list(kind.counters.values())]
        count = sum(counter.next_offset - counter.first_offset for counter in counters)
        size = sum(counter.stored_bytes for counter in counters)
        return self.end.put_count + count, self.end.put_bytes + size

    def next_queue_offset(self, key: QueueKey) -> int:
        """Return the offset that the next message of a queue will get."""
        counter = self._counters_of(key[0]).get(key)
        return 0 if counter is None else counter.next_offset

    # --- append ---------------------------------------------------------------------------------

    def ring_at_next_append(self, ring: Callable[[], None]) -> None:
        """Have the next append call `ring`, under the lock or once it is done; others may, too."""
        with self.lock:
            self._ring = ring
            self.end.look_at = 0

    def append(
        self,
        counter: QueueCounter,
        records: Sequence[Record],
        numbered: Callable[[], tuple[Record, Sequence[QueueCounter]]] | None = None,
    ) -> PutResult:
        """Append records of one queue whose sizes are within their limits: all of them or none.

        `numbered` is called under the lock; what it returns is appended instead, and further
        queues that give it a number. `StoreError` says that a file was needed and could not be
        made; nothing was stored.
        """
        end = self.end
        sizes = [end.size_of(record, counter) for record in records]
        size = sum(sizes)
        if sys.is_finalizing():  # other threads are stopped, one of them perhaps with the lock
            self.lock = Lock()
        with self.lock:
            try:
                now = self._enter()
                if end.position >= end.look_at:
                    self._look()
                others: Sequence[QueueCounter] = ()
                if numbered is not None:
                    record, others = numbered()
                    records, size = [record], end.size_of(record, counter)
                if end.limit < end.position + size:
                    self._make_room(size)
                number = counter.next_offset
                # Since the check, the kind of the topic may have changed.
                key = counter.key
                special = None if number else self.kinds.get(key.topic)
                if special is not None and special.counters.get(key) is not counter:
                    raise StoreClosedError(f"{key.topic} has just become a {special.name} topic")
                offsets = sum(record.offset_count for record in records)
                note = self._under_way = _Append(
                    end.file, end.position, end.position + size, now, counter, number + offsets,
                    counter.stored_bytes + size, end.put_count + offsets + len(others),
                    end.put_bytes + size, [(one, one.next_offset + 1) for one in others],
                )  # fmt: skip
                end.file.write_position = end.write(counter, records, now)
                self._settle()
                end.is_busy = False
            finally:
                end.locked_since_ms = end.behind_ms = 0
        packed = [each.to_bytes(4, "big") for each in sizes] if len(sizes) > 1 else []
        return PutResult(
            PutMessageStatus.PUT_OK, note.file.base + note.start, number if offsets else 0, size,
            now, end.store_host, offsets or len(sizes), None, b"".join(packed),
        )  # fmt: skip

    @contextmanager
    def held(self) -> Iterator[None]:
        """Prevent appends during the block; raises `StoreClosedError` once the store closes."""
        with self.lock:
            try:
                self._enter()
                yield
                self.end.is_busy = False
            finally:
                self.end.locked_since_ms = 0

    def append_replicated(self, offset: int, records: memoryview, store_time_ms: int) -> None:
        """Append checked bytes of a master's log, of one file, where this log ends.

        `store_time_ms` is that of their last record. Queue offsets are the records' own, so no
        counter changes. Source: CommitLog.appendData, MappedFileQueue.getLastMappedFile.
        """
        with self.lock:
            if self._is_closing:
                raise StoreClosedError("the store was closed")
            self.end.is_busy = True
            self._settle()
            if self.end.position >= self.end.look_at:
                self._look()
            file = full = self.files.last()
            if file is None or file.write_position == file.size:
                base = offset if full is None else full.base + full.size
                if base != offset or base % self.files.file_size:
                    raise ValueError(f"no file begins at {offset}; the next one does at {base}")
                file = self.preallocator.take(base, ahead=full is not None)
                self.files.adopt(file)
                if full is not None:
                    self.preallocator.retire(full)
            start, stop = offset - file.base, offset - file.base + len(records)
            if start != file.write_position or stop > file.size:
                raise ValueError(f"no place for {len(records)} bytes at {offset} after {file.end}")
            file.reserve(stop)
            if self.sync_flush:
                file.write_single_pages(file.write_position)
            time_ms = max(store_time_ms, self.end.last_store_timestamp_ms)
            counted = self.end.put_count, self.end.put_bytes
            self._under_way = _Append(file, start, stop, time_ms, self._replicated, 0, 0, *counted)
            file.write_unmapped(start, records)
            file.write_position = stop
            self._settle()
            self.end.is_busy = False

    def commit(self, least_pages: int = 0) -> int:
        """Write the content of the buffers to the files; return the committed offset.

        `StoreError` says that the system refused it. Source: MappedFileQueue.commit, but for all
        files (K-D5).
        """
        with self._committing:
            self._commit(least_pages)  # a call: an interrupt in a loop here would keep the lock
        return self._committed_offset

    def _commit(self, least_pages: int) -> None:
        before = self._committed_offset
        with system_errors(f"cannot commit the CommitLog from offset {before} on"):
            for file in self.files.ending_after(before):
                committed = file.commit(least_pages)
                self._committed_offset = file.base + committed
                if committed < file.size:
                    break

    def settle(self) -> None:
        """Finish an append that an exception cut short; after this none is under way or begins."""
        with self.lock:
            self._is_closing = True
            if self.end.is_busy:
                self._settle()
                self.end.close()
                self.end.locked_since_ms = self.end.behind_ms = 0
                self.end.is_busy = False

    # --- the lock is held -----------------------------------------------------------------------

    def _enter(self) -> int:
        """Begin an append, once the last one is settled; return its store time in ms."""
        # `PlainPuts` leaves the log alone until this is False again; an error leaves it True.
        self.end.is_busy = True
        if self._under_way is not None:
            self._settle()
        if self._is_closing:  # while this put waited for the lock
            raise StoreClosedError("the store was closed")
        now = self.clock()
        self.end.locked_since_ms = self.monotonic()
        self.end.behind_ms = max(self.end.last_store_timestamp_ms - now, 0)
        self.clock_steps_back += self.end.behind_ms > 0
        return now + self.end.behind_ms

    def _settle(self) -> None:
        """Make everything agree with the end of the file that an append wrote to."""
        note = self._under_way
        if note is None:
            return
        if note.file.write_position == note.stop:
            note.counter.next_offset = note.next_offset
            note.counter.stored_bytes = note.stored_bytes
            self.end.put_count = note.put_count
            self.end.put_bytes = note.put_bytes
            for other, following in note.others:
                other.next_offset = following
            self.end.move(note.file.base, note.stop, note.now_ms)
        else:
            note.file.array[note.start : note.stop] = 0
        self._under_way = None

    def _make_room(self, size: int) -> None:
        """Make space for `size` bytes after the end: in this file, or in the next."""
        file = self.files.last()
        if file is not None:
            end = file.write_position + size + END_FILE_MIN_BLANK_SIZE
            if end <= file.size:
                # The first append, or a sparse file whose pages must be probed.
                file.reserve(end)
                self._use(file)
                return
        self._roll(file, size)

    def _use(self, file: MappedFile) -> None:
        """Make `file` the one that is written, as far as it has space on the disk."""
        if self.sync_flush:
            file.write_single_pages(file.write_position)
        limit = min(file.size, file.backed_position) - END_FILE_MIN_BLANK_SIZE
        self.end.write_into(file, file.array, file.write_position, limit)
        self.end.look_at = 0

    def _look(self) -> None:
        """Wake dispatch, which may sleep, and have pages touched if a stretch was filled fast."""
        end = self.end
        touch = None if end.file is None else self.touch_ahead  # None: a slave's
        stretch_stop = (end.position // TOUCH_BYTES + 1) * TOUCH_BYTES
        end.look_at = NEVER if touch is None else stretch_stop  # dispatch may set that back
        if self._ring is not None:
            self._ring()
        if touch is not None and end.base + stretch_stop != self._stretch_stop:
            self._stretch_stop = end.base + stretch_stop
            now_ms = self.monotonic()
            filled_ms, self._stretch_begun_ms = now_ms - self._stretch_begun_ms, now_ms
            ahead = next((stretches for limit_ms, stretches in LEADS if filled_ms < limit_ms), 0)
            if ahead > 0:
                touch.request(end.file, stretch_stop, stretch_stop + ahead * TOUCH_BYTES)

    def _roll(self, full: MappedFile | None, size: int) -> None:
        """Continue in the next file with `size` bytes; nothing changes if there is no next one.

        4.9 writes the BLANK first; taking the file first lets a smaller message still use the space
        of the last file when the disk is full.
        """
        base = 0 if full is None else full.base + full.size
        file = self.preallocator.take(base, ahead=full is not None)
        end = min(size + END_FILE_MIN_BLANK_SIZE, file.size)
        file.reserve(end)
        _ = file.array  # memory for its map may be missing too
        self.end.close()
        if full is not None:
            free = full.size - full.write_position
            if free >= END_FILE_MIN_BLANK_SIZE:
                full.write_bytes(full.write_position, encode_blank(free))
            full.write_position = full.size
            self.end.max_offset = full.base + full.size
            if self.has_buffers and not file.has_buffer:
                self.commit()  # bytes in a mapping survive a kill: no hole may be before them
            self.preallocator.retire(full)
            if self.touch_ahead is not None:
                self.touch_ahead.end_file()
        self.files.adopt(file)
        self._use(file)


def _counter(key: QueueKey, next_offset: int) -> QueueCounter:
    return QueueCounter(key, key.topic.encode("utf-8"), key.queue_id, next_offset)
