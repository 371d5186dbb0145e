"""A number for each queue, in the order in which a task meets them; which queue offsets can be.

Law: equal number if and only if equal topic bytes and equal queue id; the kernel ``number_queues``
compares the bytes, not only their hashes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rocketstore.format.java_hash import string_hash
from rocketstore.format.record import FIXED_SIZE
from rocketstore.native.row import SLOT_COLUMN_COUNT, BoolArray, Int64Array, SlotColumn, slot_of
from rocketstore.scan import kernels
from rocketstore.scan.columns import Column, RecordColumns
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    import numpy.typing as npt


DOUBTFUL_BEGINNING: Final = 1 << 26
"""A queue whose first entry would be beyond needs a second record that agrees: a flipped bit is
likelier than a queue that lost so many. Below, any number is believed, as 4.9 believes all."""

_FIRST_SLOTS: Final = 256
_FIRST_TOPIC_BYTES: Final = 2048


class QueueSlots:
    """How kernels find the number of a record's queue.

    `slots` is an open-addressing hash table of a power of two, at most half full (``SlotColumn``),
    and `topics` the bytes that it refers to. Adding may replace either: no kernel runs meanwhile.
    """

    def __init__(self) -> None:
        self.slots = np.full((_FIRST_SLOTS, SLOT_COLUMN_COUNT), -1, np.int64)
        self.topics = np.zeros(_FIRST_TOPIC_BYTES, np.uint8)
        self._name_count = self._topic_bytes = 0

    def add_name(
        self, name: bytes, queue_id: int, number: int, topic_hash: int | None = None
    ) -> None:
        """Let records find a queue by these bytes of their topic, which lead to none yet.

        For malformed UTF-8 `topic_hash` is what the records' column says.
        """
        self._name_count += 1
        if 2 * self._name_count > len(self.slots):
            used = self.slots[self.slots[:, SlotColumn.QUEUE] >= 0]
            slots = np.full((2 * len(self.slots), SLOT_COLUMN_COUNT), -1, np.int64)
            for slot in used:
                _insert(slots, slot)
            self.slots = slots
        at, self._topic_bytes = self._topic_bytes, self._topic_bytes + len(name)
        self.topics = grown(self.topics, self._topic_bytes)
        self.topics[at : self._topic_bytes] = np.frombuffer(name, np.uint8)
        if topic_hash is None:
            topic_hash = string_hash(name.decode("utf-8", "replace"))
        _insert(self.slots, np.array([topic_hash, queue_id, at, len(name), number]))


def grown(array: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Return the array, or a longer one that begins with it, so that it has `count` rows."""
    if count <= len(array):
        return array
    longer = np.zeros((max(count, 2 * len(array)), *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer


def _insert(slots: Int64Array, slot: Int64Array) -> None:
    count = len(slots)
    number = slot_of(int(slot[SlotColumn.TOPIC_HASH]), int(slot[SlotColumn.QUEUE_ID]), count)
    while slots[number, SlotColumn.QUEUE] >= 0:
        number = (number + 1) % count
    slots[number] = slot


class TaskQueue(NamedTuple):
    """A queue that a task has met; the topic as stored."""

    topic: bytes
    queue_id: int

    @property
    def name(self) -> str:
        """The topic as text; malformed UTF-8 is replaced as Java does."""
        return self.topic.decode("utf-8", "replace")


class QueueNumbers(QueueSlots):
    """The queues of one task; records of `batch_topics` have no entry in a ConsumeQueue.

    Such were met `batch_count` times (`expected_entries`).
    """

    def __init__(self, batch_topics: frozenset[str] = frozenset()) -> None:
        self.batch_topics = batch_topics
        self.batch_count = 0
        super().__init__()
        self.queues: list[TaskQueue] = []
        self._numbers: dict[TaskQueue, int] = {}

    def __len__(self) -> int:
        return len(self.queues)

    def key(self, number: int) -> QueueKey:
        """Return the queue of a number."""
        queue = self.queues[number]
        return QueueKey(queue.name, queue.queue_id)

    def keys(self) -> list[QueueKey]:
        """Return the queue of each number."""
        return [self.key(number) for number in range(len(self.queues))]

    def batch_mask(self, numbers: Int64Array) -> BoolArray:
        """Return which of some numbers, -1 among them, are of queues of batch topics."""
        is_batch = [queue.name in self.batch_topics for queue in self.queues]
        mask: BoolArray = np.array([*is_batch, False])[numbers]
        return mask

    def of(self, columns: RecordColumns) -> Int64Array:
        """Return the number of each record's queue, -1 for one that has no place in a queue."""
        numbers = np.empty(len(columns), dtype=np.int64)
        cols = np.ascontiguousarray(columns.cols)
        row = 0
        while True:
            row = kernels.number_queues(columns.buffer, cols, row, self.slots, self.topics, numbers)
            if row >= len(columns):
                return numbers
            topic = columns.bytes_of(row, Column.TOPIC_AT, Column.TOPIC_SIZE)
            # For malformed UTF-8 only the columns' own hash is the one to be looked for.
            topic_hash = int(columns.topic_hash[row])
            self.number_of(TaskQueue(topic, int(columns.queue_id[row])), topic_hash)

    def number_of(self, queue: TaskQueue, topic_hash: int | None = None) -> int:
        """Return the number of one queue, a new one if it is new."""
        known = self._numbers.get(queue)
        if known is not None:
            return known
        number = self._numbers[queue] = len(self.queues)
        self.queues.append(queue)
        self.add_name(queue.topic, queue.queue_id, number, topic_hash)
        return number


def is_likely_beginning(queue_offset: int, physical_offset: int) -> bool:
    """Whether a queue may begin with a record's number without another record that agrees.

    A header has no checksum, and a forged number would refuse every message after it. It is
    believed if it is small, or if the log before the record is long enough for so many messages.
    """
    return queue_offset <= max(DOUBTFUL_BEGINNING, physical_offset // FIXED_SIZE)


def is_continued(queue_offset: int, following: int | None, file_entries: int) -> bool:
    """Whether the next record of a queue, if there is one, lets it begin with a large number."""
    return following is None or 0 <= following - queue_offset <= file_entries


def may_follow(queue_offset: int, queue_stop: int, log_bytes: int, file_entries: int) -> bool:
    """Whether a record may state a number past a queue's end; the rule of dispatch and of verify.

    At most as many messages may be missing as fit into the log between the last one and this one,
    and as a queue file has entries: a later message may stand where lost ones stood, whose numbers
    are not given again (decision 0014). More would be a forged number, and its fillers would fill
    the disk.
    """
    return 0 <= queue_offset <= queue_stop + max(log_bytes, 0) // FIXED_SIZE + file_entries
