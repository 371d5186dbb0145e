"""Find queues and index files that lost entries, and take away what is broken of them.

Recovery reads the log from where nothing can be missing. That a queue's file is gone, was zeroed or
overwritten, or that a queue ends too early, does not show in those records. It shows in the row of
files, in the two edges of each file, and in what ``known-ends`` remembers (decision 0021).

A queue with a broken file becomes a queue that ends before it, an index one that ends before its
first bad file; then dispatch, which knows how to go on at an end, does the rest. So there is one
way to make entries, whatever was lost. A doubt costs a longer walk through the log, never an entry.

Law: nothing is taken away before the store says that it is in use and promises nothing: an opening
that is interrupted here is followed by one that checks everything. What is taken away is kept in
``repair/<time>/``. Cost: two entries of each queue file, two items of each index file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rocketstore.format.index_file import (
    FIRST_ITEM,
    HeaderWitness,
    IndexHeader,
    is_index_file_name,
    item_array,
    right_times,
)
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, entry_array, kept_place_mask
from rocketstore.format.record import FIXED_SIZE
from rocketstore.verification.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from rocketstore.format.queue_entry import EntryArray, QueueEntry
    from rocketstore.storage.index.index_service import IndexFile
    from rocketstore.storage.known_ends import KnownEnds, QueueEnds
    from rocketstore.storage.queues.consume_queue import ConsumeQueue
    from rocketstore.storage.recovery.evidence import Evidence
    from rocketstore.storage.recovery.recover import RecoveryParts
    from rocketstore.units import QueueKey

_FARTHEST_BYTES: Final = 1 << 44
"""Past the log's end an entry may point so far: lost files of the log. Beyond it is garbage."""


class LostFiles:
    """What the queues and the index of a store that is being opened have lost.

    `store_time_of` returns the store time of the record at a physical offset, None without one;
    `findings` is what is certainly lost.
    """

    def __init__(
        self,
        parts: RecoveryParts,
        evidence: Evidence,
        *,
        clean: bool,
        now_ms: int,
        store_time_of: Callable[[int], int | None],
    ) -> None:
        self._parts = parts
        self._evidence = evidence
        self._clean = clean
        self._now_ms = now_ms
        self._store_time_of = store_time_of
        self._lost: list[_LostQueue] = []
        self.findings: list[Finding] = []

    def take_away(self, data_stop: int, start: int) -> int:
        """Find what is lost and take broken files away; return where recovery has to begin.

        `data_stop` is the physical offset after the last byte of the log that is not zero, `start`
        where recovery would begin without a loss.
        """
        parts = self._parts
        known = parts.known_ends
        if known is not None and not known.applies(parts.log, clean=self._clean):
            known = None
        self._lost = _QueueSearch(parts, {} if known is None else known.queues, data_stop).find()
        index = self._look_at_index(known) if parts.config.message_index_enable else None
        lost: list[_LostQueue | _LostIndex] = [*self._lost, *([index] if index else [])]
        if lost:
            parts.promise_nothing()
        for queue in self._lost:
            self._take_queue(queue)
        if index is not None:
            self._parts.index.take_away(index.first_name, self._evidence.take_file)
            name = f"{self._parts.index.directory.name}/{index.first_name}"
            self._note("index-lost", name, 0, index.reason)
        for one in lost:
            file = parts.log.find(one.walk_from)
            start = min(start, parts.log.min_offset if file is None else file.base)
        return start

    def _look_at_index(self, known: KnownEnds | None) -> _LostIndex | None:
        headers = None if known is None else known.index_files
        search = _IndexSearch(self._parts, headers, self._store_time_of, clean=self._clean)
        lost = search.find()
        if lost is None:
            for done in search.put_headers_right():
                self._note("index-header", self._parts.index.directory.name, 0, done)
        return lost

    def _note(self, kind: str, name: str, at: int, reason: str) -> None:
        action = "made again from the log"
        self.findings.append(Finding(Severity.WARNING, kind, name, at, 0, reason, action))

    def _take_queue(self, lost: _LostQueue) -> None:
        queue = self._parts.queues.get(lost.key)
        if queue is not None and lost.take_from is not None:
            queue.take_away(lost.take_from, self._evidence.take_file, now_ms=self._now_ms)
        elif queue is not None:
            queue.truncate(lost.first, now_ms=self._now_ms)
        if lost.is_certain:
            name = f"{self._parts.queues.directory.name}/{lost.key.topic}/{lost.key.queue_id}"
            self._note("queue-lost", name, lost.first * ENTRY_SIZE_BYTES, lost.reason)

    def keep_given(self) -> dict[QueueKey, tuple[int, int]]:
        """Keep the places of numbers that were given out, and whose records the log lacks as well.

        Returns first and one past the last queue offset kept, of each queue that has such.
        """
        kept = {}
        for lost in self._lost:
            queue = self._parts.queues.get_or_create(lost.key)
            if queue is not None and queue.given_stop < lost.given_stop:
                first = queue.max_offset
                queue.truncate(first, now_ms=self._now_ms, keep_to=lost.given_stop)
                kept[lost.key] = (first, lost.given_stop)
        return kept


# --- queues -------------------------------------------------------------------------------------


class _LostQueue(NamedTuple):
    """A queue that lacks entries from queue offset `first` on, or, without `is_certain`, may.

    From byte `take_from` on its files cannot stay as they are (None leaves all), from physical
    offset `walk_from` on records may lack their entry; numbers up to `given_stop` were given out.
    """

    key: QueueKey
    first: int
    take_from: int | None
    walk_from: int
    given_stop: int
    reason: str
    is_certain: bool


class _QueueSearch:
    """Looks at every queue; `known` is what each had got to, empty where that is not known."""

    def __init__(
        self, parts: RecoveryParts, known: dict[QueueKey, QueueEnds], log_stop: int
    ) -> None:
        self._queues = parts.queues
        self._known = known
        self._log_min = parts.log.min_offset
        self._log_stop = log_stop
        self._max_record_bytes = parts.log.file_size

    def find(self) -> list[_LostQueue]:
        """Return the queues that lack entries, or may."""
        found = []
        for queue in self._queues.all():
            lost = self._broken_row(queue) or self._lost_end(queue)
            if lost is not None:
                found.append(lost)
        here = set(self._queues.keys())
        for key, ends in self._known.items():
            if key not in here and ends.next:
                reason = f"its directory is gone; it had got to {ends.next}"
                found.append(
                    _LostQueue(key, 0, None, self._log_min, ends.next, reason, is_certain=True)
                )
        return found

    def _broken_row(self, queue: ConsumeQueue) -> _LostQueue | None:
        """Judge the row of files, and the edges of each."""
        expected = None
        for file in queue.files.files:
            if expected is not None and file.base != expected:
                return self._lost(queue, expected, f"its file {expected:020} is missing")
            expected = file.base + file.size
            stop = min(expected, queue.next_position)
            if file.base >= stop:
                continue
            edges = (file.base, stop - ENTRY_SIZE_BYTES)
            entries = [queue.entry(at // ENTRY_SIZE_BYTES) for at in edges]
            file.close_descriptor()
            if not all(entry is not None and self._is_believable(entry) for entry in entries):
                reason = f"its file {file.path.name} does not begin and end with entries"
                return self._lost(queue, file.base, reason)
        return self._lost_front(queue)

    def _lost_front(self, queue: ConsumeQueue) -> _LostQueue | None:
        """Judge whether files before the first one are missing that the log still has records of.

        Retention leaves a first file whose first record has expired, or comes right after one that
        has; a queue that was made again begins with a filler.
        """
        known, first = self._known.get(queue.key), queue.first_offset
        entry = queue.entry(first)
        if not first or entry is None or not entry.is_message:
            return None
        if entry.physical_offset <= self._log_min or (known is not None and known.first == first):
            return None
        reason = f"it begins at {first} with a record after the log's first"
        return self._lost(queue, queue.files.files[0].base, reason, is_certain=False)

    def _lost_end(self, queue: ConsumeQueue) -> _LostQueue | None:
        known = self._known.get(queue.key)
        if known is not None:
            if queue.given_stop >= known.next:
                return None
            reason = f"it ends at {queue.given_stop}, but had got to {known.next}"
            return self._at_end(queue, known.next, reason, is_certain=True)
        is_kept = queue.given_stop > queue.max_offset
        if not queue.next_position or queue.next_position % queue.files.file_size or is_kept:
            return None
        reason = "it ends with a full file; one more may have been there"
        return self._at_end(queue, queue.given_stop, reason, is_certain=False)

    def _at_end(
        self, queue: ConsumeQueue, given_stop: int, reason: str, *, is_certain: bool
    ) -> _LostQueue:
        last, end = queue.files.last(), queue.next_position
        take_from = end if last is not None and last.base >= end else None
        walk_from = max(queue.max_physical_offset, self._log_min)
        return _LostQueue(
            queue.key, queue.max_offset, take_from, walk_from, given_stop, reason, is_certain
        )

    def _lost(
        self, queue: ConsumeQueue, position: int, reason: str, *, is_certain: bool = True
    ) -> _LostQueue:
        """Describe a queue whose files from byte `position` on are to be made again."""
        behind = [file for file in queue.files.files if file.base >= position]
        before = [file for file in queue.files.files if file.base < position]
        walk_from, given = self._log_min, 0
        for file in reversed(before):
            rows = entry_array(file.path.read_bytes())
            ends = rows["physical_offset"] + rows["record_size"].astype(np.int64)
            ends = ends[self._records(rows)]
            if len(ends):
                walk_from = max(walk_from, int(ends.max()))
                break
        for file in reversed(behind):
            rows = entry_array(file.path.read_bytes())
            places = np.flatnonzero(kept_place_mask(rows) | self._records(rows))
            if len(places):
                given = file.base // ENTRY_SIZE_BYTES + int(places[-1]) + 1
                break
        known = self._known.get(queue.key)
        given = max(given, 0 if known is None else known.next)
        first = position // ENTRY_SIZE_BYTES
        return _LostQueue(queue.key, first, position, walk_from, given, reason, is_certain)

    def _is_believable(self, entry: QueueEntry) -> bool:
        return entry.is_filler or bool(self._may_be_record(entry[0], entry[1]))

    def _records(self, rows: EntryArray) -> npt.NDArray[np.bool_]:
        """Return which entries may be those of a record."""
        mask: npt.NDArray[np.bool_] = self._may_be_record(
            rows["physical_offset"], rows["record_size"]
        )
        return mask

    def _may_be_record(self, at: Any, size: Any) -> Any:
        is_size = (size >= FIXED_SIZE) & (size <= self._max_record_bytes)
        return is_size & (at >= 0) & (at < self._log_stop + _FARTHEST_BYTES)


# --- index --------------------------------------------------------------------------------------


class _LostIndex(NamedTuple):
    """The file with which all later ones cannot stay, and from where records may lack items."""

    first_name: str
    walk_from: int
    reason: str


class _IndexSearch:
    """Looks at every file of the index; `known` is name and header of those that there were."""

    def __init__(
        self,
        parts: RecoveryParts,
        known: list[tuple[str, IndexHeader]] | None,
        store_time_of: Callable[[int], int | None],
        *,
        clean: bool,
    ) -> None:
        self._index = parts.index
        self._known = dict(known or ())
        self._log_min = parts.log.min_offset
        self._clean = clean
        self._store_time_of = store_time_of

    def find(self) -> _LostIndex | None:
        """Return where the index stops being whole; None where it is."""
        directory = self._index.directory
        names = [p.name for p in directory.glob("*") if is_index_file_name(p.name) and p.is_file()]
        loaded = {file.name: file for file in self._index.files}
        end = self._log_min
        for name in sorted({*names, *self._known}):
            file = loaded.get(name)
            if file is not None:
                reason = self._fault(file)
            elif name in names:
                reason = "has a wrong length"
            elif self._known[name].end_physical_offset < self._log_min:
                continue  # expired since
            else:
                reason = "is missing"
            if reason is not None:
                return _LostIndex(name, end, f"{name} {reason}")
            if file is not None:
                end = max(end, file.header.end_physical_offset)
        return None

    def put_headers_right(self) -> list[str]:
        """Write what is known of a header without looking at all items; return what was done."""
        done = []
        for file in self._index.files:
            header = file.header
            known = self._known.get(file.name)
            if known is not None and (self._clean or file is not self._index.files[-1]):
                right = known
            else:
                right = right_times(header, self._witness(file, header))
            if right != header:
                file.file.reserve(file.file.size)
                file.set_header(right)
                file.file.close_descriptor()
                done.append(f"{file.name}: {header} is {right} now")
        return done

    def _fault(self, file: IndexFile) -> str | None:
        header, known = file.header, self._known.get(file.name)
        if not FIRST_ITEM < header.index_count <= self._index.layout.item_count:
            return f"states {header.index_count} as its next item"
        may_have_grown = not self._clean and file is self._index.files[-1]
        if known is not None and header.index_count < known.index_count:
            return f"had items up to {known.index_count}, and states {header.index_count}"
        if may_have_grown and known is not None and not file.is_full:
            # The header may be ahead of its items; recovery drops and puts again what came later.
            if known.index_count <= FIRST_ITEM:
                return None
            header = known
        elif known is not None and not may_have_grown and known[2:4] != header[2:4]:
            return f"had items of {known[2:4]}, and states {header[2:4]}"
        named, held = header[2:4], self._witness(file, header)[:2]
        return None if named == held else f"names records {named}, and has items of {held}"

    def _witness(self, file: IndexFile, header: IndexHeader) -> HeaderWitness:
        items = item_array(file.array, self._index.layout)
        first, last = items[FIRST_ITEM], items[header.index_count - 1]
        begin, end = int(first["physical_offset"]), int(last["physical_offset"])
        is_only = header.index_count == FIRST_ITEM + 1
        return HeaderWitness(
            begin,
            end,
            None if is_only else int(last["time_difference_s"]),
            self._store_time_of(begin) if begin >= 0 else None,
            self._store_time_of(end) if end >= 0 else None,
        )
