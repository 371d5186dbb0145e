"""An audit's outcome, and its form on disk."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from rocketstore.pipeline.files import ObjectStore, is_remote, sync_path
from rocketstore.pipeline.jobs.publishing import published
from rocketstore.verification.findings import Finding, Severity, VerifyReport, camel_names
from rocketstore.verification.queue_rules import EXPLAINED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

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


class QueueRow(NamedTuple):
    """A queue in the report.

    Attributes
    ----------
    record_count
        Intact records of the log with a place in it.
    first_offset, last_offset
        Smallest and largest queue offset that they state; None without records.
    entry_count
        Entries that agree with a record.
    missing_count, conflict_count, gap_count
        Records without their entry; queue offsets that several records state; queue offsets between
        the first and the last that no record states.
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


@dataclass(frozen=True)
class ProofReport(VerifyReport):
    """Whether queues and index are those of the log: the audit of them.

    Attributes
    ----------
    findings
        Differences without a good reason.
    explained
        Entries and items that differ for each reason of `REASONS`.
    damage
        What is damaged in the log.
    """

    store: str
    explained: dict[str, int]
    damage: list[Finding]

    @property
    def is_damaged(self) -> bool:
        """Whether records of the log are lost."""
        return bool(self.damage)

    def to_dict(self) -> dict[str, Any]:
        """Return the form that ``--output json`` prints."""
        explained = [
            {"reason": reason, "count": count, "explanation": REASONS[reason]}
            for reason, count in self.explained.items()
        ]
        damage = [one.to_dict() for one in self.damage]
        own = {"store": self.store, "explained": explained, "damage": damage}
        return own | super().to_dict()


def proof_of(report: AuditReport) -> ProofReport:
    """Return what an audit says of queues and index; places of lost records are the log's fault."""
    wrong = [one for one in report.findings if one.severity is not Severity.NOTE]
    return ProofReport(
        [
            one
            for one in wrong
            if one.kind.startswith(("queue", "index"))
            and one.kind not in {"queue-hole", "queue-kept"}
        ],
        report.counts,
        report.store,
        report.explained,
        [one for one in wrong if one.kind in {"log-damage", "log-hole"}],
    )


def write_report(
    report: AuditReport, own: Iterable[Finding], judged: DataFrame, location: str
) -> None:
    """Write findings and queues as Parquet, and what they come to as JSON, to a new directory.

    `own` are findings that are not among those `judged` by `audit_judgement.judge_targets`.
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
        if is_remote(place):
            store = ObjectStore(place)
            store.put(f"{store.root}/{SUMMARY}", content.encode())
            return
        Path(place, SUMMARY).write_text(content, encoding="utf-8")
        for path in Path(place).rglob("*"):
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
