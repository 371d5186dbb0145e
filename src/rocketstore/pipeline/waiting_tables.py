"""Tables ``delays`` and ``transactions``: messages that wait for delivery, or for their end.

Both are records of system topics from the entry on that the broker's own offsets name, so the log
is planned and read for them as for any chosen queues. Delays are read by any number of tasks. Which
half messages are open only all of them show, with their op records: one task for each store holds
those that are.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from rocketstore.format.metadata_json import DELAY_OFFSETS_FILE, DelayOffsets
from rocketstore.format.properties import REAL_QID, REAL_TOPIC, TAGS, decode_properties
from rocketstore.format.queue_entry import DELAY_TOPIC, MAX_EXT_ADDRESS
from rocketstore.message import TRANSACTION_COMMIT, TRANSACTION_MASK
from rocketstore.pipeline import planning
from rocketstore.pipeline.log_read import chosen_records
from rocketstore.pipeline.options import ANY_BROKER, QueuePlace, ReadOptions
from rocketstore.pipeline.projection import batch_of, record_values
from rocketstore.pipeline.queues import chosen_stores
from rocketstore.places.log_files import list_segments, segment_at, store_timestamp_ms
from rocketstore.places.queue_files import QueueFiles, list_queues
from rocketstore.places.small_files import read_consumer_offsets, read_metadata
from rocketstore.rules import half_messages
from rocketstore.rules.expectation import groups
from rocketstore.rules.half_messages import Half, Halves
from rocketstore.rules.topics import HALF_TOPIC, OP_TOPIC
from rocketstore.rules.waiting import waiting_offsets
from rocketstore.scan.arrow import LAST_TIMESTAMP_MS, property_maps, to_arrow
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from pyarrow import RecordBatch, Schema

    from rocketstore.pipeline.log_read import QueueOpener
    from rocketstore.pipeline.planning import SplitTask
    from rocketstore.places.stores import StorePlace
    from rocketstore.scan.columns import RecordColumns

_NO_TIME: Final = LAST_TIMESTAMP_MS + 1


def _plan(
    store: StorePlace,
    options: ReadOptions,
    topics: Collection[str],
    next_of: Callable[[QueueFiles], int | None],
) -> list[SplitTask]:
    """Return where the log has the waiting messages of some topics, from given entries on."""
    segments = [one for one in list_segments(store) if not one.is_missing]
    starts = {}
    for key in list_queues(store.location, wants_topic=topics.__contains__):
        queue = QueueFiles(store.location, key)
        first = queue.first_left(segments[0].base if segments else 0)
        found = waiting_offsets(next_of(queue), first, queue.max_offset)
        # A queue without any entry has no records.
        if found:
            starts[QueuePlace(key.topic, ANY_BROKER, key.queue_id)] = found.start
    of_queues = replace(options, queues=frozenset(starts), starting_offsets=starts)
    return planning.plan_store(store, of_queues)[0] if starts else []


def _records(
    part: SplitTask, options: ReadOptions, queue_of: QueueOpener = QueueFiles
) -> Iterator[RecordColumns]:
    """Yield the records of a range that are from its queues and not before their first entry."""
    places = [QueuePlace(key.topic, ANY_BROKER, key.queue_id) for key in part.queue_ranges]
    return chosen_records(part, replace(options, queues=frozenset(places)), queue_of)


def _batch(
    columns: RecordColumns, schema: Schema, store: StorePlace, texts: Any, **own: Any
) -> RecordBatch:
    """Return a row for each record; `own` are the columns that the other table has not."""
    ids = _texts(texts, REAL_QID).to_pylist()
    known = own | {
        "realTopic": _texts(texts, REAL_TOPIC),
        "realQueueId": [half_messages.decimal_number(one, 9) for one in ids],
        "bodySize": columns.body_size,
        "brokerName": store.broker_name,
    }
    return batch_of(record_values(columns, schema.names, known), schema, len(columns))


def _texts(maps: Any, name: str) -> Any:
    import pyarrow.compute as pc  # noqa: PLC0415 - takes long, and reads of other tables come by here

    return pc.map_lookup(maps, pa.scalar(name), "last")


# --- delays -------------------------------------------------------------------------------------


def plan_delays(options: ReadOptions) -> list[tuple[SplitTask, ...]]:
    """Return tasks with the records of every level that are not delivered."""
    ranges = [one for store in chosen_stores(options) for one in _delays_of(store, options)]
    return planning.plan_ranges(ranges, options)


def _delays_of(store: StorePlace, options: ReadOptions) -> list[SplitTask]:
    table = read_metadata(store, DELAY_OFFSETS_FILE, DelayOffsets)
    delivered = {} if table is None else table.offset_table
    topics = {DELAY_TOPIC}
    return _plan(store, options, topics, lambda queue: delivered.get(queue.key.queue_id + 1))


def delays(
    task: tuple[SplitTask, ...], options: ReadOptions, schema: Schema
) -> Iterator[RecordBatch]:
    """Yield the messages of a task that wait to be delivered."""
    queue_of = cache(QueueFiles)
    for part in task:
        for columns in _records(part, options, queue_of):
            due = _due_ms(part.store, columns, queue_of) if "dueTimestamp" in schema.names else None
            level = columns.queue_id + 1
            texts = property_maps(columns)
            yield _batch(columns, schema, part.store, texts, level=level, dueTimestamp=due)


def _due_ms(store: StorePlace, columns: RecordColumns, queue_of: QueueOpener) -> Any:
    """Return when records are due by their entries, which alone know the levels of their time."""
    due = np.full(len(columns), _NO_TIME, dtype=np.int64)
    for rows in groups(columns.queue_id):
        numbers, places = columns.queue_offset[rows], columns.physical_offset[rows]
        queue = queue_of(store.location, QueueKey(DELAY_TOPIC, int(columns.queue_id[rows[0]])))
        for first, entries in queue.chunks(int(numbers.min()), int(numbers.max()) + 1):
            chosen = np.flatnonzero((numbers >= first) & (numbers < first + len(entries)))
            found = entries[numbers[chosen] - first]
            codes = queue.extension.tags_codes(found["tags_code"].astype(np.int64))
            is_own = (found["physical_offset"] == places[chosen]) & (codes > MAX_EXT_ADDRESS)
            due[rows[chosen[is_own]]] = codes[is_own]
    return due


# --- transactions -------------------------------------------------------------------------------


def plan_transactions(options: ReadOptions) -> list[tuple[SplitTask, ...]]:
    """Return a task for each store that has half messages from the checked offset on."""
    return [task for store in chosen_stores(options) if (task := _halves_of(store, options))]


def _halves_of(store: StorePlace, options: ReadOptions) -> tuple[SplitTask, ...]:
    """Return where half messages and op records are; nothing where no half message is left."""
    offsets = read_consumer_offsets(store).by_name()
    group = f"@{half_messages.TRANSACTION_GROUP}"

    def next_of(queue: QueueFiles) -> int | None:
        return offsets.get(queue.key.topic + group, {}).get(queue.key.queue_id)

    parts = _plan(store, options, {HALF_TOPIC, OP_TOPIC}, next_of)
    has_halves = any(key.topic == HALF_TOPIC for part in parts for key in part.queue_ranges)
    return tuple(parts) if has_halves else ()


class _Open:
    """The open half messages of one queue, each with its row, and the places of all of them."""

    def __init__(self) -> None:
        self.halves = Halves()
        self.rows: dict[int, tuple[Half, str | None, dict[str, Any]]] = {}
        self.places: set[int] = set()

    def take(self, half: Half, topic: str | None, row: dict[str, Any]) -> None:
        self.places.add(half.physical_offset)
        older = self.halves.take(half)
        if older is not None:
            self.rows.pop(older, None)
        if self.halves.is_open(half.queue_offset):
            self.rows[half.queue_offset] = half, topic, row

    def end(self, queue_offset: int) -> None:
        # An op record before the half message that it names would end a later one.
        if queue_offset < self.halves.stop:
            self.rows.pop(self.halves.end(queue_offset), None)

    def commit(self, columns: RecordColumns) -> None:
        """Take committed records; those without the born time of an open half are not of it."""
        by_identity: dict[half_messages.Identity, list[Half]] = defaultdict(list)
        for half, _, _ in self.rows.values():
            by_identity[half.identity].append(half)
        is_chosen = (columns.sys_flag & TRANSACTION_MASK) == TRANSACTION_COMMIT
        is_chosen &= np.isin(columns.born_timestamp, [one.born_ms for one in by_identity])
        for row in is_chosen.nonzero()[0].tolist():
            numbers = int(columns.born_timestamp[row]), int(columns.body_crc[row])
            properties = decode_properties(columns.properties(row))
            identity = half_messages.identity_of(*numbers, properties)
            named = int(columns.prepared_offset[row])
            for half in by_identity.get(identity, ()):
                if half_messages.is_final_of(half, named, identity, self._is_lost):
                    self.rows.pop(half.queue_offset, None)

    def _is_lost(self, physical_offset: int) -> bool:
        return physical_offset not in self.places


def transactions(
    task: tuple[SplitTask, ...], options: ReadOptions, schema: Schema
) -> Iterator[RecordBatch]:
    """Yield the half messages of a store that are open; the ranges are in the order of its log."""
    queues: dict[int, _Open] = defaultdict(_Open)
    queue_of = cache(QueueFiles)
    for part in task:
        for columns in _records(part, options, queue_of):
            _take(columns, schema, part.store, queues)
    if any(one.rows for one in queues.values()):
        for columns in _committed(task[0].store, options, queues.values()):
            for one in queues.values():
                one.commit(columns)
    rows = [row for one in queues.values() for _, _, row in one.rows.values()]
    yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _take(
    columns: RecordColumns, schema: Schema, store: StorePlace, queues: dict[int, _Open]
) -> None:
    maps = property_maps(columns)
    times = _texts(maps, half_messages.CHECK_TIMES).to_pylist()
    own = {
        "producerGroup": _texts(maps, half_messages.PRODUCER_GROUP),
        "checkTimes": [half_messages.decimal_number(one, 9) or 0 for one in times],
    }
    rows = _batch(columns, schema, store, maps, **own).to_pylist()
    topics = to_arrow(columns, ["topic"]).column(0).to_pylist()
    for row, (topic, pairs) in enumerate(zip(topics, maps.to_pylist(), strict=True)):
        queue, properties = queues[int(columns.queue_id[row])], dict(pairs)
        if topic == OP_TOPIC:
            for ended in half_messages.ended_by(properties.get(TAGS), columns.body(row)):
                queue.end(ended)
            continue
        place = int(columns.queue_offset[row]), int(columns.physical_offset[row])
        said = int(columns.born_timestamp[row]), int(columns.body_crc[row]), properties
        queue.take(half_messages.half_of(place, *said), properties.get(REAL_TOPIC), rows[row])


def _committed(
    store: StorePlace, options: ReadOptions, queues: Collection[_Open]
) -> Iterator[RecordColumns]:
    """Yield the messages stored after the first half message in the queues of open ones.

    Only a crash leaves a committed half message without its op record, so this is read for those
    that are open, and no more of the log than the queues that they name. A copy may have been
    ended before it was put, but not before its message was born.
    """
    oldest, segments = min(place for one in queues for place in one.places), list_segments(store)

    def stored_ms(at: int) -> int:
        found = store_timestamp_ms(store.location, segment_at(segments, at), at)
        return LAST_TIMESTAMP_MS if found is None else found

    copies = [half for one in queues for half, _, _ in one.rows.values() if half.is_copy]
    times = [min(half.identity.born_ms, stored_ms(half.physical_offset)) for half in copies]
    since_ms = min(times, default=_NO_TIME)

    def next_of(queue: QueueFiles) -> int:
        return queue.first_where(
            queue.first_offset, queue.max_offset,
            lambda entry: entry.physical_offset > oldest
            or (since_ms < _NO_TIME and stored_ms(entry.physical_offset) >= since_ms),
        )  # fmt: skip

    topics = {topic for one in queues for _, topic, _ in one.rows.values() if topic}
    queue_of = cache(QueueFiles)
    for part in _plan(store, options, topics | {DELAY_TOPIC}, next_of):
        yield from _records(part, options, queue_of)
