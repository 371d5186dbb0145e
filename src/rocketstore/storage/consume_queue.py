"""One ConsumeQueue: queue offset -> place of the message in the CommitLog.

Entry n stands at byte ``20 n`` of the queue's files, so a queue offset never moves: an entry is
written where its record says it belongs, a gap before it is filled with fillers (K-C1), and what
stands there already stays. The dispatch kernel writes the common case straight into the mapped
file; this class does what needs a file or a decision.

Law: reading never creates a file or a directory, and never maps a file for longer than the table
allows. The end of the queue is published after the entry's bytes, so no reader sees half an entry.

How derived: ConsumeQueue of 4.9 (spec F6, B12, B16.1, B16.4, B16.5) without K-C1, K-C2, K-C3, K-C5.
"""

from __future__ import annotations

import contextlib
import os
import threading
from enum import Enum
from typing import TYPE_CHECKING, Final

from rocketstore.format.queue_entry import (
    ENTRY_SIZE_BYTES,
    ENTRY_STRUCT,
    FILLER_BYTES,
    QueueEntry,
    encode_entry,
    entry_array,
    filler_mask,
    is_written,
    written_mask,
)
from rocketstore.scan.dispatch_state import QueueColumn
from rocketstore.storage.read_sources import MappedWindow
from rocketstore.units import KiB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.storage.mapped_file import MappedFile
    from rocketstore.storage.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.queue_mappings import QueueMappings
    from rocketstore.storage.queue_rows import QueueRows
    from rocketstore.units import QueueKey

_CHUNK_BYTES: Final = 64 * KiB


class PutEntry(Enum):
    """What became of an entry that was put."""

    WRITTEN = "written"
    REPEATED = "repeated"
    """The same entry stands there already."""
    REFUSED = "refused"
    """Another entry stands there already, or the place cannot be reached."""


class ConsumeQueue:
    """The entries of one queue.

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

    def __init__(  # noqa: PLR0913 - one argument per part of the store it touches
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
        self.files = files
        self.row = row
        self._rows = rows
        self._mappings = mappings
        self._log_min_offset = log_min_offset
        self._min_for = -1
        self._min_hint = 0
        self._unflushed: tuple[MappedFile, ...] = ()
        self._flushed_changes = 0
        self._flushed_next = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ConsumeQueue({self.key}, max_offset={self.max_offset})"

    # --- reading --------------------------------------------------------------------------------

    @property
    def next_position(self) -> int:
        """Byte position behind the last entry."""
        return int(self._rows.queues[self.row, QueueColumn.NEXT])

    @property
    def max_offset(self) -> int:
        """One past the last entry; the queue offset of the next message."""
        return self.next_position // ENTRY_SIZE_BYTES

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
        Searched by bisection, because entries point at rising offsets (K-C3); fillers count with
        what follows them (K-C2). Source: ConsumeQueue.correctMinOffset.
        """
        log_min = self._log_min_offset()
        hint = self._min_hint
        if log_min == self._min_for and self.first_offset <= hint < self.max_offset:
            return hint
        end = self.max_offset
        low, high = self.first_offset, end
        if log_min >= self._min_for:
            low = min(max(low, hint), end)
        while low < high:
            middle = (low + high) // 2
            at, entry = self._next_message(middle, high)
            if entry is not None and entry.physical_offset < log_min:
                low = at + 1
            else:
                high = middle
        found = self._next_message(low, end)[0]
        self._min_hint, self._min_for = found, log_min
        return found

    def entry(self, queue_offset: int) -> QueueEntry | None:
        """Return one entry as stored, fillers too; None where there is none."""
        at = queue_offset * ENTRY_SIZE_BYTES
        if not 0 <= at < self.next_position:
            return None
        file = self.files.find(at)
        if file is None:
            return None
        if file.is_mapped:
            values = ENTRY_STRUCT.unpack_from(file.mapping, at - file.base)
        else:
            raw = self._mappings.read(file, at - file.base, ENTRY_SIZE_BYTES)
            if len(raw) < ENTRY_SIZE_BYTES:
                return None
            values = ENTRY_STRUCT.unpack(raw)
        return QueueEntry._make(values)

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
        mapping = file.mapping if file.is_mapped else self._mappings.admit(file)
        return memoryview(mapping)[at - file.base : stop - file.base]

    def entries(self, start: int, limit: int) -> EntryArray:
        """Return up to `limit` entries from queue offset `start`, within one file, as an array."""
        return entry_array(self.entry_bytes(start, limit) or b"")

    def window(self, position: int) -> MappedWindow | None:
        """Return the map that holds byte `position` of the queue, or None."""
        file = self.files.find(position)
        if file is None:
            return None
        if not file.is_mapped:
            self._mappings.admit(file)
        readable = min(max(self.next_position - file.base, 0), file.size)
        return MappedWindow(file.array, file.base, readable)

    def last_message(self) -> tuple[int, QueueEntry] | None:
        """Return queue offset and entry of the last message, fillers passed over."""
        end = self.max_offset
        first = self.first_offset
        per_chunk = _CHUNK_BYTES // ENTRY_SIZE_BYTES
        while end > first:
            entry = self.entry(end - 1)
            if entry is not None and entry.is_message:
                return end - 1, entry
            # More than one filler: a lost stretch of the log, or a queue that starts late.
            start = max(end - per_chunk, first)
            file_start = (end - 1) * ENTRY_SIZE_BYTES // self.files.file_size * self.files.file_size
            start = max(start, file_start // ENTRY_SIZE_BYTES)
            found = _message_places(self.entries(start, end - start))
            if found:
                at = start + found[-1]
                entry = self.entry(at)
                return (at, entry) if entry is not None else None
            end = start
        return None

    def _next_message(self, start: int, stop: int) -> tuple[int, QueueEntry | None]:
        """Return the first entry in [start, stop) that is a message; (stop, None) without one."""
        at = start
        while at < stop:
            entry = self.entry(at)
            if entry is None:
                following = self._next_file_offset(at)
                if following is None:
                    break
                at = following
                continue
            if entry.is_message:
                return at, entry
            entries = self.entries(at, min(stop - at, _CHUNK_BYTES // ENTRY_SIZE_BYTES))
            found = _message_places(entries)
            if found:
                return at + found[0], self.entry(at + found[0])
            at += max(len(entries), 1)
        return stop, None

    def _next_file_offset(self, queue_offset: int) -> int | None:
        """Return where the next file behind a missing one begins."""
        at = queue_offset * ENTRY_SIZE_BYTES
        for file in self.files.files:
            if file.base > at:
                return file.base // ENTRY_SIZE_BYTES
        return None

    # --- loading --------------------------------------------------------------------------------

    def find_end(self) -> None:
        """Take the end of the entries that are on disk as the end of the queue.

        Notes
        -----
        Bisection: entries stand without a gap from the first one of a file on. Recovery takes care
        of what a crash left otherwise. Source: ConsumeQueue.recover.
        """
        position = max(self.files.min_offset, 0)
        for file in reversed(self.files.files):
            count = self._count_entries(file)
            if count:
                position = file.base + count * ENTRY_SIZE_BYTES
                break
        for file in self.files.files:
            file.set_end(min(max(position - file.base, 0), file.size))
        self._flushed_next = position
        self._rows.set(self.row, QueueColumn.NEXT, position)
        self._set_max_physical()
        for file in self.files.files:
            file.close_descriptor()

    def _count_entries(self, file: MappedFile) -> int:
        low, high = 0, file.size // ENTRY_SIZE_BYTES
        while low < high:
            middle = (low + high) // 2
            raw = self._mappings.read(file, middle * ENTRY_SIZE_BYTES, ENTRY_SIZE_BYTES)
            if len(raw) == ENTRY_SIZE_BYTES and is_written(*ENTRY_STRUCT.unpack(raw)[:2]):
                low = middle + 1
            else:
                high = middle
        return low

    def _set_max_physical(self) -> None:
        last = self.last_message()
        end = 0 if last is None else last[1].physical_offset + last[1].record_size
        self._rows.set(self.row, QueueColumn.MAX_PHYSICAL, end)

    # --- writing (the dispatching thread, or recovery before it runs) ----------------------------

    def map_for_write(self, position: int) -> bool:
        """Give the kernels the file that holds byte `position`, making it when it is the next one.

        Returns
        -------
        bool
            False when that file is neither there nor the next to be made.

        Raises
        ------
        StoreFullError
            There is no room for a new file.
        """
        file = self.files.find(position)
        if file is None:
            file = self._create(position)
            if file is None:
                return False
        # A file that Java made is sparse: its blocks must exist before a kernel writes.
        file.reserve(file.size)
        self._mappings.admit_writer(self.row, file)
        with self._lock:
            if file not in self._unflushed:
                self._unflushed = (*self._unflushed, file)
        rows = self._rows
        rows.set(self.row, QueueColumn.ADDRESS, int(file.array.ctypes.data))
        rows.set(self.row, QueueColumn.FILE_START, file.base)
        rows.set(self.row, QueueColumn.FILE_STOP, file.base + file.size)
        return True

    def _create(self, position: int) -> MappedFile | None:
        file_size = self.files.file_size
        base = position - position % file_size
        with self._mappings.files_lock:
            last = self.files.last()
            if last is not None and base != last.base + file_size:
                return None
            file = self.files.create(base, sync=False)
        if last is None and position > base:
            # Spec F6: the first file of a queue is filled up to its first entry.
            file.write_bytes(0, FILLER_BYTES * ((position - base) // ENTRY_SIZE_BYTES))
        return file

    def fill_to(self, position: int) -> None:
        """Fill the queue with fillers up to byte `position` (K-C1).

        A queue without files begins in the file of `position`, as in 4.9; nothing before that file
        is made.
        """
        rows = self._rows
        if not self.files.files:
            self.map_for_write(position)
            self._flushed_next = position - position % self.files.file_size
            self._note_changes((position - self._flushed_next) // ENTRY_SIZE_BYTES)
            rows.set(self.row, QueueColumn.NEXT, position)
            self._min_for = -1
            return
        at = self.next_position
        while at < position:
            if not self.map_for_write(at):
                raise ValueError(f"{self.key}: no file for position {at}")
            file = self.files.find(at)
            assert file is not None
            stop = min(position, file.base + file.size)
            count = (stop - at) // ENTRY_SIZE_BYTES
            file.write_bytes(at - file.base, FILLER_BYTES * count)
            self._note_changes(count)
            rows.set(self.row, QueueColumn.NEXT, stop)
            at = stop

    def _note_changes(self, count: int) -> None:
        self._rows.queues[self.row, QueueColumn.CHANGES] += count

    def put(self, queue_offset: int, entry: QueueEntry, *, overwrite: bool = False) -> PutEntry:
        """Put one entry where it belongs, as the kernel does.

        Parameters
        ----------
        queue_offset
            Its number in the queue; a gap before it is filled with fillers.
        entry
            What to write.
        overwrite
            Replace another message's entry that stands there.
        """
        position = queue_offset * ENTRY_SIZE_BYTES
        following = self.next_position
        if position > following:
            self.fill_to(position)
            following = position
        elif position < following:
            old = self.entry(queue_offset)
            if old is None and self.files.find(position) is None:
                return PutEntry.REFUSED
            if old == entry:
                return PutEntry.REPEATED
            if old is not None and old.is_message and not overwrite:
                return PutEntry.REFUSED
        if not self.map_for_write(position):
            return PutEntry.REFUSED
        file = self.files.find(position)
        assert file is not None
        file.write_bytes(position - file.base, encode_entry(*entry))
        rows = self._rows
        self._note_changes(1)
        stop = entry.physical_offset + entry.record_size
        rows.set(self.row, QueueColumn.MAX_PHYSICAL, max(self.max_physical_offset, stop))
        if position == following:
            rows.set(self.row, QueueColumn.NEXT, position + ENTRY_SIZE_BYTES)
        return PutEntry.WRITTEN

    def unmap_writer(self) -> None:
        """Take the file away from the kernels; the next entry asks for it again."""
        rows = self._rows
        for column in (QueueColumn.FILE_STOP, QueueColumn.FILE_START, QueueColumn.ADDRESS):
            rows.set(self.row, column, 0)

    # --- cutting --------------------------------------------------------------------------------

    def truncate(self, max_offset: int, *, now_ms: int) -> bool:
        """Let the queue end before `max_offset`; what stands behind becomes zeros.

        Returns
        -------
        bool
            Whether a byte or a file changed.

        Notes
        -----
        4.9 only moves positions, so its next start takes the old entries for new ones (K-R5).
        Source: ConsumeQueue.truncateDirtyLogicFiles, MappedFileQueue.truncateDirtyFiles.
        """
        position = min(max_offset * ENTRY_SIZE_BYTES, self.next_position)
        self.unmap_writer()
        with self._mappings.files_lock:
            behind = self.files.truncate_after(position, now_ms=now_ms)
        file = self.files.find(position)
        changed = bool(behind)
        if file is not None:
            start = position - file.base
            if _has_data(file, start):
                file.zero_tail(start)
                changed = True
            file.close_descriptor()
        self._rows.set(self.row, QueueColumn.NEXT, position)
        self._flushed_next = position
        with self._lock:
            self._unflushed = tuple(f for f in self._unflushed if f in self.files.files)
        self._set_max_physical()
        return changed

    def truncate_to_physical(self, physical_limit: int, *, now_ms: int) -> bool:
        """Drop the entries at the end whose record does not end before `physical_limit`.

        Also cleans the file behind the last entry. Returns whether anything changed.
        """
        low, high = self.first_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            at, entry = self._next_message(middle, high)
            if entry is None or entry.physical_offset + entry.record_size > physical_limit:
                high = middle
            else:
                low = at + 1
        return self.truncate(low, now_ms=now_ms)

    def delete_expired(self, log_min_offset: int, *, force_after_ms: int, now_ms: int) -> int:
        """Delete leading files whose every record has expired, never the last file (K-C4).

        Returns
        -------
        int
            How many files went.

        Notes
        -----
        Source: ConsumeQueue.deleteExpiredFile, MappedFileQueue.deleteExpiredFileByOffset.
        """
        count = 0
        while len(self.files.files) > 1:
            first, second = self.files.files[:2]
            if second.base > self.next_position:
                break
            if first.is_available and self._may_be_needed(first, log_min_offset):
                break
            with self._mappings.files_lock:
                gone = self.files.remove_first(force_after_ms=force_after_ms, now_ms=now_ms)
            if gone is None:
                break
            self._mappings.forget(first)
            count += 1
        return count

    def _may_be_needed(self, file: MappedFile, log_min_offset: int) -> bool:
        """Whether the last message of a file is still in the CommitLog."""
        start = file.base // ENTRY_SIZE_BYTES
        stop = (file.base + file.size) // ENTRY_SIZE_BYTES
        per_chunk = _CHUNK_BYTES // ENTRY_SIZE_BYTES
        while stop > start:
            chunk_start = max(stop - per_chunk, start)
            raw = self._mappings.read(
                file,
                chunk_start * ENTRY_SIZE_BYTES - file.base,
                (stop - chunk_start) * ENTRY_SIZE_BYTES,
            )
            entries = entry_array(raw[: len(raw) - len(raw) % ENTRY_SIZE_BYTES])
            if found := _message_places(entries):
                return int(entries["physical_offset"][found[-1]]) >= log_min_offset
            stop = chunk_start
        return False

    # --- durability -----------------------------------------------------------------------------

    @property
    def is_dirty(self) -> bool:
        """Whether entries were written that no flush has covered."""
        return self._rows.value(self.row, QueueColumn.CHANGES) != self._flushed_changes

    def flush(self, least_pages: int = 0) -> bool:
        """Make entries durable; return whether everything written before the call is.

        Parameters
        ----------
        least_pages
            Leave files with fewer new whole pages for later; 0 flushes every byte.

        Raises
        ------
        FlushFailedError
            The disk refused.
        """
        changes = self._rows.value(self.row, QueueColumn.CHANGES)
        if changes == self._flushed_changes:
            return True
        following = self.next_position
        appended = (following - self._flushed_next) // ENTRY_SIZE_BYTES
        is_rewritten = changes - self._flushed_changes > appended
        files = self._unflushed
        for file in files:
            written = min(max(following - file.base, 0), file.size)
            file.write_position = written
            if is_rewritten or written < file.flushed_position:
                # Entries before the end were written too: the position alone does not tell.
                file.flushed_position = 0
            file.flush(0 if is_rewritten else least_pages)
            file.close_descriptor()
        if any(file.flushed_position < file.write_position for file in files):
            return False
        self._flushed_changes, self._flushed_next = changes, following
        current = self._rows.value(self.row, QueueColumn.FILE_START)
        done = {file for file in files if file.base != current}
        with self._lock:
            self._unflushed = tuple(file for file in self._unflushed if file not in done)
        return True

    def drop(self) -> None:
        """Let go of all files."""
        self.unmap_writer()
        self.files.drop()


def _message_places(entries: EntryArray) -> list[int]:
    """Return the indexes of the entries that are messages."""
    places: Iterable[int] = (written_mask(entries) & ~filler_mask(entries)).nonzero()[0].tolist()
    return list(places)


def _has_data(file: MappedFile, start: int) -> bool:
    """Whether a byte behind `start` is not zero; holes are passed over without reading."""
    descriptor = file.fd
    at = start
    with contextlib.suppress(OSError):  # ENXIO: no data behind
        while at < file.size:
            data = os.lseek(descriptor, at, os.SEEK_DATA)
            hole = min(os.lseek(descriptor, data, os.SEEK_HOLE), file.size)
            at = max(data, at)
            while at < hole:
                raw = os.pread(descriptor, min(_CHUNK_BYTES, hole - at), at)
                if not raw:
                    return False
                if raw.count(0) != len(raw):
                    return True
                at += len(raw)
    return False
