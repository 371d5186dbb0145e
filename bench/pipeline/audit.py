"""The audit: every record, queue entry and index item against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.pipeline import SPLIT_BYTES
from rocketstore.pipeline.jobs.audit.audit_job import audit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    def job() -> None:
        report = audit(spark, store, scratch / "report", max_split_bytes=SPLIT_BYTES)
        assert not report.findings, report.findings[0]

    return job
