"""Tables ``queues``, ``topics`` and ``consumers``: what a few entries and the broker's JSON say.

Offsets and times cost some small reads per queue. ``bytes`` is a sum over all entries, so it is
counted only for a query whose columns name it.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.format.metadata_json import (
    CONSUMER_OFFSETS_FILE,
    TOPICS_FILE,
    ConsumerOffsets,
    TopicTable,
)
from rocketstore.format.queue_entry import filler_mask, written_mask
from rocketstore.pipeline.metadata_files import read_metadata
from rocketstore.pipeline.planning import grouped
from rocketstore.pipeline.projection import batch_of
from rocketstore.pipeline.queue_range import check_brokers, is_chosen, segment_at
from rocketstore.pipeline.queues import list_queues, queue_files
from rocketstore.pipeline.stores import (
    SegmentState,
    StorePlace,
    find_stores,
    list_segments,
    store_timestamp_ms,
)
from rocketstore.pipeline.tables import Table
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyarrow import RecordBatch, Schema

    from rocketstore.format.metadata_json import TopicConfig
    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.queues import QueueFiles

QUEUES_PER_TASK: Final = 256
"""Some requests each: enough work for a task, and few enough to spread on an object store."""


class TopicRow(NamedTuple):
    """A topic with its chosen queues and what ``topics.json`` says of it, if it does."""

    name: str
    queues: tuple[QueueKey, ...]
    config: TopicConfig | None


class TopicTask(NamedTuple):
    """Topics of one store; of a topic with many queues perhaps not all of them."""

    store: StorePlace
    topics: tuple[TopicRow, ...]


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


def _chosen_stores(options: ReadOptions) -> list[StorePlace]:
    stores = find_stores(options)
    check_brokers(stores, options)
    return stores


def _chosen_queues(store: StorePlace, options: ReadOptions) -> list[QueueKey]:
    return [key for key in list_queues(store.location) if is_chosen(options, store, key)]


def _plan_queues(options: ReadOptions) -> list[tuple[StorePlace, tuple[QueueKey, ...]]]:
    """Return tasks of some queues each."""
    return [
        (store, keys)
        for store in _chosen_stores(options)
        for keys in grouped(_chosen_queues(store, options), QUEUES_PER_TASK, lambda _: 1)
    ]


def _queues(
    task: tuple[StorePlace, tuple[QueueKey, ...]], _: ReadOptions, schema: Schema
) -> Iterator[RecordBatch]:
    """Yield where queues begin and end."""
    store, keys = task
    found = list(bounds_of(store, keys, schema.names))
    values = {
        "topic": [one.key.topic for one in found],
        "queueId": [one.key.queue_id for one in found],
        "minOffset": [one.min_offset for one in found],
        "maxOffset": [one.max_offset for one in found],
        "bytes": [one.byte_count for one in found],
        "firstStoreTimestamp": [one.first_ms for one in found],
        "lastStoreTimestamp": [one.last_ms for one in found],
        "brokerName": store.broker_name,
    }
    yield batch_of(values, schema, len(found))


def bounds_of(
    store: StorePlace, keys: Iterable[QueueKey], names: Sequence[str]
) -> Iterator[QueueBounds]:
    """Yield the bounds of some queues; `names` are the columns that somebody asked for."""
    segments = [one for one in list_segments(store) if one.state is not SegmentState.MISSING]
    log_min = segments[0].base if segments else 0
    has_times = any(name.endswith("StoreTimestamp") for name in names)

    def time_at(queue: QueueFiles, number: int) -> int | None:
        entry = queue.entry(number) if has_times else None
        segment = segment_at(segments, entry.physical_offset) if entry is not None else None
        if entry is None or segment is None:
            return None
        return store_timestamp_ms(store.location, segment, entry.physical_offset)

    for key in keys:
        queue = queue_files(store.location, key)
        stop = queue.written_stop()
        start = min(queue.min_offset(log_min), stop)
        byte_count = _byte_count(queue, start, stop) if "bytes" in names else 0
        ends = (start, stop - 1) if start < stop else (stop, stop)
        yield QueueBounds(key, start, stop, byte_count, *(time_at(queue, end) for end in ends))


def _byte_count(queue: QueueFiles, start: int, stop: int) -> int:
    total = 0
    for _, entries in queue.entries(start, stop):
        is_message = written_mask(entries) & ~filler_mask(entries)
        total += int(entries["record_size"][is_message].sum(dtype="int64"))
    return total


# --- topics -------------------------------------------------------------------------------------


def _plan_topics(options: ReadOptions) -> list[TopicTask]:
    """Return tasks of whole topics: those that have queues, and those that are configured."""
    tasks = []
    for store in _chosen_stores(options):
        table = read_metadata(store, TOPICS_FILE, TopicTable)
        configured = table.topic_config_table if table is not None else {}
        keys = _chosen_queues(store, options)
        queues = {topic: tuple(group) for topic, group in groupby(keys, lambda key: key.topic)}
        names = sorted(queues | {name: () for name in configured if options.wants_topic(name)})
        rows = [TopicRow(name, queues.get(name, ()), configured.get(name)) for name in names]
        groups = grouped(rows, QUEUES_PER_TASK, lambda row: 1 + len(row.queues))
        tasks += [TopicTask(store, group) for group in groups]
    return tasks


def _topics(task: TopicTask, _: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield topics, each with its queues together."""
    keys = [key for row in task.topics for key in row.queues]
    found: dict[str, list[QueueBounds]] = {row.name: [] for row in task.topics}
    for one in bounds_of(task.store, keys, schema.names):
        found[one.key.topic].append(one)
    queues = list(found.values())
    firsts = [[one.first_ms for one in group if one.first_ms is not None] for group in queues]
    lasts = [[one.last_ms for one in group if one.last_ms is not None] for group in queues]
    values: dict[str, Any] = {
        "topic": list(found),
        "queueCount": [len(group) for group in queues],
        "messageCount": [sum(one.max_offset - one.min_offset for one in group) for group in queues],
        "bytes": [sum(one.byte_count for one in group) for group in queues],
        "firstStoreTimestamp": [min(times, default=None) for times in firsts],
        "lastStoreTimestamp": [max(times, default=None) for times in lasts],
        "readQueueNums": [row.config and row.config.read_queue_nums for row in task.topics],
        "writeQueueNums": [row.config and row.config.write_queue_nums for row in task.topics],
        "perm": [row.config and row.config.perm for row in task.topics],
        "brokerName": task.store.broker_name,
    }
    yield batch_of(values, schema, len(queues))


# --- consumers ----------------------------------------------------------------------------------


def _consumers(store: StorePlace, options: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield each group's place in each queue that it has committed an offset of.

    The lag is the queue's end less the group's offset, as the broker's own tools have it: negative
    for a group that is ahead of a queue which lost messages. A queue that is not there ends at 0.
    """
    # The offsets first: messages that come meanwhile are lag, and none is ahead of its queue.
    table = read_metadata(store, CONSUMER_OFFSETS_FILE, ConsumerOffsets)
    rows = [
        (group, QueueKey(topic, queue_id), offset)
        for name, offsets in sorted((table.offset_table if table is not None else {}).items())
        for topic, _, group in [name.partition("@")]
        for queue_id, offset in sorted(offsets.items())
        if is_chosen(options, store, QueueKey(topic, queue_id))
    ]
    keys = {key for _, key, _ in rows}
    ends = {key: queue_files(store.location, key).written_stop() for key in sorted(keys)}
    values = {
        "group": [group for group, _, _ in rows],
        "topic": [key.topic for _, key, _ in rows],
        "queueId": [key.queue_id for _, key, _ in rows],
        "offset": [offset for _, _, offset in rows],
        "maxOffset": [ends[key] for _, key, _ in rows],
        "lag": [ends[key] - offset for _, key, offset in rows],
        "brokerName": store.broker_name,
    }
    yield batch_of(values, schema, len(rows))


TABLES: Final = {
    "queues": Table(_plan_queues, _queues),
    "topics": Table(_plan_topics, _topics),
    "consumers": Table(_chosen_stores, _consumers),
}
