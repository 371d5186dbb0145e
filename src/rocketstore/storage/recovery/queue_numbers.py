"""One number per queue, exact: two topics never share one, whatever their hashes say.

The scan gives a record's topic as a place in the buffer and a 32-bit hash, and different topics do
share hashes (AaTopic, BBTopic). Bulk work needs a number per queue that numpy can group by.

Law: equal number if and only if equal topic bytes and equal queue id.
Cost: about 0.3 µs a record; one comparison of topic bytes each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from rocketstore.scan.columns import Column
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    import numpy.typing as npt

    from rocketstore.scan.columns import RecordColumns

    Int64Array: TypeAlias = npt.NDArray[np.int64]

_HASH_MIX = np.int64(0x9E3779B1)
_ID_MIX = np.int64(0x85EBCA77)


class QueueNumbers:
    """Numbers queues in the order in which they are first seen."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[bytes, int], int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def keys(self) -> list[QueueKey]:
        """Return the queue of each number; a topic that is no UTF-8 is replaced as Java does."""
        return [
            QueueKey(topic.decode("utf-8", "replace"), queue_id)
            for topic, queue_id in self._numbers
        ]

    def number_of(self, topic: bytes, queue_id: int) -> int:
        """Return the number of one queue, a new one if it is new."""
        return self._numbers.setdefault((topic, queue_id), len(self._numbers))

    def of(self, columns: RecordColumns) -> Int64Array:
        """Return the number of each record's queue."""
        numbers = np.empty(len(columns), dtype=np.int64)
        mixed = (
            columns.topic_hash * _HASH_MIX
            + columns.queue_id * _ID_MIX
            + (columns.topic_size << np.int64(48))
        )
        _, firsts, groups = np.unique(mixed, return_index=True, return_inverse=True)
        order = np.argsort(groups, kind="stable")
        bounds = np.searchsorted(groups[order], np.arange(firsts.size + 1))
        for group, first in enumerate(firsts.tolist()):
            rows = order[bounds[group] : bounds[group + 1]]
            if self._is_one_queue(columns, rows, first):
                numbers[rows] = self._number_of_row(columns, first)
            else:
                for row in rows.tolist():
                    numbers[row] = self._number_of_row(columns, row)
        return numbers

    def _number_of_row(self, columns: RecordColumns, row: int) -> int:
        topic = columns.bytes_of(row, Column.TOPIC_AT, Column.TOPIC_SIZE)
        return self.number_of(topic, int(columns.queue_id[row]))

    @staticmethod
    def _is_one_queue(columns: RecordColumns, rows: Int64Array, first: int) -> bool:
        size = int(columns.topic_size[first])
        if (columns.topic_size[rows] != size).any():
            return False
        if (columns.queue_id[rows] != columns.queue_id[first]).any():
            return False
        places = columns.topic_at[rows][:, None] + np.arange(size)
        topics = columns.buffer[places]
        return bool((topics == topics[0]).all())
