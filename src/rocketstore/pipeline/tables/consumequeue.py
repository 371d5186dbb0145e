"""Table ``consumequeue``: every written entry of every chosen queue, as stored.

Fillers are rows, and so are entries whose record has expired; the zeros behind the last entry of a
file are none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rocketstore.errors import StoreError
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, entry_array, written_mask
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.offsets import ANY_BROKER
from rocketstore.pipeline.planning import bytes_per_task, grouped
from rocketstore.pipeline.projection import batch_of, constant, pa
from rocketstore.pipeline.queue_range import check_brokers, is_chosen, queue_ranges
from rocketstore.pipeline.queues import CHUNK_ENTRIES, QueueFile, list_queues, queue_files
from rocketstore.pipeline.stores import StorePlace, find_stores, list_segments
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyarrow import RecordBatch, Schema

    from rocketstore.pipeline.options import ReadOptions


class EntryTask(NamedTuple):
    """Entries of one queue file; `first` and `last` are queue offsets, `last` not included."""

    store: StorePlace
    key: QueueKey
    file: QueueFile
    first: int
    last: int


def plan(options: ReadOptions) -> list[tuple[EntryTask, ...]]:
    """Return tasks of about `maxSplitBytes` of queue files each."""
    stores = find_stores(options)
    check_brokers(stores, options)
    pieces = [piece for store in stores for piece in _pieces(store, options)]
    limit = bytes_per_task(sum(map(_byte_count, pieces)), options)
    return grouped(pieces, limit, _byte_count)


def _byte_count(piece: EntryTask) -> int:
    return (piece.last - piece.first) * ENTRY_SIZE_BYTES


def _pieces(store: StorePlace, options: ReadOptions) -> Iterator[EntryTask]:
    chosen = [key for key in list_queues(store.location) if is_chosen(options, store, key)]
    _check_chosen_are_there(store, chosen, options)
    ranges = {}
    if options.has_offsets:
        segments = list_segments(store)
        ranges = {
            QueueKey(one.topic, one.queue_id): one for one in queue_ranges(store, segments, options)
        }
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


def read(
    task: tuple[EntryTask, ...],
    options: ReadOptions,  # noqa: ARG001 - every table's signature
    schema: Schema,
) -> Iterator[RecordBatch]:
    """Yield the written entries of a task."""
    for part in task:
        files, _ = files_at(part.store.location)
        with opened(files, part.file.path) as file:
            for first in range(part.first, part.last, CHUNK_ENTRIES):
                count = min(CHUNK_ENTRIES, part.last - first)
                position = (first - part.file.first) * ENTRY_SIZE_BYTES
                raw = file.read(position, count * ENTRY_SIZE_BYTES)
                batch = _batch(part, first, raw[: len(raw) // ENTRY_SIZE_BYTES * ENTRY_SIZE_BYTES])
                if len(batch["size"]):
                    yield batch_of(batch, schema)


_FIELDS: Final = {
    "physicalOffset": ("physical_offset", np.int64),
    "size": ("record_size", np.int32),
    "tagsCode": ("tags_code", np.int64),
}


def _batch(part: EntryTask, first: int, raw: bytes) -> dict[str, Any]:
    entries = entry_array(raw)
    is_written = written_mask(entries)
    written = entries[is_written]
    count = len(written)
    arrays = {
        name: pa.array(written[field].astype(kind)) for name, (field, kind) in _FIELDS.items()
    }
    return arrays | {
        "topic": constant(part.key.topic, count, pa.string()),
        "queueId": constant(part.key.queue_id, count, pa.int32()),
        "queueOffset": pa.array(first + np.flatnonzero(is_written).astype(np.int64)),
        "brokerName": constant(part.store.broker_name, count, pa.string()),
    }
