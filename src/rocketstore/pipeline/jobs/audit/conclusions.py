"""From facts to findings: the log, its queues and its index against each other.

Law: nothing is read here but the last bytes of a short file. Lost messages and queue entries that
consumers cannot follow are damage; what a rebuild or the next opening takes away without a loss is
a warning. What a live writer has not finished is nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.pipeline.files import opened
from rocketstore.pipeline.jobs.audit import runs, unbacked
from rocketstore.pipeline.jobs.audit.facts import NO_PLACE, IndexFacts, StrayItems
from rocketstore.pipeline.jobs.audit.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rocketstore.pipeline.jobs.audit.log_shape import LogShape, QueueSummary
    from rocketstore.pipeline.jobs.audit.places import StorePlaces
    from rocketstore.pipeline.jobs.audit.store_files import FileProblem, FileRow
    from rocketstore.pipeline.jobs.audit.unbacked import Unbacked

_LOOKED_AT_BYTES: Final = 256
"""More than a header; a record's last bytes may well be zeros."""

_QUEUE_REASONS: Final = {
    unbacked.LOST: (
        Severity.DAMAGE,
        "queue-hole",
        "entries of records that are lost in a damaged range of the log",
        "they keep their places; a get steps over them",
    ),
    unbacked.UNWRITTEN: (
        Severity.DAMAGE,
        "queue-unwritten",
        "zeros between entries, where 4.9 takes the queue to end",
        "repair puts fillers there",
    ),
    unbacked.STALE: (
        Severity.DAMAGE,
        "queue-stale",
        "entries that point at or behind the end of the log",
        "the next opening, or repair, keeps their places and gives no number again",
    ),
    unbacked.BEYOND: (
        Severity.DAMAGE,
        "queue-beyond-log",
        "entries that point behind the last CommitLog file: a file of messages is gone",
        "bring the file back; else the next opening, or repair, keeps their places only",
    ),
    unbacked.KEPT: (
        Severity.DAMAGE,
        "queue-kept",
        "given out to messages that were lost with the end of the log",
        "no number is given again; a get will step over them",
    ),
    unbacked.WRONG: (
        Severity.DAMAGE,
        "queue-wrong",
        "entries that point at no intact record of this queue and number",
        "repair replaces them",
    ),
    unbacked.FILLER: (
        Severity.NOTE,
        "queue-filler",
        "fillers, which only keep places",
        "nothing to do",
    ),
}

_FILLED_HOLE: Final = (
    Severity.DAMAGE,
    "queue-hole",
    "fillers that keep the places of lost records",
    "they keep their places; a get steps over them",
)
"""Fillers behind a message; those in front of a queue's first message are its normal beginning."""

HOLE_KINDS: Final = frozenset({unbacked.FILLER, unbacked.LOST, unbacked.KEPT})

_INDEX_HARMLESS: Final = frozenset({"index-missing", "index-stale", "index-extra"})
"""Keys that are not found, or lead to nothing: a lookup verifies every hit."""


@dataclass
class QueueState:
    """A queue as its directory and its records show it."""

    summary: QueueSummary
    row: FileRow
    end: int
    """One past the last entry that is not zeros."""
    runs: list[Unbacked] = field(default_factory=list)

    @property
    def first_offset(self) -> int:
        """Queue offset of the first place on disk."""
        return self.row.first // ENTRY_SIZE_BYTES

    @property
    def last_used(self) -> int:
        """One past the last place that has an entry that is not zeros, or that a record backs."""
        return max(self.end, runs.stop_of(self.summary.backed))

    @property
    def directory(self) -> str:
        """Path below the store."""
        return f"consumequeue/{self.summary.topic}/{self.summary.queue_id}"


# --- the log ------------------------------------------------------------------------------------


def log_findings(places: StorePlaces, shape: LogShape, entry_count: int) -> Iterator[Finding]:
    """Yield what is wrong with the log and its files."""
    last = places.log.files[-1].base if places.log.files else 0
    for problem in places.log.problems:
        if problem.problem == "missing":
            continue  # reported with its range as a hole of the log
        severity, action = _weight_of_log_file(places, problem, is_last=problem.base >= last)
        yield _file_finding(places, problem, severity, "log", action)
    if not places.log.files:
        severity = Severity.DAMAGE if entry_count else Severity.NOTE
        reason = f"no CommitLog file, {entry_count} entries in queues"
        yield Finding(severity, "log-empty", "commitlog", 0, 0, reason, "bring the files back")
    yield from _damage_findings(places, shape)
    for hole in shape.holes:
        if hole.start < shape.end:
            reason = f"no file for physical offsets {hole}"
            action = (
                "bring the file back; a 4.9 broker that dispatches across it anew hangs there. "
                "If it lies on another disk: --set storePathCommitLog=…"
            )
            yield Finding(
                Severity.DAMAGE,
                "log-hole",
                "commitlog",
                hole.start,
                hole.size,
                reason,
                action,
                physical_offset=hole.start,
            )
    for chain in shape.leftovers:
        facts = chain.facts
        name, offset = places.place_in_log(facts.start)
        yield Finding(
            Severity.WARNING,
            "log-leftover",
            name,
            offset,
            facts.stop - facts.start,
            f"{facts.record_count} records: {chain.why}",
            "repair keeps a copy and zeroes them, if it judges alike",
            physical_offset=facts.start,
        )


def _file_finding(
    places: StorePlaces, problem: FileProblem, severity: Severity, part: str, action: str
) -> Finding:
    return Finding(
        severity,
        f"{part}-file-{problem.problem}",
        places.below_root(problem.path),
        0,
        0,
        f"expected {problem.expected}, found {problem.found}",
        action,
        expected=problem.expected,
        found=problem.found,
    )


def _weight_of_log_file(
    places: StorePlaces, problem: FileProblem, *, is_last: bool
) -> tuple[Severity, str]:
    is_short = problem.problem in {"empty", "wrong-size"}
    # A base of -1 is a name that is none.
    if is_short and is_last and not _ends_in_bytes(places, problem.path):
        return Severity.WARNING, "the next opening, or repair, gives it its length with zeros"
    if is_short:
        return Severity.DAMAGE, "repair gives it its length; 4.9 does not start with it"
    if problem.problem == "not-a-file":
        return Severity.WARNING, "move it away; 4.9 may not start with it"
    return Severity.WARNING, "repair moves it away; 4.9 may not start with it"


def _ends_in_bytes(places: StorePlaces, path: str) -> bool:
    """Whether a file's last bytes are not zeros: then it was cut off inside its records."""
    directory, _, name = path.rpartition("/")
    size = next((one.size for one in places.files.list(directory) if one.name == name), 0)
    with opened(places.files, path) as file:
        begin = max(0, size - _LOOKED_AT_BYTES)
        return any(file.read(begin, size - begin)) if size else False


def _damage_findings(places: StorePlaces, shape: LogShape) -> Iterator[Finding]:
    for damage in shape.damage:
        name, offset = places.place_in_log(damage.start)
        if damage.start < shape.end:
            severity, kind = Severity.DAMAGE, "log-damage"
            action = "it stays as it is; entries of lost records keep their places"
        elif places.is_live:
            continue  # a record that is being written
        else:
            severity, kind = Severity.WARNING, "log-tail"
            action = "the next opening, or repair, keeps a copy and zeroes it"
        expected, found = _versus(damage.evidence)
        yield Finding(
            severity,
            kind,
            name,
            offset,
            damage.stop - damage.start,
            f"{damage.reason}: {damage.evidence}",
            action,
            physical_offset=damage.start,
            expected=expected,
            found=found,
        )


def _versus(evidence: str) -> tuple[str | None, str | None]:
    """Return expected and found where a scan's evidence names both."""
    _, has_expected, rest = evidence.partition("expected ")
    expected, has_found, found = rest.rpartition(", found ")
    return (expected, found) if has_expected and has_found else (None, None)


# --- queues -------------------------------------------------------------------------------------


def queue_findings(places: StorePlaces, queues: Sequence[QueueState]) -> Iterator[Finding]:
    """Yield what is wrong with the queues."""
    for queue in queues:
        if not _is_name(queue.summary.topic):
            reason = (
                f"{queue.summary.record_count} records of a topic that cannot be a directory: "
                f"{queue.summary.topic}/{queue.summary.queue_id}"
            )
            yield _queue_finding(
                queue, Severity.WARNING, "queue-impossible", (0, 0), reason, "nothing to do"
            )._replace(file="consumequeue")
            continue
        for problem in queue.row.problems:
            action = "repair moves it away and makes its entries anew"
            if problem.problem == "not-a-file":
                action = "move it away, then repair makes its entries anew"
            finding = _file_finding(places, problem, Severity.WARNING, "queue", action)
            yield finding._replace(topic=queue.summary.topic, queue_id=queue.summary.queue_id)
        yield from _missing_findings(queue, is_live=places.is_live)
        for run in queue.runs:
            if run.kind in _QUEUE_REASONS and not (places.is_live and _is_in_motion(run)):
                yield _run_finding(queue, run)
        yield from _skipped_findings(queue)


def is_possible(topic: str) -> bool:
    """Whether a topic can be the name of a directory."""
    return _is_name(topic)


def _is_name(topic: str) -> bool:
    return topic not in {"", ".", ".."} and not {"/", "\0"} & set(topic)


def _is_in_motion(run: Unbacked) -> bool:
    return run.is_tail or run.kind == unbacked.STALE


def _queue_finding(
    queue: QueueState,
    severity: Severity,
    kind: str,
    span: tuple[int, int],
    reason: str,
    action: str,
) -> Finding:
    start, stop = span
    return Finding(
        severity,
        kind,
        queue.directory,
        start * ENTRY_SIZE_BYTES,
        (stop - start) * ENTRY_SIZE_BYTES,
        reason,
        action,
        topic=queue.summary.topic,
        queue_id=queue.summary.queue_id,
        queue_offset=start if stop > start else None,
    )


def _missing_findings(queue: QueueState, *, is_live: bool) -> Iterator[Finding]:
    backed_stop = runs.stop_of(queue.summary.backed)
    for start, stop in runs.pairs(queue.summary.truly_missing):
        if is_live and start >= backed_stop:
            continue  # not dispatched yet
        yield _queue_finding(
            queue,
            Severity.DAMAGE,
            "queue-missing",
            (start, stop),
            f"queue offsets {start} to {stop - 1}: records without their entry",
            "the next opening after a crash, or repair, writes them",
        )
    shadowed = queue.summary.shadowed_count
    if shadowed:
        reason = f"{shadowed} records claim a queue offset that another record has"
        yield _queue_finding(
            queue, Severity.WARNING, "queue-conflict", (0, 0), reason, "the entries stay"
        )


def _run_finding(queue: QueueState, run: Unbacked) -> Finding:
    severity, kind, reason, action = _QUEUE_REASONS[run.kind]
    if run.kind == unbacked.FILLER and runs.holds(queue.summary.backed, run.start - 1):
        severity, kind, reason, action = _FILLED_HOLE
    if run.is_tail and run.kind == unbacked.WRONG:
        severity = Severity.WARNING
    return _queue_finding(
        queue,
        severity,
        kind,
        (run.start, run.stop),
        f"queue offsets {run.start} to {run.stop - 1}: {reason}",
        action,
    )


def _skipped_findings(queue: QueueState) -> Iterator[Finding]:
    """Yield gaps in the records' queue offsets that the queue itself does not show."""
    if queue.summary.is_extra:
        return
    shown = runs.joined([[(run.start, run.stop)] for run in queue.runs])
    for start, stop in runs.pairs(runs.without(queue.summary.skipped, shown)):
        yield _queue_finding(
            queue,
            Severity.WARNING,
            "queue-gap",
            (start, stop),
            f"queue offsets {start} to {stop - 1}: no record states them, no entry stands there",
            "repair puts fillers there",
        )


# --- the index ----------------------------------------------------------------------------------


def index_findings(
    places: StorePlaces,
    shape: LogShape,
    facts: Sequence[IndexFacts],
    stray: Sequence[StrayItems],
    more: Sequence[Finding],
) -> Iterator[Finding]:
    """Yield what is wrong with the index.

    Parameters
    ----------
    places, shape
        The store and its log.
    facts
        Of each index file, in the order of their names.
    stray
        Items that no record calls for, of all tasks.
    more
        What was seen before any item was read: files of other names and lengths.
    """
    found = [*more]
    last = -1
    in_order = True
    for file in facts:
        troubles = list(file.troubles)
        for trouble in troubles:
            found.append(index_finding(trouble.kind, file.file, trouble.offset, trouble.reason))
            in_order = in_order and trouble.kind != "index-order"
        if file.item_count:
            if file.first < last and not any(one.kind == "index-order" for one in troubles):
                at = places.index_layout.item_position(1)
                reason = "items are not in the log's order"
                found.append(index_finding("index-order", file.file, at, reason))
                in_order = False
            last = file.last
    if in_order:
        # Out of order, an item may lie where no task looks for it: a rebuild is due anyway.
        found += _stray_findings(places, shape, stray)
        found += _lacking_finding(places, shape, facts)
    yield from sorted(found, key=lambda one: (one.kind == "index-missing", one.file))


def index_finding(kind: str, file: str, offset: int, reason: str) -> Finding:
    """Return a finding about an index file."""
    severity = Severity.WARNING if kind in _INDEX_HARMLESS else Severity.DAMAGE
    action = "move it away" if kind == "index-extra" else "repair makes the index anew"
    return Finding(severity, kind, file, offset, 0, reason, action)


def _stray_findings(
    places: StorePlaces, shape: LogShape, stray: Sequence[StrayItems]
) -> Iterator[Finding]:
    counted: dict[tuple[str, str], list[int]] = {}
    for one in stray:
        is_stale = one.beyond >= shape.end
        known = counted.setdefault((one.file, "index-stale" if is_stale else "index-wrong"), [0, 0])
        known[0] += one.count
        known[1] = min(known[1] or one.first_item, one.first_item)
    for (file, kind), (count, first) in sorted(counted.items()):
        if kind == "index-stale" and places.is_live:
            continue
        what = "name records behind the log's end"
        if kind == "index-wrong":
            what = "name no record with that key"
        at = places.index_layout.item_position(first)
        yield index_finding(kind, file, at, f"{count} items {what}")


def _lacking_finding(
    places: StorePlaces, shape: LogShape, facts: Sequence[IndexFacts]
) -> Iterator[Finding]:
    count = sum(chain.lacking_count for chain in shape.kept)
    first = min((chain.first_lacking for chain in shape.kept), default=NO_PLACE)
    end = max((file.last for file in facts if file.item_count), default=-1)
    if count and not (places.is_live and first > end):
        reason = f"{count} keys are missing, the first at {first}"
        yield index_finding("index-missing", "index", 0, reason)._replace(physical_offset=first)
