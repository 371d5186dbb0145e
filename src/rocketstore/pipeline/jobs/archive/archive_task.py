"""What a task of a run does: read its stretch of the log window by window, and write Parquet files.

The records of a window are sorted by topic, queue and offset, and written as row groups of about
``ROW_GROUP_BYTES``: so what a file's statistics say of a topic is true per row group, and memory is
a window and a row group, however large the stretch, the records or the files are. A file holds one
day of a stretch.

Law: built from buffers, never row by row. A file has a name that no other attempt has, and is on
the disk before it is reported; what is not committed is never read.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
import pyarrow  # noqa: ICN001 - `pa` is the same without its annotations
import pyarrow.compute
import pyarrow.parquet as pq

from rocketstore.errors import ArchiveError
from rocketstore.format.record import body_crc
from rocketstore.pipeline.files import ArrowFiles, files_at, opened, sync_path
from rocketstore.pipeline.jobs.archive.archive_table import (
    DAY,
    EXTENT_BYTES,
    EXTENT_SCHEMA,
    EXTENTS,
    FILE_SCHEMA,
    LOG_KINDS,
    MESSAGE_FIELDS,
    MESSAGES,
    STATISTICS,
)
from rocketstore.pipeline.jobs.publishing import plain_write_errors
from rocketstore.pipeline.log_read import damage_of, scanned
from rocketstore.pipeline.projection import FIRST_TIMESTAMP_MS, LAST_TIMESTAMP_MS, record_batches
from rocketstore.scan import kernels
from rocketstore.scan.arrow import binary_slices
from rocketstore.units import ByteRange, MiB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rocketstore.pipeline.files import OpenFile
    from rocketstore.pipeline.planning import SplitTask
    from rocketstore.pipeline.stores import StorePlace
    from rocketstore.scan.columns import RecordColumns

pa: Any = pyarrow
pc: Any = pyarrow.compute

WINDOW_BYTES: Final = 32 * MiB
"""Of the log, sorted at a time."""

WINDOW_ROWS: Final = 64 * 1024
"""A row costs 224 bytes beside its record."""

ROW_GROUP_BYTES: Final = 8 * MiB
"""A quarter of a window: what is read of one topic among many. Half of it costs a tenth more."""

_OPEN_DAYS: Final = 16
"""Files that a task writes to at a time; a log that jumps between more days gets more files."""

_FLUSH_BYTES: Final = 64 * MiB
"""What may wait to be sent to an object store: nothing else bounds how many parts wait."""

_EXTENT_ROWS: Final = 1024
_NO_DAY_NAME: Final = "__HIVE_DEFAULT_PARTITION__"
_DAY_MS: Final = 86_400_000
_NO_DAY: Final = np.iinfo(np.int64).min

_DELTA: Final = "DELTA_BINARY_PACKED"
_ENCODINGS: Final = {
    **dict.fromkeys(("queueOffset", "bornTimestamp", "storeTimestamp", "physicalOffset"), _DELTA),
    **dict.fromkeys(("uniqKey", "msgId"), "DELTA_BYTE_ARRAY"),
    **dict.fromkeys(("bodyCRC", "recordCRC", "body", "rawHead", "rawTail"), "PLAIN"),
    **dict.fromkeys(("properties.key_value.value", "keys.list.element"), "PLAIN"),
}
"""Columns whose values hardly repeat; those that only grow are stored as differences."""

# Of zstd: level 3 takes a tenth more time in all, for 3 % less of JSON bodies.
_OPTIONS: Final[dict[str, Any]] = {
    "compression": "zstd",
    "compression_level": 1,
    "write_page_checksum": True,
    "store_schema": False,
}
_MESSAGE_OPTIONS: Final = _OPTIONS | {
    "column_encoding": _ENCODINGS,
    "use_dictionary": ["properties.key_value.key", *{*MESSAGE_FIELDS.names} - {*_ENCODINGS}],
    # Least and greatest body would be copied into every footer; so would those of raw columns.
    "write_statistics": [*STATISTICS[MESSAGES], "tags", "uniqKey"],
    "write_page_index": True,
}
_FILES: Final = {MESSAGES: (FILE_SCHEMA, _MESSAGE_OPTIONS), EXTENTS: (EXTENT_SCHEMA, _OPTIONS)}


class ArchiveTask(NamedTuple):
    """What one task archives of a store, to files below the archive's location `target`.

    `log` are ranges of the log, `kept` what is kept as it is, with its kind: ``tail``, ``excess``.
    """

    number: int
    store: StorePlace
    log: tuple[SplitTask, ...]
    kept: tuple[tuple[str, SplitTask], ...]
    target: str
    run: int


class WrittenFile(NamedTuple):
    """A Parquet file: what its commit needs, and what it has of the log."""

    table: str
    path: str
    day: str | None
    size: int
    stats: str
    rows: int
    record_bytes: int
    extent_bytes: int = 0
    damaged_bytes: int = 0


_TEXTS: Final = ("table", "path", "day", "stats")
RESULT_SCHEMA: Final = ", ".join(
    f"{one} {'STRING' if one in _TEXTS else 'BIGINT'}" for one in WrittenFile._fields
)


def archive_task(task: ArchiveTask) -> Iterator[pyarrow.RecordBatch]:
    """Do a task; yield a row of ``RESULT_SCHEMA`` for each file."""
    with (
        plain_write_errors(task.target, "nothing of this run is archived", ArchiveError),
        TaskFiles(task) as written,
    ):
        for kind, split in [*(("", one) for one in task.log), *task.kept]:
            with opened(task.store.location, split.segment.path) as file:
                known = split._replace(data_stop=file.data_stop(split.segment.size))
                if kind:
                    base = split.segment.base
                    place = ByteRange(base + split.start, base + split.stop)
                    written.add_bytes(file, known, place, kind)
                else:
                    _copy_log(file, known, written)
        rows = [one._asdict() for one in written.close()]
        if rows:
            yield pa.RecordBatch.from_pylist(rows)


def _copy_log(file: OpenFile, split: SplitTask, written: TaskFiles) -> None:
    for batch in scanned(split, file, batch_records=WINDOW_ROWS, window_bytes=WINDOW_BYTES):
        written.add_records(batch.columns)
        for at, size in batch.blanks:
            written.add_bytes(file, split, ByteRange(at, at + size), "blank")
        for one, _ in damage_of(split, batch):
            written.add_bytes(file, split, one.range, "damage", one.reason.value, one.evidence)


class TableFile:
    """A Parquet file of one of the tables, under a name of its own."""

    def __init__(self, task: ArchiveTask, table: str, day: str | None = None) -> None:
        self.record_bytes = self._sent = 0
        self._table, self._day = table, day
        name = f"part-{task.number:05d}-{uuid.uuid4().hex}.parquet"
        self._path = f"{DAY}={day or _NO_DAY_NAME}/{name}" if table == MESSAGES else name
        files, root = files_at(task.target)
        place = f"{root}/{table}/{self._path}"
        self._local = None if isinstance(files, ArrowFiles) else Path(place)
        if isinstance(files, ArrowFiles):
            self._sink = files.system.open_output_stream(place)
        else:
            # Only the day: where a worker does not see the table itself, it must not make one.
            Path(place).parent.mkdir(exist_ok=True)
            self._sink = pa.OSFile(place, "wb")
        schema, options = _FILES[table]
        self._footers: list[Any] = []
        self._writer = pq.ParquetWriter(
            self._sink, schema, metadata_collector=self._footers, **options
        )

    def write(self, batch: pyarrow.RecordBatch) -> None:
        """Write a row group."""
        self._writer.write_batch(batch, row_group_size=batch.num_rows)
        if self._local is None and self._sink.tell() - self._sent >= _FLUSH_BYTES:
            self._sink.flush()
            self._sent = self._sink.tell()

    def close(self) -> WrittenFile:
        """Bring the file to the disk."""
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        if self._local is not None:
            for path in (self._local, self._local.parent, self._local.parent.parent):
                sync_path(path)
        [footer] = self._footers
        stats = _statistics(footer, STATISTICS[self._table])
        counts = footer.num_rows, self.record_bytes
        return WrittenFile(self._table, self._path, self._day, size, stats, *counts)

    def remove(self) -> None:
        """Make room on a disk; what a failed task left on an object store waits for VACUUM."""
        self._writer.is_open = False  # else it writes a footer when it is collected
        with contextlib.suppress(OSError, pa.ArrowException):
            self._sink.close()
        if self._local is not None:
            self._local.unlink(missing_ok=True)


def _statistics(footer: Any, names: Sequence[str]) -> str:
    """Return what Delta keeps of a Parquet file, from the file's own footer."""
    least, greatest, nulls = dict[str, Any](), dict[str, Any](), Counter[str]()
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for column in map(group.column, range(group.num_columns)):
            name, found = column.path_in_schema, column.statistics
            if name in names:
                nulls[name] += found.null_count
                if found.has_min_max:
                    least[name] = min(found.min, least.get(name, found.min))
                    greatest[name] = max(found.max, greatest.get(name, found.max))
    stats = {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest}
    return json.dumps(
        stats | {"nullCount": nulls}, default=lambda time: f"{time:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"
    )


class TaskFiles:
    """The files of a task, or of the driver: one for each day, one for extents; made when needed.

    Those of a ``with`` block that ends in an error are removed.
    """

    def __init__(self, task: ArchiveTask) -> None:
        self._task = task
        self._files: list[TableFile] = []
        self._days: dict[int, TableFile] = {}
        self._done: list[WrittenFile] = []
        self._extents: list[dict[str, object]] = []
        self._held_bytes = self._log_bytes = self._damaged_bytes = 0
        self._extent_file: TableFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for file in self._files:
                file.remove()

    def add_records(self, columns: RecordColumns) -> None:
        """Write the records of a window, sorted by day, topic, queue and offset."""
        if not len(columns):
            return
        times = columns.store_timestamp
        is_date = (times >= FIRST_TIMESTAMP_MS) & (times <= LAST_TIMESTAMP_MS)
        days = np.where(is_date, times // _DAY_MS, _NO_DAY)
        names = binary_slices(columns, columns.topic_at, columns.topic_size, "topic")
        encoded = names.dictionary_encode()
        ranks = pc.rank(encoded.dictionary, tiebreaker="dense").to_numpy()
        topics = ranks[encoded.indices.to_numpy()]
        order = np.lexsort(
            (columns.physical_offset, columns.queue_offset, columns.queue_id, topics, days)
        )
        numbers = np.cumsum(columns.size[order]) // ROW_GROUP_BYTES
        is_next = (np.diff(days[order]) != 0) | (np.diff(numbers) != 0)
        for rows in np.split(order, np.flatnonzero(is_next) + 1):
            file = self._file_of(int(days[rows[0]]))
            group = columns.taken(rows)
            file.write(_message_batch(group, self._task.store.broker_name))
            file.record_bytes += int(group.size.sum())

    def _file_of(self, day: int) -> TableFile:
        if day not in self._days:
            if len(self._days) == _OPEN_DAYS:
                self._done.append(self._days.pop(next(iter(self._days))).close())
            name = None if day == _NO_DAY else str(np.datetime64(day, "D"))
            self._days[day] = self._made(MESSAGES, name)
        return self._days[day]

    def _made(self, table: str, day: str | None = None) -> TableFile:
        self._files.append(TableFile(self._task, table, day))
        return self._files[-1]

    def add_bytes(
        self, file: OpenFile, split: SplitTask, place: ByteRange, kind: str, *why: str
    ) -> None:
        """Add a range of a CommitLog file; what is zeros up to the range's end is no content."""
        base = split.segment.base
        start, end = place.start - base, place.stop - base
        if kind in LOG_KINDS:
            self._log_bytes += place.size
        self._damaged_bytes += place.size if kind == "damage" else 0
        data_stop = min(split.data_stop or 0, end)
        while start < end:
            read = min(max(0, data_stop - start), EXTENT_BYTES)
            # After a BLANK zeros may be as long as a file: they are of the last row that is read.
            stop = start + read if start + read < data_stop else end
            content = file.read(start, read).rstrip(b"\0")
            if content or kind in LOG_KINDS:
                row = {"kind": kind, "file": base, "physicalOffset": base + start}
                row |= {"size": stop - start, "content": content}
                self.add_extent(row | dict(zip(("reason", "evidence"), why, strict=False)))
            start = stop

    def add_extent(self, row: dict[str, Any]) -> None:
        """Add a row of the table of extents."""
        content = row.setdefault("content", b"")
        row |= {"brokerName": self._task.store.broker_name, "run": self._task.run}
        self._extents.append(row | {"contentCRC": body_crc(content)})
        self._held_bytes += len(content)
        if self._held_bytes >= EXTENT_BYTES or len(self._extents) >= _EXTENT_ROWS:
            self._write_extents()

    def _write_extents(self) -> None:
        self._extent_file = self._extent_file or self._made(EXTENTS)
        self._extent_file.write(pa.RecordBatch.from_pylist(self._extents, schema=EXTENT_SCHEMA))
        self._extents, self._held_bytes = [], 0

    def close(self) -> list[WrittenFile]:
        """End the files, and return them."""
        if self._extents:
            self._write_extents()
        found = self._done + [file.close() for file in self._days.values()]
        if self._extent_file is not None:
            written, damaged = self._extent_file.close(), self._damaged_bytes
            found.append(written._replace(extent_bytes=self._log_bytes, damaged_bytes=damaged))
        return found


def _message_batch(columns: RecordColumns, broker: str) -> pyarrow.RecordBatch:
    """Return records as one batch of ``FILE_SCHEMA``."""
    (batch,) = record_batches(columns, MESSAGE_FIELDS, broker=broker, decompress=False)
    at = columns.physical_offset - columns.base
    heads = columns.body_at - at
    tails = heads + columns.body_size
    crcs = np.empty(len(columns), dtype=np.int64)
    kernels.slice_crcs(columns.buffer, at, columns.size, crcs)
    raw = [
        binary_slices(columns, at, heads, "rawHead"),
        binary_slices(columns, at + tails, columns.size - tails, "rawTail"),
        pa.array(crcs.astype(np.int32)),
    ]
    found: pyarrow.RecordBatch = pa.RecordBatch.from_arrays(
        [*batch.columns, *raw], schema=FILE_SCHEMA
    )
    return found
