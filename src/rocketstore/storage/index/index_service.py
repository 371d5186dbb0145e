"""The index: from a key of a topic, and a time, to physical offsets.

A row of index files, the newest of which takes new items. The dispatch kernel puts items and
``native.lookup`` finds them; this class makes files, makes items durable, and cuts them back for
recovery.

Law: names of files rise, whatever the clock says (K-I4), a file that could not be made whole leaves
nothing behind (K-I7), and of a header only what stands in its file counts.

How derived: IndexService, IndexFile and IndexHeader of 4.9 (spec F10, B15) without K-I1, K-I2,
K-I5, K-I6, K-I8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import numpy as np

from rocketstore.errors import FlushFailedError, StoreError
from rocketstore.events import get_logger
from rocketstore.format.index_file import (
    FIRST_ITEM,
    INDEX_HEADER_SIZE,
    IndexHeader,
    IndexLayout,
    decode_header,
    encode_header,
    item_array,
    next_index_file_name,
    used_item_count,
)
from rocketstore.process import most_mapped_files
from rocketstore.scan import kernels
from rocketstore.storage.files.mapped_file import MappedFile, MappedFiles
from rocketstore.storage.files.whole_file import grow_file
from rocketstore.storage.index.pread_index import listed_index_files, wrong_index_length

if TYPE_CHECKING:
    from datetime import tzinfo
    from pathlib import Path

    import numpy.typing as npt

    from rocketstore.native.row import ByteArray, Int64Array
    from rocketstore.rules.files import FileFinding
    from rocketstore.storage.files.disk import Disk

_log: Final = get_logger(__name__)

_FORCE_DELETE_AFTER_MS: Final = 3000
"""How long an expired file waits for its readers (IndexService.deleteExpiredFile)."""

_REWRITTEN: Final = -1


class IndexFile:
    """One index file, mapped when it is needed: its header, its items, and what is on the disk."""

    __slots__ = ("_flushed_count", "_unflushed", "file", "layout", "told")

    def __init__(
        self, file: MappedFile, layout: IndexLayout, unflushed: dict[IndexFile, None]
    ) -> None:
        self.file = file
        self.layout = layout
        self.told: tuple[str, IndexHeader] | None = None
        self._unflushed = unflushed
        self._flushed_count = _REWRITTEN

    @property
    def name(self) -> str:
        """Name of the file: when it was made."""
        return self.file.path.name

    @property
    def header(self) -> IndexHeader:
        """The header as it stands in the file."""
        if self.file.is_mapped:
            return decode_header(memoryview(self.file.mapping)[:INDEX_HEADER_SIZE])
        raw = self.file.read_at(0, INDEX_HEADER_SIZE)
        self.file.close_descriptor()
        return decode_header(raw)

    @property
    def items(self) -> npt.NDArray[np.void]:
        """The items in use, oldest first."""
        stop = used_item_count(self.header, self.layout)
        return item_array(self.file.array, self.layout)[FIRST_ITEM:stop]

    @property
    def is_full(self) -> bool:
        """Whether no further item fits."""
        return self.header.index_count >= self.layout.item_count

    def set_header(self, header: IndexHeader) -> None:
        """Overwrite the header."""
        self.note_written()
        self.file.write_bytes(0, encode_header(header))

    def note_written(self) -> None:
        """Let the next flush make the file durable."""
        self._flushed_count, self.told = _REWRITTEN, None
        self._unflushed[self] = None

    def preset(self, previous: IndexHeader) -> None:
        """Take over the end of the file before, as Java does (IndexFile's constructor).

        The item count stays 0 on disk until the first item, as in Java.
        """
        end_ms, end = max(previous.end_timestamp_ms, 0), max(previous.end_physical_offset, 0)
        self.set_header(IndexHeader(end_ms, end_ms, end, end, 0, 0))

    def cut(self, physical_offset: int, store_time_of: Callable[[int], int | None]) -> None:
        """Drop the items of records from an offset on, and rebuild the chains of the others."""
        self.note_written()
        self.file.reserve(self.file.size)
        old_end = self.header.end_physical_offset
        kernels.rebuild_slots(self.file.array, *self.layout, physical_offset)
        header = self.header
        if header.index_count > FIRST_ITEM and header.end_physical_offset != old_end:
            end_ms = store_time_of(header.end_physical_offset)
            if end_ms is None:
                seconds = int(self.items[-1]["time_difference_s"])
                end_ms = header.item_time_ms(header.index_count - 1, seconds)
            self.set_header(header._replace(end_timestamp_ms=end_ms))
        self.file.close_descriptor()

    def flush(self) -> None:
        """Make the file durable."""
        try:
            count = self.header.index_count
        except FileNotFoundError:  # deleted by retention just now
            return
        if count != self._flushed_count:
            self.file.sync()
            self.file.close_descriptor()
            self._flushed_count = count


@dataclass(eq=False)
class IndexService:
    """All index files of a store, oldest first; `directory` need not exist.

    `clock` returns the time in ms for the names of new files, `tz` is their zone, None that of this
    process as in Java. Unless `is_enabled` (messageIndexEnable) no item is put; what is there is
    still found.

    `files` is replaced as a whole, never changed in place. A file is mapped when it is searched or
    written, and only those mapped last stay so. `newest_bytes` are the newest file's,
    which dispatch writes, empty until an item is put. `last_indexed` has two numbers of the last
    indexed record: how many items it has, over all files, and its physical offset; so many are
    skipped when it comes again (K-I8).
    """

    directory: Path
    layout: IndexLayout
    disk: Disk
    clock: Callable[[], int]
    is_enabled: bool = True
    tz: tzinfo | None = None

    is_mapped: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        self.files: tuple[IndexFile, ...] = ()
        self._unflushed: dict[IndexFile, None] = {}
        self._mapped_files = MappedFiles(max(most_mapped_files() // 8, 1))
        self.is_flush_broken = False
        self.newest_bytes: ByteArray = np.zeros(0, np.uint8)
        self.last_indexed: Int64Array = np.zeros(2, np.int64)
        self._newest_name: str | None = None
        self._under_way: Path | None = None

    # --- opening --------------------------------------------------------------------------------

    def load(self) -> list[FileFinding[Path]]:
        """Load the files on disk; none is deleted, not even after a crash (K-I1).

        Returns what was passed over: strange names and wrong lengths. A last file that a crash left
        short, because it was being made, gets its length.
        """
        problems: list[FileFinding[Path]] = []
        files: list[IndexFile] = []
        listed = listed_index_files(self.directory, problems)
        newest, size = max(listed, default=None), self.layout.size_bytes
        for path, length in listed.items():
            if length != size:
                problems.append(wrong_index_length(path, size, length))
                if length > size or path != newest:
                    continue
                grow_file(path, size, self.disk)
            file = MappedFile(path, base=0, size=size, disk=self.disk)
            file.mapped_files = self._mapped_files
            files.append(IndexFile(file, self.layout, self._unflushed))
        self._newest_name = newest.name if newest else None
        self.files = tuple(files)
        if len(files) > 1 and files[-1].header == IndexHeader(index_count=0):
            files[-1].preset(files[-2].header)
        self._forget_newest()
        return problems

    def _forget_newest(self) -> None:
        """Let `roll` give the newest file to the kernel, with the first item that is put."""
        self.newest_bytes = np.zeros(0, np.uint8)
        end = self.end_physical_offset
        newest_first = (file.items["physical_offset"][::-1] for file in reversed(self.files))
        offsets = chain.from_iterable(newest_first)
        items = sum(1 for _ in takewhile(lambda one: bool(one == end), offsets))
        self.last_indexed[:] = items, end

    # --- new files ------------------------------------------------------------------------------

    def roll(self) -> IndexFile:
        """Make the next file and let dispatch put into it.

        The first call after loading takes the newest file there is, full or not. If the disk is
        full, no file is left. Source: IndexService.getAndCreateLastIndexFile.
        """
        if self.files and not self.newest_bytes.size:
            newest = self.files[-1].file
            self.files[-1].note_written()
            # A file that Java made is sparse: a page without disk space would end the process.
            newest.reserve(newest.size)
            newest.close_descriptor()
            self.newest_bytes = newest.array
            return self.files[-1]
        if self._under_way is not None and self._under_way not in (f.file.path for f in self.files):
            # An interrupt ended the call that made it.
            for left in [one for one in self._unflushed if one.file.path == self._under_way]:
                left.file.destroy(0, now_ms=self.clock())  # so that a flush beside it lets it go
                self._unflushed.pop(left)
            self.disk.unlink(self._under_way)
        name = next_index_file_name(self.clock(), self.tz, self._newest_name)
        self._under_way = path = self.directory / name
        size = self.layout.size_bytes
        try:
            mapped = MappedFile.create(path, base=0, size=size, disk=self.disk)
        except StoreError:  # which left no file of ours behind
            self._under_way = None
            raise
        mapped.set_end(size)  # as one that was loaded
        mapped.mapped_files = self._mapped_files
        file = IndexFile(mapped, self.layout, self._unflushed)
        file.note_written()
        mapped.reserve(size)
        if self.files:
            file.preset(self.files[-1].header)
        mapped.close_descriptor()
        self._newest_name = name
        self.files = (*self.files, file)
        self.newest_bytes = mapped.array
        _log.info("index.rolled", path=str(path))
        return file

    # --- finding --------------------------------------------------------------------------------

    @property
    def end_physical_offset(self) -> int:
        """Physical offset of the last indexed message; 0 when there is none."""
        return self.files[-1].header.end_physical_offset if self.files else 0

    # --- durability, deletion -------------------------------------------------------------------

    def flush(self, *, full_only: bool = False) -> bool:
        """Make all items durable that were put before the call (K-I2).

        `full_only`: only those of files that are full and were followed by another one, for the
        turns in which nothing else of the index is flushed (FlushIndexFileThread of 4.9). After a
        `FlushFailedError` `is_flush_broken` is true.
        """
        newest = self.files[-1:]
        try:
            for file in sorted(self._unflushed, key=attrgetter("name")):
                if file not in newest:
                    file.flush()
                    self._unflushed.pop(file, None)
                elif not full_only:
                    file.flush()
        except FlushFailedError:
            self.is_flush_broken = True
            raise
        return not self.is_flush_broken

    def headers(self) -> list[tuple[str, IndexHeader]]:
        """Return name and header of each file; those of full ones are read once."""
        written = {*list(self._unflushed), *self.files[-1:]}
        told = []
        for file in self.files:
            if (one := None if file in written else file.told) is None:
                one = file.name, file.header
                file.told = None if file in written else one
            told.append(one)
        return told

    def delete_expired(self, log_min_offset: int, *, now_ms: int) -> list[Path]:
        """Delete leading files that know only expired records; the newest stays.

        Compatible: the newest file is never deleted (K-I10): it takes the next item. Source:
        IndexService.deleteExpiredFile.
        """
        gone: list[Path] = []
        while len(self.files) > 1:
            first = self.files[0]
            if first.header.end_physical_offset >= log_min_offset:
                break
            self.files = self.files[1:]  # before an interrupt could leave it here, and deleted
            try:
                is_gone = first.file.destroy(_FORCE_DELETE_AFTER_MS, now_ms=now_ms)
            finally:
                if first.file.path.exists():
                    self.files = (first, *self.files)
            if not is_gone:
                break
            self._unflushed.pop(first, None)
            gone.append(first.file.path)
        if gone:
            self.disk.fsync_directory(self.directory)
        return gone

    def take_away(self, first_name: str, take_file: Callable[[Path], None]) -> None:
        """Let the index end before the file of a name; call `take_file` with each from there on."""
        for file in self.files:
            if file.name >= first_name:
                self._unflushed.pop(file, None)
                file.file.drop()
        self.files = tuple(file for file in self.files if file.name < first_name)
        self._forget_newest()
        for path in reversed(listed_index_files(self.directory, [])):
            if path.name >= first_name:
                take_file(path)

    def truncate_to(
        self, physical_offset: int, store_time_of: Callable[[int], int | None], *, now_ms: int
    ) -> int:
        """Drop the items of records at or after an offset, and rebuild the chains of what stays.

        Returns how many items went. `store_time_of` returns the store time of the record at an
        offset, for the new end of the header; items know it to the second only. After a crash slots
        may name items that never reached the disk, so slots are rebuilt in every file that may have
        been written lately: all but full ones that end before the offset. Where no item stays, the
        first file does, empty.
        """
        dropped = 0
        kept: list[IndexFile] = []
        for file in self.files:
            header = file.header
            if file.is_full and header.end_physical_offset < physical_offset:
                kept.append(file)
                continue
            before = len(file.items)
            file.cut(physical_offset, store_time_of)
            after = len(file.items)
            dropped += before - after
            if after:
                kept.append(file)
            elif not kept:  # its pages are in memory, those of a new file are not
                file.set_header(IndexHeader(index_count=0))
                kept.append(file)
            else:
                self._unflushed.pop(file, None)
                file.file.destroy(0, now_ms=now_ms)
        if len(kept) < len(self.files):
            self.disk.fsync_directory(self.directory)
        self.files = tuple(kept)
        self._forget_newest()
        if dropped:
            _log.info("index.truncated", physical_offset=physical_offset, items=dropped)
        return dropped

    def drop(self) -> None:
        """Let go of all files."""
        self.newest_bytes = np.zeros(0, np.uint8)
        for file in self.files:
            file.file.drop(for_good=True)
