"""From facts to findings: what a queue is, once all that is known of it came together.

Law: a queue is judged from its own facts and the shape of the log, in whatever task.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.pipeline.jobs.audit.audit_files import QueueSource, StoreFile
from rocketstore.pipeline.jobs.audit.audit_report import QueueRow, packed_row
from rocketstore.pipeline.jobs.audit.audit_work import Row, packed, part_of
from rocketstore.units import QueueKey
from rocketstore.verification import runs
from rocketstore.verification.expectation import DELAY_TOPIC
from rocketstore.verification.findings import Finding, Severity
from rocketstore.verification.queue_rules import EXPLAINED, QueueView, queue_findings
from rocketstore.verification.small_files import Position, position_findings
from rocketstore.verification.unbacked import UnbackedKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rocketstore.pipeline.jobs.audit.audit_work import AuditTask
    from rocketstore.verification.queue_rules import QueuePart
    from rocketstore.verification.unbacked import LogBounds

SUMS, DAMAGE, FOUND, QUEUE = range(4)
"""Places of what is judged: in this order it is collected, as far as there is room."""

_OF_RECORDS: Final = {"part", "lacking", "backed"}
"""Rows that hold where their records are messages; of `backed` items, those that are none count."""

_REASON_OF: Final = {
    UnbackedKind.EXPIRED: "expired",
    UnbackedKind.FILLER: "filler",
    UnbackedKind.KEPT: "kept-place",
}


class Judgement(NamedTuple):
    """What queues are judged by.

    `excluded` are ranges of the log whose records are no messages: leftovers, and files that are
    gone. `topics` have a directory.
    """

    task: AuditTask
    bounds: LogBounds
    excluded: tuple[tuple[int, int], ...]
    topics: frozenset[str]


def judge_targets(judgement: Judgement, rows: Iterable[Row]) -> Iterator[Row]:
    """Judge what came together; `rows` are sorted by target.

    Yields ``finding`` and ``queue`` rows, and ``sums``: of queues, reasons, and items.
    """
    excluded = np.array(judgement.excluded, dtype=np.int64).reshape(-1, 2)
    sums: Counter[str] = Counter()
    for target, group in itertools.groupby(rows, key=lambda row: row.target):
        kept = [
            row
            for row in group
            if row.kind not in _OF_RECORDS
            or runs.holds(excluded, row.place) is (row.kind == "backed")
        ]
        if target.startswith("queue/"):
            yield from _judge_queue(judgement, target, kept, sums)
        else:
            yield from _judge_items(judgement.bounds, target, kept, sums)
    yield Row("", SUMS, "sums", packed(sums))


def _judge_items(
    bounds: LogBounds, target: str, rows: list[Row], sums: Counter[str]
) -> Iterator[Row]:
    """Yield keys without an item, and items without a record: past the log's end (1), or not."""
    sums["K-I8"] += sum(row.a for row in rows if row.kind == "repeated")
    lacking = [row for row in rows if row.kind == "lacking"]
    if lacking:
        first = min(row.place for row in lacking)
        yield Row(target, SUMS, "lacking", b"", sum(row.a for row in lacking), first)
    # Of each item its number, the offset that it names, and how many items it stands for.
    columns = [(row.b, row.place, row.a) for row in rows if row.kind == "backed"]
    found = [np.array(columns, np.int64).reshape(-1, 3)]
    for numbers, offsets in (
        msgspec.msgpack.decode(row.facts) for row in rows if row.kind == "stray"
    ):
        pair = np.frombuffer(numbers, np.int64), np.frombuffer(offsets, np.int64)
        found.append(np.stack((*pair, np.ones_like(pair[0])), axis=1))
    items = np.concatenate(found)
    items = items[items[:, 1] >= bounds.min]
    is_stale = items[:, 1] >= bounds.end
    for late, chosen in enumerate((items[~is_stale], items[is_stale])):
        if len(chosen):
            count, first = int(chosen[:, 2].sum()), int(chosen[:, 0].min())
            yield Row(target, SUMS, "stray", b"", count, first, late)


def _judge_queue(
    judgement: Judgement, target: str, rows: list[Row], sums: Counter[str]
) -> Iterator[Row]:
    _, number, topic = target.split("/", 2)
    key, is_live = QueueKey(topic, int(number)), judgement.task.is_live
    listed = [row.facts for row in rows if row.kind == "listed"]
    parts = [part_of(row) for row in rows if row.kind == "part"]
    view = _view(judgement, key, msgspec.msgpack.decode(listed[0]) if listed else [], parts)
    is_there = view.is_own or bool(listed)
    if is_there:
        for found in queue_findings(view, is_live=is_live):
            yield _finding_row(found)
        _count(view, parts, sums)
        yield Row(target, QUEUE, "queue", packed_row(_queue_row(view)))
    if is_there or topic in judgement.topics or topic == DELAY_TOPIC.decode():
        for row in rows:
            if row.kind == "position":
                position = msgspec.msgpack.decode(row.facts, type=Position)
                for found in position_findings(position, view if is_there else None):
                    yield _finding_row(found)


def _view(
    judgement: Judgement, key: QueueKey, files: Sequence[Any], parts: list[QueuePart]
) -> QueueView:
    task = judgement.task
    while True:
        held = [
            (base // ENTRY_SIZE_BYTES, -(-(base + size) // ENTRY_SIZE_BYTES))
            for base, size, _ in files
        ]
        source = QueueSource(
            task.location, task.queue_file_bytes, key, [StoreFile(*file) for file in files]
        )
        places = task.queue_file_bytes // ENTRY_SIZE_BYTES
        view = QueueView(*key, places, held, source.read)
        view.conclude(parts, judgement.bounds)
        if not source.has_lost:
            return view
        files = source.listed_again()  # retention took one meanwhile


def _count(view: QueueView, parts: list[QueuePart], sums: Counter[str]) -> None:
    """Add up what a queue has, and why its entries are not what dispatch would write today."""
    sums["queues"] += 1
    sums["entries"] += view.entry_count
    sums["holes"] += view.hole_count
    sums["used"] += view.end - view.first_offset
    for at, reason in enumerate(EXPLAINED):
        sums[reason] += sum(part.explained[at] for part in parts)
    for run in view.unbacked:
        if run.kind in _REASON_OF:
            sums[_REASON_OF[run.kind]] += run.stop - run.start


def _queue_row(view: QueueView) -> QueueRow:
    has_records = view.record_count > 0
    return QueueRow(
        view.topic,
        view.queue_id,
        view.record_count,
        view.first if has_records else None,
        view.last if has_records else None,
        view.entry_count,
        runs.count(view.truly_missing),
        view.shadowed_count,
        runs.count(view.skipped) if has_records else 0,
    )


def _finding_row(found: Finding) -> Row:
    place = DAMAGE if found.severity is Severity.DAMAGE else FOUND
    return Row("", place, "finding", packed_row(found))
