"""The audit: plan byte ranges, let tasks check them, join what they say, conclude."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.config import StoreConfig
from rocketstore.format.index_file import is_index_file_name
from rocketstore.pipeline.files import local_path, opened
from rocketstore.pipeline.jobs.audit import conclusions, facts, runs, unbacked
from rocketstore.pipeline.jobs.audit.conclusions import QueueState
from rocketstore.pipeline.jobs.audit.entry_check import QueueEntries
from rocketstore.pipeline.jobs.audit.findings import AuditCounts, Finding
from rocketstore.pipeline.jobs.audit.index_check import (
    IndexPlace,
    IndexTask,
    check_index_file,
    index_place,
)
from rocketstore.pipeline.jobs.audit.log_shape import LogShape, QueueSummary, shape_of, summaries
from rocketstore.pipeline.jobs.audit.places import StorePlaces, data_stop, find_places
from rocketstore.pipeline.jobs.audit.report import (
    AuditReport,
    check_target,
    queue_row,
    write_report,
)
from rocketstore.pipeline.jobs.audit.small_files import read_small_files, small_file_findings
from rocketstore.pipeline.jobs.audit.split_check import SplitTask, check_split
from rocketstore.pipeline.jobs.audit.unbacked import Gap, GapTask, LogBounds, gap_tasks, judge_gaps
from rocketstore.pipeline.options import DEFAULT_SPLIT_BYTES
from rocketstore.scan.split import SegmentFile, plan_splits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from rocketstore.pipeline.jobs.execution import Progress

FACTS_SCHEMA: Final = "facts BINARY"
LOCAL_GAP_ENTRIES: Final = 1_000_000
"""So many entries without a record are read here: sooner done than told to Spark."""


class CheckTask(NamedTuple):
    """What one task does: byte ranges of the log, or one index file, or gaps of queues."""

    splits: tuple[SplitTask, ...] = ()
    index_file: IndexTask | None = None
    gaps: GapTask | None = None

    @property
    def byte_count(self) -> int:
        """Bytes of the log that it reads."""
        return sum(split.stop - split.start for split in self.splits)


def audit(  # noqa: PLR0913 - keywords, each with a default
    spark: SparkSession | None,
    store: str | Path,
    out: str | Path | None = None,
    *,
    config: StoreConfig | None = None,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    progress: Progress | None = None,
    now_ms: int | None = None,
) -> AuditReport:
    """Check every record, queue entry and index item of a store against each other, on Spark.

    Parameters
    ----------
    spark
        The session, classic or Connect; None starts one on this machine.
    store
        Path or URI. It may be in use: what a writer has not finished is not reported.
    out
        Directory to be made, with the findings as Parquet and JSON lines and a manifest.
    config
        Settings that the files do not tell; sizes left unset are learnt.
    max_split_bytes
        Most bytes of the log that one task reads.
    progress
        Told of bytes of the log that were checked.
    now_ms
        The time, by which impossible times are told; None asks the system.

    Returns
    -------
    AuditReport
        Findings and counts. Damage is a finding, not an error.

    Raises
    ------
    NotAStoreError
        There is no CommitLog directory.
    ConfigError
        Sizes cannot be learnt.
    StoreError
        Something may not be read, or `out` cannot be written.
    """
    if out is not None:
        out = Path(local_path(str(out)))
        check_target(out)
    # What is wrong with the place is said before anything slow is begun.
    places = find_places(str(store), config or StoreConfig())
    if spark is None:
        from rocketstore.pipeline.environment import session  # noqa: PLC0415 - needs PySpark

        spark = session()
    found_spark = spark

    def run(tasks: Sequence[CheckTask]) -> Iterable[facts.Facts]:
        return _on_spark(found_spark, tasks, progress)

    report = audit_with(
        run, places, config or StoreConfig(), max_split_bytes=max_split_bytes, now_ms=now_ms
    )
    if out is not None:
        write_report(report, out)
    return report


def _on_spark(
    spark: SparkSession, tasks: Sequence[CheckTask], progress: Progress | None
) -> Iterator[facts.Facts]:
    from rocketstore.pipeline.jobs.execution import (  # noqa: PLC0415 - needs PySpark
        run_tasks,
        watched,
    )

    done = watched(progress, tasks, lambda task: task.byte_count)
    # Every split is compared with the whole index, of which each holds the same list.
    index = [split.indexes for task in tasks for split in task.splits if split.indexes][:1]
    table = run_tasks(spark, tasks, check_batches, FACTS_SCHEMA, done=done, shared=index)
    for content in table.column("facts"):
        yield facts.decode(content.as_py())


def check_batches(task: CheckTask) -> Iterator[pa.RecordBatch]:
    """Yield the facts of a task as rows."""
    import pyarrow as pa  # noqa: PLC0415 - the driver plans without it

    for one in check(task):
        yield pa.record_batch({"facts": pa.array([facts.encode(one)], pa.binary())})


def check(task: CheckTask) -> Iterator[facts.Facts]:
    """Yield the facts of a task."""
    for split in task.splits:
        yield check_split(split)
    if task.index_file is not None:
        yield check_index_file(task.index_file)
    if task.gaps is not None:
        yield from judge_gaps(task.gaps)


# --- the plan -----------------------------------------------------------------------------------


def audit_with(
    run: Callable[[Sequence[CheckTask]], Iterable[facts.Facts]],
    places: StorePlaces,
    config: StoreConfig,
    *,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    now_ms: int | None = None,
) -> AuditReport:
    """Audit a store with tasks that `run` carries out, in whatever order and wherever."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    index, index_troubles = _index_places(places) if config.message_index_enable else ([], [])
    has_index = config.message_index_enable
    splits = list(_splits(places, max_split_bytes, tuple(index) if has_index else None))
    covered = runs.joined(
        [
            [(places.log.first, places.log.first)],
            *([(s.file.base + s.start, s.file.base + s.stop)] for s in splits),
        ]
    )
    tasks = [CheckTask(splits=group) for group in _grouped(splits, max_split_bytes)]
    ranges = tuple(runs.pairs(covered)) if places.log.files else ()
    tasks += [
        CheckTask(index_file=IndexTask(places.location, place, ranges, places.is_live))
        for place in index
    ]
    # Read first: what consumers had by then, the queues have when they are looked at.
    small = read_small_files(places)
    found = list(run(tasks))
    shape = _shape(places, [one for one in found if isinstance(one, facts.SplitFacts)])
    queues = _queue_states(places, shape)
    _judge_unbacked(run, places, shape, queues)
    index_facts = [one for one in found if isinstance(one, facts.IndexFacts)]
    index_facts.sort(key=lambda one: one.file)
    stray = [item for one in found for item in getattr(one, "stray", [])]
    entry_count = sum(queue.end - queue.first_offset for queue in queues)
    findings = [
        *conclusions.log_findings(places, shape, entry_count),
        *conclusions.queue_findings(places, queues),
    ]
    if has_index:
        findings += conclusions.index_findings(places, shape, index_facts, stray, index_troubles)
    by_key = {(one.summary.topic, one.summary.queue_id): one for one in queues}
    findings += small_file_findings(places, small, shape, by_key, now_ms)
    counts = _counts(shape, queues, sum(one.item_count for one in index_facts))
    return AuditReport(places.location, findings, counts, [queue_row(queue) for queue in queues])


def _splits(
    places: StorePlaces, max_split_bytes: int, index: tuple[IndexPlace, ...] | None
) -> Iterator[SplitTask]:
    size = places.sizes.commit_log_file_bytes
    for file in places.log.files:
        stop = data_stop(places, file)
        # Cut where the whole file would be cut, however much of it is written.
        for cut in plan_splits([SegmentFile(file.path, file.base, size)], max_split_bytes):
            if cut.start < stop:
                yield SplitTask(
                    places.location,
                    file,
                    cut.start,
                    min(cut.stop, stop),
                    places.queue_directory,
                    size,
                    places.sizes.consume_queue_file_bytes,
                    index,
                    None if places.is_live else stop,
                )


def _grouped(splits: Sequence[SplitTask], limit: int) -> Iterator[tuple[SplitTask, ...]]:
    """Put small neighbours into one task."""
    group: list[SplitTask] = []
    size = 0
    for split in splits:
        length = split.stop - split.start
        if group and size + length > limit:
            yield tuple(group)
            group, size = [], 0
        group.append(split)
        size += length
    if group:
        yield tuple(group)


def _index_places(places: StorePlaces) -> tuple[list[IndexPlace], list[Finding]]:
    found: list[IndexPlace] = []
    troubles: list[Finding] = []
    layout = places.index_layout
    for entry in places.index_entries:
        name = places.below_root(entry.path)
        if entry.is_directory or not is_index_file_name(entry.name):
            reason = "no index file's name; it is passed over"
            troubles.append(conclusions.index_finding("index-extra", name, 0, reason))
            continue
        if entry.size != layout.size_bytes:
            reason = f"length: expected {layout.size_bytes} bytes, found {entry.size}"
            troubles.append(conclusions.index_finding("index-length", name, 0, reason))
            continue
        with opened(places.files, entry.path) as file:
            place = index_place(file, entry.path, name, layout)
        if isinstance(place, str):
            troubles.append(conclusions.index_finding("index-header", name, 0, place))
        else:
            found.append(place)
    return found, troubles


# --- joining ------------------------------------------------------------------------------------


def _shape(places: StorePlaces, splits: Sequence[facts.SplitFacts]) -> LogShape:
    gone = {one.base for one in splits if one.is_gone}
    if places.is_live:
        # Retention may have taken the oldest files, and their entries, since they were read.
        there = {file.base for file in places.listed_again().files}
        gone |= {file.base for file in places.log.files} - there
    files = [file for file in places.log.files if file.base not in gone]
    present = [one for one in splits if one.base not in gone]
    return shape_of(present, files, places.sizes.commit_log_file_bytes)


def _queue_states(places: StorePlaces, shape: LogShape) -> list[QueueState]:
    """Return the queues that have a directory or records, by topic and number."""
    stated = summaries(shape.kept)
    keys = {(key.topic, key.queue_id) for key in places.queue_keys}
    for key, summary in stated.items():
        # 4.9 writes extra queues only when that is switched on.
        if not summary.is_extra:
            keys.add(key)
    states = []
    for topic, queue_id in sorted(keys):
        summary = stated.get((topic, queue_id)) or QueueSummary(topic, queue_id)
        size = places.sizes.consume_queue_file_bytes
        directory = f"{places.queue_directory}/{topic}/{queue_id}"
        queue = (
            QueueEntries.at(places.files, directory, size)
            if conclusions.is_possible(topic)
            else QueueEntries.none(places.files)
        )
        states.append(QueueState(summary, queue.row, queue.end()))
    return states


def _judge_unbacked(
    run: Callable[[Sequence[CheckTask]], Iterable[facts.Facts]],
    places: StorePlaces,
    shape: LogShape,
    queues: Sequence[QueueState],
) -> None:
    """Say of every entry without a record what it is."""
    bounds = LogBounds(
        shape.start,
        shape.end,
        shape.files_stop,
        tuple((one.start, one.stop) for one in shape.lost_ranges()),
        tuple((one.facts.start, one.facts.stop) for one in shape.leftovers),
    )
    gaps = [
        Gap(number, f"{places.root}/{queue.directory}", start, stop)
        for number, queue in enumerate(queues)
        for start, stop in runs.pairs(
            runs.gaps(queue.summary.backed, queue.first_offset, queue.last_used)
        )
    ]
    size = places.sizes.consume_queue_file_bytes
    tasks = [CheckTask(gaps=one) for one in gap_tasks(places.location, size, bounds, gaps)]
    found: Iterable[facts.Facts]
    if sum(gap.stop - gap.start for gap in gaps) <= LOCAL_GAP_ENTRIES:
        found = [one for task in tasks for one in check(task)]
    else:
        found = run(tasks)
    seen: dict[int, list[facts.EntryRun]] = {}
    for one in found:
        assert isinstance(one, facts.GapFacts)
        seen.setdefault(one.queue, []).extend(one.runs)
    for number, queue in enumerate(queues):
        missing = runs.stop_of(queue.summary.truly_missing)
        end = max(queue.last_used, runs.stop_of(queue.summary.missing))
        queue.runs = unbacked.with_tails(seen.get(number, []), end, missing)


def _counts(shape: LogShape, queues: Sequence[QueueState], item_count: int) -> AuditCounts:
    kept = shape.kept
    record_bytes = sum(chain.record_bytes for chain in kept)
    return AuditCounts(
        message_count=sum(chain.record_count for chain in kept),
        message_bytes=record_bytes,
        unwitnessed_bytes=record_bytes - sum(chain.body_bytes for chain in kept),
        damaged_bytes=shape.damaged_bytes,
        leftover_count=sum(chain.facts.record_count for chain in shape.leftovers),
        queue_count=len(queues),
        entry_count=sum(runs.count(queue.summary.backed) for queue in queues),
        hole_count=sum(
            run.stop - run.start
            for queue in queues
            for run in queue.runs
            if run.kind in conclusions.HOLE_KINDS
        ),
        index_item_count=item_count,
        min_physical_offset=shape.start,
        max_physical_offset=shape.end,
    )
