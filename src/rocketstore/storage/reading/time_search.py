"""Which queue offset belongs to a moment: `offset_at`, and the earliest message of a queue.

Law: the answer is the first message whose store time is at or after the moment asked for, and the
queue's maximum offset when there is none, so that a reader who starts there sees everything from
that moment on and nothing before it (K-T2, K-T3). Only times in records count, never those of files
(K-T1), and entries without a readable record have no time and are never the answer (K-T4).

How derived: bisection, as ConsumeQueue.getOffsetInQueueByTime of 4.9 does inside one file (spec
B14), here over the whole queue. Store times rise along a queue; in logs of Java they can go back
with the machine's clock. Then several places separate earlier from later messages, and the answer
is one of them: the message there was stored at or after the moment, the one before it was not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketstore.format.queue_entry import ENTRY_STRUCT, FILLER_SIZE
from rocketstore.native.decode import store_time_at

if TYPE_CHECKING:
    from rocketstore.native.decode import LogAtHand
    from rocketstore.storage.reading.sources import QueueSource

_FIRST_LOOK_ENTRIES: Final = 1
_LOOK_ENTRIES: Final = 256


def offset_at(log: LogAtHand, queue: QueueSource, timestamp_ms: int) -> int:
    """Return the queue offset of the first message stored at or after a moment."""
    end = queue.max_offset
    low, high = queue.min_offset, end
    answer = end
    while low < high:
        middle = (low + high) // 2
        at, stored = next_timestamp(log, queue, middle, high)
        if stored is None:  # nothing readable from the middle on
            high = middle
        elif stored >= timestamp_ms:
            answer, high = at, middle
        else:
            low = at + 1
    return answer


def next_timestamp(
    log: LogAtHand, queue: QueueSource, start: int, stop: int
) -> tuple[int, int | None]:
    """Return the first entry in [start, stop) that has a readable record, with its store time."""
    limit = _FIRST_LOOK_ENTRIES  # nearly always the answer
    while start < stop:
        entries = queue.entry_bytes(start, min(limit, stop - start))
        if not entries:
            start += queue.entries_per_file - start % queue.entries_per_file
            continue
        for physical_offset, record_size, _ in ENTRY_STRUCT.iter_unpack(entries):
            if 0 < record_size != FILLER_SIZE:
                stored = store_time_at(log, physical_offset, record_size)
                if stored is not None:
                    return start, stored
            start += 1
        limit = _LOOK_ENTRIES
    return stop, None


def earliest_timestamp(log: LogAtHand, queue: QueueSource) -> int | None:
    """Return the store time of a queue's first readable message, None when it has none."""
    return next_timestamp(log, queue, queue.min_offset, queue.max_offset)[1]
