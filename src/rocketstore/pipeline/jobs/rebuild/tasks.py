"""What workers do in a rebuild on a shared disk: read splits into parts, and place what parts hold.

First each split of the log becomes a part (`read_log`). When all are there the driver knows where
everything belongs; then `place` writes entries and index files from the parts. Nothing is shuffled:
every worker sees the same disk.

Law: whatever a task does may be done twice, also at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from rocketstore.format.queue_entry import ENTRY_DTYPE
from rocketstore.pipeline.jobs.rebuild.extraction import (
    Entries,
    Items,
    QueueNumbers,
    entries_of,
    items_of,
    joined_entries,
)
from rocketstore.pipeline.jobs.rebuild.index_files import build_index_file
from rocketstore.pipeline.jobs.rebuild.parts import Broken, PartManifest, PartPlace, write_part
from rocketstore.pipeline.jobs.rebuild.placement import Placement
from rocketstore.pipeline.jobs.rebuild.queue_files import QueueFiles
from rocketstore.pipeline.log_read import read_split
from rocketstore.scan.columns import RecordColumns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from rocketstore.format.index_file import IndexLayout
    from rocketstore.pipeline.jobs.rebuild.parts import QueuePart
    from rocketstore.pipeline.jobs.rebuild.settings import RebuildSettings
    from rocketstore.pipeline.log_read import FoundDamage
    from rocketstore.pipeline.planning import SplitTask

PART_SCHEMA: Final = "manifest BINARY"
PLACE_SCHEMA: Final = "entries LONG, refused LONG, items LONG"

_PIECE_ROWS: Final = 1 << 20
"""Entries or items that are in memory at a time while they are placed: about 30 MB."""


# --- reading the log ----------------------------------------------------------------------------


class LogTask(NamedTuple):
    """Read some splits into one part.

    Attributes
    ----------
    excluded
        Physical ranges whose records are none of this log's (decision 0004).
    parts_directory
        Where the part is written.
    """

    number: int
    splits: tuple[SplitTask, ...]
    settings: RebuildSettings
    excluded: tuple[tuple[int, int], ...]
    parts_directory: str


def read_log(task: LogTask) -> Iterator[pa.RecordBatch]:
    """Read the splits of a task into a part; yield its manifest."""
    reading = LogReading(task.settings, task.excluded)
    entries: list[Entries] = []
    items: list[Items] = []
    for some_entries, some_items in reading.pieces(task.splits):
        entries.append(some_entries)
        items.append(some_items)
    all_entries, all_items = _joined_entries(entries), _joined_items(items)
    path, queues = write_part(
        task.parts_directory, task.number, reading.numbers.names, all_entries, all_items
    )
    counts = {"entry_count": len(all_entries.numbers), "item_count": len(all_items.key_hashes)}
    yield manifest_rows(task, reading, path=path, queues=queues, **counts)


def manifest_rows(
    task: LogTask,
    reading: LogReading,
    *,
    entry_count: int,
    item_count: int,
    path: str = "",
    queues: Sequence[QueuePart] = (),
) -> pa.RecordBatch:
    """Return what was read as a row of `PART_SCHEMA`."""
    import pyarrow as pa  # noqa: PLC0415 - only where rows are made

    manifest = PartManifest(
        task.number,
        path,
        list(queues),
        entry_count,
        item_count,
        reading.record_count,
        reading.refused_count,
        reading.log_stop,
        reading.newest_timestamp_ms,
        reading.broken,
    )
    encoded = pa.array([msgspec.msgpack.encode(manifest)], pa.binary())
    return pa.RecordBatch.from_arrays([encoded], names=["manifest"])


class LogReading:
    """Reads splits, and counts what it meets."""

    def __init__(self, settings: RebuildSettings, excluded: Sequence[tuple[int, int]]) -> None:
        self.numbers = QueueNumbers()
        self.record_count = 0
        self.refused_count = 0
        self.log_stop = 0
        self.newest_timestamp_ms = 0
        self.broken: list[Broken] = []
        self._settings = settings
        self._excluded = excluded

    def pieces(self, splits: Sequence[SplitTask]) -> Iterator[tuple[Entries, Items]]:
        """Yield what the records of some splits call for, batch by batch."""
        for split in splits:
            for read, found in read_split(split):
                self.broken += [_broken(split, one) for one in found]
                columns = self._kept(read)
                if len(columns):
                    yield self._take(columns)

    def _kept(self, columns: RecordColumns) -> RecordColumns:
        if not self._excluded or not len(columns):
            return columns
        physical = columns.physical_offset
        is_kept = np.ones(len(columns), np.bool_)
        for start, stop in self._excluded:
            is_kept &= (physical < start) | (physical >= stop)
        return RecordColumns(columns.buffer, columns.cols[is_kept], columns.base)

    def _take(self, columns: RecordColumns) -> tuple[Entries, Items]:
        entries, refused = entries_of(columns, self.numbers, self._settings)
        self.refused_count += refused
        self.record_count += len(columns)
        self.log_stop = int(columns.physical_offset[-1] + columns.size[-1])
        newest = int(columns.store_timestamp.max())
        self.newest_timestamp_ms = max(self.newest_timestamp_ms, newest)
        items = items_of(columns) if self._settings.has_index else _joined_items([])
        return entries, items


def _broken(split: SplitTask, found: FoundDamage) -> Broken:
    damage = found.damage
    return Broken(
        damage.range.start,
        damage.range.stop,
        damage.reason.value,
        damage.evidence,
        split.segment.path,
        split.segment.base,
        found.is_torn_tail,
    )


def _joined_entries(pieces: Sequence[Entries]) -> Entries:
    if not pieces:
        empty = np.empty(0, np.int64)
        return Entries(empty, empty, joined_entries(()))
    return Entries(
        np.concatenate([one.numbers for one in pieces]),
        np.concatenate([one.queue_offsets for one in pieces]),
        joined_entries([one.entries for one in pieces]),
    )


def _joined_items(pieces: Sequence[Items]) -> Items:
    if not pieces:
        empty = np.empty(0, np.int64)
        return Items(empty, empty, empty)
    return Items(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


# --- placing ------------------------------------------------------------------------------------


class QueueRun(NamedTuple):
    """Entries of a part that go to neighbouring places of one queue."""

    directory: str
    start: int
    row_count: int
    queue_offset: int


class RunsOfPart(NamedTuple):
    """Entries of a part whose places are known."""

    part: PartPlace
    runs: tuple[QueueRun, ...]


class UnevenQueue(NamedTuple):
    """A queue whose places have to be decided record by record.

    Attributes
    ----------
    pieces
        Part, first entry and count, in the order of the log.
    """

    directory: str
    pieces: tuple[tuple[PartPlace, int, int], ...]


class IndexFileTask(NamedTuple):
    """An index file and the items it gets: part, first item and count, in the order of the log."""

    path: str
    layout: IndexLayout
    pieces: tuple[tuple[PartPlace, int, int], ...]


class PlaceTask(NamedTuple):
    """Write some of the queues and index files.

    Attributes
    ----------
    queues_directory
        ``consumequeue`` that is being made.
    """

    queues_directory: str
    queue_file_bytes: int
    runs: tuple[RunsOfPart, ...]
    uneven: tuple[UnevenQueue, ...]
    index_files: tuple[IndexFileTask, ...]


def place(task: PlaceTask) -> Iterator[pa.RecordBatch]:
    """Write what a task says; yield how much it was."""
    import pyarrow as pa  # noqa: PLC0415 - only where rows are made

    counts = [pa.array([count], pa.int64()) for count in place_all(task)]
    yield pa.RecordBatch.from_arrays(counts, names=["entries", "refused", "items"])


def place_all(task: PlaceTask) -> tuple[int, int, int]:
    """Write what a task says; return entries written, records refused, items put."""
    files = QueueFiles(task.queues_directory, task.queue_file_bytes)
    entries = refused = items = 0
    try:
        for part, runs in task.runs:
            entries += _place_runs(files, part, runs)
        for queue in task.uneven:
            placed, not_placed = _place_uneven(files, queue)
            entries += placed
            refused += not_placed
    finally:
        files.close()
    for index_file in task.index_files:
        build_index_file(index_file.path, index_file.layout, _items(index_file.pieces))
        items += sum(count for _, _, count in index_file.pieces)
    return entries, refused, items


def _place_runs(files: QueueFiles, part: PartPlace, runs: Sequence[QueueRun]) -> int:
    placed = 0
    for group in _neighbours(runs):
        first = group[0].start
        entries = part.entries(first, group[-1].start + group[-1].row_count - first)
        for run in group:
            at = run.start - first
            files.write(run.directory, run.queue_offset, entries[at : at + run.row_count])
            placed += run.row_count
    return placed


def _neighbours(runs: Sequence[QueueRun]) -> Iterator[list[QueueRun]]:
    """Yield runs that are read at once."""
    group: list[QueueRun] = []
    for run in runs:
        if group and run.start + run.row_count - group[0].start > _PIECE_ROWS:
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def _place_uneven(files: QueueFiles, queue: UnevenQueue) -> tuple[int, int]:
    """Decide all places of a queue first, so that no byte is written that is not final."""
    placement = Placement(files.file_bytes // ENTRY_DTYPE.itemsize)
    runs = []
    pieces = list(_cut(queue.pieces))
    nexts = [int(part.queue_offsets(start, 1)[0]) for part, start, _ in pieces[1:2]]
    for number, (part, start, count) in enumerate(pieces):
        if placement.begin < 0 and number:
            nexts = [int(one.queue_offsets(at, 1)[0]) for one, at, _ in pieces[number + 1 :][:1]]
        entries = part.entries(start, count)
        found = placement.take(
            part.queue_offsets(start, count),
            entries["physical_offset"].astype(np.int64),
            entries["record_size"].astype(np.int64),
            nexts[0] if nexts else None,
        )
        runs += [(part, start + one.start, one.stop - one.start, one.queue_offset) for one in found]
    placed = 0
    for part, start, count, queue_offset in runs:
        files.write(queue.directory, queue_offset, part.entries(start, count))
        placed += count
    for first, behind in placement.holes:
        files.fill(queue.directory, first, behind)
    return placed, placement.refused_count


def _items(pieces: Sequence[tuple[PartPlace, int, int]]) -> Iterator[Items]:
    for part, start, count in _cut(pieces):
        yield part.items(start, count)


def _cut(
    pieces: Sequence[tuple[PartPlace, int, int]],
) -> Iterator[tuple[PartPlace, int, int]]:
    for part, start, count in pieces:
        for at in range(start, start + count, _PIECE_ROWS):
            yield part, at, min(_PIECE_ROWS, start + count - at)
