"""The proof that queues and index are those of the log: the audit of them, with what explains it.

A store may differ from what dispatch would write today without anything being wrong: entries of
records that were deleted, what Java's defects leave, settings that were others then. Each such
reason has a name and is counted; what has none is a finding.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.format.markers import LOCK_FILE_NAME
from rocketstore.pipeline.files import files_at, is_remote
from rocketstore.pipeline.jobs.audit.audit_job import audit
from rocketstore.pipeline.jobs.audit.audit_judgement import REASONS
from rocketstore.pipeline.options import DEFAULT_SPLIT_BYTES
from rocketstore.verification.findings import Finding, Severity, StoreCounts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rocketstore.config import StoreConfig

_LOST: Final = frozenset({"queue-hole", "queue-kept"})
"""Places of records that are lost: the log's fault."""


class ProofReport(NamedTuple):
    """What was compared, and every difference.

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
    findings: list[Finding]
    explained: dict[str, int]
    damage: list[Finding]
    counts: StoreCounts

    @property
    def is_damaged(self) -> bool:
        """Whether records of the log are lost."""
        return bool(self.damage)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "store": self.store,
            "findings": [one.to_dict() for one in self.findings],
            "explained": [
                {"reason": reason, "count": count, "explanation": REASONS[reason]}
                for reason, count in self.explained.items()
            ],
            "damage": [one.to_dict() for one in self.damage],
            "counts": self.counts.to_dict(),
        }


def prove_rebuild(
    spark: SparkSession | None,
    store: str | Path,
    *,
    config: StoreConfig | None = None,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
) -> ProofReport:
    """Compare a store's queues and index with what `rebuild` would make of its CommitLog.

    Parameters
    ----------
    spark, store, config, max_split_bytes
        As for `rebuild`.

    Returns
    -------
    ProofReport
        Every difference, with its reason where one is known.

    Raises
    ------
    StoreLockedError
        A writer has the store open.
    NotAStoreError
        There is no CommitLog directory.
    """
    _refuse_in_use(str(store))
    report = audit(spark, store, config=config, max_split_bytes=max_split_bytes)
    wrong = [one for one in report.findings if one.severity is not Severity.NOTE]
    about = [one for one in wrong if one.kind.startswith(("queue", "index"))]
    return ProofReport(
        report.store,
        [one for one in about if one.kind not in _LOST],
        report.explained,
        [one for one in wrong if one.kind in {"log-damage", "log-hole"}],
        report.counts,
    )


def _refuse_in_use(location: str) -> None:
    from rocketstore.storage.files.lock import refuse_writer  # noqa: PLC0415 - drivers only

    if not is_remote(location):
        _, root = files_at(location)
        refuse_writer(Path(root, LOCK_FILE_NAME), hint="stop that writer; an audit needs no stop")
