"""The tables of the data source: how each is planned and read.

``messages`` and ``commitlog`` are intact records, ``damage`` and ``segments`` the rest of a log.
``consumequeue`` and ``index`` are entries as they are stored: fillers are rows, and so are entries
whose record has expired; what was never written is not. A key is in the index only as its hash, and
a time as seconds since its file's begin. ``queues``, ``topics`` and ``consumers`` are what a few
entries and the broker's JSON say, some small reads for each queue; ``bytes`` is a sum over all
entries, so it is counted only for a query whose columns name it.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from rocketstore.errors import ConfigError, FormatError, StoreError
from rocketstore.format.index_file import (
    FIRST_ITEM,
    INDEX_HEADER_SIZE,
    ITEM_DTYPE,
    ITEM_SIZE_BYTES,
    IndexHeader,
    IndexLayout,
    decode_header,
    is_index_file_name,
    layout_of,
    used_item_count,
)
from rocketstore.format.markers import INDEX_DIRECTORY
from rocketstore.format.metadata_json import (
    CONSUMER_OFFSETS_FILE,
    TOPICS_FILE,
    ConsumerOffsets,
    TopicConfig,
    TopicTable,
)
from rocketstore.format.queue_entry import ENTRY_DTYPE, ENTRY_SIZE_BYTES, written_mask
from rocketstore.pipeline.files import files_at, read_part
from rocketstore.pipeline.log_read import intact_records, read_split
from rocketstore.pipeline.options import ANY_BROKER
from rocketstore.pipeline.planning import (
    LOOKS_AT_ONCE,
    SplitTask,
    bytes_per_task,
    grouped,
    plan_log,
)
from rocketstore.pipeline.projection import batch_of, rows_batch, wanted_batches
from rocketstore.pipeline.queues import (
    ALL_OFFSETS,
    QueueFile,
    QueueFiles,
    chosen_queues,
    chosen_stores,
    is_chosen,
    queue_ranges,
    stored_rows,
)
from rocketstore.pipeline.stores import (
    StorePlace,
    find_stores,
    list_segments,
    read_metadata,
    segment_at,
    store_timestamp_ms,
)
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyarrow import RecordBatch, Schema

    from rocketstore.pipeline.files import FileEntry
    from rocketstore.pipeline.options import ReadOptions

QUEUES_PER_TASK: Final = 256
"""Some requests each: enough work for a task, and few enough to spread on an object store."""


class Table(NamedTuple):
    """A table: two functions, between which its tasks are pickled.

    `plan` returns the tasks of a read, where the query is planned; `read` yields the rows of one
    task as batches of a schema, on an executor.
    """

    plan: Callable[[ReadOptions], list[Any]]
    read: Callable[[Any, ReadOptions, Schema], Iterator[RecordBatch]]


# --- the log ------------------------------------------------------------------------------------


def _records(
    task: tuple[SplitTask, ...], options: ReadOptions, schema: Schema
) -> Iterator[RecordBatch]:
    """Yield the wanted records of a task's byte ranges."""
    for part in task:
        broker = part.store.broker_name
        for columns in intact_records(part, options):
            yield from wanted_batches(columns, options, part.queue_ranges, broker, schema)


def _damage(task: tuple[SplitTask, ...], _: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield the damage that begins in a task's byte ranges, once each."""
    for part in task:
        segment = part.segment
        if segment.is_missing:
            hole = (segment.base, segment.size, "missing file", "its neighbours are there")
            found = [hole] * (part.start == 0)
        else:
            damage = [one.damage for _, damage in read_split(part) for one in damage]
            found = [
                (one.range.start, one.range.size, one.reason.value, one.evidence) for one in damage
            ]
        names = ("physicalOffset", "size", "reason", "evidence")
        rows = [dict(zip(names, values, strict=True)) for values in found]
        if rows:
            yield rows_batch(rows, schema, file=segment.path, brokerName=part.store.broker_name)


def _segments(store: StorePlace, _: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield the files of a store, missing ones included, without scanning them."""
    segments, place = list_segments(store), store.location
    times: Iterable[int | None] = [None] * len(segments)
    if "firstStoreTimestamp" in schema.names:
        with ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
            times = list(pool.map(partial(store_timestamp_ms, place), segments))
    rows = [
        {
            "physicalOffset": one.base,
            "size": one.size,
            "firstStoreTimestamp": time,
            "state": one.state.value,
            "file": one.path,
        }
        for one, time in zip(segments, times, strict=True)
    ]
    yield rows_batch(rows, schema, brokerName=store.broker_name)


# --- entries and items as they are stored -------------------------------------------------------


class EntryTask(NamedTuple):
    """Entries of one queue file; `first` and `last` are queue offsets, `last` not included."""

    store: StorePlace
    key: QueueKey
    file: QueueFile
    first: int
    last: int

    @property
    def byte_count(self) -> int:
        """Bytes to read."""
        return (self.last - self.first) * ENTRY_SIZE_BYTES


def _plan_entries(options: ReadOptions) -> list[tuple[EntryTask, ...]]:
    """Return tasks of about `maxSplitBytes` of queue files each."""
    pieces = [piece for store in chosen_stores(options) for piece in _entries_of(store, options)]
    limit = bytes_per_task(sum(piece.byte_count for piece in pieces), options)
    return grouped(pieces, limit, lambda piece: piece.byte_count)


def _entries_of(store: StorePlace, options: ReadOptions) -> Iterator[EntryTask]:
    chosen = chosen_queues(store, options)
    for place in sorted(options.queues or ()) if options.fail_on_data_loss else ():
        key = QueueKey(place.topic, place.queue_id)
        if place.broker in (ANY_BROKER, store.broker_name) and key not in chosen:
            raise StoreError(
                f"{store.location} has no queue {key}",
                hint='to read what is there: option("failOnDataLoss", "false")',
            )
    segments = list_segments(store) if options.has_offsets else ()
    ranges = queue_ranges(store, segments, options)
    for key in chosen:
        wanted = ranges.get(key, ALL_OFFSETS)
        for file in QueueFiles(store.location, key).files:
            first = max(file.first, wanted.start)
            last = min(file.first + file.entry_count, wanted.stop)
            if first < last:
                yield EntryTask(store, key, file, first, last)


def _entries(task: tuple[EntryTask, ...], _: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield the written entries of a task."""
    for part in task:
        position = (part.first - part.file.first) * ENTRY_SIZE_BYTES
        count = part.last - part.first
        for at, found in stored_rows(
            part.store.location, part.file.path, position, count, ENTRY_DTYPE
        ):
            is_written = written_mask(found)
            entries = found[is_written]
            values = {
                "topic": part.key.topic,
                "queueId": part.key.queue_id,
                "queueOffset": part.first + at + np.flatnonzero(is_written),
                "physicalOffset": entries["physical_offset"].astype(np.int64),
                "size": entries["record_size"].astype(np.int32),
                "tagsCode": entries["tags_code"].astype(np.int64),
                "brokerName": part.store.broker_name,
            }
            if len(entries):
                yield batch_of(values, schema, len(entries))


class ItemTask(NamedTuple):
    """Items `first` to `last` (not included) of one index file."""

    store: StorePlace
    path: str
    layout: IndexLayout
    header: IndexHeader
    first: int
    last: int


def _plan_items(options: ReadOptions) -> list[ItemTask]:
    """Return tasks of about `maxSplitBytes` of items each."""
    pieces = [piece for store in find_stores(options) for piece in _index_files(store, options)]
    total = sum(one.last - one.first for one in pieces) * ITEM_SIZE_BYTES
    limit = max(1, bytes_per_task(total, options) // ITEM_SIZE_BYTES)
    return [
        piece._replace(first=first, last=min(first + limit, piece.last))
        for piece in pieces
        for first in range(piece.first, piece.last, limit)
    ]


def _index_files(store: StorePlace, options: ReadOptions) -> Iterator[ItemTask]:
    files, root = files_at(store.location)
    for entry in files.list(f"{root}/{INDEX_DIRECTORY}"):
        if entry.is_directory or not is_index_file_name(entry.name):
            continue
        layout = _layout(entry, options)
        try:
            header = decode_header(read_part(store.location, entry.path, 0, INDEX_HEADER_SIZE))
        except FormatError as error:
            raise StoreError(
                f"{entry.path} is no index file: it has {entry.size} bytes",
                hint="move it away; `rocketstore index rebuild` makes the index again",
            ) from error
        last = used_item_count(header, layout)
        yield ItemTask(store, entry.path, layout, header, FIRST_ITEM, last)


def _layout(entry: FileEntry, options: ReadOptions) -> IndexLayout:
    problem = "slots and items cannot be learnt from that"
    with contextlib.suppress(FormatError):
        layout = IndexLayout(*options.layout) if options.layout else layout_of(entry.size)
        # A file may be cut off. One that is longer has other slots and items than these.
        if entry.size <= layout.size_bytes:
            return layout
        counts = f"{layout.slot_count} slots and {layout.item_count} items"
        problem = f"a file of {counts} has {layout.size_bytes}"
    raise ConfigError(
        f"{entry.path} has {entry.size} bytes: {problem}",
        key="maxHashSlotNum",
        hint="give the options maxHashSlotNum and maxIndexNum as in the store's broker.conf",
    )


def _items(task: ItemTask, _: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    position, count = task.layout.item_position(task.first), task.last - task.first
    for at, items in stored_rows(task.store.location, task.path, position, count, ITEM_DTYPE):
        hashes = items["key_hash"].astype(np.int32)
        seconds = items["time_difference_s"].astype(np.int64)
        values = {
            "keyHash": hashes,
            "physicalOffset": items["physical_offset"].astype(np.int64),
            "storeTimestamp": task.header.begin_timestamp_ms + seconds * 1000,
            "itemNumber": np.arange(task.first + at, task.first + at + len(items)),
            "previousItem": items["previous_item"].astype(np.int32),
            "slot": hashes % np.int32(task.layout.slot_count),
            "file": task.path,
            "brokerName": task.store.broker_name,
        }
        if len(items):
            yield batch_of(values, schema, len(items))


# --- queues, topics, consumers ------------------------------------------------------------------

QueueTask: TypeAlias = tuple[StorePlace, tuple[QueueKey, ...]]

Topic: TypeAlias = tuple[str, tuple[QueueKey, ...], TopicConfig | None]
"""A topic, its chosen queues and what ``topics.json`` says of it, if it does."""

TopicTask: TypeAlias = tuple[StorePlace, tuple[Topic, ...]]


def _plan_queues(options: ReadOptions) -> list[QueueTask]:
    return [
        (store, keys)
        for store in chosen_stores(options)
        for keys in grouped(chosen_queues(store, options), QUEUES_PER_TASK, lambda _: 1)
    ]


def _queues(task: QueueTask, _: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    store, keys = task
    yield rows_batch(list(_bounds(store, keys, schema.names)), schema, brokerName=store.broker_name)


def _bounds(
    store: StorePlace, keys: Sequence[QueueKey], names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield rows of queues as consumers see them; `names` are the columns that are asked for."""
    segments = [one for one in list_segments(store) if not one.is_missing]
    log_min = segments[0].base if segments else 0
    has_times = any(name.endswith("StoreTimestamp") for name in names)

    def time_at(queue: QueueFiles, number: int) -> int | None:
        entry = queue.entry(number) if has_times else None
        at = -1 if entry is None else entry.physical_offset
        return store_timestamp_ms(store.location, segment_at(segments, at), at)

    for key in keys:
        queue = QueueFiles(store.location, key)
        start, stop = queue.min_offset(log_min), queue.written_stop
        yield {
            "topic": key.topic,
            "queueId": key.queue_id,
            "minOffset": start,
            "maxOffset": stop,
            "bytes": sum(
                int(entries["record_size"].sum(dtype="int64"))
                for _, entries in (queue.messages(start, stop) if "bytes" in names else ())
            ),
            "firstStoreTimestamp": time_at(queue, start) if start < stop else None,
            "lastStoreTimestamp": time_at(queue, stop - 1) if start < stop else None,
        }


def _plan_topics(options: ReadOptions) -> list[TopicTask]:
    """Return tasks of whole topics: those that have queues, and those that are configured."""
    tasks: list[TopicTask] = []
    for store in chosen_stores(options):
        table = read_metadata(store, TOPICS_FILE, TopicTable)
        configured = table.topic_config_table if table is not None else {}
        keys = chosen_queues(store, options)
        queues = {topic: tuple(group) for topic, group in groupby(keys, lambda key: key.topic)}
        names = sorted({*queues, *filter(options.wants_topic, configured)})
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

    def times(name: str, column: str) -> list[int]:
        return [one[column] for one in found[name] if one[column] is not None]

    rows = [
        {
            "topic": name,
            "queueCount": len(found[name]),
            "messageCount": sum(one["maxOffset"] - one["minOffset"] for one in found[name]),
            "bytes": sum(one["bytes"] for one in found[name]),
            "firstStoreTimestamp": min(times(name, "firstStoreTimestamp"), default=None),
            "lastStoreTimestamp": max(times(name, "lastStoreTimestamp"), default=None),
            "readQueueNums": config and config.read_queue_nums,
            "writeQueueNums": config and config.write_queue_nums,
            "perm": config and config.perm,
        }
        for name, _, config in topics
    ]
    yield rows_batch(rows, schema, brokerName=store.broker_name)


def _consumers(store: StorePlace, options: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield each group's place in each queue that it has committed an offset of.

    The lag is the queue's end less the group's offset, as the broker's own tools have it: negative
    for a group that is ahead of a queue which lost messages. A queue that is not there ends at 0.
    """
    # The offsets first: what comes meanwhile is lag, and no group is ahead of its queue by it.
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
                ends[key] = QueueFiles(store.location, key).written_stop
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


READERS: Final = {
    "messages": Table(plan_log, _records),
    "commitlog": Table(plan_log, _records),
    "damage": Table(plan_log, _damage),
    "segments": Table(find_stores, _segments),
    "consumequeue": Table(_plan_entries, _entries),
    "index": Table(_plan_items, _items),
    "queues": Table(_plan_queues, _queues),
    "topics": Table(_plan_topics, _topics),
    "consumers": Table(chosen_stores, _consumers),
}
"""Each table of `columns.TABLES`."""
