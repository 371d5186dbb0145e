"""Table ``queues``: where each ConsumeQueue begins and ends, from a few entries of its files.

Offsets and times cost some small reads per queue. ``bytes`` is the sum over all entries, so it is
counted only for a query whose columns name it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.format.queue_entry import filler_mask, written_mask
from rocketstore.pipeline.projection import batch_of, optional_timestamps, pa
from rocketstore.pipeline.queue_range import check_brokers, is_chosen
from rocketstore.pipeline.queues import list_queues, queue_files
from rocketstore.pipeline.stores import (
    SegmentState,
    StorePlace,
    find_stores,
    list_segments,
    store_timestamp_ms,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyarrow import RecordBatch, Schema

    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.queues import QueueFiles
    from rocketstore.units import QueueKey

QUEUES_PER_TASK: Final = 256
"""Some requests each: enough work for a task, and few enough to spread on an object store."""


class QueueTask(NamedTuple):
    """Queues of one store."""

    store: StorePlace
    keys: tuple[QueueKey, ...]


class QueueBounds(NamedTuple):
    """A queue's offsets as consumers see them.

    Attributes
    ----------
    min_offset, max_offset
        Of the first message that the log still has, and the one that comes next.
    byte_count
        Bytes of the records between them; 0 unless it was asked for.
    first_ms, last_ms
        Store times of the first and the last message; None without one that can be read.
    """

    key: QueueKey
    min_offset: int
    max_offset: int
    byte_count: int
    first_ms: int | None
    last_ms: int | None


def plan(options: ReadOptions) -> list[QueueTask]:
    """Return tasks of some queues each."""
    stores = find_stores(options)
    check_brokers(stores, options)
    tasks = []
    for store in stores:
        keys = [key for key in list_queues(store.location) if is_chosen(options, store, key)]
        tasks += [
            QueueTask(store, tuple(keys[at : at + QUEUES_PER_TASK]))
            for at in range(0, len(keys), QUEUES_PER_TASK)
        ]
    return tasks


def read(
    task: QueueTask,
    options: ReadOptions,  # noqa: ARG001 - every table's signature
    schema: Schema,
) -> Iterator[RecordBatch]:
    """Yield the queues of a task."""
    found = list(bounds_of(task.store, task.keys, schema.names))
    arrays = {
        "topic": pa.array([one.key.topic for one in found], pa.string()),
        "queueId": pa.array([one.key.queue_id for one in found], pa.int32()),
        "minOffset": pa.array([one.min_offset for one in found], pa.int64()),
        "maxOffset": pa.array([one.max_offset for one in found], pa.int64()),
        "bytes": pa.array([one.byte_count for one in found], pa.int64()),
        "firstStoreTimestamp": optional_timestamps([one.first_ms for one in found]),
        "lastStoreTimestamp": optional_timestamps([one.last_ms for one in found]),
        "brokerName": pa.array([task.store.broker_name] * len(found), pa.string()),
    }
    yield batch_of(arrays, schema)


def bounds_of(
    store: StorePlace, keys: Iterable[QueueKey], names: Sequence[str]
) -> Iterator[QueueBounds]:
    """Yield the bounds of some queues; `names` are the columns that somebody asked for."""
    segments = [one for one in list_segments(store) if one.state is not SegmentState.MISSING]
    log_min = segments[0].base if segments else 0

    def time_at(entry: Any) -> int | None:
        if entry is None or not any(name.endswith("StoreTimestamp") for name in names):
            return None
        for segment in segments:
            if 0 <= entry.physical_offset - segment.base < segment.size:
                return store_timestamp_ms(store.location, segment, entry.physical_offset)
        return None

    for key in keys:
        queue = queue_files(store.location, key)
        stop = queue.written_stop()
        start = min(queue.min_offset(log_min), stop)
        byte_count = _byte_count(queue, start, stop) if "bytes" in names else 0
        first, last = queue.entry(start), queue.entry(stop - 1) if start < stop else None
        yield QueueBounds(key, start, stop, byte_count, time_at(first), time_at(last))


def _byte_count(queue: QueueFiles, start: int, stop: int) -> int:
    total = 0
    for _, entries in queue.entries(start, stop):
        is_message = written_mask(entries) & ~filler_mask(entries)
        total += int(entries["record_size"][is_message].sum(dtype="int64"))
    return total
