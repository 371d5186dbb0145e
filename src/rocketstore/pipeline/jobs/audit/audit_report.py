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
from rocketstore.verification.findings import (
    Finding,
    Severity,
    VerifyReport,
    camel_names,
    state_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
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


def summary_line(report: AuditReport) -> str:
    """Return in one line what was checked and what is wrong."""
    counts = report.counts
    return (
        f"{counts.message_count:,} records ({counts.message_bytes:,} bytes, "
        f"{counts.unwitnessed_bytes:,} of them unwitnessed: checksums cover bodies only), "
        f"{counts.entry_count:,} entries in {counts.queue_count:,} queues, "
        f"{counts.index_item_count:,} index items: {state_of(report.findings)}"
    )


def write_report(
    report: AuditReport, own: Iterable[Finding], judged: DataFrame, location: str
) -> None:
    """Write findings and queues as Parquet, and what they come to as JSON, to a new directory.

    Parameters
    ----------
    own
        Findings that are not rows of `judged`.
    judged
        As `audit_judgement.judge_targets` yields it.
    """
    with published(location) as place:
        root = place if is_remote(place) else Path(place).as_uri()
        found = judged.filter("kind = 'finding'").mapInArrow(
            _unpacked(_finding, FINDINGS), FINDINGS
        )
        if rows := [one.to_dict() for one in own]:
            found = found.unionByName(judged.sparkSession.createDataFrame(_table(rows, FINDINGS)))
        found = found.coalesce(1).sortWithinPartitions("severity", "kind", "file", "offset")
        found.write.parquet(f"{root}/findings")
        queues = judged.filter("kind = 'queue'").mapInArrow(_unpacked(_queue, QUEUES), QUEUES)
        queues = queues.coalesce(1).sortWithinPartitions("topic", "queueId")
        queues.write.parquet(f"{root}/queues")
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


def _finding(content: bytes) -> dict[str, Any]:
    severity, *rest = msgspec.msgpack.decode(content)
    return Finding(Severity(severity), *rest).to_dict()


def _queue(content: bytes) -> dict[str, Any]:
    return QueueRow(*msgspec.msgpack.decode(content)).to_dict()


def _unpacked(unpack: Callable[[bytes], dict[str, Any]], columns: str) -> Any:
    """Return what makes batches of `columns` of packed rows."""

    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [unpack(content) for content in batch.column("facts").to_pylist()]
            yield from _table(rows, columns).to_batches()

    return apply


def _table(rows: list[dict[str, Any]], columns: str) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415 - only where a report is written

    kinds = {"STRING": pa.string(), "INT": pa.int32(), "LONG": pa.int64()}
    fields = [one.split() for one in columns.split(", ")]
    return pa.Table.from_pylist(rows, pa.schema([(name, kinds[kind]) for name, kind in fields]))
