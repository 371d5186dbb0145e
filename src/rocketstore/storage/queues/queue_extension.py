"""Write the units of queues' extensions, and return the tags codes for their entries.

Dispatch asks for the tags code of each entry of a queue with an extension, writes the unit first,
and gets its address. The end of an extension is where the unit of the last entry ends: what a
killed writer put after it has no entry, and is written over.

Law: an existing entry whose unit agrees stays, so that a record that is dispatched again gets no
second unit. Units follow each other without a hole, since 4.9 takes zeros for the end of a file. If
a unit cannot be written, the entry is written nevertheless, with the plain code, as in 4.9. Only
the dispatching thread puts; another may flush, or delete first files, meanwhile.

How derived: ConsumeQueueExt.put, truncateByMinAddress and truncateByMaxAddress of 4.9,
ConsumeQueue.putMessagePositionInfoWrapper (spec F7, B12, B16.1, B17.3).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from rocketstore.config.files import LOOKED_AT_QUEUES, commonest, resolve_size
from rocketstore.errors import RocketStoreError
from rocketstore.events import get_logger
from rocketstore.format import queue_extension as units
from rocketstore.format.queue_entry import MAX_EXT_ADDRESS, MAX_HASH, is_due_time
from rocketstore.scan.extension_units import UnitReader
from rocketstore.storage.files.mapped_file import MappedFile, MappedFiles
from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
from rocketstore.storage.files.pread_files import OpenFiles, PreadFiles, file_lengths
from rocketstore.storage.queues.consumer_filters import ConsumerFilters
from rocketstore.storage.queues.queue_listing import listed_queues
from rocketstore.units import MiB, QueueKey

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.config import StoreConfig
    from rocketstore.format.queue_entry import EntryArray, QueueEntry
    from rocketstore.scan.queue_search import QueueSearch
    from rocketstore.storage.files.disk import Disk

DEFAULT_FILE_BYTES: Final = 48 * MiB
MOST_OPEN: Final = 256
"""Files of extensions that are mapped, and so hold a descriptor; the others are mapped again."""

CHUNK_ENTRIES: Final = 8192
"""Entries that are looked through at once for one with an address."""

_log: Final = get_logger(__name__)


class QueueExtension(UnitReader):
    """The extension of one queue, to be read and written."""

    def __init__(self, key: QueueKey, queue: QueueSearch, shared: QueueExtensions) -> None:
        self.directory = shared.directory / str(key)
        super().__init__(partial(PreadFiles, (self.directory,), open_files=shared.open_files))
        self._key, self._queue = key, queue
        self._shared = shared
        self.files = MappedFileQueue(
            self.directory, shared.file_bytes, disk=shared.disk, mapped_files=shared.mapped_files
        )
        self.files.load(after_crash=True)
        self._end: int | None = None
        self._end_of = -1  # the queue offset of the last entry whose unit lies before it
        self._is_found = False
        self._has_failed = False

    # --- writing (the dispatching thread, or recovery before it runs) ----------------------------

    def code_for(
        self,
        queue_offset: int,
        entry: QueueEntry,
        store_timestamp_ms: int,
        properties: bytes,
        may_replace: Callable[[], bool],
    ) -> int:
        """Write the unit of an entry and return the tags code that the entry keeps.

        `may_replace` says whether a different entry at that place is replaced.
        """
        old = self._queue.entry(queue_offset)
        try:
            if not self._is_found:
                self._find_end(queue_offset)
            if old is not None and old.is_message:
                if old == entry:
                    return entry.tags_code  # from a time without extensions
                if old[:2] == entry[:2] and self._is_kept(
                    queue_offset, old, entry, store_timestamp_ms
                ):
                    return old.tags_code
                if not may_replace():
                    return entry.tags_code
            bit_map = self._shared.bit_map(self._key.topic, properties)
            unit = units.ExtensionUnit(entry.tags_code, store_timestamp_ms, bit_map)
            position = self._put(unit)
            self._end_of = max(self._end_of, queue_offset)
        except (RocketStoreError, OSError) as error:
            if not self._has_failed:
                _log.warning("queue_extension.failed", queue=str(self._key), error=str(error))
            self._has_failed = True
            return entry.tags_code
        self._has_failed = False
        return entry.tags_code if position is None else units.address_of(position)

    def _is_kept(
        self, queue_offset: int, old: QueueEntry, entry: QueueEntry, store_timestamp_ms: int
    ) -> bool:
        """Whether the unit of an entry that stands there is its record's, and in its place."""
        position = units.position_of(old.tags_code)
        unit = self.unit_at(old.tags_code)
        if position is None or unit is None:
            return False
        is_equal = unit.tags_code == entry.tags_code or (
            min(unit.tags_code, entry.tags_code) > MAX_HASH
            and is_due_time(unit.tags_code, store_timestamp_ms)  # by other delay levels (K-S6)
        )
        if not is_equal or unit.store_timestamp_ms != store_timestamp_ms:
            return False
        stop, end = position + unit.size, self._end
        # A file may lie further on: the ones between were lost, or have no unit of an entry.
        begins_file = position % self.files.file_size == 0
        if end is None or position == end or (position > end and begins_file):
            if end not in (None, position):
                self._end_file(end)
            self._end, self._end_of = stop, max(self._end_of, queue_offset)
            file = self.files.find(position)
            if file is not None:  # so that a flush covers it: it may be in the page cache only
                file.write_position = max(file.write_position, stop - file.base)
            return True
        # Units follow each other as their entries do: that of the last entry tells the end.
        return stop <= end and queue_offset <= self._end_of

    def _next_file(self, position: int) -> int:
        """Return where the file after that of a position begins."""
        return position - position % self.files.file_size + self.files.file_size

    def _put(self, unit: units.ExtensionUnit) -> int | None:
        """Write a unit at the end and return its position; None where it is too long."""
        size = unit.size
        files = self.files
        if size > min(units.MOST_UNIT_BYTES, files.file_size - units.RESERVED_BYTES):
            return None
        end = self._end
        if end is None:
            end = files.files[0].base if files.files else 0
        if end % files.file_size + size + units.RESERVED_BYTES > files.file_size:
            self._end_file(end)
            end = self._next_file(end)
        if end + size > units.MAX_POSITION:
            return None
        file = files.find(end)
        if file is None:
            last = files.last()
            # Never before a file that is there: its units would follow these.
            end = max(end, last.base + last.size if last else 0)
            file = files.create(end - end % files.file_size)
        was_mapped = file.is_mapped
        file.write_bytes(end - file.base, units.encode_unit(unit))
        if not was_mapped:
            file.close_descriptor()  # the mapping has its own
        self._end = end + size
        file.write_position = self._end - file.base
        return end

    def _end_file(self, end: int) -> None:
        """Mark in a file that no unit follows."""
        file = self.files.find(end)
        # If the last unit ends with the file, no mark fits, and none is needed.
        if file is not None and end + units.RESERVED_BYTES <= file.base + file.size:
            file.write_bytes(end - file.base, units.END_MARK)
            file.write_position = file.size
            file.drop()

    # --- the end --------------------------------------------------------------------------------

    def settle(self, *, now_ms: int) -> None:
        """Cut the extension after the unit of the last entry; the bytes after it become zeros.

        For recovery, after the queue got its end. Source: ConsumeQueueExt.truncateByMaxAddress.
        """
        self._find_end(self._queue.max_offset)
        if not self.files.files:
            return
        end = self.files.files[0].base if self._end is None else self._end
        self.files.truncate_after(end, now_ms=now_ms)
        file = self.files.find(end)
        if file is not None:
            file.clear_tail(end - file.base)
        for file in self.files.files:
            # Another process may have written its bytes and made its name.
            file.flushed_position, file.has_durable_name = 0, False
            file.close_descriptor()

    def _find_end(self, queue_offset: int) -> None:
        """Take the end of the unit of the last entry before `queue_offset` that has one."""
        address = self._last_address(queue_offset)
        position = None if address is None else units.position_of(address)
        unit = None if address is None else self.unit_at(address)
        if position is None:
            self._end = None
        elif unit is None:  # it is lost; no other unit may get its address
            self._end = self._next_file(position)
        else:
            self._end = position + unit.size
        for file in self.files.files:
            file.set_end(min(max((self._end or 0) - file.base, 0), file.size))
        self._end_of, self._is_found = queue_offset - 1, True

    def _last_address(self, stop: int) -> int | None:
        queue, at = self._queue, min(stop, self._queue.max_offset)
        if not self.files.files:
            # Without a file, the last entry tells whether there ever was one.
            last = queue.entry(at - 1)
            return last.tags_code if last and last.tags_code <= MAX_EXT_ADDRESS else None
        while at > queue.first_offset:
            # Entries are read within one file.
            first = (at - 1) - (at - 1) % queue.entries_per_file
            start = max(first, at - CHUNK_ENTRIES, queue.first_offset)
            found = _addresses(queue.entries(start, at - start))
            if len(found):
                return int(found[-1])
            at = start
        return None

    # --- deleting, flushing ---------------------------------------------------------------------

    def delete_expired(self, _log_min_offset: int, **when: int) -> tuple[list[Path], bool]:
        """Delete leading files without a unit of an entry that can be read, never the last file.

        As `ConsumeQueue.delete_expired`. Source: ConsumeQueueExt.truncateByMinAddress.
        """
        if len(self.files.files) < 2:
            return [], True
        address = self._first_address(self._queue.min_offset)
        position = -1 if address is None else units.position_of(address) or 0
        gone, is_whole = self.files.remove_leading(lambda stop: stop <= position, **when)
        if gone:
            self._files.refresh()  # or open descriptors would keep their bytes on the disk
        return gone, is_whole

    def _first_address(self, start: int) -> int | None:
        chunks = self._queue.chunks(start, self._queue.max_offset)
        found = (_addresses(entries) for _, entries in chunks)
        return next((int(some[0]) for some in found if len(some)), None)

    def flush(self, least_pages: int = 0, names: list[MappedFile] | None = None) -> bool:
        """Make units durable; return whether every one put before the call is."""
        return self.files.flush(least_pages, names)

    def drop(self) -> None:
        """Let go of all files."""
        self.files.drop()


def _addresses(entries: EntryArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    codes = entries["tags_code"].astype(np.int64)
    is_address = (codes <= MAX_EXT_ADDRESS) & (entries["record_size"] > 0)
    return codes[is_address]


class QueueExtensions:
    """Makes the extension of each queue of a store, below ``consumequeue_ext``.

    `filters` are those of consumer groups, of which `filter_clock` is the clock.
    """

    def __init__(
        self, directory: Path, config: StoreConfig, disk: Disk, filter_clock: Callable[[], int]
    ) -> None:
        self.directory = directory
        self.disk = disk
        queues = [directory / str(key) for key in listed_queues(directory)[:LOOKED_AT_QUEUES]]
        self.file_bytes = resolve_size(
            "mappedFileSizeConsumeQueueExt",
            config.mapped_file_size_consume_queue_ext,
            commonest(file_lengths(queues)),
            DEFAULT_FILE_BYTES,
        )
        self.open_files = OpenFiles()
        self.filters = ConsumerFilters(
            config.max_error_rate_of_bloom_filter,
            config.expect_consumer_num_use_filter,
            filter_clock,
        )
        self._makes_bit_maps = config.enable_calc_filter_bit_map
        self.mapped_files = MappedFiles(MOST_OPEN)
        disk.make_directory(directory)

    def __call__(self, key: QueueKey, queue: QueueSearch) -> QueueExtension:
        """Return the extension of a queue."""
        return QueueExtension(key, queue, self)

    def bit_map(self, topic: str, properties: bytes) -> bytes:
        """Return the bit map of a message by its properties as stored, if one is to be kept."""
        return self.filters.bit_map(topic, properties) if self._makes_bit_maps else b""
