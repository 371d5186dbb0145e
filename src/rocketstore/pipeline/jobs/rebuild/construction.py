"""Make new queues and index from a CommitLog, wherever they are then put.

The log is read once for the plan ``posix``: each split becomes a small part file, and from the
parts' manifests the driver knows where every entry belongs. The plan ``shuffle`` reads it twice.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np

from rocketstore.errors import StoreDamagedError
from rocketstore.format.markers import CONSUME_QUEUE_DIRECTORY
from rocketstore.pipeline.files import files_at
from rocketstore.pipeline.jobs.rebuild import driver_commit
from rocketstore.pipeline.jobs.rebuild.assembly import Assembly
from rocketstore.pipeline.jobs.rebuild.index_files import index_names
from rocketstore.pipeline.jobs.rebuild.parts import PartManifest
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
from rocketstore.pipeline.options import parse_options
from rocketstore.pipeline.planning import plan_log
from rocketstore.pipeline.stores import SegmentState, list_segments, log_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from rocketstore.config import StoreConfig
    from rocketstore.pipeline.jobs.rebuild.parts import Broken
    from rocketstore.pipeline.jobs.rebuild.runner import Runner
    from rocketstore.pipeline.planning import SplitTask
    from rocketstore.pipeline.stores import StorePlace

Plan = Literal["posix", "shuffle"]


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


class Making(NamedTuple):
    """How doubtful records are judged and files written where the store lies.

    Attributes
    ----------
    parts_directory
        Where tasks write what later tasks read; the shuffle needs none.
    """

    judge: Callable[[], driver_commit.LogVerdict]
    write: Callable[
        [Runner, Sequence[LogTask], Sequence[PartManifest], RebuildSettings], tuple[int, int, int]
    ]
    parts_directory: str = ""


def build(
    runner: Runner, place: StorePlace, staging: driver_commit.Staging, options: BuildOptions
) -> Built:
    """Make new queues and index below `staging`; nothing else is written."""
    write = _write_in_place if options.plan == "posix" else _write_whole_files

    def write_below(
        runner: Runner,
        tasks: Sequence[LogTask],
        manifests: Sequence[PartManifest],
        settings: RebuildSettings,
    ) -> tuple[int, int, int]:
        return write(runner, tasks, manifests, settings, staging)

    def judge() -> driver_commit.LogVerdict:
        return driver_commit.judge_log(Path(place.location), options.config, now_ms=options.now_ms)

    return build_with(runner, place, Making(judge, write_below, str(staging.parts)), options)


def build_with(runner: Runner, place: StorePlace, making: Making, options: BuildOptions) -> Built:
    """Make new queues and index, in whatever way the store's place needs."""
    settings = learn_settings(place.location, options.config)
    _refuse_lost_log(place)
    tasks = [
        LogTask(number, splits, settings, (), making.parts_directory)
        for number, splits in enumerate(_plan(place, options.max_split_bytes))
    ]
    read = read_log if options.plan == "posix" else count_log
    manifests = _read(runner, tasks, read)
    leftovers: tuple[tuple[int, int], ...] = ()
    if _needs_judgement(place, manifests):
        verdict = making.judge()
        leftovers = verdict.leftovers
        tasks = [_without(task, verdict.excluded) for task in tasks]
        manifests |= _read(runner, [task for task in tasks if task.excluded], read)
    ordered = [manifests[number] for number in sorted(manifests)]
    entry_count, refused_count, item_count = making.write(runner, tasks, ordered, settings)
    log_end = log_end_of(ordered)
    return Built(
        ordered,
        settings,
        entry_count,
        refused_count + sum(one.refused_count for one in ordered),
        item_count,
        log_end,
        damage_of(ordered, log_end),
        leftovers,
    )


def log_end_of(manifests: Sequence[PartManifest]) -> int:
    """Return the physical offset behind the last record."""
    return max((one.log_stop for one in manifests), default=0)


def damage_of(manifests: Sequence[PartManifest], log_end: int) -> list[Broken]:
    """Return the damaged ranges of a log that ends there; what was never finished is none."""
    return [
        one
        for manifest in manifests
        for one in manifest.broken
        if one.start < log_end and not one.is_torn_tail
    ]


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
    places = (str(staging.parts), str(staging.queues), str(staging.index_files))
    table = shuffle_rows(runner, tasks, manifests, FileWriting(*places, settings).write)
    for number, name in index_file_names(table):
        (staging.index_files / number).rename(staging.index_files / name)
    return counts_of(table)


def shuffle_rows(
    runner: Runner,
    tasks: Sequence[LogTask],
    manifests: Sequence[PartManifest],
    write: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
) -> pa.Table:
    """Bring the rows of each file together and let `write` have them; return what it says."""
    counts = [one.item_count for one in manifests]
    firsts = [0, *itertools.accumulate(counts)]
    rows = [RowTask(task, first) for task, first in zip(tasks, firsts, strict=False)]
    return runner.exchange(rows, emit_rows, ROW_SCHEMA, write, WRITTEN_SCHEMA)


def index_file_names(written: pa.Table) -> list[tuple[str, str]]:
    """Return the name that each index file was written under, and its own."""
    files = sorted(
        (row["number"], row["timestamp"]) for row in written.to_pylist() if row["number"] >= 0
    )
    names = index_names(at for _, at in files)
    return [
        (index_file_number(number), name) for (number, _), name in zip(files, names, strict=True)
    ]


def counts_of(written: pa.Table) -> tuple[int, int, int]:
    """Return entries, refused records, index items."""
    return _sum(written, "entries"), _sum(written, "refused"), _sum(written, "items")


def _sum(table: pa.Table, column: str) -> int:
    return int(np.sum(table.column(column).to_numpy()))


def _plan(place: StorePlace, max_split_bytes: int) -> list[tuple[SplitTask, ...]]:
    options = parse_options(
        {
            "paths": json.dumps([place.location]),
            "table": "commitlog",
            "maxSplitBytes": str(max_split_bytes),
            "failOnDataLoss": "false",
        }
        | log_option(place.log_directories)
    )
    return plan_log(options)


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


def _needs_judgement(place: StorePlace, manifests: dict[int, PartManifest]) -> bool:
    """Whether records may stand behind a break: then the whole log decides which are messages."""
    if any(not broken.is_torn_tail for one in manifests.values() for broken in one.broken):
        return True
    states = {segment.state for segment in list_segments(place)}
    return bool(states & {SegmentState.MISSING, SegmentState.TRUNCATED})


def _refuse_lost_log(place: StorePlace) -> None:
    """Raise where the log is gone and the queues are not: those must stay (K-R10)."""
    if list_segments(place):
        return
    files, root = files_at(place.location)
    if any(
        not one.is_directory
        for topic in files.list(f"{root}/{CONSUME_QUEUE_DIRECTORY}")
        if topic.is_directory
        for queue in files.list(topic.path)
        if queue.is_directory
        for one in files.list(queue.path)
    ):
        raise StoreDamagedError(
            f"{place.location} has no CommitLog file, but its queues have entries",
            hint="bring the files back, or move consumequeue away to begin an empty store",
        )
