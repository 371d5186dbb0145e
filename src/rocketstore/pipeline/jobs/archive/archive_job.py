"""``archive``: bring what a store's log has got since the last run into the archive."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from deltalake.transaction import AddAction

from rocketstore.errors import ArchiveError, ConfigError
from rocketstore.format.markers import COMMIT_LOG_DIRECTORY
from rocketstore.pipeline.files import files_at
from rocketstore.pipeline.jobs.archive.archive_files import RESULT_SCHEMA, SUMS
from rocketstore.pipeline.jobs.archive.archive_plan import (
    ArchiveTask,
    LogPlan,
    plan_run,
    plan_tasks,
)
from rocketstore.pipeline.jobs.archive.archive_table import (
    DAY,
    EXTENT_BYTES,
    EXTENTS,
    MESSAGES,
    Archive,
    Run,
    RunFacts,
    run_id,
)
from rocketstore.pipeline.jobs.archive.archive_write import (
    Extents,
    archive_task,
)
from rocketstore.pipeline.jobs.execution import map_tasks, plain_failure
from rocketstore.pipeline.jobs.publishing import plain_write_errors
from rocketstore.pipeline.options import parse_options
from rocketstore.pipeline.stores import configured_log, find_stores, log_option
from rocketstore.units import MiB

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from rocketstore.config import StoreConfig
    from rocketstore.pipeline.stores import StorePlace

MAX_SPLIT_BYTES: Final = 512 * MiB
"""Of the log per task, which makes one file: 128 MB and more of what zstd makes a quarter."""


class ArchiveResult(NamedTuple):
    """What a call of `archive` did.

    Attributes
    ----------
    run
        Number of the run; None when the archive had everything already.
    begin, end
        The range of the log that was archived now, as physical offsets.
    records, record_bytes
        Archived now.
    damaged_bytes
        Kept as they are, no rows of ``messages``.
    file_count, file_bytes
        Parquet files of messages written now.
    gap
        Range of the log that was deleted before it could be archived.
    is_compared
        Whether the last archived record was compared with the log: it is not in a first run, nor
        when its file was deleted since.
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


class ArchiveRun(NamedTuple):
    """A run that is planned; `last` is the one before it."""

    archive: Archive
    store: StorePlace
    plan: LogPlan
    last: Run | None
    number: int
    tasks: list[ArchiveTask]

    @property
    def has_news(self) -> bool:
        """Whether there is anything to archive."""
        plan, last = self.plan, self.last
        if last is None or plan.begin != plan.end or plan.gap is not None:
            return True
        return plan.beside != last.facts.beside


def archive(
    spark: SparkSession,
    store: str | Path,
    target: str | Path,
    *,
    config: StoreConfig | None = None,
    max_split_bytes: int = MAX_SPLIT_BYTES,
) -> ArchiveResult:
    """Archive what a store's CommitLog has got since the last run.

    Parameters
    ----------
    spark
        The session, classic or Connect.
    store
        Path or URI of a store, stopped or running.
    target
        Path or URI of the archive, made if missing; on a disk that all workers see under this path.
        Stores of several brokers may share one.
    config
        For ``storePathCommitLog``: where the log lies when not in ``commitlog``.
    max_split_bytes
        Bytes of the log per task, and so per file.

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
    run = begin_run(store, target, config=config, max_split_bytes=max_split_bytes)
    if not run.has_news:
        return end_run(run, None)
    with plain_failure():
        # A row per file; the files of many terabytes are some thousands.
        rows = map_tasks(spark, run.tasks, archive_task, RESULT_SCHEMA).toArrow()
    return end_run(run, rows)


def begin_run(
    store: str | Path, target: str | Path, *, config: StoreConfig | None, max_split_bytes: int
) -> ArchiveRun:
    """Plan a run.

    Raises
    ------
    As `archive`.
    """
    if max_split_bytes < 1:
        raise ConfigError(f"max_split_bytes: expected at least 1, found {max_split_bytes}")
    place, location = _one_store(store, config), str(target)
    files, root = files_at(location)
    if files.list(f"{root}/{COMMIT_LOG_DIRECTORY}"):
        raise ConfigError(
            f"{target} is a store: expected a directory for the archive",
            hint="the archive comes second: rocketstore pipeline archive STORE ARCHIVE",
        )
    archive = Archive.open_or_create(location)
    runs = archive.runs(place.broker_name)
    last = runs[-1] if runs else None
    plan = plan_run(place, last)
    number = (archive.extents.transaction_version(run_id(place.broker_name)) or 0) + 1
    tasks = plan_tasks(place, plan, max_split_bytes, location, number)
    return ArchiveRun(archive, place, plan, last, number, tasks)


def end_run(run: ArchiveRun, rows: pa.Table | None) -> ArchiveResult:
    """Commit what tasks have written; without rows of theirs, say that there was nothing.

    Raises
    ------
    ArchiveError
        The log changed meanwhile, or another process archived it.
    """
    place, plan = run.store, run.plan
    found: list[dict[str, Any]] = [] if rows is None else rows.to_pylist()
    total = {name: sum(row[name] for row in found) for name in SUMS}
    if rows is not None:
        _check_coverage(run, total)
        facts = _facts(run, found, total)
        with plain_write_errors(run.archive.location, kind=ArchiveError):
            found += _driver_extents(run, facts)
        run.archive.commit_extents(place.broker_name, run.number, _added(found, EXTENTS))
        run.archive.commit_messages(
            place.broker_name, run.number, plan.end, _added(found, MESSAGES)
        )
    files = [row for row in found if row["table"] == MESSAGES]
    return ArchiveResult(
        run=None if rows is None else run.number,
        begin=plan.begin,
        end=plan.end,
        records=total["records"],
        record_bytes=total["record_bytes"],
        damaged_bytes=total["damaged_bytes"],
        file_count=len(files),
        file_bytes=sum(row["size"] for row in files),
        gap=plan.gap,
        is_compared=plan.is_compared,
    )


def _check_coverage(run: ArchiveRun, total: dict[str, int]) -> None:
    """Compare what tasks found with what there is: every byte is a record or in an extent."""
    found = total["record_bytes"] + total["extent_bytes"]
    plan = run.plan
    expected = sum(one.stop - one.start for one in plan.log)
    if found != expected:
        raise ArchiveError(
            f"{run.store.location} changed while it was archived: expected {expected} "
            f"bytes from physical offset {plan.begin} to {plan.end}, found {found}; nothing was "
            "archived",
            hint="run the archive again",
        )


def _driver_extents(run: ArchiveRun, facts: RunFacts) -> list[dict[str, Any]]:
    """Write what the driver knows of the run: itself, the gap, the files, the tables."""
    plan = run.plan
    extents = Extents(run.archive.location, run.store, run.number, len(run.tasks))
    extents.add(
        kind="run",
        physicalOffset=plan.begin,
        size=plan.end - plan.begin,
        content=msgspec.json.encode(facts),
    )
    if plan.gap is not None:
        first, stop = plan.gap
        extents.add(kind="gap", physicalOffset=first, size=stop - first)
    for one in plan.segments:
        at, size = one.base, one.size
        extents.add(kind="file", physicalOffset=at, size=size, file=at, fileSize=one.file_size)
    for name, content in plan.config.items():
        for at in range(0, max(1, len(content)), EXTENT_BYTES):
            part = content[at : at + EXTENT_BYTES]
            extents.add(kind="config", physicalOffset=at, size=len(part), name=name, content=part)
    return extents.close()


def _facts(run: ArchiveRun, found: list[dict[str, Any]], total: dict[str, int]) -> RunFacts:
    last = run.last
    names = "last_offset", "last_size", "last_sha256"
    offset, size, digest = max(
        (tuple(row[one] for one in names) for row in found), default=(0, 0, "")
    )
    if not size and last is not None:
        old = last.facts
        offset, size, digest = old.last_offset, old.last_size, old.last_sha256
    return RunFacts(
        previous=0 if last is None else last.number,
        records=total["records"],
        record_bytes=total["record_bytes"],
        last_offset=offset,
        last_size=size,
        last_sha256=digest,
        beside=run.plan.beside,
    )


def _added(rows: list[dict[str, Any]], table: str) -> list[AddAction]:
    now_ms = time.time_ns() // 1_000_000
    return [
        AddAction(
            path=row["path"],
            size=row["size"],
            partition_values={DAY: row["day"]} if table == MESSAGES else {},
            modification_time=now_ms,
            data_change=True,
            stats=row["stats"],
        )
        for row in rows
        if row["table"] == table
    ]


def _one_store(location: str | Path, config: StoreConfig | None) -> StorePlace:
    directories = configured_log(str(location), config)
    places = find_stores(parse_options({"path": str(location)} | log_option(directories)))
    if len(places) != 1:
        raise ConfigError(
            f"{location} holds {len(places)} stores, and a run is of one",
            hint=f"archive one after the other, for example {places[0].location}; they may share "
            "an archive",
        )
    return places[0]
