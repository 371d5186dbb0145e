"""``restore``: a store from an archive, whole and byte for byte, or a selection of its messages.

A CommitLog file is one task, which writes all of it. A whole restore has the files that were
archived, with every byte where it was. A selection is laid out in new files by the rule of a
broker: a record that would leave less than 8 bytes of a file begins the next one, and a BLANK fills
the rest. It is counted in steps of a 256th of a file, so a file may end that much too early.

Law: what the driver holds grows with the number of files, not with that of records.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from rocketstore.arguments import checked
from rocketstore.config import StoreConfig
from rocketstore.errors import ArchiveDamagedError, ArchiveError, ConfigError
from rocketstore.format.checkpoint import Checkpoint, encode_checkpoint
from rocketstore.format.file_name import (
    CHECKPOINT_FILE_NAME,
    COMMIT_LOG_DIRECTORY,
    CONFIG_DIRECTORY,
)
from rocketstore.format.record import END_FILE_MIN_BLANK_SIZE
from rocketstore.pipeline.jobs.archive.archive_table import FROM_BACKUP, LOG_KINDS, Archive, Run
from rocketstore.pipeline.jobs.execution import map_tasks, plain_failure
from rocketstore.pipeline.jobs.publishing import published, put, remove_tree
from rocketstore.pipeline.jobs.rebuild.rebuild_job import make_queues
from rocketstore.pipeline.jobs.restore.restore_task import (
    ATTEMPTS,
    COUNT_SCHEMA,
    EVERYTHING,
    WRITE_SCHEMA,
    LogFileTask,
    Selection,
    count_task,
    moment,
    write_task,
)
from rocketstore.places.location import is_remote
from rocketstore.units import system_clock_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession


_FAR: Final = (1 << 63) - 1


class RestoreResult(NamedTuple):
    """Outcome of `restore`.

    `version` is of the archive's table `messages`, `written_bytes` counts records and what stands
    between them, `file_bytes` the sizes of the CommitLog files. These are the ones that were
    archived, byte for byte, if `is_whole`; missing bytes of them were deleted from the archive, and
    are zeros or in omitted files. `queues` were made of the log; None for the log
    alone.
    """

    broker: str
    version: int
    records: int
    written_bytes: int
    file_count: int
    file_bytes: int
    is_whole: bool
    missing_stretches: int
    missing_bytes: int
    config_tables: tuple[str, ...]
    queues: int | None


@checked
def restore(  # noqa: PLR0913 - keywords, each a choice of the caller
    spark: SparkSession, archive: str | Path, target: str | Path, *,
    as_of: int | str | None = None, broker: str | None = None, topics: Sequence[str] = (),
    begin_ms: int | None = None, end_ms: int | None = None, allow_gaps: bool = False,
    log_only: bool = False, config: StoreConfig | None = None,
) -> RestoreResult:  # fmt: skip
    """Restore a store from an archive.

    Without a selection the CommitLog files are those that were archived, byte for byte, damage and
    unwritten tail included. With one it is a new log: records keep everything but their physical
    offset, and so their message id.

    Parameters
    ----------
    archive, target
        Paths or URIs; the target is new or empty. All workers see the same paths.
    as_of
        Version of the archive's table `messages`, or an ISO 8601 time, in UTC if it
        names no zone; the latest by default.
    broker
        Broker of the log; needed if the archive has several.
    topics, begin_ms, end_ms
        Only messages of these topics, stored from the first time on and before the second.
    allow_gaps
        Whether a whole log is restored although rows of it were deleted from the archive: files of
        which nothing is left are left out, and zeros take the place of what else is missing.
    log_only
        Whether queues and index are left to the first program that opens the store.

    Raises
    ------
    ArchiveError
        There is no archive, no such version or broker, or it has several brokers.
    ArchiveDamagedError
        Files or rows of the archive are gone or changed; nothing is restored.
    ConfigError
        Nothing is selected.
    StoreError, StoreFullError
        The target is not empty, or cannot be written.
    """
    selection, settings = Selection(tuple(topics), begin_ms, end_ms), StoreConfig.of(config)
    tables: dict[str, bytes] = {}
    with published(str(target)) as place:
        opened = Archive.open(archive, as_of)
        whose = _chosen_broker(opened, broker)
        plain = LogFileTask(opened.location, whose, selection, place, allow_gaps)
        if selection == EVERYTHING:
            tasks = plan_whole(opened, plain)
            columns, newest = ["name", "content"], opened.last_run(whose)
            found = opened.read_extents(["config"], columns, whose, newest)
            tables = {row["name"]: row["content"] for row in found}
        else:
            tasks = _new_log(spark, opened, plain)
        if not is_remote(place):
            for name in (ATTEMPTS, COMMIT_LOG_DIRECTORY):
                Path(place, name).mkdir()
        with plain_failure():
            # A row for each CommitLog file.
            rows = map_tasks(spark, tasks, write_task, WRITE_SCHEMA).toArrow().to_pylist()
        lost = [row for row in rows if row["lost_stretches"]]
        if lost and not allow_gaps:
            raise _missing_bytes(opened.location, whose, lost)
        for name, content in tables.items():
            put(place, f"{CONFIG_DIRECTORY}/{name}", content)
        written = {row["base"]: row for row in rows if row["records"] is not None}
        queues = None
        if not log_only:
            queues = make_queues(spark, place, settings).queue_count if written else 0
            # Of a store that is completely on the disk, up to its last message.
            newest_ms = max((row["last_ms"] for row in written.values()), default=0)
            last_ms = min(newest_ms, system_clock_ms())
            put(place, CHECKPOINT_FILE_NAME, encode_checkpoint(Checkpoint(*[last_ms] * 3)))
        if not is_remote(place):
            remove_tree(Path(place, ATTEMPTS))
    return RestoreResult(
        broker=whose,
        version=opened.messages.version(),
        records=sum(row["records"] for row in written.values()),
        written_bytes=sum(row["bytes"] for row in written.values()),
        file_count=len(written),
        file_bytes=sum(task.size for task in tasks if task.base in written),
        is_whole=selection == EVERYTHING and not lost,
        missing_stretches=sum(row["lost_stretches"] for row in rows),
        missing_bytes=sum(row["lost_bytes"] for row in rows),
        config_tables=tuple(tables),
        queues=queues,
    )


def _missing_bytes(archive: str, broker: str, lost: list[dict[str, int]]) -> ArchiveDamagedError:
    first = min(lost, key=lambda row: row["lost_at"])
    return ArchiveDamagedError(
        f"{archive} lacks {sum(row['lost_bytes'] for row in lost):,} bytes of the log of broker "
        f"{broker} in {sum(row['lost_stretches'] for row in lost):,} stretches, the first from "
        f"physical offset {first['lost_at']} to {first['lost_stop']}",
        hint="rows were deleted; restore a version that has them (as_of, --as-of), the messages "
        "that are there to a new log (topics or times), or zeros in place of what is gone "
        "(allow_gaps=True, --allow-gaps); nothing was restored",
    )


def _chosen_broker(archive: Archive, broker: str | None) -> str:
    """Return the broker that is restored; raise where the archive has none of that name."""
    names = archive.brokers()
    if broker in names or (broker is None and len(names) == 1):
        return broker or names[0]
    listed = ", ".join(names)
    what, hint = f"has no broker {broker}", f"it has {listed}"
    if not names:
        what = f"has nothing in version {archive.messages.version()}: no run had been archived yet"
        hint = "restore a later version (as_of, --as-of); without one it is the latest"
    elif broker is None:
        what = f"holds {len(names)} brokers: {listed}"
        hint = "say which one to restore: broker=…, --broker …"
    raise ArchiveError(f"{archive.location} {what}", hint=hint)


# --- content of the archive -----------------------------------------------------------------------


def _messages_between(archive: Archive, task: LogFileTask) -> Callable[[int, int], tuple[str, ...]]:
    """Return a function that names the Parquet files that may have wanted records of a range."""
    _, begin_ms, end_ms = task.selection
    times = [None if one is None else moment(one).as_py() for one in (begin_ms, end_ms)]
    files = [
        row
        for row in pa.table(archive.messages.get_add_actions(flatten=True)).to_pylist()
        if _may_have(row, "brokerName", task.broker, task.broker)
        and _may_have(row, "storeTimestamp", *times)
    ]
    bounds = [(row.get("min.physicalOffset"), row.get("max.physicalOffset")) for row in files]
    firsts = np.array([first or 0 for first, _ in bounds], np.int64)
    lasts = np.array([_FAR if last is None else last for _, last in bounds], np.int64)

    def overlapping(begin: int, end: int) -> tuple[str, ...]:
        rows = np.flatnonzero((firsts < end) & (begin <= lasts)).tolist()
        return tuple(files[row]["path"] for row in rows)

    return overlapping


def _may_have(row: Mapping[str, Any], name: str, low: Any, high: Any) -> bool:
    """Whether a file may have a value between two; without statistics it may have any."""
    least, most = row.get(f"min.{name}"), row.get(f"max.{name}")
    is_after = least is not None and high is not None and least > high
    return not is_after and (most is None or low is None or most >= low)


def _log_files(
    archive: Archive, broker: str, kinds: Sequence[str] = ()
) -> tuple[tuple[Run, ...], dict[int, dict[str, Any]], list[dict[str, Any]]]:
    """Return the runs that count, the CommitLog files they have, and their extents of `kinds`.

    A CommitLog file is as the newest run that saw it has it; the files are in order.
    """
    columns = ["file", "physicalOffset", "size", "fileSize"]
    runs = archive.runs(broker)
    order = {run.number: place for place, run in enumerate(runs)}
    found = archive.read_extents(["file", *kinds], columns, broker)
    rows = sorted((row for row in found if row["run"] in order), key=lambda row: order[row["run"]])
    newest = {row["physicalOffset"]: row for row in rows if row["kind"] == "file"}
    return runs, dict(sorted(newest.items())), [row for row in rows if row["kind"] != "file"]


def plan_whole(archive: Archive, task: LogFileTask) -> list[LogFileTask]:
    """Return a task for each CommitLog file that was archived, retention's victims included."""
    runs, files, extents = _log_files(archive, task.broker, [*LOG_KINDS, "excess", "tail"])
    gaps, of_files = [], defaultdict[int, list[dict[str, Any]]](list)
    for row in extents:
        base, kind = row["file"], row["kind"]
        if kind == "gap":
            gaps.append(row)
        elif base in files:
            last = {"excess": files[base]["run"], "tail": runs[-1].number}
            if row["run"] == last.get(kind, row["run"]):
                of_files[base].append(row)
    overlapping = _messages_between(archive, task)
    tasks = []
    for base, file in files.items():
        begin = max(base, runs[0].begin)
        end = max(begin, min(base + min(file["size"], file["fileSize"]), runs[-1].end))
        edges = [(one["physicalOffset"], one["size"]) for one in (*of_files[base], *gaps)]
        others = [(max(at, begin), min(at + size, end)) for at, size in edges]
        tasks.append(
            task._replace(
                base=base,
                size=file["size"],
                begin=begin,
                end=end,
                messages=overlapping(begin, end),
                extents=tuple(sorted({row["path"] for row in of_files[base]})),
                extent_count=len(of_files[base]),
                counting=frozenset((row["run"], row["kind"]) for row in of_files[base]),
                others=tuple(one for one in others if one[0] < one[1]),
            )
        )
    return tasks


# --- a new log ----------------------------------------------------------------------------------


def _new_log(spark: SparkSession, archive: Archive, task: LogFileTask) -> list[LogFileTask]:
    """Return the tasks of a selection; raise where nothing is selected, or nothing of a topic."""
    topics, begin_ms, end_ms = task.selection
    _, files, _ = _log_files(archive, task.broker)
    sizes = [(base, file["fileSize"]) for base, file in files.items()]
    for wanted in (task, task._replace(selection=EVERYTHING)):
        overlapping = _messages_between(archive, wanted)
        tasks = [
            wanted._replace(base=base, size=size, begin=base, end=base + size, messages=messages)
            for base, size in sizes
            if (messages := overlapping(base, base + size))
        ]
        counted = map_tasks(spark, tasks, count_task, COUNT_SCHEMA).persist()
        with plain_failure():
            times = {"first_ms": "min", "last_ms": "max", "topic": "min"}
            found = counted.groupBy("topic").agg(times).toArrow().to_pylist()
            steps = counted.groupBy("step").agg({"place": "min", "bytes": "sum"}).toArrow()
            counted.unpersist()
        names = sorted(row["min(topic)"] for row in found)
        if wanted is task:
            unknown = tuple(sorted({*topics} - {*names}))
            if names and not unknown:
                return lay_out(tasks[-1], overlapping, steps.sort_by("min(place)"))
    shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
    first = min((row["min(first_ms)"] for row in found), default="no time")
    last = max((row["max(last_ms)"] for row in found), default="no time")
    words = [f"of topic {', '.join(unknown or topics)}"] if topics else []
    words += [] if begin_ms is None else [f"stored at {begin_ms} ms or later"]
    words += [] if end_ms is None else [f"stored before {end_ms} ms"]
    raise ConfigError(
        f"the archive has no message {' and '.join(words)}",
        hint=f"it has topics {shown or 'none'}, stored {first} to {last} ms",
    )


def lay_out(
    last: LogFileTask, overlapping: Callable[[int, int], tuple[str, ...]], steps: pa.Table
) -> list[LogFileTask]:
    """Return the tasks that write the files of a new log.

    They follow from what was counted in each step of the archived one, up to its `last` file.
    """
    places = steps["min(place)"].to_numpy()
    ends = np.cumsum(steps["sum(bytes)"].to_numpy())
    capacity = last.size - END_FILE_MIN_BLANK_SIZE
    tasks: list[LogFileTask] = []
    row = done = 0
    while row < len(ends):
        stop = int(np.searchsorted(ends, done + capacity, side="right"))
        if stop == row:
            raise ArchiveDamagedError(
                f"the records from physical offset {places[row]} on have more bytes than a "
                f"CommitLog file has room for, {capacity}",
                hint=FROM_BACKUP,
            )
        is_last = stop == len(ends)
        begin, end = int(places[row]), last.end if is_last else int(places[stop])
        # The log ends in its last file, which is not closed.
        base, messages = len(tasks) * last.size, overlapping(begin, end)
        task = last._replace(base=base, begin=begin, end=end, messages=messages, blank=not is_last)
        tasks.append(task)
        row, done = stop, int(ends[stop - 1])
    return tasks
