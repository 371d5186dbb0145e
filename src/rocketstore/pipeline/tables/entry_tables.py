"""Tables of entries as they are stored: ``consumequeue`` and ``index``.

Fillers are rows, and so are entries whose record has expired; what was never written is none. A key
is in the index only as its hash, and a time as seconds since its file's begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

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
from rocketstore.format.queue_entry import ENTRY_DTYPE, ENTRY_SIZE_BYTES, written_mask
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.options import ANY_BROKER
from rocketstore.pipeline.planning import bytes_per_task, grouped
from rocketstore.pipeline.projection import batch_of
from rocketstore.pipeline.queues import (
    QueueFile,
    check_brokers,
    is_chosen,
    list_queues,
    queue_files,
    queue_ranges,
    stored_rows,
)
from rocketstore.pipeline.stores import StorePlace, find_stores, list_segments
from rocketstore.pipeline.tables import Table
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyarrow import RecordBatch, Schema

    from rocketstore.pipeline.files import FileEntry
    from rocketstore.pipeline.options import ReadOptions


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
    stores = find_stores(options)
    check_brokers(stores, options)
    pieces = [piece for store in stores for piece in _entries_of(store, options)]
    limit = bytes_per_task(sum(piece.byte_count for piece in pieces), options)
    return grouped(pieces, limit, lambda piece: piece.byte_count)


def _entries_of(store: StorePlace, options: ReadOptions) -> Iterator[EntryTask]:
    chosen = [key for key in list_queues(store.location) if is_chosen(options, store, key)]
    _check_chosen_are_there(store, chosen, options)
    ranges = {}
    if options.has_offsets:
        found = queue_ranges(store, list_segments(store), options)
        ranges = {QueueKey(one.topic, one.queue_id): one for one in found}
    for key in chosen:
        wanted = ranges.get(key)
        for file in queue_files(store.location, key).files:
            first, last = file.first, file.first + file.entry_count
            if wanted is not None:
                first = max(first, wanted.start)
                last = last if wanted.stop is None else min(last, wanted.stop)
            if first < last:
                yield EntryTask(store, key, file, first, last)


def _check_chosen_are_there(
    store: StorePlace, chosen: Sequence[QueueKey], options: ReadOptions
) -> None:
    """Refuse queues of `assign` that the store has not, unless that is no loss."""
    if not options.fail_on_data_loss:
        return
    for place in sorted(options.queues or ()):
        key = QueueKey(place.topic, place.queue_id)
        if place.broker in (ANY_BROKER, store.broker_name) and key not in chosen:
            raise StoreError(
                f"{store.location} has no queue {key}",
                hint='to read what is there: option("failOnDataLoss", "false")',
            )


def _entries(task: tuple[EntryTask, ...], _: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield the written entries of a task."""
    for part in task:
        files, _root = files_at(part.store.location)
        position = (part.first - part.file.first) * ENTRY_SIZE_BYTES
        count = part.last - part.first
        for at, found in stored_rows(files, part.file.path, position, count, ENTRY_DTYPE):
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


# --- the index ----------------------------------------------------------------------------------


class ItemTask(NamedTuple):
    """Items ``first`` to ``last`` (not included) of one index file."""

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
        with opened(files, entry.path) as file:
            head = file.read(0, INDEX_HEADER_SIZE)
        layout = _layout(entry, options)
        try:
            header = decode_header(head)
        except FormatError as error:
            raise StoreError(
                f"{entry.path} is no index file: it has {entry.size} bytes",
                hint="move it away; `rocketstore index rebuild` makes the index again",
            ) from error
        last = used_item_count(header, layout)
        yield ItemTask(store, entry.path, layout, header, FIRST_ITEM, last)


def _layout(entry: FileEntry, options: ReadOptions) -> IndexLayout:
    given = None if options.layout is None else IndexLayout(*options.layout)
    try:
        layout = given or layout_of(entry.size)
    except FormatError as error:
        raise ConfigError(
            f"{entry.path} has {entry.size} bytes: slots and items cannot be learnt from that",
            key="maxHashSlotNum",
            hint="give the options maxHashSlotNum and maxIndexNum as in the store's broker.conf",
        ) from error
    # A file may be cut off. One that is longer has other slots and items than these.
    if entry.size > layout.size_bytes:
        raise ConfigError(
            f"{entry.path} has {entry.size} bytes: a file of {layout.slot_count} slots and "
            f"{layout.item_count} items has {layout.size_bytes}",
            key="maxHashSlotNum",
            hint="give maxHashSlotNum and maxIndexNum as in the store's broker.conf",
        )
    return layout


def _items(task: ItemTask, _: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield the items of a task."""
    files, _root = files_at(task.store.location)
    position, count = task.layout.item_position(task.first), task.last - task.first
    for at, items in stored_rows(files, task.path, position, count, ITEM_DTYPE):
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


TABLES: Final = {
    "consumequeue": Table(_plan_entries, _entries),
    "index": Table(_plan_items, _items),
}
