"""What a repair did, or would do, as a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rocketstore.verification.findings import Severity, camel_names

if TYPE_CHECKING:
    from rocketstore.verification.findings import Finding, StoreCounts


class LostForBroker(NamedTuple):
    """Records that a 4.9 broker would not serve after opening the store as it is now.

    Attributes
    ----------
    verb
        ``drop``: cut off by its recovery; ``skip``: passed over by its dispatch.
    start, stop
        Physical offsets.
    """

    verb: str
    start: int
    stop: int
    record_count: int
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return the form that ``--output json`` prints."""
        return camel_names(self._asdict())


class RepairReport(NamedTuple):
    """Outcome of `repair.repair_store`.

    Attributes
    ----------
    findings
        What was wrong before the repair.
    actions
        What was done, or with ``dry_run`` would be done, in order.
    remaining
        What is still wrong afterwards: damage in the middle stays as it is.
    lost_for_broker
        What a 4.9 broker would drop or skip when it opens the result.
    evidence
        Directory below the root that holds copies of what was cut; None when nothing was.
    """

    policy: str
    dry_run: bool
    findings: list[Finding]
    actions: list[str]
    remaining: list[Finding]
    lost_for_broker: list[LostForBroker]
    counts: StoreCounts
    evidence: str | None

    @property
    def is_changed(self) -> bool:
        """Whether something was changed, or with ``dry_run`` would be."""
        return bool(self.actions)

    @property
    def is_damaged(self) -> bool:
        """Whether damage is in the store after the repair (exit code 4)."""
        return any(finding.severity is Severity.DAMAGE for finding in self.remaining)

    def to_dict(self) -> dict[str, Any]:
        """Return the form that ``--output json`` prints."""
        return {
            "policy": self.policy,
            "dryRun": self.dry_run,
            "findings": [finding.to_dict() for finding in self.findings],
            "actions": self.actions,
            "remaining": [finding.to_dict() for finding in self.remaining],
            "lostForBroker": [lost.to_dict() for lost in self.lost_for_broker],
            "counts": self.counts.to_dict(),
            "evidence": self.evidence,
        }
