"""Write queue files and index files from the blocks of a log: one task has all of a target.

A queue is written whole by one task, because the place of an entry depends on every record of its
queue in front of it. Each attempt works in a directory of its own: on a shared disk the driver
takes over the one that Spark believes, to an object store an attempt sends whole objects.

Law: only final bytes are sent; doing it twice, or at the same time, does no harm.
"""

from __future__ import annotations

import itertools
import mmap
import os
import shutil
import tempfile
import uuid
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rocketstore.errors import FieldRangeError, StoreDamagedError, StoreFullError
from rocketstore.format.file_name import file_name, parse_file_name
from rocketstore.format.index_file import next_index_file_name
from rocketstore.format.markers import CONSUME_QUEUE_DIRECTORY
from rocketstore.format.queue_entry import (
    ENTRY_DTYPE,
    ENTRY_SIZE_BYTES,
    FILLER_BYTES,
    KEPT_PLACE_BYTES,
    filler_mask,
    kept_place_mask,
    written_mask,
)
from rocketstore.pipeline.files import ObjectStore, files_at, is_remote, opened, sync_path
from rocketstore.pipeline.jobs.rebuild.entry_places import EntryPlaces
from rocketstore.pipeline.jobs.rebuild.log_scan import INDEX_TARGET, ITEM_DTYPE
from rocketstore.scan import kernels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.pipeline.jobs.rebuild.settings import RebuildSettings
    from rocketstore.scan.dispatch_state import Int64Array

WRITTEN_SCHEMA: Final = (
    "target BINARY, attempt STRING, files LONG, entries LONG, refused LONG, items LONG, kept LONG, "
    "first_ms LONG"
)
"""What was written of one target: `attempt` is the directory that has its files, `kept` how many
places at a queue's end stand for numbers that were given out, `first_ms` the store time of an index
file's first item."""

ATTEMPTS: Final = "attempts"
"""Directory beside the new ``consumequeue`` and ``index``, for directories of attempts."""

_OPEN_FILES: Final = 128
_FILLERS: Final = FILLER_BYTES * 4096
_PIECE_BLOCKS: Final = 512
"""Blocks whose entries are placed at once."""


class LogRanges(NamedTuple):
    """Physical offsets of a log, by which old entries are judged.

    Attributes
    ----------
    begin, end
        The first file's start, the end of the last record.
    damaged
        Ranges in between whose records are lost.
    leftovers
        Ranges of records of an earlier log, which gave out nothing in this one.
    """

    begin: int
    end: int
    damaged: Sequence[tuple[int, int]]
    leftovers: Sequence[tuple[int, int]]


def index_names(first_timestamps_ms: Iterable[int]) -> list[str]:
    """Return the names of index files whose first items were stored at these times."""
    names: list[str] = []
    newest: str | None = None
    for timestamp_ms in first_timestamps_ms:
        try:
            newest = next_index_file_name(timestamp_ms, None, newest)
        except FieldRangeError:  # no date: a damaged header
            newest = next_index_file_name(0, None, newest)
        names.append(newest)
    return names


class FileWriting(NamedTuple):
    """Writes whole files.

    Attributes
    ----------
    store
        Location whose old queues say which numbers were given out.
    target
        Location that the new ``consumequeue`` and ``index`` are below.
    """

    store: str
    target: str
    settings: RebuildSettings
    log: LogRanges

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the files of all targets among ordered blocks; yield what was written."""
        import pyarrow as pa  # noqa: PLC0415 - only where rows are made

        names = [column.split()[0] for column in WRITTEN_SCHEMA.split(", ")]
        for target, pieces in blocks_of(batches):
            attempt = self._new_attempt()
            try:
                if target.startswith(INDEX_TARGET):
                    # Its name follows from the files before it: the driver gives it.
                    counts = self._write_index(attempt, int(target[1:]), pieces)
                    place = ATTEMPTS
                else:
                    directory = os.fsdecode(target[1:])
                    counts = self._write_queue(attempt, directory, pieces)
                    place = f"{CONSUME_QUEUE_DIRECTORY}/{directory}"
                files = sorted(os.listdir(attempt))  # noqa: PTH208 - a path made of strings
                if is_remote(self.target):
                    self._send(attempt, place, files)
                else:
                    sync_path(attempt)
            except BaseException:
                shutil.rmtree(attempt, ignore_errors=True)
                raise
            values = [target, attempt.rpartition("/")[2], len(files), *counts]
            yield pa.RecordBatch.from_pylist([dict(zip(names, values, strict=True))])

    def _new_attempt(self) -> str:
        if is_remote(self.target):
            return tempfile.mkdtemp(prefix="rocketstore-rebuild-")
        attempt = f"{files_at(self.target)[1]}/{ATTEMPTS}/{uuid.uuid4().hex}"
        os.mkdir(attempt)  # noqa: PTH102 - a path made of strings; without its parent all is over
        return attempt

    def _send(self, attempt: str, place: str, files: Sequence[str]) -> None:
        objects = ObjectStore(self.target)
        for name in files:
            objects.upload(Path(attempt, name), f"{objects.root}/{place}/{name}")
        shutil.rmtree(attempt)

    # --- a queue --------------------------------------------------------------------------------

    def _write_queue(
        self, attempt: str, directory: str, pieces: Iterator[tuple[Int64Array, npt.NDArray[Any]]]
    ) -> tuple[int, int, int, int, int]:
        """Write the files of one queue; return entries, refused records, 0, kept places, 0."""
        files = RebuiltQueue(attempt, self.settings.queue_file_bytes)
        places = EntryPlaces(self.settings.entries_per_file)
        placed = 0
        try:
            for (offsets, content), following in _with_next(pieces):
                entries = content.view(ENTRY_DTYPE)
                physical = entries["physical_offset"].astype(np.int64)
                sizes = entries["record_size"].astype(np.int64)
                for run in places.take(offsets, physical, sizes, following):
                    files.write(run.queue_offset, entries[run.start : run.stop])
                    placed += run.stop - run.start
            for start, stop in places.holes:
                files.fill(start, stop)
            end = places.following if places.begin >= 0 else None
            kept = OldQueue(self.store, directory, self.settings, self.log).keep(files, end)
        finally:
            files.close()
        return placed, places.refused_count, 0, kept, 0

    # --- an index file --------------------------------------------------------------------------

    def _write_index(
        self, attempt: str, number: int, pieces: Iterator[tuple[Int64Array, npt.NDArray[Any]]]
    ) -> tuple[int, int, int, int, int]:
        """Write one index file; return 0, 0, items, 0, the store time of the first."""
        layout, size = self.settings.layout, self.settings.items_per_file
        put = kernels.load("put_items")
        count = first_ms = 0
        descriptor = open_whole(f"{attempt}/{number}", layout.size_bytes)
        try:
            mapping = mmap.mmap(descriptor, layout.size_bytes)
            array = np.frombuffer(mapping, np.uint8)
            for numbers, content in pieces:
                own = (numbers >= number * size) & (numbers < (number + 1) * size)
                items = content.view(ITEM_DTYPE)[own]
                if not count:
                    first_ms = int(items["stored"][0])
                # Kernels want each column in one piece.
                columns = [items[name].astype(np.int64) for name in ("hash", "physical", "stored")]
                done = put(array, layout.slot_count, layout.item_count, *columns)
                assert done == len(items), "a file is given no more items than it has room for"
                count += done
            mapping.flush()
            del array
            mapping.close()
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        return 0, 0, count, 0, first_ms


def blocks_of(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[bytes, Iterator[tuple[Int64Array, npt.NDArray[Any]]]]]:
    """Yield each target among ordered blocks, and the numbers and bytes of its rows."""
    for target, group in itertools.groupby(_pieces(batches), key=lambda piece: piece[0]):
        yield target, ((numbers, content) for _, numbers, content in group if len(numbers))


def _pieces(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[bytes, Int64Array, npt.NDArray[Any]]]:
    """Yield target, numbers and bytes of neighbouring blocks of one target.

    Raises
    ------
    StoreDamagedError
        A block is not what was sent.
    """
    for batch in batches:
        targets, data = batch.column("target").to_pylist(), batch.column("data")
        firsts = batch.column("first").to_numpy()
        contents = [one.as_buffer() for one in data]
        for content, crc in zip(contents, batch.column("crc").to_pylist(), strict=True):
            if zlib.crc32(content) != crc:
                raise StoreDamagedError(
                    f"a block of {content.size} bytes came out of Spark's shuffle with another "
                    f"checksum: expected {crc:#010x}, found {zlib.crc32(content):#010x}",
                    hint="nothing was replaced; check the executors' disks and memory, and run the "
                    "rebuild again",
                )
        start = 0
        for target, group in itertools.groupby(targets):
            stop = start + len(list(group))
            while start < stop:
                some = contents[start : min(stop, start + _PIECE_BLOCKS)]
                numbers = _numbers(firsts[start : start + len(some)], [one.size for one in some])
                yield target, numbers, np.frombuffer(b"".join(some), np.uint8)
                start += len(some)


def _numbers(firsts: Int64Array, sizes: Sequence[int]) -> Int64Array:
    """Return the numbers of all that some blocks hold, each of which begins at its first."""
    lengths = np.array(sizes, np.int64) // ENTRY_SIZE_BYTES
    before = np.cumsum(lengths) - lengths
    numbers: Int64Array = np.repeat(firsts - before, lengths) + np.arange(int(lengths.sum()))
    return numbers


def _with_next(
    pieces: Iterator[tuple[Int64Array, npt.NDArray[Any]]],
) -> Iterator[tuple[tuple[Int64Array, npt.NDArray[Any]], int | None]]:
    """Yield each piece and the number in the first row of the next one."""
    held: tuple[Int64Array, npt.NDArray[Any]] | None = None
    for piece in pieces:
        if held is not None:
            yield held, int(piece[0][0])
        held = piece
    if held is not None:
        yield held, None


class RebuiltQueue:
    """The files of one queue, made whole as they are needed, with all their blocks."""

    def __init__(self, directory: str, file_bytes: int) -> None:
        self.file_bytes = file_bytes
        self._directory = directory
        self._open: dict[int, int] = {}

    def write(self, queue_offset: int, entries: EntryArray | bytes) -> None:
        """Write entries from a queue offset on."""
        view = np.frombuffer(entries, np.uint8).data
        at = queue_offset * ENTRY_SIZE_BYTES
        while view:
            base = at - at % self.file_bytes
            piece = view[: base + self.file_bytes - at]
            written = os.pwrite(self._descriptor(base), piece, at - base)
            view = view[written:]
            at += written

    def fill(self, start: int, stop: int) -> None:
        """Write fillers into the places ``[start, stop)``."""
        most = len(_FILLERS) // ENTRY_SIZE_BYTES
        for at in range(start, stop, most):
            self.write(at, _FILLERS[: min(most, stop - at) * ENTRY_SIZE_BYTES])

    def close(self) -> None:
        """Make what was written durable, and let go of the files."""
        while self._open:
            _, descriptor = self._open.popitem()
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

    def _descriptor(self, base: int) -> int:
        descriptor = self._open.get(base)
        if descriptor is None:
            if len(self._open) >= _OPEN_FILES:
                self.close()
            path = f"{self._directory}/{file_name(base)}"
            descriptor = self._open[base] = open_whole(path, self.file_bytes)
        return descriptor


def open_whole(path: str, size: int) -> int:
    """Open a file for writing, made with all its blocks if it is not there.

    Raises
    ------
    StoreFullError
        The disk has no room for it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(descriptor).st_size < size:
            os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        os.close(descriptor)
        raise StoreFullError(
            f"{path} cannot be made: {error.strerror}",
            hint=f"a rebuild needs room for new queues and index beside the old; {size} bytes here",
        ) from error
    return descriptor


# --- numbers that were given out ----------------------------------------------------------------


class OldQueue(NamedTuple):
    """A queue as it was: its end says which numbers were given out.

    A queue made from the log alone ends after its last record. Where the old queue went on, because
    its last records were lost or deleted, a consumer may have read them: their numbers must not be
    given again (decision 0014, K-C4). Only what lies after the new queue's end is read.
    """

    store: str
    directory: str
    settings: RebuildSettings
    log: LogRanges

    def keep(self, files: RebuiltQueue, end: int | None) -> int:
        """Write kept places after a queue's `end`, None where nothing is in it; return how many."""
        old = self._files()
        if end is None:
            return self._keep_vanished(old, files)
        given, per_file = end, self.settings.entries_per_file
        base = end // per_file * files.file_bytes
        # Only file by file: one damaged name must not make files up to it.
        while base in old:
            first = max(end, base // ENTRY_SIZE_BYTES)
            row = _last(self._is_given(self._read(old[base], first - base // ENTRY_SIZE_BYTES)))
            given = first + row + 1 if row >= 0 else given
            base += files.file_bytes
        for at in range(end, given, per_file):
            files.write(at, KEPT_PLACE_BYTES * min(per_file, given - at))
        return given - end

    def _keep_vanished(self, old: dict[int, tuple[str, int]], files: RebuiltQueue) -> int:
        """Keep the last file of a queue that has no record left, if it says what was given."""
        for base in sorted(old, reverse=True):
            entries = self._read(old[base])
            is_expired = written_mask(entries) & ~filler_mask(entries)
            is_expired &= entries["physical_offset"] < self.log.begin
            row = _last(is_expired | self._is_given(entries))
            if row < 0:
                continue
            is_whole = old[base][1] == files.file_bytes
            kept = (
                entries.tobytes() if is_expired[row] and is_whole else KEPT_PLACE_BYTES * (row + 1)
            )
            files.write(base // ENTRY_SIZE_BYTES, kept)
            return row + 1
        return 0

    def _files(self) -> dict[int, tuple[str, int]]:
        """Return path and size of each file, by the position of its first byte in the queue."""
        files, root = files_at(self.store)
        return {
            base: (one.path, one.size)
            for one in files.list(f"{root}/{CONSUME_QUEUE_DIRECTORY}/{self.directory}")
            if (base := parse_file_name(one.name)) is not None and not one.is_directory
        }

    def _read(self, place: tuple[str, int], first: int = 0) -> npt.NDArray[np.void]:
        """Return the entries of a file from some number on, and zeros after its end."""
        entries = np.zeros(self.settings.entries_per_file - first, ENTRY_DTYPE)
        view = entries.view(np.uint8).data
        with opened(files_at(self.store)[0], place[0]) as file:
            read = file.read_into(first * ENTRY_SIZE_BYTES, view)
        # What is left of an entry that was cut off does not count.
        view[read - read % ENTRY_SIZE_BYTES : read] = bytes(read % ENTRY_SIZE_BYTES)
        return entries

    def _is_given(self, entries: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        """Return which entries stand for numbers that were given out and have no record."""
        offsets = entries["physical_offset"].astype(np.int64)
        is_lost = offsets >= self.log.end
        for start, stop in self.log.damaged:
            is_lost |= (offsets >= start) & (offsets < stop)
        for start, stop in self.log.leftovers:
            is_lost &= (offsets < start) | (offsets >= stop)
        is_message = written_mask(entries) & ~filler_mask(entries)
        given: npt.NDArray[np.bool_] = (is_message & is_lost) | kept_place_mask(entries)
        return given


def _last(mask: npt.NDArray[np.bool_]) -> int:
    """Return the last row that is set, -1 for none."""
    rows = np.flatnonzero(mask)
    return int(rows[-1]) if rows.size else -1
