"""What a worker does for a report: scan byte ranges, count, send the counts.

Law: bodies and properties stay here; what is sent is groups, some MB at most, however long the
range.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rocketstore.pipeline.jobs.report.groups import FrequentGroups, TimeGroups, as_bytes, pa
from rocketstore.pipeline.jobs.report.tally import DelayFacts, Tally
from rocketstore.pipeline.log_read import read_split

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketstore.pipeline.log_read import FoundDamage
    from rocketstore.pipeline.planning import SplitTask
    from rocketstore.pipeline.stores import Segment

SCHEMA: Final = "part STRING, content BINARY"
"""Rows that a task sends: the name of a table, and its groups as an Arrow stream. ``notes`` is
JSON: counts that belong to no table."""

DAMAGE_ROWS: Final = 10_000
"""Most damaged ranges that a task lists; all are counted, by file and by cell of its map."""

MAP_CELLS: Final = 200
"""Parts of a file that the damage map tells apart."""


class ReportTask(NamedTuple):
    """Byte ranges for one worker, and by store's name what is known of its delayed messages."""

    splits: tuple[SplitTask, ...]
    delays: dict[str, DelayFacts]

    @property
    def byte_count(self) -> int:
        """Bytes to read."""
        return sum(split.byte_count for split in self.splits)


def count_task(task: ReportTask) -> Iterator[pa.RecordBatch]:
    """Yield the counts of a task, as rows of `SCHEMA`."""
    tallies: dict[str, Tally] = {}
    for split in task.splits:
        name = split.store.broker_name
        if name not in tallies:
            tallies[name] = Tally(name, task.delays[name])
        _count_split(split, tallies[name])
    for tally in tallies.values():
        tally.flush()
        names, contents = zip(*parts_of(tally), strict=True)
        yield pa.RecordBatch.from_pydict({"part": names, "content": contents})


def _count_split(split: SplitTask, tally: Tally) -> None:
    segment = split.segment
    messages = message_bytes = ranges = damaged_bytes = data_end = 0
    cells = np.zeros(MAP_CELLS, dtype=np.int64)
    listed: list[tuple[Any, ...]] = []
    for columns, found in read_split(split):
        tally.add(columns)
        if len(columns):
            messages += len(columns)
            message_bytes += int(columns.size.sum())
            data_end = int(columns.physical_offset[-1] + columns.size[-1]) - segment.base
        for one in found:
            if one.is_torn_tail and split.store.is_open:
                continue
            ranges += 1
            damaged_bytes += one.damage.range.size
            data_end = max(data_end, min(one.damage.range.stop - segment.base, segment.file_size))
            mark_cells(cells, one, segment)
            if len(listed) < DAMAGE_ROWS:
                listed.append(damage_row(tally.broker_name, one, segment))
    file = [segment.path]
    tally.add_groups(
        "files",
        {
            "file": file,
            "messages": [messages],
            "messageBytes": [message_bytes],
            "damagedRanges": [ranges],
            "damagedBytes": [damaged_bytes],
            "dataEnd": [data_end],
        },
    )
    tally.notes["unlistedDamage"] = tally.notes.get("unlistedDamage", 0) + ranges - len(listed)
    if ranges:
        marked = np.flatnonzero(cells)
        tally.add_groups(
            "cells",
            {"file": file * len(marked), "cell": marked, "damagedBytes": cells[marked]},
        )
        tally.damage += listed


def mark_cells(cells: Any, found: FoundDamage, segment: Segment) -> None:
    """Add the bytes of a damaged range to the cells of its file's map that it touches."""
    start = found.damage.range.start - segment.base
    stop = min(found.damage.range.stop - segment.base, segment.file_size)
    edges = cell_edges(segment.file_size)
    first, last = np.searchsorted(edges, [start, stop - 1], side="right") - 1
    for cell in range(int(first), min(int(last), MAP_CELLS - 1) + 1):
        cells[cell] += min(stop, int(edges[cell + 1])) - max(start, int(edges[cell]))


def cell_edges(file_size: int) -> Any:
    """Return the positions that the cells of a file's map begin at, and the file's end."""
    return np.arange(MAP_CELLS + 1, dtype=np.int64) * file_size // MAP_CELLS


def damage_row(broker_name: str, found: FoundDamage, segment: Segment) -> tuple[Any, ...]:
    """Return a row of table ``damage``."""
    damage = found.damage
    return (
        broker_name,
        segment.path,
        damage.range.start,
        damage.range.start - segment.base,
        damage.range.size,
        damage.reason.value,
        damage.evidence,
    )


def damage_table(rows: list[tuple[Any, ...]]) -> Any:
    """Return table ``damage``."""
    columns = list(zip(*rows, strict=True)) or [()] * len(DAMAGE_SCHEMA)
    return pa.table(dict(zip(DAMAGE_SCHEMA.names, columns, strict=True)), schema=DAMAGE_SCHEMA)


DAMAGE_SCHEMA: Final = pa.schema(
    [
        ("brokerName", pa.string()),
        ("file", pa.string()),
        ("physicalOffset", pa.int64()),
        ("position", pa.int64()),
        ("size", pa.int64()),
        ("reason", pa.string()),
        ("evidence", pa.string()),
    ]
)


def parts_of(tally: Tally) -> Iterator[tuple[str, bytes]]:
    """Yield what a tally has counted, as rows of `SCHEMA`."""
    notes = dict(tally.notes)
    for name, groups in tally.groups.items():
        rows = groups.settle()
        if rows is not None:
            yield name, as_bytes(rows)
        if isinstance(groups, TimeGroups):
            notes[f"{name}WidthMs"] = groups.width_ms
        if isinstance(groups, FrequentGroups):
            notes[f"{name}MissedAtMost"] = groups.missed_at_most
    if tally.damage:
        yield "damage", as_bytes(damage_table(tally.damage))
    yield "notes", json.dumps(notes).encode()
