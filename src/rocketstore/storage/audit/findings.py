"""What verify and repair have to say, as values: findings, and the reports that hold them.

Law: a finding says what, where (file and offset), how bad, and what to do next; nothing here reads
a file or prints.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple


class Severity(Enum):
    """How bad a finding is, worst last."""

    NOTE = "note"
    """Worth knowing; nothing is wrong (a filler entry, an older process's pre-allocated file)."""

    WARNING = "warning"
    """A structure that can be rebuilt, or a doubt that was decided for keeping."""

    DAMAGE = "damage"
    """Bytes that were messages or belong to the store's own files are lost or disagree."""


class Finding(NamedTuple):
    """One thing that verify or repair saw.

    Attributes
    ----------
    kind
        Short name for programs, of the list in docs/guide/repair.md.
    file
        Path below the store's root, ``""`` for the store as a whole.
    offset, size
        Byte range inside `file`; a size of 0 means the place only.
    reason
        What was found against what was expected.
    action
        What to do, or what repair would do or did.
    """

    severity: Severity
    kind: str
    file: str
    offset: int
    size: int
    reason: str
    action: str

    def to_dict(self) -> dict[str, Any]:
        """Return the form that ``--output json`` prints."""
        return {
            "severity": self.severity.value,
            "kind": self.kind,
            "file": self.file,
            "offset": self.offset,
            "size": self.size,
            "reason": self.reason,
            "action": self.action,
        }


class StoreCounts(NamedTuple):
    """What a full pass over a store counted.

    Attributes
    ----------
    message_count
        Intact records of the log, prepared and rollback records included.
    message_bytes
        Their bytes.
    unwitnessed_bytes
        Bytes of intact records that no checksum covers: all but their bodies. 4.9 protects
        nothing else, so a change there is seen only where it breaks the format.
    damaged_bytes
        Bytes of the log, before its end, that are neither record nor blank.
    leftover_count
        Whole records left behind by an earlier, longer log; not messages.
    entry_count
        Queue entries that point at an intact record.
    hole_count
        Queue entries that keep the place of a lost record, fillers included.
    index_item_count
        Items of the index.
    """

    message_count: int = 0
    message_bytes: int = 0
    unwitnessed_bytes: int = 0
    damaged_bytes: int = 0
    leftover_count: int = 0
    queue_count: int = 0
    entry_count: int = 0
    hole_count: int = 0
    index_item_count: int = 0
    min_physical_offset: int = 0
    max_physical_offset: int = 0

    def to_dict(self) -> dict[str, int]:
        """Return the form that ``--output json`` prints."""
        return {_camel(name): value for name, value in self._asdict().items()}


class VerifyReport(NamedTuple):
    """Outcome of `verify.verify_store`."""

    findings: list[Finding]
    counts: StoreCounts

    @property
    def is_damaged(self) -> bool:
        """Whether damage is in the store now (exit code 4)."""
        return any(finding.severity is Severity.DAMAGE for finding in self.findings)

    @property
    def has_warnings(self) -> bool:
        """Whether something was found that is no mere note (exit code 1 or 4)."""
        return any(finding.severity is not Severity.NOTE for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the form that ``--output json`` prints."""
        return {
            "findings": [finding.to_dict() for finding in self.findings],
            "counts": self.counts.to_dict(),
        }


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
        return {_camel(name): value for name, value in self._asdict().items()}


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


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
