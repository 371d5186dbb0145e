"""BatchConsumeQueues: the class that writes, and the one for stores that another process may write.

Law: only the dispatching thread appends, and recovery before that thread runs. An entry is there
from the moment `stop_place` admits it; doing a record again changes nothing. A reader keeps only
how far a queue was written when it last looked: a writer's later entries are seen at the next call.

How derived: BatchConsumeQueue of 5.3.1 (spec F9, B16.1).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from rocketstore.events import get_logger
from rocketstore.format.batch_queue_entry import BATCH_ENTRY_SIZE_BYTES, encode_batch_entry
from rocketstore.native.row import PutEntry
from rocketstore.rules.batch_entries import batch_may_follow
from rocketstore.scan.batch_search import BATCH_ENTRY_DTYPE, BatchEntries, written_count
from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
from rocketstore.storage.files.pread_files import OpenFiles, PreadFiles
from rocketstore.storage.files.whole_file import has_data

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.format.batch_queue_entry import BatchEntry
    from rocketstore.format.known_ends import QueueEnds
    from rocketstore.rules.files import FileFinding
    from rocketstore.storage.files.disk import Disk
    from rocketstore.storage.files.mapped_file import MappedFile

_log = get_logger(__name__)

_AT_A_TIME: Final = 1024


class BatchQueue(BatchEntries):
    """What a reader needs of a queue besides its entries."""

    extension = records = None  # its messages are in the store's log
    _log_min_offset: Callable[[], int]

    @property
    def min_offset(self) -> int:
        """The first queue offset whose record has not expired; the maximum when all have."""
        return self.first_left(self._log_min_offset())


class MappedBatchQueue(BatchQueue):
    """The entries of one queue below `directory`, which need not exist."""

    files: MappedFileQueue

    def __init__(
        self, directory: Path, file_size: int, log_min_offset: Callable[[], int], *, disk: Disk
    ) -> None:
        self.files = MappedFileQueue(directory, file_size, disk=disk)
        self._log_min_offset = log_min_offset
        self.stop_place = 0

    def read(self, place: int, count: int) -> bytes:
        """Return up to `count` entries from a place on, of one file; nothing where it is gone."""
        start = place * BATCH_ENTRY_SIZE_BYTES
        file = self.files.find(start)
        if file is None:
            return b""
        at = start - file.base
        try:
            return file.mapping[at : at + count * BATCH_ENTRY_SIZE_BYTES]
        except FileNotFoundError:  # retention was faster
            return b""

    # --- opening --------------------------------------------------------------------------------

    def load(
        self, *, after_crash: bool, inodes: dict[int, Path] | None = None
    ) -> list[FileFinding[Path]]:
        """Load the files; see `MappedFileQueue.load`."""
        problems = self.files.load(after_crash=after_crash, inodes=inodes)
        self.stop_place = self.files.max_offset // BATCH_ENTRY_SIZE_BYTES
        return problems

    def settle(
        self, physical_limit: int, is_wrong: Callable[[BatchEntry], bool], known: QueueEnds | None
    ) -> int | None:
        """Cut the queue before the first record that does not begin before a physical offset.

        The last entry, which tells the next number, must not be one that `is_wrong`, nor may the
        queue begin or end elsewhere than is `known`. Where nothing is, files may be missing before
        an entry that retention did not leave first, and after a full file. Returns the physical
        offset from which entries have to be written again because earlier ones were lost, or None.
        """
        kept = self.written_stop()
        is_torn = self._has_data(kept)
        first = self.at(self.first_place) if self.first_place else None
        is_later = first is not None and first.physical_offset > self._log_min_offset()
        if is_later and (known is None or self.first_offset != known.first):
            kept, is_torn = self.first_place, True
        while kept > self.first_place and is_wrong(self._of(kept - 1)):
            kept, is_torn = kept - 1, True
        last = self._of(kept - 1)  # zeros where there is none
        is_torn |= last.stop_offset < known.next if known else not kept % self.entries_per_file
        places = range(self.first_place, kept)
        kept = self.first_place + bisect_left(
            places, physical_limit, key=lambda place: self._of(place).physical_offset
        )
        self._end_at(kept)
        return last.physical_offset + last.record_size if is_torn else None

    def _has_data(self, place: int) -> bool:
        """Whether there is a written byte from a place on."""
        position = place * BATCH_ENTRY_SIZE_BYTES
        for file in self.files.files:
            at = max(position - file.base, 0)
            if at < file.size:
                with file.descriptor() as descriptor:
                    if has_data(descriptor, file.path, at, file.size):
                        return True
        return False

    def _end_at(self, place: int) -> None:
        position = place * BATCH_ENTRY_SIZE_BYTES
        later = [file for file in self.files.files if file.base >= position]
        self.files.remove(later, now_ms=0)
        last = self.files.last()
        self.stop_place = place if last is not None else 0
        if last is not None:
            at = min(position - last.base, last.size)
            last.clear_tail(at)
            last.set_end(at)
            last.close_descriptor()

    # --- writing --------------------------------------------------------------------------------

    def put(self, entry: BatchEntry) -> PutEntry:
        """Append the entry of a record that is not there yet."""
        last = self.at(self.stop_place - 1) if self.stop_place > self.first_place else None
        if last is not None and entry.physical_offset <= last.physical_offset:
            return PutEntry.REPEATED
        maximum = 0 if last is None else last.stop_offset
        if not batch_may_follow(entry.base_offset, maximum, entry.physical_offset):
            _log.warning(
                "batch_queue.refused", reason="its queue offset is not after those before it",
                physical_offset=entry.physical_offset, base_offset=entry.base_offset,
                max_offset=maximum,
            )  # fmt: skip
            return PutEntry.REFUSED
        position = self.stop_place * BATCH_ENTRY_SIZE_BYTES
        file = self.files.last()
        if file is None or position >= file.base + file.size:
            file = self.files.create(position)
        file.write_bytes(position - file.base, encode_batch_entry(entry))
        file.write_position = position - file.base + BATCH_ENTRY_SIZE_BYTES
        self.stop_place += 1
        return PutEntry.WRITTEN

    def flush(self, least_pages: int = 0, names: list[MappedFile] | None = None) -> bool:
        """Make entries durable; return whether everything written before the call is."""
        return self.files.flush(least_pages, names)

    def delete_expired(self, log_min_offset: int, **when: int) -> tuple[list[Path], bool]:
        """Delete leading files whose every record has expired, as `ConsumeQueue` does."""

        def may_go(stop: int) -> bool:
            place = stop // BATCH_ENTRY_SIZE_BYTES
            last = self.at(place - 1) if place <= self.stop_place else None
            return last is not None and last.physical_offset < log_min_offset

        return self.files.remove_leading(may_go, **when)

    def drop(self) -> None:
        """Let go of all files."""
        self.files.drop()


class PreadBatchQueue(BatchQueue):
    """The entries of one queue; `stop_place` is where the written ones end now."""

    files: PreadFiles

    def __init__(
        self, directory: Path, open_files: OpenFiles, log_min_offset: Callable[[], int]
    ) -> None:
        self.files = PreadFiles((directory,), open_files=open_files)
        self._log_min_offset = log_min_offset
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
