"""Tables of the log: ``messages``, ``commitlog`` (intact records), ``damage`` and ``segments``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from rocketstore.pipeline.log_read import intact_records, read_split
from rocketstore.pipeline.planning import LOOKS_AT_ONCE, SplitTask, plan_log
from rocketstore.pipeline.projection import record_batches, rows_batch, select
from rocketstore.pipeline.stores import (
    SegmentState,
    StorePlace,
    find_stores,
    first_store_timestamp_ms,
    list_segments,
)
from rocketstore.pipeline.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyarrow import RecordBatch, Schema

    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.stores import Segment


def _records(
    task: tuple[SplitTask, ...], options: ReadOptions, schema: Schema
) -> Iterator[RecordBatch]:
    """Yield the wanted records of a task's byte ranges."""
    for part in task:
        broker = part.store.broker_name
        for columns in intact_records(part, options):
            wanted = select(columns, options, part.queue_ranges, broker)
            if len(wanted):
                yield from record_batches(
                    wanted, schema, broker=broker, decompress=options.decompress_body
                )


def _plan_damage(options: ReadOptions) -> list[tuple[SplitTask, ...]]:
    """Return tasks that scan every file, and one that lists the missing ones."""
    holes = tuple(
        SplitTask(store, segment, 0, 0, ())
        for store in find_stores(options)
        for segment in list_segments(store)
        if segment.state is SegmentState.MISSING
    )
    tasks = plan_log(options)
    return [*tasks, holes] if holes else tasks


def _damage(task: tuple[SplitTask, ...], _: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield the damage that begins in a task's byte ranges, once each."""
    for part in task:
        segment = part.segment
        if segment.state is SegmentState.MISSING:
            found = [(segment.base, segment.size, "missing file", "its neighbours are there")]
        else:
            damage = [one.damage for _, damage in read_split(part) for one in damage]
            found = [
                (one.range.start, one.range.size, one.reason.value, one.evidence) for one in damage
            ]
        rows = [dict(zip(_DAMAGE, values, strict=True)) for values in found]
        if rows:
            yield rows_batch(rows, schema, file=segment.path, brokerName=part.store.broker_name)


def _segments(store: StorePlace, _: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield the files of a store, missing ones included, without scanning them."""

    def row(segment: Segment) -> dict[str, Any]:
        is_asked = "firstStoreTimestamp" in schema.names
        return {
            "physicalOffset": segment.base,
            "size": segment.size,
            "firstStoreTimestamp": (
                first_store_timestamp_ms(store.location, segment) if is_asked else None
            ),
            "state": segment.state.value,
            "file": segment.path,
        }

    with ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
        rows = list(pool.map(row, list_segments(store)))
    yield rows_batch(rows, schema, brokerName=store.broker_name)


_DAMAGE: Final = ("physicalOffset", "size", "reason", "evidence")

TABLES: Final = {
    "messages": Table(plan_log, _records),
    "commitlog": Table(plan_log, _records),
    "damage": Table(_plan_damage, _damage),
    "segments": Table(find_stores, _segments),
}
