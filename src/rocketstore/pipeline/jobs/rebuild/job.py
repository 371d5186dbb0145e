"""Rebuild the queues and the index of a store from its CommitLog, spread over Spark's workers.

See ``docs/guide/spark-rebuild.md``. The log is read once: each split becomes a small part file, and
from the parts' manifests the driver knows where every entry belongs.
"""

from __future__ import annotations

import itertools
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np

from rocketstore.config import StoreConfig
from rocketstore.errors import NotAStoreError, StoreDamagedError
from rocketstore.format.markers import CONSUME_QUEUE_DIRECTORY, INDEX_DIRECTORY
from rocketstore.pipeline.files import LocalFiles, files_at
from rocketstore.pipeline.jobs.rebuild import driver_commit
from rocketstore.pipeline.jobs.rebuild.assembly import Assembly
from rocketstore.pipeline.jobs.rebuild.given_numbers import LogRanges, keep_given_numbers
from rocketstore.pipeline.jobs.rebuild.index_files import index_names
from rocketstore.pipeline.jobs.rebuild.parts import PartManifest
from rocketstore.pipeline.jobs.rebuild.runner import SparkRunner
from rocketstore.pipeline.jobs.rebuild.settings import RebuildSettings, learn_settings
from rocketstore.pipeline.jobs.rebuild.shuffle import (
    ROW_SCHEMA,
    WRITTEN_SCHEMA,
    FileWriting,
    RowTask,
    count_log,
    emit_rows,
    index_file_number,
)
from rocketstore.pipeline.jobs.rebuild.tasks import (
    PART_SCHEMA,
    PLACE_SCHEMA,
    LogTask,
    place,
    read_log,
)
from rocketstore.pipeline.options import DEFAULT_SPLIT_BYTES, parse_options
from rocketstore.pipeline.planning import plan_log
from rocketstore.pipeline.stores import SegmentState, list_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from rocketstore.pipeline.jobs.execution import Progress
    from rocketstore.pipeline.jobs.rebuild.parts import Broken
    from rocketstore.pipeline.jobs.rebuild.runner import Runner
    from rocketstore.pipeline.planning import SplitTask

Plan = Literal["posix", "shuffle"]


class RebuildReport(NamedTuple):
    """What a rebuild found and made.

    Attributes
    ----------
    refused_count
        Records without an entry because another one has the place, or because topic, queue id or
        queue offset cannot be true.
    damage
        Damaged ranges inside the log; records are missing there.
    kept_places
        Places of each queue whose records are gone, by topic and queue id: numbers that were given
        out, and are not given again.
    gone_queues
        Queues that had entries before and have no record left in the log.
    kept
        Where the old queues and index are, relative to the store; None when there were none.
    """

    store: str
    plan: Plan
    record_count: int
    entry_count: int
    refused_count: int
    queue_count: int
    index_item_count: int
    log_end: int
    damage: list[Broken]
    kept_places: dict[str, int]
    gone_queues: list[str]
    kept: str | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "store": self.store,
            "plan": self.plan,
            "recordCount": self.record_count,
            "entryCount": self.entry_count,
            "refusedCount": self.refused_count,
            "queueCount": self.queue_count,
            "indexItemCount": self.index_item_count,
            "logEnd": self.log_end,
            "damage": [msgspec.structs.asdict(one) for one in self.damage],
            "keptPlaces": self.kept_places,
            "goneQueues": self.gone_queues,
            "kept": self.kept,
            "seconds": round(self.seconds, 3),
        }


class BuildOptions(NamedTuple):
    """How new queues and index are made."""

    plan: Plan
    config: StoreConfig
    max_split_bytes: int
    now_ms: int


class Built(NamedTuple):
    """New queues and index that are whole, and what the log said."""

    manifests: list[PartManifest]
    settings: RebuildSettings
    entry_count: int
    refused_count: int
    index_item_count: int
    log_end: int
    damage: list[Broken]
    leftovers: tuple[tuple[int, int], ...]


def rebuild(
    spark: SparkSession,
    store: str | Path,
    *,
    plan: Plan = "posix",
    config: StoreConfig | None = None,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    progress: Progress | None = None,
) -> RebuildReport:
    """Make the queues and the index of a store anew from its CommitLog.

    Parameters
    ----------
    spark
        The session, classic or Connect; its workers see the store under the same path.
    store
        Directory of a store that nobody has open.
    plan
        ``posix``: workers write into files of the shared disk. ``shuffle``: Spark shuffles the
        entries, and each file is written by one task. The bytes are the same.
    config
        Settings that the files do not tell: delay levels, ``enableMultiDispatch``.
    max_split_bytes
        Most bytes of the log that one task reads.
    progress
        Told of tasks that have ended.

    Returns
    -------
    RebuildReport
        What was found and made.

    Raises
    ------
    StoreLockedError
        A writer has the store.
    NotAStoreError
        There is no CommitLog.
    StoreDamagedError
        There is no CommitLog file although queues have entries (K-R10).
    """
    runner = SparkRunner(spark, progress)
    return rebuild_with(
        runner, store, plan=plan, config=config, max_split_bytes=max_split_bytes, now_ms=_now_ms()
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def rebuild_with(  # noqa: PLR0913 - keywords, each a choice of the caller
    runner: Runner,
    store: str | Path,
    *,
    plan: Plan = "posix",
    config: StoreConfig | None = None,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    now_ms: int,
    step: Callable[[str], None] = lambda _name: None,
) -> RebuildReport:
    """Rebuild with any way of running tasks; parameters as `rebuild`, and those of `commit`."""
    began = time.perf_counter()
    root = local_root(str(store))
    with driver_commit.locked(root):
        driver_commit.finish_interrupted(root)
        directory = root / driver_commit.REBUILD_DIRECTORY / uuid.uuid4().hex
        try:
            staging = driver_commit.make_staging(directory)
            options = BuildOptions(plan, config or StoreConfig(), max_split_bytes, now_ms)
            built = build(runner, root, staging, options)
            kept_places = _keep_given_numbers(root, staging, built)
            old, new = _queues_below(root / CONSUME_QUEUE_DIRECTORY), _queues_below(staging.queues)
            names = [CONSUME_QUEUE_DIRECTORY]
            if built.settings.has_index:
                names.append(INDEX_DIRECTORY)
            step("built")
            kept = driver_commit.commit(root, staging, names, now_ms=now_ms, step=step)
        except Exception:
            driver_commit.finish_interrupted(root)
            raise
    return RebuildReport(
        str(root),
        plan,
        sum(one.record_count for one in built.manifests),
        built.entry_count,
        built.refused_count,
        len(new),
        built.index_item_count,
        built.log_end,
        built.damage,
        kept_places,
        sorted(old - new),
        kept,
        time.perf_counter() - began,
    )


def local_root(store: str) -> Path:
    """Return the directory of a store on a disk that all workers see.

    Raises
    ------
    NotAStoreError
        It is no such store.
    """
    files, path = files_at(store)
    if not isinstance(files, LocalFiles):
        raise NotAStoreError(
            f"{store} lies on no disk: its queues cannot be replaced in one step",
            hint="rebuild the store where it is written, or a copy on a disk",
        )
    root = Path(path)
    if not (root / "commitlog").is_dir():
        raise NotAStoreError(
            f"{store} is no store: it has no commitlog directory",
            hint="give the directory that holds commitlog, consumequeue and index",
        )
    return root


def build(
    runner: Runner, root: Path, staging: driver_commit.Staging, options: BuildOptions
) -> Built:
    """Make new queues and index below `staging`; nothing else is written."""
    settings = learn_settings(str(root), options.config)
    _refuse_lost_log(root)
    tasks = [
        LogTask(number, splits, settings, (), str(staging.parts))
        for number, splits in enumerate(_plan(root, options.max_split_bytes))
    ]
    read = read_log if options.plan == "posix" else count_log
    manifests = _read(runner, tasks, read)
    leftovers: tuple[tuple[int, int], ...] = ()
    if _needs_judgement(root, manifests):
        verdict = driver_commit.judge_log(root, options.config, now_ms=options.now_ms)
        leftovers = verdict.leftovers
        tasks = [_without(task, verdict.excluded) for task in tasks]
        manifests |= _read(runner, [task for task in tasks if task.excluded], read)
    ordered = [manifests[number] for number in sorted(manifests)]
    write = _write_in_place if options.plan == "posix" else _write_whole_files
    entry_count, refused_count, item_count = write(runner, tasks, ordered, settings, staging)
    log_end = max((one.log_stop for one in ordered), default=0)
    return Built(
        ordered,
        settings,
        entry_count,
        refused_count + sum(one.refused_count for one in ordered),
        item_count,
        log_end,
        [
            one
            for manifest in ordered
            for one in manifest.broken
            if one.start < log_end and not one.is_torn_tail
        ],
        leftovers,
    )


def _without(task: LogTask, excluded: tuple[tuple[int, int], ...]) -> LogTask:
    """Return a task that leaves out the ranges that it reads some of."""
    touched = tuple(
        (first, behind)
        for first, behind in excluded
        if any(
            split.segment.base + split.start < behind and first < split.segment.base + split.stop
            for split in task.splits
        )
    )
    return task._replace(excluded=touched)


def _write_in_place(
    runner: Runner,
    _tasks: Sequence[LogTask],
    manifests: Sequence[PartManifest],
    settings: RebuildSettings,
    staging: driver_commit.Staging,
) -> tuple[int, int, int]:
    """Write queues and index from parts; return entries, refused records, index items."""
    assembly = Assembly(
        manifests,
        settings,
        queues_directory=str(staging.queues),
        index_directory=str(staging.index_files),
    )
    assembly.begin_even_queues()
    table = runner.run(assembly.place_tasks(), place, PLACE_SCHEMA)
    return _sum(table, "entries"), _sum(table, "refused"), _sum(table, "items")


def _write_whole_files(
    runner: Runner,
    tasks: Sequence[LogTask],
    manifests: Sequence[PartManifest],
    settings: RebuildSettings,
    staging: driver_commit.Staging,
) -> tuple[int, int, int]:
    """Write queues and index from shuffled rows; return as `_write_in_place`."""
    counts = [one.item_count for one in manifests]
    firsts = [0, *itertools.accumulate(counts)]
    rows = [RowTask(task, first) for task, first in zip(tasks, firsts, strict=False)]
    places = (str(staging.parts), str(staging.queues), str(staging.index_files))
    writing = FileWriting(*places, settings)
    table = runner.exchange(rows, emit_rows, ROW_SCHEMA, writing.write, WRITTEN_SCHEMA)
    files = sorted(
        (row["number"], row["timestamp"]) for row in table.to_pylist() if row["number"] >= 0
    )
    for (number, _), name in zip(files, index_names(at for _, at in files), strict=True):
        (staging.index_files / index_file_number(number)).rename(staging.index_files / name)
    return _sum(table, "entries"), _sum(table, "refused"), _sum(table, "items")


def _sum(table: pa.Table, column: str) -> int:
    return int(np.sum(table.column(column).to_numpy()))


def _plan(root: Path, max_split_bytes: int) -> list[tuple[SplitTask, ...]]:
    options = parse_options(
        {
            "path": str(root),
            "table": "commitlog",
            "maxSplitBytes": str(max_split_bytes),
            "failOnDataLoss": "false",
        }
    )
    return plan_log(options, [])


def _read(
    runner: Runner, tasks: Sequence[LogTask], read: Callable[[LogTask], Iterator[pa.RecordBatch]]
) -> dict[int, PartManifest]:
    table = runner.run(tasks, read, PART_SCHEMA)
    decoded = (
        msgspec.msgpack.decode(one.as_buffer(), type=PartManifest)
        for one in table.column("manifest")
    )
    manifests = {one.number: one for one in decoded}
    assert len(manifests) == len(tasks), "every task gave its manifest"
    return manifests


def _needs_judgement(root: Path, manifests: dict[int, PartManifest]) -> bool:
    """Whether records may stand behind a break: then the whole log decides which are messages."""
    if any(not broken.is_torn_tail for one in manifests.values() for broken in one.broken):
        return True
    states = {segment.state for segment in list_segments(str(root))}
    return bool(states & {SegmentState.MISSING, SegmentState.TRUNCATED})


def _refuse_lost_log(root: Path) -> None:
    """Raise where the log is gone and the queues are not: those must stay (K-R10)."""
    if list_segments(str(root)):
        return
    queues = root / CONSUME_QUEUE_DIRECTORY
    if any(path.is_file() for path in queues.glob("*/*/*")):
        raise StoreDamagedError(
            f"{root} has no CommitLog file, but its queues have entries",
            hint="bring the files back, or move consumequeue away to begin an empty store",
        )


def _keep_given_numbers(root: Path, staging: driver_commit.Staging, built: Built) -> dict[str, int]:
    segments = list_segments(str(root))
    log = LogRanges(
        segments[0].base if segments else 0,
        built.log_end,
        [(one.start, one.stop) for one in built.damage],
        built.leftovers,
    )
    old = root / CONSUME_QUEUE_DIRECTORY
    return keep_given_numbers(old, staging.queues, built.settings.queue_file_bytes, log)


def _queues_below(directory: Path) -> set[str]:
    """Return the queues that have files, as topic and queue id."""
    return {
        path.relative_to(directory).as_posix()
        for path in directory.glob("*/*")
        if path.is_dir() and any(path.iterdir())
    }
