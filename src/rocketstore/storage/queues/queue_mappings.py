"""What dispatch kernels see of queues: rows of numbers, and the files that are mapped for them.

One row of `QueueRows.queues` per queue, found through a hash table by topic bytes and queue id; the
columns are named in ``rocketstore.native.row``. A memory map keeps a descriptor of its
own, so a thousand queues that are written need a thousand of them, and the many more files that are
only read now and then must not need any for long.

Law: rows are added only by the thread that dispatches, and only while no kernel runs, since adding
may replace an array. A file that a kernel writes to is released only after its address was taken
out of its row; a release never unmaps under a reader, because a map lives as long as a view of it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import numpy as np

from rocketstore.events import get_logger
from rocketstore.locks import Lock
from rocketstore.native.row import QUEUE_COLUMN_COUNT, Int64Array, QueueColumn
from rocketstore.process import most_descriptors, most_mapped_files, raise_descriptors
from rocketstore.rules.queue_numbers import QueueSlots, grown
from rocketstore.storage.files.mapped_file import MappedFile, address_of

if TYPE_CHECKING:
    import mmap


_log: Final = get_logger(__name__)

_FIRST_ROWS: Final = 64
_LEAST_FILES: Final = 64
_MOST_READER_FILES: Final = 256
"""Files that are open only because they were read; fewer where descriptors are scarce."""


class QueueRows(QueueSlots):
    """The queues of a store; `queues` has one row each (``QueueColumn``) and grows."""

    def __init__(self) -> None:
        super().__init__()
        self.queues: Int64Array = np.zeros((_FIRST_ROWS, QUEUE_COLUMN_COUNT), np.int64)
        self._count = 0

    def add(self, *, is_extended: bool = False) -> int:
        """Return a row for a queue that has none; no record leads there before `add_name`."""
        row, self._count = self._count, self._count + 1
        self.queues = grown(self.queues, self._count)
        self.queues[row, QueueColumn.IS_EXTENDED] = is_extended
        return row

    def value(self, row: int, column: QueueColumn) -> int:
        """Return one number; safe from any thread."""
        return int(self.queues[row, column])

    def set(self, row: int, column: QueueColumn, value: int) -> None:
        """Change one number; only for the dispatching thread."""
        self.queues[row, column] = value


class QueueMappings:
    """The open files of all queues of a store, and the rows that lead kernels to them.

    At most `writer_limit` files are mapped for writing at a time; None takes half of the process's
    descriptors, and asks the system for more, up to the hard limit, when that is not enough, but no
    more than half of the maps that Linux gives a process.
    `files_lock` is held while files of a queue are made or deleted: dispatch and retention do both.
    """

    def __init__(self, *, writer_limit: int | None = None) -> None:
        self.rows = QueueRows()
        self.files_lock = Lock()
        self._may_raise = writer_limit is None
        self._writer_limit = _half_of_all() if writer_limit is None else writer_limit
        self._reader_limit = min(_MOST_READER_FILES, max(most_descriptors() // 8, 8))
        self._writers: dict[int, MappedFile] = {}
        self._written: set[MappedFile] = set()
        self._readers: OrderedDict[MappedFile, None] = OrderedDict()
        self._lock = Lock()

    def admit(self, file: MappedFile) -> mmap.mmap:
        """Map a file for reading; the one read longest ago may be unmapped."""
        mapping = file.mapping
        file.close_descriptor()
        self._note_reader(file)
        return mapping

    def read(self, file: MappedFile, position: int, size: int) -> bytes:
        """Return up to `size` bytes of a file without mapping it."""
        raw = file.read_at(position, size)
        self._note_reader(file)
        return raw

    def _note_reader(self, file: MappedFile) -> None:
        with self._lock:
            self._readers[file] = None
            self._readers.move_to_end(file)
            surplus = range(len(self._readers) - self._reader_limit)
            oldest = [self._readers.popitem(last=False)[0] for _ in surplus]
            for reader in {*oldest} - self._written:
                reader.drop()

    def admit_writer(self, row: int, file: MappedFile) -> None:
        """Map a file and let the kernels write to it; only for the dispatching thread.

        The file that was mapped longest ago may be taken away from its queue, which then asks
        again with its next entry.
        """
        if self.is_written(file) and self.rows.value(row, QueueColumn.FILE_STOP):  # set at last
            return
        address = address_of(file.array)
        file.close_descriptor()
        with self._lock:
            self._dismiss(row)
            file.write_single_pages(0)  # a new queue's first entry would fetch megabytes of zeros
            self._readers.pop(file, None)
            self._writers[row] = file
            self._written.add(file)
            self.rows.set(row, QueueColumn.ADDRESS, address)
            self.rows.set(row, QueueColumn.FILE_START, file.base)
            self.rows.set(row, QueueColumn.FILE_STOP, file.base + file.size)
            if len(self._writers) > self._writer_limit and not self._raise_limit():
                oldest_row, oldest = next(iter(self._writers.items()))
                self._dismiss(oldest_row)
                del self._readers[oldest]
                oldest.drop()

    def dismiss_writer(self, row: int) -> None:
        """Take a queue's file away from the kernels; only for the dispatching thread."""
        with self._lock:
            self._dismiss(row)

    def _dismiss(self, row: int) -> None:
        for column in (QueueColumn.FILE_STOP, QueueColumn.FILE_START, QueueColumn.ADDRESS):
            self.rows.set(row, column, 0)
        if (file := self._writers.get(row)) is not None:
            self._written.discard(file)
            file.read_ahead()
            self._readers[file] = None  # still mapped, and counted, until it is let go
            del self._writers[row]  # after an interrupt before this, all is done again

    def is_written(self, file: MappedFile) -> bool:
        """Whether the kernels hold the address of a file."""
        return file in self._written

    def forget(self, file: MappedFile) -> None:
        """Let go of a deleted file."""
        with self._lock:
            self._readers.pop(file, None)
        file.drop()

    def _raise_limit(self) -> bool:
        """Ask the system for more descriptors."""
        if not self._may_raise:
            return False
        soft = most_descriptors()
        raise_descriptors(4 * soft)
        if (limit := _half_of_all()) > self._writer_limit:
            self._writer_limit = limit
            return True
        self._may_raise = False
        _log.warning(
            "descriptors.short",
            soft_limit=soft,
            mapped_queues=self._writer_limit,
            reason="more queues are written than files can be open and mapped",
        )
        return False


def _half_of_all() -> int:
    return max(most_mapped_files() // 2, _LEAST_FILES)
