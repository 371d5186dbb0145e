"""Which records of a batch a query wants, and the columns it wants of them, in Spark's types.

Law: topics, tags, offsets and times of the options are decided here and nowhere else, exactly, and
before anything is copied.
Law: records are built from buffers, never one by one, except where their bodies are compressed
(zlib takes one at a time) or a name stands twice in their properties. Nothing is built that the
query did not name.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from rocketstore.errors import FormatError
from rocketstore.format.properties import KEYS
from rocketstore.format.stored_message import inflated
from rocketstore.message import COMPRESSED_FLAG, COMPRESSION_TYPE_MASK, COMPRESSION_TYPE_ZLIB
from rocketstore.pipeline.columns import BODY, BROKER_NAME, HEADERS, PROPERTIES, TABLES
from rocketstore.pipeline.options import ANY_BROKER, QueuePlace, ReadOptions
from rocketstore.pipeline.queues import is_chosen
from rocketstore.rules.batch_entries import queue_stops
from rocketstore.scan.arrow import distinct, key_lists, property_maps, timestamps, to_arrow
from rocketstore.scan.columns import CallsFor, Column, RecordColumns
from rocketstore.units import MiB, QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rocketstore.native.row import BoolArray, Int64Array

    Texts = tuple[list[str], Int64Array]
    QueueRanges = Mapping[QueueKey, range]


VALUE: Final = "value"
LOG_APPEND_TIME: Final = 1  # Kafka's name of a time that the store gave
INFLATED_BATCH_BYTES: Final = 64 * MiB  # of bodies that end a batch where some are inflated
_LEAST, _MOST, _ID = -(2**63), 2**63 - 1, 2**32 - 1  # of a column, and the bits of a queue id


def wanted_records(
    columns: RecordColumns, options: ReadOptions, broker: str, ranges: QueueRanges | None = None
) -> RecordColumns:
    """Return the wanted records of a batch; `ranges` are of queues of which not all is wanted."""
    masks = list(_masks(columns, options, broker, ranges))
    mask = np.logical_and.reduce(masks) if masks else None
    return columns if mask is None or mask.all() else columns.taken(mask)


def _masks(
    columns: RecordColumns, options: ReadOptions, broker: str, ranges: QueueRanges | None
) -> Iterator[BoolArray]:
    if options.starting_timestamp_ms is not None:
        yield columns.store_timestamp >= options.starting_timestamp_ms
    if options.ending_timestamp_ms is not None:
        yield columns.store_timestamp < options.ending_timestamp_ms
    if options.tags is not None:
        yield _passing(*distinct(columns, "tags"), options.tags.__contains__)
    if not options.has_topic_choice:
        return
    yield columns.call_for(CallsFor.ENTRY)
    topics = distinct(columns, "topic")
    of_each = partial(_of_each, columns, topics)
    yield _passing(*topics, options.wants_topic)
    if options.had or options.queues is not None:
        yield of_each(lambda key: is_chosen(options, broker, key)) > 0
    if since := options.starting_times_ms:
        yield columns.store_timestamp >= of_each(lambda key: _given(since, key, broker, _LEAST))
    if until := options.ending_times_ms:
        last = of_each(lambda key: _given(until, key, broker, _MOST + 1) - 1)
        yield columns.store_timestamp <= last
    if ranges:
        least = of_each(lambda key: ranges[key].start + 1 if key in ranges else _LEAST)
        last = of_each(lambda key: ranges[key].stop - 1 if key in ranges else _MOST)
        # A record of a batch topic counts if one of its messages does.
        yield (queue_stops(columns) >= least) & (columns.queue_offset <= last)


def _given(numbers: Mapping[QueuePlace, int], key: QueueKey, broker: str, default: int) -> int:
    """Return what is given for a queue of a broker, by that broker's name or for any."""
    places = (QueuePlace(key.topic, one, key.queue_id) for one in (broker, ANY_BROKER))
    return next((numbers[one] for one in places if one in numbers), default)


def _of_each(
    columns: RecordColumns, topics: Texts, number: Callable[[QueueKey], int]
) -> Int64Array:
    """Return a number for each record: looked up once for each queue, however many are named."""
    names, codes = [*topics[0], ""], topics[1].astype(np.int64) << 32 | (columns.queue_id & _ID)
    keys, which = np.unique(codes, return_inverse=True)
    found = [min(number(QueueKey(names[one >> 32], one & _ID)), _MOST) for one in keys.tolist()]
    return np.array(found, np.int64)[which]


def _passing(texts: list[str], numbers: Int64Array, test: Callable[[str], bool]) -> BoolArray:
    """Test each distinct text once; a missing one, the last verdict, never passes."""
    found: BoolArray = np.array([*map(test, texts), False], dtype=np.bool_)[numbers]
    return found


# --- columns ------------------------------------------------------------------------------------


def record_batches(
    columns: RecordColumns, schema: pa.Schema, broker: str, *, decompress: bool
) -> Iterator[pa.RecordBatch]:
    """Yield records, if any, as batches of a schema of columns of table ``messages``."""
    for rows, body in _bodies(columns, schema.names, decompress=decompress):
        piece = columns.taken(rows)
        known = {BODY: body, VALUE: body, BROKER_NAME: broker, "timestampType": LOG_APPEND_TIME}
        yield batch_of(record_values(piece, schema.names, known), schema, len(piece))


def batch_of(
    values: Mapping[str, Any], schema: pa.Schema, count: int | None = None
) -> pa.RecordBatch:
    """Return a batch from arrays, lists, or one value for all rows; times may be milliseconds."""
    arrays = [_array(values[field.name], field.type, count) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_batch(table: str, rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of rows that have a table's columns in their order; times are milliseconds."""
    values = {name: [row[at] for row in rows] for at, name in enumerate(TABLES[table])}
    return batch_of(values, schema, len(rows))


def _array(values: Any, kind: Any, count: int | None) -> Any:
    if not isinstance(values, (pa.Array, np.ndarray, list)):
        return pa.repeat(pa.scalar(values, kind), count)
    if pa.types.is_timestamp(kind) and not isinstance(values, pa.Array):
        values = timestamps(values)
    array = values if isinstance(values, pa.Array) else pa.array(values, kind)
    return array if array.type == kind else array.cast(kind)


def record_values(
    columns: RecordColumns, names: Sequence[str], known: Mapping[str, Any]
) -> dict[str, Any]:
    """Return columns of ``messages`` for `batch_of`, besides those that are `known`."""
    made = {name: make for name, make in _MADE.items() if name in names and name not in known}
    plain = [name for name in names if name not in known and name not in made]
    stored = to_arrow(columns, plain).columns  # at once: a batch for each would cost as much again
    own = {name: make(columns) for name, make in made.items()}
    return {**known, **own, **dict(zip(plain, stored, strict=True))}


def _bodies(
    columns: RecordColumns, names: Sequence[str], *, decompress: bool
) -> Iterator[tuple[slice, Any]]:
    """Yield rows with their bodies, cut where inflated ones grow too large for one batch.

    One that is no whole zlib stream, or inflates too far, stays as stored.
    """
    if not len(columns):
        return
    if not {BODY, VALUE}.intersection(names):
        yield slice(0, len(columns)), None
        return
    stored = to_arrow(columns, [BODY]).column(0)
    kinds = columns.sys_flag & COMPRESSION_TYPE_MASK
    is_zlib = ((columns.sys_flag & COMPRESSED_FLAG) != 0) & (
        (kinds == 0) | (kinds == COMPRESSION_TYPE_ZLIB)
    )
    if not decompress or not is_zlib.any():
        yield slice(0, len(columns)), stored
        return
    begin = total = 0
    bodies: list[bytes] = []
    for row, is_packed in enumerate(is_zlib.tolist()):
        body = columns.bytes_of(row, Column.BODY_AT, Column.BODY_SIZE)
        if is_packed:
            with contextlib.suppress(FormatError):  # the CRC agrees, so this is what was sent
                body = inflated(body, COMPRESSED_FLAG, "")
        if bodies and total + len(body) > INFLATED_BATCH_BYTES:
            yield slice(begin, row), bodies
            begin, total, bodies = row, 0, []
        bodies.append(body)
        total += len(body)
    yield slice(begin, len(columns)), bodies


def _headers(columns: RecordColumns) -> Any:
    """Return all properties but KEYS as headers of Kafka; null where there are none."""
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    maps = property_maps(columns)
    is_header = pc.not_equal(maps.keys, KEYS)
    counts = np.concatenate(([0], np.cumsum(is_header.to_numpy(zero_copy_only=False))))
    offsets = counts[maps.offsets.to_numpy()].astype(np.int32)
    parts = [maps.keys.filter(is_header), maps.items.filter(is_header).cast(pa.binary())]
    mask = pa.array(offsets[1:] == offsets[:-1])
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.StructArray.from_arrays(parts, ["key", "value"]), mask=mask
    )


_MADE: Final[dict[str, Callable[[RecordColumns], Any]]] = {
    PROPERTIES: property_maps,
    "keys": key_lists,
    "bornTimestamp": lambda columns: columns.born_timestamp,
    "storeTimestamp": lambda columns: columns.store_timestamp,
    "key": lambda columns: to_arrow(columns, ["keys"]).column(0).cast(pa.binary()),
    "partition": lambda columns: columns.queue_id,
    "offset": lambda columns: columns.queue_offset,
    "timestamp": lambda columns: columns.store_timestamp,
    HEADERS: _headers,
}
"""Columns whose values are not those of ``scan.arrow``."""
