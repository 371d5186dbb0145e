"""Records as the columns of a query: Arrow arrays in Spark's types.

Law: built from buffers, never row by row; only a compressed body is looked at alone, because zlib
takes one at a time. Nothing is built that the query did not name.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow  # noqa: ICN001 - `pa` is the same without its annotations
import pyarrow.compute

from rocketstore.message import (
    COMPRESSED_FLAG,
    COMPRESSION_TYPE_MASK,
    COMPRESSION_TYPE_ZLIB,
    INFLATED_BODY_LIMIT_BYTES,
)
from rocketstore.pipeline.columns import BODY, BROKER_NAME, PROPERTIES
from rocketstore.scan import kernels
from rocketstore.scan.arrow import text_slices
from rocketstore.scan.columns import Column, RecordColumns
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

pa: Any = pyarrow
pc: Any = pyarrow.compute
"""Their annotations know too little of what they take."""

INFLATED_BATCH_BYTES: Final = 64 * MiB
"""Inflated bodies that end a batch."""

FIRST_TIMESTAMP_MS: Final = -62_135_596_800_000
LAST_TIMESTAMP_MS: Final = 253_402_300_799_999
"""The years 1 to 9999, which Spark's and Python's calendars have."""

_TIMESTAMPS: Final = frozenset({"bornTimestamp", "storeTimestamp"})


def record_batches(
    columns: RecordColumns, schema: pyarrow.Schema, *, broker: str, decompress: bool
) -> Iterator[pyarrow.RecordBatch]:
    """Yield records as batches of a schema.

    Parameters
    ----------
    columns
        At least one record.
    schema
        Names and types of the wanted columns; names are those of table ``messages``.
    broker
        Value of ``brokerName``.
    decompress
        Whether zlib bodies are inflated.
    """
    for rows, body in _pieces(columns, schema.names, decompress=decompress):
        piece = RecordColumns(columns.buffer, columns.cols[rows], columns.base)
        arrays = {
            name: body if name == BODY else _array(piece, name, broker) for name in schema.names
        }
        yield batch_of(arrays, schema)


def optional_timestamps(values_ms: Sequence[int | None]) -> Any:
    """Return times as a column; null where there is none, or none that a calendar has."""
    known = [
        one if one is not None and FIRST_TIMESTAMP_MS <= one <= LAST_TIMESTAMP_MS else None
        for one in values_ms
    ]
    return pa.array(known, pa.timestamp("ms", "UTC"))


def batch_of(arrays: Mapping[str, Any], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """Return a batch of a schema from arrays by name, cast where only the width differs."""
    cast = [
        array if array.type == field.type else array.cast(field.type)
        for field, array in ((field, arrays[field.name]) for field in schema)
    ]
    batch: pyarrow.RecordBatch = pa.RecordBatch.from_arrays(cast, schema=schema)
    return batch


def timestamps(milliseconds: npt.NDArray[np.int64]) -> Any:
    """Return milliseconds as UTC timestamps, null where no calendar has the time."""
    is_date = (milliseconds >= FIRST_TIMESTAMP_MS) & (milliseconds <= LAST_TIMESTAMP_MS)
    microseconds = np.where(is_date, milliseconds, 0) * 1000
    return pa.array(microseconds, type=pa.int64(), mask=~is_date).cast(pa.timestamp("us", "UTC"))


def constant(value: object, count: int, kind: Any) -> Any:
    """Return an array of one value."""
    return pa.repeat(pa.scalar(value, kind), count)


def _array(columns: RecordColumns, name: str, broker: str) -> Any:
    if name == BROKER_NAME:
        return constant(broker, len(columns), pa.string())
    if name == PROPERTIES:
        return property_maps(columns)
    if name == "keys":
        return _key_lists(columns)
    if name in _TIMESTAMPS:
        is_born = name == "bornTimestamp"
        return timestamps(columns.born_timestamp if is_born else columns.store_timestamp)
    return columns.to_arrow([name]).column(0)


# --- bodies -------------------------------------------------------------------------------------


def _pieces(
    columns: RecordColumns, names: Sequence[str], *, decompress: bool
) -> Iterator[tuple[slice, Any]]:
    """Yield rows with their bodies, cut where inflated bodies grow too large for one batch."""
    count = len(columns)
    if BODY not in names:
        yield slice(0, count), None
        return
    stored = columns.to_arrow([BODY]).column(0)
    rows = _zlib_rows(columns) if decompress else []
    if not len(rows):
        yield slice(0, count), stored
        return
    begin = total = 0
    inflated: dict[int, bytes] = {}
    for row in rows:
        body = _inflated(columns, row)
        if total and total + len(body) > INFLATED_BATCH_BYTES:
            yield slice(begin, row), _spliced(stored, begin, row, inflated)
            begin, total, inflated = row, 0, {}
        inflated[row] = body
        total += len(body)
    yield slice(begin, count), _spliced(stored, begin, count, inflated)


def _zlib_rows(columns: RecordColumns) -> list[int]:
    kinds = columns.sys_flag & COMPRESSION_TYPE_MASK
    is_zlib = ((columns.sys_flag & COMPRESSED_FLAG) != 0) & (
        (kinds == 0) | (kinds == COMPRESSION_TYPE_ZLIB)
    )
    rows: list[int] = np.flatnonzero(is_zlib).tolist()
    return rows


def _inflated(columns: RecordColumns, row: int) -> bytes:
    """Return an inflated body; as stored when it is no whole zlib stream or inflates too far."""
    stored = columns.bytes_of(row, Column.BODY_AT, Column.BODY_SIZE)
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(stored, INFLATED_BODY_LIMIT_BYTES + 1)
    except zlib.error:
        # The CRC agrees, so this is what its producer sent.
        return stored
    return body if inflater.eof and len(body) <= INFLATED_BODY_LIMIT_BYTES else stored


def _spliced(stored: Any, begin: int, end: int, inflated: Mapping[int, bytes]) -> Any:
    """Return stored bodies with some replaced."""
    count = end - begin
    order = np.arange(count, dtype=np.int64)
    order[np.fromiter(inflated, dtype=np.int64, count=len(inflated)) - begin] = count + np.arange(
        len(inflated)
    )
    replaced = pa.array(list(inflated.values()), type=pa.binary())
    pool = pa.concat_arrays([stored.slice(begin, count), replaced])
    return pool.take(pa.array(order))


# --- keys and properties ------------------------------------------------------------------------


def _key_lists(columns: RecordColumns) -> Any:
    """Return the keys of each record: KEYS split at blanks, empty ones left out."""
    texts = columns.to_arrow(["keys"]).column(0)
    lists = pc.split_pattern(texts.fill_null(""), " ")
    values, offsets = _flat(lists)
    kept = pc.not_equal(values, "")
    if pc.all(kept).as_py() in (True, None):
        return lists
    return pa.ListArray.from_arrays(_kept_offsets(offsets, kept), values.filter(kept))


def property_maps(columns: RecordColumns) -> Any:
    """Return the properties of each record as a map, by the rule of ``decode_properties``."""
    count = len(columns)
    # A part has a name, a value and their separator, and all but the last one more separator.
    room = int(columns.properties_size.sum()) // 4 + count
    parts = np.empty((room, 4), dtype=np.int64)
    ends = np.empty(count, dtype=np.int64)
    found, may_repeat = kernels.split_properties(
        columns.buffer, columns.properties_at, columns.properties_size, ends, parts
    )
    offsets = np.zeros(count + 1, dtype=np.int32)
    offsets[1:] = ends
    names = text_slices(columns, parts[:found, 0], parts[:found, 1], PROPERTIES)
    values = text_slices(columns, parts[:found, 2], parts[:found, 3], PROPERTIES)
    if may_repeat:
        return _last_wins(names, values, offsets)
    return pa.MapArray.from_arrays(offsets, names, values)


def _flat(lists: Any) -> tuple[Any, npt.NDArray[np.int32]]:
    """Return all values of a list array and where each list begins."""
    offsets = lists.offsets.to_numpy()
    return lists.flatten(), offsets - offsets[0]


def _kept_offsets(offsets: npt.NDArray[np.int32], kept: Any) -> Any:
    """Return where each list begins once some values are gone."""
    before = np.zeros(len(kept) + 1, dtype=np.int32)
    np.cumsum(kept.to_numpy(zero_copy_only=False), out=before[1:])
    return before[offsets]


def _last_wins(names: Any, values: Any, offsets: npt.NDArray[np.int32]) -> Any:
    """Return maps in which a name that a record has twice keeps its place and its last value."""
    count = len(names)
    encoded = names.dictionary_encode()
    name_count = len(encoded.dictionary)
    rows = np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))
    identities = rows * max(name_count, 1) + encoded.indices.to_numpy()
    distinct, firsts = np.unique(identities, return_index=True)
    if len(distinct) == count:
        return pa.MapArray.from_arrays(offsets, names, values)
    _, lasts = np.unique(identities[::-1], return_index=True)
    order = np.argsort(firsts)
    places, sources = firsts[order], count - 1 - lasts[order]
    is_kept = np.zeros(count, dtype=np.bool_)
    is_kept[places] = True
    return pa.MapArray.from_arrays(
        _kept_offsets(offsets, pa.array(is_kept)),
        names.take(pa.array(places)),
        values.take(pa.array(sources)),
    )
