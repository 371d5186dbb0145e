"""Stands in for queues, index and decisions with plain arrays, so that two loops can be compared.

Queue files and index files are numpy arrays; there is no file, no thread and no product code but
the walk and the tables' column names.
"""

from dataclasses import dataclass, field

import numpy as np

from rocketstore.format.index_file import IndexLayout
from rocketstore.native.row import (
    QUEUE_COLUMN_COUNT,
    SLOT_COLUMN_COUNT,
    QueueColumn,
    SlotColumn,
    slot_of,
)
from rocketstore.scan import kernels
from rocketstore.scan.columns import Column, StopReason, new_columns
from support.oracle.entries import find_queue

ENTRY = 20
FILLER = bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)
LARGEST_GAP = 200


@dataclass
class MemoryDispatch:
    """Everything that a ``RowDispatch`` asks and fills."""

    file_size: int = 5 * ENTRY
    layout: IndexLayout = field(default_factory=lambda: IndexLayout(7, 9))
    is_enabled: bool = True
    force: bool = False
    batch_records: int = 3
    delays_ms: tuple[int, ...] = (1000, 1000, 5000)
    files: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    index_files: list[np.ndarray] = field(default_factory=list)
    asked: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots = np.zeros((16, SLOT_COLUMN_COUNT), np.int64)
        self.slots[:, SlotColumn.QUEUE] = -1
        self.topics = np.zeros(4096, np.uint8)
        self.topic_end = 0
        self.queues = np.zeros((64, QUEUE_COLUMN_COUNT), np.int64)
        self.queue_count = 0
        self.newest_bytes = np.zeros(0, np.uint8)
        self.last_indexed = np.zeros(2, np.int64)

    def run(self, loop_class, data: bytes, base: int) -> None:
        """Dispatch a whole file, stepping one byte over each break."""
        self.buffer = np.frombuffer(data, np.uint8)
        delays = np.array(self.delays_ms, np.int64)
        self.loop = loop_class(self, self, self, delays)
        position, cols = 0, new_columns(self.batch_records)
        reason = StopReason.END
        while position < len(data) and reason != StopReason.BLANK:
            count, position, reason = kernels.walk(
                self.buffer, position, len(data), base, len(data), False, cols  # noqa: FBT003
            )  # fmt: skip
            self.rows = cols[:count].tolist()
            self.loop.dispatch(self.buffer, cols[:count])
            position += reason != StopReason.END

    # --- what the loop asks ---------------------------------------------------------------------

    def roll(self) -> None:
        self.newest_bytes = np.zeros(self.layout.size_bytes, np.uint8)
        if self.index_files:
            before = self.index_files[-1]
            self.newest_bytes[0:8] = self.newest_bytes[8:16] = before[8:16]
            self.newest_bytes[16:24] = self.newest_bytes[24:32] = before[24:32]
        self.index_files.append(self.newest_bytes)

    def enter_extra_queues(self, number: int, _count: int) -> None:
        self.asked.append(("extra queues", self.rows[number][Column.PHYSICAL_OFFSET]))

    def gives_way(self, number: int) -> bool:
        self.asked.append(("gives way", self.rows[number][Column.PHYSICAL_OFFSET]))
        return self.force

    def comes_after_all(self, number: int) -> bool:
        self.asked.append(("comes after all", self.rows[number][Column.PHYSICAL_OFFSET]))
        return self.force

    def take_in_queue(self, number: int) -> bool:
        row, buffer = self.rows[number], self.buffer
        size, at = row[Column.TOPIC_SIZE], row[Column.TOPIC_AT]
        number = slot_of(row[Column.TOPIC_HASH], row[Column.QUEUE_ID], len(self.slots))
        while self.slots[number, SlotColumn.QUEUE] >= 0:
            number = (number + 1) % len(self.slots)
        self.topics[self.topic_end : self.topic_end + size] = buffer[at : at + size]
        self.slots[number] = (
            row[Column.TOPIC_HASH], row[Column.QUEUE_ID], self.topic_end, size, self.queue_count
        )  # fmt: skip
        self.topic_end += size
        self.queue_count += 1
        return True

    def fill_gap(self, number: int, _count: int) -> bool:
        row = self.rows[number]
        queue, at = self._queue_of(row), row[Column.QUEUE_OFFSET] * ENTRY
        numbers = self.queues[queue]
        if at < 0 or at - int(numbers[QueueColumn.NEXT]) > LARGEST_GAP * ENTRY:
            return False
        for position in range(int(numbers[QueueColumn.NEXT]), at, ENTRY):
            file = self._file(queue, position)
            within = position % self.file_size
            file[within : within + ENTRY] = np.frombuffer(FILLER, np.uint8)
        numbers[QueueColumn.NEXT] = at
        return True

    def map_queue_file(self, number: int) -> bool:
        row = self.rows[number]
        queue, at = self._queue_of(row), row[Column.QUEUE_OFFSET] * ENTRY
        start = at - at % self.file_size
        numbers = self.queues[queue]
        numbers[QueueColumn.ADDRESS] = self._file(queue, at).ctypes.data
        numbers[QueueColumn.FILE_START] = start
        numbers[QueueColumn.FILE_STOP] = start + self.file_size
        return True

    def _queue_of(self, row: list[int]) -> int:
        queue = find_queue(self.buffer, row, self.slots, self.topics)
        assert queue >= 0, "the loop asked about a queue that it does not know"
        return queue

    def _file(self, queue: int, position: int) -> np.ndarray:
        key = (queue, position // self.file_size)
        return self.files.setdefault(key, np.zeros(self.file_size, np.uint8))

    def picture(self) -> dict[str, object]:
        """Everything that two runs must have in common; addresses of memory are not."""
        queues, loop = self.queues.copy(), self.loop
        queues[:, QueueColumn.ADDRESS] = 0
        return {
            "files": {key: bytes(file) for key, file in self.files.items()},
            "index": [bytes(file) for file in self.index_files],
            "last indexed": self.last_indexed.tolist(),
            "queues": queues.tolist(),
            "done": (loop.last_store_timestamp_ms, loop.cursor),
            "asked": self.asked,
        }
