"""Table ``consumers``: how far each group has come in each queue, from ``consumerOffset.json``.

``lag`` is the end of the queue less the group's offset, as the broker's own tools have it: negative
for a group that is ahead of a queue which lost messages. A queue that is not there ends at 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.format.metadata_json import CONSUMER_OFFSETS_FILE, ConsumerOffsets
from rocketstore.pipeline.metadata_files import read_metadata
from rocketstore.pipeline.projection import batch_of, pa
from rocketstore.pipeline.queue_range import check_brokers, is_chosen
from rocketstore.pipeline.queues import queue_files
from rocketstore.pipeline.stores import StorePlace, find_stores
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyarrow import RecordBatch, Schema

    from rocketstore.pipeline.options import ReadOptions


def plan(options: ReadOptions) -> list[StorePlace]:
    """Return one task per store."""
    stores = find_stores(options)
    check_brokers(stores, options)
    return stores


def read(
    task: StorePlace,
    options: ReadOptions,
    schema: Schema,
) -> Iterator[RecordBatch]:
    """Yield each group's place in each queue that it has committed an offset of."""
    # The offsets first: messages that come meanwhile are lag, and none is ahead of its queue.
    table = read_metadata(task, CONSUMER_OFFSETS_FILE, ConsumerOffsets)
    rows = [
        (group, QueueKey(topic, queue_id), offset)
        for name, offsets in sorted((table.offset_table if table is not None else {}).items())
        for topic, _, group in [name.partition("@")]
        for queue_id, offset in sorted(offsets.items())
        if is_chosen(options, task, QueueKey(topic, queue_id))
    ]
    ends = {
        key: queue_files(task.location, key).written_stop()
        for key in sorted({key for _, key, _ in rows})
    }
    offsets = pa.array([offset for _, _, offset in rows], pa.int64())
    lags = [ends[key] - offset for _, key, offset in rows]
    arrays = {
        "group": pa.array([group for group, _, _ in rows], pa.string()),
        "topic": pa.array([key.topic for _, key, _ in rows], pa.string()),
        "queueId": pa.array([key.queue_id for _, key, _ in rows], pa.int32()),
        "offset": offsets,
        "maxOffset": pa.array([ends[key] for _, key, _ in rows], pa.int64()),
        "lag": pa.array(lags, pa.int64()),
        "brokerName": pa.array([task.broker_name] * len(rows), pa.string()),
    }
    yield batch_of(arrays, schema)
