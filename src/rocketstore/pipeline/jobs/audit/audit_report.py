"""From facts to findings: what a queue is once all of it came together, and the audit's outcome.

Law: a queue is judged from its own facts and the shape of the log, in whatever task.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.format.topic_name import DELAY_TOPIC
from rocketstore.pipeline.files import is_remote, sync_path
from rocketstore.pipeline.jobs.audit.audit_work import QueueSource, Row, packed, part_of
from rocketstore.pipeline.jobs.publishing import published, put
from rocketstore.pipeline.stores import StoreFile
from rocketstore.units import QueueKey
from rocketstore.verification import runs
from rocketstore.verification.findings import Finding, Severity, VerifyReport, camel_names
from rocketstore.verification.queue_rules import EXPLAINED, QueueView, queue_findings
from rocketstore.verification.small_files import Position, position_findings
from rocketstore.verification.unbacked import UnbackedKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from rocketstore.pipeline.jobs.audit.audit_work import AuditTask
    from rocketstore.verification.queue_rules import QueuePart
    from rocketstore.verification.unbacked import LogBounds

SUMMARY: Final = "summary.json"

FINDINGS: Final = (
    "severity STRING, kind STRING, file STRING, offset LONG, size LONG, reason STRING, "
    "action STRING, topic STRING, queueId INT, queueOffset LONG, physicalOffset LONG, "
    "expected STRING, found STRING"
)
"""Columns of findings as Parquet has them."""

QUEUES: Final = (
    "topic STRING, queueId INT, recordCount LONG, firstOffset LONG, lastOffset LONG, "
    "entryCount LONG, missingCount LONG, conflictCount LONG, gapCount LONG"
)
"""Columns of queues as Parquet has them."""


REASONS: Final = EXPLAINED | {
    "expired": "records that were deleted with old log files",
    "filler": "places before a queue's first message, or of lost ones",
    "kept-place": "the place of a record that is lost, kept when the store was recovered",
    "K-I8": "Java indexes the last record once more at recovery",
}
"""Why entries and items may differ from what dispatch would write today, without a fault."""

_PLACES_OF_LOST: Final = {"queue-hole", "queue-kept"}


class QueueRow(NamedTuple):
    """A queue in the report: its intact records, and entries that agree with one.

    `first_offset` and `last_offset` are the bounds of what records state. Missing are records
    without their entry, a conflict is a queue offset that several state, a gap one inside the
    bounds that none states.
    """

    topic: str
    queue_id: int
    record_count: int
    first_offset: int | None
    last_offset: int | None
    entry_count: int
    missing_count: int
    conflict_count: int
    gap_count: int

    def to_dict(self) -> dict[str, Any]:
        """Return the form of a row of the table."""
        return camel_names(self._asdict())


@dataclass(frozen=True)
class AuditReport(VerifyReport):
    """Outcome of `rocketstore.pipeline.audit`.

    Attributes
    ----------
    findings
        In the order log, queues, index, small files; of queues at most `audit_job.MOST_COLLECTED`.
    queues
        Every queue, by topic and number, as far as there is room beside the findings.
    explained
        Entries and items that are not what dispatch would write today, and no fault, by reason.
    """

    store: str
    queues: list[QueueRow]
    explained: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return the form that ``--output json`` prints."""
        return {"store": self.store, **super().to_dict(), "explained": self.explained}


def proof_of(report: AuditReport) -> AuditReport:
    """Return what an audit says of queues and index, and which records of the log are lost.

    Damage is what no rebuild mends. Places of lost records are the log's fault.
    """
    findings = []
    for one in report.findings:
        if one.kind in {"log-damage", "log-hole"}:
            findings.append(one)
        elif one.kind.startswith(("queue", "index")) and one.kind not in _PLACES_OF_LOST:
            is_note = one.severity is Severity.NOTE
            findings += [] if is_note else [one._replace(severity=Severity.WARNING)]
    return replace(report, findings=findings)


def write_report(
    report: AuditReport, own: Iterable[Finding], judged: DataFrame, location: str
) -> None:
    """Write findings and queues as Parquet, and what they come to as JSON, to a new directory.

    `own` are findings that are not among those `judged` by `judge_targets`.
    """
    import pyarrow as pa  # noqa: PLC0415 - only where a report is written

    with published(location) as place:
        root = place if is_remote(place) else Path(place).as_uri()
        added = pa.table({"facts": pa.array(map(packed_row, own), pa.binary())})
        found = judged.filter("kind = 'finding'").select("facts")
        found = found.unionByName(judged.sparkSession.createDataFrame(added))
        _write(found, FINDINGS, ("severity", "kind", "file", "offset"), f"{root}/findings")
        queues = judged.filter("kind = 'queue'")
        _write(queues, QUEUES, ("topic", "queueId"), f"{root}/queues")
        summary = {
            "store": report.store,
            "exitCode": report.exit_code,
            "counts": report.counts.to_dict(),
            "findingCounts": dict(Counter(one.kind for one in report.findings)),
        }
        content = json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
        put(place, SUMMARY, content.encode())
        if not is_remote(place):
            for path in Path(place).rglob("*.parquet"):
                sync_path(path)


def _write(rows: DataFrame, columns: str, order: tuple[str, ...], place: str) -> None:
    unpacked = rows.selectExpr(f"from_json(CAST(facts AS STRING), '{columns}') AS row")
    unpacked.select("row.*").coalesce(1).sortWithinPartitions(*order).write.parquet(place)


def packed_row(row: Finding | QueueRow) -> bytes:
    """Return a row of a table as bytes: JSON, which Spark unpacks."""
    return msgspec.json.encode(row.to_dict())


def finding_of(content: bytes) -> Finding:
    """Return the finding of `packed_row`."""
    severity, *rest = msgspec.json.decode(content).values()
    return Finding(Severity(severity), *rest)


def queue_of(content: bytes) -> QueueRow:
    """Return the queue of `packed_row`."""
    return QueueRow(*msgspec.json.decode(content).values())


# --- judging ------------------------------------------------------------------------------------

SUMS, DAMAGE, FOUND, QUEUE = range(4)
"""Places of what is judged: in this order it is collected, as far as there is room."""

_OF_RECORDS: Final = {"part", "lacking", "backed"}
"""Rows that hold where their records are messages; of `backed` items, those that are none count."""

_REASON_OF: Final = {
    UnbackedKind.EXPIRED: "expired",
    UnbackedKind.FILLER: "filler",
    UnbackedKind.KEPT: "kept-place",
}


class Judgement(NamedTuple):
    """What queues are judged by.

    `excluded` are ranges of the log whose records are no messages: leftovers, and files that are
    gone. `topics` have a directory.
    """

    task: AuditTask
    bounds: LogBounds
    excluded: tuple[tuple[int, int], ...]
    topics: frozenset[str]


def judge_targets(judgement: Judgement, rows: Iterable[Row]) -> Iterator[Row]:
    """Judge what came together; `rows` are sorted by target.

    Yields ``finding`` and ``queue`` rows, and ``sums``: of queues, reasons, and items.
    """
    excluded = np.array(judgement.excluded, dtype=np.int64).reshape(-1, 2)
    sums: Counter[str] = Counter()
    for target, group in itertools.groupby(rows, key=lambda row: row.target):
        kept = [
            row
            for row in group
            if row.kind not in _OF_RECORDS
            or runs.holds(excluded, row.place) is (row.kind == "backed")
        ]
        if target.startswith("queue/"):
            yield from _judge_queue(judgement, target, kept, sums)
        else:
            yield from _judge_items(judgement.bounds, target, kept, sums)
    yield Row("", SUMS, "sums", packed(sums))


def _judge_items(
    bounds: LogBounds, target: str, rows: list[Row], sums: Counter[str]
) -> Iterator[Row]:
    """Yield keys without an item, and items without a record: past the log's end (1), or not."""
    sums["K-I8"] += sum(row.a for row in rows if row.kind == "repeated")
    lacking = [row for row in rows if row.kind == "lacking"]
    if lacking:
        first = min(row.place for row in lacking)
        yield Row(target, SUMS, "lacking", b"", sum(row.a for row in lacking), first)
    # Of each item its number, the offset that it names, and how many items it stands for.
    columns = [(row.b, row.place, row.a) for row in rows if row.kind == "backed"]
    found = [np.array(columns, np.int64).reshape(-1, 3)]
    for numbers, offsets in (
        msgspec.msgpack.decode(row.facts) for row in rows if row.kind == "stray"
    ):
        pair = np.frombuffer(numbers, np.int64), np.frombuffer(offsets, np.int64)
        found.append(np.stack((*pair, np.ones_like(pair[0])), axis=1))
    items = np.concatenate(found)
    items = items[items[:, 1] >= bounds.min]
    is_stale = items[:, 1] >= bounds.end
    for late, chosen in enumerate((items[~is_stale], items[is_stale])):
        if len(chosen):
            count, first = int(chosen[:, 2].sum()), int(chosen[:, 0].min())
            yield Row(target, SUMS, "stray", b"", count, first, late)


def _judge_queue(
    judgement: Judgement, target: str, rows: list[Row], sums: Counter[str]
) -> Iterator[Row]:
    _, number, topic = target.split("/", 2)
    key, is_live = QueueKey(topic, int(number)), judgement.task.is_live
    listed = [row.facts for row in rows if row.kind == "listed"]
    parts = [part_of(row) for row in rows if row.kind == "part"]
    view = _view(judgement, key, msgspec.msgpack.decode(listed[0]) if listed else [], parts)
    is_there = view.is_own or bool(listed)
    if is_there:
        for found in queue_findings(view, is_live=is_live):
            yield _finding_row(found)
        _count(view, parts, sums)
        yield Row(target, QUEUE, "queue", packed_row(_queue_row(view)))
    if is_there or topic in judgement.topics or topic == DELAY_TOPIC:
        for row in rows:
            if row.kind == "position":
                position = msgspec.msgpack.decode(row.facts, type=Position)
                for found in position_findings(position, view if is_there else None):
                    yield _finding_row(found)


def _view(
    judgement: Judgement, key: QueueKey, files: Sequence[Any], parts: list[QueuePart]
) -> QueueView:
    task = judgement.task
    while True:
        held = [
            (base // ENTRY_SIZE_BYTES, -(-(base + size) // ENTRY_SIZE_BYTES))
            for base, size, _ in files
        ]
        source = QueueSource(
            task.location, task.queue_file_bytes, key, [StoreFile(*file) for file in files]
        )
        places = task.queue_file_bytes // ENTRY_SIZE_BYTES
        view = QueueView(*key, places, held, source.read)
        view.conclude(parts, judgement.bounds)
        if not source.has_lost:
            return view
        files = source.listed_again()  # retention took one meanwhile


def _count(view: QueueView, parts: list[QueuePart], sums: Counter[str]) -> None:
    """Add up what a queue has, and why its entries are not what dispatch would write today."""
    sums["queues"] += 1
    sums["entries"] += view.entry_count
    sums["holes"] += view.hole_count
    sums["used"] += view.end - view.first_offset
    for at, reason in enumerate(EXPLAINED):
        sums[reason] += sum(part.explained[at] for part in parts)
    for run in view.unbacked:
        if run.kind in _REASON_OF:
            sums[_REASON_OF[run.kind]] += run.stop - run.start


def _queue_row(view: QueueView) -> QueueRow:
    has_records = view.record_count > 0
    return QueueRow(
        view.topic,
        view.queue_id,
        view.record_count,
        view.first if has_records else None,
        view.last if has_records else None,
        view.entry_count,
        runs.count(view.truly_missing),
        view.shadowed_count,
        runs.count(view.skipped) if has_records else 0,
    )


def _finding_row(found: Finding) -> Row:
    place = DAMAGE if found.severity is Severity.DAMAGE else FOUND
    return Row("", place, "finding", packed_row(found))
