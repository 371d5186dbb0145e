"""Verify a store but its batch queues: every record, queue entry, the index, the small files.

Works beside a writer and on a read-only mount: files are read with ``pread``, no lock is taken and
no byte written. What a live writer has not finished is not reported.

Law: findings are values; verify raises only where there is nothing to verify.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rocketstore.config import StoreConfig
from rocketstore.storage.audit.store_audit import audit_store, find_places
from rocketstore.storage.files.lock import may_have_writer
from rocketstore.storage.files.whole_file import changed_ns
from rocketstore.verification.file_rules import log_file_findings
from rocketstore.verification.findings import Finding, Severity, VerifyReport, file_finding
from rocketstore.verification.log_rules import log_findings
from rocketstore.verification.queue_rules import extension_finding, queue_findings
from rocketstore.verification.small_files import positions, small_file_findings, standing_findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rocketstore.storage.audit.store_audit import StoreAudit
    from rocketstore.storage.layout import StoreLayout
    from rocketstore.verification.small_files import Content, Position


def verify_store(
    path: str | Path,
    config: StoreConfig | None = None,
    *,
    progress: Callable[[int], None] | None = None,
    now_ms: int | None = None,
) -> VerifyReport:
    """Check all but batch queues, which `rocketstore.verify_store` adds, by the same arguments."""
    config = config or StoreConfig()
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    try:
        report, is_live = _look(Path(path), config, now_ms, progress)
    except FileNotFoundError:  # deleted since the directory was listed
        report, is_live = _look(Path(path), config, now_ms, progress)
    if not is_live or not (report.is_damaged or report.has_warnings):
        return report
    # Files are not read in one moment: what a writer wrote meanwhile looks torn. Damage is what is
    # seen twice.
    again, _ = _look(Path(path), config, now_ms, progress)
    seen = {(found.kind, found.file, found.offset) for found in report.findings}
    findings = [
        found
        for found in again.findings
        if found.severity is Severity.NOTE or (found.kind, found.file, found.offset) in seen
    ]
    return VerifyReport(findings, again.counts)


def _look(
    path: Path, config: StoreConfig, now_ms: int, progress: Callable[[int], None] | None
) -> tuple[VerifyReport, bool]:
    """Return what one look finds, and whether somebody writes to the store."""
    layout, sizes = find_places(path, config)
    is_live = may_have_writer(layout.lock)
    # Read first: what consumers had by then, the queues have when they are looked at.
    read = small_files(layout)
    standing = standing_groups(layout)
    audit = audit_store(layout, sizes, config, now_ms=now_ms, is_live=is_live, advance=progress)
    findings = [
        *audit_findings(audit, is_live=is_live),
        *small_file_findings(
            read,
            now_ms,
            now_ms if is_live else audit.met.latest_ms,
            was_aborted=layout.abort.exists() and not is_live,
        ),
    ]
    bounds = {queue.key: (queue.first_record, queue.stop) for queue in audit.queues}
    findings += standing_findings(standing, bounds)
    return VerifyReport(findings, audit.counts), is_live


def audit_findings(audit: StoreAudit, *, is_live: bool = False) -> list[Finding]:
    """Return what an audit found in the log, the queues and the index, in this order."""
    return [
        *log_file_findings(
            audit.log_findings,
            audit.log_files[-1].base if audit.log_files else None,
            audit.entry_count,
            audit.below_root,
            _last_bytes,
        ),
        *log_findings(audit.log, audit.place_in_log, is_live=is_live),
        *_queue_findings(audit, is_live=is_live),
        *audit.index_findings,
    ]


def _last_bytes(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - count))
        return file.read()


def _queue_findings(audit: StoreAudit, *, is_live: bool) -> Iterator[Finding]:
    for queue in audit.queues:
        for one in queue.files.findings:
            name, kind = audit.below_root(one.path), one.problem.kind
            yield file_finding("queue", kind, name, one.expected, one.found, **queue.key._asdict())
        yield from queue_findings(queue, is_live=is_live)
    for directory in sorted(audit.layout.consume_queue_ext.glob("*/*")):
        sizes = [path.stat().st_size for path in directory.iterdir() if path.is_file()]
        if sizes:
            shown = audit.below_root(directory)
            yield extension_finding(shown, directory.parent.name, directory.name, sizes)


def standing_groups(layout: StoreLayout) -> list[Position]:
    """Return where consumers, and delay levels, go on."""
    return list(positions(small_files(layout), changed_ns(layout.config)))


def small_files(layout: StoreLayout) -> Callable[[str], Content]:
    """Return what reads a small file by its name below the store."""

    def read(name: str) -> Content:
        try:
            return Path(layout.root, name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            return str(error.strerror)

    return read
