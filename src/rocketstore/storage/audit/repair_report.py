"""What a repair says it did, and what a 4.9 broker would drop or skip of the result.

A store that salvage repaired can hold more than 4.9 reads: it stops at the first damaged record of
the last three log files and cuts off all that follows, and it loses its place after a filler.

Law: nothing is written; the answer is about the files as they are, opened after a clean stop.
How derived: CommitLog.recoverNormally, DefaultMessageStore.getMessage of 4.9 (spec B16.2, B13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.storage.recovery.log_survey import chain_records
from rocketstore.storage.recovery.recovery_compatible import (
    find_compatible_end,
    start_after_clean_stop,
)
from rocketstore.verification.findings import Severity, camel_names
from rocketstore.verification.unbacked import UnbackedKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketstore.storage.audit.store_audit import StoreAudit
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
    """Outcome of `repair_store`.

    Attributes
    ----------
    findings
        What was wrong before the repair.
    actions
        What was done, or with ``dry_run`` would be done, in order.
    remaining
        What is still wrong afterwards: damage in the middle stays as it is. With ``dry_run``, which
        of the findings no repair mends.
    lost_for_broker
        What a 4.9 broker would drop or skip when it opens the store as it is now.
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
        lists = {name: [one.to_dict() for one in getattr(self, name)] for name in _LISTS}
        return camel_names(self._asdict() | lists | {"counts": self.counts.to_dict()})


_LISTS: Final = ("findings", "remaining", "lost_for_broker")

_SCANNED_ENTRIES: Final = 800
"""Entries that one get of 4.9 looks at, at most."""


def lost_for_broker(audit: StoreAudit, *, check_crc: bool = True) -> list[LostForBroker]:
    """Return what a 4.9 broker drops or skips of an audited store."""
    return [*_dropped(audit, check_crc=check_crc), *_skipped(audit)]


def _dropped(audit: StoreAudit, *, check_crc: bool) -> Iterator[LostForBroker]:
    end = audit.log_end
    files = [file for file in audit.log_files if file.base < max(end, 1)]
    found = find_compatible_end(files, start_after_clean_stop(len(files)), check_crc=check_crc)
    if not files or found.end >= end:
        return
    # A BLANK, which 4.9 writes again, does not count. 4.9 may stop in the middle of a chain.
    count = sum(
        int((columns.physical_offset >= found.end).sum())
        for chain in audit.log.kept
        if found.end < chain.stop and chain.start < end
        for file in files
        if file.holds(chain.start)
        for columns in chain_records(file, chain.start, chain.stop)
    )
    if count:
        reason = f"recovery ends at the first damage of the last three files: {found.reason}"
        yield LostForBroker("drop", found.end, end, count, reason)


def _skipped(audit: StoreAudit) -> Iterator[LostForBroker]:
    """Yield the entries that a get of 4.9 passes over after a filler.

    Reading the filler fails, and 4.9 then wants to go on in the next log file, which for the
    filler's physical offset 0 is the second: entries that point into the first one are passed over.
    """
    files = audit.log_files
    if not files or files[0].base:
        return
    for queue in audit.queues:
        for run in queue.unbacked:
            if run.kind is not UnbackedKind.FILLER or run.start <= queue.first_offset:
                continue
            entries = queue.read(run.stop, _SCANNED_ENTRIES)
            offsets = entries["physical_offset"]
            is_passed = (entries["record_size"] > 0) & (offsets > 0) & (offsets < files[0].size)
            passed = offsets[is_passed]
            if passed.size:
                reason = (
                    f"queue {queue.key}: a get of 4.9 that meets the fillers at {run.start} to "
                    f"{run.stop - 1} passes over what follows in the first log file"
                )
                first, last = int(passed.min()), int(passed.max())
                yield LostForBroker("skip", first, last, int(passed.size), reason)
