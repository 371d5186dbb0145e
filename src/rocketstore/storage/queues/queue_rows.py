"""The arrays by which dispatch kernels find queues and write into them.

One row of `queues` per queue, found through the hash table `slots` by topic bytes and queue id.
The columns are named in ``rocketstore.native.dispatch_state``.

Law: rows are added only by the thread that dispatches, and only while no kernel runs, since adding
may replace an array. Other threads read single numbers through `value`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from rocketstore.format.java_hash import string_hash
from rocketstore.native.dispatch_state import (
    QUEUE_COLUMN_COUNT,
    SLOT_COLUMN_COUNT,
    QueueColumn,
    SlotColumn,
    slot_of,
)

if TYPE_CHECKING:
    from rocketstore.native.dispatch_state import ByteArray, Int64Array

_FIRST_ROWS: Final = 64
_FIRST_TOPIC_BYTES: Final = 2048


class QueueRows:
    """Growing arrays of queues.

    `queues` has one row per queue (``QueueColumn``). `slots` is an open-addressing hash table of a
    power of two, at most half full (``SlotColumn``), and `topics` the bytes that it refers to.
    """

    def __init__(self) -> None:
        self.queues: Int64Array = np.zeros((_FIRST_ROWS, QUEUE_COLUMN_COUNT), np.int64)
        self.slots: Int64Array = _empty_slots(2 * _FIRST_ROWS)
        self.topics: ByteArray = np.zeros(_FIRST_TOPIC_BYTES, np.uint8)
        self._count = 0
        self._name_count = 0
        self._topic_bytes = 0
        self._topic_places: dict[bytes, int] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, *, is_delay: bool) -> int:
        """Return a row for a queue that has none; no record leads there before `add_name`."""
        row = self._count
        if row == len(self.queues):
            grown = np.zeros((2 * row, QUEUE_COLUMN_COUNT), np.int64)
            grown[:row] = self.queues
            self.queues = grown
        self.queues[row, QueueColumn.IS_DELAY] = is_delay
        self._count = row + 1
        return row

    def add_name(self, name: bytes, queue_id: int, row: int) -> None:
        """Let records find a queue by these bytes of their topic.

        Usually its topic in UTF-8; other bytes lead to the queue of the topic Java reads them as.
        """
        if 2 * (self._name_count + 1) > len(self.slots):
            self._grow_slots()
        slot = np.zeros(SLOT_COLUMN_COUNT, np.int64)
        slot[SlotColumn.TOPIC_HASH] = string_hash(name.decode("utf-8", "replace"))
        slot[SlotColumn.QUEUE_ID] = queue_id
        slot[SlotColumn.TOPIC_AT] = self._place_of(name)
        slot[SlotColumn.TOPIC_SIZE] = len(name)
        slot[SlotColumn.QUEUE] = row
        self._name_count += _insert(self.slots, slot)

    def value(self, row: int, column: QueueColumn) -> int:
        """Return one number; safe from any thread."""
        return int(self.queues[row, column])

    def set(self, row: int, column: QueueColumn, value: int) -> None:
        """Change one number; only for the dispatching thread."""
        self.queues[row, column] = value

    def _place_of(self, name: bytes) -> int:
        place = self._topic_places.get(name)
        if place is not None:
            return place
        place, stop = self._topic_bytes, self._topic_bytes + len(name)
        if stop > len(self.topics):
            grown = np.zeros(max(2 * len(self.topics), stop), np.uint8)
            grown[:place] = self.topics[:place]
            self.topics = grown
        self.topics[place:stop] = np.frombuffer(name, np.uint8)
        self._topic_bytes = stop
        self._topic_places[name] = place
        return place

    def _grow_slots(self) -> None:
        grown = _empty_slots(2 * len(self.slots))
        for slot in self.slots[self.slots[:, SlotColumn.QUEUE] >= 0]:
            _insert(grown, slot)
        self.slots = grown


def _empty_slots(count: int) -> Int64Array:
    slots = np.zeros((count, SLOT_COLUMN_COUNT), np.int64)
    slots[:, SlotColumn.QUEUE] = -1
    return slots


def _insert(slots: Int64Array, slot: Int64Array) -> bool:
    """Enter a slot; False where it is entered already."""
    count = len(slots)
    number = slot_of(int(slot[SlotColumn.TOPIC_HASH]), int(slot[SlotColumn.QUEUE_ID]), count)
    while slots[number, SlotColumn.QUEUE] >= 0:
        if (slots[number] == slot).all():
            return False
        number = (number + 1) % count
    slots[number] = slot
    return True
