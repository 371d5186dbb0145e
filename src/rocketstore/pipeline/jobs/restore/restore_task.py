"""The task of a restore: read the rows of one CommitLog file, and write that file.

Rows come in the order of the archive's files, which is that of topics and queues. So a task first
reads the place of each record, which shows missing and repeated ones; then it reads the
rows themselves, some megabytes at a time, and writes each at its place.

Memory: 24 bytes per record of the file, ``SLICE_BYTES`` of records twice, one batch of rows.
Law: each record is compared with its CRC. A file gets its name when it is whole and on the disk;
each attempt has a file of its own, in a directory that is gone before the store is published, so a
late one ends in an error of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketstore.errors import ArchiveDamagedError
from rocketstore.format.file_name import COMMIT_LOG_DIRECTORY, file_name
from rocketstore.format.record import body_crc, encode_blank
from rocketstore.pipeline.jobs.archive.archive_table import (
    EXTENT_SCHEMA,
    EXTENTS,
    FILE_SCHEMA,
    FROM_BACKUP,
    MESSAGES,
    read_rows,
)
from rocketstore.pipeline.jobs.execution import row_batch
from rocketstore.pipeline.jobs.publishing import plain_write_errors
from rocketstore.places.location import is_remote, joined
from rocketstore.places.objects import ObjectStore
from rocketstore.scan import kernels
from rocketstore.scan.arrow import FIRST_TIMESTAMP_MS, LAST_TIMESTAMP_MS, bytes_of
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rocketstore.native.row import Int64Array
    from rocketstore.pipeline.jobs.archive.archive_table import Condition


COUNT_SCHEMA: Final = (
    "topic STRING, step BIGINT, place BIGINT, bytes BIGINT, first_ms BIGINT, last_ms BIGINT"
)
"""Wanted records of a topic in a step of the archived log, of which the first is at `place`."""

WRITE_SCHEMA: Final = (
    "base BIGINT, records BIGINT, bytes BIGINT, last_ms BIGINT, lost_at BIGINT, lost_stop BIGINT, "
    "lost_stretches BIGINT, lost_bytes BIGINT"
)
"""Written bytes, null without any; and the bytes of the file that the archive has lost, of which
the first stretch is from `lost_at` to `lost_stop`."""

ATTEMPTS: Final = ".attempts"
"""Directory below the store that attempts are made in, as long as it is not published."""

STEPS: Final = 256
"""Of a file, in which a selection is counted: 4 MiB of 1 GiB, no more than a large message."""

SLICE_BYTES: Final = 32 * MiB
"""Records that are put in order before they are written: as many as the archive sorts at a time."""

_PLACE_AT: Final = 28
"""Where a record states in 8 bytes at which physical offset it stands."""

_HEAD_MOST: Final = 128
"""More than any record has before its body."""

_RAW: Final = ("rawHead", "body", "rawTail")


class Selection(NamedTuple):
    """Which messages are restored; of any topic when there are none, of any store time when None.

    `begin_ms` is the first time that is wanted, `end_ms` the first after it that is not.
    """

    topics: tuple[str, ...] = ()
    begin_ms: int | None = None
    end_ms: int | None = None


EVERYTHING: Final = Selection()


class LogFileTask(NamedTuple):
    """A CommitLog file of `size` bytes from `base` on, to be restored below the location `place`.

    It has the records between `begin` and `end` of the archived log, which are in the Parquet files
    `messages` only. What stands between them has the stretches `others`, those included that were
    deleted before they could be archived, and is in the files `extents`, in `extent_count` rows of
    the runs and kinds that are `counting`. Bytes that the archive has lost may become zeros
    (`allows_gaps`). A `blank` may follow the last record.
    """

    archive: str
    broker: str
    selection: Selection
    place: str = ""
    allows_gaps: bool = False
    base: int = 0
    size: int = 0
    begin: int = 0
    end: int = 0
    messages: tuple[str, ...] = ()
    extents: tuple[str, ...] = ()
    extent_count: int = 0
    counting: frozenset[tuple[int, str]] = frozenset()
    others: tuple[tuple[int, int], ...] = ()
    blank: bool = False


def count_task(task: LogFileTask) -> Iterator[pa.RecordBatch]:
    """Yield where wanted records are, and of which topics and times; see ``COUNT_SCHEMA``."""
    step = max(1, task.size // STEPS)
    for _, rows in _wanted(task, ["topic", "physicalOffset", "size", "storeTimestamp"]):
        place = rows.column("physicalOffset")
        columns = {"topic": rows.column("topic"), "place": place, "bytes": rows.column("size")}
        columns |= {"step": pc.multiply(pc.divide(place, step), step), "ms": _milliseconds(rows)}
        found = pa.table(columns).group_by(["topic", "step"])
        sums = found.aggregate([("place", "min"), ("bytes", "sum"), ("ms", "min"), ("ms", "max")])
        names = ["topic", "step", "place", "bytes", "first_ms", "last_ms"]
        yield from sums.rename_columns(names).to_batches()


def write_task(task: LogFileTask) -> Iterator[pa.RecordBatch]:
    """Write a CommitLog file, if the archive has what it needs; see ``WRITE_SCHEMA``."""
    starts, sizes, lost = _places(task)
    written: tuple[int | None, ...] = (None, None, None)
    if not lost or (task.allows_gaps and len(starts)):
        written = len(starts), *_write(task, starts, sizes)
    first = lost[0] if lost else (None, None)
    row = task.base, *written, *first, len(lost), sum(stop - start for start, stop in lost)
    yield row_batch([row], WRITE_SCHEMA)


def _write(task: LogFileTask, starts: Int64Array, sizes: Int64Array) -> tuple[int, int]:
    """Write the file of a task; return how many bytes were written, and the last time."""
    is_new = task.selection != EVERYTHING
    targets, total, last_ms = task.base + np.cumsum(sizes) - sizes, int(sizes.sum()), 0
    with _new_file(task) as file:
        for path, rows in _wanted(task, (*_RAW, "physicalOffset", "recordCRC", "storeTimestamp")):
            places = _numbers(rows, "physicalOffset")
            records = _records(rows, places)
            _check_crcs(path, rows, records)
            if is_new:
                places = targets[np.searchsorted(starts, places)]
                records = _records(rows, places)
            file.hold(places, records)
            last_ms = max(last_ms, pc.max(_milliseconds(rows)).as_py() or 0)
        file.write_held()
        if file.byte_count != total:
            raise ArchiveDamagedError(
                f"{task.archive}: physical offsets {task.begin} to {task.end} have "
                f"{file.byte_count} bytes of records: expected {total}, the sum of their sizes",
                hint=FROM_BACKUP,
            )
        count = 0
        for place, content in _extents(task):
            file.write(place, content)
            count += 1
        if count != task.extent_count:
            raise ArchiveDamagedError(
                f"{task.archive} has {count} rows of extents of the CommitLog file "
                f"{file_name(task.base)}: expected {task.extent_count}",
                hint=FROM_BACKUP,
            )
        if task.blank:
            file.write(task.base + total, encode_blank(task.size - total))
    return file.byte_count, last_ms


# --- rows as records ----------------------------------------------------------------------------


def _records(rows: pa.RecordBatch, places: Int64Array) -> Any:
    """Return the records of rows, each stating its place; a wrong place shows in its CRC."""
    head, body, tail = (rows.column(name) for name in _RAW)
    numbers = [None, pa.py_buffer(places.astype(">i8"))]
    stated = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(places), numbers)
    before = pc.binary_slice(head, 0, _PLACE_AT)
    after = pc.binary_slice(head, _PLACE_AT + 8, _HEAD_MOST)
    pieces = [before, stated.cast(pa.binary()), after, body, tail, pa.scalar(b"", pa.binary())]
    return pc.binary_join_element_wise(*pieces, null_handling="replace")


def _check_crcs(path: str, rows: pa.RecordBatch, records: Any) -> None:
    (ends, content), expected = bytes_of(records), _numbers(rows, "recordCRC")
    crcs = np.empty(len(records), dtype=np.int64)
    kernels.slice_crcs(content, ends[:-1], np.diff(ends), crcs)
    for row in np.flatnonzero(crcs != expected).tolist():
        raise ArchiveDamagedError(
            f"{path}: the record at physical offset {rows['physicalOffset'][row]} has CRC "
            f"{crcs[row]}: expected {expected[row]}",
            hint=FROM_BACKUP,
        )


def _numbers(rows: pa.RecordBatch, name: str) -> Int64Array:
    """Return a column of numbers; 0 where it is null."""
    found: Int64Array = pc.fill_null(rows.column(name), 0).to_numpy().astype(np.int64)
    return found


def _milliseconds(rows: pa.RecordBatch) -> Any:
    """Return the store times; null where no calendar has them."""
    return rows.column("storeTimestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())


# --- reading ------------------------------------------------------------------------------------


def _wanted(task: LogFileTask, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield columns of the rows of a task, and the path that they are from."""
    topics, begin, end = task.selection
    wanted: list[Condition] = [
        ("physicalOffset", ">=", task.begin),
        ("physicalOffset", "<", task.end),
        ("brokerName", "=", task.broker),
    ]
    if topics:
        wanted.append(("topic", "in", list(topics)))
    if begin is not None:
        wanted.append(("storeTimestamp", ">=", moment(begin)))
    if end is not None:
        wanted.append(("storeTimestamp", "<", moment(end)))
    for file in task.messages:
        path = joined(task.archive, MESSAGES, *file.split("/"))
        for rows in read_rows(path, FILE_SCHEMA, wanted, columns):
            yield path, rows


def moment(time_ms: int) -> Any:
    """Return a time as Arrow has it, or the nearest that a calendar has."""
    known_ms = min(max(time_ms, FIRST_TIMESTAMP_MS), LAST_TIMESTAMP_MS)
    return pa.scalar(known_ms, pa.timestamp("ms", "UTC"))


def _places(task: LogFileTask) -> tuple[Int64Array, Int64Array, list[tuple[int, int]]]:
    """Return where wanted records start, in the order of the log, their sizes, and what is lost.

    Lost are stretches of a whole file that neither a record nor an extent has.
    """
    starts, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    for _, rows in _wanted(task, ["physicalOffset", "size"]):
        starts.append(_numbers(rows, "physicalOffset"))
        sizes.append(_numbers(rows, "size").astype(np.int32))
    first = np.concatenate(starts)
    del starts
    last = first + np.concatenate(sizes)
    # Records do not overlap, so the end of each comes before the begin of the next, and either can
    # be sorted alone; where they do overlap, it shows.
    first.sort()
    last.sort()
    others = np.array(task.others, dtype=np.int64).reshape(-1, 2)
    begins = np.sort(np.concatenate([first, others[:, 0]]))
    ends = np.sort(np.concatenate([last, others[:, 1]]))
    nexts = np.append(begins, np.int64(task.end))
    wrong = np.flatnonzero(ends > nexts[1:])
    if len(wrong):
        raise ArchiveDamagedError(
            f"{task.archive}: the row of broker {task.broker} that ends at physical offset "
            f"{ends[wrong[0]]} reaches into the next one, or is there twice",
            hint=FROM_BACKUP,
        )
    before = np.append(np.int64(task.begin), ends)
    holes = np.flatnonzero(before < nexts) if task.selection == EVERYTHING else ()
    return first, last - first, [(int(before[row]), int(nexts[row])) for row in holes]


def _extents(task: LogFileTask) -> Iterator[tuple[int, bytes]]:
    """Yield physical offset and content of the extents that count."""
    wanted: list[Condition] = [("brokerName", "=", task.broker), ("file", "=", task.base)]
    for file in task.extents:
        path = joined(task.archive, EXTENTS, *file.split("/"))
        columns = ["run", "kind", "physicalOffset", "content", "contentCRC"]
        for batch in read_rows(path, EXTENT_SCHEMA, wanted, columns):
            for row in batch.to_pylist():
                if (row["run"], row["kind"]) not in task.counting:
                    continue
                place, content = row["physicalOffset"], row["content"] or b""
                if body_crc(content) != row["contentCRC"]:
                    raise ArchiveDamagedError(
                        f"{path}: the extent at physical offset {place} has CRC "
                        f"{body_crc(content)}: expected {row['contentCRC']}",
                        hint=FROM_BACKUP,
                    )
                yield place, content


# --- writing ------------------------------------------------------------------------------------


class _LogFile:
    """A CommitLog file that is being written, at any physical offsets."""

    def __init__(self, descriptor: int, task: LogFileTask) -> None:
        self.byte_count = 0
        self._descriptor, self._task = descriptor, task
        self._held: list[tuple[Int64Array, Int64Array]] = []
        self._held_bytes = 0
        self._content = np.empty(SLICE_BYTES, dtype=np.uint8)
        self._in_order = np.empty_like(self._content)

    def hold(self, places: Int64Array, records: Any) -> None:
        """Take records for these places; write all that are held when it is enough."""
        ends, content = bytes_of(records)
        if self._held_bytes + len(content) > len(self._content):
            self.write_held()
        if len(content) > len(self._content):
            self._content, self._in_order = np.empty_like(content), np.empty_like(content)
        self._content[self._held_bytes :][: len(content)] = content
        self._held_bytes += len(content)
        self._held.append((places, np.diff(ends)))

    def write_held(self) -> None:
        """Write the records that are held, neighbours by one call."""
        if not self._held:
            return
        places, sizes = (np.concatenate(one) for one in zip(*self._held, strict=True))
        self._held, self._held_bytes = [], 0
        order, starts = np.argsort(places), np.cumsum(sizes) - sizes
        places, sizes = places[order], sizes[order]
        kernels.copy_slices(self._content, starts[order], sizes, self._in_order)
        ends = np.append(0, np.cumsum(sizes))
        breaks = np.flatnonzero(np.diff(places) != sizes[:-1]) + 1
        for begin, end in itertools.pairwise((0, *breaks.tolist(), len(order))):
            self.write(int(places[begin]), self._in_order[ends[begin] : ends[end]].data)

    def write(self, place: int, content: bytes | memoryview) -> None:
        view, position = memoryview(content), place - self._task.base
        assert 0 <= position <= self._task.size - len(view), "no row reaches beyond its file"
        while view:
            written = os.pwrite(self._descriptor, view, position)
            view, position = view[written:], position + written
            self.byte_count += written


@contextlib.contextmanager
def _new_file(task: LogFileTask) -> Iterator[_LogFile]:
    """Yield the file of a task; it gets its name when the ``with`` block ends without an error."""
    name = file_name(task.base)
    with contextlib.ExitStack() as stack:
        directory = f"{task.place}/{ATTEMPTS}"
        if is_remote(task.place):
            directory = stack.enter_context(tempfile.TemporaryDirectory())
        path = Path(directory, f"{name}.{uuid.uuid4().hex}")
        stack.enter_context(plain_write_errors(path, "nothing was restored"))
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        stack.callback(path.unlink, missing_ok=True)  # unless it got its name
        stack.callback(os.close, descriptor)
        os.ftruncate(descriptor, task.size)
        yield _LogFile(descriptor, task)
        os.fsync(descriptor)
        if is_remote(task.place):
            ObjectStore(task.place).upload(path, f"{COMMIT_LOG_DIRECTORY}/{name}")
        else:
            path.rename(Path(task.place, COMMIT_LOG_DIRECTORY, name))
