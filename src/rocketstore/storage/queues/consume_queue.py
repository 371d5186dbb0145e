"""One ConsumeQueue that is written: entries put, gaps filled, ends cut, files made durable.

Entry n stands at byte ``20 n`` of the queue's files, so a queue offset never moves: an entry is
written where its record says it belongs, a gap before it is filled with fillers (K-C1), and an
entry that is there already stays. The dispatch kernel writes the common case straight into the
mapped file; this class handles cases that need a file or a decision.

Law: only the dispatching thread writes entries, and recovery before that thread runs.

How derived: ConsumeQueue of 4.9 (spec F6, B12, B16.1, B16.5) without K-C1 and K-C4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocketstore.format.queue_entry import (
    ENTRY_SIZE_BYTES,
    ENTRY_STRUCT,
    FILLER_BYTES,
    KEPT_PLACE,
    KEPT_PLACE_BYTES,
    MAX_QUEUE_OFFSET,
    QueueEntry,
    entry_array,
    equal_mask,
)
from rocketstore.native.row import PutEntry, QueueColumn
from rocketstore.scan import kernels
from rocketstore.scan.queue_search import CHUNK_BYTES, QueueSearch, padded
from rocketstore.units import QueueKey, Window

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.storage.files.mapped_file import MappedFile
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.queues.queue_extension import QueueExtension
    from rocketstore.storage.queues.queue_mappings import QueueMappings

_NEXT: Final = int(QueueColumn.NEXT)


@dataclass(eq=False)
class ConsumeQueue(QueueSearch):
    """The entries of one queue, to be read and written; its files need not exist.

    `row` is where the kernels keep its numbers, `mappings` has the rows and the mapped files of all
    queues, `log_min_offset` returns the CommitLog's minimum offset.
    """

    key: QueueKey
    files: MappedFileQueue
    row: int
    _mappings: QueueMappings
    _log_min_offset: Callable[[], int]
    extension: QueueExtension | None = None

    def __post_init__(self) -> None:
        self._rows = self._mappings.rows
        self._flushed_changes = 0
        self._flushed_next = 0
        self._kept_stop = 0

    def __repr__(self) -> str:
        return f"ConsumeQueue({self.key}, max_offset={self.max_offset})"

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
    def max_physical_offset(self) -> int:
        """End of the last record that has an entry; 0 when there is none. Fillers do not count."""
        return self._rows.value(self.row, QueueColumn.MAX_PHYSICAL)

    def entry(self, queue_offset: int) -> QueueEntry | None:
        """Return one entry as stored, fillers too; None where there is none."""
        at = queue_offset * ENTRY_SIZE_BYTES
        file = self.files.find(at) if 0 <= at < self.next_position else None
        if file is None:
            return None
        try:
            if file.is_mapped:
                return QueueEntry._make(ENTRY_STRUCT.unpack_from(file.mapping, at - file.base))
            raw = self._mappings.read(file, at - file.base, ENTRY_SIZE_BYTES)
        except FileNotFoundError:  # retention was faster
            return None
        return QueueEntry._make(ENTRY_STRUCT.unpack(raw)) if len(raw) == ENTRY_SIZE_BYTES else None

    def bytes_at(self, start: int, limit: int) -> Window | None:  # noqa: ARG002 - all of its file
        """Return the mapping of the file that has the entry `start`; see `QueueSearch.bytes_at`."""
        file = self.files.find(start * ENTRY_SIZE_BYTES)
        if file is None:
            return None
        try:
            mapping = file.mapping if file.is_mapped else self._mappings.admit(file)
        except FileNotFoundError:  # retention was faster
            return None
        return Window(mapping, file.base, file.size - file.size % ENTRY_SIZE_BYTES, file)

    def last_message(self, before: int | None = None) -> tuple[int, QueueEntry] | None:
        """Return queue offset and entry of the last message (before an offset), without fillers."""
        stop = self.max_offset if before is None else before
        return next(self.backwards(self.first_offset, stop), None)

    # --- loading --------------------------------------------------------------------------------

    def find_end(self) -> None:
        """Take the end of the entries that are on disk as the end of the queue.

        Entries stand without a gap from the first one of a file on. Recovery repairs other cases,
        which a crash left. Source: ConsumeQueue.recover.
        """
        self._rows.set(self.row, QueueColumn.NEXT, MAX_QUEUE_OFFSET * ENTRY_SIZE_BYTES)
        position = self.search_end() * ENTRY_SIZE_BYTES
        self._flushed_next = position
        self._rows.set(self.row, QueueColumn.NEXT, position)
        self._set_max_physical()
        self._kept_stop = self._find_kept_stop(position)
        for file in self.files.files:
            file.set_end(min(max(position - file.base, 0), file.size))
            file.close_descriptor()

    @property
    def given_stop(self) -> int:
        """One past the last queue offset that was given out, whether its record is there or not."""
        return max(self.max_offset, self._kept_stop // ENTRY_SIZE_BYTES)

    def _find_kept_stop(self, position: int) -> int:
        """Return where the kept places after the last entry end."""
        size = ENTRY_SIZE_BYTES  # most queues have none, as one entry tells
        while (file := self.files.find(position)) is not None:
            raw = self._mappings.read(file, position - file.base, size)
            kept = equal_mask(entry_array(raw), KEPT_PLACE)
            count = len(kept) if kept.all() else int(kept.argmin())
            position += count * ENTRY_SIZE_BYTES
            if count < len(kept) or not count:
                break
            size = CHUNK_BYTES
        return position

    def given_out(self, start: int) -> EntryArray:
        """Return all places from queue offset `start` on, up to `given_stop`, as stored."""
        return padded(self.files, start, max(self.given_stop - start, 0))

    def _set_max_physical(self) -> None:
        last = self.last_message()
        end = 0 if last is None else last[1].physical_offset + last[1].record_size
        self._rows.set(self.row, QueueColumn.MAX_PHYSICAL, end)

    # --- writing (the dispatching thread, or recovery before it runs) ----------------------------

    def map_for_write(self, position: int) -> MappedFile | None:
        """Give the kernels the file that holds byte `position`, making it when it is the next one.

        None when that file is neither there nor the next to be made.
        """
        with self._mappings.files_lock:  # no file is deleted between finding it and handing it over
            file = self.files.find(position)
            if file is None:
                base, last = position - position % self.files.file_size, self.files.last()
                if last is not None and base != last.base + last.size:
                    return None
                file = self.files.create(base)
            # A file that Java made is sparse: its blocks must exist before a kernel writes.
            file.reserve(file.size)
            self._mappings.admit_writer(self.row, file)
        return file

    def fill_to(self, position: int) -> bool:
        """Fill the queue with fillers up to byte `position` (K-C1).

        A queue without files begins in the file of `position`, as in 4.9; nothing before that file
        is made (F6). False when a file is missing on the way, which only recovery can make.
        """
        if not self.files.files and (file := self.map_for_write(position)):
            self._flushed_next = file.base
            self._rows.set(self.row, QueueColumn.NEXT, file.base)
        while (at := self.next_position) < position:
            file = self.map_for_write(at)
            if file is None:
                return False
            stop = min(position, file.base + file.size)
            count = (stop - at) // ENTRY_SIZE_BYTES
            file.write_bytes(at - file.base, FILLER_BYTES * count)
            self._rows.queues[self.row, QueueColumn.CHANGES] += count
            self._rows.set(self.row, QueueColumn.NEXT, stop)
        self._min_for = -1  # a queue without messages may begin with fillers now
        return True

    def put(self, queue_offset: int, entry: QueueEntry, *, overwrite: bool = False) -> PutEntry:
        """Put one entry where it belongs, as dispatch does.

        A gap before it is filled with fillers; `overwrite` replaces another message's entry.
        """
        position = queue_offset * ENTRY_SIZE_BYTES
        is_reached = position <= self.next_position or self.fill_to(position)
        if not is_reached or self.map_for_write(position) is None:
            return PutEntry.REFUSED
        row = self._rows.queues[self.row]
        return PutEntry(kernels.put_mapped(row, position, *entry, overwrite))

    # --- cutting --------------------------------------------------------------------------------

    def truncate(
        self, max_offset: int, copy: Callable[[Path, int, int], object], *, now_ms: int,
        keep_to: int = 0,
    ) -> bool:  # fmt: skip
        """Cut the queue before `max_offset`; return whether a byte or a file changed.

        What follows becomes zeros, after `copy` got each range of a file that does; but up to the
        queue offset `keep_to` numbers were given out: their places are kept. 4.9 only moves
        positions, so its next start takes the old entries for new ones (K-R5). Source:
        ConsumeQueue.truncateDirtyLogicFiles, MappedFileQueue.truncateDirtyFiles.
        """
        position = min(max_offset * ENTRY_SIZE_BYTES, self.next_position)
        kept_stop = max(position, keep_to * ENTRY_SIZE_BYTES)
        self._mappings.dismiss_writer(self.row)
        is_entry = ~equal_mask(self.given_out(position // ENTRY_SIZE_BYTES), KEPT_PLACE)
        places = int(is_entry.argmax()) if is_entry.any() else len(is_entry)
        start = position + places * ENTRY_SIZE_BYTES
        for gone in self.files.ending_after(start):
            copy(gone.path, max(start - gone.base, 0), gone.size)
        # Kept places first: a crash in between must find either them or the old entries.
        changed = self._keep_places(position, kept_stop)
        with self._mappings.files_lock:
            changed |= self.files.truncate_after(kept_stop, now_ms=now_ms)
            # 4.9 counts the first place of a last file without entries, at each start.
            last, only = self.files.last(), len(self.files.files) == 1
            if last is not None and last.base == kept_stop and not (only and kept_stop):
                self.files.remove([last], now_ms=now_ms)
                changed = True
        file = self.files.find(kept_stop)
        if file is not None:
            changed |= file.clear_tail(kept_stop - file.base)
            file.close_descriptor()
        for file in self.files.files:
            if position < file.base + file.size and file.base <= kept_stop:
                file.set_end(max(position - file.base, 0))
        self._kept_stop = kept_stop
        self._rows.set(self.row, QueueColumn.NEXT, position)
        self._flushed_next = position
        self._set_max_physical()
        return changed

    def take_away(self, position: int, take_file: Callable[[Path], None], *, now_ms: int) -> None:
        """Cut the queue before the file that begins at byte `position`.

        `take_file` gets the path of each file from there on, the last one first.
        """
        self._mappings.dismiss_writer(self.row)
        taken = [file for file in self.files.files if file.base >= position]
        for file in reversed(taken):
            self._mappings.forget(file)
            take_file(file.path)
        self.files.remove(taken, now_ms=now_ms)
        self.find_end()

    def _keep_places(self, position: int, stop: int) -> bool:
        """Write kept places over bytes [position, stop); return whether a byte changed."""
        changed = False
        # Backwards: written entries never follow a kept place.
        for file in reversed(self.files.files):
            first, past = max(position, file.base), min(stop, file.base + file.size)
            if first >= past:
                continue
            content = KEPT_PLACE_BYTES * ((past - first) // ENTRY_SIZE_BYTES)
            if self._mappings.read(file, first - file.base, past - first) != content:
                file.write_bytes(first - file.base, content)
                file.sync()
                changed = True
            file.close_descriptor()
        return changed

    def delete_expired(self, log_min_offset: int, **when: int) -> tuple[list[Path], bool]:
        """Delete leading files whose every record has expired, never the last file (K-C4).

        Returns the deleted files, and false when a reader kept one that should be deleted too.
        Source: ConsumeQueue.deleteExpiredFile, MappedFileQueue.deleteExpiredFileByOffset.
        """

        def may_go(stop: int) -> bool:
            # Kernels hold the address of the file that is written: it goes once they have another.
            is_written = self._mappings.is_written(self.files.files[0])
            last = self.last_message(stop // ENTRY_SIZE_BYTES)
            is_expired = last is None or last[1].physical_offset < log_min_offset
            return is_expired and stop <= self.next_position and not is_written

        before = self.files.files
        try:
            with self._mappings.files_lock:
                return self.files.remove_leading(may_go, **when)
        finally:  # also those that were deleted before an error
            for file in {*before} - {*self.files.files}:
                self._mappings.forget(file)

    # --- durability -----------------------------------------------------------------------------

    def flush(self, least_pages: int = 0, names: list[MappedFile] | None = None) -> bool:
        """Make entries durable; return whether everything written before the call is.

        Files with fewer than `least_pages` new whole pages are left for later; 0 flushes every
        byte. For `names` see `MappedFile.sync`.
        """
        changes = self._rows.value(self.row, QueueColumn.CHANGES)
        following = self.next_position
        appended = (following - self._flushed_next) // ENTRY_SIZE_BYTES
        # Entries before the end were written too, and it is unknown in which files.
        is_rewritten = changes - self._flushed_changes > appended
        start = 0 if is_rewritten else self._flushed_next
        files = self.files.ending_after(start)
        for file in files:
            file.write_position = min(max(following - file.base, 0), file.size)
            if is_rewritten:
                file.flushed_position = 0
            file.flush(0 if is_rewritten else least_pages, names)
            file.close_descriptor()
        if any(file.flushed_position < file.write_position for file in files):
            return False
        self._flushed_changes, self._flushed_next = changes, following
        return True

    def count_as_unflushed(self, queue_offset: int) -> None:
        """Let the next flush cover all entries from `queue_offset` on, written by us or before."""
        for file in self.files.files:
            if file.base + file.size > queue_offset * ENTRY_SIZE_BYTES:
                file.flushed_position = 0
                file.has_durable_name = False
        self._rows.queues[self.row, QueueColumn.CHANGES] += 1

    def drop(self) -> None:
        """Let go of all files."""
        self._mappings.dismiss_writer(self.row)
        self.files.drop()
