"""Verify and repair a whole store: what `storage` knows of it, and its batch queues.

``rocketstore store verify`` and ``store repair`` are these two calls.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rocketstore.batch_queue import checking
from rocketstore.config import StoreConfig
from rocketstore.storage.audit import repair, verify
from rocketstore.storage.files.disk import Disk
from rocketstore.verification.findings import VerifyReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.storage.audit.repair_plan import RepairReport


def verify_store(
    path: str | Path,
    config: StoreConfig | None = None,
    *,
    progress: Callable[[int], None] | None = None,
    now_ms: int | None = None,
) -> VerifyReport:
    """Check everything in the store at `path` and report it; change nothing.

    The store may be in use: what a writer has not finished is not reported.

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
    StoreDamagedError
        A topic has queues of the wrong kind.
    """
    path, config, now_ms = Path(path), config or StoreConfig(), _now(now_ms)
    report = verify.verify_store(path, config, progress=progress, now_ms=now_ms)
    batches = checking.check_batch_queues(path, config, now_ms=now_ms)
    return VerifyReport(report.findings + batches, report.counts)


def repair_store(
    path: str | Path,
    config: StoreConfig | None = None,
    *,
    policy: Literal["salvage", "compatible"] = "salvage",
    dry_run: bool = False,
    now_ms: int | None = None,
    disk: Disk | None = None,
) -> RepairReport:
    """Repair the store at `path`; what is cut off is kept in ``repair/<time>/``.

    Parameters
    ----------
    path
        Directory of the store.
    config
        Settings that the files do not tell.
    policy
        ``salvage`` keeps every intact record, ``compatible`` ends the log where 4.9.3 does.
    dry_run
        Write nothing, not even the lock file.
    now_ms
        The time, which names the directory of copies; None asks the system.
    disk
        The calls that make things durable; a test passes its own.

    Raises
    ------
    StoreLockedError
        A writer has the store.
    NotAStoreError
        There is no CommitLog directory.
    StoreDamagedError
        There is no CommitLog file although queues have entries (K-R10), or a topic has queues of
        the wrong kind.
    """
    path, config, now_ms = Path(path), config or StoreConfig(), _now(now_ms)
    disk = disk or Disk()
    report = repair.repair_store(
        path, policy=policy, dry_run=dry_run, config=config, now_ms=now_ms, disk=disk
    )
    found, done = checking.repair_batch_queues(
        path, config, now_ms=now_ms, dry_run=dry_run, disk=disk
    )
    return report._replace(findings=report.findings + found, actions=report.actions + done)


def _now(now_ms: int | None) -> int:
    return time.time_ns() // 1_000_000 if now_ms is None else now_ms
