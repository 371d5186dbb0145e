"""The queues of a store, read piece by piece and held against what the log calls for.

Records come in log order; each batch asks its queues for the entries at the records' queue offsets.
Law: nothing is written; neither a queue nor the log is held in memory.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from rocketstore.format.file_name import is_directory_name
from rocketstore.format.markers import CONSUME_QUEUE_EXT_DIRECTORY
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, entry_array
from rocketstore.scan import kernels
from rocketstore.storage.files.pread_files import OpenFiles, PreadFiles
from rocketstore.units import QueueKey
from rocketstore.verification import queue_rules, runs
from rocketstore.verification.queue_rules import QueueView
from rocketstore.verification.unbacked import Unbacked, UnbackedKind, unbacked_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.verification.expectation import ExpectedEntries
    from rocketstore.verification.queue_rules import QueuePart
    from rocketstore.verification.unbacked import LogBounds

    Int64Array: TypeAlias = npt.NDArray[np.int64]

_CHUNK_ENTRIES: Final = 65_536


class AuditedQueue(QueueView):
    """One queue with its files; `extension` is where its tags may stand."""

    def __init__(self, key: QueueKey, files: PreadFiles, extension: Path) -> None:
        self.key = key
        self.files = files
        self._extension = extension
        self.part: QueuePart | None = None
        places = files.file_size // ENTRY_SIZE_BYTES
        super().__init__(*key, max(0, files.min_offset) // ENTRY_SIZE_BYTES, 0, places)
        self.end = self._end()
        self.has_files = bool(files.files)

    @property
    def place_count(self) -> int:
        """One past the last place on disk, used or not."""
        return self.files.max_offset // ENTRY_SIZE_BYTES

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

    def parts(self, first: int, behind: int) -> Iterator[tuple[int, int, bool]]:
        """Yield the parts of [first, behind), each with whether a file holds its places."""
        at = first
        for file in self.files.files:
            low = file.base // ENTRY_SIZE_BYTES
            high = min(behind, -(-file.range.stop // ENTRY_SIZE_BYTES))
            if high <= at:
                continue
            if at < low:
                yield at, min(low, behind), False
                at = low
            if at < high:
                yield at, high, True
                at = high
        if at < behind:
            yield at, behind, False

    def _end(self) -> int:
        """Return one past the last entry that is not zeros."""
        stop = self.place_count
        while stop > self.first_offset:
            start = max(self.first_offset, stop - _CHUNK_ENTRIES)
            content = self.read(start, stop - start).view(np.uint8)
            last = int(kernels.last_nonzero(content, 0, content.size))
            if last >= 0:
                return start + last // ENTRY_SIZE_BYTES + 1
            stop = start
        return stop

    def compare(self, expected: ExpectedEntries) -> None:
        """Compare what records call for with what stands there."""
        found = _gather(self, expected.queue_offset)
        part = queue_rules.compare(expected, found, self._has_extension)
        self.part = part if self.part is None else queue_rules.added(self.part, part)

    def _has_extension(self) -> bool:
        return any(self._extension.glob("*"))

    def conclude(self, log: LogBounds) -> None:
        """Judge the whole queue, after all records were compared."""
        self.take([] if self.part is None else [self.part])
        found: list[Unbacked] = []
        for first, behind in runs.pairs(self.gaps()):
            for begin, stop, has_file in self.parts(first, behind):
                if not has_file:  # however far away a stray file lies after it
                    found.append(Unbacked(UnbackedKind.UNWRITTEN, begin, stop))
                    continue
                for start in range(begin, stop, _CHUNK_ENTRIES):
                    entries = self.read(start, min(stop - start, _CHUNK_ENTRIES))
                    found += unbacked_runs(entries, start, log)
        self.judge(found)


class QueueAudit:
    """All queues of a store.

    Parameters
    ----------
    directory
        ``consumequeue`` of the store.
    file_size
        Bytes of a queue file.
    """

    def __init__(self, directory: Path, file_size: int) -> None:
        self._directory = directory
        self._file_size = file_size
        self._open_files = OpenFiles()
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

    def compare(self, expected: ExpectedEntries, keys: Sequence[QueueKey]) -> None:
        """Compare a batch of expected entries with what stands in the queues."""
        for number, batch in expected.by_queue():
            queue = self.queues.get(keys[number])
            if queue is None and not batch.is_extra.all():
                # 4.9 writes extra queues only when that is switched on.
                queue = self._add(keys[number])
            if queue is not None:
                queue.compare(batch)


def _gather(queue: AuditedQueue, offsets: Int64Array) -> EntryArray:
    """Return the entries at some queue offsets, reading neighbours at once."""
    order = np.argsort(offsets, kind="stable")
    ordered = offsets[order]
    found = np.zeros(len(offsets), dtype=entry_array(b"").dtype)
    breaks = np.flatnonzero(np.diff(ordered) > _CHUNK_ENTRIES) + 1
    bounds = [0, *breaks.tolist(), len(ordered)]
    for begin, behind in itertools.pairwise(bounds):
        start = int(ordered[begin])
        # One flipped offset must not make this read a whole disk of nothing.
        stop = min(int(ordered[behind - 1]) + 1, max(queue.place_count, start))
        entries = queue.read(start, stop - start)
        rows = order[begin:behind]
        inside = offsets[rows] < stop
        found[rows[inside]] = entries[offsets[rows[inside]] - start]
    return found


def listed_queues(directory: Path) -> list[QueueKey]:
    """Return the queues that have a directory; as in 4.9, a name must be a number to count."""
    return [
        QueueKey(topic, int(name))
        for topic in _subdirectories(directory)
        for name in _subdirectories(directory / topic)
        if name.isascii() and name.isdigit() and str(int(name)) == name
    ]


def _subdirectories(directory: Path) -> list[str]:
    if not directory.is_dir():
        return []
    return sorted(path.name for path in directory.iterdir() if path.is_dir())
