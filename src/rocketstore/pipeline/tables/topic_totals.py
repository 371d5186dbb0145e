"""Table ``topics``: each topic's queues together, and how the broker has the topic configured.

A topic that ``topics.json`` has and no queue is a row without messages; one that only queues have
is a row without a configuration.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from rocketstore.format.metadata_json import TOPICS_FILE, TopicTable
from rocketstore.pipeline.metadata_files import read_metadata
from rocketstore.pipeline.projection import batch_of, optional_timestamps, pa
from rocketstore.pipeline.queue_range import check_brokers, is_chosen
from rocketstore.pipeline.queues import list_queues
from rocketstore.pipeline.stores import StorePlace, find_stores
from rocketstore.pipeline.tables.queue_bounds import QUEUES_PER_TASK, QueueBounds, bounds_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyarrow import RecordBatch, Schema

    from rocketstore.format.metadata_json import TopicConfig
    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.units import QueueKey


class TopicRows(NamedTuple):
    """Topics of one store, each with its queues and what ``topics.json`` says of it."""

    store: StorePlace
    topics: tuple[tuple[str, tuple[QueueKey, ...], TopicConfig | None], ...]


def plan(options: ReadOptions) -> list[TopicRows]:
    """Return tasks of whole topics."""
    stores = find_stores(options)
    check_brokers(stores, options)
    return [task for store in stores for task in _tasks_of(store, options)]


def _tasks_of(store: StorePlace, options: ReadOptions) -> Iterator[TopicRows]:
    table = read_metadata(store, TOPICS_FILE, TopicTable)
    configured = table.topic_config_table if table is not None else {}
    keys = [key for key in list_queues(store.location) if is_chosen(options, store, key)]
    queues = {topic: tuple(group) for topic, group in groupby(keys, lambda key: key.topic)}
    names = sorted(queues | {name: () for name in configured if options.wants_topic(name)})
    group: list[tuple[str, tuple[QueueKey, ...], TopicConfig | None]] = []
    for name in names:
        group.append((name, queues.get(name, ()), configured.get(name)))
        if sum(1 + len(one[1]) for one in group) >= QUEUES_PER_TASK:
            yield TopicRows(store, tuple(group))
            group = []
    if group:
        yield TopicRows(store, tuple(group))


def read(
    task: TopicRows,
    options: ReadOptions,  # noqa: ARG001 - every table's signature
    schema: Schema,
) -> Iterator[RecordBatch]:
    """Yield the topics of a task."""
    keys = [key for _, queues, _ in task.topics for key in queues]
    found: dict[str, list[QueueBounds]] = {name: [] for name, _, _ in task.topics}
    for one in bounds_of(task.store, keys, schema.names):
        found[one.key.topic].append(one)
    queues = list(found.values())
    configured = [config for _, _, config in task.topics]
    firsts = [[one.first_ms for one in group if one.first_ms is not None] for group in queues]
    lasts = [[one.last_ms for one in group if one.last_ms is not None] for group in queues]
    counts = [sum(one.max_offset - one.min_offset for one in group) for group in queues]
    arrays = {
        "topic": pa.array(list(found), pa.string()),
        "queueCount": pa.array([len(group) for group in queues], pa.int32()),
        "messageCount": pa.array(counts, pa.int64()),
        "bytes": pa.array([sum(one.byte_count for one in group) for group in queues], pa.int64()),
        "firstStoreTimestamp": optional_timestamps([min(times, default=None) for times in firsts]),
        "lastStoreTimestamp": optional_timestamps([max(times, default=None) for times in lasts]),
        "brokerName": pa.array([task.store.broker_name] * len(queues), pa.string()),
    }
    for name, field in (
        ("readQueueNums", "read_queue_nums"),
        ("writeQueueNums", "write_queue_nums"),
        ("perm", "perm"),
    ):
        values = [None if one is None else getattr(one, field) for one in configured]
        arrays[name] = pa.array(values, pa.int32())
    yield batch_of(arrays, schema)
