"""Batch queues of a store that somebody else may be writing, read with ``pread``.

Law: nothing is kept but how far a queue was seen to be written; what a writer adds is seen at the
next question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from rocketstore.batch_queue.entries import BatchEntries
from rocketstore.batch_queue.reading import BatchReads
from rocketstore.format.batch_queue_entry import BATCH_ENTRY_SIZE_BYTES
from rocketstore.storage.files.pread_files import OpenFiles, PreadFiles
from rocketstore.storage.queues.queue_listing import batch_topics_in, listed_queues
from rocketstore.storage.queues.topic_kinds import TopicKinds
from rocketstore.units import QueueKey
from rocketstore.verification.batch_entries import BATCH_ENTRY_DTYPE, written_count

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.storage.read_only import ReadOnlyStore

_AT_A_TIME: Final = 1024


class PreadBatchQueue(BatchEntries):
    """The entries of one queue; `stop_place` is where the written ones end now."""

    files: PreadFiles

    def __init__(self, directory: Path, open_files: OpenFiles) -> None:
        self.files = PreadFiles((directory,), open_files=open_files)
        self._seen_stop = 0

    @property
    def stop_place(self) -> int:  # type: ignore[override] # it moves with the writer
        """Place after the last entry; a file that ends with a fault ends the queue."""
        stop = max(self._seen_stop, self.first_place)
        while held := self.read(stop, _AT_A_TIME):
            array = np.frombuffer(held, BATCH_ENTRY_DTYPE)
            count = written_count(array)
            stop += count
            if count < len(array):
                break
        self._seen_stop = stop
        return stop

    def read(self, place: int, count: int) -> bytes:
        """Return up to `count` entries from a place on, of one file; nothing where it is gone."""
        size = BATCH_ENTRY_SIZE_BYTES
        held = self.files.read(place * size, count * size) or b""
        return held[: len(held) - len(held) % size]


class PreadBatchQueues(Mapping[QueueKey, PreadBatchQueue]):
    """All batch queues below a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open_files = OpenFiles()
        self._queues: dict[QueueKey, PreadBatchQueue] = {}

    def __getitem__(self, key: QueueKey) -> PreadBatchQueue:
        queue = self._queues.get(key)
        if queue is None or queue.files.is_replaced:
            directory = self._root / key.topic / str(key.queue_id)
            if not directory.is_dir():
                raise KeyError(key)
            queue = PreadBatchQueue(directory, self._open_files)
            self._queues[key] = queue
        return queue

    def __iter__(self) -> Iterator[QueueKey]:
        return iter(listed_queues(self._root))

    def __len__(self) -> int:
        return len(listed_queues(self._root))


def with_batches(store: ReadOnlyStore) -> ReadOnlyStore:
    """Let a read-only store answer for its batch topics too, if it has any."""
    names = batch_topics_in(store.layout)
    if names:
        log = store._pread_log  # noqa: SLF001 - its bytes and limits
        queues = PreadBatchQueues(store.layout.batch_consume_queue)
        log.batch_ends = lambda: (
            entry.physical_offset + entry.record_size
            for queue in queues.values()
            if (entry := queue.at(queue.stop_place - 1)) is not None
        )
        BatchReads(store, log, queues, TopicKinds(names)).attach_reads(lambda: queues)
    return store
