"""Write queue files and index files from the blocks of a log: one task has all of a target.

A queue is written whole by one task, because the place of an entry depends on every record of its
queue before it; a long one whose records state one number after the other is written in parts.
Each attempt works in a directory of its own: on a shared disk the driver takes over the attempt
that Spark reports; to an object store an attempt sends whole objects.

Law: only final bytes are sent; doing it twice, or at the same time, does no harm.
"""

from __future__ import annotations

import itertools
import mmap
import os
import shutil
import tempfile
import uuid
from collections import Counter, defaultdict
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rocketstore.errors import FieldRangeError, StoreError
from rocketstore.format import queue_entry
from rocketstore.format.file_name import CONSUME_QUEUE_DIRECTORY, INDEX_DIRECTORY, file_name
from rocketstore.format.index_file import LAST_ZONE, next_index_file_name
from rocketstore.format.queue_entry import ENTRY_DTYPE, ENTRY_SIZE_BYTES
from rocketstore.pipeline.jobs.execution import row_batch
from rocketstore.pipeline.jobs.publishing import plain_write_errors, remove_tree
from rocketstore.pipeline.jobs.rebuild.log_blocks import (
    INDEX_TARGET,
    ITEM_DTYPE,
    QUEUE_TARGET,
    unpacked,
)
from rocketstore.places.files import sync_all
from rocketstore.places.location import is_remote, joined
from rocketstore.places.objects import ObjectStore
from rocketstore.places.queue_files import QueueFiles
from rocketstore.rules.entry_places import EntryPlaces
from rocketstore.rules.unbacked import GIVEN_KINDS, LogBounds, UnbackedKind, unbacked_runs
from rocketstore.scan import kernels
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from rocketstore.config import StoreSizes
    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.native.row import ByteArray

WRITTEN_SCHEMA: Final = (
    "target BINARY, place STRING, files BIGINT, count BIGINT, refused BIGINT, kept BIGINT, "
    "first_ms BIGINT"
)
"""Result for one target: `place` has its files, below the directory that all is made in;
`count` are entries or items, `kept` places at a queue's end that stand for numbers that were given
out, `first_ms` the store time of an index file's first item."""

ATTEMPTS: Final = "attempts"
"""Directory beside the new ``consumequeue`` and ``index``, for directories of attempts."""

_MAPPED_ITEMS: Final = 524_288
"""Items after which an index file's pages are let go of; they stay in the system's cache."""


class Block(NamedTuple):
    """Neighbouring entries or items of a target; `first` is the number of the first."""

    target: bytes
    first: int
    content: ByteArray

    def inside(self, number: int, size: int) -> Block:
        """Return what is of a target that has so many: a block at an edge of two goes to both."""
        start, stop = (max(0, at * size - self.first) for at in (number, number + 1))
        rows = self.content[start * ENTRY_SIZE_BYTES : stop * ENTRY_SIZE_BYTES]
        return Block(self.target, self.first + start, rows)


class FileWriting(NamedTuple):
    """Writes whole files below `directory`.

    The old queues of `store` say which numbers were given out, judged by `log`. A part of a queue
    has `part_entries`.
    """

    store: str
    directory: str
    sizes: StoreSizes
    log: LogBounds
    part_entries: int

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the files of all targets among ordered rows of blocks; yield `WRITTEN_SCHEMA`.

        They are synced at once, directories by the driver.
        """
        attempts, rows = list[str](), list[tuple[object, ...]]()
        try:
            for target, blocks in itertools.groupby(_blocks(batches), key=attrgetter("target")):
                attempts.append(attempt := self._new_attempt())
                with plain_write_errors(attempt):
                    is_index = target.startswith(INDEX_TARGET)
                    write = self._write_index if is_index else self._write_queue
                    counts = write(attempt, target, blocks)
                    files = list(Path(attempt).iterdir())
                rows.append((target, self._sent(attempt, target, files), len(files), *counts))
            with plain_write_errors(self.directory):
                sync_all(path for one in attempts for path in Path(one).glob("*"))
        except BaseException:
            for attempt in attempts:
                shutil.rmtree(attempt, ignore_errors=True)
            raise
        yield from (row_batch([row], WRITTEN_SCHEMA) for row in rows)

    def _new_attempt(self) -> str:
        if is_remote(self.directory):
            return tempfile.mkdtemp(prefix="rocketstore-rebuild-")
        attempt = Path(self.directory, ATTEMPTS, uuid.uuid4().hex)
        with plain_write_errors(attempt):
            attempt.mkdir()  # without its parent the rebuild has ended, or the disk is not shared
        return str(attempt)

    def _sent(self, attempt: str, target: bytes, files: Sequence[Path]) -> str:
        """Return where the files of an attempt are, on an object store once they are there."""
        place = f"{ATTEMPTS}/{Path(attempt).name}"
        if is_remote(self.directory):
            if not target.startswith(INDEX_TARGET):
                place = f"{CONSUME_QUEUE_DIRECTORY}/{queue_of(target)}"
            objects = ObjectStore(self.directory)
            for path in files:
                objects.upload(path, f"{place}/{path.name}")
            shutil.rmtree(attempt)
        return place

    def _write_index(
        self, attempt: str, target: bytes, blocks: Iterator[Block]
    ) -> tuple[int, int, int, int]:
        """Write an index file, which the driver names; return items, 0, 0, the first one's time."""
        layout, size = self.sizes.index_layout, items_per_file(self.sizes)
        count = first_ms = 0
        with whole_file(f"{attempt}/index", layout.size_bytes) as descriptor:
            mapping = mmap.mmap(descriptor, layout.size_bytes)
            array = np.frombuffer(mapping, np.uint8)
            for block in blocks:
                items = block.inside(int(target[1:]), size).content.view(ITEM_DTYPE)
                first_ms = first_ms if count else int(items["stored"][0])
                # Kernels want each column in one piece.
                columns = [items[name].astype(np.int64) for name in ("hash", "physical", "stored")]
                done = kernels.put_items(array, *layout, *columns)
                assert done == len(items), "a file is given no more items than it has room for"
                count += done
                if count % _MAPPED_ITEMS < done:
                    mapping.madvise(mmap.MADV_DONTNEED)
        return count, 0, 0, first_ms

    def _write_queue(
        self, attempt: str, target: bytes, blocks: Iterator[Block]
    ) -> tuple[int, int, int, int]:
        """Write a queue or a part of it; return entries, refused records, kept places, 0."""
        # A part's number, and whether it is the last; no topic has the separator.
        _, *part = target.split(b"\0")
        if part:
            blocks = (block.inside(int(part[0]), self.part_entries) for block in blocks)
        files = QueueWriter(attempt, self.sizes.consume_queue_file_bytes)
        places, count = EntryPlaces(self.sizes.entries_per_file), 0
        blocks, ahead = itertools.tee(block for block in blocks if len(block.content))
        next(ahead, None)
        for block, after in itertools.zip_longest(blocks, ahead):
            entries = block.content.view(ENTRY_DTYPE)
            next_number = None if after is None else after.first
            for start, stop, offset in places.take(block.first, entries, next_number):
                files.write(offset, entries[start:stop])
                count += stop - start
        for start, stop in places.holes:
            files.fill(start, stop, queue_entry.FILLER_BYTES)
        is_end = part[1:] != [b""]
        kept = self._keep_given(queue_of(target), files, places.following) if is_end else 0
        return count, places.refused_count, kept, 0

    def _keep_given(self, name: str, files: QueueWriter, end: int) -> int:
        """Keep the places after a queue's `end` that the old queue has; return how many.

        A queue made from the log alone ends after its last record. Where the old one went on,
        because its last records were lost or deleted, a consumer may have read them: their numbers
        must not be given again (decision 0014, K-C4).
        """
        topic, _, number = name.rpartition("/")
        old = QueueFiles(self.store, QueueKey(topic, int(number)))
        if end < 0:
            return self._keep_vanished(old, files)
        given = reached = end
        for first, entries in old.chunks(end, old.stored_stop):
            if first - reached >= self.sizes.entries_per_file:
                break  # one damaged name must not make files up to it
            runs = unbacked_runs(entries, first, self.log)
            given = max([given, *(one.stop for one in runs if one.kind in GIVEN_KINDS)])
            reached = first + len(entries)
        files.fill(end, given, queue_entry.KEPT_PLACE_BYTES)
        return given - end

    def _keep_vanished(self, old: QueueFiles, files: QueueWriter) -> int:
        """Keep the last file of a queue that has no record left, if it says what was given."""
        for file in reversed(old.files.files):
            first = file.base // ENTRY_SIZE_BYTES
            entries = old.entries(first, self.sizes.entries_per_file)
            for run in reversed(unbacked_runs(entries, 0, self.log)):
                if run.kind is UnbackedKind.EXPIRED and file.size == files.file_bytes:
                    files.write(first, entries)
                    return run.stop
                if run.kind in GIVEN_KINDS | {UnbackedKind.EXPIRED}:
                    files.fill(first, first + run.stop, queue_entry.KEPT_PLACE_BYTES)
                    return run.stop
        return 0


def queue_of(target: bytes) -> str:
    """Return the directory of the queue that a target is, or is a part of."""
    return os.fsdecode(target.partition(b"\0")[0].removeprefix(QUEUE_TARGET))


def items_per_file(sizes: StoreSizes) -> int:
    """Return how many items an index file takes: item 0 is never used."""
    return max(1, sizes.index_item_count - 1)


def _blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[Block]:
    names = ("target", "first", "data", "count", "crc")
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in names]
        for target, first, *sent in zip(*columns, strict=True):
            yield Block(target, first, unpacked(*sent))


class QueueWriter(NamedTuple):
    """The files of one queue, made whole as they are needed, with all their blocks."""

    directory: str
    file_bytes: int

    def write(self, queue_offset: int, entries: EntryArray | bytes) -> None:
        """Write entries from a queue offset on."""
        view = np.frombuffer(entries, np.uint8).data
        at = queue_offset * ENTRY_SIZE_BYTES
        while view:
            base = at - at % self.file_bytes
            path = f"{self.directory}/{file_name(base)}"
            with whole_file(path, self.file_bytes) as descriptor:
                written = os.pwrite(descriptor, view[: base + self.file_bytes - at], at - base)
            view = view[written:]
            at += written

    def fill(self, start: int, stop: int, entry: bytes) -> None:
        """Write one entry into all the places ``[start, stop)``."""
        most = self.file_bytes // ENTRY_SIZE_BYTES
        for at in range(start, stop, most):
            self.write(at, entry * min(most, stop - at))


@contextmanager
def whole_file(path: str, size: int) -> Iterator[int]:
    """Open a file for writing, made with all its blocks if it is not there."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(descriptor).st_size < size:
            os.posix_fallocate(descriptor, 0, size)
        yield descriptor
    finally:
        os.close(descriptor)


# --- on the driver ------------------------------------------------------------------------------


def take_over(directory: str, written: Sequence[Mapping[str, Any]], sizes: StoreSizes) -> None:
    """Check the files of every target, give index files their names, and put all in its place."""
    found, counts = _sizes(directory), Counter[str]()
    for row in written:
        counts[row["place"]] += row["files"]
    for row in written:
        place, is_index = row["place"], row["target"].startswith(INDEX_TARGET)
        expected = sizes.index_layout.size_bytes if is_index else sizes.consume_queue_file_bytes
        wrong = [size for size in found[place] if size != expected]
        if wrong or len(found[place]) != counts[place]:
            raise StoreError(
                f"{joined(directory, place)}: expected {counts[place]} files of {expected} bytes, "
                f"found {len(found[place])} files, {len(wrong)} of another length {wrong[:1]}",
                hint="a write was cut off, or another program writes there; nothing of this run "
                "counts: run it again",
            )
    index = [row for row in written if row["target"].startswith(INDEX_TARGET)]
    index.sort(key=lambda row: int(row["target"][1:]))
    moves: list[tuple[str, str]] = []
    newest = None
    for row in index:
        try:
            newest = next_index_file_name(row["first_ms"], LAST_ZONE, newest)
        except FieldRangeError:  # no date: a damaged header
            newest = next_index_file_name(0, LAST_ZONE, newest)
        moves.append((f"{row['place']}/index", f"{INDEX_DIRECTORY}/{newest}"))
    if is_remote(directory):
        objects = ObjectStore(directory)
        objects.move_all(moves)
        objects.remove_tree(ATTEMPTS)
        return
    moves += [
        (row["place"], f"{CONSUME_QUEUE_DIRECTORY}/{queue_of(row['target'])}")
        for row in written
        if row["files"] and not row["target"].startswith(INDEX_TARGET)
    ]
    for old, new in moves:
        made, place = Path(directory, old), Path(directory, new)
        place.parent.mkdir(exist_ok=True)
        for path in made.iterdir() if place.exists() else ():  # a further part
            path.rename(place / path.name)
        if not place.exists():
            made.rename(place)
    remove_tree(Path(directory, ATTEMPTS))


def _sizes(directory: str) -> dict[str, list[int]]:
    """Return the sizes of all files below a directory, by the place that they are in."""
    if is_remote(directory):
        sizes = ObjectStore(directory).sizes()
    else:
        files = Path(directory, ATTEMPTS).glob("*/*")
        sizes = {path.relative_to(directory).as_posix(): path.stat().st_size for path in files}
    found: dict[str, list[int]] = defaultdict(list)
    for path, size in sizes.items():
        found[path.rpartition("/")[0]].append(size)
    return found
