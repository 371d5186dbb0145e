"""A number for each queue, in the order in which a task meets them; which queue offsets can be.

Law: equal number if and only if equal topic bytes and equal queue id; the kernel ``number_queues``
compares the bytes, not only their hashes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from rocketstore.format.java_hash import string_hash
from rocketstore.format.record import FIXED_SIZE
from rocketstore.native.row import SLOT_COLUMN_COUNT, slot_of
from rocketstore.scan import kernels
from rocketstore.scan.columns import Column
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    import numpy.typing as npt

    from rocketstore.scan.columns import RecordColumns

    Int64Array: TypeAlias = npt.NDArray[np.int64]

DOUBTFUL_BEGINNING: Final = 1 << 26
"""A queue whose first entry would be beyond is asked for a witness: a flipped bit is likelier than
a queue that lost so many. Below, any number is believed, as 4.9 believes all."""

_FIRST_SLOTS: Final = 256
_FULL_PART: Final = 2
"""A table is made larger when more than one in so many slots is used."""


class TaskQueue(NamedTuple):
    """A queue that a task has met; the topic as stored."""

    topic: bytes
    queue_id: int

    @property
    def name(self) -> str:
        """The topic as text; malformed UTF-8 is replaced as Java does."""
        return self.topic.decode("utf-8", "replace")


class QueueNumbers:
    """The queues of one task."""

    def __init__(self) -> None:
        self.queues: list[TaskQueue] = []
        self._numbers: dict[TaskQueue, int] = {}
        self._slots = _empty_slots(_FIRST_SLOTS)
        self._topics = np.empty(0, dtype=np.uint8)
        self._rows: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self.queues)

    def key(self, number: int) -> QueueKey:
        """Return the queue of a number."""
        queue = self.queues[number]
        return QueueKey(queue.name, queue.queue_id)

    def keys(self) -> list[QueueKey]:
        """Return the queue of each number."""
        return [self.key(number) for number in range(len(self.queues))]

    def of(self, columns: RecordColumns) -> Int64Array:
        """Return the number of each record's queue, -1 for one that has no place in a queue."""
        numbers = np.empty(len(columns), dtype=np.int64)
        cols = np.ascontiguousarray(columns.cols)
        row = 0
        while True:
            row = kernels.number_queues(
                columns.buffer, cols, row, self._slots, self._topics, numbers
            )
            if row >= len(columns):
                return numbers
            topic = columns.bytes_of(row, Column.TOPIC_AT, Column.TOPIC_SIZE)
            # Of malformed UTF-8 only the columns' own hash is the one to be looked for.
            topic_hash = int(columns.topic_hash[row])
            self.number_of(TaskQueue(topic, int(columns.queue_id[row])), topic_hash)

    def number_of(self, queue: TaskQueue, topic_hash: int | None = None) -> int:
        """Return the number of one queue, a new one if it is new."""
        known = self._numbers.get(queue)
        if known is not None:
            return known
        number = self._numbers[queue] = len(self.queues)
        self.queues.append(queue)
        hashed = string_hash(queue.name) if topic_hash is None else topic_hash
        topic = np.frombuffer(queue.topic, dtype=np.uint8)
        self._rows.append((hashed, queue.queue_id, len(self._topics), len(topic), number))
        self._topics = np.concatenate((self._topics, topic))
        new = self._rows[-1:]
        if _FULL_PART * len(self.queues) > len(self._slots):
            self._slots, new = _empty_slots(2 * len(self._slots)), self._rows
        for row in new:
            slot = slot_of(row[0], row[1], len(self._slots))
            while self._slots[slot, -1] >= 0:
                slot = (slot + 1) % len(self._slots)
            self._slots[slot] = row
        return number


def _empty_slots(count: int) -> Int64Array:
    slots = np.zeros((count, SLOT_COLUMN_COUNT), dtype=np.int64)
    slots[:, -1] = -1
    return slots


def is_likely_beginning(queue_offset: int, physical_offset: int) -> bool:
    """Whether a queue may begin with a record's number without another record that agrees.

    A header has no checksum, and a forged number would refuse every message after it. It is
    believed if it is small, or if the log in front of the record has room for so many messages.
    """
    return queue_offset <= max(DOUBTFUL_BEGINNING, physical_offset // FIXED_SIZE)


def may_follow(queue_offset: int, queue_stop: int, log_bytes: int, file_places: int) -> bool:
    """Whether a record may state a number past a queue's end; the rule of dispatch and of verify.

    As many messages may be missing as fit into the log between the last one and this one, and as a
    queue file has places: a later message may stand where lost ones stood, whose numbers are not
    given again (decision 0014). More would be a forged number, and its fillers would fill the disk.
    """
    return 0 <= queue_offset <= queue_stop + max(log_bytes, 0) // FIXED_SIZE + file_places
