"""What a task of a restore does: read files, put records in the log's order, write them in place.

Memory: the decoded files of one task of the archive, and some slices of ``SLICE_BYTES``.
Law: a task writes the same bytes to the same places however often it runs, so retries are harmless.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow  # noqa: ICN001 - `pa` is the same without its annotations
import pyarrow.parquet as pq

from rocketstore.errors import ArchiveDamagedError, StoreError, StoreFullError
from rocketstore.format.file_name import file_name
from rocketstore.pipeline.files import ArrowFiles, files_at
from rocketstore.pipeline.jobs.archive.task import footer_crc, row_groups
from rocketstore.pipeline.jobs.restore.encode import (
    COLUMNS,
    Topics,
    encode_records,
    milliseconds,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from rocketstore.pipeline.jobs.archive.manifest import LogFile
    from rocketstore.pipeline.jobs.restore.plan import RestoreTask, Selection, SourceFile

pa: Any = pyarrow

RESULT_SCHEMA: Final = "task INT, records BIGINT, bytes BIGINT"
SIZES_SCHEMA: Final = "task INT, sizes BINARY"

_FROM_BACKUP: Final = "restore the archive from a backup; nothing was restored"


def restore_task(task: RestoreTask) -> Iterator[pyarrow.RecordBatch]:
    """Do a task and yield how many records and bytes it wrote.

    Raises
    ------
    ArchiveDamagedError
        A file of the archive is missing or is not what its manifest says.
    StoreFullError
        The disk of the new store is full.
    StoreError
        The new store cannot be written.
    """
    with _LogWriter(task.log_files, Path(task.commit_log)) as writer:
        count = (
            _write_records(task, writer) if task.extents is None else _write_extents(task, writer)
        )
        written = writer.byte_count
    yield pa.RecordBatch.from_arrays(
        [pa.array([task.number], pa.int32()), pa.array([count]), pa.array([written])],
        names=["task", "records", "bytes"],
    )


def sizes_task(task: RestoreTask) -> Iterator[pyarrow.RecordBatch]:
    """Yield the sizes of a task's selected records in the log's order, as 32-bit numbers.

    Raises
    ------
    ArchiveDamagedError
        A file of the archive is missing or is not what its manifest says.
    """
    names = ["physicalOffset", "size", "storeTimestamp", "rawStoreTimestamp"]
    table, _ = _read_files(task.files, names)
    order = _wanted_order(table, task.selection)
    sizes = table.column("size").to_numpy()[order].astype("<i4")
    yield pa.RecordBatch.from_arrays(
        [pa.array([task.number], pa.int32()), pa.array([sizes.tobytes()], pa.binary())],
        names=["task", "sizes"],
    )


# --- reading ------------------------------------------------------------------------------------


def _read_files(files: Sequence[SourceFile], names: Sequence[str]) -> tuple[Any, Topics]:
    """Return the rows of files, and the topic of each row."""
    tables = [_read_file(file, names) for file in files]
    table = pa.concat_tables(tables).combine_chunks()
    counts = [one.num_rows for one in tables]
    rows = np.repeat(np.arange(len(files), dtype=np.int64), counts)
    return table, Topics([file.topic for file in files], rows)


def _read_file(file: SourceFile, names: Sequence[str]) -> Any:
    with _opened(file) as opened:
        return opened.read(columns=list(names), use_threads=False)


@contextlib.contextmanager
def _opened(file: SourceFile) -> Iterator[Any]:
    """Open a Parquet file of the archive for the length of a ``with`` block."""
    path = file.path
    try:
        with _source(file) as source:
            _check_file(source, file)
            # From an object store columns come side by side, not one request after the other.
            settings = {"page_checksum_verification": True, "pre_buffer": bool(file.archive)}
            with pq.ParquetFile(source, **settings) as opened:
                yield opened
    except FileNotFoundError:
        raise ArchiveDamagedError(f"{path} is missing", hint=_FROM_BACKUP) from None
    except (OSError, pa.ArrowException, MemoryError) as error:
        raise ArchiveDamagedError(f"{path} cannot be read: {error}", hint=_FROM_BACKUP) from error


def _source(file: SourceFile) -> Any:
    """Open a file of the archive as something that pyarrow reads."""
    if not file.archive:
        return pa.OSFile(file.path, "rb")
    files, _ = files_at(file.archive)
    assert isinstance(files, ArrowFiles), "a disk has no location"
    return files.system.open_input_file(file.path)


def _check_file(source: Any, file: SourceFile) -> None:
    """Compare what no checksum inside the file covers with the manifest."""
    found = source.size()
    if found != file.size:
        raise ArchiveDamagedError(
            f"{file.path} has {found} bytes: expected {file.size}", hint=_FROM_BACKUP
        )
    footer = footer_crc(source)
    if footer != file.footer_crc32:
        raise ArchiveDamagedError(
            f"{file.path} has a footer with CRC {footer:08x}: expected {file.footer_crc32:08x}",
            hint=_FROM_BACKUP,
        )


def _wanted_order(table: Any, selection: Selection) -> npt.NDArray[np.int64]:
    """Return the wanted rows in the order of the log."""
    offsets = table.column("physicalOffset").to_numpy()
    order: npt.NDArray[np.int64] = np.argsort(offsets, kind="stable")
    if selection.begin_ms is None and selection.end_ms is None:
        return order
    times = milliseconds(table, "storeTimestamp")[order]
    is_wanted = np.ones(len(order), dtype=np.bool_)
    if selection.begin_ms is not None:
        is_wanted &= times >= selection.begin_ms
    if selection.end_ms is not None:
        is_wanted &= times < selection.end_ms
    return order[is_wanted]


# --- writing ------------------------------------------------------------------------------------


def _write_records(task: RestoreTask, writer: _LogWriter) -> int:
    table, topics = _read_files(task.files, COLUMNS)
    order = _wanted_order(table, task.selection)
    sizes = table.column("size").to_numpy()
    offsets = table.column("physicalOffset").to_numpy()[order]
    if task.part is None:
        offsets = _new_offsets(task, sizes[order])
    crc = done = 0
    for rows in row_groups(order, sizes):
        piece = table.take(pa.array(rows))
        places = offsets[done : done + len(rows)]
        content = encode_records(piece, Topics(topics.names, topics.rows[rows]), places)
        crc = zlib.crc32(content.data, crc)
        writer.write(places, sizes[rows], content)
        done += len(rows)
    if task.part is not None and (crc, done) != (task.part.crc32, task.part.records):
        raise ArchiveDamagedError(
            f"{task.files[0].path} and the other files of task {task.part.task} give {done} "
            f"records with CRC {crc:08x}: expected {task.part.records} with {task.part.crc32:08x}",
            hint=_FROM_BACKUP,
        )
    return done


def _new_offsets(task: RestoreTask, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    starts = np.cumsum(sizes) - sizes
    offsets = np.empty(len(sizes), dtype=np.int64)
    for stretch in task.stretches:
        moved = stretch.physical_offset - int(starts[stretch.row])
        offsets[stretch.row :] = starts[stretch.row :] + moved
    return offsets


def _write_extents(task: RestoreTask, writer: _LogWriter) -> int:
    assert task.extents is not None
    crc = 0
    for row in _extent_rows(task.extents.file):
        crc = zlib.crc32(row["content"], crc)
        if row["kind"] != "tail" or task.extents.has_tail:
            writer.write_at(row["file"], row["physicalOffset"] - row["file"], row["content"])
    if crc != task.extents.crc32:
        raise ArchiveDamagedError(
            f"{task.extents.file.path} holds contents with CRC {crc:08x}: "
            f"expected {task.extents.crc32:08x}",
            hint=_FROM_BACKUP,
        )
    return 0


def _extent_rows(file: SourceFile) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of extents, some megabytes of content at a time."""
    names = ["physicalOffset", "kind", "file", "content"]
    with _opened(file) as opened:
        groups = opened.metadata.num_row_groups
    for number in range(groups):
        with _opened(file) as opened:
            table = opened.read_row_group(number, columns=names, use_threads=False)
        yield from table.to_pylist()


class _LogWriter:
    """The CommitLog files that a task writes into; they have their sizes already."""

    def __init__(self, log_files: Sequence[LogFile], directory: Path) -> None:
        self.directory = directory
        self.byte_count = 0
        self._bases = np.array([one.base for one in log_files], dtype=np.int64)
        self._open: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                for base, descriptor in self._open.items():
                    with plain_write_errors(self._path(base)):
                        os.fsync(descriptor)
        finally:
            for descriptor in self._open.values():
                os.close(descriptor)

    def write(
        self,
        offsets: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        content: npt.NDArray[np.uint8],
    ) -> None:
        """Write records, each at its physical offset."""
        files = np.searchsorted(self._bases, offsets, side="right") - 1
        is_break = (offsets[1:] != offsets[:-1] + sizes[:-1]) | (files[1:] != files[:-1])
        starts = np.cumsum(sizes) - sizes
        edges = [0, *(np.flatnonzero(is_break) + 1).tolist(), len(offsets)]
        for begin, end in itertools.pairwise(edges):
            base = int(self._bases[files[begin]])
            first = int(starts[begin])
            last = int(starts[end - 1] + sizes[end - 1])
            self.write_at(base, int(offsets[begin]) - base, content[first:last].data)

    def write_at(self, base: int, position: int, content: bytes | memoryview) -> None:
        """Write bytes at a position of the file that begins at `base`."""
        with plain_write_errors(self._path(base)):
            descriptor = self._descriptor(base)
            view = memoryview(content)
            while view:
                written = os.pwrite(descriptor, view, position)
                view, position = view[written:], position + written
                self.byte_count += written

    def _descriptor(self, base: int) -> int:
        if base not in self._open:
            self._open[base] = os.open(self._path(base), os.O_WRONLY | os.O_CLOEXEC)
        return self._open[base]

    def _path(self, base: int) -> Path:
        return self.directory / file_name(base)


@contextlib.contextmanager
def plain_write_errors(path: Path) -> Iterator[None]:
    """Say what an error of the new store's disk means.

    Raises
    ------
    StoreFullError
        The disk is full.
    StoreError
        Anything else went wrong with it.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFullError(
                f"{path}: the disk is full; nothing was restored",
                hint="make room and run the restore again",
            ) from error
        raise StoreError(
            f"{path} cannot be written: {error}",
            hint="the new store has to lie on a disk that all of Spark's workers see and may "
            "write to",
        ) from error
