"""What a task of a restore does: read the rows of one CommitLog file, and write that file.

Rows come in the order of the archive's files, which is that of topics and queues. So a task first
reads where each record stands, and finds by that what is missing or there twice; then it reads the
rows themselves, some megabytes at a time, and writes each at its place.

Memory: 24 bytes per record of the file, ``SLICE_BYTES`` of records twice, one batch of rows.
Law: a file gets its name when it is whole and on the disk. Each attempt has a file of its own, in a
directory that is gone before the store is published, so a late one ends in an error of its own.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow  # noqa: ICN001 - `pa` is the same without its annotations
import pyarrow.compute
import pyarrow.parquet as pq

from rocketstore.errors import ArchiveDamagedError
from rocketstore.format.blank import encode_blank
from rocketstore.format.file_name import file_name
from rocketstore.format.markers import COMMIT_LOG_DIRECTORY
from rocketstore.format.record import body_crc
from rocketstore.pipeline.files import ArrowFiles, ObjectStore, files_at, is_remote, joined
from rocketstore.pipeline.jobs.archive.archive_table import EXTENTS, FILE_SCHEMA, MESSAGES
from rocketstore.pipeline.jobs.publishing import plain_write_errors
from rocketstore.pipeline.jobs.restore.record_bytes import (
    COLUMNS,
    FROM_BACKUP,
    Numbers,
    encode_records,
    milliseconds,
    move_records,
    numbers_of,
)
from rocketstore.scan import kernels
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from rocketstore.pipeline.jobs.restore.restore_plan import LogFileTask, MessageFile

pa: Any = pyarrow
pc: Any = pyarrow.compute

COUNT_SCHEMA: Final = "base BIGINT, kind STRING, place BIGINT, records BIGINT, bytes BIGINT"
"""Kind ``records``: those from a place of the archived log on; kind ``missing``: so many stretches
without rows, of which the first begins there."""

TOPIC_SCHEMA: Final = "topic STRING, first_ms BIGINT, last_ms BIGINT"
WRITE_SCHEMA: Final = "base BIGINT, records BIGINT, bytes BIGINT"

ATTEMPTS: Final = ".attempts"
"""Directory below the store that attempts are made in, as long as it is not published."""

STEPS: Final = 256
"""Of a file, in which a selection is counted: 4 MiB of 1 GiB, no more than a large message."""

SLICE_BYTES: Final = 32 * MiB
"""Records that are put in order before they are written: as many as the archive sorts at a time."""

BATCH_BYTES: Final = 4 * MiB
_BATCH_ROWS: Final = 1 << 16
_MOST_STRETCHES: Final = 100
"""Missing stretches of a file that are reported one by one."""

_MASK_COLUMNS: Final = [
    "brokerName", "topic", "physicalOffset", "storeTimestamp", "rawStoreTimestamp"
]  # fmt: skip
_NO_FALLOCATE: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


def count_task(task: LogFileTask) -> Iterator[pyarrow.RecordBatch]:
    """Yield what the archive has of a file's range, and for a whole restore what it lacks."""
    starts, ends = _record_places(task)
    sizes = ends - starts
    if task.selection.is_everything:
        missing = _missing(task, starts, ends)
        rows = [("records", task.begin, len(starts), int(sizes.sum()))]
        rows += [("missing", one, 1, stop - one) for one, stop in missing[:_MOST_STRETCHES]]
        if rest := missing[_MOST_STRETCHES:]:
            rows.append(("missing", rest[0][0], len(rest), sum(b - a for a, b in rest)))
    else:
        firsts = np.flatnonzero(
            np.diff((starts - task.base) // max(1, task.size // STEPS), prepend=-1)
        )
        counts = np.diff(firsts, append=len(starts))
        totals = np.add.reduceat(sizes, firsts) if len(firsts) else sizes
        steps = zip(starts[firsts].tolist(), counts.tolist(), totals.tolist(), strict=True)
        rows = [("records", *step) for step in steps]
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    yield pa.RecordBatch.from_arrays(
        [pa.array([task.base] * len(rows), pa.int64()), pa.array(columns[0], pa.string())]
        + [pa.array(column, pa.int64()) for column in columns[1:]],
        names=["base", "kind", "place", "records", "bytes"],
    )


def topics_task(task: LogFileTask) -> Iterator[pyarrow.RecordBatch]:
    """Yield the wanted topics that a file's range has, and the first and last time in it."""
    topics: set[str] = set()
    times = [np.empty(0, np.int64)]
    for _, rows in _wanted(task, []):
        topics.update(pc.unique(rows.column("topic")).to_pylist())
        times.append(milliseconds(rows, "storeTimestamp"))
    stored, count = np.concatenate(times), len(topics)
    bounds = [int(stored.min()), int(stored.max())] if count else [0, 0]
    columns = [sorted(topics), *([bound] * count for bound in bounds)]
    yield pa.RecordBatch.from_arrays(
        [pa.array(columns[0], pa.string()), *(pa.array(one, pa.int64()) for one in columns[1:])],
        names=["topic", "first_ms", "last_ms"],
    )


def write_task(task: LogFileTask) -> Iterator[pyarrow.RecordBatch]:
    """Write a CommitLog file; yield how many records and bytes were written.

    Raises
    ------
    ArchiveDamagedError
        A file of the archive is missing or cannot be read, or gives other bytes than were archived.
    StoreFullError
        The disk of the new store is full.
    StoreError
        The new store cannot be written.
    """
    starts, ends = _record_places(task)
    sizes, targets = ends - starts, starts - task.base
    if not task.selection.is_everything:
        targets = np.cumsum(sizes) - sizes
    elif not task.allows_gaps and (missing := _missing(task, starts, ends)):
        raise missing_bytes(task.archive, task.broker, missing)
    count, size = len(starts), int(sizes.sum())
    del ends, sizes
    with _new_file(task) as file:
        for path, rows in _wanted(task, COLUMNS):
            content, sizes = encode_records(rows, path)
            places = targets[np.searchsorted(starts, numbers_of(rows, "physicalOffset"))]
            if not task.selection.is_everything:
                move_records(content, sizes, places + task.base)
            file.hold(places, sizes, content)
        file.write_held()
        if file.byte_count != size or size != task.record_bytes:
            raise ArchiveDamagedError(
                f"{task.archive}: the files with physical offsets {task.begin} to {task.end} give "
                f"{file.byte_count} bytes of records: expected {size} and {task.record_bytes}, as "
                "they gave before",
                hint=FROM_BACKUP,
            )
        for offset, _, extent in _extents(task, ["content", "contentCRC"]):
            file.write(offset - task.base, extent)
        if task.blank:
            file.write(size, encode_blank(task.size - size))
    yield pa.RecordBatch.from_pydict(
        {"base": [task.base], "records": [count], "bytes": [file.byte_count]}
    )


def missing_bytes(
    archive: str, broker: str, missing: Sequence[tuple[int, int]]
) -> ArchiveDamagedError:
    """Return the error that names what an archive has lost."""
    shown = ", ".join(f"{start} to {stop}" for start, stop in missing[:5])
    return ArchiveDamagedError(
        f"{archive} lacks {sum(b - a for a, b in missing):,} bytes of the log of broker {broker}: "
        f"physical offsets {shown}{', …' if len(missing) > 5 else ''}",
        hint="rows were deleted; restore a version that has them (as_of, --as-of), the messages "
        "that are there to a new log (topics or times), or zeros in place of what is gone "
        "(allow_gaps=True, --allow-gaps); nothing was restored",
    )


# --- reading ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    """Open a Parquet file of the archive, and say of what goes wrong in it which one it is."""
    try:
        files, place = files_at(path)
        opener = files.system.open_input_file if isinstance(files, ArrowFiles) else pa.OSFile
        settings = {"page_checksum_verification": True, "pre_buffer": False, "buffer_size": MiB}
        with opener(place) as source, pq.ParquetFile(source, **settings) as opened:
            yield opened
    except FileNotFoundError:
        reason = "is missing: VACUUM, or somebody else, has deleted a file of this version"
        raise ArchiveDamagedError(f"{path} {reason}", hint=FROM_BACKUP) from None
    except (OSError, pa.ArrowException, ValueError, MemoryError) as error:
        raise ArchiveDamagedError(f"{path} cannot be read: {error}", hint=FROM_BACKUP) from error


def _wanted(task: LogFileTask, names: Sequence[str]) -> Iterator[tuple[str, pyarrow.RecordBatch]]:
    """Yield columns of the rows of a task, and the path that they are from.

    As many at a time as have ``BATCH_BYTES`` of records together, if bodies are read.
    """
    columns = list(dict.fromkeys((*_MASK_COLUMNS, *names)))
    for file in task.messages:
        path = joined(task.archive, MESSAGES, *file.path.split("/"))
        with _opened(path) as opened:
            for number in range(opened.metadata.num_row_groups):
                if not _may_have(opened.metadata.row_group(number), task):
                    continue
                count = _batch_rows(opened, number) if "body" in names else _BATCH_ROWS
                for batch in opened.iter_batches(count, [number], columns, use_threads=False):
                    # Tools that rewrite files have types of their own for texts.
                    known = batch.cast(pa.schema([FILE_SCHEMA.field(name) for name in columns]))
                    rows = known.filter(_mask(task, file, known))
                    if rows.num_rows:
                        yield path, rows


def _batch_rows(opened: Any, group: int) -> int:
    """Return how many rows of a row group never have more than ``BATCH_BYTES``."""
    sizes = opened.read_row_group(group, columns=["size"], use_threads=False)["size"].to_numpy()
    count = _BATCH_ROWS
    while count > 1 and np.add.reduceat(sizes, range(0, len(sizes), count)).max() > BATCH_BYTES:
        count //= 2
    return count


def _may_have(group: Any, task: LogFileTask) -> bool:
    """Whether the statistics of a row group leave room for a row of a task."""
    bounds = {}
    for number in range(group.num_columns):
        known = group.column(number).statistics
        if known is not None and known.has_min_max:
            bounds[group.column(number).path_in_schema] = known.min, known.max
    first, last = bounds.get("physicalOffset", (task.begin, task.begin))
    topics = task.selection.topics
    if not group.num_rows or last < task.begin or first >= task.end:
        return False
    first, last = bounds.get("topic", ("", None))
    return last is None or not topics or any(first <= topic <= last for topic in topics)


def _mask(task: LogFileTask, file: MessageFile, rows: pyarrow.RecordBatch) -> Any:
    """Return which rows are wanted."""
    offsets = numbers_of(rows, "physicalOffset")
    wanted = (offsets >= task.begin) & (offsets < task.end)
    topics, begin, end = task.selection
    if begin is not None or end is not None:
        times = milliseconds(rows, "storeTimestamp")
        wanted &= (begin is None or times >= begin) & (end is None or times < end)
    mask = pa.array(wanted)
    for name, values in ("brokerName", [task.broker] * file.is_mixed), ("topic", topics):
        if values:
            column = rows.column(name)
            mask = pc.and_(mask, pc.is_in(column, pa.array(values, column.type)))
    return mask


def _record_places(task: LogFileTask) -> tuple[Numbers, Numbers]:
    """Return where wanted records begin and end, in the order of the log."""
    starts, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    for _, rows in _wanted(task, ["size"]):
        starts.append(numbers_of(rows, "physicalOffset"))
        sizes.append(numbers_of(rows, "size").astype(np.int32))
    first = np.concatenate(starts)
    del starts
    last = first + np.concatenate(sizes)
    # Records do not overlap, so the end of each comes before the begin of the next, and either can
    # be sorted alone; where they do overlap, it shows.
    first.sort()
    last.sort()
    _refuse_twice(task, first, last)
    return first, last


def _refuse_twice(task: LogFileTask, starts: Numbers, ends: Numbers) -> None:
    wrong = np.flatnonzero(ends > np.append(starts[1:], np.int64(task.end)))
    if len(wrong):
        raise ArchiveDamagedError(
            f"{task.archive}: the row of broker {task.broker} that ends at physical offset "
            f"{ends[wrong[0]]} reaches into the next one, or is there twice",
            hint=FROM_BACKUP,
        )


def _missing(task: LogFileTask, starts: Numbers, ends: Numbers) -> list[tuple[int, int]]:
    """Return the stretches of the log that neither a record nor an extent has."""
    places = [(at, at + size) for at, size, _ in _extents(task, []) if task.begin <= at < task.end]
    more = np.array([*places, *task.gaps], dtype=np.int64).reshape(-1, 2)
    starts = np.sort(np.concatenate([starts, more[:, 0]]))
    ends = np.sort(np.concatenate([ends, more[:, 1]]))
    _refuse_twice(task, starts, ends)
    edges = np.append(np.int64(task.begin), ends), np.append(starts, np.int64(task.end))
    rows = edges[0] < edges[1]
    return list(zip(edges[0][rows].tolist(), edges[1][rows].tolist(), strict=True))


def _extents(task: LogFileTask, names: Sequence[str]) -> Iterator[tuple[int, int, bytes]]:
    """Yield physical offset, size and, if it is read, content of the extents that count."""
    columns = ["brokerName", "run", "kind", "file", "physicalOffset", "size", *names]
    for file in task.extents:
        path = joined(task.archive, EXTENTS, *file.path.split("/"))
        with _opened(path) as opened:
            batches = opened.iter_batches(4, columns=columns, use_threads=False)
            for row in (row for batch in batches for row in batch.to_pylist()):
                whose = row["brokerName"], row["file"]
                if whose != (task.broker, task.base) or (
                    (row["run"], row["kind"]) not in file.counting
                ):
                    continue
                content = row.get("content") or b""
                if names and body_crc(content) != row["contentCRC"]:
                    raise ArchiveDamagedError(
                        f"{path}: the extent at physical offset {row['physicalOffset']} has CRC "
                        f"{body_crc(content)}: expected {row['contentCRC']}",
                        hint=FROM_BACKUP,
                    )
                yield row["physicalOffset"], row["size"], content


# --- writing ------------------------------------------------------------------------------------


class _NewFile:
    """A file of its full size, written at any positions."""

    def __init__(self, path: Path, size: int) -> None:
        self.byte_count = 0
        self._size = size
        self._held: list[tuple[Numbers, Numbers, npt.NDArray[np.uint8]]] = []
        self._held_bytes = 0
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def allocate(self) -> None:
        """Take all blocks of the file, so that a full disk is known before anything is read."""
        try:
            if self._size:
                os.posix_fallocate(self.descriptor, 0, self._size)
        except OSError as error:
            if error.errno not in _NO_FALLOCATE:
                raise
            os.ftruncate(self.descriptor, self._size)

    def hold(self, positions: Numbers, sizes: Numbers, content: npt.NDArray[np.uint8]) -> None:
        """Take records that lie back to back; write those that are held when it is enough."""
        if self._held_bytes + len(content) > SLICE_BYTES:
            self.write_held()
        self._held.append((positions, sizes, content))
        self._held_bytes += len(content)

    def write_held(self) -> None:
        """Write the records that are held, neighbours by one call."""
        if not self._held:
            return
        positions, sizes, content = (np.concatenate(one) for one in zip(*self._held, strict=True))
        self._held, self._held_bytes = [], 0
        order = np.argsort(positions)
        target = np.empty_like(content)
        kernels.copy_slices(content, (np.cumsum(sizes) - sizes)[order], sizes[order], target)
        positions, sizes = positions[order], sizes[order]
        breaks = np.flatnonzero(positions[1:] != positions[:-1] + sizes[:-1]) + 1
        starts = np.append(np.int64(0), np.cumsum(sizes))
        for begin, end in itertools.pairwise((0, *breaks.tolist(), len(order))):
            self.write(int(positions[begin]), target[int(starts[begin]) : int(starts[end])].data)

    def write(self, position: int, content: bytes | memoryview) -> None:
        """Write bytes at a position."""
        view = memoryview(content)
        assert 0 <= position <= self._size - len(view), "no row reaches beyond its file"
        while view:
            written = os.pwrite(self.descriptor, view, position)
            view, position = view[written:], position + written
            self.byte_count += written


@contextlib.contextmanager
def _new_file(task: LogFileTask) -> Iterator[_NewFile]:
    """Yield the file of a task; it gets its name when the ``with`` block ends without an error."""
    name = file_name(task.base)
    with contextlib.ExitStack() as stack:
        if is_remote(task.place):
            directory = stack.enter_context(tempfile.TemporaryDirectory())
        else:
            directory = f"{task.place}/{ATTEMPTS}"
        path = Path(directory, f"{name}.{uuid.uuid4().hex}")
        stack.enter_context(plain_write_errors(path))
        file = _NewFile(path, task.size)
        try:
            try:
                file.allocate()
                yield file
                os.fsync(file.descriptor)
            finally:
                os.close(file.descriptor)
            if is_remote(task.place):
                objects = ObjectStore(task.place)
                objects.upload(path, f"{objects.root}/{COMMIT_LOG_DIRECTORY}/{name}")
            else:
                path.rename(Path(task.place, COMMIT_LOG_DIRECTORY, name))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
