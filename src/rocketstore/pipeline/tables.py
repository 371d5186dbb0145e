"""The tables of the data source: how each is planned and read.

``messages`` and ``commitlog`` are intact records, ``damage`` and ``segments`` the rest of a log.
``consumequeue``, ``batchqueue`` and ``index`` are entries as they are stored: fillers are rows, and
so are entries whose record has expired; unwritten places are not. A key is in the index only
as its hash, and a time as seconds since its file's begin. ``queues``, ``topics`` and ``consumers``
are what a few entries and the broker's JSON say, some small reads for each queue; ``bytes`` is a
sum over all entries, so it is counted only for a query whose columns name it.
"""

from __future__ import annotations

import contextlib
from functools import cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from rocketstore.errors import ConfigError, FormatError, StoreError
from rocketstore.format import index_file
from rocketstore.format.batch_queue_entry import BATCH_ENTRY_SIZE_BYTES
from rocketstore.format.file_name import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
)
from rocketstore.format.index_file import IndexLayout
from rocketstore.format.metadata_json import TopicConfig
from rocketstore.format.queue_entry import (
    ENTRY_DTYPE,
    ENTRY_SIZE_BYTES,
    MAX_EXT_ADDRESS,
    written_mask,
)
from rocketstore.format.queue_extension import LEAST_UNIT_BYTES, MOST_UNIT_BYTES
from rocketstore.pipeline import planning, queues, reads_table, waiting_tables
from rocketstore.pipeline.log_read import chosen_records, read_split
from rocketstore.pipeline.projection import batch_of, record_batches, rows_batch
from rocketstore.pipeline.queues import chosen_queues, chosen_stores, named_stores
from rocketstore.places.files import FileEntry, entries_of, opened, read_part, side_by_side
from rocketstore.places.log_files import list_segments, segment_at, store_timestamp_ms
from rocketstore.places.queue_files import (
    CHUNK_ROWS,
    EVERY_KIND,
    QueueFiles,
    files_of,
    queue_opener,
)
from rocketstore.places.small_files import read_consumer_offsets, read_damage_map
from rocketstore.places.stores import StorePlace
from rocketstore.scan.arrow import LAST_TIMESTAMP_MS
from rocketstore.scan.batch_search import BATCH_ENTRY_DTYPE
from rocketstore.scan.extension_units import units_of
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyarrow import RecordBatch, Schema

    from rocketstore.native.row import Int64Array
    from rocketstore.pipeline.options import ReadOptions

QUEUES_PER_TASK: Final = 256  # some requests each: enough work for a task, few enough to spread


class Table(NamedTuple):
    """A table: how a read is planned as tasks, and how an executor reads the rows of one."""

    plan: Callable[[ReadOptions], list[Any]]
    read: Callable[[Any, ReadOptions, Schema], Iterator[RecordBatch]]


# --- the log ------------------------------------------------------------------------------------

LogTask: TypeAlias = tuple[planning.SplitTask, ...]


def _records(task: LogTask, options: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    queue_of = cache(QueueFiles)
    for part in task:
        broker = part.store.broker_name
        for columns in chosen_records(part, options, queue_of):
            yield from record_batches(columns, schema, broker, decompress=options.decompress_body)


def _damage(task: LogTask, _: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield the damage that begins in a task's byte ranges, once each."""
    known_of = cache(read_damage_map)
    for part in task:
        segment, broker = part.segment, part.store.broker_name
        if segment.is_missing:
            hole = (segment.base, segment.size, "missing file", "its neighbours are there")
            found = [hole] * (part.start == 0)
        else:
            found = [
                (one.range.start, one.range.size, one.reason.value, one.evidence)
                for _, damage in read_split(part, or_torn=True)
                for one in damage
            ]
        if found:
            # When the store's own check first saw it, if it did.
            known = known_of(part.store).damage if "foundTimestamp" in schema.names else ()
            since = {one.physical_offset: one.found_timestamp for one in known}
            rows = [(*one, segment.path, since.get(one[0]), broker) for one in found]
            yield rows_batch("damage", rows, schema)


def _segments(store: StorePlace, _: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield the files of a store, missing ones included, without scanning them."""
    segments = list_segments(store)
    times: Iterable[int | None] = [None] * len(segments)
    if "firstStoreTimestamp" in schema.names:
        mapped = side_by_side(store.location, len(segments))
        times = list(mapped(partial(store_timestamp_ms, store.location), segments))
    rows = [
        (one.base, one.size, time, one.state.value, one.path, store.broker_name)
        for one, time in zip(segments, times, strict=True)
    ]
    yield rows_batch("segments", rows, schema)


# --- entries and items as they are stored -------------------------------------------------------


class RowsTask(NamedTuple):
    """Rows of a file whose row 0 is at `origin`.

    They belong to a queue, or to an index file of a layout whose times count from its begin.
    """

    store: StorePlace
    path: str
    origin: int
    rows: range
    of: Any

    def chunks(self, kind: np.dtype[Any]) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the rows that the file has, in chunks, each with the number of its first one."""
        with opened(self.store.location, self.path) as file:
            for first in self.rows[::CHUNK_ROWS]:
                wanted = min(CHUNK_ROWS, self.rows.stop - first) * kind.itemsize
                raw = file.read(self.origin + first * kind.itemsize, wanted)
                if count := len(raw) // kind.itemsize:
                    yield first, np.frombuffer(raw, dtype=kind, count=count)


def _cut_rows(
    pieces: list[RowsTask], kind: np.dtype[Any], options: ReadOptions
) -> list[tuple[RowsTask, ...]]:
    """Return tasks of about `maxSplitBytes` each."""
    total = sum(len(one.rows) for one in pieces) * kind.itemsize
    limit = max(1, planning.bytes_per_task(total, options) // kind.itemsize)
    parts = [
        piece._replace(rows=piece.rows[at : at + limit])
        for piece in pieces
        for at in range(0, len(piece.rows), limit)
    ]
    return planning.grouped(parts, limit, lambda part: len(part.rows))


def _plan_entries(options: ReadOptions) -> list[tuple[RowsTask, ...]]:
    stores = chosen_stores(options)
    queues.refuse_unknown(stores, queues.unknown_topics(stores, options))
    pieces = [piece for store in stores for piece in _entries_of(store, options)]
    return _cut_rows(pieces, ENTRY_DTYPE, options)


def _entries_of(store: StorePlace, options: ReadOptions) -> Iterator[RowsTask]:
    chosen = chosen_queues(store, options, CONSUME_QUEUE_DIRECTORY)
    there = [*chosen, *chosen_queues(store, options, BATCH_CONSUME_QUEUE_DIRECTORY)]
    if options.fail_on_data_loss and (lost := queues.lost_queues(store, options, there)):
        raise StoreError(
            f"{store.location} has no queue {lost:.200}, and had one",
            hint='to read what is there: option("failOnDataLoss", "false"); to make it again from '
            "the log: rocketstore queue rebuild",
        )
    segments = list_segments(store) if options.starting_offsets or options.ending_offsets else ()
    ranges = queues.queue_ranges(store, segments, options)
    for key in chosen:
        wanted = ranges.get(key, queues.ALL_OFFSETS)
        for base, size, path in files_of(store.location, CONSUME_QUEUE_DIRECTORY, key):
            begin, stop = base // ENTRY_SIZE_BYTES, (base + size) // ENTRY_SIZE_BYTES
            if rows := range(max(begin, wanted.start), min(stop, wanted.stop)):
                yield RowsTask(store, path, -begin * ENTRY_SIZE_BYTES, rows, key)


def _entries(task: tuple[RowsTask, ...], _: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield the written entries of a task."""
    queue_of = cache(QueueFiles)
    for part in task:
        for first, found in part.chunks(ENTRY_DTYPE):
            is_written = written_mask(found)
            entries = found[is_written]
            stored = entries["tags_code"].astype(np.int64)
            values = {
                "topic": part.of.topic,
                "queueId": part.of.queue_id,
                "queueOffset": first + np.flatnonzero(is_written),
                "physicalOffset": entries["physical_offset"].astype(np.int64),
                "size": entries["record_size"].astype(np.int32),
                "extensionAddress": pa.array(stored, mask=stored > MAX_EXT_ADDRESS),
                "brokerName": part.store.broker_name,
            }
            queue = queue_of(part.store.location, part.of)
            values |= _of_units(queue, stored, schema.names)
            if len(entries):
                yield batch_of(values, schema, len(entries))


def _of_units(queue: QueueFiles, codes: Int64Array, names: Sequence[str]) -> dict[str, Any]:
    """Return the columns that entries have of their units, null where no unit stands."""
    tags_codes, stored_ms = codes.copy(), np.full(len(codes), LAST_TIMESTAMP_MS + 1)
    bit_maps: list[bytes | None] = [None] * len(codes)
    wanted = {"tagsCode", "storeTimestamp", "bitMap"}.intersection(names)
    if wanted and (codes <= MAX_EXT_ADDRESS).any():
        most = MOST_UNIT_BYTES if "bitMap" in wanted else LEAST_UNIT_BYTES
        for units in units_of(codes, queue.extension.read, most):
            tags_codes[units.rows] = units.heads["code"]
            stored_ms[units.rows] = units.heads["stored"]
            for row, bit_map in units.bit_maps() if "bitMap" in wanted else ():
                bit_maps[row] = bit_map
    return {
        "tagsCode": pa.array(tags_codes, mask=tags_codes <= MAX_EXT_ADDRESS),
        "storeTimestamp": stored_ms,
        "bitMap": bit_maps,
    }


def _plan_batches(options: ReadOptions) -> list[tuple[RowsTask, ...]]:
    pieces = [
        RowsTask(store, file.path, 0, range(file.size // BATCH_ENTRY_SIZE_BYTES), key)
        for store in chosen_stores(options)
        for key in chosen_queues(store, options, BATCH_CONSUME_QUEUE_DIRECTORY)
        for file in files_of(store.location, BATCH_CONSUME_QUEUE_DIRECTORY, key)
    ]
    return _cut_rows(pieces, BATCH_ENTRY_DTYPE, options)


def _batches(task: tuple[RowsTask, ...], _: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield the written entries of batch queues (`BatchEntry.is_written`)."""
    for part in task:
        for _first, found in part.chunks(BATCH_ENTRY_DTYPE):
            is_written = written_mask(found)
            is_written &= (found["base_offset"] >= 0) & (found["message_count"] > 0)
            entries = found[is_written]
            values = {
                "topic": part.of.topic,
                "queueId": part.of.queue_id,
                "baseOffset": entries["base_offset"].astype(np.int64),
                "messageCount": entries["message_count"].astype(np.int32),
                "physicalOffset": entries["physical_offset"].astype(np.int64),
                "size": entries["record_size"].astype(np.int32),
                "tagsCode": entries["tags_code"].astype(np.int64),
                "storeTimestamp": entries["store_timestamp_ms"].astype(np.int64),
                "brokerName": part.store.broker_name,
            }
            if len(entries):
                yield batch_of(values, schema, len(entries))


def _plan_items(options: ReadOptions) -> list[tuple[RowsTask, ...]]:
    pieces = [piece for store in named_stores(options) for piece in _index_files(store, options)]
    return _cut_rows(pieces, index_file.ITEM_DTYPE, options)


def _index_files(store: StorePlace, options: ReadOptions) -> Iterator[RowsTask]:
    for entry in entries_of(store.location, INDEX_DIRECTORY):
        if not (entry.is_file and index_file.is_index_file_name(entry.name)):
            continue
        layout = _layout(entry, options)
        raw = read_part(store.location, entry.path, 0, index_file.INDEX_HEADER_SIZE)
        try:
            header = index_file.decode_header(raw)
        except FormatError as error:
            raise StoreError(
                f"{entry.path} is not an index file: it has {entry.size} bytes",
                hint="move it away; `rocketstore index rebuild` makes the index again",
            ) from error
        rows = range(index_file.FIRST_ITEM, index_file.used_item_count(header, layout))
        of = (layout.slot_count, header.begin_timestamp_ms)
        yield RowsTask(store, entry.path, layout.item_position(0), rows, of)


def _layout(entry: FileEntry, options: ReadOptions) -> IndexLayout:
    problem = "slots and items cannot be learnt from that"
    with contextlib.suppress(FormatError):
        layout = IndexLayout(*options.layout or index_file.layout_of(entry.size))
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


def _items(task: tuple[RowsTask, ...], _: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    for part in task:
        slot_count, begin_ms = part.of
        for first, items in part.chunks(index_file.ITEM_DTYPE):
            hashes = items["key_hash"].astype(np.int32)
            seconds = items["time_difference_s"].astype(np.int64)
            values = {
                "keyHash": hashes,
                "physicalOffset": items["physical_offset"].astype(np.int64),
                "storeTimestamp": begin_ms + seconds * 1000,
                "itemNumber": np.arange(first, first + len(items)),
                "previousItem": items["previous_item"].astype(np.int32),
                "slot": hashes % np.int32(slot_count),
                "file": part.path,
                "brokerName": part.store.broker_name,
            }
            yield batch_of(values, schema, len(items))


# --- queues, topics, consumers ------------------------------------------------------------------

QueueTask: TypeAlias = tuple[StorePlace, tuple[QueueKey, ...]]

Topic: TypeAlias = tuple[str, tuple[QueueKey, ...], TopicConfig | None]
"""A topic, its chosen queues and what ``topics.json`` says of it, if it does."""


class QueueBounds(NamedTuple):
    """A queue as consumers see it: the columns of table ``queues``."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    byte_count: int
    first_ms: int | None
    last_ms: int | None
    broker_name: str


def _plan_queues(options: ReadOptions) -> list[QueueTask]:
    found = [(one, chosen_queues(one, options, *EVERY_KIND)) for one in chosen_stores(options)]
    return [
        (store, some)
        for store, keys in found
        for some in planning.grouped(keys, QUEUES_PER_TASK, lambda _: 1)
    ]


def _queues(task: QueueTask, _: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    yield rows_batch("queues", list(_bounds(*task, schema.names)), schema)


def _bounds(
    store: StorePlace, keys: Sequence[QueueKey], names: Sequence[str]
) -> Iterator[QueueBounds]:
    """Yield rows of table ``queues``, of which the columns in `names` are counted."""
    segments = [one for one in list_segments(store) if not one.is_missing]
    log_min = segments[0].base if segments else 0
    has_times = any(name.endswith("StoreTimestamp") for name in names)

    def time_at(number: int) -> int | None:
        entry = queue.entry(number) if has_times and start < stop else None
        at = -1 if entry is None else entry.physical_offset
        return store_timestamp_ms(store.location, segment_at(segments, at), at)

    queue_of = queue_opener(store.location)
    for key in keys:
        queue = queue_of(key)
        start, stop = queue.first_left(log_min), queue.max_offset
        byte_count = queue.byte_count(start, stop) if "bytes" in names else 0
        times = time_at(start), time_at(stop - 1)
        yield QueueBounds(*key, start, stop, byte_count, *times, store.broker_name)


def _plan_topics(options: ReadOptions) -> list[tuple[StorePlace, tuple[Topic, ...]]]:
    """Return tasks of whole topics: those that have queues, and those that are configured."""
    tasks: list[tuple[StorePlace, tuple[Topic, ...]]] = []
    for store in chosen_stores(options):
        configured = queues.configured_topics(store)
        keys = chosen_queues(store, options, *EVERY_KIND)
        there = {topic: tuple(group) for topic, group in groupby(keys, lambda key: key.topic)}
        names = sorted({*there, *filter(options.wants_topic, configured)})
        topics: list[Topic] = [(name, there.get(name, ()), configured.get(name)) for name in names]
        groups = planning.grouped(topics, QUEUES_PER_TASK, lambda topic: 1 + len(topic[1]))
        tasks += [(store, group) for group in groups]
    return tasks


def _topics(
    task: tuple[StorePlace, tuple[Topic, ...]], _: ReadOptions, schema: Schema
) -> Iterator[RecordBatch]:
    """Yield topics, each with its queues together."""
    store, topics = task
    bounds = _bounds(store, [key for _, keys, _ in topics for key in keys], schema.names)
    found = {topic: list(group) for topic, group in groupby(bounds, lambda one: one.topic)}
    rows = []
    for name, keys, config in topics:
        own = found.get(name, [])
        set_by = (config.read_queue_nums, config.write_queue_nums, config.perm) if config else ()
        row = (
            name,
            len(keys),
            sum(one.max_offset - one.min_offset for one in own),
            sum(one.byte_count for one in own),
            min((one.first_ms for one in own if one.first_ms is not None), default=None),
            max((one.last_ms for one in own if one.last_ms is not None), default=None),
            *(set_by or [None] * 3),
            store.broker_name,
        )
        rows.append(row)
    yield rows_batch("topics", rows, schema)


def _consumers(store: StorePlace, options: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield each group's place in each queue that it has committed an offset of.

    The lag is the queue's end less the group's offset, as the broker's own tools have it: negative
    for a group that is ahead of a queue which lost messages, null for an offset below 0. A queue
    that is not there ends at 0.
    """
    # The offsets first: later messages count as lag, and put no group ahead of its queue.
    table = read_consumer_offsets(store)
    queue_of = queue_opener(store.location)
    end_of = cache(lambda key: queue_of(key).max_offset)
    rows = []
    for group, key, offset in table.rows():
        if queues.is_chosen(options, store.broker_name, key):
            end = end_of(key)
            lag = None if offset < 0 else end - offset
            rows.append((group, *key, offset, end, lag, store.broker_name))
    yield rows_batch("consumers", rows, schema)


READERS: Final = {  # of each table of `columns.TABLES`
    "messages": Table(planning.plan_log, _records),
    "commitlog": Table(planning.plan_log, _records),
    "damage": Table(planning.plan_log, _damage),
    "reads": Table(reads_table.plan_reads, reads_table.reads),
    "segments": Table(named_stores, _segments),
    "consumequeue": Table(_plan_entries, _entries),
    "batchqueue": Table(_plan_batches, _batches),
    "index": Table(_plan_items, _items),
    "queues": Table(_plan_queues, _queues),
    "topics": Table(_plan_topics, _topics),
    "consumers": Table(chosen_stores, _consumers),
    "delays": Table(waiting_tables.plan_delays, waiting_tables.delays),
    "transactions": Table(waiting_tables.plan_transactions, waiting_tables.transactions),
}
