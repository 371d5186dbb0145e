"""Find queues whose files lost entries of records that recovery would not read.

Recovery reads the log from where nothing can be missing. That a queue's file is gone, was zeroed or
overwritten, or that a queue ends too early, does not show in those records. It shows in the row of
files, in the two edges of each file, and in what ``known-ends`` remembers (decision 0021).

Law: nothing is written. A doubt costs a longer walk through the log, never an entry.

Cost: two entries of each queue file; of a queue with nothing wrong, no byte of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rocketstore.format.queue_entry import (
    ENTRY_SIZE_BYTES,
    entry_array,
    kept_place_mask,
)
from rocketstore.format.record import FIXED_SIZE

if TYPE_CHECKING:
    import numpy.typing as npt

    from rocketstore.format.queue_entry import EntryArray, QueueEntry
    from rocketstore.storage.known_ends import QueueEnds
    from rocketstore.storage.queues.consume_queue import ConsumeQueue
    from rocketstore.storage.queues.queue_table import ConsumeQueueTable
    from rocketstore.units import QueueKey

_FARTHEST_BYTES: Final = 1 << 44
"""Behind the log's end an entry may point so far: lost files of the log. Beyond it is garbage."""


class LostQueue(NamedTuple):
    """A queue that lacks entries, or may.

    Attributes
    ----------
    first
        Queue offset from which entries are missing.
    take_from
        Byte of the queue from which its files cannot stay as they are; None leaves all.
    walk_from
        Physical offset from which records of this queue may lack their entry.
    given_stop
        One past the last queue offset that is known to have been given out.
    reason
        What speaks for it.
    is_certain
        Whether entries are missing for sure, or only may be.
    """

    key: QueueKey
    first: int
    take_from: int | None
    walk_from: int
    given_stop: int
    reason: str
    is_certain: bool


class LostQueueSearch:
    """Looks at every queue of a loaded store.

    Parameters
    ----------
    queues
        Loaded; nothing runs.
    known
        What each queue had got to; empty where that is not known.
    log_min, log_stop
        Physical offsets: the log's first byte, and behind its last byte that is not zero.
    max_record_bytes
        No record is longer.
    """

    def __init__(
        self,
        queues: ConsumeQueueTable,
        known: dict[QueueKey, QueueEnds],
        *,
        log_min: int,
        log_stop: int,
        max_record_bytes: int,
    ) -> None:
        self._queues = queues
        self._known = known
        self._log_min = log_min
        self._log_stop = log_stop
        self._max_record_bytes = max_record_bytes

    def find(self) -> list[LostQueue]:
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
                    LostQueue(key, 0, None, self._log_min, ends.next, reason, is_certain=True)
                )
        return found

    # --- one queue ------------------------------------------------------------------------------

    def _broken_row(self, queue: ConsumeQueue) -> LostQueue | None:
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

    def _lost_front(self, queue: ConsumeQueue) -> LostQueue | None:
        """Judge whether files before the first one are missing that the log still has records of.

        Retention leaves a first file whose first record has expired, or comes right behind one that
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

    def _lost_end(self, queue: ConsumeQueue) -> LostQueue | None:
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
    ) -> LostQueue:
        last, end = queue.files.last(), queue.next_position
        take_from = end if last is not None and last.base >= end else None
        walk_from = max(queue.max_physical_offset, self._log_min)
        return LostQueue(
            queue.key, queue.max_offset, take_from, walk_from, given_stop, reason, is_certain
        )

    def _lost(
        self, queue: ConsumeQueue, position: int, reason: str, *, is_certain: bool = True
    ) -> LostQueue:
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
        return LostQueue(queue.key, first, position, walk_from, given, reason, is_certain)

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
