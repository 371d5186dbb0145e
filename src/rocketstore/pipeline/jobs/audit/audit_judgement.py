"""The audit's second pass on workers: judge each queue and each index file.

By what the first pass (`audit_work`) has found of it, and by the shape of the log.
"""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from rocketstore.format.file_name import CONSUME_QUEUE_DIRECTORY
from rocketstore.format.queue_entry import DELAY_TOPIC, ENTRY_SIZE_BYTES
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.jobs.audit.audit_plan import passing_over_deleted, row_of
from rocketstore.pipeline.jobs.audit.audit_work import Row, packed, part_of
from rocketstore.pipeline.queues import StoredFiles
from rocketstore.pipeline.stores import StoreFile
from rocketstore.scan.queue_search import padded
from rocketstore.units import QueueKey
from rocketstore.verification import queue_rules, runs
from rocketstore.verification.batch_entries import queue_bounds, queue_findings, stored_entries
from rocketstore.verification.findings import Finding, Severity
from rocketstore.verification.queue_rules import QueuePart, QueueView
from rocketstore.verification.small_files import Position, position_findings
from rocketstore.verification.unbacked import UnbackedKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rocketstore.pipeline.jobs.audit.audit_plan import AuditTask
    from rocketstore.verification.unbacked import LogBounds

_SUMS, _DAMAGE, _FOUND, _QUEUE = range(4)
"""Places of what is judged: in this order it is collected, as far as there is room."""

_REASON_OF: Final = {
    UnbackedKind.EXPIRED: "expired",
    UnbackedKind.FILLER: "filler",
    UnbackedKind.KEPT: "kept-place",
}


class QueueRow(msgspec.Struct, frozen=True, rename="camel"):
    """A queue in the report: its intact records, and entries that agree with one.

    `first_offset` and `last_offset` are the bounds of what records state. Missing are records
    without their entry, a conflict is a queue offset that several state, a gap one inside the
    bounds that none states.
    """

    topic: str
    queue_id: int
    record_count: int
    first_offset: int | None
    last_offset: int | None
    entry_count: int
    missing_count: int
    conflict_count: int
    gap_count: int


class Judgement(NamedTuple):
    """What queues are judged by.

    `excluded` are ranges of the log whose records are no messages: leftovers, and files that are
    gone. `topics` have a directory of queues of their kind. `dispatched_to` as `queue_findings` has
    it.
    """

    task: AuditTask
    bounds: LogBounds
    excluded: Sequence[tuple[int, int]]
    topics: frozenset[str]
    dispatched_to: int | None


def judge_targets(judgement: Judgement, rows: Iterable[Row]) -> Iterator[Row]:
    """Judge what came together; `rows` are sorted by target.

    Yields ``finding`` and ``queue`` rows in JSON, and ``sums``: of queues, reasons, and items.
    """
    excluded = np.array(judgement.excluded, dtype=np.int64).reshape(-1, 2)
    sums: Counter[str] = Counter()
    for target, group in itertools.groupby(rows, key=lambda row: row.target):
        kept = [
            row
            for row in group
            if row.kind not in {"part", "entries", "lacking", "backed"}
            # Of records where these are messages; of `backed` items, those of which they are not.
            or runs.holds(excluded, row.place) is (row.kind == "backed")
        ]
        if target.startswith("queue/"):
            yield from _judge_queue(judgement, target, kept, sums)
        elif target.startswith("batch/"):
            yield from _judge_batch_queue(judgement, target, kept)
        else:
            yield from _judge_items(judgement.bounds, target, kept, sums)
    yield Row("", _SUMS, "sums", packed(sums))


def _judge_items(
    bounds: LogBounds, target: str, rows: list[Row], sums: Counter[str]
) -> Iterator[Row]:
    """Yield keys without an item, and items without a record: past the log's end (1), or not."""
    sums["K-I8"] += sum(row.a for row in rows if row.kind == "repeated")
    if lacking := [row for row in rows if row.kind == "lacking"]:
        first = min(row.place for row in lacking)
        yield Row(target, _SUMS, "lacking", a=sum(row.a for row in lacking), b=first)
    # Of each item its number, the offset that it names, and how many items it stands for.
    columns = [(row.b, row.place, row.a) for row in rows if row.kind == "backed"]
    found = [np.array(columns, np.int64).reshape(-1, 3)]
    for row in rows:
        if row.kind == "stray":
            pair = [np.frombuffer(one, np.int64) for one in msgspec.msgpack.decode(row.facts)]
            found.append(np.stack((*pair, np.ones_like(pair[0])), axis=1))
    items = np.concatenate(found)
    items = items[items[:, 1] >= bounds.min]
    is_stale = items[:, 1] >= bounds.end
    for late, chosen in enumerate((items[~is_stale], items[is_stale])):
        if len(chosen):
            count, first = int(chosen[:, 2].sum()), int(chosen[:, 0].min())
            yield Row(target, _SUMS, "stray", a=count, b=first, c=late)


def _judge_queue(
    judgement: Judgement, target: str, rows: list[Row], sums: Counter[str]
) -> Iterator[Row]:
    _, number, topic = target.split("/", 2)
    listed = [row.facts for row in rows if row.kind == "listed"]
    parts = [part_of(row) for row in rows if row.kind == "part"]
    files = msgspec.msgpack.decode(listed[0], type=list[StoreFile]) if listed else []
    view = _view(judgement, QueueKey(topic, int(number)), files, parts)
    is_there, found = view.is_own or bool(listed), list[Finding]()
    if is_there:
        found += queue_rules.queue_findings(
            view, is_live=judgement.task.is_live, dispatched_to=judgement.dispatched_to
        )
        _count(view, parts, sums)
        has_records = view.record_count > 0
        queue = QueueRow(
            topic,
            view.queue_id,
            view.record_count,
            view.first if has_records else None,
            view.last if has_records else None,
            view.entry_count,
            runs.count(view.truly_missing),
            view.shadowed_count,
            runs.count(view.skipped) if has_records else 0,
        )
        yield Row(target, _QUEUE, "queue", msgspec.json.encode(queue))
    if is_there or topic in judgement.topics or topic == DELAY_TOPIC:
        found += _position_findings(rows, (view.first_record, view.stop) if is_there else (0, 0))
    yield from map(_finding_row, found)


def _position_findings(rows: list[Row], bounds: tuple[int, int]) -> Iterator[Finding]:
    for row in rows:
        if row.kind == "position":
            yield from position_findings(msgspec.msgpack.decode(row.facts, type=Position), bounds)


def _finding_row(one: Finding) -> Row:
    place = _DAMAGE if one.severity is Severity.DAMAGE else _FOUND
    return Row("", place, "finding", msgspec.json.encode(one.to_dict()))


def _judge_batch_queue(judgement: Judgement, target: str, rows: list[Row]) -> Iterator[Row]:
    _, number, topic = target.split("/", 2)
    content = bytearray()
    for row in rows:
        if row.kind == "listed":
            for file in msgspec.msgpack.decode(row.facts, type=list[StoreFile]):
                with passing_over_deleted(), opened(judgement.task.location, file.path) as source:
                    content += source.read(0, file.size)
    entries = sorted((row for row in rows if row.kind == "entries"), key=lambda row: row.place)
    stored, log_min = stored_entries(content), judgement.bounds.min
    found = queue_findings(
        QueueKey(topic, int(number)),
        stored,
        stored_entries(b"".join(row.facts for row in entries)),
        log_min,
        is_live=judgement.task.is_live,
        dispatched_to=judgement.dispatched_to,
    )
    yield from map(_finding_row, found)
    if topic in judgement.topics:
        bounds = queue_bounds(stored, log_min)
        yield from map(_finding_row, _position_findings(rows, bounds))


def _view(
    judgement: Judgement, key: QueueKey, files: Sequence[StoreFile], parts: list[QueuePart]
) -> QueueView:
    location, file_bytes = judgement.task.location, judgement.task.sizes.consume_queue_file_bytes
    while True:
        held = [
            (file.base // ENTRY_SIZE_BYTES, -(-file.stop // ENTRY_SIZE_BYTES)) for file in files
        ]
        source = StoredFiles(location, files, spares_lost=True)
        read = partial(padded, source)
        view = QueueView(*key, file_bytes // ENTRY_SIZE_BYTES, held, read)
        view.conclude(parts, judgement.bounds)
        if not source.has_lost:
            return view
        # Retention took one meanwhile.
        system, root = files_at(location)
        listed = system.list(f"{root}/{CONSUME_QUEUE_DIRECTORY}/{key}")
        files = row_of(listed, file_bytes).files


def _count(view: QueueView, parts: list[QueuePart], sums: Counter[str]) -> None:
    """Add up what a queue has, and why its entries are not what dispatch would write today."""
    sums["queues"] += 1
    sums["entries"] += view.entry_count
    sums["holes"] += view.hole_count
    sums["used"] += view.end - view.first_offset
    for at, reason in enumerate(queue_rules.EXPLAINED):
        sums[reason] += sum(part.explained[at] for part in parts)
    for run in view.unbacked:
        if run.kind in _REASON_OF:
            sums[_REASON_OF[run.kind]] += run.stop - run.start
