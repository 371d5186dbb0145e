"""ConsumeQueues of a store that this process does not own, read with ``pread``.

A queue's end is not stored anywhere: it is where the entries stop. It is found by bisection in the
last file that has a first entry; from then on it only moves forward, entry by entry, as the writer
adds them.

Law: an entry that is still being written is not seen. The writer's 20 bytes do not appear at once,
so the newest entry counts only when a second look finds the same bytes, and entries at the end
whose records are not there (torn away by a crash, or left over from a longer log) do not count.

How derived: ConsumeQueue.recover, correctMinOffset and getIndexBuffer of 4.9 (spec B12, B16).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from rocketstore.format.file_name import CONSUME_QUEUE_EXT_DIRECTORY, is_directory_name
from rocketstore.format.queue_entry import (
    ENTRY_SIZE_BYTES,
    QueueEntry,
    decode_entry,
    entry_array,
    written_mask,
)
from rocketstore.locks import Lock
from rocketstore.rules.newer import newer_findings
from rocketstore.scan.extension_units import UnitReader
from rocketstore.scan.queue_search import CHUNK_BYTES, QueueSearch
from rocketstore.storage.files.disk import refuse_dead_link
from rocketstore.storage.files.pread_files import OpenFiles, PreadFiles
from rocketstore.storage.files.whole_file import small_files
from rocketstore.storage.queues.batch_queues import PreadBatchQueue
from rocketstore.storage.queues.queue_listing import listed_queues
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from rocketstore.rules.files import FileFinding
    from rocketstore.rules.findings import Finding
    from rocketstore.rules.table_files import Content
    from rocketstore.storage.layout import StoreLayout


class _LostEntries(NamedTuple):
    """Entries [start, stop) that point at no record, fillers among them; the first one is kept."""

    start: int
    stop: int
    entry: QueueEntry


class PreadQueue(QueueSearch):
    """One queue; `log_end_before` returns the log's end for an entry that points beyond it.

    `is_other` tells, for a directory's queue and an entry, whether it points at another's record.
    """

    files: PreadFiles

    def __init__(
        self,
        directory: Path,
        open_files: OpenFiles,
        *,
        log_min_offset: Callable[[], int],
        log_end_before: Callable[[QueueEntry], int | None],
        is_other: Callable[[Path, QueueEntry], bool] = lambda *_: False,
    ) -> None:
        self._is_other = partial(is_other, directory)
        self.files = PreadFiles((directory,), open_files=open_files)
        self._log_min_offset = log_min_offset
        self._log_end_before = log_end_before
        self._written_end = -1
        self._confirmed = 0
        self._cut: tuple[int, int, int] | None = None
        self._lost: _LostEntries | None = None
        self._lock = Lock()
        extensions = directory.parents[1].with_name(CONSUME_QUEUE_EXT_DIRECTORY)
        if extensions.is_dir():
            place = extensions.joinpath(*directory.parts[-2:])
            self.extension = UnitReader(partial(PreadFiles, (place,), open_files=open_files))

    # --- the end --------------------------------------------------------------------------------

    @property
    def max_offset(self) -> int:
        """One past the last entry whose record the log has, or had before it expired."""
        with self._lock:
            end = self.written_end
            if end > self._confirmed:
                last = self.entry(end - 1)
                if not self._confirmed and self._is_copy(end):
                    return self.first_offset
                log_end = None if last is None else self._log_end_before(last)
                if log_end is not None:
                    end = self._confirmed_end(log_end, end)
            self._confirmed = end
            return end

    def _is_copy(self, end: int) -> bool:
        """Whether the first entry that points into the log, and the last, are of another queue.

        Then the directory is a copy of that queue's directory.
        """
        log_min = self._log_min_offset()
        first = self.first_where(self.first_offset, end, lambda one: one.physical_offset >= log_min)
        ends = self.next_message(first, end)[1], next(self.backwards(first, end), (0, None))[1]
        return all(one is not None and self._is_other(one) for one in ends)

    def _confirmed_end(self, log_end: int, end: int) -> int:
        """Return where the entries at the end begin whose records lie beyond the log's end."""
        if self._cut is None or self._cut[:2] != (log_end, end):
            cut = end
            for at, entry in self.backwards(self._confirmed, end):
                if at != cut - 1 or entry.physical_offset < log_end:
                    break
                cut = at
            self._cut = log_end, end, cut
        return self._cut[2]

    @property
    def written_end(self) -> int:
        """One past the last entry on disk, whatever it points at."""
        if self._written_end < 0:
            # One entry back, so that the last one is looked at twice.
            found = max(self.search_end() - 1, self.first_offset)
            self._written_end = self._advance(found, CHUNK_BYTES)
        else:
            self._written_end = self._advance(max(self._written_end, self.first_offset))
        return self._written_end

    def _advance(self, end: int, size: int = ENTRY_SIZE_BYTES) -> int:
        """Return the end of the entries that are on disk now, starting from an earlier end.

        A chunk is looked through as a whole, so that an unwritten page in front of written ones
        (a page that a power cut lost) does not end the queue.
        """
        while (raw := self.files.read(end * ENTRY_SIZE_BYTES, size)) and raw.strip(b"\0"):
            size = CHUNK_BYTES
            whole = raw[: len(raw) - len(raw) % ENTRY_SIZE_BYTES]
            written = written_mask(entry_array(whole)).nonzero()[0]
            if not written.size:
                break
            last = end + int(written[-1])
            if self.entry(last) != decode_entry(whole, (last - end) * ENTRY_SIZE_BYTES):
                return last  # it was being written
            end = last + 1
        return end

    def last_record_stop(self, after: int, is_there: Callable[[QueueEntry], bool]) -> int | None:
        """Return the end of the last record that an entry points at and the log has.

        None where no record that ends after the physical offset `after` is there. Entries found
        without a record, a whole file of the log may be gone, are not looked up again while the
        first of them has none: a writer would write there first.
        """
        end, first_offset, lost = self.written_end, self.first_offset, self._lost
        if lost is not None and (self.entry(lost.start) != lost.entry or is_there(lost.entry)):
            lost = None
        entries = self.backwards(first_offset if lost is None else lost.stop, end)
        if lost is not None:
            before = self.backwards(first_offset, lost.start)
            entries = chain(entries, [(lost.start, lost.entry)], before)
        found: int | None = None
        first: tuple[int, QueueEntry] | None = None
        for at, entry in entries:
            record_stop = entry.physical_offset + entry.record_size
            if record_stop <= after:
                break
            if is_there(entry):
                found = record_stop
                break
            first = at, entry
        if first is not None:
            self._lost = _LostEntries(first[0], end, first[1])
        return found


def newer_in(
    layout: StoreLayout, content_of: Callable[[str], Content] | None = None
) -> Iterator[Finding]:
    """Yield the parts of a store that only a newer broker supports."""
    root, open_files = layout.consume_queue, OpenFiles()
    content_of = content_of or small_files(layout)

    def codes_from(key: QueueKey, start: int) -> Iterator[npt.NDArray[np.int64]]:
        limits: Any = {"log_min_offset": lambda: 0, "log_end_before": lambda _: None}
        queue = PreadQueue(root / str(key), open_files, **limits)
        for _, entries in queue.chunks(max(start, queue.first_offset), queue.written_end):
            yield entries["tags_code"]

    with contextlib.closing(open_files):
        yield from newer_findings(content_of, lambda: listed_queues(root), codes_from)


_Queue = TypeVar("_Queue", bound=PreadQueue | PreadBatchQueue)


class PreadQueues(Generic[_Queue]):
    """All queues below a directory; `open_queue` opens the one of a directory there."""

    def __init__(self, root: Path, open_queue: Callable[[Path], _Queue]) -> None:
        self._root = root
        self._open_queue = open_queue
        self._queues: dict[QueueKey, _Queue] = {}

    def get(self, key: QueueKey) -> _Queue | None:
        """Return a queue that has a directory, None for any other."""
        queue = self._queues.get(key)
        if queue is not None and queue.files.min_offset >= 0 and not queue.files.is_replaced:
            return queue
        topic, queue_id = key = QueueKey._make(key)
        if queue_id < 0 or not is_directory_name(topic):
            return None
        directory = self._root / topic / str(queue_id)
        if not directory.is_dir():
            refuse_dead_link(directory.parent)
            refuse_dead_link(directory)
            self._queues.pop(key, None)
            return None
        queue = self._queues[key] = self._open_queue(directory)
        return queue

    def keys(self, topic: str | None = None) -> list[QueueKey]:
        """Return every queue, or every one of a topic, that has a directory, in order."""
        return listed_queues(self._root, topic)

    def forget(self) -> None:
        """Open every queue again at its next use."""
        self._queues.clear()

    def findings(self) -> list[FileFinding[Path]]:
        """Return what is wrong with the files of the queues opened so far."""
        return [finding for queue in self._queues.values() for finding in queue.files.findings]
