"""Records as Arrow batches: the one module that names the columns that queries see.

Law: built from buffers and offsets, never row by row; the bytes of a batch are its own and outlive
the scanned buffer. Loaded only when asked for: it imports pyarrow.
Names are those of the JSON form (``StoredMessage.to_dict``). Timestamps are milliseconds as int64,
because a damaged store may hold numbers that no calendar has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from rocketstore.errors import FieldRangeError
from rocketstore.format.host import decode_host
from rocketstore.format.java_hash import string_hash
from rocketstore.message import BORN_HOST_V6_FLAG, STORE_HOST_V6_FLAG
from rocketstore.scan import kernels
from rocketstore.scan.columns import Column, RecordColumns

if TYPE_CHECKING:
    import numpy.typing as npt

    from rocketstore.native.row import Int64Array


COLUMN_SIZE_MAX_BYTES: Final = 2**31 - 1
"""Most bytes of one variable-length column of a batch: Arrow's offsets are 32-bit numbers. One
CommitLog file of the default 1 GiB never exceeds it."""

FIRST_TIMESTAMP_MS: Final = -62_135_596_800_000
LAST_TIMESTAMP_MS: Final = 253_402_300_799_999
"""The years 1 to 9999, which Spark's and Python's calendars have."""

_MOST_CODES: Final = 2**31  # of rows that differ, times the values of one more column

_NUMBERS: Final[dict[str, tuple[Column, Any]]] = {
    "physicalOffset": (Column.PHYSICAL_OFFSET, pa.int64()),
    "size": (Column.SIZE, pa.int32()),
    "queueId": (Column.QUEUE_ID, pa.int32()),
    "queueOffset": (Column.QUEUE_OFFSET, pa.int64()),
    "flag": (Column.FLAG, pa.int32()),
    "sysFlag": (Column.SYS_FLAG, pa.int32()),
    "bornTimestamp": (Column.BORN_TIMESTAMP, pa.int64()),
    "storeTimestamp": (Column.STORE_TIMESTAMP, pa.int64()),
    "reconsumeTimes": (Column.RECONSUME_TIMES, pa.int32()),
    "preparedTransactionOffset": (Column.PREPARED_OFFSET, pa.int64()),
    "bodyCRC": (Column.BODY_CRC, pa.int32()),
}

_SLICES: Final[dict[str, tuple[Column, Column, Any]]] = {
    "topic": (Column.TOPIC_AT, Column.TOPIC_SIZE, pa.string()),
    "tags": (Column.TAGS_AT, Column.TAGS_SIZE, pa.string()),
    "keys": (Column.KEYS_AT, Column.KEYS_SIZE, pa.string()),
    "uniqKey": (Column.UNIQUE_KEY_AT, Column.UNIQUE_KEY_SIZE, pa.string()),
    "body": (Column.BODY_AT, Column.BODY_SIZE, pa.binary()),
    "properties": (Column.PROPERTIES_AT, Column.PROPERTIES_SIZE, pa.binary()),
}
"""`keys` are as stored, several joined by a blank; `properties` is the stored block."""

_NULL_WHEN_EMPTY: Final = frozenset({"tags", "keys", "uniqKey"})

_HOSTS: Final = {"bornHost": BORN_HOST_V6_FLAG, "storeHost": STORE_HOST_V6_FLAG}

SCHEMA: Final = pa.schema(
    [pa.field(name, kind, nullable=False) for name, (_, kind) in _NUMBERS.items()]
    + [
        pa.field(name, kind, nullable=name in _NULL_WHEN_EMPTY)
        for name, (_, _, kind) in _SLICES.items()
    ]
    + [pa.field(name, pa.string(), nullable=False) for name in (*_HOSTS, "msgId")]
)
"""Every column there is, in default order."""

_UPPER_HEX: Final = np.frombuffer(
    b"".join(f"{byte:02X}".encode() for byte in range(256)), dtype=np.uint16
)


def to_arrow(columns: RecordColumns, names: Iterable[str] | None = None) -> pa.RecordBatch:
    """Return records as an Arrow batch, with the named columns of ``SCHEMA`` or all.

    Raises `FieldRangeError` where a column would hold more than ``COLUMN_SIZE_MAX_BYTES``; scan
    with fewer `batch_records`.
    """
    schema = SCHEMA if names is None else pa.schema([SCHEMA.field(name) for name in names])
    arrays = [_array(columns, name) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(columns: RecordColumns, name: str) -> Any:
    if name in _NUMBERS:
        column, kind = _NUMBERS[name]
        return pa.array(columns.cols[:, column].astype(str(kind)))  # NumPy's name of it too
    if name in _SLICES:
        at, size, kind = _SLICES[name]
        sizes = columns.cols[:, size]
        is_nullable = name in _NULL_WHEN_EMPTY
        array = binary_slices(columns, columns.cols[:, at], sizes, name, is_nullable=is_nullable)
        return array if kind == pa.binary() else _text(array)
    if name in _HOSTS:
        sizes = np.where(columns.sys_flag & _HOSTS[name], np.int64(20), np.int64(8))
        # Records read by entries may be anywhere: the store time is all between the hosts.
        hosts_at = columns.store_host_at - (sizes + 8 if name == "bornHost" else 0)
        return _each_distinct(binary_slices(columns, hosts_at, sizes, name), decode_host)
    return _message_ids(columns)


def binary_slices(
    columns: RecordColumns,
    at: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    name: str,
    *,
    is_nullable: bool = False,
) -> Any:
    """Return slices of the scanned buffer as binary; `name` is what an error calls them."""
    count = len(sizes)
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if count else 0
    if total > COLUMN_SIZE_MAX_BYTES:
        raise FieldRangeError(
            f"column {name} of {count} records is too long for one Arrow batch",
            field=name,
            expected=f"at most {COLUMN_SIZE_MAX_BYTES} bytes",
            found=total,
            hint="scan with fewer batch_records",
        )
    offsets = np.zeros(count + 1, dtype=np.int32)
    offsets[1:] = ends
    data = np.empty(total, dtype=np.uint8)
    if kernels.copy_slices(columns.buffer, at, sizes, data) != total:
        raise FieldRangeError(f"column {name}: a slice is not inside the buffer", field=name)
    present = None
    if is_nullable:
        present = pa.py_buffer(np.packbits(sizes > 0, bitorder="little"))
    buffers = [present, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def bytes_of(array: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return where each of some texts or binaries begins and the last one ends, and all bytes."""
    _, ends, data = array.buffers()
    if data is None or not len(array):
        return np.zeros(len(array) + 1, dtype=np.int64), np.empty(0, dtype=np.uint8)
    kind = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    offsets = np.frombuffer(ends, kind)[array.offset : array.offset + len(array) + 1]
    held = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    return (offsets - offsets[0]).astype(np.int64), held


def first_equal(columns: Iterable[pa.Array], count: int) -> Int64Array:
    """Return for each row the number of the first one that equals it in all of some columns."""
    code = np.zeros(count, dtype=np.int64)
    size = 1
    for column in columns:
        found: Any = column.dictionary_encode()
        if len(found.dictionary) > 1:
            size *= len(found.dictionary)
            code = code * len(found.dictionary) + found.indices.to_numpy()
            if size > _MOST_CODES:
                known, code = np.unique(code, return_inverse=True)
                size = len(known)
    _, first, code = np.unique(code, return_index=True, return_inverse=True)
    return first[code]


def java_hashes(texts: pa.Array) -> Int64Array:
    """Return ``String.hashCode`` of texts, none of which is empty."""
    offsets, data = bytes_of(texts)
    if not len(texts) or data.max() > 0x7F:
        return np.array([string_hash(text) for text in texts.to_pylist()], dtype=np.int64)
    sizes = np.diff(offsets)
    powers = np.full(int(sizes.max()), 31, dtype=np.uint32)
    powers[0] = 1
    powers = np.multiply.accumulate(powers, dtype=np.uint32)  # which wraps as Java's int does
    after = np.repeat(offsets[1:], sizes) - 1 - np.arange(len(data))
    terms = data.astype(np.uint32) * powers[after]
    totals = np.add.reduceat(terms, offsets[:-1], dtype=np.uint32)
    return totals.view(np.int32).astype(np.int64)


def _text(array: Any) -> Any:
    """Return binary as strings; invalid UTF-8 is replaced as Java does."""
    present, offsets, data = array.buffers()
    if np.frombuffer(data, dtype=np.uint8).max(initial=0) < 0x80:
        # The cast looks at each value on its own, and most are a few bytes long.
        return pa.Array.from_buffers(pa.string(), len(array), [present, offsets, data])
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return _each_distinct(array, lambda value: value.decode("utf-8", "replace"))


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
    names, values = (
        _text(binary_slices(columns, parts[:found, at], parts[:found, at + 1], "properties"))
        for at in (0, 2)
    )
    maps = pa.MapArray.from_arrays(offsets, names, values)
    if may_repeat:
        # The later value wins at the earlier place, as in a `dict`.
        return pa.array([list(dict(one).items()) for one in maps.to_pylist()], maps.type)
    return maps


def key_lists(columns: RecordColumns) -> Any:
    """Return the keys of each record: KEYS split at blanks, empty ones left out."""
    import pyarrow.compute as pc  # noqa: PLC0415 - costs a planning process 0.06 s

    found = pc.split_pattern(to_arrow(columns, ["keys"]).column(0), " ")
    lists = pa.ListArray.from_arrays(found.offsets, found.values)  # no null, an empty list
    if not pc.any(pc.equal(lists.flatten(), "")).as_py():
        return lists
    return pa.array([[key for key in keys if key] for keys in lists.to_pylist()], lists.type)


def timestamps(milliseconds: Int64Array | Sequence[int | None]) -> Any:
    """Return milliseconds as UTC times, null where there are none or no calendar has the time."""
    no_date = LAST_TIMESTAMP_MS + 1
    if not isinstance(milliseconds, np.ndarray):
        given = [no_date if one is None else one for one in milliseconds]
        milliseconds = np.array(given, dtype=np.int64)
    is_date = (milliseconds >= FIRST_TIMESTAMP_MS) & (milliseconds <= LAST_TIMESTAMP_MS)
    mask = None if is_date.all() else ~is_date
    return pa.array(milliseconds * 1000, pa.int64(), mask=mask).view(pa.timestamp("us", "UTC"))


def distinct(columns: RecordColumns, name: str) -> tuple[list[str], Int64Array]:
    """Return the distinct texts of a column, and which of them each record has: -1 without one."""
    encoded: Any = to_arrow(columns, [name]).column(0).dictionary_encode()
    numbers = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return encoded.dictionary.to_pylist(), numbers


def _each_distinct(array: Any, text_of: Callable[[bytes], str]) -> Any:
    """Turn binary values into strings, each distinct value once."""
    encoded = array.dictionary_encode()
    texts = [text_of(value) for value in encoded.dictionary.to_pylist()]
    return pa.array(texts, type=pa.string()).take(encoded.indices)


def _message_ids(columns: RecordColumns) -> Any:
    """Upper-case hex of store host and physical offset (spec F14)."""
    is_v6 = (columns.sys_flag & STORE_HOST_V6_FLAG) != 0
    rows_v4, rows_v6 = np.flatnonzero(~is_v6), np.flatnonzero(is_v6)
    ids = [_hex_ids(columns, rows_v4, 8), _hex_ids(columns, rows_v6, 20)]
    if not len(rows_v6):
        return ids[0]
    order = np.empty(len(columns), dtype=np.int64)
    order[np.concatenate((rows_v4, rows_v6))] = np.arange(len(columns))
    return pa.concat_arrays(ids).take(pa.array(order))


def _hex_ids(columns: RecordColumns, rows: npt.NDArray[np.intp], host_size: int) -> Any:
    count = len(rows)
    id_bytes = np.empty((count, host_size + 8), dtype=np.uint8)
    hosts = np.empty(count * host_size, dtype=np.uint8)
    sizes = np.full(count, host_size, dtype=np.int64)
    kernels.copy_slices(columns.buffer, columns.store_host_at[rows], sizes, hosts)
    id_bytes[:, :host_size] = hosts.reshape(count, host_size)
    offsets = columns.physical_offset[rows].astype(">i8")
    id_bytes[:, host_size:] = offsets.view(np.uint8).reshape(count, 8)
    text = _UPPER_HEX[id_bytes]
    ends = np.arange(count + 1, dtype=np.int32) * text.itemsize * text.shape[1]
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(text))]
    return pa.Array.from_buffers(pa.string(), count, buffers)
