"""The audit's second pass on workers: judge each queue and each index file.

By what the first pass (`audit_work`) has found of it, and by the shape of the log.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from rocketstore.format.file_name import CONSUME_QUEUE_DIRECTORY
from rocketstore.format.queue_entry import DELAY_TOPIC
from rocketstore.places.files import StoreFile, entries_of, opened, passing_over_deleted
from rocketstore.places.queue_files import StoredFiles
from rocketstore.places.store_listing import row_of
from rocketstore.rules import runs
from rocketstore.rules.batch_entries import queue_bounds
from rocketstore.rules.findings import Finding, LastWriter, Severity
from rocketstore.rules.unbacked import LogBounds, UnbackedKind
from rocketstore.scan.batch_search import stored_entries
from rocketstore.units import QueueKey
from rocketstore.verification import queue_rules
from rocketstore.verification.batch_rules import batch_queue_findings
from rocketstore.verification.queue_findings import queue_findings
from rocketstore.verification.queue_rules import QueuePart, QueueView
from rocketstore.verification.small_files import Position, position_findings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rocketstore.pipeline.jobs.audit.audit_plan import AuditTask
    from rocketstore.pipeline.jobs.audit.audit_work import FactRow
    from rocketstore.rules.queue_kinds import QueueKinds

FINDINGS: Final = (
    "severity STRING, kind STRING, file STRING, offset BIGINT, size BIGINT, reason STRING, "
    "action STRING, topic STRING, queueId INT, queueOffset BIGINT, physicalOffset BIGINT, "
    "expected STRING, found STRING"
)
_BOUNDS: Final = (
    "recordCount BIGINT, firstOffset BIGINT, lastOffset BIGINT, entryCount BIGINT, "
    "missingCount BIGINT, conflictCount BIGINT, gapCount BIGINT"
)
QUEUES: Final = f"topic STRING, queueId INT, {_BOUNDS}"
JUDGED: Final = f"place INT, {FINDINGS}, {_BOUNDS}, counted STRING, count BIGINT, first BIGINT"
"""A finding, a queue, or what is `counted` of a `file` of the index, or of all; see `_SUMS`."""

_SUMS, _DAMAGE, _FOUND, _QUEUE = range(4)
"""Order in which judged rows are collected, up to the limit."""

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


class JudgeContext(NamedTuple):
    """Facts by which queues are judged.

    `excluded` are ranges of the log whose records are no messages: leftovers, and files that are
    gone. `topics` have a directory of queues of their kind, or records.
    """

    task: AuditTask
    bounds: LogBounds
    excluded: runs.Runs
    topics: frozenset[str]
    writer: LastWriter
    kinds: QueueKinds


def judge_targets(context: JudgeContext, rows: Iterable[FactRow]) -> Iterator[dict[str, Any]]:
    """Judge the rows of each target, as rows of `JUDGED`; `rows` are sorted by target.

    What is counted comes last, in a row for each sum.
    """
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for target, group in itertools.groupby(rows, key=lambda row: row.target):
        kept = [
            row
            for row in group
            if row.kind not in {"entries", "lacking", "backed"}
            # Those of records that are messages; `backed` items, of records that are not.
            or runs.holds(context.excluded, row.place) is (row.kind == "backed")
        ]
        if target.startswith("queue/"):
            judged = _judge_queue(context, target, kept)
        elif target.startswith("batch/"):
            judged = _judge_batch_queue(context, target, kept)
        else:
            judged = _judge_items(context.bounds, target, kept)
        for row in judged:
            if row["place"] == _SUMS:
                of = row["counted"], row["file"]
                count, first = sums.get(of, (0, row["first"]))
                sums[of] = count + row["count"], min(first, row["first"])
            else:
                yield row
    yield from (_sum(name, count, file, first) for (name, file), (count, first) in sums.items())


def _sum(counted: str, count: int, file: str = "", first: int = 0) -> dict[str, Any]:
    return {"place": _SUMS, "counted": counted, "file": file, "count": count, "first": first}


def _judge_items(bounds: LogBounds, target: str, rows: list[FactRow]) -> Iterator[dict[str, Any]]:
    """Yield keys without an item, and items without a record: past the log's end, or not."""
    file = target.partition("/")[2]
    for row in rows:
        if row.kind == "repeated":
            yield _sum("K-I8", row.size)
        elif row.kind == "lacking":
            yield _sum("lacking", row.size, file, row.place)
    # For each item its number, the offset that it names, and how many items it stands for.
    columns = [(row.first, row.place, row.size) for row in rows if row.kind == "backed"]
    found = [np.array(columns, np.int64).reshape(-1, 3)]
    for row in rows:
        if row.kind == "stray":
            pairs = np.frombuffer(row.facts, np.int64).reshape(2, -1)
            found.append(np.stack((*pairs, np.ones_like(pairs[0])), axis=1))
    items = np.concatenate(found)
    items = items[items[:, 1] >= bounds.min]
    is_stale = items[:, 1] >= bounds.end
    for counted, chosen in (("stray", items[~is_stale]), ("stale", items[is_stale])):
        if len(chosen):
            yield _sum(counted, int(chosen[:, 2].sum()), file, int(chosen[:, 0].min()))


def key_of(target: str) -> QueueKey:
    """Return the queue whose rows are grouped under a target."""
    _, number, topic = target.split("/", 2)
    return QueueKey(topic, int(number))


def _files_of(rows: list[FactRow]) -> list[StoreFile]:
    listed = [row for row in rows if row.kind == "listed" and row.file is not None]
    return sorted(StoreFile(row.place, row.size, str(row.file)) for row in listed)


def _judge_queue(
    context: JudgeContext, target: str, rows: list[FactRow]
) -> Iterator[dict[str, Any]]:
    key, is_listed = key_of(target), any(row.kind == "listed" for row in rows)
    sent = (part for row in rows if row.kind == "parts" for part in row.parts)
    parts = [part for part in sent if not runs.holds(context.excluded, part.start)]
    view = _view(context, key, _files_of(rows), parts)
    is_there, found = view.is_own or is_listed, list[Finding]()
    if is_there:
        found += map(context.kinds.judged, queue_findings(view, context.writer))
        yield from _sums(view, parts)
        has_records = view.record_count > 0
        queue = QueueRow(
            *key, view.record_count, view.first if has_records else None,
            view.last if has_records else None, view.entry_count, runs.count(view.truly_missing),
            view.shadowed_count, runs.count(view.skipped) if has_records else 0,
        )  # fmt: skip
        yield {"place": _QUEUE, **msgspec.to_builtins(queue)}
    if is_there or key.topic in context.topics or key.topic == DELAY_TOPIC:
        bounds = (view.first_record, view.stop) if is_there else (0, 0)
        found += _position_findings(key, rows, bounds)
    yield from map(_finding_row, found)


def _position_findings(
    key: QueueKey, rows: list[FactRow], bounds: tuple[int, int]
) -> Iterator[Finding]:
    for row in rows:
        if row.kind == "position":
            position = Position(str(row.file), str(row.who), key, row.first)
            yield from position_findings(position, bounds)


def _finding_row(one: Finding) -> dict[str, Any]:
    place = _DAMAGE if one.severity is Severity.DAMAGE else _FOUND
    return {"place": place, **one.to_dict()}


def _judge_batch_queue(
    context: JudgeContext, target: str, rows: list[FactRow]
) -> Iterator[dict[str, Any]]:
    key, content = key_of(target), bytearray()
    for file in _files_of(rows):
        with passing_over_deleted(), opened(context.task.location, file.path) as source:
            content += source.read(0, file.size)
    entries = sorted((row for row in rows if row.kind == "entries"), key=lambda row: row.place)
    stored, log_min = stored_entries(content), context.bounds.min
    called = stored_entries(b"".join(row.facts for row in entries))
    found = batch_queue_findings(key, stored, called, log_min, context.writer)
    yield from map(_finding_row, found)
    if key.topic in context.topics:
        bounds = queue_bounds(stored, log_min)
        yield from map(_finding_row, _position_findings(key, rows, bounds))


def _view(
    context: JudgeContext, key: QueueKey, files: Sequence[StoreFile], parts: list[QueuePart]
) -> QueueView:
    location, file_bytes = context.task.location, context.task.sizes.consume_queue_file_bytes
    while True:
        source = StoredFiles(location, files, spares_lost=True)
        view = QueueView(key, source, file_bytes, source.data_stop)
        view.conclude(parts, context.bounds)
        if not source.has_lost:
            return view
        # Retention deleted one meanwhile.
        listed = entries_of(location, CONSUME_QUEUE_DIRECTORY, str(key))
        files = row_of(listed, file_bytes).files


def _sums(view: QueueView, parts: list[QueuePart]) -> Iterator[dict[str, Any]]:
    """Yield the numbers of a queue, and why its entries are not what dispatch would write today."""
    yield _sum("queues", 1)
    yield _sum("entries", view.entry_count)
    yield _sum("holes", view.hole_count)
    yield _sum("used", view.end - view.first_offset)
    for at, reason in enumerate(queue_rules.EXPLAINED):
        if count := sum(part.explained[at] for part in parts):
            yield _sum(reason, count)
    for run in view.unbacked:
        if run.kind in _REASON_OF:
            yield _sum(_REASON_OF[run.kind], run.stop - run.start)
