"""``restore``: a store from an archive, whole and byte for byte, or a selection of its messages."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from rocketstore.errors import ArchiveDamagedError
from rocketstore.format.markers import COMMIT_LOG_DIRECTORY
from rocketstore.pipeline.jobs.archive.layout import CONFIG, MESSAGES, local_directory, run_name
from rocketstore.pipeline.jobs.archive.manifest import read_manifests
from rocketstore.pipeline.jobs.archive.place import archive_place
from rocketstore.pipeline.jobs.restore.plan import (
    Selection,
    file_size_of,
    final_log_files,
    lay_out,
    nothing_selected,
    plan_selection,
    plan_whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from rocketstore.pipeline.jobs.archive.manifest import Manifest
    from rocketstore.pipeline.jobs.archive.place import ArchivePlace
    from rocketstore.pipeline.jobs.execution import Progress
    from rocketstore.pipeline.jobs.restore.plan import RestoreTask


class RestoreResult(NamedTuple):
    """What a call of `restore` did.

    Attributes
    ----------
    records
        Restored.
    written_bytes
        Written into the CommitLog files: records, and what stands between them.
    file_count, file_bytes
        CommitLog files and their sizes together.
    is_whole
        Whether the CommitLog files are those that were archived, byte for byte.
    config_tables
        Names of the JSON tables that were restored.
    """

    records: int
    written_bytes: int
    file_count: int
    file_bytes: int
    is_whole: bool
    config_tables: tuple[str, ...]


class RunAll(Protocol):
    """A way to run tasks: on Spark, or one after the other."""

    def __call__(
        self,
        tasks: Sequence[RestoreTask],
        work: Callable[[RestoreTask], Iterator[pa.RecordBatch]],
        schema: str,
    ) -> pa.Table:
        """Return the rows that `work` yields for all tasks."""
        ...


def restore(  # noqa: PLR0913 - keywords, each a part of the selection
    spark: SparkSession,
    archive: str | Path,
    target: str | Path,
    *,
    topics: Sequence[str] = (),
    begin_ms: int | None = None,
    end_ms: int | None = None,
    progress: Progress | None = None,
) -> RestoreResult:
    """Restore a store from an archive.

    Without a selection the CommitLog files are those that were archived, byte for byte, damage and
    unwritten tail included. With one it is a new log: records keep everything but their physical
    offset, and so their message id.

    Parameters
    ----------
    spark
        The session, classic or Connect.
    archive
        Directory of the archive, or its URI on an object store.
    target
        Directory that becomes the store; not there yet, or empty. On a disk that all workers see.
    topics
        Only messages of these.
    begin_ms, end_ms
        Only messages stored from the first time on and before the second.
    progress
        Told of tasks that have ended.

    Raises
    ------
    ArchiveError
        There is no archive.
    ArchiveDamagedError
        The archive is not whole; nothing is restored.
    ConfigError
        Nothing is selected.
    StoreError
        The target is not empty, or cannot be written.
    StoreFullError
        Its disk is full.
    """
    from rocketstore.pipeline.jobs.execution import run_tasks, watched  # noqa: PLC0415 - as above

    def run(
        tasks: Sequence[RestoreTask],
        work: Callable[[RestoreTask], Iterator[pa.RecordBatch]],
        schema: str,
    ) -> pa.Table:
        logs = [task.log_files for task in tasks[:1]]  # of all tasks the same
        done = watched(progress, tasks)
        return run_tasks(spark, tasks, work, schema, done=done, shared=logs)

    selection = Selection(tuple(topics), begin_ms, end_ms)
    return restore_with(run, archive, target, selection)


def restore_with(
    run_all: RunAll,
    archive: str | Path,
    target: str | Path,
    selection: Selection = Selection(),  # noqa: B008 - a constant
) -> RestoreResult:
    """Do what `restore` does, with any way to run the tasks.

    Raises
    ------
    As `restore`.
    """
    from rocketstore.pipeline.jobs.restore.driver_commit import (  # noqa: PLC0415 - pyarrow
        check_target,
        staged,
    )

    source, place = archive_place(archive), local_directory(target)
    check_target(place)
    manifests = read_manifests(source)
    with staged(place) as store:
        if selection.is_everything:
            return _restore_whole(run_all, source, manifests, (store, place))
        return _restore_selection(run_all, (source, selection), manifests, (store, place))


def _restore_whole(
    run_all: RunAll, source: ArchivePlace, manifests: Sequence[Manifest], places: tuple[Path, Path]
) -> RestoreResult:
    from rocketstore.pipeline.jobs.restore.driver_commit import (  # noqa: PLC0415 - pyarrow
        make_files,
        publish,
        write_config,
    )
    from rocketstore.pipeline.jobs.restore.task import (  # noqa: PLC0415 - pyarrow
        RESULT_SCHEMA,
        restore_task,
    )

    store, target = places
    log_files = final_log_files(manifests)
    config = _config_tables(source, manifests[-1])
    make_files(store, log_files)
    tasks = plan_whole(source, manifests, str(store / COMMIT_LOG_DIRECTORY))
    told = run_all(tasks, restore_task, RESULT_SCHEMA)
    _check_all_told(told, tasks)
    write_config(store, config)
    publish(store, target)
    return RestoreResult(
        records=_total(told, "records"),
        written_bytes=_total(told, "bytes"),
        file_count=len(log_files),
        file_bytes=sum(one.size for one in log_files),
        is_whole=True,
        config_tables=tuple(config),
    )


def _restore_selection(
    run_all: RunAll,
    wanted: tuple[ArchivePlace, Selection],
    manifests: Sequence[Manifest],
    places: tuple[Path, Path],
) -> RestoreResult:
    from rocketstore.pipeline.jobs.restore.driver_commit import (  # noqa: PLC0415 - pyarrow
        make_files,
        publish,
        write_blanks,
    )
    from rocketstore.pipeline.jobs.restore.task import (  # noqa: PLC0415 - pyarrow
        RESULT_SCHEMA,
        SIZES_SCHEMA,
        restore_task,
        sizes_task,
    )

    source, selection = wanted
    store, target = places
    tasks = plan_selection(source, manifests, selection, str(store / COMMIT_LOG_DIRECTORY))
    told = run_all(tasks, sizes_task, SIZES_SCHEMA)
    _check_all_told(told, tasks)
    columns: Any = told
    packed = dict(
        zip(columns.column("task").to_pylist(), columns.column("sizes").to_pylist(), strict=True)
    )
    sizes = [np.frombuffer(packed[task.number], dtype="<i4") for task in tasks]
    if not any(len(one) for one in sizes):
        raise nothing_selected(manifests, selection)
    file_size = file_size_of(manifests)
    log = lay_out(sizes, file_size)
    make_files(store, log.log_files)
    placed = [
        task._replace(stretches=stretches, log_files=log.log_files)
        for task, stretches in zip(tasks, log.stretches, strict=True)
        if stretches
    ]
    written = run_all(placed, restore_task, RESULT_SCHEMA)
    _check_all_told(written, placed)
    write_blanks(store, log.blanks, file_size)
    publish(store, target)
    return RestoreResult(
        records=_total(written, "records"),
        written_bytes=_total(written, "bytes"),
        file_count=len(log.log_files),
        file_bytes=len(log.log_files) * file_size,
        is_whole=False,
        config_tables=(),
    )


def _check_all_told(told: Any, tasks: Sequence[RestoreTask]) -> None:
    numbers = sorted(told.column("task").to_pylist())
    expected = [task.number for task in tasks]
    assert numbers == expected, f"tasks {expected} were given, {numbers} answered"


def _total(told: Any, name: str) -> int:
    return sum(told.column(name).to_pylist())


def _config_tables(archive: ArchivePlace, manifest: Manifest) -> dict[str, bytes]:
    tables = {}
    for one in manifest.config:
        path = archive.path(MESSAGES, run_name(manifest.run), CONFIG, one.name)
        content = archive.content(path)
        if content is None:
            raise ArchiveDamagedError(
                f"{path} is missing", hint="restore the archive from a backup"
            )
        if (len(content), zlib.crc32(content)) != (one.size, one.crc32):
            raise ArchiveDamagedError(
                f"{path} has {len(content)} bytes with CRC {zlib.crc32(content):08x}: "
                f"expected {one.size} with {one.crc32:08x}",
                hint="restore the archive from a backup",
            )
        tables[one.name] = content
    return tables
