"""The queues of a store, read by a few small reads: which there are, their bounds and entries.

Law: an entry is a hint for pruning, never an answer. A range of the log is left out only because of
entries whose record was looked at; where a queue is missing, damaged or late, more is read.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocketstore.errors import StoreError
from rocketstore.format.batch_queue_entry import BATCH_ENTRY_SIZE_BYTES
from rocketstore.format.file_name import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
    parse_queue_id,
)
from rocketstore.format.queue_entry import (
    ENTRY_DTYPE,
    ENTRY_SIZE_BYTES,
    FILLER,
    KEPT_PLACE_BYTES,
    equal_mask,
    written_mask,
)
from rocketstore.places.files import (
    StoreFile,
    directories,
    entries_of,
    files_at,
    offset_files,
    read_part,
    stored_stop,
    subdirectories,
)
from rocketstore.places.location import is_remote
from rocketstore.rules.newer import ROCKSDB_MARK, rocksdb_queues
from rocketstore.scan.batch_search import BatchEntries
from rocketstore.scan.extension_units import UnitReader
from rocketstore.scan.queue_search import QueueSearch, last_up_to
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from rocketstore.format.queue_entry import EntryArray

EVERY_KIND: Final = (CONSUME_QUEUE_DIRECTORY, BATCH_CONSUME_QUEUE_DIRECTORY)
"""Directories of the queues that consumers read: of batch topics, and of all others."""

CHUNK_ROWS: Final = 65_536
NEIGHBOURS: Final = 512  # more entries than a page has, which is what a disk or a kernel loses


class ScanNeeded(Exception):  # noqa: N818 - not an error: more is read
    """Why a queue cannot be relied upon, so that the log itself is scanned."""


def files_of(location: str, directory: str, key: QueueKey) -> list[StoreFile]:
    """Return a queue's files below a directory of its store."""
    return offset_files(entries_of(location, directory, key.topic, str(key.queue_id)))


class StoredFiles:
    """The `Files` of one queue at a location; of objects the last block is kept.

    If it `spares_lost`, a file that retention deleted since counts as missing, and `has_lost` is
    set.
    """

    def __init__(
        self, location: str, files: Sequence[StoreFile], *, spares_lost: bool = False
    ) -> None:
        self.location, self.files = location, files
        self.file_size = files[0].size if files else 0
        self.min_offset = files[0].base if files else -1
        self.has_lost = False
        self._spares_lost = spares_lost
        self._open: Any = cache(files_at(location)[0].open)

    def find(self, offset: int) -> StoreFile | None:
        """Return the file that holds the byte at an offset."""
        file = last_up_to(self.files, offset)
        return file if file is not None and offset < file.stop else None

    def data_stop(self, file: StoreFile) -> int:
        """Return the position after which one of the files is known to have only zeros."""
        return stored_stop(self.location, file.path, file.size)

    def read(self, offset: int, size: int) -> bytes | None:
        """Return up to `size` bytes at an offset, as far as one file goes; None without a file."""
        file = self.find(offset)
        if file is None:
            return None
        position, size = offset - file.base, min(size, file.stop - offset)
        try:
            if not is_remote(self.location):
                return read_part(self.location, file.path, position, size)
            content: bytes = self._open(file.path).read(position, size)
        except StoreError as error:
            gone = isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError))
            if not (self._spares_lost and gone):
                raise
            self.has_lost = True
            return None
        return content


class QueueFiles(QueueSearch):
    """The entries of one queue, as they were when they were first asked for."""

    chunk_entries = CHUNK_ROWS

    def __init__(self, location: str, key: QueueKey) -> None:
        self.location, self.key = location, key
        self.extension = UnitReader(self._extension_files)

    @cached_property
    def files(self) -> StoredFiles:
        """The files of the queue."""
        listed = files_of(self.location, CONSUME_QUEUE_DIRECTORY, self.key)
        return StoredFiles(self.location, listed)

    def _extension_files(self) -> StoredFiles:
        files = files_of(self.location, CONSUME_QUEUE_EXT_DIRECTORY, self.key)
        return StoredFiles(self.location, files, spares_lost=True)

    @cached_property
    def max_offset(self) -> int:
        """Queue offset after the last written entry."""
        return self.search_end()

    @property
    def stored_stop(self) -> int:
        """Queue offset after which the files are known to be zeros."""
        last = self.files.files[-1:]
        return sum(-(-(one.base + self._data_stop(one)) // ENTRY_SIZE_BYTES) for one in last)

    def _data_stop(self, file: StoreFile) -> int:
        return self.files.data_stop(file)

    def check_whole(self) -> None:
        """Refuse a queue that lacks a file, or has entries after the zeros that should end it."""
        stop = self.max_offset
        if stop == self.first_offset:
            raise ScanNeeded(f"queue {self.key} has no entries")
        for one, other in itertools.pairwise(self.files.files):
            if one.stop != other.base:
                number = one.stop // ENTRY_SIZE_BYTES
                raise ScanNeeded(f"queue {self.key} has no file of entry {number}")
        for _, entries in self.chunks(stop, self.stored_stop):
            is_written = entries.view(np.uint8).any()  # mostly zeros, and told quickly
            if is_written and entries.tobytes().replace(KEPT_PLACE_BYTES, b"").strip(b"\0"):
                what = f"ends at entry {stop} and has other bytes after that"
                raise ScanNeeded(f"queue {self.key} {what}")

    def pointing_into(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first entry that points into a stretch of the log, and the one after the last.

        A single false entry can lead the search past the right place: its `NEIGHBOURS` show that.
        """

        def first_at(place: int, low: int) -> int:
            return self.first_where(low, self.max_offset, lambda one: one.physical_offset >= place)

        first = first_at(start, self.first_offset)
        return first, first_at(stop, first)

    def rising(self, start: int, stop: int, *, or_fillers: bool = False) -> EntryArray:
        """Return the entries of a range if all are messages, in the order of the log."""
        chunks = (entries for _, entries in self.chunks(start, stop))
        found = np.concatenate([np.empty(0, ENTRY_DTYPE), *chunks])
        is_filler = equal_mask(found, FILLER)
        entries = found[written_mask(found) & ~is_filler]
        steps = np.diff(entries["physical_offset"].astype(np.int64))
        if len(entries) + or_fillers * is_filler.sum() < stop - start or (steps <= 0).any():
            raise ScanNeeded(f"entries {start} to {stop} of queue {self.key} are not in order")
        return entries

    def first_kept(self, log_min: int) -> int:
        """Return the first entry that points into the log; fillers and expired ones come before."""
        first, entry = self.next_message(self.first_offset, self.first_offset + 1)
        if entry is None or entry.physical_offset < log_min:
            first = self.first_left(log_min)
        low = max(self.first_offset, first - NEIGHBOURS)
        self.rising(low, min(first + 1, self.max_offset), or_fillers=True)
        return first

    def byte_count(self, start: int, stop: int) -> int:
        """Return the length of the records that the entries of a range point at."""
        found = (entries for _, entries in self.messages(start, stop))
        return sum(int(entries["record_size"].sum(dtype="int64")) for entries in found)


class BatchQueueFiles(BatchEntries):
    """The entries of one queue of a batch topic, with the calls of `QueueFiles` that tables use."""

    files: StoredFiles

    def __init__(self, location: str, key: QueueKey) -> None:
        self.files = StoredFiles(location, files_of(location, BATCH_CONSUME_QUEUE_DIRECTORY, key))
        self.stop_place = self.first_place
        for file in reversed(self.files.files):
            first = file.base // BATCH_ENTRY_SIZE_BYTES
            places = range(first, file.stop // BATCH_ENTRY_SIZE_BYTES)
            count = bisect_left(places, 1, key=lambda place: not self._of(place).is_written)
            if count:
                self.stop_place = first + count
                break

    def byte_count(self, start: int, stop: int) -> int:
        """Return the length of the records that have messages of a range."""
        total = 0
        for _, array in self.arrays():
            ends = array["base_offset"] + array["message_count"].astype(np.int64)
            is_inside = (ends > start) & (array["base_offset"] < stop)
            total += int(array["record_size"][is_inside].sum(dtype="int64"))
        return total


def queue_opener(location: str) -> Callable[[QueueKey], QueueFiles | BatchQueueFiles]:
    """Return a function that opens a queue of a store, of either kind."""
    batches = {entry.name for entry in entries_of(location, BATCH_CONSUME_QUEUE_DIRECTORY)}
    return lambda key: (BatchQueueFiles if key.topic in batches else QueueFiles)(location, key)


def list_queues(
    location: str,
    directory: str = CONSUME_QUEUE_DIRECTORY,
    wants_topic: Callable[[str], bool] = bool,
) -> list[QueueKey]:
    """Return the queues of the topics wanted that have a directory, by topic and number."""
    files, root = files_at(location)
    topics = files.list(f"{root}/{directory}")
    if any(one.name == ROCKSDB_MARK and not one.is_directory for one in topics):
        raise rocksdb_queues(f"{location}/{directory}")
    return sorted(
        QueueKey(topic.name, queue_id)
        for topic in directories(topics)
        if wants_topic(topic.name)
        for entry in subdirectories(files, topic.path)
        if (queue_id := parse_queue_id(entry.name)) is not None
    )
