"""What a repair would do to a store, decided from an audit before anything is written.

Law: a plan is a value. It says what is cut, which places of which queues get an entry, a filler or
zeros, and whether the index is made anew; queue offsets never move. An audit of the repaired store
gives an empty plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rocketstore.storage.audit.audit_findings import place_in_log
from rocketstore.storage.audit.index_audit import NEEDS_REBUILD
from rocketstore.storage.audit.queue_audit import UnbackedKind
from rocketstore.units import ByteRange, QueueKey

if TYPE_CHECKING:
    from rocketstore.storage.audit.queue_audit import AuditedQueue, Unbacked
    from rocketstore.storage.audit.store_audit import StoreAudit

_FILLED_KINDS = frozenset(
    {UnbackedKind.STALE, UnbackedKind.BEYOND, UnbackedKind.WRONG, UnbackedKind.UNWRITTEN}
)


class QueuePlan(NamedTuple):
    """What one queue gets; all numbers are queue offsets, ranges half-open.

    Attributes
    ----------
    write
        Places of records whose entry is missing or wrong.
    fill
        Places that get a filler, because no record belongs there.
    cut_from
        From here on the queue is made zero; None leaves its end alone.
    """

    key: QueueKey
    write: list[tuple[int, int]]
    fill: list[tuple[int, int]]
    cut_from: int | None

    def actions(self) -> list[str]:
        """Return what happens to the queue, in words."""
        said = []
        if self.write:
            said.append(f"write {_count(self.write)} entries ({_ranges(self.write)})")
        if self.fill:
            said.append(f"put fillers at {_count(self.fill)} places ({_ranges(self.fill)})")
        if self.cut_from is not None:
            said.append(f"end the queue at {self.cut_from}")
        return [f"queue {self.key}: {what}" for what in said]


class RepairPlan(NamedTuple):
    """What a repair does.

    Attributes
    ----------
    log_end
        The log ends here.
    tail
        Ranges behind the end that hold bytes: copied, then zeroed or moved away.
    leftovers
        Old records inside the log: copied and zeroed.
    """

    log_end: int
    tail: list[ByteRange]
    leftovers: list[ByteRange]
    queues: list[QueuePlan]
    rebuild_index: str | None
    remove_abort: bool
    places: dict[int, tuple[str, int]]

    @property
    def changes_content(self) -> bool:
        """Whether more is to do than to take the mark of an unclean stop away."""
        return bool(self.tail or self.leftovers or self.queues or self.rebuild_index)

    def actions(self) -> list[str]:
        """Return what happens, in order, in words."""
        said = []
        for what, ranges in (("behind the end", self.tail), ("of an earlier log", self.leftovers)):
            for place in ranges:
                file, offset = self.places[place.start]
                said.append(f"{file}: copy and zero {place.size} bytes {what} at {offset}")
        for queue in self.queues:
            said += queue.actions()
        if self.rebuild_index:
            said.append(f"index: make it anew ({self.rebuild_index})")
        if self.remove_abort:
            said.append("mark the store as cleanly stopped (checkpoint, abort)")
        return said


def plan_repair(audit: StoreAudit, *, has_abort: bool, is_read_only: bool = False) -> RepairPlan:
    """Decide what a store needs.

    Parameters
    ----------
    audit
        Of the store as it is, with the log's end that the policy wants.
    has_abort
        Whether the last writer did not end in order.
    is_read_only
        Log files of a read-only directory are never cut.
    """
    tail = [] if is_read_only else _tail(audit)
    end = audit.log_end
    leftovers = [
        ByteRange(chain.start, chain.stop)
        for chain in audit.survey.leftovers
        if chain.record_count and chain.start < end
    ]
    plans = [plan_queue(queue, runs) for queue, runs in audit.unbacked.items()]
    needed = [trouble for trouble in audit.index_troubles if trouble.kind in NEEDS_REBUILD]
    reason = needed[0].reason if needed else None
    if needed and len(needed) > 1:
        reason = f"{reason}; and {len(needed) - 1} more"
    return RepairPlan(
        end,
        tail,
        leftovers,
        [plan for plan in plans if plan is not None],
        reason,
        has_abort,
        {place.start: place_in_log(audit, place.start) for place in tail + leftovers},
    )


def _tail(audit: StoreAudit) -> list[ByteRange]:
    """Return the ranges behind the end that hold anything."""
    end = audit.log_end
    ranges = []
    for file in audit.survey.files:
        stop = file.base
        for damage in file.damage:
            stop = max(stop, damage.range.stop)
        for chain in file.chains:
            stop = max(stop, chain.stop)
        start = max(end, file.base)
        if stop > start:
            ranges.append(ByteRange(start, stop))
    return ranges


def plan_queue(queue: AuditedQueue, runs: list[Unbacked]) -> QueuePlan | None:
    """Decide what one queue needs; None when it is as it should be."""
    write = list(queue.truly_missing())
    missing = _Ranges(write)
    fill: list[tuple[int, int]] = []
    cut_from = None
    for run in runs:
        if run.kind not in _FILLED_KINDS:
            continue
        if run.is_tail:
            cut_from = run.start if cut_from is None else min(cut_from, run.start)
        else:
            fill += missing.left_of(run.start, run.stop)
    if not (write or fill or cut_from is not None):
        return None
    return QueuePlan(queue.key, write, fill, cut_from)


class _Ranges:
    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        self._ranges = ranges

    def left_of(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the parts of [start, stop) that the ranges leave over."""
        left = []
        for begin, end in self._ranges:
            if end <= start or begin >= stop:
                continue
            if begin > start:
                left.append((start, begin))
            start = max(start, end)
        if start < stop:
            left.append((start, stop))
        return left


def _count(ranges: list[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in ranges)


def _ranges(ranges: list[tuple[int, int]], limit: int = 4) -> str:
    shown = ", ".join(
        f"{start}" if stop == start + 1 else f"{start} to {stop - 1}"
        for start, stop in ranges[:limit]
    )
    return shown if len(ranges) <= limit else f"{shown}, …"
