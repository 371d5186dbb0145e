"""Find queues and index files that lost entries, and set their broken files aside.

A loss shows in the sequence of files, in the first and last entry of each, and in ``known-ends``
(decision 0021). A queue with a broken file becomes one that ends before it, an index one that ends
before its first bad file; dispatch does the rest. An unclear case costs a longer walk through the
log.

Law: no file is set aside before the store is marked as in use, and its checkpoint promises nothing:
an opening that is interrupted here is followed by one that checks everything. Files set aside are
kept in ``repair/<time>/``. Cost: two entries of each queue file, two items of each index file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.format.index_file import FIRST_ITEM, IndexHeader, item_array
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, QueueEntry, entry_array
from rocketstore.format.record import FIXED_SIZE
from rocketstore.rules.expectation import expected_items
from rocketstore.rules.findings import Finding, Severity
from rocketstore.rules.index_headers import HeaderWitness, right_times
from rocketstore.rules.unbacked import given_count, may_be_record
from rocketstore.storage.dispatch.entry_decisions import is_elsewhere, record_at
from rocketstore.storage.files.disk import read_whole
from rocketstore.storage.index.pread_index import listed_index_files
from rocketstore.storage.recovery.log_survey import store_time_of

if TYPE_CHECKING:
    from rocketstore.format.known_ends import KnownEnds
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.index.index_service import IndexFile, IndexService
    from rocketstore.storage.queues.consume_queue import ConsumeQueue
    from rocketstore.storage.queues.queue_table import ConsumeQueueTable
    from rocketstore.storage.recovery.evidence import Evidence
    from rocketstore.units import QueueKey

_FOREIGN: Final = "it has entries of another queue, or of another log"


class _LostQueue(NamedTuple):
    """A queue that lacks entries from queue offset `first` on, or, without a `reason`, may.

    From byte `take_from` on its files cannot stay as they are (None leaves all), from physical
    offset `walk_from` on records may lack their entry; numbers up to `given_stop` were given out.
    """

    key: QueueKey
    first: int
    take_from: int | None
    walk_from: int
    given_stop: int
    reason: str = ""


@dataclass
class LostFiles:
    """What the queues and the index of a store that is being opened have lost.

    `data_stop` is the physical offset after the last byte of the log that is not zero. Certain
    losses go to `findings`.
    """

    _log: MappedFileQueue
    _queues: ConsumeQueueTable
    _index: IndexService
    known: InitVar[KnownEnds | None]
    _promise_nothing: Callable[[], None]
    _evidence: Evidence
    _findings: list[Finding]
    clean: bool
    data_stop: int

    def __post_init__(self, known: KnownEnds | None) -> None:
        self._log_min = self._log.min_offset
        self._walk_from, self._is_known = None, True
        read = self._log.read
        tied = None if known is None else known.tied_up_to(read)
        self.is_of_another_log = known is not None and tied is None
        if self.is_of_another_log:
            known = None
        self._known_queues = {} if known is None else dict(known.queues)
        self._known_index = dict((known and known.index_files) or ())
        self.known_batches = {} if known is None else dict(known.batch_queues)
        goes_on = known is not None and known.goes_on(read, self._log.files)
        if known is not None and (goes_on or tied != known.last_tie):
            self._walk_from = tied or 0  # queues may be older than what follows
        if known is not None and goes_on:
            # Another program wrote, or the file is an older one; after a crash that is not sure.
            if by_others := known.is_by_others(read, self._log.files, ended=self.clean):
                self._known_index, self.known_batches, self._is_known = {}, {}, False
            for key, ends in known.queues:
                if known.is_deleted(ends, self._queues.get(key), by_others=by_others):
                    del self._known_queues[key]
        self._is_known &= bool(self._known_queues)
        self._lost: list[_LostQueue] = []

    def take_away(self, start: int, *, judges_entries: bool, now_ms: int) -> int:
        """Set broken files aside; return where recovery has to begin: at `start` without a loss."""
        index = self._index
        self._lost = list(self._lost_queues(judges_entries=judges_entries))
        lost_index = self._lost_index() if index.is_enabled else None
        if self._lost or lost_index:
            self._promise_nothing()
        for lost in self._lost:
            self._take_queue(lost, now_ms)
        walks = [lost.walk_from for lost in self._lost]
        walks += [] if self._walk_from is None else [self._walk_from]
        if lost_index:
            name, walk_from, reason = lost_index
            walks.append(walk_from)
            index.take_away(name, self._evidence.take_file)
            self._note("index-lost", f"{index.directory.name}/{name}", 0, f"{name} {reason}")
        elif index.is_enabled:
            self._put_headers_right()
        for file in map(self._log.find, walks):
            start = min(start, self._log_min if file is None else file.base)
        return start

    def take_foreign(self, keys: Iterable[QueueKey], *, now_ms: int) -> None:
        """Set all files of some queues aside, which are made again."""
        for key in sorted(keys):
            queue = self._queues.get(key)
            given = 0 if queue is None else queue.given_stop
            self._lost.append(_LostQueue(key, 0, 0, self._log_min, given, _FOREIGN))
            self._take_queue(self._lost[-1], now_ms)

    def _take_queue(self, lost: _LostQueue, now_ms: int) -> None:
        queue, at, size = self._queues.get(lost.key), lost.first * ENTRY_SIZE_BYTES, 0
        if queue is not None and lost.reason == _FOREIGN:
            size = queue.next_position - at
        if queue is not None and lost.take_from is not None:
            queue.take_away(lost.take_from, self._evidence.take_file, now_ms=now_ms)
        elif queue is not None:
            queue.truncate(lost.first, self._evidence.copy_range, now_ms=now_ms)
        if lost.reason:
            name = f"{self._queues.directory.name}/{lost.key}"
            self._note("queue-cut" if size else "queue-lost", name, at, lost.reason, size)

    def _note(self, kind: str, name: str, at: int, reason: str, size: int = 0) -> None:
        action = "made again from the log"
        self._findings.append(Finding(Severity.WARNING, kind, name, at, size, reason, action))

    def keep_given(self, *, now_ms: int) -> dict[QueueKey, tuple[int, int]]:
        """Keep and return the places that were given out, and whose records are lost as well."""
        kept = {}
        for lost in self._lost:
            queue = self._queues.get_or_create(lost.key)
            if queue is not None and queue.given_stop < lost.given_stop:
                first, stop = queue.max_offset, lost.given_stop
                queue.truncate(first, self._evidence.copy_range, now_ms=now_ms, keep_to=stop)
                kept[lost.key] = (first, stop)
            elif queue is not None and lost.reason == _FOREIGN and not queue.given_stop:  # a copy
                self._evidence.take_tree(queue.files.directories[0])
                self._queues.set_aside.add(lost.key)
        return kept

    # --- queues ---------------------------------------------------------------------------------

    def _lost_queues(self, *, judges_entries: bool) -> Iterator[_LostQueue]:
        for queue in self._queues.all():
            lost = self._broken_row(queue) or (self._foreign(queue) if judges_entries else None)
            if lost := lost or self._lost_end(queue):
                yield lost
        for key, ends in self._known_queues.items():
            if self._queues.get(key) is None and ends.next:
                reason = f"its directory is gone; it had got to {ends.next}"
                yield _LostQueue(key, 0, None, self._log_min, ends.next, reason)

    def _broken_row(self, queue: ConsumeQueue) -> _LostQueue | None:
        """Judge the sequence of files, and the first and last entry of each."""
        expected, heads = None, dict[tuple[int, ...] | None, int]()
        for file in queue.files.files:
            if expected is not None and file.base != expected:
                return self._lost_from(queue, expected, f"its file {expected:020} is missing")
            expected = file.base + file.size
            stop = min(expected, queue.next_position)
            if file.base >= stop:
                continue
            edges = (file.base, stop - ENTRY_SIZE_BYTES)
            entries = [queue.entry(at // ENTRY_SIZE_BYTES) for at in edges]
            file.close_descriptor()
            if not all(entry is not None and self._is_believable(entry) for entry in entries):
                reason = f"its file {file.path.name} does not begin and end with entries"
                return self._lost_from(queue, file.base, reason)
            # A record has one place: of two files that begin with it, one is a copy.
            twins = [heads.setdefault(entries[0], file.base), file.base]
            for base in twins if twins[0] != file.base else ():
                if base + file.size < queue.next_position and self._is_copy(queue, base):
                    reason = f"its file {base:020} is a copy of another one"
                    return self._lost_from(queue, base, reason)
        # Files before the first may be missing although the log still has their records. Retention
        # leaves a first file whose first record has expired, or comes right after one that has; a
        # queue that was made again begins with a filler.
        known, first = self._known_queues.get(queue.key), queue.first_offset
        entry = queue.entry(first) if first else None
        if entry is None or not entry.is_message:
            return None
        if entry.physical_offset <= self._log_min or (known is not None and known.first == first):
            return None
        return self._lost_from(queue, queue.files.files[0].base, "")

    def _is_copy(self, queue: ConsumeQueue, position: int) -> bool:
        entry = queue.entry(number := position // ENTRY_SIZE_BYTES)
        return bool(entry and entry.is_message and self._is_elsewhere(queue.key, number, entry))

    def _foreign(self, queue: ConsumeQueue) -> _LostQueue | None:
        """Judge whether the queue ends with entries of another store, or of another log.

        One of a topic that never was is a copy beside its original, which costs no walk.
        """
        known = self._known_queues.get(queue.key)
        low, last = queue.first_offset, queue.last_message()
        if last is not None and self._is_past(last[1]):
            last = queue.last_message(queue.first_where(low, last[0], self._is_past))
        if last is None or not self._is_elsewhere(queue.key, *last):
            return None
        if self._is_known and known is None:
            return None
        high = last[0]
        while low < high:
            at, entry = queue.next_message(middle := (low + high) // 2, high)
            if entry is None or self._is_elsewhere(queue.key, at, entry):
                high = middle
            else:
                low = at + 1
        before, walk_from = queue.last_message(low), self._log_min
        if before is not None:
            walk_from = max(walk_from, before[1].physical_offset + before[1].record_size)
        if low == queue.first_offset:  # the numbers of another one are not this one's
            return _LostQueue(queue.key, low, low * ENTRY_SIZE_BYTES, walk_from, 0, _FOREIGN)
        given = queue.given_stop if queue.given_stop > queue.max_offset else 0
        given = given if known is None else max(given, known.next)
        return _LostQueue(queue.key, low, None, walk_from, given, _FOREIGN)

    def _is_past(self, entry: QueueEntry) -> bool:
        """Whether an entry points past the log's end, where it has zeros."""
        file = self._log.find(entry.physical_offset)
        if file is None:
            return entry.physical_offset >= self.data_stop
        return not any(file.read_at(entry.physical_offset - file.base, FIXED_SIZE))

    def _is_elsewhere(self, key: QueueKey, queue_offset: int, entry: QueueEntry) -> bool:
        file = self._log.find(entry.physical_offset)
        return file is not None and is_elsewhere(file, entry, key, queue_offset)

    def _lost_end(self, queue: ConsumeQueue) -> _LostQueue | None:
        """Judge whether entries are missing after the last one."""
        known = self._known_queues.get(queue.key)
        given, end, reason = queue.given_stop, queue.next_position, ""
        if known is not None:
            if given >= known.next:
                return None
            reason = f"it ends at {given}, but had got to {known.next}"
            given = known.next
        elif not end or end % queue.files.file_size or given > queue.max_offset:
            return None  # otherwise it ends with a full file, and a next one may have existed
        last = queue.files.last()
        take_from = end if last is not None and last.base >= end else None
        walk_from = max(queue.max_physical_offset, self._log_min)
        return _LostQueue(queue.key, queue.max_offset, take_from, walk_from, given, reason)

    def _lost_from(self, queue: ConsumeQueue, position: int, reason: str) -> _LostQueue:
        """Describe a queue whose files from byte `position` on are to be made again."""
        first, walk_from = position // ENTRY_SIZE_BYTES, self._log_min
        before = queue.last_message(first)
        if before is not None and self._is_believable(before[1]):
            walk_from = max(walk_from, before[1].physical_offset + before[1].record_size)
        known = self._known_queues.get(queue.key)
        given = 0 if known is None else known.next
        for file in reversed(queue.files.files):
            entries = entry_array(read_whole(file.path) if file.base >= position else b"")
            if count := given_count(entries, self.data_stop, self._log.file_size):
                given = max(given, file.base // ENTRY_SIZE_BYTES + count)
                break
        return _LostQueue(queue.key, first, position, walk_from, given, reason)

    def _is_believable(self, entry: QueueEntry) -> bool:
        size = self._log.file_size
        return entry.is_filler or bool(may_be_record(*entry[:2], self.data_stop, size))

    # --- index ----------------------------------------------------------------------------------

    def _lost_index(self) -> tuple[str, int, str] | None:
        """Return the first bad file, from where records may lack items, and what is wrong."""
        directory = self._index.directory
        names = [path.name for path in listed_index_files(directory, [])]
        loaded = {file.name: file for file in self._index.files}
        end = self._log_min
        for name in sorted({*names, *self._known_index}):
            file = loaded.get(name)
            if file is not None:
                reason = self._fault(file)
            elif name in names:
                reason = "has a wrong length"
            elif self._known_index[name].end_physical_offset < self._log_min:
                continue  # expired since
            else:
                reason = "is missing"
            if reason:
                return name, end, reason
            if file is not None:
                end = max(end, file.header.end_physical_offset)
        return None

    def _put_headers_right(self) -> None:
        """Correct headers by what is known without looking at all items."""
        for file in self._index.files:
            header, known = file.header, self._known_index.get(file.name)
            # 4.9 may index the last record again when it starts (K-I8): `_fault` saw that item.
            has_more = known is not None and header.index_count > known.index_count
            if known is None or has_more or self._may_have_grown(file):
                known = right_times(header, self._witness(file, header))
            if known != header:
                file.file.reserve(file.file.size)
                file.set_header(known)
                file.file.close_descriptor()
                done = f"{file.name}: {header} is {known} now"
                self._note("index-header", self._index.directory.name, 0, done)

    def _may_have_grown(self, file: IndexFile) -> bool:
        """Whether items were put after ``known-ends`` was written."""
        return not self.clean and file is self._index.files[-1]

    def _fault(self, file: IndexFile) -> str:
        header, known = file.header, self._known_index.get(file.name)
        if not FIRST_ITEM < header.index_count <= file.layout.item_count:
            return f"states {header.index_count} as its next item"
        if known is not None:
            if header.index_count < known.index_count:
                return f"had items up to {known.index_count}, and states {header.index_count}"
            if not self._may_have_grown(file):
                if known[2:4] != header[2:4]:
                    return f"had items of {known[2:4]}, and states {header[2:4]}"
            elif not file.is_full:
                # Recovery drops and puts again what came later: the header may be ahead of it.
                if known.index_count <= FIRST_ITEM:
                    return ""
                header = known
        named, held = header[2:4], self._witness(file, header)[:2]
        if named != held:
            return f"names records {named}, and has items of {held}"
        return "has items of another log" if known is None and self._is_of_others(file) else ""

    def _is_of_others(self, file: IndexFile) -> bool:
        """Whether no record calls for the first item, nor for the last: it is another store's.

        What has expired, or what a crash may have left past the log's end, says nothing.
        """
        is_judged = False
        for at, key_hash in file.items[["physical_offset", "key_hash"]][[0, -1]].tolist():
            log_file = self._log.find(at)
            record = None if log_file is None else record_at(log_file, at - log_file.base)
            if record is not None and key_hash in expected_items(record).key_hash:
                return False
            is_judged |= log_file is not None or (self.clean and at >= self.data_stop)
        return is_judged

    def _witness(self, file: IndexFile, header: IndexHeader) -> HeaderWitness:
        items = item_array(file.file.array, file.layout)
        first, last = items[FIRST_ITEM], items[header.index_count - 1]
        begin, end = int(first["physical_offset"]), int(last["physical_offset"])
        is_only = header.index_count == FIRST_ITEM + 1
        return HeaderWitness(
            begin,
            end,
            None if is_only else int(last["time_difference_s"]),
            store_time_of(self._log, begin),
            store_time_of(self._log, end),
        )
