"""From facts to findings: what a queue is, once all that is known of it came together.

Law: a queue is judged from its own facts and the shape of the log, in whatever task.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from rocketstore.format.queue_entry import ENTRY_DTYPE
from rocketstore.pipeline.jobs.audit.audit_compare import Cell, part_of
from rocketstore.pipeline.jobs.audit.audit_work import Row, queue_of
from rocketstore.verification import runs
from rocketstore.verification.expectation import DELAY_TOPIC
from rocketstore.verification.findings import Finding, Severity
from rocketstore.verification.queue_rules import EXPLAINED, QueueView, queue_findings
from rocketstore.verification.small_files import Position, position_findings
from rocketstore.verification.unbacked import LogBounds, Unbacked, UnbackedKind, unbacked_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rocketstore.verification.queue_rules import QueuePart


class Judgement(NamedTuple):
    """What queues are judged by.

    Attributes
    ----------
    excluded
        Ranges of the log whose records are no messages: leftovers, and files that are gone.
    topics
        Topics that have a directory.
    """

    bounds: LogBounds
    excluded: tuple[tuple[int, int], ...]
    file_places: int
    topics: frozenset[str]
    is_live: bool


def judge_targets(judgement: Judgement, rows: Iterable[Row]) -> Iterator[Row]:
    """Judge what came together; `rows` are sorted by target, then place.

    Yields rows of the kinds ``finding``, ``queue`` (entries, holes, places in use), ``lacking``
    (keys, first place) and ``stray`` (of place 0: wrong, of 1: stale; items, first item).
    """
    excluded = np.array(judgement.excluded, dtype=np.int64).reshape(-1, 2)

    def is_kept(row: Row) -> bool:
        return not runs.holds(excluded, row.place)

    for target, group in itertools.groupby(rows, key=lambda row: row.target):
        if target.startswith("queue/"):
            kept = [row for row in group if row.kind != "part" or is_kept(row)]
            yield from _judge_queue(judgement, target, kept)
            continue
        for row in group:
            if row.kind == "lacking" and is_kept(row):
                yield Row(target, 0, "lacking", b"", row.a, row.place)
            elif row.kind == "explained":
                yield row
            elif row.kind == "stray":
                numbers, offsets = (np.frombuffer(b, np.int64) for b in _decoded(row.facts))
                is_stale = offsets >= judgement.bounds.end
                is_there = offsets >= judgement.bounds.min
                for place, chosen in enumerate((~is_stale & is_there, is_stale)):
                    if chosen.any():
                        first = int(numbers[chosen].min())
                        yield Row(target, place, "stray", b"", int(chosen.sum()), first)


def _judge_queue(judgement: Judgement, target: str, rows: list[Row]) -> Iterator[Row]:
    topic, queue_id = queue_of(target)
    cells = [msgspec.msgpack.decode(r.facts, type=Cell) for r in rows if r.kind == "cell"]
    cells.sort(key=lambda cell: cell.start)
    first = min((cell.start for cell in cells), default=0)
    end = max((cell.end for cell in cells), default=0)
    view = QueueView(topic, queue_id, first, max(first, end), judgement.file_places)
    view.has_files = bool(cells)
    parts = [part_of(row.facts) for row in rows if row.kind == "part"]
    view.take(parts)
    view.judge(_unbacked(view, cells, judgement.bounds))
    places = [msgspec.msgpack.decode(r.facts, type=Position) for r in rows if r.kind == "position"]
    is_there = view.is_own or any(row.kind == "listed" for row in rows)
    if is_there:
        for found in queue_findings(view, is_live=judgement.is_live):
            yield _finding_row(found)
        yield from _explained(view, parts)
        used = view.end - view.first_offset
        row = msgspec.msgpack.encode(_queue_columns(view))
        yield Row(target, 0, "queue", row, view.entry_count, view.hole_count, used)
    if is_there or topic in judgement.topics or topic == DELAY_TOPIC.decode():
        for position in places:
            for found in position_findings(position, view if is_there else None):
                yield _finding_row(found)


def _explained(view: QueueView, parts: list[QueuePart]) -> Iterator[Row]:
    """Yield how many entries are not what dispatch would write today, by reason."""
    for at, reason in enumerate(EXPLAINED):
        yield Row(reason, 0, "explained", b"", sum(part.explained[at] for part in parts))
    for kind, reason in (
        (UnbackedKind.EXPIRED, "expired"),
        (UnbackedKind.FILLER, "filler"),
        (UnbackedKind.KEPT, "kept-place"),
    ):
        count = sum(run.stop - run.start for run in view.unbacked if run.kind is kind)
        yield Row(reason, 0, "explained", b"", count)


def _unbacked(view: QueueView, cells: list[Cell], bounds: LogBounds) -> Iterator[Unbacked]:
    for cell in cells:
        for name, start, stop in cell.runs:
            if start < view.last_used:
                yield Unbacked(UnbackedKind[name], start, min(stop, view.last_used))
        for start, content in cell.doubtful:
            yield from unbacked_runs(np.frombuffer(content, dtype=ENTRY_DTYPE), start, bounds)
    covered = runs.joined([[(cell.start, cell.stop)] for cell in cells])
    for start, stop in runs.pairs(runs.without(view.gaps(), covered)):
        yield Unbacked(UnbackedKind.UNWRITTEN, start, stop)


def _queue_columns(view: QueueView) -> list[Any]:
    has_records = view.record_count > 0
    return [
        view.topic,
        view.queue_id,
        view.record_count,
        view.first if has_records else None,
        view.last if has_records else None,
        view.entry_count,
        runs.count(view.truly_missing),
        view.shadowed_count,
        runs.count(view.skipped) if has_records else 0,
    ]


def _finding_row(found: Finding) -> Row:
    return Row("", 0, "finding", packed_finding(found), int(found.severity is Severity.DAMAGE))


def packed_finding(found: Finding) -> bytes:
    """Return a finding as bytes."""
    return msgspec.msgpack.encode((found.severity.value, *found[1:]))


def finding_of(content: bytes) -> Finding:
    """Return a finding from bytes."""
    severity, *rest = _decoded(content)
    return Finding(Severity(severity), *rest)


def _decoded(content: bytes) -> Any:
    return msgspec.msgpack.decode(content)
