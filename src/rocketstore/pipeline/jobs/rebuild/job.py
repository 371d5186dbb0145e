"""Rebuild the queues and the index of a store from its CommitLog, spread over Spark's workers.

See ``docs/guide/spark-rebuild.md``. `construction` makes the new files, `driver_commit` puts them
in the place of the old ones on a disk, `object_job` does both on an object store.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from rocketstore.config import StoreConfig
from rocketstore.format.markers import (
    COMMIT_LOG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
)
from rocketstore.pipeline.files import LocalFiles, files_at, is_remote, last_name
from rocketstore.pipeline.jobs.rebuild import driver_commit
from rocketstore.pipeline.jobs.rebuild.construction import BuildOptions, Plan, build, keep_numbers
from rocketstore.pipeline.jobs.rebuild.given_numbers import QueueTops
from rocketstore.pipeline.jobs.rebuild.object_job import no_store, rebuild_objects
from rocketstore.pipeline.jobs.rebuild.queue_files import QueueFiles
from rocketstore.pipeline.jobs.rebuild.report import RebuildReport, report_of
from rocketstore.pipeline.jobs.rebuild.runner import SparkRunner
from rocketstore.pipeline.options import DEFAULT_SPLIT_BYTES
from rocketstore.pipeline.stores import (
    REBUILD_DIRECTORY,
    StorePlace,
    configured_log,
    store_with_log,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from rocketstore.pipeline.jobs.execution import Progress
    from rocketstore.pipeline.jobs.rebuild.runner import Runner


def rebuild(  # noqa: PLR0913 - keywords, each a choice of the caller
    spark: SparkSession,
    store: str | Path,
    *,
    plan: Plan | None = None,
    config: StoreConfig | None = None,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    sole_writer: bool = False,
    take_over: bool = False,
    progress: Progress | None = None,
) -> RebuildReport:
    """Make the queues and the index of a store anew from its CommitLog.

    Parameters
    ----------
    spark
        The session, classic or Connect; its workers see the store under the same path.
    store
        Directory of a store that nobody has open; or URI of one on an object store.
    plan
        ``posix``: workers write into files of the shared disk. ``shuffle``: Spark shuffles the
        entries, and each file is written by one task. The bytes are the same. None is ``shuffle``
        on an object store, which has nothing else, and ``posix`` on a disk.
    config
        Settings that the files do not tell: delay levels, ``enableMultiDispatch``, directories of
        the log.
    max_split_bytes
        Most bytes of the log that one task reads.
    sole_writer
        For an object store, which has no lock: the caller sees to it that nobody else writes there.
    take_over
        For an object store: a rebuild of another machine whose claim is there has ended, killed.
    progress
        Told of tasks that have ended.

    Returns
    -------
    RebuildReport
        What was found and made.

    Raises
    ------
    StoreLockedError
        A writer has the store; or, on an object store, another rebuild.
    NotAStoreError
        There is no CommitLog.
    StoreDamagedError
        There is no CommitLog file although queues have entries (K-R10).
    ConfigError
        On an object store: another plan than the shuffle, or somebody else may be writing.
    """
    return rebuild_with(
        SparkRunner(spark, progress),
        store,
        plan=plan,
        config=config,
        max_split_bytes=max_split_bytes,
        sole_writer=sole_writer,
        take_over=take_over,
        now_ms=_now_ms(),
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def rebuild_with(  # noqa: PLR0913 - keywords, each a choice of the caller
    runner: Runner,
    store: str | Path,
    *,
    plan: Plan | None = None,
    config: StoreConfig | None = None,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    sole_writer: bool = False,
    take_over: bool = False,
    now_ms: int,
    step: Callable[[str], None] = lambda _name: None,
) -> RebuildReport:
    """Rebuild with any way of running tasks; parameters as `rebuild`, and those of `commit`."""
    began = time.perf_counter()
    options = BuildOptions(
        chosen_plan(str(store), plan), config or StoreConfig(), max_split_bytes, now_ms
    )
    if is_remote(str(store)):
        return rebuild_objects(
            runner,
            str(store),
            options,
            sole_writer=sole_writer,
            take_over=take_over,
            step=step,
        )
    place = local_place(str(store), options.config)
    root = Path(place.location)
    with driver_commit.locked(root):
        driver_commit.finish_interrupted(root)
        directory = root / REBUILD_DIRECTORY / uuid.uuid4().hex
        try:
            staging = driver_commit.make_staging(directory)
            built = build(runner, place, staging, options)
            tops = QueueTops(LocalFiles(), str(root / CONSUME_QUEUE_DIRECTORY), str(staging.queues))
            writer = QueueFiles(tops.new, built.settings.queue_file_bytes)
            kept_places = keep_numbers(place, tops, writer, built)
            old, new = _queues_below(root / CONSUME_QUEUE_DIRECTORY), _queues_below(staging.queues)
            names = [CONSUME_QUEUE_DIRECTORY]
            if built.settings.has_index:
                names.append(INDEX_DIRECTORY)
            step("built")
            kept = driver_commit.commit(root, staging, names, now_ms=now_ms, step=step)
        except Exception:
            driver_commit.finish_interrupted(root)
            raise
    return report_of(str(root), options, built, (old, new), kept_places, kept, began)


def chosen_plan(store: str, plan: Plan | None) -> Plan:
    """Return the plan that was asked for, else the one that suits the store's place."""
    return plan or ("shuffle" if is_remote(store) else "posix")


def local_place(store: str, config: StoreConfig) -> StorePlace:
    """Return a store on a disk that all workers see, and where its log lies.

    Raises
    ------
    NotAStoreError
        It is no store.
    """
    directories = configured_log(store, config)
    if directories:
        return store_with_log(store, directories)
    root = files_at(store)[1]
    if not Path(root, COMMIT_LOG_DIRECTORY).is_dir():
        raise no_store(store)
    return StorePlace(root, last_name(root), is_open=False)


def _queues_below(directory: Path) -> set[str]:
    """Return the queues that have files, as topic and queue id."""
    return {
        path.relative_to(directory).as_posix()
        for path in directory.glob("*/*")
        if path.is_dir() and any(path.iterdir())
    }
