"""Verify a store: every record, every queue entry, the index, the small files; change nothing.

Works beside a writer and on a read-only mount: files are read with ``pread``, no lock is taken and
no byte written. What a live writer has not finished is not reported.

Law: findings are values; verify raises only where there is nothing to verify.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketstore.config import StoreConfig
from rocketstore.errors import FormatError
from rocketstore.format.checkpoint import CHECKPOINT_SIZE_BYTES, decode_checkpoint
from rocketstore.format.metadata_json import (
    CONSUMER_FILTERS_FILE,
    CONSUMER_OFFSETS_FILE,
    DELAY_OFFSETS_FILE,
    SUBSCRIPTION_GROUPS_FILE,
    TOPICS_FILE,
    ConsumerFilterTable,
    ConsumerOffsets,
    DelayOffsets,
    SubscriptionGroupTable,
    TopicTable,
    decode_table,
)
from rocketstore.storage.audit.audit_findings import audit_findings
from rocketstore.storage.audit.findings import Finding, Severity, VerifyReport
from rocketstore.storage.audit.store_audit import audit_store, find_places
from rocketstore.storage.files.lock import writer_pid
from rocketstore.storage.files.metadata_file import backup_path
from rocketstore.storage.recovery.leftovers import CLOCK_TOLERANCE_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rocketstore.storage.layout import StoreLayout

TABLES: Final = {
    TOPICS_FILE: TopicTable,
    CONSUMER_OFFSETS_FILE: ConsumerOffsets,
    DELAY_OFFSETS_FILE: DelayOffsets,
    SUBSCRIPTION_GROUPS_FILE: SubscriptionGroupTable,
    CONSUMER_FILTERS_FILE: ConsumerFilterTable,
}
"""The JSON tables that are known, by file name."""


def verify_store(
    path: str | Path,
    config: StoreConfig | None = None,
    *,
    progress: Callable[[int], None] | None = None,
    now_ms: int | None = None,
) -> VerifyReport:
    """Check everything in the store at `path` and report it.

    Parameters
    ----------
    path
        Directory of the store.
    config
        Settings that the files do not tell; sizes left unset are learnt.
    progress
        Told how many bytes of the log were surveyed.
    now_ms
        The time, by which impossible times are told; None asks the system.

    Raises
    ------
    NotAStoreError
        There is no CommitLog directory.
    ConfigError
        Slots and items of the index cannot be learnt from its files.
    """
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
    places = find_places(path, config)
    layout = places.layout
    is_live = writer_pid(layout.lock) is not None
    audit = audit_store(places, config, now_ms=now_ms, is_live=is_live, advance=progress)
    findings = [
        *audit_findings(audit, is_live=is_live),
        *_marker_findings(layout, is_live=is_live),
        *checkpoint_findings(layout, now_ms),
        *table_findings(layout),
    ]
    return VerifyReport(findings, audit.counts), is_live


def _marker_findings(layout: StoreLayout, *, is_live: bool) -> Iterator[Finding]:
    if layout.abort.exists() and not is_live:
        yield Finding(
            Severity.NOTE,
            "abort",
            layout.abort.name,
            0,
            0,
            "the last writer did not end in order",
            "the next opening recovers the store",
        )


def checkpoint_findings(layout: StoreLayout, now_ms: int) -> Iterator[Finding]:
    """Yield what is wrong with the checkpoint; a broken one only makes recovery go further back."""

    def finding(severity: Severity, offset: int, reason: str) -> Finding:
        return Finding(
            severity,
            "checkpoint",
            layout.checkpoint.name,
            offset,
            0,
            reason,
            "repair writes it anew; until then recovery goes back further",
        )

    try:
        content = layout.checkpoint.read_bytes()
    except FileNotFoundError:
        yield finding(Severity.NOTE, 0, "there is none")
        return
    if len(content) != CHECKPOINT_SIZE_BYTES:
        reason = f"length: expected {CHECKPOINT_SIZE_BYTES} bytes, found {len(content)}"
        yield finding(Severity.WARNING, 0, reason)
    try:
        times = decode_checkpoint(content)
    except FormatError as error:
        yield finding(Severity.WARNING, 0, str(error))
        return
    for number, (name, value) in enumerate(times._asdict().items()):
        if not 0 <= value <= now_ms + CLOCK_TOLERANCE_MS:
            yield finding(Severity.WARNING, 8 * number, f"{name}: {value} is no past time")


def table_findings(layout: StoreLayout) -> Iterator[Finding]:
    """Yield what is wrong with the JSON tables and their backups (K-D4)."""
    for name, table in TABLES.items():
        path = layout.config / name
        own = _table_fault(path, table)
        backup = _table_fault(backup_path(path), table)
        if own is None and backup is None:
            continue
        shown = path.relative_to(layout.root).as_posix()
        if own is None:
            if backup != _MISSING:
                action = "nothing to do: the table itself is good"
                yield _table_finding(Severity.WARNING, shown + ".bak", str(backup), action)
        elif backup is None:
            action = "the backup is read instead"
            yield _table_finding(Severity.WARNING, shown, own, action)
        elif own != _MISSING or backup != _MISSING:
            reason = f"{own}; backup: {backup}"
            action = "bring the table back; the broker starts without it"
            yield _table_finding(Severity.DAMAGE, shown, reason, action)


_MISSING: Final = "missing"


def _table_finding(severity: Severity, file: str, reason: str, action: str) -> Finding:
    return Finding(severity, "table", file, 0, 0, reason, action)


def _table_fault(path: Path, table: type) -> str | None:
    """Return why a table cannot be read, None when it can."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return _MISSING
    except OSError as error:
        return str(error.strerror)
    if not content.strip():
        return "empty"
    try:
        decode_table(content, table)
    except FormatError as error:
        return str(error)
    return None
