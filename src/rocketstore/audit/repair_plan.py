"""What a repair would do to a store, also in words, and what a 4.9 broker would lose after it.

Law: all of it is decided from an audit, and nothing is written; queue offsets never move. An audit
of the repaired store gives an empty plan.

4.9 does not start with a file of a wrong length (K-R11). A store that salvage repaired can hold
more than it reads: it ends at the first damaged record of the last three log files, and loses its
place after a filler.

How derived: CommitLog.recoverNormally, DefaultMessageStore.getMessage of 4.9 (spec B16.2, B13).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.format.file_name import is_directory_name
from rocketstore.rules import runs
from rocketstore.rules.files import FileFinding, FileProblem
from rocketstore.rules.findings import INDEX_REBUILT, Finding, Reported, Severity, StoreCounts
from rocketstore.rules.unbacked import GIVEN_KINDS, TAIL_KINDS, Unbacked, UnbackedKind, merged
from rocketstore.scan.queue_search import padded
from rocketstore.storage.recovery.log_survey import chain_records
from rocketstore.storage.recovery.recovery_compatible import compatible_end
from rocketstore.units import counted
from rocketstore.verification.batch_rules import UNREACHABLE
from rocketstore.verification.queue_findings import usual_extension_size

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.audit.store_audit import AuditedQueue, StoreAudit
    from rocketstore.config import StoreConfig
    from rocketstore.rules.runs import Runs

_LENGTHS: Final = frozenset({FileProblem.EMPTY, FileProblem.WRONG_SIZE})

_SCANNED_ENTRIES: Final = 800
"""Entries that one get of 4.9 looks at, at most."""


class FileFix(NamedTuple):
    """A file that should have another length (`size`), or that does not belong there (`moves`)."""

    path: Path
    size: int
    moves: bool

    @property
    def grows(self) -> bool:
        """Whether the file is only too short."""
        return self.path.stat().st_size < self.size

    def action(self, shown: str) -> str:
        """Return the step in words."""
        if self.moves:
            return f"{shown}: move it to repair/"
        if self.grows:
            return f"{shown}: let it grow to {self.size} bytes with zeros"
        return f"{shown}: keep its first {self.size} bytes, move the original to repair/"


class QueuePlan(NamedTuple):
    """Changes to one queue; all numbers are queue offsets, ranges half-open.

    `write` are places of records whose entry is missing or wrong, `fill` those that get a filler,
    because no record belongs there, `keep` those after the last entry that were given out and stay
    so. From `cut_from` on the queue is made zero; None leaves its end alone.
    """

    queue: AuditedQueue
    write: list[tuple[int, int]]
    fill: list[tuple[int, int]]
    keep: list[tuple[int, int]]
    cut_from: int | None

    def actions(self) -> list[str]:
        """Return the changes of the queue in words."""
        said = [
            what.format(counted(sum(past - at for at, past in ranges), *noun), _ranges(ranges))
            for ranges, what, *noun in (
                (self.write, "write {} ({})", "entry", "entries"),
                (self.fill, "put fillers at {} ({})", "place"),
                (self.keep, "keep {} after its end ({})", "place"),
            )
            if ranges
        ]
        if self.cut_from is not None:
            said.append(f"end the queue at {self.cut_from}")
        return [f"queue {self.queue.key}: {what}" for what in said]

    def outcome(self, config: StoreConfig) -> AuditedQueue:
        """Return the queue as an audit sees it after the repair."""
        queue, after, written = self.queue, copy.copy(self.queue), runs.joined([self.write])
        if config.enable_multi_dispatch:  # recovery writes these too
            written = runs.joined([written, queue.extra])
        after.backed = runs.joined([queue.backed, written])
        after.missing = runs.without(queue.missing, queue.truly_missing)
        kept = [run for run in queue.unbacked if run.kind not in TAIL_KINDS]
        if not self.keep:
            stop = queue.stop if self.cut_from is None else self.cut_from
            kept += [run for run in queue.unbacked if run.is_tail and run.stop <= stop]
        left = [
            run._replace(start=start, stop=stop)
            for run in kept
            for start, stop in runs.pairs(runs.without(_places([run]), written))
        ]
        skipped = runs.without(queue.skipped, runs.joined([_places(queue.unbacked), written]))
        fill = [*self.fill, *runs.pairs(skipped)]
        left += [Unbacked(UnbackedKind.FILLER, *places) for places in fill]
        left += [Unbacked(UnbackedKind.KEPT, *places, is_tail=True) for places in self.keep]
        after.unbacked = merged(sorted(left, key=lambda run: run.start))
        return after


class RepairPlan(NamedTuple):
    """What a repair does besides ending the log and clearing it of old records.

    The queues of `batch_topics` are built again. `actions` says everything in words; without any
    the content stays as it is.
    """

    files: list[FileFix]
    misplaced: list[str]
    queues: list[QueuePlan]
    batch_topics: list[str]
    rebuilds_index: bool
    actions: list[str]

    def outcome(self, audit: StoreAudit, config: StoreConfig) -> StoreAudit:
        """Return the audit with its queues as they are after the repair."""
        after = {plan.queue.key: plan.outcome(config) for plan in self.queues}
        return replace(audit, queues=[after.get(queue.key, queue) for queue in audit.queues])


def plan_repair(audit: StoreAudit, *, keeps_places: bool) -> RepairPlan:
    """Decide what a store needs; the audit has the log's end that the policy wants.

    `keeps_places`: numbers that were given out after the end stay given; 4.9 gives them again.
    """
    end = audit.log.end
    own = [one for one in audit.queues if is_directory_name(one.topic) and not _is_copy(one)]
    plans = [_plan_queue(queue, keeps_places=keeps_places) for queue in own]
    queues = [plan for plan in plans if plan.actions()]
    files = [*_file_fixes(audit), *_in_the_way(audit, queues)]
    needed = [found for found in audit.index_findings if found.kind in INDEX_REBUILT]
    said = [fix.action(audit.below_root(fix.path)) for fix in files]
    misplaced = [*audit.kinds.misplaced, *(one.directory for one in audit.queues if _is_copy(one))]
    said += [f"{name}: move it to repair/" for name in misplaced]
    leftovers = [(one.start, one.stop) for one in audit.log.leftovers if one.start < end]
    for what, ranges in (("after the end", _tail(audit)), ("of an earlier log", leftovers)):
        for start, stop in ranges:
            file, offset = audit.file_position(start)
            said.append(f"{file}: copy and zero {stop - start} bytes {what} at {offset}")
    for queue in queues:
        said += queue.actions()
    # Where the table does not say which topics these are, only the table can be repaired.
    wrong = () if audit.kinds.unsaid else audit.batches.findings(audit.log.start, audit.writer)
    batch_topics = sorted({one.topic for one in wrong if one.topic and one.kind != UNREACHABLE})
    said += [f"batch queues of {topic}: build them again from the log" for topic in batch_topics]
    if needed:
        more = f"; and {len(needed) - 1} more" if len(needed) > 1 else ""
        said.append(f"index: build it again ({needed[0].reason}{more})")
    return RepairPlan(files, misplaced, queues, batch_topics, bool(needed), said)


def _is_copy(queue: AuditedQueue) -> bool:
    """Whether a queue has entries of other queues' records only, as a copied directory has."""
    is_wrong = {run.kind for run in queue.unbacked} == {UnbackedKind.WRONG}
    return is_wrong and not (queue.record_count or len(queue.backed) or queue.first_offset)


def _file_fixes(audit: StoreAudit) -> list[FileFix]:
    # An empty first file of the log is moved away: as zeros it would be where 4.9 begins and ends.
    empty = {one.path for one in audit.log_findings if one.problem is FileProblem.EMPTY}
    begin = audit.log_files[0].base if audit.log_files else 0
    fixes = [
        fix._replace(moves=True) if fix.path in empty and int(fix.path.name) < begin else fix
        for fix in _fixes(audit.log_findings, audit.sizes.commit_log_file_bytes)
        if fix.path.parent not in audit.layout.read_only_directories
    ]
    for queue in audit.queues:
        fixes += _fixes(queue.files.findings, audit.sizes.consume_queue_file_bytes)
    extensions = audit.extensions().values()
    usual = usual_extension_size([list(files.values()) for files in extensions])
    for files in extensions:
        fixes += [FileFix(path, usual, moves=False) for path, size in files.items() if size > usual]
    return fixes


def _in_the_way(audit: StoreAudit, queues: Iterable[QueuePlan]) -> list[FileFix]:
    """Return what stands in the place of a directory that recovery needs."""
    layout = audit.layout
    places = [layout.consume_queue, layout.batch_consume_queue, layout.index]
    for plan in queues:
        place = layout.consume_queue / str(plan.queue.key)
        places += [place.parent, place]
    # A link to a directory that is not there is a disk that may be mounted tomorrow.
    found = dict.fromkeys(path for path in places if path.exists() and not path.is_dir())
    return [FileFix(path, 0, moves=True) for path in found]


def _fixes(findings: Iterable[FileFinding[Path]], size: int) -> list[FileFix]:
    """Return what the files of one directory need; a missing file cannot be repaired."""
    return [
        FileFix(found.path, size, found.problem not in _LENGTHS)
        for found in findings
        if found.problem is FileProblem.NOT_A_FILE
        or (found.problem is not FileProblem.MISSING and found.path.is_file())
    ]


def _tail(audit: StoreAudit) -> Iterator[tuple[int, int]]:
    """Yield the ranges after the end that hold anything."""
    end, view = audit.log.end, audit.log
    extents = [(one.start, one.stop) for one in view.damage]
    extents += [(one.start, one.stop) for one in view.kept]
    extents += [(one.start, one.stop) for one in view.leftovers]
    for file in audit.log_files:
        stops = [stop for start, stop in extents if stop > end and file.holds(start)]
        if stops:
            yield max(end, file.base), max(stops)


def _plan_queue(queue: AuditedQueue, *, keeps_places: bool) -> QueuePlan:
    wrong = [run for run in queue.unbacked if run.kind in TAIL_KINDS]
    places = _places(wrong)
    # Of an extra queue only what is wrong: that 4.9 wrote no entry there is no fault.
    called = runs.without(queue.extra, runs.without(queue.extra, places))
    write = runs.joined([queue.truly_missing, called])
    right = _places(run for run in queue.unbacked if run.kind not in TAIL_KINDS)
    end = max(map(runs.stop_of, (queue.backed, write, right)))
    tail = [run._replace(start=max(run.start, end)) for run in wrong if run.stop > end]
    fill = runs.pairs(runs.without(runs.without(places, write), _places(tail)))
    keep, cut_from = [], None
    if tail:
        start = stop = tail[0].start
        if keeps_places:
            stop = max((run.stop for run in tail if run.kind in GIVEN_KINDS), default=start)
        if any(run.kind is not UnbackedKind.KEPT for run in tail if run.start < stop):
            keep = [(start, stop)]
        cut_from = stop if stop < tail[-1].stop else None
    return QueuePlan(queue, runs.pairs(write), fill, keep, cut_from)


def _places(found: Iterable[Unbacked]) -> Runs:
    return runs.joined([[run[1:3]] for run in found])


def _ranges(ranges: list[tuple[int, int]], limit: int = 4) -> str:
    shown = ", ".join(
        f"{start}" if stop == start + 1 else f"{start} to {stop - 1}"
        for start, stop in ranges[:limit]
    )
    return shown if len(ranges) <= limit else f"{shown}, …"


# --- what is said -------------------------------------------------------------------------------


class LostForBroker(Reported, frozen=True):
    """Records that a 4.9 broker would not serve after opening the store as it is now.

    Its recovery cuts them off (`verb` is ``drop``), or a get passes over them (``skip``); `start`
    and `stop` are physical offsets.
    """

    verb: str
    start: int
    stop: int
    record_count: int
    reason: str


class RepairReport(Reported, frozen=True):
    """Outcome of `repair_store`.

    Attributes
    ----------
    findings
        Faults before the repair.
    actions
        What was done, or would be done with ``dry_run``, in order.
    remaining
        Faults that are left, or with ``dry_run`` would be: damage in the middle stays as it is.
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


def lost_for_broker(audit: StoreAudit, config: StoreConfig) -> list[LostForBroker]:
    """Return what a 4.9 broker drops or skips of an audited store."""
    return [*_dropped(audit, config), *_skipped(audit)]


def _dropped(audit: StoreAudit, config: StoreConfig) -> Iterator[LostForBroker]:
    log = audit.log
    files = [file for file in audit.log_files if file.base < max(log.end, 1)]
    _, end, why = compatible_end(files, config)
    if not files or end >= log.end:
        return
    # A BLANK, which 4.9 writes again, does not count. 4.9 may stop in the middle of a chain.
    count = sum(
        int((columns.physical_offset >= end).sum())
        for chain in log.kept
        if end < chain.stop and chain.start < log.end
        for file in files
        if file.holds(chain.start)
        for columns in chain_records(file, chain.start, chain.stop)
    )
    if count:
        reason = f"recovery ends at the first damage of the last three files: {why}"
        yield LostForBroker("drop", end, log.end, count, reason)


def _skipped(audit: StoreAudit) -> Iterator[LostForBroker]:
    """Yield the entries that a get of 4.9 passes over after a filler."""
    # Reading the filler fails, and 4.9 then goes on in the next log file, which for the filler's
    # physical offset 0 is the second: entries that point into the first one are passed over.
    files = audit.log_files
    if not files or files[0].base:
        return
    for queue in audit.queues:
        for run in queue.unbacked:
            if run.kind is not UnbackedKind.FILLER:
                continue
            entries = padded(queue.files, run.stop, _SCANNED_ENTRIES)
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
