"""Tables ``queues``, ``topics`` and ``consumers``: what a few entries and the broker's JSON say.

Offsets and times cost some small reads per queue. ``bytes`` is a sum over all entries, so it is
counted only for a query whose columns name it.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rocketstore.format.metadata_json import (
    CONSUMER_OFFSETS_FILE,
    TOPICS_FILE,
    ConsumerOffsets,
    TopicConfig,
    TopicTable,
)
from rocketstore.format.queue_entry import filler_mask, written_mask
from rocketstore.pipeline.planning import grouped, segment_at
from rocketstore.pipeline.projection import rows_batch
from rocketstore.pipeline.queues import check_brokers, is_chosen, list_queues, queue_files
from rocketstore.pipeline.stores import (
    SegmentState,
    StorePlace,
    find_stores,
    list_segments,
    read_metadata,
    store_timestamp_ms,
)
from rocketstore.pipeline.tables import Table
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyarrow import RecordBatch, Schema

    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.queues import QueueFiles

QUEUES_PER_TASK: Final = 256
"""Some requests each: enough work for a task, and few enough to spread on an object store."""

QueueTask: TypeAlias = tuple[StorePlace, tuple[QueueKey, ...]]

Topic: TypeAlias = tuple[str, tuple[QueueKey, ...], TopicConfig | None]
"""A topic, its chosen queues and what ``topics.json`` says of it, if it does."""

TopicTask: TypeAlias = tuple[StorePlace, tuple[Topic, ...]]


def _stores(options: ReadOptions) -> list[StorePlace]:
    stores = find_stores(options)
    check_brokers(stores, options)
    return stores


def _chosen_queues(store: StorePlace, options: ReadOptions) -> list[QueueKey]:
    return [key for key in list_queues(store.location) if is_chosen(options, store, key)]


def _plan_queues(options: ReadOptions) -> list[QueueTask]:
    return [
        (store, keys)
        for store in _stores(options)
        for keys in grouped(_chosen_queues(store, options), QUEUES_PER_TASK, lambda _: 1)
    ]


def _queues(task: QueueTask, _: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    store, keys = task
    yield rows_batch(list(_bounds(store, keys, schema.names)), schema, brokerName=store.broker_name)


def _bounds(
    store: StorePlace, keys: Sequence[QueueKey], names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield rows of queues as consumers see them; `names` are the columns that are asked for."""
    segments = [one for one in list_segments(store) if one.state is not SegmentState.MISSING]
    log_min = segments[0].base if segments else 0
    has_times = any(name.endswith("StoreTimestamp") for name in names)

    def time_at(queue: QueueFiles, number: int) -> int | None:
        entry = queue.entry(number) if has_times else None
        segment = None if entry is None else segment_at(segments, entry.physical_offset)
        if entry is None or segment is None:
            return None
        return store_timestamp_ms(store.location, segment, entry.physical_offset)

    for key in keys:
        queue = queue_files(store.location, key)
        stop = queue.written_stop()
        start = min(queue.min_offset(log_min), stop)
        yield {
            "topic": key.topic,
            "queueId": key.queue_id,
            "minOffset": start,
            "maxOffset": stop,
            "bytes": _byte_count(queue, start, stop) if "bytes" in names else 0,
            "firstStoreTimestamp": time_at(queue, start) if start < stop else None,
            "lastStoreTimestamp": time_at(queue, stop - 1) if start < stop else None,
        }


def _byte_count(queue: QueueFiles, start: int, stop: int) -> int:
    total = 0
    for _, entries in queue.entries(start, stop):
        is_message = written_mask(entries) & ~filler_mask(entries)
        total += int(entries["record_size"][is_message].sum(dtype="int64"))
    return total


def _plan_topics(options: ReadOptions) -> list[TopicTask]:
    """Return tasks of whole topics: those that have queues, and those that are configured."""
    tasks: list[TopicTask] = []
    for store in _stores(options):
        table = read_metadata(store, TOPICS_FILE, TopicTable)
        configured = table.topic_config_table if table is not None else {}
        keys = _chosen_queues(store, options)
        queues = {topic: tuple(group) for topic, group in groupby(keys, lambda key: key.topic)}
        names = sorted(queues | {name: () for name in configured if options.wants_topic(name)})
        topics: list[Topic] = [(name, queues.get(name, ()), configured.get(name)) for name in names]
        groups = grouped(topics, QUEUES_PER_TASK, lambda topic: 1 + len(topic[1]))
        tasks += [(store, group) for group in groups]
    return tasks


def _topics(task: TopicTask, _options: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield topics, each with its queues together."""
    store, topics = task
    found: dict[str, list[dict[str, Any]]] = {name: [] for name, _, _ in topics}
    for one in _bounds(store, [key for _, keys, _ in topics for key in keys], schema.names):
        found[one["topic"]].append(one)
    rows = []
    for name, _, config in topics:
        queues = found[name]
        times = {
            column: [one[column] for one in queues if one[column] is not None]
            for column in ("firstStoreTimestamp", "lastStoreTimestamp")
        }
        rows.append(
            {
                "topic": name,
                "queueCount": len(queues),
                "messageCount": sum(one["maxOffset"] - one["minOffset"] for one in queues),
                "bytes": sum(one["bytes"] for one in queues),
                "firstStoreTimestamp": min(times["firstStoreTimestamp"], default=None),
                "lastStoreTimestamp": max(times["lastStoreTimestamp"], default=None),
                "readQueueNums": config and config.read_queue_nums,
                "writeQueueNums": config and config.write_queue_nums,
                "perm": config and config.perm,
            }
        )
    yield rows_batch(rows, schema, brokerName=store.broker_name)


def _consumers(store: StorePlace, options: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield each group's place in each queue that it has committed an offset of.

    The lag is the queue's end less the group's offset, as the broker's own tools have it: negative
    for a group that is ahead of a queue which lost messages. A queue that is not there ends at 0.
    """
    # The offsets first: messages that come meanwhile are lag, and none is ahead of its queue.
    table = read_metadata(store, CONSUMER_OFFSETS_FILE, ConsumerOffsets)
    ends: dict[QueueKey, int] = {}
    rows = []
    for name, offsets in sorted((table.offset_table if table is not None else {}).items()):
        topic, _, group = name.partition("@")
        for queue_id, offset in sorted(offsets.items()):
            key = QueueKey(topic, queue_id)
            if not is_chosen(options, store, key):
                continue
            if key not in ends:
                ends[key] = queue_files(store.location, key).written_stop()
            rows.append(
                {
                    "group": group,
                    "topic": topic,
                    "queueId": queue_id,
                    "offset": offset,
                    "maxOffset": ends[key],
                    "lag": ends[key] - offset,
                }
            )
    yield rows_batch(rows, schema, brokerName=store.broker_name)


TABLES: Final = {
    "queues": Table(_plan_queues, _queues),
    "topics": Table(_plan_topics, _topics),
    "consumers": Table(_stores, _consumers),
}
