"""``archive``: add the part of a store's log that is new since the last run to the archive.

The driver finds the log's end first. Records that a writer appends meanwhile are left to the next
run, and a half-written one comes after the end: so every byte before the end that is not a record
is damage, in a live store as well. A task reads its part of the log window by window, and writes
the records of each, sorted by topic, queue and offset, as row groups: so what a file's statistics
say of a topic is true per row group, and memory is a window and a row group, however large the
log's files are.

Law: the parts of a plan cover the log from `begin` to `end` without gap or overlap, and every byte
of them is found in a record or in an extent, or nothing is committed. A file is on the disk before
it is reported; what is not committed is never read.
"""

from __future__ import annotations

import hashlib
import itertools
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketstore.arguments import checked
from rocketstore.errors import ArchiveError, ConfigError
from rocketstore.format.file_name import COMMIT_LOG_DIRECTORY, CONFIG_DIRECTORY
from rocketstore.format.record import body_crc
from rocketstore.pipeline.jobs.archive.archive_place import taken_back
from rocketstore.pipeline.jobs.archive.archive_table import (
    EXTENT_BYTES,
    EXTENT_SCHEMA,
    EXTENTS,
    FILE_SCHEMA,
    KINDS,
    LOG_KINDS,
    MESSAGE_FIELDS,
    MESSAGES,
    Archive,
    LastRecord,
    Run,
    TableFile,
    WrittenFile,
    run_id,
)
from rocketstore.pipeline.jobs.execution import map_tasks, plain_failure, row_batch
from rocketstore.pipeline.jobs.publishing import plain_write_errors, refuse_inside_store
from rocketstore.pipeline.log_read import damage_of
from rocketstore.pipeline.planning import SplitTask, tasks_of
from rocketstore.pipeline.projection import record_batches
from rocketstore.pipeline.queues import job_options, named_stores
from rocketstore.places.files import OpenFile, entries_of, opened, read_part
from rocketstore.places.log_files import Segment, segment_at, segments_of_job
from rocketstore.scan import kernels
from rocketstore.scan.arrow import binary_slices, timestamps
from rocketstore.scan.scanner import LOOKBACK_BYTES
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import date
    from pathlib import Path

    from pyspark.sql import SparkSession

    from rocketstore.config import StoreConfig
    from rocketstore.places.stores import StorePlace
    from rocketstore.scan.columns import RecordColumns


MAX_SPLIT_BYTES: Final = 512 * MiB
"""Of the log per task, which makes one file: 128 MB and more of what zstd makes a quarter."""

WINDOW_BYTES: Final = 32 * MiB
"""Of the log, sorted at a time."""

WINDOW_ROWS: Final = 64 * 1024
"""A row costs 224 bytes beside its record."""

ROW_GROUP_BYTES: Final = 8 * MiB
"""A quarter of a window: what is read of one topic among many. Half of it costs a tenth more."""

_OPEN_FILES: Final = 16
"""That a task writes to at a time; a log that jumps between more days gets more files."""

_EXTENT_ROWS: Final = 1024
_NO_DAY: Final = np.iinfo(np.int32).min

RESULT_SCHEMA: Final = (
    "table STRING, path STRING, day STRING, size BIGINT, stats STRING, rows BIGINT, "
    "log_bytes BIGINT, damaged_bytes BIGINT"
)
"""Of the fields of `WrittenFile`."""


class ArchiveResult(NamedTuple):
    """What a call of `archive` did.

    `run` is its number, None when the archive had everything already; `begin` and `end` are the
    range of the log that was archived, as physical offsets, and `gap` what was deleted before it
    could be. Damaged bytes are kept as they are, no rows of ``messages``; files are of messages.
    `is_compared` says whether the last archived record was compared with the log: it is not in a
    first run, nor when its file was deleted since.
    """

    run: int | None
    begin: int
    end: int
    records: int
    record_bytes: int
    damaged_bytes: int
    file_count: int
    file_bytes: int
    gap: tuple[int, int] | None
    is_compared: bool


class LogPlan(NamedTuple):
    """What a run reads: `parts` of CommitLog files, and extents that are `known` without reading.

    `_kind` says what each part is; an extent is what `TaskFiles.add_extent` takes.
    """

    run: Run
    gap: tuple[int, int] | None
    is_compared: bool
    parts: list[SplitTask]
    known: list[tuple[Any, ...]]


class ArchiveTask(NamedTuple):
    """What one task archives of a store: `parts` of the log up to its `end`, and beside it."""

    number: int
    store: StorePlace
    target: str
    run: int
    token: str
    end: int
    parts: tuple[SplitTask, ...]
    known: list[tuple[Any, ...]]


@checked
def archive(
    spark: SparkSession, store: str | Path, target: str | Path, *,
    config: StoreConfig | None = None, max_split_bytes: int = MAX_SPLIT_BYTES,
) -> ArchiveResult:  # fmt: skip
    """Archive the part of a store's CommitLog that is new since the last run; it may be running.

    Parameters
    ----------
    target
        Path or URI of the archive, made if missing; on a disk that all workers see under this path.
        Stores of several brokers may share one.
    max_split_bytes
        As elsewhere, and so the bytes of the log per file.

    Raises
    ------
    NotAStoreError
        `store` is not a store, or is a directory of several.
    ArchiveError
        The store is not the one that was archived; another process archived it meanwhile; or the
        archive cannot be written.
    StoreFullError
        The archive's disk is full.
    """
    location = str(target)
    places = named_stores(job_options(str(store), config, max_split_bytes))
    if len(places) != 1:
        raise ConfigError(
            f"{store} holds {len(places)} stores, and a run is of one",
            hint=f"archive one after the other, for example {places[0].location}; they may share "
            "an archive",
        )
    if entries_of(location, COMMIT_LOG_DIRECTORY):
        raise ConfigError(
            f"{target} is a store: expected a directory for the archive",
            hint="the archive comes second: rocketstore pipeline archive STORE ARCHIVE",
        )
    refuse_inside_store(location, "archive")
    [place], found = places, list[WrittenFile]()
    with taken_back(location, KINDS) as token:
        tables = Archive.open(location, or_create=True)
        last = next(iter(tables.runs(place.broker_name, only_last=True)), None)
        number = (tables.extents.transaction_version(run_id(place.broker_name)) or 0) + 1
        plan = plan_run(place, last, number)
        run = plan.run
        has_grown = run.begin != run.end or plan.gap is not None
        if is_news := has_grown or last is None or run.beside != last.beside:
            rest = ArchiveTask(0, place, location, number, token, run.end, (), plan.known)
            tasks = [
                rest._replace(number=one, parts=parts, known=[])
                for one, parts in enumerate(tasks_of(plan.parts, max_split_bytes), 1)
            ]
            with plain_failure():
                # A row per file, so some thousands for many terabytes.
                rows = map_tasks(spark, [*tasks, rest], archive_task, RESULT_SCHEMA).toArrow()
            found = [WrittenFile(**row) for row in rows.to_pylist()]
            _check_covered(place, plan, found)
    if is_news:
        marks = {run_id(place.broker_name): run.number}
        tables.commit(EXTENTS, place.broker_name, marks, found)
        tables.commit(MESSAGES, place.broker_name, marks | {place.broker_name: run.end}, found)
    messages = [one for one in found if one.table == MESSAGES]
    return ArchiveResult(
        run=number if is_news else None,
        begin=run.begin,
        end=run.end,
        records=sum(one.rows for one in messages),
        record_bytes=sum(one.log_bytes for one in messages),
        damaged_bytes=sum(one.damaged_bytes for one in found),
        file_count=len(messages),
        file_bytes=sum(one.size for one in messages),
        gap=plan.gap,
        is_compared=plan.is_compared,
    )


# --- the plan -----------------------------------------------------------------------------------


def plan_run(store: StorePlace, last: Run | None, number: int) -> LogPlan:
    """Return what a run after `last` reads; raise where the log is not the one that it archived."""
    segments = [one for one in segments_of_job(store) if not one.is_missing]
    first = segments[0].base if segments else 0
    begin, gap = first if last is None else last.end, None
    if segments and first > begin:
        begin, gap = first, (begin, first)
    log_end, record = first, None
    for one in reversed(segments):
        log_end, record = _end_in(store, one)
        if log_end > one.base:
            break
    is_compared = last is not None and _compare(store, segments, last, log_end)
    end = max(begin, log_end)
    parts, after = list[SplitTask](), list[object]()
    reaching = [one for one in segments if one.base + one.file_size > begin]
    for one in reaching:
        limit = min(one.size, one.file_size)
        edges = *(min(max(0, at - one.base), limit) for at in (begin, end)), limit, one.size
        # An empty file before the log's end was lost, whichever file a listing takes for the last.
        file = one._replace(is_last=False)
        pieces = [SplitTask(store, file, *pair) for pair in itertools.pairwise(edges)]
        parts += [piece for piece in pieces if piece.byte_count]
        if one.base + one.file_size > end:
            after += [(one[1:4], piece.start, _checksum(piece)) for piece in pieces[1:]]
    tables = {
        entry.name: read_part(store.location, entry.path, 0, entry.size)
        for entry in entries_of(store.location, CONFIG_DIRECTORY)
        if entry.is_file
    }
    # The tables of a running broker change all the time: that alone makes no run.
    watched = {} if store.is_open else {name: zlib.crc32(one) for name, one in tables.items()}
    beside = _hash(msgspec.json.encode((after, watched)))
    previous, known = (0, (0, 0, "")) if last is None else (last.number, last.last_record)
    run = Run(number, previous, begin, end, record or known, beside)
    extents: list[tuple[Any, ...]] = [("run", begin, end - begin, msgspec.json.encode(run))]
    if gap is not None:
        extents.append(("gap", gap[0], gap[1] - gap[0]))
    extents += [("file", one.base, one.size, b"", one.base, one.file_size) for one in reaching]
    for name, content in tables.items():
        extents.append(("config", 0, len(content), content, None, None, name))
    return LogPlan(run, gap, is_compared, parts, extents)


def _kind(part: SplitTask, end: int) -> str:
    """Return what a part of a file is kept as; nothing where it is of the log before its `end`."""
    if part.start >= part.segment.file_size:
        return "excess"
    return "" if part.segment.base + part.start < end else "tail"


def _checksum(kept: SplitTask) -> int:
    size = min(kept.byte_count, EXTENT_BYTES)  # a record that is half written has less
    content = read_part(kept.store.location, kept.segment.path, kept.start, size)
    return zlib.crc32(content.rstrip(b"\0"))


def _end_in(store: StorePlace, segment: Segment) -> tuple[int, LastRecord | None]:
    """Return the physical offset after the last record or BLANK of a file, and that record."""
    end, last = segment.base, (0, 0)
    with opened(store.location, segment.path) as file:
        stop = min(file.data_stop(segment.size), segment.size, segment.file_size)
        # Some megabytes before the zeros, not the file.
        tail = SplitTask(store, segment, max(0, stop - LOOKBACK_BYTES), stop, data_stop=stop)
        for batch in tail.scanned(file) if stop else ():
            end, columns = batch.end_of_data, batch.columns
            if len(columns):
                last = int(columns.physical_offset[-1]), int(columns.size[-1])
        content = file.read(last[0] - segment.base, last[1]) if last[1] else b""
    return end, (*last, _hash(content)) if content else None


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _compare(store: StorePlace, segments: Sequence[Segment], last: Run, end: int) -> bool:
    """Compare the last archived record with the log; return whether it was there."""
    difference = f"the log ends at physical offset {end}, the archive at {last.end}"
    if end >= last.end:
        offset, size, expected = last.last_record
        if not size or offset < segments[0].base:
            return False
        one, found = segment_at(segments, offset), "nothing, its file is missing"
        if one is not None:
            found = _hash(read_part(store.location, one.path, offset - one.base, size))
        if found == expected:
            return True
        difference = (
            f"the record at physical offset {offset}, {size} bytes: expected SHA-256 {expected}, "
            f"found {found}"
        )
    raise ArchiveError(
        f"{store.location} is not the store that was archived as broker {store.broker_name}, or "
        f"its log was cut and rewritten since: {difference}",
        hint="archive this store to a directory of its own",
    )


def _check_covered(store: StorePlace, plan: LogPlan, found: list[WrittenFile]) -> None:
    run, (first, stop) = plan.run, plan.gap or (0, 0)
    covered = sum(one.log_bytes for one in found) - (stop - first)
    expected = sum(one.byte_count for one in plan.parts if not _kind(one, run.end))
    if covered != expected:
        raise ArchiveError(
            f"{store.location} changed while it was archived: expected {expected} bytes from "
            f"physical offset {run.begin} to {run.end}, found {covered}; nothing was archived",
            hint="run the archive again",
        )


# --- on workers ---------------------------------------------------------------------------------


def archive_task(task: ArchiveTask) -> Iterator[pa.RecordBatch]:
    """Do a task; yield a row of ``RESULT_SCHEMA`` for each file."""
    with (
        plain_write_errors(task.target, "nothing of this run is archived", ArchiveError),
        TaskFiles(task) as written,
    ):
        for extent in task.known:
            written.add_extent(*extent)
        for part in task.parts:
            with opened(task.store.location, part.segment.path) as file:
                known = part._replace(data_stop=file.data_stop(part.segment.size))
                if kind := _kind(part, task.end):
                    base = part.segment.base
                    written.add_bytes(file, known, base + part.start, base + part.stop, kind)
                    continue
                for batch in known.scanned(
                    file, batch_records=WINDOW_ROWS, window_bytes=WINDOW_BYTES
                ):
                    written.add_records(batch.columns)
                    for at, size in batch.blanks:
                        written.add_bytes(file, known, at, at + size, "blank")
                    for one in damage_of(known, batch):
                        why = one.reason.value, one.evidence
                        written.add_bytes(file, known, *one.range, "damage", *why)
        if files := written.finish():
            yield row_batch(files, RESULT_SCHEMA)


class TaskFiles:
    """The files of a task: one for each day, one for extents; made when needed.

    Those of a ``with`` block that ends in an error are removed.
    """

    def __init__(self, task: ArchiveTask) -> None:
        self._task = task
        self._made: list[TableFile] = []
        self._open: dict[tuple[str, date | None], TableFile] = {}
        self._done: list[WrittenFile] = []
        self._extents: list[dict[str, Any]] = []
        self._held_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for file in self._made if kind else ():
            file.remove()

    def _file(self, table: str, day: date | None = None) -> TableFile:
        if (table, day) not in self._open:
            if len(self._open) == _OPEN_FILES:
                self._done.append(self._open.pop(next(iter(self._open))).close())
            where = self._task.target, table, self._task.number
            self._made.append(TableFile(*where, self._task.token, day))
            self._open[table, day] = self._made[-1]
        return self._open[table, day]

    def add_records(self, columns: RecordColumns) -> None:
        """Write the records of a window, sorted by day, topic, queue and offset."""
        if not len(columns):
            return
        keys = {
            "day": timestamps(columns.store_timestamp).cast(pa.date32()),
            "topic": binary_slices(columns, columns.topic_at, columns.topic_size, "topic"),
            "queue": columns.queue_id,
            "number": columns.queue_offset,
            "place": columns.physical_offset,
        }
        order = pc.sort_indices(pa.table(keys), [(key, "ascending") for key in keys])
        days = keys["day"].take(order)
        rows = order.to_numpy()
        numbers = np.cumsum(columns.size[rows]) // ROW_GROUP_BYTES
        is_next = np.diff(days.cast(pa.int32()).fill_null(_NO_DAY)) != 0
        edges = np.flatnonzero(is_next | (np.diff(numbers) != 0)) + 1
        for begin, end in itertools.pairwise((0, *edges.tolist(), len(rows))):
            file, group = self._file(MESSAGES, days[begin].as_py()), columns.taken(rows[begin:end])
            file.write(_message_batch(group, self._task.store.broker_name))
            file.log_bytes += int(group.size.sum())

    def add_bytes(
        self, file: OpenFile, part: SplitTask, start: int, end: int, kind: str, *why: str
    ) -> None:
        """Add a range of a CommitLog file; what is zeros up to the range's end is no content."""
        base = part.segment.base
        data_stop = min(base + (part.data_stop or 0), end)
        while start < end:
            read = min(max(0, data_stop - start), EXTENT_BYTES)
            # After a BLANK zeros may be as long as a file: they are of the last row that is read.
            stop = start + read if start + read < data_stop else end
            content = file.read(start - base, read).rstrip(b"\0")
            if content or kind in LOG_KINDS:
                self.add_extent(kind, start, stop - start, content, base, None, None, *why)
            start = stop

    def add_extent(
        self, kind: str, at: int, size: int, content: bytes = b"", *more: int | str | None
    ) -> None:
        """Add a row of extents; `more` are its values from the column `file` on."""
        known = self._task.store.broker_name, self._task.run, kind, at, size, *more
        row = dict(zip(EXTENT_SCHEMA.names, known, strict=False))
        self._extents.append(row | {"content": content, "contentCRC": body_crc(content)})
        self._held_bytes += len(content)
        if self._held_bytes >= EXTENT_BYTES or len(self._extents) >= _EXTENT_ROWS:
            self._write_extents()

    def _write_extents(self) -> None:
        file, rows = self._file(EXTENTS), self._extents
        file.write(pa.RecordBatch.from_pylist(rows, schema=EXTENT_SCHEMA))
        file.log_bytes += sum(row["size"] for row in rows if row["kind"] in LOG_KINDS)
        file.damaged_bytes += sum(row["size"] for row in rows if row["kind"] == "damage")
        self._extents, self._held_bytes = [], 0

    def finish(self) -> list[WrittenFile]:
        """End the files, and return them."""
        if self._extents:
            self._write_extents()
        return self._done + [file.close() for file in self._open.values()]


def _message_batch(columns: RecordColumns, broker: str) -> Any:
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
    return pa.RecordBatch.from_arrays([*batch.columns, *raw], schema=FILE_SCHEMA)
