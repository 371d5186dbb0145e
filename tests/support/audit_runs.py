"""Audit a store without Spark: tasks are pickled as for a worker, and done in a row."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from rocketstore.config import StoreConfig
from rocketstore.pipeline.jobs.audit import facts
from rocketstore.pipeline.jobs.audit.job import CheckTask, audit_with, check
from rocketstore.pipeline.jobs.audit.places import find_places

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rocketstore.pipeline.jobs.audit.report import AuditReport

ONLY_HERE = frozenset({"checkpoint-ahead", "queue-gap", "consumer-ahead", "consumer-behind"})
"""Kinds that `store verify` does not have."""

FORGED = frozenset({"queue-impossible", "queue-missing"})
"""What `store verify` and the audit call a record whose queue offset cannot be."""

OUT_OF_ORDER = frozenset({"index-wrong", "index-stale", "index-missing"})
"""Kinds that only `store verify` has where an index is out of order."""


def run_here(tasks: Sequence[CheckTask]) -> Iterator[facts.Facts]:
    for task in pickle.loads(pickle.dumps(list(tasks))):  # noqa: S301 - our own
        for one in check(task):
            yield facts.decode(facts.encode(one))


def audit_here(store: Path | str, config: StoreConfig | None = None, **options: Any) -> AuditReport:
    config = config or StoreConfig()
    return audit_with(run_here, find_places(str(store), config), config, **options)


def keys(findings: Any) -> set[tuple[Any, ...]]:
    """What audit and verify both say about a finding."""
    return {(f.severity.value, f.kind, f.file, f.offset, f.size, f.reason) for f in findings}


def kinds(findings: Any) -> list[str]:
    return [finding.kind for finding in findings]
