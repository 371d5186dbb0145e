"""Table ``index``: every item of every IndexFile, as stored.

A key is there only as the hash of topic and key; ``storeTimestamp`` is what the item's seconds say,
counted from the file's begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

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
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.planning import bytes_per_task
from rocketstore.pipeline.projection import batch_of, constant, pa, timestamps
from rocketstore.pipeline.stores import StorePlace, find_stores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyarrow import RecordBatch, Schema

    from rocketstore.pipeline.files import FileEntry
    from rocketstore.pipeline.options import ReadOptions

CHUNK_ITEMS = 65_536


class ItemTask(NamedTuple):
    """Items ``first`` to ``last`` (not included) of one index file."""

    store: StorePlace
    path: str
    layout: IndexLayout
    header: IndexHeader
    first: int
    last: int


def plan(options: ReadOptions) -> list[ItemTask]:
    """Return tasks of about `maxSplitBytes` of items each."""
    pieces = [piece for store in find_stores(options) for piece in _files(store, options)]
    total = sum(one.last - one.first for one in pieces) * ITEM_SIZE_BYTES
    limit = max(1, bytes_per_task(total, options) // ITEM_SIZE_BYTES)
    return [
        piece._replace(first=first, last=min(first + limit, piece.last))
        for piece in pieces
        for first in range(piece.first, piece.last, limit)
    ]


def _files(store: StorePlace, options: ReadOptions) -> Iterator[ItemTask]:
    files, root = files_at(store.location)
    for entry in files.list(f"{root}/{INDEX_DIRECTORY}"):
        if entry.is_directory or not is_index_file_name(entry.name):
            continue
        with opened(files, entry.path) as file:
            head = file.read(0, INDEX_HEADER_SIZE)
        layout = _layout(entry, options)
        header = _header(entry, head)
        last = used_item_count(header, layout)
        yield ItemTask(store, entry.path, layout, header, FIRST_ITEM, last)


def _layout(entry: FileEntry, options: ReadOptions) -> IndexLayout:
    if options.layout is not None:
        given = IndexLayout(*options.layout)
        # A file may be cut off. One that is longer has other slots and items than these.
        if entry.size > given.size_bytes:
            raise ConfigError(
                f"{entry.path} has {entry.size} bytes: a file of {given.slot_count} slots and "
                f"{given.item_count} items has {given.size_bytes}",
                key="maxHashSlotNum",
                hint="give maxHashSlotNum and maxIndexNum as in the store's broker.conf",
            )
        return given
    try:
        return layout_of(entry.size)
    except FormatError as error:
        raise ConfigError(
            f"{entry.path} has {entry.size} bytes: slots and items cannot be learnt from that",
            key="maxHashSlotNum",
            hint="give the options maxHashSlotNum and maxIndexNum as in the store's broker.conf",
        ) from error


def _header(entry: FileEntry, head: bytes) -> IndexHeader:
    try:
        return decode_header(head)
    except FormatError as error:
        raise StoreError(
            f"{entry.path} is no index file: it has {entry.size} bytes",
            hint="move it away; `rocketstore index rebuild` makes the index anew",
        ) from error


def read(
    task: ItemTask,
    options: ReadOptions,  # noqa: ARG001 - every table's signature
    schema: Schema,
) -> Iterator[RecordBatch]:
    """Yield the items of a task."""
    files, _ = files_at(task.store.location)
    with opened(files, task.path) as file:
        for first in range(task.first, task.last, CHUNK_ITEMS):
            count = min(CHUNK_ITEMS, task.last - first)
            raw = file.read(task.layout.item_position(first), count * ITEM_SIZE_BYTES)
            items = np.frombuffer(raw, dtype=ITEM_DTYPE, count=len(raw) // ITEM_SIZE_BYTES)
            if len(items):
                yield batch_of(_arrays(task, first, items), schema)


def _arrays(task: ItemTask, first: int, items: np.ndarray) -> dict[str, Any]:
    count = len(items)
    hashes = items["key_hash"].astype(np.int32)
    stored = task.header.begin_timestamp_ms + items["time_difference_s"].astype(np.int64) * 1000
    numbers = np.arange(first, first + count, dtype=np.int32)
    return {
        "keyHash": pa.array(hashes),
        "physicalOffset": pa.array(items["physical_offset"].astype(np.int64)),
        "storeTimestamp": timestamps(stored),
        "itemNumber": pa.array(numbers),
        "previousItem": pa.array(items["previous_item"].astype(np.int32)),
        "slot": pa.array(hashes % np.int32(task.layout.slot_count)),
        "file": constant(task.path, count, pa.string()),
        "brokerName": constant(task.store.broker_name, count, pa.string()),
    }
