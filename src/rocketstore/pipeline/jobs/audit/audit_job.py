"""The audit: plan byte ranges, let tasks compare them where they are read, let Spark group facts.

Two passes: one over the log and the index, whose facts Spark keeps; one over these facts by queue,
which reads the queue entries that no record backs (decision 0009). The driver holds a row for each
range of the log and each index file, and findings up to `MOST_COLLECTED`.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from rocketstore.arguments import checked
from rocketstore.config import StoreConfig
from rocketstore.format.checkpoint import Checkpoint
from rocketstore.format.file_name import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CHECKPOINT_FILE_NAME,
    LOCK_FILE_NAME,
)
from rocketstore.pipeline.columns import arrow_schema
from rocketstore.pipeline.jobs import publishing
from rocketstore.pipeline.jobs.audit import audit_plan, audit_work
from rocketstore.pipeline.jobs.audit.audit_judgement import (
    FINDINGS,
    JUDGED,
    QUEUES,
    JudgeContext,
    QueueRow,
    judge_targets,
    key_of,
)
from rocketstore.pipeline.jobs.audit.audit_work import FACTS, RUNS, FactRow
from rocketstore.pipeline.jobs.execution import arrow_frame, map_batches, map_tasks, plain_failure
from rocketstore.pipeline.options import DEFAULT_SPLIT_BYTES
from rocketstore.pipeline.planning import MOST_TASKS
from rocketstore.pipeline.queues import ALL_OFFSETS
from rocketstore.places.files import passing_over_deleted, read_part
from rocketstore.places.location import is_remote, local_path
from rocketstore.places.log_files import known_log_end, store_timestamp_ms
from rocketstore.places.log_verdict import judged_log
from rocketstore.places.queue_files import QueueFiles
from rocketstore.places.store_listing import StoreListing, list_store, small_contents
from rocketstore.rules.findings import Finding, LastWriter, Severity, VerifyReport
from rocketstore.rules.leftovers import CLOCK_TOLERANCE_MS
from rocketstore.rules.log_rules import LogView, Stretch, log_findings
from rocketstore.rules.newer import newer_findings
from rocketstore.rules.queue_kinds import QueueKinds, queue_kinds
from rocketstore.units import QueueKey, system_clock_ms
from rocketstore.verification.file_rules import log_file_findings, queue_file_findings, raft_finding
from rocketstore.verification.index_rules import IndexFacts, Lacking, StrayCount, index_findings
from rocketstore.verification.queue_findings import extension_findings
from rocketstore.verification.queue_rules import EXPLAINED
from rocketstore.verification.small_files import positions, small_file_findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from rocketstore.pipeline.jobs.audit.audit_plan import AuditTask
    from rocketstore.rules.runs import Runs
    from rocketstore.rules.table_files import Content

MOST_COLLECTED: Final = 100_000
"""Findings of queues, and then queues, that are collected: the worst first. `out` holds all."""

REASONS: Final = EXPLAINED | {
    "expired": "records that were deleted with old log files",
    "filler": "places before a queue's first message, or of lost ones",
    "kept-place": "the place of a record that is lost, kept when the store was recovered",
    "K-I8": "Java indexes the last record once more at recovery",
}
"""Why entries and items may differ from what dispatch would write today, without a fault."""

_ROWS_PER_TASK: Final = 50_000
"""Of the second pass: some seconds each. Spark gives whole queues to a task."""


class AuditReport(VerifyReport, frozen=True):
    """Outcome of `rocketstore.pipeline.audit`.

    Attributes
    ----------
    findings
        In the order log, queues, index, small files; of queues at most `MOST_COLLECTED`.
    queues
        Every queue, by topic and number, up to the limit that is left beside the findings.
    explained
        Entries and items that are not what dispatch would write today, and no fault, by reason.
    """

    store: str
    queues: list[QueueRow]
    explained: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return the form that ``--output json`` prints."""
        form = super().to_dict()
        return {name: form[name] for name in ("store", "findings", "counts", "explained")}


@checked
def audit(
    spark: SparkSession, store: str | Path, out: str | Path | None = None, *,
    config: StoreConfig | None = None, max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    now_ms: int | None = None,
) -> AuditReport:  # fmt: skip
    """Check every record, queue entry and index item of a store against each other, on Spark.

    The store may be in use: what its writer has not finished yet is not reported.

    Parameters
    ----------
    out
        Directory to be made, with findings and queues as Parquet and a summary as JSON.

    Raises
    ------
    NotAStoreError
        There is no CommitLog directory.
    ConfigError
        Sizes cannot be learnt.
    StoreError
        A file cannot be read, or `out` cannot be written. Damage is a finding, not an error.
    """
    config = StoreConfig.of(config)
    if out is not None:
        publishing.refuse_taken(str(publishing.local_place(str(out))))
    now_ms = system_clock_ms() if now_ms is None else now_ms
    look = partial(_look, spark, str(store), out, config, max_split_bytes, now_ms)
    with suppress(_WriterCameError):
        return look(is_live=False)
    return look(is_live=True)


class _WriterCameError(Exception):
    """A writer opened the store after the audit had begun without one."""


def _look(  # noqa: PLR0913 - as `audit`
    spark: SparkSession, store: str, out: str | Path | None, config: StoreConfig,
    max_split_bytes: int, now_ms: int, *, is_live: bool,
) -> AuditReport:  # fmt: skip
    """Audit a store, with what `is_live` or a lock says: that a process may be writing."""
    from rocketstore.storage.files.lock import last_opening  # noqa: PLC0415 - drivers only

    root = None if is_remote(store) else Path(local_path(store))
    before = last_opening(root) if root is not None else 0

    def listed() -> StoreListing:
        places = list_store(store, config)
        return places._replace(is_live=True, was_aborted=False) if is_live else places

    def refuse_opening() -> None:
        if root is not None and not places.is_live and before != last_opening(root):
            raise _WriterCameError

    # A wrong place is reported before slow work begins.
    places = listed()
    # Read first: the queues, read later, then have every message that the offsets count.
    small, changed = small_contents(places)
    if places.is_live:
        places = listed()
    kinds = queue_kinds(small.get, places.queues, places.batch_queues)
    places = places.without(kinds)
    common, tasks, index_files = audit_plan.plan_tasks(
        places, config, kinds.batch_topics, max_split_bytes, now_ms
    )
    work = _Audit(spark, places, now_ms, small, changed, kinds, common, index_files)
    return work.run(tasks, out, refuse_opening)


@checked
def prove_rebuild(
    spark: SparkSession, store: str | Path, *,
    config: StoreConfig | None = None, max_split_bytes: int = DEFAULT_SPLIT_BYTES,
) -> AuditReport:  # fmt: skip
    """Compare a store's queues and index with what `rebuild` would make of its CommitLog.

    It reports lost records of the log, and the faults of queues and index that a rebuild repairs:
    places of lost records are faults of the log, and batch queues are left to ``store repair``.

    Raises
    ------
    StoreLockedError
        A writer has the store open.
    NotAStoreError
        There is no CommitLog directory.
    """
    from rocketstore.storage.files.lock import refuse_writer  # noqa: PLC0415 - drivers only

    if not is_remote(str(store)):
        lock = Path(local_path(str(store)), LOCK_FILE_NAME)
        refuse_writer(lock, hint="stop that writer; an audit needs no stop")
    report = audit(spark, store, config=config, max_split_bytes=max_split_bytes)
    findings, batches = [], BATCH_CONSUME_QUEUE_DIRECTORY
    for one in report.findings:
        if one.kind in {"log-damage", "log-hole"}:
            findings.append(one)
        elif one.kind in {"queue-hole", "queue-kept"} or one.severity is Severity.NOTE:
            continue
        elif one.kind.startswith(("queue", "index")) and not one.file.startswith(batches):
            findings.append(msgspec.structs.replace(one, severity=Severity.WARNING))
    return msgspec.structs.replace(report, findings=findings)


class _Audit(NamedTuple):
    """One audit: with small files as they were first, and what is wrong with the files listed."""

    spark: SparkSession
    places: StoreListing
    now_ms: int
    small: dict[str, Content]
    changed: dict[str, int]
    kinds: QueueKinds
    common: AuditTask
    index_files: list[Finding]

    def run(
        self, tasks: Sequence[AuditTask], out: str | Path | None, check: Callable[[], None]
    ) -> AuditReport:
        with plain_failure(), ExitStack() as stack:
            place = None
            if out is not None:  # before the work, which would be lost where it cannot be made
                place = stack.enter_context(publishing.published(str(out)))
            facts = map_tasks(self.spark, tasks, audit_work.read_task, FACTS).persist()
            stack.callback(facts.unpersist)
            whole = facts.filter("kind IN ('log', 'index')").toArrow().to_pylist()
            of_log = [row for row in whole if row["kind"] == "log"]
            of_index = [row for row in whole if row["kind"] == "index"]
            decode = msgspec.msgpack.decode
            found = [decode(row["facts"], type=list[Stretch]) for row in of_log]
            index = [decode(row["facts"], type=IndexFacts) for row in of_index]
            stretches, ask = itertools.chain.from_iterable(found), partial(self._stated, facts)
            view, excluded = judged_log(self.places, stretches, ask, self.now_ms)
            context = self._context(facts, of_log, view, excluded)
            judged = self._judged(facts, of_log, context).persist()
            stack.callback(judged.unpersist)
            report, own = self._report(judged, index, view, context.writer)
            check()
            if place is not None:
                _write_report(report, own, judged, place)
            return report

    def _stated(self, facts: DataFrame, start: int, stop: int) -> pa.Table:
        """Return runs of the queue offsets of records in a range at least, in the log's order."""
        inside = f"place < {stop} AND greatest(place, last) >= {start}"
        parts = facts.filter(f"kind IN ('parts', 'entries') AND {inside}")
        found = map_batches(parts, audit_work.stated_runs, RUNS)
        return found.sort("piece", "ordinal").toArrow()

    def _context(
        self, facts: DataFrame, of_log: list[dict[str, Any]], view: LogView, excluded: Runs
    ) -> JudgeContext:
        topics = {key.topic for key in (*self.places.queues, *self.places.batch_queues)}
        # The directories of a topic's queues may be gone, and its records be there.
        if lost := {one.queue.topic for one in positions(self.small.get, self.changed)} - topics:
            targets = facts.filter("kind = 'parts'").select("target").distinct().toArrow()[0]
            topics |= lost.intersection(key_of(one).topic for one in targets.to_pylist())
        writer = LastWriter(self.places.is_live)
        if self.places.was_aborted:
            files, reached = self.places.log.files, max(row["reached"] for row in of_log)
            times = Checkpoint.of(self.small.get(CHECKPOINT_FILE_NAME))
            latest_ms, has_index = self.now_ms + CLOCK_TOLERANCE_MS, self.common.has_index
            writer = view.writer_killed(reached, files, times, latest_ms, has_index=has_index)
        bounds = view.bounds()
        return JudgeContext(self.common, bounds, excluded, frozenset(topics), writer, self.kinds)

    def _judged(
        self, facts: DataFrame, of_log: list[dict[str, Any]], context: JudgeContext
    ) -> DataFrame:
        rows = audit_work.as_batches(self._known(), FACTS)
        known = pa.Table.from_batches(rows, arrow_schema(FACTS)).combine_chunks()
        about = facts.filter("kind NOT IN ('log', 'index')")
        about = about.unionByName(arrow_frame(self.spark, known))
        count = len(known) + sum(row["size"] for row in of_log)
        groups = min(MOST_TASKS, 2 + count // _ROWS_PER_TASK)
        together = about.repartition(groups, "target").sortWithinPartitions("target")

        def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            rows = judge_targets(context, audit_work.rows_of(batches))
            values = (map(row.get, arrow_schema(JUDGED).names) for row in rows)
            return audit_work.as_batches(values, JUDGED)

        return map_batches(together, judge, JUDGED)

    def _known(self) -> Iterator[FactRow]:
        """Yield what the driver knows of queues and consumers."""
        for kind, rows in (("queue", self.places.queues), ("batch", self.places.batch_queues)):
            for key, row in rows.items():
                listed = FactRow(audit_work.queue_target(key, kind), "listed", -1)
                if not row.files:
                    yield listed
                for base, size, path in row.files:
                    yield listed._replace(place=base, size=size, file=path)
        for one in positions(self.small.get, self.changed):
            kind = "batch" if one.queue.topic in self.common.batch_topics else "queue"
            target = audit_work.queue_target(one.queue, kind)
            position = FactRow(target, "position", -1, first=one.offset)
            yield position._replace(file=one.file, who=one.who)

    # --- the report ---------------------------------------------------------------------------

    def _report(
        self, judged: DataFrame, index: list[IndexFacts], view: LogView, writer: LastWriter
    ) -> tuple[AuditReport, list[Finding]]:
        """Return the reported findings, and those that are not rows of `judged`."""
        counted = judged.filter("counted IS NOT NULL").select("counted", "file", "count", "first")
        groups = counted.toArrow().group_by(["counted", "file"])
        added = groups.aggregate([("count", "sum"), ("first", "min")]).to_pylist()
        sums = Counter({row["counted"]: row["count_sum"] for row in added})
        # The worst first.
        worst = judged.filter("counted IS NULL").orderBy("place", ascending=True)
        queues: list[QueueRow] = []
        found: list[Finding] = []
        # Some at a time: a dictionary of each row would be the most that the driver holds.
        for batch in worst.limit(MOST_COLLECTED).toArrow().to_batches(max_chunksize=1000):
            for row in batch.to_pylist():
                if row["kind"] is None:
                    queues.append(msgspec.convert(row, QueueRow))
                else:
                    found.append(msgspec.convert(row, Finding))
        found.sort(key=lambda one: (one.topic or "", one.queue_id or 0, one.kind, one.offset))
        of_queues = [one for one in found if one.kind.startswith("queue")]
        of_consumers = [one for one in found if not one.kind.startswith("queue")]
        log = list(self._log_findings(view, sums["used"]))
        rest = [*self._item_findings(added, index, view, writer), *self._small_findings(view)]
        counts = view.counts(
            view.kept, queue_count=sums["queues"], entry_count=sums["entries"],
            hole_count=sums["holes"], index_item_count=sum(one.item_count for one in index),
        )  # fmt: skip
        queues.sort(key=lambda one: (one.topic, one.queue_id))
        reasons = {reason: sums[reason] for reason in sorted(REASONS) if sums[reason]}
        found = [*log, *of_queues, *rest, *of_consumers]
        return AuditReport(found, counts, self.places.location, queues, reasons), [*log, *rest]

    def _log_findings(self, view: LogView, entry_count: int) -> Iterator[Finding]:
        """Yield what is wrong with the log, and with files and kinds of queues."""
        places, log = self.places, self.places.log
        last = log.files[-1].base if log.files else None
        last_bytes = partial(_last_bytes, places)
        end, shown = 0 if log.files else known_log_end(places.location), places.below_root
        yield from log_file_findings(log.problems, last, entry_count, shown, last_bytes, end)
        yield from log_findings(view, places.file_position, is_live=places.is_live)
        yield from map(raft_finding, map(places.below_root, places.dledger))
        yield from self.kinds.findings
        for key, row in (*places.queues.items(), *places.batch_queues.items()):
            yield from queue_file_findings(key, row.problems, places.below_root)
        held = {
            queue: [one.size for one in entries if one.is_file]
            for queue, entries in places.extensions.items()
        }
        yield from extension_findings({queue: sizes for queue, sizes in held.items() if sizes})

    def _item_findings(
        self,
        added: list[dict[str, Any]],
        index: list[IndexFacts],
        view: LogView,
        writer: LastWriter,
    ) -> list[Finding]:
        if not self.common.has_index:
            return []
        sums = {
            (row["counted"], row["file"]): (row["count_sum"], row["first_min"]) for row in added
        }
        stray = [
            StrayCount(file, kind == "stale", *sums[kind, file])
            for kind, file in sums
            if kind in {"stray", "stale"}
        ]
        return self.index_files + index_findings(
            sorted(index, key=lambda one: one.file), self.common.sizes.index_layout,
            Lacking(*sums.get(("lacking", ""), ())), stray,
            partial(_store_time, self.places, view), writer,
        )  # fmt: skip

    def _small_findings(self, view: LogView) -> Iterator[Finding]:
        def codes_from(key: QueueKey, start: int) -> Iterator[Any]:
            entries = QueueFiles(self.places.location, key).messages(start, ALL_OFFSETS.stop)
            return (found["tags_code"] for _, found in entries)

        latest_ms = max((one.latest_ms for one in view.kept), default=0)
        if self.places.is_live:
            latest_ms = self.now_ms  # records that are being written were not read
        yield from small_file_findings(
            self.small.get, self.now_ms, latest_ms, was_aborted=self.places.was_aborted
        )
        yield from newer_findings(self.small.get, lambda: self.places.queues, codes_from)


def _last_bytes(places: StoreListing, path: str, count: int) -> bytes:
    directory, _, name = path.rpartition("/")
    size = next((one.size for one in places.files.list(directory) if one.name == name), 0)
    return read_part(places.location, path, max(0, size - count), count)


def _store_time(places: StoreListing, view: LogView, offset: int) -> int | None:
    """Return when a record of the log was stored, None where none is at that place."""
    if any(chain.start <= offset < chain.stop for chain in view.kept):
        with passing_over_deleted():
            return store_timestamp_ms(places.location, places.file_at(offset), offset)
    return None


def _write_report(
    report: AuditReport, own: Iterable[Finding], judged: DataFrame, place: str
) -> None:
    """Write findings and queues as Parquet, and what they come to as JSON, to the place.

    `own` are findings that are not among those `judged` by `judge_targets`.
    """
    columns = arrow_schema(FINDINGS)
    added = pa.Table.from_pylist([one.to_dict() for one in own], schema=columns)
    found = judged.filter("kind IS NOT NULL").select(*columns.names)
    found = found.unionByName(arrow_frame(judged.sparkSession, added))
    queues = judged.filter("recordCount IS NOT NULL").select(*arrow_schema(QUEUES).names)
    for rows, order, schema, name in (
        (found, ("severity", "kind", "file", "offset"), FINDINGS, "findings"),
        (queues, ("topic", "queueId"), QUEUES, "queues"),
    ):
        ordered = rows.coalesce(1).sortWithinPartitions(*order)
        publishing.write_parquet(ordered, iter, schema, Path(place, name))
    summary = {
        "store": report.store,
        "exitCode": report.exit_code,
        "counts": report.counts.to_dict(),
        "findingCounts": dict(Counter(one.kind for one in report.findings)),
    }
    content = json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
    publishing.put(place, "summary.json", content.encode())
