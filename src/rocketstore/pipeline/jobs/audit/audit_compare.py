"""What comes together for one target is compared: a file of a queue, or a stretch of the index."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import numpy as np

from rocketstore.format.queue_entry import ENTRY_DTYPE, ENTRY_SIZE_BYTES
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.jobs.audit import audit_work
from rocketstore.pipeline.jobs.audit.audit_work import (
    AuditedFile,
    AuditTask,
    Row,
    expected_of,
    packed,
    passing_over_deleted,
)
from rocketstore.scan import kernels
from rocketstore.verification import queue_rules, runs
from rocketstore.verification.index_rules import compare_keys
from rocketstore.verification.queue_rules import QueuePart
from rocketstore.verification.unbacked import LogBounds, Unbacked, UnbackedKind, unbacked_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from rocketstore.format.queue_entry import EntryArray

    Int64Array: TypeAlias = npt.NDArray[np.int64]

_NOWHERE: Final = 2**63 - 1


class Cell(msgspec.Struct, array_like=True):
    """What stands in one file of a queue.

    Attributes
    ----------
    start, stop, end
        Queue offsets of its first place and behind its last; behind its last entry that is not
        zeros, 0 where there is none.
    runs
        Entries that no record backs: name of the kind, first and one past the last.
    doubtful
        Others of them, which only the whole log can tell: queue offset and bytes.
    """

    start: int
    stop: int
    end: int
    runs: list[tuple[str, int, int]]
    doubtful: list[tuple[int, bytes]]


def compare_targets(task: AuditTask, rows: Iterable[Row]) -> Iterator[Row]:
    """Compare what came together; `rows` are sorted by target, then place."""
    for target, group in itertools.groupby(rows, key=lambda row: row.target):
        if target.startswith("cell/"):
            yield from _compare_cell(task, target, group)
        elif target.startswith("bucket/"):
            yield from _compare_bucket(target, list(group))
        else:
            yield from group


def _compare_cell(task: AuditTask, target: str, rows: Iterable[Row]) -> Iterator[Row]:
    _, number, queue = target.split("/", 2)
    first = int(number) * task.places
    held: list[AuditedFile] = []
    entries: EntryArray | None = None
    backed: list[runs.Runs] = []
    for row in rows:
        if row.kind == "file":
            held.append(msgspec.msgpack.decode(row.facts, type=AuditedFile))
            continue
        if entries is None:
            entries = _entries(task, held, first)
        expected = expected_of(row.facts)
        found = entries[expected.queue_offset - first]
        part = queue_rules.compare(expected, found, lambda: any(one.has_extension for one in held))
        backed.append(part.backed)
        if not (expected.is_extra.all() and not held and not len(part.backed)):
            facts = packed((*part[:-2], part.backed.tobytes(), part.missing.tobytes()))
            counts = (part.record_count, part.agreed_count, part.contradicted_count)
            yield Row(queue, part.start, "part", facts, *counts)
    if entries is None:
        entries = _entries(task, held, first)
    for file in held:
        begin = max(file.base // ENTRY_SIZE_BYTES, first)
        stop = -(-(file.base + file.size) // ENTRY_SIZE_BYTES)
        stop = min(stop, first + task.places)
        cell = _cell(task, entries[begin - first : stop - first], begin, runs.joined(backed))
        yield Row(queue, begin, "cell", packed(cell))


def _entries(task: AuditTask, held: list[AuditedFile], first: int) -> EntryArray:
    """Return the entries of a cell, zeros where no byte is; forget files that are gone."""
    content = np.zeros(task.places * ENTRY_SIZE_BYTES, dtype=np.uint8)
    files, _ = files_at(task.location)
    at = first * ENTRY_SIZE_BYTES
    for file in [*held]:
        begin, stop = max(at, file.base), min(at + content.size, file.base + file.size)
        held.remove(file)
        with passing_over_deleted(), opened(files, file.path) as source:
            source.read_into(begin - file.base, content[begin - at : stop - at].data)
            held.append(file)
    return content.view(ENTRY_DTYPE)


def _cell(task: AuditTask, entries: EntryArray, first: int, backed: runs.Runs) -> Cell:
    view = entries.view(np.uint8)
    last = int(kernels.last_nonzero(view, 0, view.size))
    end = first + last // ENTRY_SIZE_BYTES + 1 if last >= 0 else 0
    # Without the log's end, only these can be called what they are.
    bounds = LogBounds(task.log_start, _NOWHERE, _NOWHERE)
    found: list[Unbacked] = []
    # Zeros up to the file's end matter where the queue goes on in the next one.
    for start, stop in runs.pairs(runs.gaps(backed, first, first + len(entries))):
        found += unbacked_runs(entries[start - first : stop - first], start, bounds)
    sure = [run for run in found if run.kind is not UnbackedKind.WRONG]
    return Cell(
        first,
        first + len(entries),
        end,
        [(run.kind.name, run.start, run.stop) for run in sure],
        [
            (run.start, entries[run.start - first : run.stop - first].tobytes())
            for run in found
            if run.kind is UnbackedKind.WRONG
        ],
    )


def part_of(facts: bytes) -> QueuePart:
    """Return what a row of the kind ``part`` says."""
    *numbers, backed, missing = msgspec.msgpack.decode(facts)
    shape = (-1, queue_rules.MISSING_COLUMNS)
    arrays = (
        np.frombuffer(backed, np.int64).reshape(-1, 2),
        np.frombuffer(missing, np.int64).reshape(shape),
    )
    return QueuePart._make((*numbers, *arrays))


def _compare_bucket(target: str, rows: Sequence[Row]) -> Iterator[Row]:
    none = np.empty(0, dtype=np.int64)
    blocks = [(row.place, np.frombuffer(row.facts, np.int64)) for row in rows if row.kind == "keys"]
    items = [(row.a, *msgspec.msgpack.decode(row.facts)) for row in rows if row.kind == "items"]
    items.sort(key=lambda one: (one[1], one[0]))
    found = [(first, name, np.frombuffer(keys, np.int64)) for first, name, keys in items]
    lacking, stray = compare_keys(
        np.concatenate([none, *(keys for _, keys in blocks)]),
        np.concatenate([none, *(keys for _, _, keys in found)]),
    )
    count = sum(keys.size for _, _, keys in found) - stray.size
    if repeated := count - sum(keys.size for _, keys in blocks) + lacking.size:
        yield Row("K-I8", 0, "explained", b"", repeated)
    base = int(target.partition("/")[2]) * audit_work.BUCKET_BYTES
    at = 0
    for _, keys in blocks:
        rows_of_block = lacking[(lacking >= at) & (lacking < at + keys.size)] - at
        at += keys.size
        if rows_of_block.size:
            place = _place(keys[rows_of_block[:1]], base)
            yield Row("lacking", int(place[0]), "lacking", b"", rows_of_block.size)
    at = 0
    for first, name, keys in found:
        chosen = stray[(stray >= at) & (stray < at + keys.size)] - at
        at += keys.size
        if chosen.size:
            offsets = _place(keys[chosen], base)
            facts = packed(((chosen + first).tobytes(), offsets.tobytes()))
            yield Row(f"stray/{name}", int(offsets[0]), "stray", facts)


def _place(keys: Int64Array, base: int) -> Int64Array:
    places: Int64Array = (keys >> 31) + base
    return places
