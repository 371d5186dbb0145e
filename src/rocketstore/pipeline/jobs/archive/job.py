"""``archive``: bring what a store's log has got since the last run into the archive."""

from __future__ import annotations

import contextlib
import shutil
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from rocketstore.errors import ArchiveError, ConfigError, StoreError
from rocketstore.format.markers import COMMIT_LOG_DIRECTORY, CONFIG_DIRECTORY
from rocketstore.pipeline.files import files_at, is_remote, opened
from rocketstore.pipeline.jobs.archive.commit import (
    commit,
    locked,
    new_staging,
    placed_extents,
    placed_files,
    plain_disk_errors,
    sweep,
)
from rocketstore.pipeline.jobs.archive.layout import STAGING, local_directory
from rocketstore.pipeline.jobs.archive.manifest import (
    FORMAT,
    ConfigFile,
    LogFile,
    Manifest,
    list_runs,
    read_manifest,
)
from rocketstore.pipeline.jobs.archive.object_commit import commit_objects, sweep_objects
from rocketstore.pipeline.jobs.archive.place import DiskPlace, ObjectPlace
from rocketstore.pipeline.jobs.archive.plan import plan_run, plan_tasks
from rocketstore.pipeline.objects import ObjectStore, check_sole_writer
from rocketstore.pipeline.options import parse_options
from rocketstore.pipeline.stores import configured_log, find_stores, log_option
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from rocketstore.config import StoreConfig
    from rocketstore.pipeline.jobs.archive.manifest import DataFile, ExtentFile
    from rocketstore.pipeline.jobs.archive.plan import ArchiveTask, LogPlan
    from rocketstore.pipeline.jobs.archive.task import TaskResult
    from rocketstore.pipeline.jobs.execution import Progress
    from rocketstore.pipeline.stores import StorePlace

MAX_SPLIT_BYTES: Final = 256 * MiB
"""Of the log per task, which holds about twice this."""


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


def archive(  # noqa: PLR0913 - keywords, each a choice of the caller
    spark: SparkSession,
    store: str | Path,
    target: str | Path,
    *,
    config: StoreConfig | None = None,
    max_split_bytes: int = MAX_SPLIT_BYTES,
    sole_writer: bool = False,
    progress: Progress | None = None,
) -> ArchiveResult:
    """Archive what a store's CommitLog has got since the last run.

    Parameters
    ----------
    spark
        The session, classic or Connect.
    store
        Path or URI of a store, stopped or running.
    target
        Directory of the archive, on a disk that all workers see under this path; made if missing.
        Or a URI of an object store.
    config
        For ``storePathCommitLog``: where the log lies when not in ``commitlog``.
    max_split_bytes
        Bytes of the log per task, which holds about twice as much in memory.
    sole_writer
        For an object store, which has no lock: the caller sees to it that nobody else archives
        there at the same time.
    progress
        Told of bytes of the log that were archived.

    Raises
    ------
    NotAStoreError
        `store` is none, or a directory of several.
    ArchiveError
        The store is not the one that was archived; or the archive is in use or cannot be written.
    ArchiveDamagedError
        The archive is not whole.
    StoreFullError
        The archive's disk is full.
    """
    from rocketstore.pipeline.jobs.archive.task import (  # noqa: PLC0415 - needs pyarrow
        RESULT_SCHEMA,
        TaskResult,
        archive_task,
    )
    from rocketstore.pipeline.jobs.execution import run_tasks, watched  # noqa: PLC0415 - as above

    def run(tasks: Sequence[ArchiveTask]) -> list[TaskResult]:
        done = watched(progress, tasks, _byte_count)
        told = run_tasks(spark, tasks, archive_task, RESULT_SCHEMA, done=done)
        texts = told.column("result").to_pylist()
        return [msgspec.json.decode(str(text), type=TaskResult) for text in texts]

    return archive_with(
        run,
        store,
        target,
        config=config,
        max_split_bytes=max_split_bytes,
        sole_writer=sole_writer,
    )


def _byte_count(task: ArchiveTask) -> int:
    return sum(piece.stop - piece.start for piece in task.pieces)


def archive_with(
    run_all: Callable[[Sequence[ArchiveTask]], list[TaskResult]],
    store: str | Path,
    target: str | Path,
    *,
    config: StoreConfig | None = None,
    max_split_bytes: int = MAX_SPLIT_BYTES,
    sole_writer: bool = False,
) -> ArchiveResult:
    """Do what `archive` does, with any way to run the tasks.

    Raises
    ------
    As `archive`.
    """
    if max_split_bytes < 1:
        raise ConfigError(f"max_split_bytes: expected at least 1, found {max_split_bytes}")
    place = _one_store(store, config)
    if is_remote(str(target)):
        check_sole_writer(str(target), sole_writer=sole_writer)
        return _archive_to_objects(run_all, place, str(target), max_split_bytes)
    directory = local_directory(target)
    if (directory / COMMIT_LOG_DIRECTORY).is_dir():
        raise _is_store(directory)
    archive_on_disk = DiskPlace(directory)
    with locked(directory), plain_disk_errors(directory):
        runs = list_runs(archive_on_disk)
        last = read_manifest(archive_on_disk, runs[-1]) if runs else None
        sweep(directory, len(runs))
        plan = plan_run(place, last)
        try:
            staging = new_staging(directory)
            tasks = plan_tasks(place, plan, max_split_bytes, str(staging))
            results = sorted(run_all(tasks), key=lambda one: one.part.task)
            files, file_paths = placed_files(file for one in results for file in one.files)
            extents, extent_paths = placed_extents(
                (one.part.task, file) for one in results for file in one.extents
            )
            run = _Run(place, plan, last, results)
            manifest, settings = run.manifest(files, extents)
            if manifest.has_news(last):
                commit(directory, manifest, file_paths, extent_paths, settings)
            return run.result(manifest)
        finally:
            shutil.rmtree(directory / STAGING, ignore_errors=True)


def _archive_to_objects(
    run_all: Callable[[Sequence[ArchiveTask]], list[TaskResult]],
    place: StorePlace,
    target: str,
    max_split_bytes: int,
) -> ArchiveResult:
    archive = ObjectPlace(ObjectStore(target))
    if archive.objects.files.list(archive.path(COMMIT_LOG_DIRECTORY)):
        raise _is_store(target)
    runs = list_runs(archive)
    last = read_manifest(archive, runs[-1]) if runs else None
    sweep_objects(archive, len(runs))
    plan = plan_run(place, last)
    try:
        tasks = [
            task._replace(objects=target, run=len(runs) + 1)
            for task in plan_tasks(place, plan, max_split_bytes, "")
        ]
        results = sorted(run_all(tasks), key=lambda one: one.part.task)
        run = _Run(place, plan, last, results)
        manifest, config = run.manifest(
            tuple(
                sorted(
                    (file for one in results for file in one.files),
                    key=lambda file: (file.task, file.path),
                )
            ),
            tuple(file for one in results for file in one.extents),
        )
        if manifest.has_news(last):
            commit_objects(archive, manifest, config)
        else:
            sweep_objects(archive, len(runs))
        return run.result(manifest)
    except Exception:
        # What is left is no harm: the next run sweeps it. A commit that was cut off may be one.
        with contextlib.suppress(StoreError):
            sweep_objects(archive, len(list_runs(archive)))
        raise


def _is_store(target: str | Path) -> ConfigError:
    return ConfigError(
        f"{target} is a store: expected a directory for the archive",
        hint="the archive comes second: rocketstore pipeline archive STORE ARCHIVE",
    )


def _one_store(location: str | Path, config: StoreConfig | None) -> StorePlace:
    directories = configured_log(str(location), config)
    options = parse_options({"path": str(location)} | log_option(directories))
    places = find_stores(options)
    if len(places) != 1:
        raise ConfigError(
            f"{location} holds {len(places)} stores, and an archive is of one",
            hint=f"archive each to a directory of its own, for example {places[0].location}",
        )
    return places[0]


class _Run(NamedTuple):
    """What was planned and found."""

    place: StorePlace
    plan: LogPlan
    last: Manifest | None
    results: list[TaskResult]

    def manifest(
        self, files: tuple[DataFile, ...], extents: tuple[ExtentFile, ...]
    ) -> tuple[Manifest, Mapping[str, bytes]]:
        """Return the manifest of the run, and the store's JSON tables that belong to it."""
        place, plan, last, results = self
        _check_coverage(place, plan, results)
        config = _config_tables(place)
        lasts = [one.last_record for one in results if one.last_record is not None]
        manifest = Manifest(
            format=FORMAT,
            run=1 if last is None else last.run + 1,
            broker_name=place.broker_name,
            begin=plan.begin,
            end=plan.end,
            gap=plan.gap,
            records=sum(one.part.records for one in results),
            record_bytes=sum(one.part.record_bytes for one in results),
            last_record=lasts[-1] if lasts else (None if last is None else last.last_record),
            log_files=tuple(LogFile(one.base, one.size, one.file_size) for one in plan.segments),
            parts=tuple(one.part for one in results if one.part.records),
            files=files,
            extents=extents,
            config=tuple(
                ConfigFile(name, len(content), zlib.crc32(content))
                for name, content in config.items()
            ),
        )
        return manifest, config

    def result(self, manifest: Manifest) -> ArchiveResult:
        """Return what the caller is told."""
        return ArchiveResult(
            run=manifest.run if manifest.has_news(self.last) else None,
            begin=self.plan.begin,
            end=self.plan.end,
            records=manifest.records,
            record_bytes=manifest.record_bytes,
            damaged_bytes=sum(one.damaged_bytes for one in self.results),
            file_count=len(manifest.files),
            file_bytes=sum(file.size for file in manifest.files),
            gap=self.plan.gap,
            is_compared=self.plan.is_compared,
        )


def _check_coverage(place: StorePlace, plan: LogPlan, results: Sequence[TaskResult]) -> None:
    """Compare what tasks found with what there is: every byte is a record or in an extent."""
    found = sum(one.part.record_bytes + one.extent_bytes for one in results)
    if found != plan.expected_bytes:
        raise ArchiveError(
            f"{place.location} changed while it was archived: expected {plan.expected_bytes} bytes "
            f"from physical offset {plan.begin} to {plan.end}, found {found}; nothing was archived",
            hint="run the archive again",
        )


def _config_tables(place: StorePlace) -> Mapping[str, bytes]:
    """Return the files of the store's directory ``config`` by name."""
    files, root = files_at(place.location)
    tables = {}
    for entry in files.list(f"{root}/{CONFIG_DIRECTORY}"):
        if not entry.is_directory:
            with opened(files, entry.path) as file:
                tables[entry.name] = file.read(0, entry.size)
    return tables
