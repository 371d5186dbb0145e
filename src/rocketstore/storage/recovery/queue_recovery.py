"""Make the ends of ConsumeQueues agree with a log that was just recovered.

Dispatch has rewritten the entries that records call for; this handles the rest: entries past the
log's end or of an earlier log, zeros between entries, queues that begin in the middle because files
are gone.

Law: an entry is removed only from a queue's end, and only if its record cannot exist: it points
past the log, at another record, or into a part of the log that was checked and has no damage. A
place before a kept entry stays, filled if it is empty.

How derived: ConsumeQueue.recover, truncateDirtyLogicFiles and correctMinOffset of 4.9 (spec B16)
without K-R2, K-R5, K-C2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from rocketstore.format.queue_entry import (
    EMPTY,
    ENTRY_SIZE_BYTES,
    FILLER,
    QueueEntry,
    equal_mask,
    written_mask,
)
from rocketstore.native.row import CallsFor
from rocketstore.rules.findings import Finding, Severity
from rocketstore.rules.unbacked import given_count
from rocketstore.storage.dispatch.entry_decisions import fits_record, record_at

if TYPE_CHECKING:
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.queues.consume_queue import ConsumeQueue
    from rocketstore.storage.queues.queue_table import ConsumeQueueTable
    from rocketstore.storage.recovery.evidence import Evidence
    from rocketstore.units import ByteRange, QueueKey


@dataclass
class QueueRecovery:
    """The queues of a store that is being opened: loaded, without running threads."""

    log: MappedFileQueue
    queues: ConsumeQueueTable
    evidence: Evidence
    findings: list[Finding]
    now_ms: int
    foreign: set[QueueKey] = field(default_factory=set)
    """Queues with entries of another log, or queue, which may stand in the place of their own."""

    def end_at(
        self, log_end: int, *, clean_after: bool, keeps_places: bool, old: Sequence[ByteRange]
    ) -> dict[QueueKey, tuple[int, int]]:
        """Drop the entries at the queues' ends whose records do not end before the log does.

        `clean_after`: also make sure that only zeros follow each queue's end, as after a crash.
        `keeps_places`: keep the places of the entries dropped, so that their numbers are not given
        again; entries of records that an earlier log left (`old`) gave out none. Returns, for each
        queue that keeps places, the first queue offset kept and one past the last.
        """
        kept = {}
        for queue in self.queues.all():
            if not (clean_after or queue.max_physical_offset > log_end):
                continue
            first = queue.end_within(log_end)
            places = queue.given_out(first)
            ends = places["physical_offset"] + places["record_size"]
            is_message = written_mask(places) & ~equal_mask(places, FILLER)
            if (is_message & (ends <= log_end)).any():
                self.foreign.add(queue.key)  # its entries are not in the order of one log
            log, copy, count = self.log, self.evidence.copy_range, 0
            if keeps_places:
                count = given_count(places, log.max_offset, log.file_size, old)
            queue.truncate(first, copy, now_ms=self.now_ms, keep_to=first + count)
            if count:
                kept[queue.key] = (first, first + count)
        return kept

    def settle(self, start: int, end: int, damaged: Sequence[ByteRange]) -> None:
        """Drop entries of an earlier log at the queues' ends, and put fillers for zeros between.

        [start, end) of the log was checked; entries of what stands before are whole.
        """
        for queue in self.queues.all():
            cut, last = None, queue.last_message()
            while last is not None and self._is_stale(queue, *last, (start, end), damaged):
                cut = last[0]
                last = queue.last_message(cut)
            if cut is not None:
                self._cut_foreign(queue, cut, is_all=last is None)
                if start > self.log.min_offset and last is not None:
                    self.foreign.add(queue.key)
            # Where the last entry stands before, so do all: a search would read some of each queue.
            is_before = queue.max_physical_offset <= start
            first = queue.max_offset if is_before else queue.end_within(start)
            while len(entries := queue.entries(first, queue.max_offset - first)):
                for row in np.flatnonzero(equal_mask(entries, EMPTY)).tolist():
                    queue.put(first + row, FILLER, overwrite=True)
                first += len(entries)

    def _cut_foreign(self, queue: ConsumeQueue, cut: int, *, is_all: bool) -> None:
        """End a queue before entries of other queues' records, which may be all it has."""
        at, size = cut * ENTRY_SIZE_BYTES, (queue.max_offset - cut) * ENTRY_SIZE_BYTES
        # Kept places after it remain the queue's end.
        keep_to = queue.given_stop if queue.given_stop > queue.max_offset else 0
        if is_all and not (keep_to or queue.first_offset):
            queue.take_away(0, self.evidence.take_file, now_ms=self.now_ms)
            self.evidence.take_tree(queue.files.directories[0])
            self.queues.set_aside.add(queue.key)
        else:
            queue.truncate(cut, self.evidence.copy_range, now_ms=self.now_ms, keep_to=keep_to)
        name = f"{self.queues.directory.name}/{queue.key}"
        reason = f"from queue offset {cut} on its entries are not of its own records: an earlier "
        reason += "log left them, or its directory is a copy of another queue's"
        action = "taken away, and kept in repair/"
        self.findings.append(Finding(Severity.WARNING, "queue-cut", name, at, size, reason, action))

    def _is_stale(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        entry: QueueEntry,
        checked: tuple[int, int],
        damaged: Sequence[ByteRange],
    ) -> bool:
        at = entry.physical_offset
        file = self.log.find(at)
        if file is None or at < self.log.min_offset:
            return False
        record = record_at(file, at - file.base)
        if record is None:
            is_damaged = any(one.start <= at < one.stop for one in damaged)
            return checked[0] <= at < checked[1] and not is_damaged
        if record.call_for(CallsFor.EXTRA_ENTRIES)[0]:
            return False
        return not fits_record(record, entry, queue.key, queue_offset)

    def distrust(self, physical_offset: int) -> None:
        """Let the next flush cover the entries of records from an offset on, another process's too.

        Those that the last writer left may be in the page cache only, and dispatch, which found
        them right, did not touch them: the checkpoint must not pass them unsynced (K-R7).
        """
        for queue in self.queues.all():
            queue.count_as_unflushed(queue.end_within(physical_offset))

    def has_gap(self, known: dict[QueueKey, int]) -> bool:
        """Whether dispatch left out places; `known` has each queue's next offset before it."""
        return any(_begins_late(queue, known.get(queue.key)) for queue in self.queues.all())

    def drop_late(self, known: dict[QueueKey, int]) -> None:
        """Empty the queues that did not exist before, to make them from their first record on."""
        for queue in self.queues.all():
            if queue.key not in known:
                queue.take_away(0, lambda _path: None, now_ms=self.now_ms)


def _begins_late(queue: ConsumeQueue, before: int | None) -> bool:
    if before is None:
        first = queue.entry(queue.first_offset)
        return queue.first_offset > 0 or (first is not None and not first.is_message)
    # A filler after the old end stands for an entry that was expected there.
    entry = queue.entry(before)
    return entry is not None and entry.is_filler
