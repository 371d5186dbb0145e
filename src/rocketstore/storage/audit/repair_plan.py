"""What a repair would do to a store, decided from an audit before anything is written.

Law: a plan is a value. It says which files get another length or place, what is cut, which places
of which queues get an entry, a filler or zeros, and whether the index is built again; queue offsets
never move. An audit of the repaired store gives an empty plan.

4.9 does not start with a file of a wrong length, and older versions silently left out that file and
all after it (K-R11). A short file grows by zeros; a long one is replaced by its own beginning; a
file that belongs nowhere is moved into ``repair/``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rocketstore.format.file_name import is_directory_name
from rocketstore.units import ByteRange, QueueKey
from rocketstore.verification import runs
from rocketstore.verification.file_rules import FileProblem
from rocketstore.verification.findings import INDEX_REBUILT
from rocketstore.verification.unbacked import UnbackedKind

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rocketstore.storage.audit.queue_audit import AuditedQueue
    from rocketstore.storage.audit.store_audit import StoreAudit
    from rocketstore.verification.file_rules import FileFinding
    from rocketstore.verification.unbacked import Unbacked

_LENGTHS = frozenset({FileProblem.EMPTY, FileProblem.WRONG_SIZE})

_GIVEN_KINDS = frozenset({UnbackedKind.KEPT, UnbackedKind.STALE, UnbackedKind.BEYOND})
"""At a queue's end these numbers were given out, to records that are lost."""

_FILLED_KINDS = _GIVEN_KINDS | {UnbackedKind.WRONG, UnbackedKind.UNWRITTEN}


class FileFix(NamedTuple):
    """A file that should have another length (`size`), or that belongs nowhere (`moves`)."""

    path: Path
    size: int
    moves: bool

    @property
    def grows(self) -> bool:
        """Whether the file is only too short."""
        return self.path.stat().st_size < self.size

    def action(self, shown: str) -> str:
        """Return what is done, in words."""
        if self.moves:
            return f"{shown}: move it to repair/"
        if self.grows:
            return f"{shown}: let it grow to {self.size} bytes with zeros"
        return f"{shown}: keep its first {self.size} bytes, move the original to repair/"


class QueuePlan(NamedTuple):
    """What one queue gets; all numbers are queue offsets, ranges half-open.

    Attributes
    ----------
    write
        Places of records whose entry is missing or wrong.
    fill
        Places that get a filler, because no record belongs there.
    keep
        After the last entry: places that were given out and stay so.
    cut_from
        From here on the queue is made zero; None leaves its end alone.
    """

    key: QueueKey
    write: list[tuple[int, int]]
    fill: list[tuple[int, int]]
    keep: list[tuple[int, int]]
    cut_from: int | None

    def actions(self) -> list[str]:
        """Return what happens to the queue, in words."""
        said = []
        if self.write:
            said.append(f"write {_count(self.write)} entries ({_ranges(self.write)})")
        if self.fill:
            said.append(f"put fillers at {_count(self.fill)} places ({_ranges(self.fill)})")
        if self.keep:
            said.append(f"keep {_count(self.keep)} places after its end ({_ranges(self.keep)})")
        if self.cut_from is not None:
            said.append(f"end the queue at {self.cut_from}")
        return [f"queue {self.key}: {what}" for what in said]


class RepairPlan(NamedTuple):
    """What a repair does, besides ending the log at `log_end`.

    `tail` are ranges after the end that hold bytes, `leftovers` old records inside the log: both
    are copied and zeroed, or moved away. `actions` says everything in words.
    """

    log_end: int
    files: list[FileFix]
    tail: list[ByteRange]
    leftovers: list[ByteRange]
    queues: list[QueuePlan]
    rebuilds_index: bool
    remove_abort: bool
    actions: list[str]

    @property
    def changes_content(self) -> bool:
        """Whether more is to do than to take the mark of an unclean stop away."""
        return bool(self.files or self.tail or self.leftovers or self.queues or self.rebuilds_index)


def plan_repair(audit: StoreAudit, *, has_abort: bool, keeps_places: bool) -> RepairPlan:
    """Decide what a store needs.

    Parameters
    ----------
    audit
        Of the store as it is, with the log's end that the policy wants.
    has_abort
        Whether the last writer did not end in order.
    keeps_places
        Whether numbers that were given out after the end stay given; 4.9 gives them again.
    """
    files, tail, end = _file_fixes(audit), _tail(audit), audit.log_end
    leftovers = [
        ByteRange(chain.start, chain.stop) for chain in audit.log.leftovers if chain.start < end
    ]
    plans = [
        _plan_queue(queue, keeps_places=keeps_places)
        for queue in audit.queues
        if is_directory_name(queue.topic)
    ]
    queues = [plan for plan in plans if plan is not None]
    needed = [found for found in audit.index_findings if found.kind in INDEX_REBUILT]
    said = [fix.action(audit.below_root(fix.path)) for fix in files]
    for what, ranges in (("after the end", tail), ("of an earlier log", leftovers)):
        for place in ranges:
            file, offset = audit.place_in_log(place.start)
            said.append(f"{file}: copy and zero {place.size} bytes {what} at {offset}")
    for queue in queues:
        said += queue.actions()
    if needed:
        more = f"; and {len(needed) - 1} more" if len(needed) > 1 else ""
        said.append(f"index: build it again ({needed[0].reason}{more})")
    if has_abort:
        said.append("mark the store as cleanly stopped (checkpoint, abort)")
    return RepairPlan(end, files, tail, leftovers, queues, bool(needed), has_abort, said)


def _file_fixes(audit: StoreAudit) -> list[FileFix]:
    """Return what the files of log and queues need.

    An empty file in front of all others of the log holds nothing and is moved away: as zeros it
    would be where 4.9 begins to look, and where it ends.
    """
    sizes = audit.places.sizes
    empty = {one.path for one in audit.log_findings if one.problem is FileProblem.EMPTY}
    begin = audit.log_files[0].base if audit.log_files else 0
    fixes = [
        fix._replace(moves=True) if fix.path in empty and int(fix.path.name) < begin else fix
        for fix in _fixes(audit.log_findings, sizes.commit_log_file_bytes)
        if fix.path.parent not in audit.places.layout.read_only_directories
    ]
    for queue in audit.queues:
        fixes += _fixes(queue.files.findings, sizes.consume_queue_file_bytes)
    return fixes


def _fixes(findings: Iterable[FileFinding[Path]], size: int) -> list[FileFix]:
    """Return what the files of one directory need; a missing file cannot be helped."""
    return [
        FileFix(found.path, size, found.problem not in _LENGTHS)
        for found in findings
        if found.problem is not FileProblem.MISSING and found.path.is_file()
    ]


def _tail(audit: StoreAudit) -> list[ByteRange]:
    """Return the ranges after the end that hold anything."""
    end, view = audit.log_end, audit.log
    extents = [(one.start, one.stop) for one in view.damage]
    extents += [(one.start, one.stop) for one in view.kept]
    extents += [(one.start, one.stop) for one in view.leftovers]
    ranges = []
    for file in audit.log_files:
        stops = [stop for start, stop in extents if stop > end and file.holds(start)]
        if stops:
            ranges.append(ByteRange(max(end, file.base), max(stops)))
    return ranges


def _plan_queue(queue: AuditedQueue, *, keeps_places: bool) -> QueuePlan | None:
    """Decide what one queue needs; None when it is as it should be."""
    missing = queue.truly_missing
    fill: list[tuple[int, int]] = []
    for run in queue.unbacked:
        if run.kind in _FILLED_KINDS and not run.is_tail:
            fill += runs.pairs(runs.gaps(missing, run.start, run.stop))
    tail = [run for run in queue.unbacked if run.is_tail]
    keep, cut_from = _end_of_queue(tail, keeps_places=keeps_places) if tail else ([], None)
    plan = QueuePlan(queue.key, runs.pairs(missing), fill, keep, cut_from)
    return plan if plan.actions() else None


def _end_of_queue(
    tail: list[Unbacked], *, keeps_places: bool
) -> tuple[list[tuple[int, int]], int | None]:
    """Return which places after the last entry are kept, and where zeros begin."""
    start = stop = tail[0].start
    if keeps_places:
        stop = max((run.stop for run in tail if run.kind in _GIVEN_KINDS), default=start)
    is_kept = all(run.kind is UnbackedKind.KEPT for run in tail if run.start < stop)
    return [] if is_kept else [(start, stop)], stop if stop < tail[-1].stop else None


def _count(ranges: list[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in ranges)


def _ranges(ranges: list[tuple[int, int]], limit: int = 4) -> str:
    shown = ", ".join(
        f"{start}" if stop == start + 1 else f"{start} to {stop - 1}"
        for start, stop in ranges[:limit]
    )
    return shown if len(ranges) <= limit else f"{shown}, …"
