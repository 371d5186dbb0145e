"""What a repair would do to a store, decided from an audit before anything is written.

Law: a plan is a value. It says what is cut, which places of which queues get an entry, a filler or
zeros, and whether the index is built again; queue offsets never move. An audit of the repaired
store gives an empty plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rocketstore.format.file_name import is_directory_name
from rocketstore.units import ByteRange, QueueKey
from rocketstore.verification import runs
from rocketstore.verification.findings import INDEX_REBUILT
from rocketstore.verification.unbacked import UnbackedKind

if TYPE_CHECKING:
    from rocketstore.storage.audit.queue_audit import AuditedQueue
    from rocketstore.storage.audit.store_audit import StoreAudit
    from rocketstore.verification.unbacked import Unbacked

_GIVEN_KINDS = frozenset({UnbackedKind.KEPT, UnbackedKind.STALE, UnbackedKind.BEYOND})
"""At a queue's end these numbers were given out, to records that are lost."""

_FILLED_KINDS = _GIVEN_KINDS | {UnbackedKind.WRONG, UnbackedKind.UNWRITTEN}


class QueuePlan(NamedTuple):
    """What one queue gets; all numbers are queue offsets, ranges half-open.

    Attributes
    ----------
    write
        Places of records whose entry is missing or wrong.
    fill
        Places that get a filler, because no record belongs there.
    keep
        Behind the last entry: places that were given out and stay so.
    cut_from
        From here on the queue is made zero; None leaves its end alone.
    """

    key: QueueKey
    write: list[tuple[int, int]]
    fill: list[tuple[int, int]]
    keep: tuple[int, int] | None
    cut_from: int | None

    def actions(self) -> list[str]:
        """Return what happens to the queue, in words."""
        said = []
        if self.write:
            said.append(f"write {_count(self.write)} entries ({_ranges(self.write)})")
        if self.fill:
            said.append(f"put fillers at {_count(self.fill)} places ({_ranges(self.fill)})")
        if self.keep is not None:
            said.append(f"keep {_count([self.keep])} places after its end ({_ranges([self.keep])})")
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
        Ranges after the end that hold bytes: copied, then zeroed or moved away.
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
        for what, ranges in (("after the end", self.tail), ("of an earlier log", self.leftovers)):
            for place in ranges:
                file, offset = self.places[place.start]
                said.append(f"{file}: copy and zero {place.size} bytes {what} at {offset}")
        for queue in self.queues:
            said += queue.actions()
        if self.rebuild_index:
            said.append(f"index: build it again ({self.rebuild_index})")
        if self.remove_abort:
            said.append("mark the store as cleanly stopped (checkpoint, abort)")
        return said


def plan_repair(
    audit: StoreAudit,
    *,
    has_abort: bool,
    is_read_only: bool = False,
    keeps_places: bool = True,
) -> RepairPlan:
    """Decide what a store needs.

    Parameters
    ----------
    audit
        Of the store as it is, with the log's end that the policy wants.
    has_abort
        Whether the last writer did not end in order.
    is_read_only
        Log files of a read-only directory are never cut.
    keeps_places
        Whether numbers that were given out after the end stay given; 4.9 gives them again.
    """
    tail = [] if is_read_only else _tail(audit)
    end = audit.log_end
    leftovers = [
        ByteRange(chain.start, chain.stop) for chain in audit.log.leftovers if chain.start < end
    ]
    plans = [
        plan_queue(queue, keeps_places=keeps_places)
        for queue in audit.queues
        if is_directory_name(queue.topic)
    ]
    needed = [found for found in audit.index_findings if found.kind in INDEX_REBUILT]
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
        {place.start: audit.place_in_log(place.start) for place in tail + leftovers},
    )


def _tail(audit: StoreAudit) -> list[ByteRange]:
    """Return the ranges after the end that hold anything."""
    end, view = audit.log_end, audit.log
    extents = [(one.start, one.stop) for one in view.damage]
    extents += [(chain.start, chain.stop) for chain in view.kept]
    extents += [(chain.start, chain.stop) for chain in view.leftovers]
    after = [(start, stop) for start, stop in extents if stop > end]
    ranges = []
    for file in audit.log_files:
        inside = [stop for start, stop in after if file.base <= start < file.base + file.size]
        if inside:
            ranges.append(ByteRange(max(end, file.base), max(inside)))
    return ranges


def plan_queue(queue: AuditedQueue, *, keeps_places: bool = True) -> QueuePlan | None:
    """Decide what one queue needs; None when it is as it should be."""
    write = runs.pairs(queue.truly_missing)
    fill: list[tuple[int, int]] = []
    keep, cut_from = _end_of_queue(
        [run for run in queue.unbacked if run.is_tail], keeps_places=keeps_places
    )
    for run in queue.unbacked:
        if run.kind in _FILLED_KINDS and not run.is_tail:
            fill += runs.pairs(runs.gaps(queue.truly_missing, run.start, run.stop))
    if not (write or fill or keep is not None or cut_from is not None):
        return None
    return QueuePlan(queue.key, write, fill, keep, cut_from)


def _end_of_queue(
    tail: list[Unbacked], *, keeps_places: bool
) -> tuple[tuple[int, int] | None, int | None]:
    """Return which places after the last entry are kept, and where zeros begin."""
    if not tail:
        return None, None
    start = tail[0].start
    kept_stop = start
    if keeps_places:
        kept_stop = max((run.stop for run in tail if run.kind in _GIVEN_KINDS), default=start)
    is_kept = all(run.kind is UnbackedKind.KEPT for run in tail if run.start < kept_stop)
    keep = None if is_kept else (start, kept_stop)
    return keep, kept_stop if kept_stop < tail[-1].stop else None


def _count(ranges: list[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in ranges)


def _ranges(ranges: list[tuple[int, int]], limit: int = 4) -> str:
    shown = ", ".join(
        f"{start}" if stop == start + 1 else f"{start} to {stop - 1}"
        for start, stop in ranges[:limit]
    )
    return shown if len(ranges) <= limit else f"{shown}, …"
