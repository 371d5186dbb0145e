"""An audit's outcome, and its form on disk.

Law: a directory that has the report's name is whole: it is written under another name and renamed,
and ``manifest.json`` in it lists every file with its length and SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.errors import StoreError
from rocketstore.pipeline.files import sync_path
from rocketstore.pipeline.jobs.audit import runs
from rocketstore.pipeline.jobs.audit.findings import AuditCounts, Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa

    from rocketstore.pipeline.jobs.audit.conclusions import QueueState

MANIFEST: Final = "manifest.json"
FORMAT: Final = "rocketstore audit 1"
"""What the manifest says that the directory is."""


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
        names = (
            "topic queueId recordCount firstOffset lastOffset entryCount missingCount "
            "conflictCount gapCount"
        )
        return dict(zip(names.split(), self, strict=True))


class AuditReport(NamedTuple):
    """Outcome of `rocketstore.pipeline.audit`.

    Attributes
    ----------
    findings
        In the order log, queues, index, small files.
    queues
        Every queue, by topic and number.
    """

    store: str
    findings: list[Finding]
    counts: AuditCounts
    queues: list[QueueRow]

    @property
    def is_damaged(self) -> bool:
        """Whether damage is in the store (exit code 4)."""
        return any(finding.severity is Severity.DAMAGE for finding in self.findings)

    @property
    def has_findings(self) -> bool:
        """Whether something was found that is no mere note (exit code 1 or 4)."""
        return any(finding.severity is not Severity.NOTE for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """0 clean, 1 findings, 4 damage."""
        if self.is_damaged:
            return 4
        return 1 if self.has_findings else 0

    def to_dict(self) -> dict[str, Any]:
        """Return the form that ``--output json`` prints."""
        return {
            "store": self.store,
            "findings": [finding.to_dict() for finding in self.findings],
            "counts": self.counts.to_dict(),
        }

    def to_arrow(self) -> pa.Table:
        """Return the findings as a table."""
        import pyarrow as pa  # noqa: PLC0415 - only for who asks

        rows = [finding.to_dict() for finding in self.findings]
        return pa.Table.from_pylist(rows, _findings_schema())


def queue_row(queue: QueueState) -> QueueRow:
    """Return what is said of a queue."""
    summary = queue.summary
    has_records = summary.record_count > 0
    return QueueRow(
        summary.topic,
        summary.queue_id,
        summary.record_count,
        summary.first if has_records else None,
        summary.last if has_records else None,
        runs.count(summary.backed),
        runs.count(summary.truly_missing),
        summary.shadowed_count,
        runs.count(summary.skipped) if has_records else 0,
    )


def summary_line(report: AuditReport) -> str:
    """Return in one line what was checked and what is wrong."""
    counts = report.counts
    state = "nothing wrong"
    if report.is_damaged:
        state = f"DAMAGED: {len(report.findings)} findings"
    elif report.findings:
        state = f"{len(report.findings)} findings, no damage"
    return (
        f"{counts.message_count:,} records ({counts.message_bytes:,} bytes, "
        f"{counts.unwitnessed_bytes:,} of them unwitnessed: checksums cover bodies only), "
        f"{counts.entry_count:,} entries in {counts.queue_count:,} queues, "
        f"{counts.index_item_count:,} index items: {state}"
    )


# --- on disk ------------------------------------------------------------------------------------


def check_target(out: Path) -> None:
    """Refuse a directory that holds something.

    Raises
    ------
    StoreError
        It is there and not empty, or is no directory.
    """
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists():
        raise StoreError(f"{out} is there already", hint="name a directory that does not exist yet")
    if not out.absolute().parent.is_dir():
        raise StoreError(f"{out.absolute().parent} is no directory", hint="make it first")


def write_report(report: AuditReport, out: Path) -> None:
    """Write findings, queues and a manifest to a new directory.

    Raises
    ------
    StoreError
        It cannot be written.
    """
    target = out.absolute()
    staging = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        staging.mkdir()
        try:
            _write_all(report, staging)
            staging.replace(target)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        sync_path(target.parent)
    except OSError as error:
        raise StoreError(
            f"the report cannot be written to {out}: {error.strerror or error}",
            hint="name a directory that can be written",
        ) from error


def _write_all(report: AuditReport, directory: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415 - only where a report is written
    from pyarrow import parquet  # noqa: PLC0415 - as above

    parquet.write_table(report.to_arrow(), directory / "findings.parquet")
    queues = pa.Table.from_pylist([row.to_dict() for row in report.queues], _queues_schema())
    parquet.write_table(queues, directory / "queues.parquet")
    _write_lines(directory / "findings.jsonl", (one.to_dict() for one in report.findings))
    listed = [_described(path) for path in sorted(directory.iterdir())]
    manifest = {
        "format": FORMAT,
        "store": report.store,
        "exitCode": report.exit_code,
        "counts": report.counts.to_dict(),
        "findingCount": len(report.findings),
        "files": listed,
    }
    path = directory / MANIFEST
    path.write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for written in directory.iterdir():
        with written.open("rb") as file:
            os.fsync(file.fileno())
    sync_path(directory)


def _write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _described(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return {"name": path.name, "size": len(content), "sha256": digest}


def _findings_schema() -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415 - as above

    texts = {"severity", "kind", "file", "topic", "expected", "found", "reason", "action"}
    template = Finding(Severity.NOTE, "", "", 0, 0, "", "").to_dict()
    return pa.schema((name, pa.string() if name in texts else pa.int64()) for name in template)


def _queues_schema() -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415 - as above

    template = QueueRow("", 0, 0, 0, 0, 0, 0, 0, 0).to_dict()
    return pa.schema((name, pa.string() if name == "topic" else pa.int64()) for name in template)
