"""The audit of small stores in this process, on frames that stand for Spark's."""

from pathlib import Path
from typing import Any

from rocketstore.config import StoreConfig
from rocketstore.pipeline.jobs.audit.audit_job import AuditReport, audit, prove_rebuild
from support.arrow_frames import Frames


def audited(store: Path | str, config: StoreConfig | None = None, **options: Any) -> AuditReport:
    return audit(Frames(), store, config=config, **options)


def proved(store: Path | str, config: StoreConfig | None = None, **options: Any) -> AuditReport:
    return prove_rebuild(Frames(), store, config=config, **options)


def keys(findings: Any) -> set[tuple[Any, ...]]:
    """What audit and verify both say about a finding."""
    return {(f.severity.value, f.kind, f.file, f.offset, f.size, f.reason) for f in findings}


def kinds(findings: Any) -> list[str]:
    return [finding.kind for finding in findings]
