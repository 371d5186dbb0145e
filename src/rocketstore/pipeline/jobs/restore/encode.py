"""Rows of an archive as the records that they were.

Law: built from columns, never row by row. A record is ten pieces back to back: five of fixed
length that are packed from numbers, two hosts, body, topic, properties. All pieces of all rows are
copied by one call of a kernel.
Page: docs/format/record.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rocketstore.errors import ArchiveDamagedError
from rocketstore.format.record import MESSAGE_MAGIC_V1_SIGNED
from rocketstore.scan import kernels

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

COLUMNS: Final = (
    "physicalOffset",
    "size",
    "bodyCRC",
    "queueId",
    "flag",
    "queueOffset",
    "sysFlag",
    "bornTimestamp",
    "storeTimestamp",
    "reconsumeTimes",
    "preparedTransactionOffset",
    "body",
    "magic",
    "rawProperties",
    "rawBornHost",
    "rawStoreHost",
    "rawBornTimestamp",
    "rawStoreTimestamp",
)
"""What is read of a file to encode its records."""

_FIXED: Final = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("bodyCRC", ">i4"),
        ("queueId", ">i4"),
        ("flag", ">i4"),
        ("queueOffset", ">i8"),
        ("physicalOffset", ">i8"),
        ("sysFlag", ">i4"),
        ("bornTimestamp", ">i8"),
        # born host
        ("storeTimestamp", ">i8"),
        # store host
        ("reconsumeTimes", ">i4"),
        ("preparedTransactionOffset", ">i8"),
        ("body_size", ">i4"),
        # body
        ("topic_size", ">i2"),
        # topic
        ("properties_size", ">i2"),
        # properties
    ]
)
_HEAD, _STORE_TIME, _MIDDLE, _TOPIC_SIZE, _PROPERTIES_SIZE = 48, 8, 16, 2, 2
assert _FIXED.itemsize == _HEAD + _STORE_TIME + _MIDDLE + _TOPIC_SIZE + _PROPERTIES_SIZE

_PIECES: Final = 10
_BINARY: Final = frozenset({"body", "rawProperties", "rawBornHost", "rawStoreHost"})


class Topics(NamedTuple):
    """Topics of rows.

    Attributes
    ----------
    names
        Each distinct topic as stored.
    rows
        Which of them each row has.
    """

    names: list[bytes]
    rows: npt.NDArray[np.int64]


def encode_records(
    table: pa.Table, topics: Topics, physical_offsets: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """Return records back to back.

    Parameters
    ----------
    table
        Rows with the columns ``COLUMNS``, in the wanted order.
    physical_offsets
        Where each record will stand; it says so itself.

    Raises
    ------
    ArchiveDamagedError
        A row has other bytes than its `size` says.
    """
    count = table.num_rows
    numbers = {name: _numbers(table, name) for name in COLUMNS if name not in _BINARY}
    sources = [_binary(table, name) for name in ("rawBornHost", "rawStoreHost", "body")]
    sources += [_joined(topics), _binary(table, "rawProperties")]
    sizes = np.empty((count, _PIECES), dtype=np.int64)
    at = np.empty((count, _PIECES), dtype=np.int64)
    sizes[:, 0], sizes[:, 2], sizes[:, 4] = _HEAD, _STORE_TIME, _MIDDLE
    is_short = numbers["magic"] == MESSAGE_MAGIC_V1_SIGNED
    sizes[:, 6] = np.where(is_short, 1, _TOPIC_SIZE)
    sizes[:, 8] = _PROPERTIES_SIZE
    begin = count * _FIXED.itemsize
    for piece, (data, starts, lengths) in zip((1, 3, 5, 7, 9), sources, strict=True):
        at[:, piece], sizes[:, piece] = begin + starts, lengths
        begin += len(data)
    ends = sizes.sum(axis=1)
    if (ends != numbers["size"]).any():
        row = int(np.flatnonzero(ends != numbers["size"])[0])
        raise ArchiveDamagedError(
            f"the archived record at physical offset {numbers['physicalOffset'][row]} has "
            f"{ends[row]} bytes: expected {numbers['size'][row]}",
            hint="restore the archive from a backup",
        )
    numbers["physicalOffset"] = physical_offsets
    numbers["body_size"], numbers["topic_size"], numbers["properties_size"] = (
        sizes[:, 5],
        sizes[:, 7],
        sizes[:, 9],
    )
    fixed = _packed(numbers, count)
    rows = np.arange(count, dtype=np.int64) * _FIXED.itemsize
    at[:, 0], at[:, 2], at[:, 4] = rows, rows + _HEAD, rows + _HEAD + _STORE_TIME
    # The short length is the lower of two bytes.
    at[:, 6] = rows + _HEAD + _STORE_TIME + _MIDDLE + is_short
    at[:, 8] = rows + _FIXED.itemsize - _PROPERTIES_SIZE
    source = np.concatenate([fixed, *(data for data, _, _ in sources)])
    target = np.empty(int(ends.sum()), dtype=np.uint8)
    written = kernels.copy_slices(source, at.reshape(-1), sizes.reshape(-1), target)
    assert written == len(target), "the pieces lie inside the source"
    return target


def _packed(numbers: dict[str, npt.NDArray[np.int64]], count: int) -> npt.NDArray[np.uint8]:
    fixed = np.empty(count, dtype=_FIXED)
    for name in _FIXED.names or ():
        fixed[name] = numbers[name]
    return fixed.view(np.uint8)


def _numbers(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    import pyarrow as pa  # noqa: PLC0415 - on workers only
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    column: Any = table.column(name)
    if pa.types.is_timestamp(column.type):
        return milliseconds(table, name)
    if name.startswith("raw"):
        column = pc.fill_null(column, 0)
    found: npt.NDArray[np.int64] = column.to_numpy().astype(np.int64)
    return found


def milliseconds(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    """Return times as they are stored, those that no calendar has included."""
    import pyarrow as pa  # noqa: PLC0415 - on workers only
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    compute: Any = pc
    micros: Any = table.column(name).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    raw = table.column(f"raw{name[0].upper()}{name[1:]}")
    known = compute.divide(micros, 1000)
    found: npt.NDArray[np.int64] = compute.coalesce(known, raw).to_numpy()
    return found


def _binary(
    table: pa.Table, name: str
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the bytes of a column, and where each value starts and how long it is."""
    array: Any = table.column(name).combine_chunks()
    if hasattr(array, "chunks"):
        array = array.chunk(0)
    _, offsets_buffer, data_buffer = array.buffers()
    count = len(array)
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[array.offset :][: count + 1]
    offsets = offsets.astype(np.int64)
    data = np.empty(0, dtype=np.uint8)
    if data_buffer is not None:
        data = np.frombuffer(data_buffer, dtype=np.uint8)[offsets[0] : offsets[-1]]
    return data, offsets[:-1] - offsets[0], np.diff(offsets)


def _joined(
    topics: Topics,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    lengths = np.array([len(name) for name in topics.names], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    data = np.frombuffer(b"".join(topics.names), dtype=np.uint8)
    return data, starts[topics.rows], lengths[topics.rows]
