"""What a task of a run does: read its ranges, sort the records, write Parquet files.

The records of all ranges are copied into one buffer as they are found, without what stands between
them. The rows are numbers and places in that buffer, so sorting moves no bytes, and each row group
is gathered from the buffer once.

Memory: the ranges, 224 bytes per record, and one row group, whatever the files weigh.
Law: every file has a name that no other attempt has, and is on the disk before it is reported.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import tempfile
import uuid
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self

import msgspec
import numpy as np
import pyarrow  # noqa: ICN001 - `pa` is the same without its annotations
import pyarrow.parquet as pq
from msgspec import structs

from rocketstore.errors import ArchiveError, StoreFullError
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.jobs.archive.layout import (
    DAY_MS,
    EXTENTS,
    MESSAGES,
    partition,
    run_name,
)
from rocketstore.pipeline.jobs.archive.manifest import DataFile, ExtentFile, LastRecord, Part
from rocketstore.pipeline.jobs.archive.plan import record_hash
from rocketstore.pipeline.jobs.archive.rows import (
    EXTENT_SCHEMA,
    SCHEMA,
    has_date,
    message_batch,
    writer_settings,
)
from rocketstore.pipeline.objects import ObjectStore
from rocketstore.scan.arrow import binary_slices
from rocketstore.scan.columns import COLUMN_COUNT, Column, RecordColumns
from rocketstore.scan.window import scan_window
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from rocketstore.pipeline.jobs.archive.plan import ArchiveTask, Piece
    from rocketstore.pipeline.stores import Segment
    from rocketstore.scan.scanner import ScanBatch

pa: Any = pyarrow

RESULT_SCHEMA: Final = "result STRING"

ROW_GROUP_BYTES: Final = 32 * MiB
"""Records of a row group: few enough to skip most of a file, enough to read in one go."""

ROW_GROUP_ROWS: Final = 128 * 1024

EXTENT_CHUNK_BYTES: Final = 4 * MiB
"""Content of one row of extents."""

_FOOTER_END_BYTES: Final = 8
"""Length of the metadata, and the magic number."""
_EXTENT_ROWS: Final = 1024
_NAME_DIGITS: Final = 16
"""Of a content's hash in the name of an object."""
_DAMAGE: Final = frozenset({"damage", "unwritten"})
_BESIDE: Final = frozenset({"tail", "excess"})
"""Kinds that are no part of the log: there are only zeros where no row says otherwise."""
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


class TaskResult(msgspec.Struct, frozen=True):
    """What a task hands to the driver.

    Paths are those below the staging directory; on an object store those below the run.
    """

    part: Part
    files: list[DataFile]
    extents: list[ExtentFile]
    extent_bytes: int
    """Of records' neighbours: blanks, damage, zeros; not what is kept besides the log."""
    damaged_bytes: int
    last_record: LastRecord | None


def archive_task(task: ArchiveTask) -> Iterator[pyarrow.RecordBatch]:
    """Do a task and yield its `TaskResult` as JSON.

    Raises
    ------
    StoreError
        The store cannot be read.
    StoreFullError
        The disk of the archive is full.
    ArchiveError
        The archive cannot be written.
    """
    prefix = f"{task.number:05d}-{uuid.uuid4().hex}"
    if task.objects:
        with tempfile.TemporaryDirectory(prefix="rocketstore-archive-") as staging:
            result = send(_written(task._replace(staging=staging), prefix), task, Path(staging))
    else:
        result = _written(task, prefix)
    text = msgspec.json.encode(result).decode()
    yield pa.RecordBatch.from_pydict({"result": [text]})


def _written(task: ArchiveTask, prefix: str) -> TaskResult:
    try:
        return _archived(task, prefix)
    except OSError as error:
        _remove_files(Path(task.staging), prefix)
        if error.errno == 28:  # ENOSPC
            raise StoreFullError(
                f"{task.staging}: the disk is full; nothing of this run is archived",
                hint="make room and run the archive again",
            ) from error
        raise ArchiveError(
            f"{task.staging} cannot be written: {error}",
            hint="let the user that runs Spark's workers write there; the archive has to lie on "
            "a disk that all of them see under this path",
        ) from error


def send(result: TaskResult, task: ArchiveTask, staging: Path) -> TaskResult:
    """Write a task's files as objects of its run, and return the result with their places.

    A name has a hash of the content in it. So a task that runs twice writes the same objects twice,
    and two that find different things do not meet in one.
    """
    objects = ObjectStore(task.objects)
    run = run_name(task.run)

    def sent(source: str, top: str, directory: str) -> str:
        with (staging / source).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:_NAME_DIGITS]
        name = f"part-{task.number:05d}-{digest}.parquet"
        place = f"{directory}/{name}" if directory else name
        objects.upload(staging / source, f"{objects.root}/{top}/{run}/{place}")
        (staging / source).unlink()
        return place

    files = [
        structs.replace(one, path=sent(one.path, MESSAGES, partition(one.topic_bytes, one.day)))
        for one in result.files
    ]
    extents = [structs.replace(one, path=sent(one.path, EXTENTS, "")) for one in result.extents]
    return structs.replace(result, files=files, extents=extents)


def _remove_files(staging: Path, prefix: str) -> None:
    for path in staging.glob(f"{prefix}*"):
        path.unlink(missing_ok=True)


def _archived(task: ArchiveTask, prefix: str) -> TaskResult:
    staging = Path(task.staging)
    records = _Records(sum(piece.stop - piece.start for piece in task.pieces))
    with _ExtentWriter(task, staging / f"{prefix}-extents") as extents:
        for piece in task.pieces:
            _read_piece(task, piece, records, extents)
        covered, damaged = extents.byte_count, extents.damaged_bytes
        for raw in task.raw:
            extents.add(raw.segment, raw.start, raw.stop, (raw.kind, None, None))
    files = _write_files(task, records.columns(), staging, prefix)
    part = Part(task.number, records.count, records.size, zlib.crc32(records.bytes()))
    return TaskResult(part, files, extents.files, covered, damaged, records.last())


# --- reading ------------------------------------------------------------------------------------


class _Records:
    """Records back to back, and their rows."""

    def __init__(self, expected_bytes: int) -> None:
        # A little more, for the last record begins in the range and may end behind it. Pages that
        # are not touched cost nothing.
        self._buffer = np.empty(expected_bytes + 8 * MiB, dtype=np.uint8)
        self._rows: list[npt.NDArray[np.int64]] = []
        self.size = 0
        self.count = 0

    def add(self, columns: RecordColumns) -> None:
        """Take a batch, whose records follow each other without a break."""
        if not len(columns):
            return
        rows = columns.cols
        begin = int(rows[0, Column.PHYSICAL_OFFSET]) - columns.base
        last = rows[-1]
        end = int(last[Column.PHYSICAL_OFFSET] + last[Column.SIZE]) - columns.base
        length = end - begin
        if self.size + length > len(self._buffer):
            self._buffer = np.concatenate((self._buffer, np.empty_like(self._buffer)))
        self._buffer[self.size : self.size + length] = columns.buffer[begin:end]
        moved = rows[:, _PLACES] + (self.size - begin)
        # What is absent has the place 0 and no size.
        rows[:, _PLACES] = np.maximum(moved, 0)
        self._rows.append(rows)
        self.size += length
        self.count += len(rows)

    def bytes(self) -> memoryview:
        """Return all records in the order of the log."""
        return self._buffer[: self.size].data

    def columns(self) -> RecordColumns:
        """Return the rows, with places in the buffer; can be asked once."""
        empty = np.empty((0, COLUMN_COUNT), dtype=np.int64)
        cols = np.concatenate(self._rows) if self._rows else empty
        self._last = cols[-1:].copy()
        self._rows = []
        return RecordColumns(self._buffer[: self.size], cols, 0)

    def last(self) -> LastRecord | None:
        """Return the last record of the log among these."""
        if not len(self._last):
            return None
        offset = int(self._last[0, Column.PHYSICAL_OFFSET])
        size = int(self._last[0, Column.SIZE])
        return LastRecord(offset, size, record_hash(self.bytes()[self.size - size :]))


def _read_piece(task: ArchiveTask, piece: Piece, records: _Records, extents: _ExtentWriter) -> None:
    segment = piece.segment
    files, _ = files_at(task.store.location)
    with opened(files, segment.path) as file:
        batches = scan_window(
            file,
            base=segment.base,
            size=segment.size,
            start=piece.start,
            stop=piece.stop,
            file_size=segment.file_size,
            data_stop=file.data_stop(segment.size),
            whole_damage=True,
        )
        for batch in batches:
            records.add(batch.columns)
            _add_extents(piece, batch, extents)


def _add_extents(piece: Piece, batch: ScanBatch, extents: _ExtentWriter) -> None:
    segment = piece.segment
    for blank in batch.blanks:
        start = blank.physical_offset - segment.base
        extents.add(segment, start, start + blank.size, ("blank", None, None))
    for damage in batch.damage:
        start, stop = (offset - segment.base for offset in damage.range)
        extents.add(segment, start, stop, ("damage", damage.reason.value, damage.evidence))
    if batch.unwritten_at is None:
        return
    start = batch.unwritten_at - segment.base
    stop = min(segment.size, segment.file_size)
    # Behind the log's end no range is read, so another file follows these zeros.
    if piece.start <= start < piece.stop and start < stop:
        evidence = "zeros up to the end of a file that another one follows"
        extents.add(segment, start, stop, ("unwritten", None, evidence), is_zero=True)


class _ExtentWriter:
    """The Parquet file of a task's extents, made when there is the first of them."""

    def __init__(self, task: ArchiveTask, path: Path) -> None:
        self.task = task
        self.path = path
        self.byte_count = 0
        self.damaged_bytes = 0
        self.files: list[ExtentFile] = []
        self._writer: Any = None
        self._rows: list[dict[str, object]] = []
        self._held_bytes = 0
        self._count = 0
        self._crc = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        if self._writer is None:
            return
        self._writer.close()
        is_beside = bool(self.task.raw)
        size, footer = _finished(self.path)
        done = ExtentFile(self.path.name, self._count, size, footer, is_beside, self._crc)
        self.files.append(done)

    def add(
        self,
        segment: Segment,
        start: int,
        stop: int,
        what: tuple[str, str | None, str | None],
        *,
        is_zero: bool = False,
    ) -> None:
        """Write the range ``[start, stop)`` of a file; zeros at the end of a chunk are left out."""
        self.byte_count += stop - start
        self.damaged_bytes += stop - start if what[0] in _DAMAGE else 0
        if is_zero:
            self._add_row(segment, start, stop - start, what, b"")
            return
        files, _ = files_at(self.task.store.location)
        with opened(files, segment.path) as file:
            while start < stop:
                length = min(stop - start, EXTENT_CHUNK_BYTES)
                content = file.read(start, length).rstrip(b"\0")
                if content or what[0] not in _BESIDE:
                    self._add_row(segment, start, length, what, content)
                start += length

    def _add_row(
        self,
        segment: Segment,
        start: int,
        length: int,
        what: tuple[str, str | None, str | None],
        content: bytes,
    ) -> None:
        values = (segment.base + start, length, *what, segment.base, content)
        self._rows.append(dict(zip(EXTENT_SCHEMA.names, values, strict=True)))
        self._held_bytes += len(content)
        self._crc = zlib.crc32(content, self._crc)
        if self._held_bytes >= EXTENT_CHUNK_BYTES or len(self._rows) >= _EXTENT_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self.path,
                EXTENT_SCHEMA,
                compression="zstd",
                write_page_checksum=True,
                store_schema=False,
            )
        self._writer.write_batch(pa.RecordBatch.from_pylist(self._rows, schema=EXTENT_SCHEMA))
        self._count += len(self._rows)
        self._rows, self._held_bytes = [], 0


# --- writing ------------------------------------------------------------------------------------


def _write_files(
    task: ArchiveTask, columns: RecordColumns, staging: Path, prefix: str
) -> list[DataFile]:
    """Write one file per topic and day, its rows by queue and queue offset."""
    if not len(columns):
        return []
    topics = binary_slices(columns, columns.topic_at, columns.topic_size, "topic")
    encoded = topics.dictionary_encode()
    topic_ids = encoded.indices.to_numpy()
    names = encoded.dictionary.to_pylist()
    times = columns.store_timestamp
    days = np.where(has_date(times), times // DAY_MS, _NO_DAY)
    order = np.lexsort(
        (columns.physical_offset, columns.queue_offset, columns.queue_id, days, topic_ids)
    )
    sorted_topics, sorted_days = topic_ids[order], days[order]
    is_new = (np.diff(sorted_topics) != 0) | (np.diff(sorted_days) != 0)
    edges = [0, *(np.flatnonzero(is_new) + 1).tolist(), len(order)]
    files = []
    for number, (begin, end) in enumerate(itertools.pairwise(edges)):
        rows = order[begin:end]
        path = staging / f"{prefix}-{number:05d}"
        _write_file(path, columns, rows, task.store.broker_name)
        day = int(sorted_days[begin])
        size, footer = _finished(path)
        topic = names[sorted_topics[begin]]
        text = topic.decode("utf-8", "replace")
        offsets, stored = columns.physical_offset[rows], times[rows]
        files.append(
            DataFile(
                path=path.name,
                task=task.number,
                topic=text,
                raw_topic=None if text.encode() == topic else base64.b64encode(topic).decode(),
                day=None if day == _NO_DAY else day,
                rows=len(rows),
                size=size,
                footer_crc32=footer,
                record_bytes=int(columns.size[rows].sum()),
                min_store_timestamp=int(stored.min()),
                max_store_timestamp=int(stored.max()),
                min_physical_offset=int(offsets.min()),
                max_physical_offset=int(offsets.max()),
            )
        )
    return files


def _write_file(
    path: Path, columns: RecordColumns, rows: npt.NDArray[np.int64], broker: str
) -> None:
    with pq.ParquetWriter(path, SCHEMA, **writer_settings()) as writer:
        for group in row_groups(rows, columns.size):
            piece = RecordColumns(columns.buffer, columns.cols[group], columns.base)
            writer.write_batch(message_batch(piece, broker), row_group_size=len(group))


def row_groups(
    rows: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield rows in slices of about ``ROW_GROUP_BYTES`` of records."""
    ends = np.cumsum(sizes[rows])
    begin = done = 0
    while begin < len(rows):
        end = int(np.searchsorted(ends, done + ROW_GROUP_BYTES, side="right"))
        end = min(max(end, begin + 1), begin + ROW_GROUP_ROWS, len(rows))
        yield rows[begin:end]
        begin, done = end, int(ends[end - 1])


def _finished(path: Path) -> tuple[int, int]:
    """Bring a Parquet file to the disk; return its size and the CRC of its footer."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size, footer_crc(file)


def footer_crc(file: BinaryIO) -> int:
    """Return the CRC-32 of a Parquet file's footer: its metadata, their length, and ``PAR1``."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _FOOTER_END_BYTES))
    end = file.read()
    length = int.from_bytes(end[:4], "little") + _FOOTER_END_BYTES
    file.seek(max(0, size - length))
    return zlib.crc32(file.read())
