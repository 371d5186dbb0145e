"""Table ``damage``: every range of the log that holds no record and should, once each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.pipeline.log_read import read_split
from rocketstore.pipeline.planning import SplitTask, plan_log
from rocketstore.pipeline.projection import batch_of, pa
from rocketstore.pipeline.stores import SegmentState, find_stores, list_segments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyarrow import RecordBatch, Schema

    from rocketstore.pipeline.options import ReadOptions

MISSING_FILE = "missing file"


def plan(options: ReadOptions) -> list[tuple[SplitTask, ...]]:
    """Return tasks that scan every file, and one that lists the missing ones."""
    holes = tuple(
        SplitTask(store, segment, 0, 0, ())
        for store in find_stores(options)
        for segment in list_segments(store)
        if segment.state is SegmentState.MISSING
    )
    tasks = plan_log(options)
    return [*tasks, holes] if holes else tasks


def read(
    task: tuple[SplitTask, ...],
    options: ReadOptions,  # noqa: ARG001 - every table's signature
    schema: Schema,
) -> Iterator[RecordBatch]:
    """Yield the damage that begins in a task's byte ranges."""
    for part in task:
        rows = list(_rows(part))
        if rows:
            offsets, sizes, reasons, evidence = zip(*rows, strict=True)
            count = len(rows)
            arrays = {
                "physicalOffset": pa.array(offsets, pa.int64()),
                "size": pa.array(sizes, pa.int64()),
                "reason": pa.array(reasons, pa.string()),
                "evidence": pa.array(evidence, pa.string()),
                "file": pa.array([part.segment.path] * count, pa.string()),
                "brokerName": pa.array([part.store.broker_name] * count, pa.string()),
            }
            yield batch_of(arrays, schema)


def _rows(part: SplitTask) -> Iterator[tuple[int, int, str, str]]:
    segment = part.segment
    if segment.state is SegmentState.MISSING:
        yield segment.base, segment.size, MISSING_FILE, "its neighbours are there, it is not"
        return
    for _, found in read_split(part):
        for one in found:
            damage = one.damage
            yield damage.range.start, damage.range.size, damage.reason.value, damage.evidence
