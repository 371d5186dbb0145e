"""Tables of the log: ``messages``, ``commitlog`` (intact records), ``damage`` and ``segments``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from rocketstore.pipeline.log_read import intact_records, read_split
from rocketstore.pipeline.planning import SplitTask, plan_log
from rocketstore.pipeline.projection import batch_of, record_batches
from rocketstore.pipeline.queue_range import LOOKS_AT_ONCE
from rocketstore.pipeline.selection import select
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
            evidence = "its neighbours are there, it is not"
            rows = [(segment.base, segment.size, "missing file", evidence)]
        else:
            found = (one.damage for _, damage in read_split(part) for one in damage)
            rows = [
                (one.range.start, one.range.size, one.reason.value, one.evidence) for one in found
            ]
        if rows:
            values = {
                "physicalOffset": [one[0] for one in rows],
                "size": [one[1] for one in rows],
                "reason": [one[2] for one in rows],
                "evidence": [one[3] for one in rows],
                "file": segment.path,
                "brokerName": part.store.broker_name,
            }
            yield batch_of(values, schema, len(rows))


def _segments(store: StorePlace, _: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield the files of a store, missing ones included, without scanning them."""
    segments = list_segments(store)
    firsts: list[int | None] = []
    if "firstStoreTimestamp" in schema.names:
        with ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
            location = store.location
            firsts += pool.map(lambda one: first_store_timestamp_ms(location, one), segments)
    if segments:
        values = {
            "physicalOffset": [one.base for one in segments],
            "size": [one.size for one in segments],
            "firstStoreTimestamp": firsts,
            "state": [one.state.value for one in segments],
            "file": [one.path for one in segments],
            "brokerName": store.broker_name,
        }
        yield batch_of(values, schema, len(segments))


TABLES: Final = {
    "messages": Table(plan_log, _records),
    "commitlog": Table(plan_log, _records),
    "damage": Table(_plan_damage, _damage),
    "segments": Table(find_stores, _segments),
}
