"""``archive``: bring what a store's log has got since the last run into the archive.

The driver finds the log's end first. What a writer appends meanwhile is left to the next run, and
what it has half appended stands after the end: so whatever is no record before it is damage, in a
live store as well.

Law: the ranges of a plan cover the log from `begin` to `end` without gap or overlap, and every byte
of them is found in a record or in an extent, or nothing is committed.
"""

from __future__ import annotations

import hashlib
import time
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from deltalake.transaction import AddAction

from rocketstore.errors import ArchiveError, ConfigError
from rocketstore.format.markers import COMMIT_LOG_DIRECTORY, CONFIG_DIRECTORY
from rocketstore.pipeline.files import files_at, opened, read_part
from rocketstore.pipeline.jobs.archive.archive_table import (
    DAY,
    EXTENT_BYTES,
    EXTENTS,
    MESSAGES,
    Archive,
    LastRecord,
    Run,
    run_id,
)
from rocketstore.pipeline.jobs.archive.archive_task import (
    RESULT_SCHEMA,
    ArchiveTask,
    TaskFiles,
    WrittenFile,
    archive_task,
)
from rocketstore.pipeline.jobs.execution import map_tasks, plain_failure
from rocketstore.pipeline.jobs.publishing import plain_write_errors
from rocketstore.pipeline.log_read import scanned
from rocketstore.pipeline.planning import SplitTask, tasks_of
from rocketstore.pipeline.stores import (
    find_stores,
    job_options,
    list_segments,
    segment_at,
)
from rocketstore.scan.scanner import LOOKBACK_BYTES
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from rocketstore.config import StoreConfig
    from rocketstore.pipeline.stores import Segment, StorePlace

MAX_SPLIT_BYTES: Final = 512 * MiB
"""Of the log per task, which makes one file: 128 MB and more of what zstd makes a quarter."""


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
    """What a run reads: `log` are parts of the log, `kept` what is kept as it is, with its kind.

    `segments` are the CommitLog files that reach beyond `begin`, `config` the content of the files
    of the directory ``config``; `beside` tells whether anything but the log has changed.
    """

    begin: int
    end: int
    gap: tuple[int, int] | None
    is_compared: bool
    last_record: LastRecord
    segments: list[Segment]
    log: list[SplitTask]
    kept: list[tuple[str, SplitTask]]
    config: dict[str, bytes]
    beside: str


def archive(
    spark: SparkSession,
    store: str | Path,
    target: str | Path,
    *,
    config: StoreConfig | None = None,
    max_split_bytes: int = MAX_SPLIT_BYTES,
) -> ArchiveResult:
    """Archive what a store's CommitLog has got since the last run, stopped or running.

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
        `store` is none, or a directory of several.
    ArchiveError
        The store is not the one that was archived; another process archived it meanwhile; or the
        archive cannot be written.
    StoreFullError
        The archive's disk is full.
    """
    place, location = _one_store(store, config, max_split_bytes), str(target)
    files, root = files_at(location)
    if files.list(f"{root}/{COMMIT_LOG_DIRECTORY}"):
        raise ConfigError(
            f"{target} is a store: expected a directory for the archive",
            hint="the archive comes second: rocketstore pipeline archive STORE ARCHIVE",
        )
    tables = Archive.open_or_create(location)
    last = next(iter(tables.runs(place.broker_name, only_last=True)), None)
    plan = plan_run(place, last)
    has_news = plan.begin != plan.end or plan.gap is not None
    number, found = None, list[WrittenFile]()
    if last is None or has_news or plan.beside != last.beside:
        number = (tables.extents.transaction_version(run_id(place.broker_name)) or 0) + 1
        driver = ArchiveTask(0, place, (), (), location, number)
        tasks = [
            driver._replace(number=one, log=log)
            for one, log in enumerate(tasks_of(plan.log, max_split_bytes), 1)
        ]
        if plan.kept:
            tasks.append(driver._replace(number=len(tasks) + 1, kept=tuple(plan.kept)))
        with plain_failure():
            # A row per file; the files of many terabytes are some thousands.
            rows = map_tasks(spark, tasks, archive_task, RESULT_SCHEMA).toArrow()
        found = [WrittenFile(**row) for row in rows.to_pylist()]
        _commit(tables, driver, plan, last, found)
    messages = [one for one in found if one.table == MESSAGES]
    return ArchiveResult(
        run=number,
        begin=plan.begin,
        end=plan.end,
        records=sum(one.rows for one in messages),
        record_bytes=sum(one.record_bytes for one in messages),
        damaged_bytes=sum(one.damaged_bytes for one in found),
        file_count=len(messages),
        file_bytes=sum(one.size for one in messages),
        gap=plan.gap,
        is_compared=plan.is_compared,
    )


def _one_store(
    location: str | Path, config: StoreConfig | None, max_split_bytes: int
) -> StorePlace:
    places = find_stores(job_options(str(location), config, max_split_bytes))
    if len(places) != 1:
        raise ConfigError(
            f"{location} holds {len(places)} stores, and a run is of one",
            hint=f"archive one after the other, for example {places[0].location}; they may share "
            "an archive",
        )
    return places[0]


# --- the plan -----------------------------------------------------------------------------------


def plan_run(store: StorePlace, last: Run | None) -> LogPlan:
    """Return what a run after `last` reads; raise where the log is not the one that it archived."""
    files, root = files_at(store.location)
    segments = [one for one in list_segments(store) if not one.is_missing]
    first = segments[0].base if segments else 0
    begin, gap = (first, None) if last is None else (last.end, None)
    if last is not None and segments and first > last.end:
        begin, gap = first, (last.end, first)
    none = first, (0, 0, "") if last is None else last.last_record
    ends = (_end_in(store, one) for one in reversed(segments))
    log_end, record = next((found for found in ends if found is not None), none)
    is_compared = last is not None and _compare(store, segments, last, log_end)
    end = max(begin, log_end)
    log, kept = [], []
    reaching = [one for one in segments if one.base + one.file_size > begin]
    for one in reaching:
        limit = min(one.size, one.file_size)
        start = min(max(0, begin - one.base), limit)
        stop = min(max(start, end - one.base), limit)
        # What is empty before the log's end was lost, whatever file a listing takes for the last.
        log.append(SplitTask(store, one._replace(is_last=False), start, stop))
        if one.base + limit > end:
            kept.append(("tail", SplitTask(store, one, stop, _data_stop(store, one))))
        kept.append(("excess", SplitTask(store, one, limit, one.size)))
    tables = {
        entry.name: read_part(store.location, entry.path, 0, entry.size)
        for entry in files.list(f"{root}/{CONFIG_DIRECTORY}")
        if not entry.is_directory
    }
    # The tables of a running broker change all the time: they are no news.
    watched = {} if store.is_open else {name: zlib.crc32(one) for name, one in tables.items()}
    after = [
        (kind, *one.segment[1:4], one.start, one.stop, _checksum(one))
        for kind, one in kept
        if one.segment.base + one.segment.file_size > end
    ]
    return LogPlan(
        begin=begin,
        end=end,
        gap=gap,
        is_compared=is_compared,
        last_record=record or none[1],
        segments=reaching,
        log=[one for one in log if one.start < one.stop],
        kept=[(kind, one) for kind, one in kept if one.start < one.stop],
        config=tables,
        beside=hashlib.sha256(msgspec.json.encode((after, watched))).hexdigest(),
    )


def _checksum(kept: SplitTask) -> int:
    # A record that is half written has less.
    size = max(0, min(kept.byte_count, EXTENT_BYTES))
    content = read_part(kept.store.location, kept.segment.path, kept.start, size)
    return zlib.crc32(content.rstrip(b"\0"))


def _data_stop(store: StorePlace, segment: Segment) -> int:
    with opened(store.location, segment.path) as file:
        return min(file.data_stop(segment.size), segment.size, segment.file_size)


def _end_in(store: StorePlace, segment: Segment) -> tuple[int, LastRecord | None] | None:
    """Return the physical offset after the last record or BLANK of a file, and that record."""
    stop, end = _data_stop(store, segment), segment.base
    last: tuple[int, int] | None = None
    record: LastRecord | None = None
    # Some megabytes before the zeros, not the file.
    tail = SplitTask(store, segment, max(0, stop - LOOKBACK_BYTES), stop, data_stop=stop)
    with opened(store.location, segment.path) as file:
        for batch in scanned(tail, file) if stop else ():
            end, columns = batch.end_of_data, batch.columns
            if len(columns):
                last = int(columns.physical_offset[-1]), int(columns.size[-1])
        if last is not None:
            record = *last, _hash(file.read(last[0] - segment.base, last[1]))
    return (end, record) if end > segment.base else None


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


# --- the commit ---------------------------------------------------------------------------------


def _commit(
    tables: Archive, task: ArchiveTask, plan: LogPlan, last: Run | None, found: list[WrittenFile]
) -> None:
    """Compare what tasks found with the plan, add what the driver knows, and commit it all."""
    covered = sum(one.record_bytes + one.extent_bytes for one in found)
    expected = sum(one.byte_count for one in plan.log)
    if covered != expected:
        raise ArchiveError(
            f"{task.store.location} changed while it was archived: expected {expected} bytes from "
            f"physical offset {plan.begin} to {plan.end}, found {covered}; nothing was archived",
            hint="run the archive again",
        )
    previous = 0 if last is None else last.number
    run = Run(task.run, previous, plan.begin, plan.end, plan.last_record, plan.beside)
    with plain_write_errors(tables.location, kind=ArchiveError), TaskFiles(task) as written:
        _add_known(written, plan, run)
        found += written.close()
    broker = task.store.broker_name
    number = {run_id(broker): task.run}
    now_ms = time.time_ns() // 1_000_000
    for name, marks in (EXTENTS, number), (MESSAGES, number | {broker: plan.end}):
        added = [
            AddAction(
                path=one.path,
                size=one.size,
                partition_values={DAY: one.day} if name == MESSAGES else {},
                modification_time=now_ms,
                data_change=True,
                stats=one.stats,
            )
            for one in found
            if one.table == name
        ]
        tables.commit(name, broker, marks, added)


def _add_known(written: TaskFiles, plan: LogPlan, run: Run) -> None:
    """Add what the driver knows of a run: itself, the gap, the files, the JSON tables."""
    whole = {"physicalOffset": plan.begin, "size": plan.end - plan.begin}
    written.add_extent({"kind": "run", **whole, "content": msgspec.json.encode(run)})
    if plan.gap is not None:
        first, stop = plan.gap
        written.add_extent({"kind": "gap", "physicalOffset": first, "size": stop - first})
    for one in plan.segments:
        known = {"physicalOffset": one.base, "size": one.size, "fileSize": one.file_size}
        written.add_extent({"kind": "file", "file": one.base, **known})
    for name, content in plan.config.items():
        for at in range(0, max(1, len(content)), EXTENT_BYTES):
            part = content[at : at + EXTENT_BYTES]
            place = {"name": name, "physicalOffset": at, "size": len(part)}
            written.add_extent({"kind": "config", **place, "content": part})
