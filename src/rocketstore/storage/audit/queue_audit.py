"""The queues of a store, read piece by piece and held against what the log calls for.

Records come in log order; each batch asks its queues for the entries at the records' queue offsets.
Law: nothing is written; neither a queue nor the log is held in memory.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from rocketstore.format.file_name import CONSUME_QUEUE_EXT_DIRECTORY, is_directory_name
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, entry_array
from rocketstore.storage.files.pread_files import OpenFiles, PreadFiles
from rocketstore.storage.queues.queue_search import listed_queues
from rocketstore.verification import queue_rules
from rocketstore.verification.queue_rules import QueueView, entries_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.units import QueueKey
    from rocketstore.verification.expectation import ExpectedEntries
    from rocketstore.verification.queue_rules import QueuePart
    from rocketstore.verification.unbacked import LogBounds


class AuditedQueue(QueueView):
    """One queue with its files; `extension` is where its tags may stand."""

    def __init__(self, key: QueueKey, files: PreadFiles, extension: Path) -> None:
        self.key = key
        self.files = files
        self._extension = extension
        self.part: QueuePart | None = None
        held = [
            (file.base // ENTRY_SIZE_BYTES, -(-file.range.stop // ENTRY_SIZE_BYTES))
            for file in files.files
        ]
        super().__init__(*key, files.file_size // ENTRY_SIZE_BYTES, held, self.read)

    def read(self, start: int, count: int) -> EntryArray:
        """Return entries from queue offset `start`, zeros where no file or byte is."""
        content = bytearray(count * ENTRY_SIZE_BYTES)
        at, stop = start * ENTRY_SIZE_BYTES, (start + count) * ENTRY_SIZE_BYTES
        begin = at
        while at < stop:
            file = self.files.find(at)
            if file is None:
                following = self.files.next_file(at)
                if following is None or following.base >= stop:
                    break
                at = following.base
                continue
            piece = self.files.read(at, min(stop, file.range.stop) - at)
            if not piece:
                break
            content[at - begin : at - begin + len(piece)] = piece
            at += len(piece)
        return entry_array(content)

    def compare(self, expected: ExpectedEntries) -> QueuePart:
        """Compare what records call for with what stands there."""
        found = entries_at(expected.queue_offset, self.read)
        return queue_rules.compare(expected, found, lambda: any(self._extension.glob("*")))

    def take(self, part: QueuePart) -> None:
        """Take what the next records say."""
        self.part = part if self.part is None else queue_rules.added(self.part, part)

    def judge(self, log: LogBounds) -> None:
        """Judge the whole queue, after all records were compared."""
        self.conclude([] if self.part is None else [self.part], log)


class QueueAudit:
    """All queues of a store, in its directory ``consumequeue``."""

    def __init__(self, directory: Path, file_size: int) -> None:
        self._directory = directory
        self._file_size = file_size
        self._open_files = OpenFiles()
        self._adding = threading.Lock()
        self.queues: dict[QueueKey, AuditedQueue] = {}
        for key in listed_queues(directory):
            self._add(key)

    def _add(self, key: QueueKey) -> AuditedQueue:
        # A topic that is no directory's name must not lead out of this one.
        is_name = is_directory_name(key.topic)
        below = (key.topic, str(key.queue_id))
        directories = (self._directory.joinpath(*below),) if is_name else ()
        files = PreadFiles(directories, open_files=self._open_files, file_size=self._file_size)
        extension = self._directory.with_name(CONSUME_QUEUE_EXT_DIRECTORY).joinpath(*below)
        queue = self.queues[key] = AuditedQueue(key, files, extension)
        return queue

    def close(self) -> None:
        """Let go of the files."""
        self._open_files.close()

    def compare(
        self, expected: ExpectedEntries, keys: Sequence[QueueKey]
    ) -> Iterator[tuple[AuditedQueue, QueuePart]]:
        """Compare a batch of expected entries with what stands in the queues; in any thread."""
        for number, batch in expected.by_queue():
            with self._adding:
                queue = self.queues.get(keys[number])
                if queue is None and not batch.is_extra.all():
                    # 4.9 writes extra queues only when that is switched on.
                    queue = self._add(keys[number])
            if queue is not None:
                yield queue, queue.compare(batch)
