"""``restore``: a store from an archive, whole and byte for byte, or a selection of its messages."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rocketstore.config import StoreConfig
from rocketstore.errors import ConfigError
from rocketstore.format.markers import COMMIT_LOG_DIRECTORY, CONFIG_DIRECTORY
from rocketstore.pipeline.files import ObjectStore, is_remote, sync_path
from rocketstore.pipeline.jobs.archive.archive_table import Archive
from rocketstore.pipeline.jobs.execution import map_tasks, plain_failure
from rocketstore.pipeline.jobs.publishing import published
from rocketstore.pipeline.jobs.rebuild.rebuild_job import make_queues
from rocketstore.pipeline.jobs.restore.restore_plan import (
    Selection,
    Steps,
    chosen_broker,
    config_tables,
    lay_out,
    plan_selection,
    plan_whole,
)
from rocketstore.pipeline.jobs.restore.restore_task import (
    ATTEMPTS,
    COUNT_SCHEMA,
    TOPIC_SCHEMA,
    WRITE_SCHEMA,
    count_task,
    missing_bytes,
    topics_task,
    write_task,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from rocketstore.pipeline.jobs.restore.restore_plan import LogFileTask

_Run = Callable[[Sequence["LogFileTask"], Callable[..., Any], str], Any]


class RestoreResult(NamedTuple):
    """What a call of `restore` did.

    Attributes
    ----------
    broker, version
        Whose log it is, and of which version of the archive's table `messages`.
    records
        Restored.
    written_bytes
        Written into the CommitLog files: records, and what stands between them.
    file_count, file_bytes
        CommitLog files and their sizes together.
    is_whole
        Whether the CommitLog files are those that were archived, byte for byte.
    missing_stretches, missing_bytes
        Of the log that the archive has lost: zeros, or files that are left out.
    config_tables
        Names of the JSON tables that were restored.
    queues
        That were made from the log; None for the log alone.
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


def restore(  # noqa: PLR0913 - keywords, each a choice of the caller
    spark: SparkSession,
    archive: str | Path,
    target: str | Path,
    *,
    as_of: int | str | None = None,
    broker: str | None = None,
    topics: Sequence[str] = (),
    begin_ms: int | None = None,
    end_ms: int | None = None,
    allow_gaps: bool = False,
    log_only: bool = False,
    config: StoreConfig | None = None,
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
        Path or URI of the archive.
    target
        Path or URI of the store, where there is nothing yet. A path is one that all workers see.
    as_of
        Version of the archive's table `messages`, or an ISO 8601 time; the latest by default.
    broker
        Whose log; needed where the archive has several.
    topics
        Only messages of these.
    begin_ms, end_ms
        Only messages stored from the first time on and before the second.
    allow_gaps
        Whether a whole log is restored although rows of it were deleted from the archive: files of
        which nothing is left are left out, and zeros take the place of what else is missing.
    log_only
        Whether queues and index are left to the first one who opens the store.
    config
        For queues and index, what the log does not say: delay levels, sizes of files.

    Raises
    ------
    ArchiveError
        There is no archive, no such version or broker, or it has several brokers.
    ArchiveDamagedError
        Files or rows of the archive are gone or changed; nothing is restored.
    ConfigError
        Nothing is selected.
    StoreError
        There is something at the target, or it cannot be written.
    StoreFullError
        Its disk is full.
    """

    def run(tasks: Sequence[LogFileTask], what: Callable[..., Any], schema: str) -> Any:
        with plain_failure():
            # Rows for each CommitLog file, not for each record.
            return map_tasks(spark, tasks, what, schema).toArrow()

    selection = Selection(tuple(topics), begin_ms, end_ms)
    with published(str(target)) as place:
        opened = Archive.open(archive, as_of)
        whose = chosen_broker(opened, broker)
        if selection.is_everything:
            tasks, missing = _whole(run, opened, whose, allow_gaps=allow_gaps)
            tables = config_tables(opened, whose)
        else:
            tasks, missing, tables = _new_log(run, opened, whose, selection), [], {}
        with _new_directories(place, tables):
            placed = [task._replace(place=place) for task in tasks]
            written = run(placed, write_task, WRITE_SCHEMA).to_pylist()
        bases = sorted(row["base"] for row in written)
        assert bases == [task.base for task in tasks], "each file is written by one task"
        queues = None
        if tasks and not log_only:
            queues = make_queues(spark, place, config or StoreConfig()).queue_count
    return RestoreResult(
        broker=whose,
        version=opened.messages.version(),
        records=sum(row["records"] for row in written),
        written_bytes=sum(row["bytes"] for row in written),
        file_count=len(tasks),
        file_bytes=sum(task.size for task in tasks),
        is_whole=selection.is_everything and not missing,
        missing_stretches=sum(row["records"] for row in missing),
        missing_bytes=sum(row["bytes"] for row in missing),
        config_tables=tuple(tables),
        queues=queues,
    )


def _whole(
    run: _Run, archive: Archive, broker: str, *, allow_gaps: bool
) -> tuple[list[LogFileTask], list[dict[str, Any]]]:
    """Return the tasks of a whole restore, and what the archive has lost."""
    tasks = plan_whole(archive, broker)
    counted = run(tasks, count_task, COUNT_SCHEMA).sort_by("place").to_pylist()
    missing = [row for row in counted if row["kind"] == "missing"]
    if missing and not allow_gaps:
        pairs = [(row["place"], row["place"] + row["bytes"]) for row in missing]
        raise missing_bytes(archive.location, broker, pairs)
    lacking = {row["base"] for row in missing}
    there = {row["base"]: row["bytes"] for row in counted if row["kind"] == "records"}
    kept = [
        task._replace(allows_gaps=allow_gaps, record_bytes=there[task.base])
        for task in tasks
        if there[task.base] or task.base not in lacking
    ]
    return kept, missing


def _new_log(run: _Run, archive: Archive, broker: str, selection: Selection) -> list[LogFileTask]:
    """Return the tasks of a selection."""
    tasks = plan_selection(archive, broker, selection)
    unknown: set[str] = set()
    if selection.topics:
        found = run(tasks, topics_task, TOPIC_SCHEMA).column("topic").to_pylist()
        # Beside others that are there it would be left out without a word.
        unknown = {*selection.topics} - {*found}
    steps = run(tasks, count_task, COUNT_SCHEMA).sort_by("place")
    if not unknown and steps.num_rows:
        columns = (steps.column(name).to_numpy() for name in Steps._fields)
        return lay_out(tasks, Steps(*columns))
    wanted = selection._replace(topics=tuple(sorted(unknown))) if unknown else selection
    every = plan_selection(archive, broker, Selection())
    there = run(every, topics_task, TOPIC_SCHEMA).to_pylist()
    names = sorted({row["topic"] for row in there})
    shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
    first = min((row["first_ms"] for row in there), default="no time")
    last = max((row["last_ms"] for row in there), default="no time")
    raise ConfigError(
        f"the archive has no message {wanted.describe()}",
        hint=f"it has topics {shown or 'none'}, stored {first} to {last} ms",
    )


@contextlib.contextmanager
def _new_directories(place: str, tables: Mapping[str, bytes]) -> Iterator[None]:
    """Make what tasks write to; afterwards write the JSON tables, and take the attempts away."""
    if is_remote(place):
        yield
        objects = ObjectStore(place)
        for name, content in tables.items():
            objects.put(f"{objects.root}/{CONFIG_DIRECTORY}/{name}", content)
        return
    for name in (ATTEMPTS, COMMIT_LOG_DIRECTORY):
        Path(place, name).mkdir()
    yield
    shutil.rmtree(Path(place, ATTEMPTS))
    for name, content in tables.items():
        path = Path(place, CONFIG_DIRECTORY, name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        sync_path(path)
