"""Table ``segments``: the CommitLog files of a store, without scanning them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.pipeline.projection import batch_of, optional_timestamps, pa
from rocketstore.pipeline.stores import (
    StorePlace,
    find_stores,
    first_store_timestamp_ms,
    list_segments,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyarrow import RecordBatch, Schema

    from rocketstore.pipeline.options import ReadOptions


def plan(options: ReadOptions) -> list[StorePlace]:
    """Return one task per store."""
    return find_stores(options)


def read(
    task: StorePlace,
    options: ReadOptions,  # noqa: ARG001 - every table's signature
    schema: Schema,
) -> Iterator[RecordBatch]:
    """Yield the files of a store, missing ones included."""
    segments = list_segments(task)
    if not segments:
        return
    firsts = [first_store_timestamp_ms(task.location, segment) for segment in segments]
    arrays = {
        "physicalOffset": pa.array([one.base for one in segments], pa.int64()),
        "size": pa.array([one.size for one in segments], pa.int64()),
        "firstStoreTimestamp": optional_timestamps(firsts),
        "state": pa.array([one.state.value for one in segments], pa.string()),
        "file": pa.array([one.path for one in segments], pa.string()),
        "brokerName": pa.array([task.broker_name] * len(segments), pa.string()),
    }
    yield batch_of(arrays, schema)
