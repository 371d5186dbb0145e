"""The plan for a store without a shared disk that can be written in place: shuffle and whole files.

The log is read twice: once to count index items, which says where index files begin, and once for
the rows. Spark brings the rows of a queue, or of an index file, together in the order of the log;
one task writes the file, under a name of its own until it is whole.

Law: the bytes are those of the other plan.
"""

from __future__ import annotations

import itertools
import os
import shutil
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rocketstore.format.queue_entry import ENTRY_DTYPE
from rocketstore.pipeline.jobs.rebuild.extraction import Items
from rocketstore.pipeline.jobs.rebuild.index_files import build_index_file
from rocketstore.pipeline.jobs.rebuild.placement import Placement
from rocketstore.pipeline.jobs.rebuild.queue_files import QueueFiles
from rocketstore.pipeline.jobs.rebuild.tasks import LogReading, LogTask, manifest_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from rocketstore.pipeline.jobs.rebuild.extraction import Entries
    from rocketstore.pipeline.jobs.rebuild.settings import RebuildSettings
    from rocketstore.scan.dispatch_state import Int64Array

ROW_SCHEMA: Final = (
    "target STRING, physicalOffset LONG, ordinal LONG, number LONG, size LONG, code LONG"
)
"""A row is an entry (number: queue offset, code: tags code) or an index item (number: key hash,
code: store time); `ordinal` orders rows of one record."""

WRITTEN_SCHEMA: Final = "entries LONG, refused LONG, items LONG, number LONG, timestamp LONG"

QUEUE_TARGET: Final = "queue/"
INDEX_TARGET: Final = "index/"


def count_log(task: LogTask) -> Iterator[pa.RecordBatch]:
    """Read splits and only count; yield a manifest without a part."""
    reading = LogReading(task.settings, task.excluded)
    entry_count = item_count = 0
    for entries, items in reading.pieces(task.splits):
        entry_count += len(entries.numbers)
        item_count += len(items.key_hashes)
    yield manifest_rows(task, reading, entry_count=entry_count, item_count=item_count)


class RowTask(NamedTuple):
    """Read splits into rows.

    Attributes
    ----------
    first_item
        How many index items the log has before these splits.
    """

    log: LogTask
    first_item: int


def emit_rows(task: RowTask) -> Iterator[pa.RecordBatch]:
    """Yield rows of `ROW_SCHEMA`."""
    item = task.first_item
    for rows, items in log_rows(task.log):
        if rows is not None:
            yield rows
        count = len(items.key_hashes)
        if count:
            numbers = (item + np.arange(count)) // task.log.settings.items_per_file
            yield item_rows(items, numbers, np.zeros(count, np.int64))
            item += count


def log_rows(task: LogTask) -> Iterator[tuple[pa.RecordBatch | None, Items]]:
    """Yield rows of queue entries, None where there are none, and the index items beside them."""
    reading = LogReading(task.settings, task.excluded)
    for entries, items in reading.pieces(task.splits):
        names = reading.numbers.names
        directories = [name.directory if name.is_usable else "" for name in names]
        yield _entry_rows(entries, directories) if len(entries.numbers) else None, items


def _entry_rows(entries: Entries, directories: list[str]) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 - only where rows are made

    targets = pa.DictionaryArray.from_arrays(
        pa.array(entries.numbers, pa.int32()), [f"{QUEUE_TARGET}{one}" for one in directories]
    ).cast(pa.string())
    kept = entries.entries
    return _rows(
        targets,
        kept["physical_offset"].astype(np.int64),
        entries.queue_offsets,
        kept["record_size"].astype(np.int64),
        kept["tags_code"].astype(np.int64),
    )


def item_rows(items: Items, numbers: Int64Array, sizes: Int64Array) -> pa.RecordBatch:
    """Return items as rows; `numbers` are those of their targets."""
    import pyarrow as pa  # noqa: PLC0415 - as above

    first, last = int(numbers.min()), int(numbers.max())
    names = [f"{INDEX_TARGET}{number}" for number in range(first, last + 1)]
    targets = pa.DictionaryArray.from_arrays(pa.array(numbers - first, pa.int32()), names).cast(
        pa.string()
    )
    return _rows(targets, items.physical_offsets, items.key_hashes, sizes, items.store_timestamps)


def _rows(targets: Any, physical: Int64Array, *numbers: Int64Array) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 - as above

    columns = [physical, np.arange(len(physical)), *numbers]
    names = ["target", "physicalOffset", "ordinal", "number", "size", "code"]
    arrays = [targets, *(pa.array(column, pa.int64()) for column in columns)]
    return pa.RecordBatch.from_arrays(arrays, names=names)


class FileWriting(NamedTuple):
    """Writes whole files from rows.

    Attributes
    ----------
    directory
        Where attempts work; `queues` and `index` are below it, or the rebuild is over.
    """

    directory: str
    queues: str
    index_files: str
    settings: RebuildSettings

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the files of all targets among ordered rows; yield what was written."""
        for target, pieces in targets_of(batches):
            if target.startswith(QUEUE_TARGET):
                counts = self.write_queue(target.removeprefix(QUEUE_TARGET), pieces)
                yield _written(*counts, 0, -1, 0)
            else:
                number = int(target.removeprefix(INDEX_TARGET))
                count, timestamp = self._write_index(number, pieces)
                yield _written(0, 0, count, number, timestamp)

    def write_queue(
        self, directory: str, pieces: Iterator[tuple[Int64Array, ...]]
    ) -> tuple[int, int]:
        """Write the files of one queue; return entries written, records refused."""
        attempt = f"{self.directory}/{uuid.uuid4().hex}"
        os.mkdir(attempt)  # noqa: PTH102 - a path made of strings
        try:
            files = QueueFiles(attempt, self.settings.queue_file_bytes)
            placement = Placement(self.settings.entries_per_file)
            placed = 0
            try:
                for (physical, queue_offsets, sizes, codes), following in _with_next(pieces):
                    entries = np.empty(len(physical), ENTRY_DTYPE)
                    entries["physical_offset"] = physical
                    entries["record_size"] = sizes
                    entries["tags_code"] = codes
                    for run in placement.take(queue_offsets, physical, sizes, following):
                        files.write(directory, run.queue_offset, entries[run.start : run.stop])
                        placed += run.stop - run.start
                for start, stop in placement.holes:
                    files.fill(directory, start, stop)
            finally:
                files.close()
            files.give_names(directory, self.queues)
        finally:
            shutil.rmtree(attempt, ignore_errors=True)
        return placed, placement.refused_count

    def _write_index(
        self, number: int, pieces: Iterator[tuple[Int64Array, ...]]
    ) -> tuple[int, int]:
        count, first_timestamp = 0, 0

        def items() -> Iterator[Items]:
            nonlocal count, first_timestamp
            for physical, hashes, _, timestamps in pieces:
                if not count:
                    first_timestamp = int(timestamps[0])
                count += len(hashes)
                yield Items(hashes, physical, timestamps)

        path = f"{self.index_files}/{index_file_number(number)}"
        build_index_file(path, self.settings.layout, items())
        return count, first_timestamp


def index_file_number(number: int) -> str:
    """Return the name of an index file until all of them are there and get their own."""
    return f"number-{number:08d}"


def targets_of(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[str, Iterator[tuple[Int64Array, ...]]]]:
    """Yield each target among ordered rows, and the columns of its rows piece by piece.

    The columns are physical offset, number, size and code.
    """
    for target, group in itertools.groupby(_pieces(batches), key=_target_of):
        yield target, (columns for _, columns in group)


def _pieces(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[str, tuple[Int64Array, ...]]]:
    """Yield target and columns of neighbouring rows of one target."""
    for batch in batches:
        encoded = batch.column(0).dictionary_encode()
        codes = encoded.indices.to_numpy()
        physical, _, *others = (
            # A copy: kernels take no array that is read-only.
            np.array(column.to_numpy())
            for column in batch.columns[1:]
        )
        columns = (physical, *others)
        bounds = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
        for start, stop in itertools.pairwise(bounds):
            if start < stop:
                target = encoded.dictionary[int(codes[start])].as_py()
                yield target, tuple(column[start:stop] for column in columns)


def _with_next(
    pieces: Iterator[tuple[Int64Array, ...]],
) -> Iterator[tuple[tuple[Int64Array, ...], int | None]]:
    """Yield each piece and the number in the first row of the next one."""
    held: tuple[Int64Array, ...] | None = None
    for piece in pieces:
        if held is not None:
            yield held, int(piece[1][0])
        held = piece
    if held is not None:
        yield held, None


def _target_of(piece: tuple[str, tuple[Int64Array, ...]]) -> str:
    return piece[0]


def _written(*numbers: int) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 - as above

    names = [column.split()[0] for column in WRITTEN_SCHEMA.split(", ")]
    return pa.RecordBatch.from_arrays(
        [pa.array([number], pa.int64()) for number in numbers], names=names
    )
