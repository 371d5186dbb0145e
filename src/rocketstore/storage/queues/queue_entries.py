"""Reading one ConsumeQueue: queue offset -> place of the message in the CommitLog.

Law: reading never creates a file or a directory, and never keeps more files mapped than the table
allows. The end of the queue is published after the entry's bytes, so no reader sees half an entry.

How derived: ConsumeQueue of 4.9 (spec F6, B12, B16.4) without K-C2, K-C3 and K-C5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketstore.format.queue_entry import (
    ENTRY_SIZE_BYTES,
    ENTRY_STRUCT,
    QueueEntry,
    entry_array,
)
from rocketstore.native.dispatch_state import QueueColumn
from rocketstore.storage.queues.queue_search import CHUNK_ENTRIES, QueueSearch, message_places

if TYPE_CHECKING:
    from collections.abc import Callable
    from mmap import mmap

    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.queues.queue_mappings import QueueMappings
    from rocketstore.storage.queues.queue_rows import QueueRows
    from rocketstore.units import QueueKey

_NEXT: Final = int(QueueColumn.NEXT)


class QueueEntries(QueueSearch):
    """The entries of one queue, as readers see them.

    Parameters
    ----------
    key
        Topic and queue id.
    files
        Its files; they need not exist.
    rows, row
        Where the kernels keep this queue's numbers.
    mappings
        Which files of all queues are mapped.
    log_min_offset
        Returns the CommitLog's minimum offset.
    """

    def __init__(
        self,
        key: QueueKey,
        files: MappedFileQueue,
        *,
        rows: QueueRows,
        row: int,
        mappings: QueueMappings,
        log_min_offset: Callable[[], int],
    ) -> None:
        self.key = key
        self.files: MappedFileQueue = files
        self.row = row
        self._rows = rows
        self._mappings = mappings
        self._log_min_offset = log_min_offset

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key}, max_offset={self.max_offset})"

    # --- reading --------------------------------------------------------------------------------

    @property
    def next_position(self) -> int:
        """Byte position after the last entry."""
        # Asked at every get: item() of plain numbers takes a third of an indexing by an enum.
        return self._rows.queues.item(self.row, _NEXT)

    @property
    def max_offset(self) -> int:
        """One past the last entry; the queue offset of the next message."""
        return self._rows.queues.item(self.row, _NEXT) // ENTRY_SIZE_BYTES

    @property
    def first_offset(self) -> int:
        """Queue offset of the first entry on disk, expired and filler entries included."""
        return max(self.files.min_offset, 0) // ENTRY_SIZE_BYTES

    @property
    def entries_per_file(self) -> int:
        """How many entries one file holds."""
        return self.files.file_size // ENTRY_SIZE_BYTES

    @property
    def max_physical_offset(self) -> int:
        """End of the last record that has an entry; 0 when there is none. Fillers do not count."""
        return self._rows.value(self.row, QueueColumn.MAX_PHYSICAL)

    @property
    def min_offset(self) -> int:
        """First queue offset whose record the CommitLog still has; the maximum when none has.

        Notes
        -----
        With the case that no record is left handled (K-C3). Source: ConsumeQueue.correctMinOffset.
        """
        log_min = self._log_min_offset()
        hint = self._min_hint
        if log_min == self._min_for and hint < self.max_offset:
            files = self.files.files  # asked at every get, so without `first_offset`
            if files and files[0].base <= hint * ENTRY_SIZE_BYTES:
                return hint
        return self._search_min(log_min, self.max_offset)

    def entry(self, queue_offset: int) -> QueueEntry | None:
        """Return one entry as stored, fillers too; None where there is none."""
        at = queue_offset * ENTRY_SIZE_BYTES
        if not 0 <= at < self.next_position:
            return None
        file = self.files.find(at)
        if file is None:
            return None
        try:
            if file.is_mapped:
                return QueueEntry._make(ENTRY_STRUCT.unpack_from(file.mapping, at - file.base))
            raw = self._mappings.read(file, at - file.base, ENTRY_SIZE_BYTES)
        except FileNotFoundError:  # retention was faster
            return None
        return QueueEntry._make(ENTRY_STRUCT.unpack(raw)) if len(raw) == ENTRY_SIZE_BYTES else None

    def entry_bytes(self, start: int, limit: int) -> memoryview | None:
        """Return up to `limit` entries from queue offset `start`, within one file; None for none.

        Source: ConsumeQueue.getIndexBuffer.
        """
        at = start * ENTRY_SIZE_BYTES
        stop = self.next_position
        if not 0 <= at < stop or limit <= 0:
            return None
        file = self.files.find(at)
        if file is None:
            return None
        stop = min(at + limit * ENTRY_SIZE_BYTES, file.base + file.size, stop)
        try:
            mapping = file.mapping if file.is_mapped else self._mappings.admit(file)
        except FileNotFoundError:  # retention was faster
            return None
        return memoryview(mapping)[at - file.base : stop - file.base]

    def entries(self, start: int, limit: int) -> EntryArray:
        """Return up to `limit` entries from queue offset `start`, within one file, as an array."""
        return entry_array(self.entry_bytes(start, limit) or b"")

    def window(self, start: int, _limit: int) -> tuple[mmap, int, int, bool] | None:
        """Return the mapping of the file that has the entry `start`; None without."""
        file = self.files.find(start * ENTRY_SIZE_BYTES) if start >= 0 else None
        if file is None:
            return None
        try:
            mapping = file.mapping if file.is_mapped else self._mappings.admit(file)
        except FileNotFoundError:  # retention was faster
            return None
        first = file.base // ENTRY_SIZE_BYTES
        return mapping, first, first + file.size // ENTRY_SIZE_BYTES, True

    def last_message(self, before: int | None = None) -> tuple[int, QueueEntry] | None:
        """Return queue offset and entry of the last message (before an offset), without fillers."""
        end = self.max_offset if before is None else before
        first = self.first_offset
        while end > first:
            entry = self.entry(end - 1)
            if entry is not None and entry.is_message:
                return end - 1, entry
            # More than one filler: a lost stretch of the log, or a queue that starts late.
            start = max(end - CHUNK_ENTRIES, first)
            file_start = (end - 1) * ENTRY_SIZE_BYTES // self.files.file_size * self.files.file_size
            start = max(start, file_start // ENTRY_SIZE_BYTES)
            found = message_places(self.entries(start, end - start))
            if found:
                at = start + found[-1]
                entry = self.entry(at)
                return (at, entry) if entry is not None else None
            end = start
        return None
