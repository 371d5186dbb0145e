"""What a task of a run does: read its stretch of the log window by window, and write Parquet files.

A window of the log is copied together without what stands between the records, sorted by topic,
queue and offset, and written as row groups of about ``ROW_GROUP_BYTES``: so what a file's
statistics say of a topic is true per row group, and memory is a window and a row group, however
large the stretch, the records or the files are. A file holds one day of a stretch.

Law: what is not committed is never read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow  # noqa: ICN001 - `pa` is the same without its annotations
import pyarrow.compute

from rocketstore.errors import ArchiveError
from rocketstore.format.record import body_crc
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.jobs.archive.archive_files import (
    RESULT_FIELDS,
    TableFile,
    has_date,
    message_batch,
)
from rocketstore.pipeline.jobs.archive.archive_plan import record_hash
from rocketstore.pipeline.jobs.archive.archive_table import (
    EXTENT_BYTES,
    EXTENT_SCHEMA,
    EXTENTS,
    MESSAGES,
)
from rocketstore.pipeline.jobs.publishing import plain_write_errors
from rocketstore.scan.arrow import binary_slices
from rocketstore.scan.columns import Column, RecordColumns
from rocketstore.scan.window import scan_window
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from rocketstore.pipeline.files import OpenFile
    from rocketstore.pipeline.jobs.archive.archive_plan import ArchiveTask, Stretch
    from rocketstore.pipeline.stores import StorePlace
    from rocketstore.scan.scanner import ScanBatch

pa: Any = pyarrow
pc: Any = pyarrow.compute

WINDOW_BYTES: Final = 32 * MiB
"""Of the log, sorted at a time."""

WINDOW_ROWS: Final = 64 * 1024
"""A row costs 224 bytes beside its record."""

ROW_GROUP_BYTES: Final = 4 * MiB
"""An eighth of a window: what is read of one topic among many."""

_OPEN_DAYS: Final = 16
"""Files that a task writes to at a time; a log that jumps between more days gets more files."""

_EXTENT_ROWS: Final = 1024
_DAMAGE: Final = frozenset({"damage", "unwritten"})

_DAY_MS: Final = 86_400_000
_NO_DAY: Final = np.iinfo(np.int64).min
_PLACES: Final = [
    Column.BODY_AT,
    Column.TOPIC_AT,
    Column.PROPERTIES_AT,
    Column.TAGS_AT,
    Column.KEYS_AT,
    Column.UNIQUE_KEY_AT,
    Column.BORN_HOST_AT,
    Column.STORE_HOST_AT,
]

_NO_RECORD: Final[dict[str, object]] = {"last_offset": 0, "last_size": 0, "last_sha256": ""}


def archive_task(task: ArchiveTask) -> Iterator[pyarrow.RecordBatch]:
    """Do a task; yield a row of ``RESULT_SCHEMA`` for each file.

    Raises
    ------
    StoreError
        The store cannot be read.
    StoreFullError
        The disk of the archive is full.
    ArchiveError
        The archive cannot be written.
    """
    messages, extents = _Messages(task), Extents(task.target, task.store, task.run, task.number)
    files, _ = files_at(task.store.location)
    with plain_write_errors(task.target, kind=ArchiveError):
        try:
            for stretch in task.stretches:
                with opened(files, stretch.segment.path) as file:
                    _read(file, stretch, messages, extents)
            rows = [*messages.close(), *extents.close()]
        except BaseException:
            for one in (*messages.files, *extents.files):
                one.remove()
            raise
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=RESULT_FIELDS)


def _read(file: OpenFile, stretch: Stretch, messages: _Messages, extents: Extents) -> None:
    segment = stretch.segment
    data_stop = file.data_stop(segment.size)
    if stretch.kind:
        extents.add_bytes(file, data_stop, stretch, (stretch.kind, None, None))
        return
    for batch in scan_window(
        file,
        base=segment.base,
        size=segment.size,
        start=stretch.start,
        stop=stretch.stop,
        file_size=segment.file_size,
        data_stop=data_stop,
        whole_damage=True,
    ):
        messages.add(batch.columns)
        for part, what in _extents_of(stretch, batch):
            extents.add_bytes(file, data_stop, part, what)


_What = tuple[str, str | None, str | None]
"""Kind, reason and evidence of an extent."""


def _extents_of(stretch: Stretch, batch: ScanBatch) -> Iterator[tuple[Stretch, _What]]:
    segment = stretch.segment
    for blank in batch.blanks:
        start = blank.physical_offset - segment.base
        part = stretch._replace(start=start, stop=start + blank.size)
        yield part, ("blank", None, None)
    for damage in batch.damage:
        start, stop = (offset - segment.base for offset in damage.range)
        part = stretch._replace(start=start, stop=stop)
        yield part, ("damage", damage.reason.value, damage.evidence)
    if batch.unwritten_at is None:
        return
    start, stop = batch.unwritten_at - segment.base, min(segment.size, segment.file_size)
    # After the log's end no range is read, so another file follows these zeros.
    if stretch.start <= start < stretch.stop and start < stop:
        evidence = "zeros up to the end of a file that another one follows"
        yield stretch._replace(start=start, stop=stop), ("unwritten", None, evidence)


# --- files --------------------------------------------------------------------------------------


class Extents:
    """The extents of a task, or of the driver: a file, made when there is the first of them."""

    def __init__(self, target: str, store: StorePlace, run: int, number: int) -> None:
        self.files: list[TableFile] = []
        self._target = target
        self._store = store
        self._run = run
        self._number = number
        self._rows: list[dict[str, object]] = []
        self._held_bytes = 0
        self._totals = {"extent_bytes": 0, "damaged_bytes": 0}

    def add_bytes(self, file: OpenFile, data_stop: int, stretch: Stretch, what: _What) -> None:
        """Add a range of a CommitLog file; what is zeros up to the range's end is no content."""
        kind, reason, evidence = what
        base, start = stretch.segment.base, stretch.start
        self._totals["extent_bytes"] += 0 if stretch.kind else stretch.stop - start
        self._totals["damaged_bytes"] += stretch.stop - start if kind in _DAMAGE else 0
        # What is unwritten is all zeros, whatever is known of the file.
        data_stop = start if kind == "unwritten" else min(data_stop, stretch.stop)
        while start < stretch.stop:
            read = min(max(0, data_stop - start), EXTENT_BYTES)
            # After a BLANK zeros may be as long as a file: they are of the last row that is read.
            stop = start + read if start + read < data_stop else stretch.stop
            content = file.read(start, read).rstrip(b"\0")
            if content or not stretch.kind:
                self.add(
                    kind=kind,
                    physicalOffset=base + start,
                    size=stop - start,
                    file=base,
                    reason=reason,
                    evidence=evidence,
                    content=content,
                )
            start = stop

    def add(self, **values: Any) -> None:
        """Add a row."""
        content: bytes = values.setdefault("content", b"")
        owner = {"brokerName": self._store.broker_name, "run": self._run}
        self._rows.append(owner | values | {"contentCRC": body_crc(content)})
        self._held_bytes += len(content)
        if self._held_bytes >= EXTENT_BYTES or len(self._rows) >= _EXTENT_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        if not self.files:
            self.files.append(TableFile(self._target, EXTENTS, None, self._number))
        self.files[0].write(pa.RecordBatch.from_pylist(self._rows, schema=EXTENT_SCHEMA))
        self._rows, self._held_bytes = [], 0

    def close(self) -> list[dict[str, object]]:
        """End the file, if there is one; return its row."""
        self._flush()
        for file in self.files:
            file.totals |= self._totals
        return [file.close() | _NO_RECORD for file in self.files]


class _Messages:
    """The records of a task: a window of them, and the files of the days that they are of."""

    def __init__(self, task: ArchiveTask) -> None:
        self.files: list[TableFile] = []
        self._task = task
        # Pages that are not touched cost nothing.
        self._buffer = np.empty(WINDOW_BYTES, dtype=np.uint8)
        self._rows: list[npt.NDArray[np.int64]] = []
        self._size = 0
        self._count = 0
        self._days: dict[int, TableFile] = {}
        self._done: list[dict[str, object]] = []
        self._last = _NO_RECORD

    def add(self, columns: RecordColumns) -> None:
        """Take a batch, whose records follow each other without a break."""
        if not len(columns):
            return
        rows = columns.cols
        begin = int(rows[0, Column.PHYSICAL_OFFSET]) - columns.base
        end = int(rows[-1, Column.PHYSICAL_OFFSET] + rows[-1, Column.SIZE]) - columns.base
        length = end - begin
        if self._size + length > WINDOW_BYTES or self._count + len(rows) > WINDOW_ROWS:
            self._flush()
        if length > len(self._buffer):
            self._buffer = np.empty(length, dtype=np.uint8)
        self._buffer[self._size : self._size + length] = columns.buffer[begin:end]
        # What is absent has the place 0 and no size.
        rows[:, _PLACES] = np.maximum(rows[:, _PLACES] + (self._size - begin), 0)
        self._rows.append(rows)
        self._size += length
        self._count += len(rows)

    def _flush(self) -> None:
        """Sort the window by day, topic, queue and offset, and write it."""
        if not self._rows:
            return
        content = self._buffer[: self._size]
        columns = RecordColumns(content, np.concatenate(self._rows), 0)
        offset, size = int(columns.physical_offset[-1]), int(columns.size[-1])
        digest = record_hash(content[self._size - size :].data)
        self._last = {"last_offset": offset, "last_size": size, "last_sha256": digest}
        days, topics = _days(columns.store_timestamp), _topic_order(columns)
        order = np.lexsort(
            (columns.physical_offset, columns.queue_offset, columns.queue_id, topics, days)
        )
        edges = np.flatnonzero(np.diff(days[order])) + 1
        for rows in np.split(order, edges):
            self._write(columns, rows, int(days[rows[0]]))
        self._rows, self._size, self._count = [], 0, 0

    def _write(self, columns: RecordColumns, rows: npt.NDArray[np.int64], day: int) -> None:
        file = self._file_of(day)
        for group in row_groups(rows, columns.size):
            piece = RecordColumns(columns.buffer, columns.cols[group], columns.base)
            file.write(message_batch(piece, self._task.store.broker_name))
        file.totals["records"] += len(rows)
        file.totals["record_bytes"] += int(columns.size[rows].sum())

    def _file_of(self, day: int) -> TableFile:
        if day not in self._days:
            if len(self._days) == _OPEN_DAYS:
                self._done.append(self._days.pop(next(iter(self._days))).close())
            name = None if day == _NO_DAY else str(np.datetime64(day, "D"))
            self._days[day] = TableFile(self._task.target, MESSAGES, name, self._task.number)
            self.files.append(self._days[day])
        return self._days[day]

    def close(self) -> list[dict[str, object]]:
        """End the files; return their rows."""
        self._flush()
        self._done += [file.close() for file in self._days.values()]
        return [row | self._last for row in self._done]


def row_groups(
    rows: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield rows in slices of about ``ROW_GROUP_BYTES`` of records."""
    ends = np.cumsum(sizes[rows])
    begin = done = 0
    while begin < len(rows):
        end = int(np.searchsorted(ends, done + ROW_GROUP_BYTES, side="right"))
        end = max(end, begin + 1)
        yield rows[begin:end]
        begin, done = end, int(ends[end - 1])


def _days(times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.where(has_date(times), times // _DAY_MS, _NO_DAY)


def _topic_order(columns: RecordColumns) -> npt.NDArray[np.int64]:
    """Return the place of each row's topic among all topics, in the order of their bytes."""
    topics = binary_slices(columns, columns.topic_at, columns.topic_size, "topic")
    encoded = topics.dictionary_encode()
    ranks = np.empty(len(encoded.dictionary), dtype=np.int64)
    ranks[pc.array_sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(ranks))
    found: npt.NDArray[np.int64] = ranks[encoded.indices.to_numpy()]
    return found
