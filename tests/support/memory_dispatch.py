"""Answers the dispatch kernel's questions with plain arrays, so that two kernels can be compared.

Queue files and index files are numpy arrays; there is no file, no thread and no product code but
the tables' column names.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rocketstore.native.dispatch_state import (
    INDEX_COLUMN_COUNT,
    QUEUE_COLUMN_COUNT,
    SLOT_COLUMN_COUNT,
    STATE_COUNT,
    DispatchStop,
    IndexColumn,
    QueueColumn,
    SlotColumn,
    State,
    Step,
    slot_of,
)
from rocketstore.scan.columns import Column, StopReason, new_columns

ENTRY = 20
FILLER = bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)
LARGEST_GAP = 200


@dataclass
class MemoryDispatch:
    """Everything that `follow` works on."""

    file_size: int = 5 * ENTRY
    slots_per_file: int = 7
    items_per_file: int = 9
    index_enabled: bool = True
    force: bool = False
    multi_dispatch: bool = False
    batch_records: int = 3
    delays_ms: tuple[int, ...] = (1000, 1000, 5000)
    files: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    index_files: list[np.ndarray] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots = np.zeros((16, SLOT_COLUMN_COUNT), np.int64)
        self.slots[:, SlotColumn.QUEUE] = -1
        self.topics = np.zeros(4096, np.uint8)
        self.topic_end = 0
        self.queues = np.zeros((64, QUEUE_COLUMN_COUNT), np.int64)
        self.queue_count = 0
        self.state = np.zeros(STATE_COUNT, np.int64)
        self.state[State.FORCE] = self.force
        self.state[State.MULTI_DISPATCH] = self.multi_dispatch
        self.index_state = np.zeros(INDEX_COLUMN_COUNT, np.int64)
        self.index_state[IndexColumn.ENABLED] = self.index_enabled
        self.index_state[IndexColumn.SLOT_LIMIT] = self.slots_per_file
        self.index_state[IndexColumn.ITEM_LIMIT] = self.items_per_file
        self.cols = new_columns(self.batch_records)

    def run(self, follow, data: bytes, base: int) -> None:
        """Dispatch a whole file, stepping one byte over each break."""
        buffer = np.frombuffer(data, np.uint8)
        state = self.state
        self._restart(0)
        while True:
            index_file = self.index_files[-1] if self.index_files else np.zeros(0, np.uint8)
            code = DispatchStop(
                follow(
                    buffer, len(data), base, len(data), self.cols, self.slots, self.topics,
                    self.queues, index_file, self.index_state,
                    np.array(self.delays_ms, np.int64), state,
                )
            )  # fmt: skip
            self.stops.append(int(code))
            if code is DispatchStop.DONE:
                return
            if code is DispatchStop.WALK_ENDED:
                if state[State.WALK_STOP] == StopReason.BLANK:
                    return
                self._restart(int(state[State.WALKED]) + 1)
            else:
                self._answer(code, buffer)

    def _restart(self, position: int) -> None:
        state = self.state
        state[State.WALKED] = position
        state[State.CURSOR] = state[State.FILLED] = state[State.STEP] = 0
        state[State.WALK_STOP] = StopReason.END

    def _answer(self, code: DispatchStop, buffer: np.ndarray) -> None:
        row = self.cols[self.state[State.CURSOR]].tolist()
        if code is DispatchStop.UNKNOWN_QUEUE:
            self._add_queue(row, buffer)
        elif code is DispatchStop.INDEX_FULL:
            size = 40 + 4 * self.slots_per_file + 20 * self.items_per_file
            fresh = np.zeros(size, np.uint8)
            if self.index_files:
                before = self.index_files[-1]
                fresh[0:8] = fresh[8:16] = before[8:16]
                fresh[16:24] = fresh[24:32] = before[24:32]
            self.index_files.append(fresh)
        elif code is DispatchStop.MULTI_DISPATCH:
            self.state[State.STEP] = Step.MULTI_DISPATCHED
        elif code is DispatchStop.QUEUE_CONFLICT:
            self.state[State.STEP] = Step.ENTERED
        else:
            self._reach(code, row, buffer)

    def _add_queue(self, row: list[int], buffer: np.ndarray) -> None:
        size, at = row[Column.TOPIC_SIZE], row[Column.TOPIC_AT]
        number = slot_of(row[Column.TOPIC_HASH], row[Column.QUEUE_ID], len(self.slots))
        while self.slots[number, SlotColumn.QUEUE] >= 0:
            number = (number + 1) % len(self.slots)
        self.topics[self.topic_end : self.topic_end + size] = buffer[at : at + size]
        self.slots[number] = (
            row[Column.TOPIC_HASH], row[Column.QUEUE_ID], self.topic_end, size, self.queue_count
        )  # fmt: skip
        self.queues[self.queue_count, QueueColumn.IS_DELAY] = self.queue_count % 2
        self.topic_end += size
        self.queue_count += 1

    def _reach(self, code: DispatchStop, row: list[int], buffer: np.ndarray) -> None:
        queue = self._queue_of(row, buffer)
        numbers = self.queues[queue]
        at = row[Column.QUEUE_OFFSET] * ENTRY
        if code is DispatchStop.QUEUE_GAP:
            if at < 0 or at - int(numbers[QueueColumn.NEXT]) > LARGEST_GAP * ENTRY:
                self.state[State.STEP] = Step.ENTERED
                return
            for position in range(int(numbers[QueueColumn.NEXT]), at, ENTRY):
                file = self._file(queue, position)
                within = position % self.file_size
                file[within : within + ENTRY] = np.frombuffer(FILLER, np.uint8)
            numbers[QueueColumn.NEXT] = at
            return
        file = self._file(queue, at)
        numbers[QueueColumn.ADDRESS] = file.ctypes.data
        numbers[QueueColumn.FILE_START] = at - at % self.file_size
        numbers[QueueColumn.FILE_STOP] = at - at % self.file_size + self.file_size

    def _queue_of(self, row: list[int], buffer: np.ndarray) -> int:
        topic = bytes(buffer[row[Column.TOPIC_AT] :][: row[Column.TOPIC_SIZE]])
        for slot in self.slots.tolist():
            at, size = slot[SlotColumn.TOPIC_AT], slot[SlotColumn.TOPIC_SIZE]
            if (
                slot[SlotColumn.QUEUE] >= 0
                and slot[SlotColumn.QUEUE_ID] == row[Column.QUEUE_ID]
                and bytes(self.topics[at : at + size]) == topic
            ):
                return slot[SlotColumn.QUEUE]
        raise AssertionError("the kernel asked about a queue that it does not know")

    def _file(self, queue: int, position: int) -> np.ndarray:
        key = (queue, position // self.file_size)
        return self.files.setdefault(key, np.zeros(self.file_size, np.uint8))

    def picture(self) -> dict[str, object]:
        """Everything that two runs must have in common; addresses of memory are not."""
        queues = self.queues.copy()
        queues[:, QueueColumn.ADDRESS] = 0
        return {
            "files": {key: bytes(file) for key, file in self.files.items()},
            "index": [bytes(file) for file in self.index_files],
            "index state": self.index_state.tolist(),
            "queues": queues.tolist(),
            "state": self.state.tolist(),
            "stops": self.stops,
        }
