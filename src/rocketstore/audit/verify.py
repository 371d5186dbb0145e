"""Verify a whole store: log, queues of every kind, index, small files.

``rocketstore store verify`` is this call. It works beside a writer and on a read-only mount: files
are read with ``pread``, no lock is taken, no byte written.

Law: findings are values; verify raises only where there is nothing to verify, or where the table of
topics names a kind that is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from rocketstore.arguments import checked
from rocketstore.audit.store_audit import audit_store, find_kinds, find_layout
from rocketstore.config import StoreConfig
from rocketstore.format.checkpoint import Checkpoint
from rocketstore.format.file_name import CHECKPOINT_FILE_NAME
from rocketstore.rules.batch_entries import queue_bounds
from rocketstore.rules.findings import Finding, Severity, VerifyReport, finding
from rocketstore.storage.files.disk import system_errors
from rocketstore.storage.files.lock import last_opening, may_have_writer
from rocketstore.storage.files.whole_file import changed_ns, small_files
from rocketstore.storage.layout import StoreLayout, root_of
from rocketstore.storage.queues.pread_queue import newer_in
from rocketstore.tables.positions import agreed_end
from rocketstore.units import system_clock_ms
from rocketstore.verification.small_files import (
    position_tables,
    positions,
    small_file_findings,
    standing_findings,
)

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.rules.table_files import Content

LOOKS: Final = 5
"""Most looks that writers may disturb."""


@system_errors("cannot verify the store")
@checked
def verify_store(
    path: str | Path,
    config: StoreConfig | None = None,
    *,
    progress: Callable[[int], None] | None = None,
    now_ms: int | None = None,
) -> VerifyReport:
    """Check everything in the store at `path` and report it; change nothing.

    The store may be in use: what its writer has not finished yet is not reported.

    Parameters
    ----------
    path
        Directory of the store.
    config
        Settings that the files do not say; sizes left unset are learnt.
    progress
        Called with bytes of the log that were surveyed.
    now_ms
        The time, by which impossible times are recognised; None asks the system.

    Raises
    ------
    NotAStoreError
        There is no CommitLog directory.
    ConfigError
        Slots and items of the index cannot be learnt from its files.
    """
    now_ms = system_clock_ms() if now_ms is None else now_ms
    root = root_of(path)
    look = partial(_look, root, StoreConfig.of(config), now_ms, progress)
    report, is_live = _undisturbed(root, look)
    if not is_live or not (report.is_damaged or report.has_warnings):
        return report
    # Files are not all read at one moment: what was written meanwhile looks torn. Damage is what is
    # seen twice.
    again, _ = _undisturbed(root, look)
    seen = {(found.kind, found.file, found.offset) for found in report.findings}
    findings = [
        found
        for found in again.findings
        if found.severity is Severity.NOTE or (found.kind, found.file, found.offset) in seen
    ]
    return VerifyReport(findings, again.counts)


def _undisturbed(
    root: Path, look: Callable[[], tuple[VerifyReport, bool]]
) -> tuple[VerifyReport, bool]:
    """Return what a look finds that knew of a writer, or during which none came."""
    for left in reversed(range(LOOKS)):
        before = last_opening(root)
        try:
            report, is_live = look()
        except FileNotFoundError:  # deleted since its directory was listed
            if not left:
                raise
            continue
        if is_live or not left or before == last_opening(root):
            break
    return report, is_live


def _look(
    path: Path, config: StoreConfig, now_ms: int, progress: Callable[[int], None] | None
) -> tuple[VerifyReport, bool]:
    """Return what one look finds, and whether a process writes to the store."""
    layout, sizes = find_layout(path, config)
    is_live = may_have_writer(layout.lock)
    # Read first: the queues, read later, then have every message that the offsets count.
    read = cache(small_files(layout))
    standing = list(positions(read, changed_ns(layout.config)))
    kinds = find_kinds(layout, read)
    was_aborted = layout.abort.exists() and not is_live
    killed = Checkpoint.of(read(CHECKPOINT_FILE_NAME)) if was_aborted else None
    audit = audit_store(
        layout, sizes, kinds, config, now_ms=now_ms, is_live=is_live, killed=killed,
        spares_unreadable=True, advance=progress,
    )  # fmt: skip
    bounds = {queue.key: (queue.first_record, queue.stop) for queue in audit.queues}
    for key, stored in audit.batches.entries.items():
        bounds[key] = queue_bounds(stored, audit.log.start)
    latest_ms = now_ms if is_live else audit.met.latest_ms
    findings = [
        *audit.findings(),
        *small_file_findings(read, now_ms, latest_ms, was_aborted=was_aborted),
        *newer_in(layout, read),
        *standing_findings(standing, bounds),
        *_of_another_log(layout, read),
    ]
    return VerifyReport(findings, audit.counts), is_live


def _of_another_log(layout: StoreLayout, read: Callable[[str], Content]) -> Iterator[Finding]:
    """Yield the tables that count what stood in another log than the one at hand."""
    for name, table in position_tables(read, changed_ns(layout.config)):
        agreed = agreed_end(layout, table.log_marks or ())
        if agreed is not None:
            reason = "saved with another log, or with this one before its end was lost or damaged; "
            reason += f"both agree up to physical offset {agreed}"
            yield finding("position-log", name, reason, physical_offset=agreed)
