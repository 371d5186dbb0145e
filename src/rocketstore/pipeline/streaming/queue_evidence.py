"""What the queues say of a byte range that a task has read: a record that an entry promises.

Every byte of a range is a record, a filler or damage, but no checksum covers a record's header. So
the entries that point into the range are compared with the records that were found: those of
all queues that have records there, or, where they are many, first of those whose numbers jump.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rocketstore.errors import StoreDamagedError
from rocketstore.events import get_logger
from rocketstore.format.queue_entry import FILLER, equal_mask, written_mask
from rocketstore.pipeline.planning import MANY_QUEUES, SplitTask
from rocketstore.pipeline.queues import is_chosen
from rocketstore.rules.expectation import extra_entries
from rocketstore.scan.arrow import distinct
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from rocketstore.native.row import Int64Array
    from rocketstore.pipeline.log_read import QueueOpener
    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.places.queue_files import QueueFiles
    from rocketstore.scan.columns import RecordColumns

_log = get_logger(__name__)


class QueueEvidence:
    """The queue offsets that were found in a task's range, and those that entries promise.

    `expected` entries of the queues looked at point into the range, and `found` of them have their
    record.
    """

    def __init__(self, task: SplitTask, options: ReadOptions, queue_of: QueueOpener) -> None:
        self.expected = self.found = 0
        self._task, self._options, self._queue_of = task, options, queue_of
        self._topics: dict[str, int] = {}
        self._stated: list[Int64Array] = [np.empty((2, 0), np.int64)]

    def take(self, columns: RecordColumns, wanted: RecordColumns) -> None:
        """Take records of the range, and those of chosen queues among them.

        A record that also stands in a chosen queue as in an extra one is a row of its own only, but
        no entry of the chosen one lacks its record.
        """
        texts, numbers = distinct(wanted, "topic")
        codes = np.array([*map(self._code, texts), -1], np.int64)[numbers]
        keys = codes << 32 | (wanted.queue_id & 0xFFFFFFFF)
        guests = [
            (self._code(topic) << 32 | queue_id, offset)
            for _, topic, queue_id, offset in extra_entries(columns)
            if is_chosen(self._options, self._task.store.broker_name, QueueKey(topic, queue_id))
        ]
        guests_found = np.array(guests, np.int64).reshape(-1, 2).T
        self._stated += [np.stack([keys, wanted.queue_offset]), guests_found]

    def _code(self, topic: str) -> int:
        return self._topics.setdefault(topic, len(self._topics))

    def compare(self) -> None:
        """Compare what was found with the entries; damage of these is dealt with as asked."""
        stated = np.concatenate(self._stated, axis=1)
        stated = stated[:, np.lexsort(stated[::-1])]
        keys, starts = np.unique(stated[0], return_index=True)
        offsets = np.split(stated[1], starts[1:])
        # A number that is not there, or that is another's, leaves a jump.
        jumps = [not (np.diff(one) == 1).all() for one in offsets] if len(keys) else []
        names = list(self._topics)
        surplus = 0
        for at in np.argsort(~np.array(jumps, bool), kind="stable")[:MANY_QUEUES].tolist():
            key = QueueKey(names[int(keys[at]) >> 32], int(keys[at]) & 0xFFFFFFFF)
            surplus += self._compare_queue(key, offsets[at])
        if surplus:
            hint = "rows of the batch as well; rocketstore pipeline audit lists each queue-conflict"
            path = self._task.segment.path
            _log.warning("stream.offset_stated_twice", records=surplus, path=path, hint=hint)

    def _compare_queue(self, key: QueueKey, stated: Int64Array) -> int:
        """Compare one queue; return how many records state an offset that another one has."""
        queue = self._queue_of(self._task.store.location, key)
        begin = self._task.segment.base + self._task.start
        first, last = queue.pointing_into(begin, begin + self._task.byte_count)
        first = max(first, self._task.queue_ranges.get(key, range(0)).start)
        inside = stated[(stated >= first) & (stated < last)]
        promised = self._promised(queue, first, last)
        found = np.unique(inside)
        self.expected += len(promised)
        self.found += int(np.isin(promised, found).sum())
        is_elsewhere = (stated >= queue.first_offset) & (stated < queue.max_offset)
        return int(is_elsewhere.sum()) - len(found)

    def _promised(self, queue: QueueFiles, start: int, stop: int) -> Int64Array:
        """Return the queue offsets of entries that point at messages.

        Entries that are missing between others, or point backwards, are damage.
        """
        offsets, last, fillers, is_rising = [np.empty(0, np.int64)], -1, 0, True
        for number, entries in queue.chunks(start, stop):
            is_filler = equal_mask(entries, FILLER)
            fillers += int(is_filler.sum())
            rows = np.flatnonzero(written_mask(entries) & ~is_filler)
            places = entries["physical_offset"][rows].astype(np.int64)
            is_rising &= bool((np.diff(places, prepend=last) > 0).all())
            last = int(places[-1]) if len(places) else last
            offsets.append(number + rows)
        promised = np.concatenate(offsets)
        if fillers:
            # Those who put them there reported the loss; `get` steps over them as well.
            _log.warning("stream.fillers", queue=queue.key, start=start, stop=stop, lost=fillers)
        kept = len(promised) + fillers
        if is_rising and kept >= stop - start:
            return promised
        what = (
            f"damage: queue {queue.key} of {queue.location}: expected {stop - start} entries from "
            f"offset {start} on, each after the one before in the log, found {kept}"
            f"{' in disorder' * (not is_rising)}"
        )
        if self._options.damage == "fail":
            hint = 'to stream what the log has: option("damage", "skip"); to make the queue '
            hint += "again from the log: rocketstore queue rebuild"
            raise StoreDamagedError(what, hint=hint)
        _log.warning("stream.damage", what=what)
        return promised
