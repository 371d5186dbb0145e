"""Archive and restore without Spark: each task pickled as Spark does, one after the other."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from rocketstore.pipeline.jobs.archive.job import archive_with
from rocketstore.pipeline.jobs.archive.layout import MESSAGES, run_name
from rocketstore.pipeline.jobs.archive.manifest import read_manifests
from rocketstore.pipeline.jobs.archive.place import archive_place
from rocketstore.pipeline.jobs.archive.task import TaskResult, archive_task
from rocketstore.pipeline.jobs.restore.job import restore_with
from rocketstore.pipeline.jobs.restore.plan import Selection
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rocketstore.config import StoreConfig
    from rocketstore.pipeline.jobs.archive.job import ArchiveResult
    from rocketstore.pipeline.jobs.restore.job import RestoreResult


def sent(task: Any) -> Any:
    """Return a task as a worker gets it."""
    return pickle.loads(pickle.dumps(task))  # noqa: S301 - our own bytes


def run_archive_tasks(tasks: Sequence[Any]) -> list[TaskResult]:
    return [
        msgspec.json.decode(batch.column(0)[0].as_py(), type=TaskResult)
        for task in tasks
        for batch in archive_task(sent(task))
    ]


def run_restore_tasks(
    tasks: Sequence[Any], work: Callable[[Any], Iterator[pa.RecordBatch]], schema: str
) -> pa.Table:
    del schema
    return pa.Table.from_batches([batch for task in tasks for batch in work(sent(task))])


def archived(
    store: Path | str,
    target: Path | str,
    *,
    split: int = MiB,
    run: Any = run_archive_tasks,
    sole_writer: bool = False,
    config: StoreConfig | None = None,
) -> ArchiveResult:
    return archive_with(
        run, store, target, config=config, max_split_bytes=split, sole_writer=sole_writer
    )


def restored(
    source: Path | str, target: Path, *, run: Any = run_restore_tasks, **selection: Any
) -> RestoreResult:
    return restore_with(run, source, target, Selection(**selection))


def log_bytes(store: Path) -> dict[str, bytes]:
    """Return the CommitLog files of a store."""
    return {path.name: path.read_bytes() for path in (store / "commitlog").iterdir()}


def tree(root: Path) -> dict[str, bytes]:
    """Return every file below a directory, locks left out."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "_lock"
    }


def visible_files(archive: Path) -> list[Path]:
    """Return the files that a plain read of ``messages`` finds, as Spark and pyarrow look."""
    found = []
    for directory, names, files in os.walk(archive / MESSAGES):
        names[:] = [name for name in names if name[0] not in "._"]
        found += [Path(directory, name) for name in files if name[0] not in "._"]
    return sorted(found)


def rows(archive: Path) -> list[dict[str, Any]]:
    """Return what the manifests say is archived, in the order of the log, topics included."""
    found = []
    for manifest in read_manifests(archive_place(archive)):
        root = archive / MESSAGES / run_name(manifest.run)
        for file in manifest.files:
            table = pq.ParquetFile(root / file.path).read()
            found += [row | {"topic": file.topic} for row in table.to_pylist()]
    return sorted(found, key=lambda row: row["physicalOffset"])
