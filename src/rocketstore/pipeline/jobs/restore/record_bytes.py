"""Rows of an archive as the records that they were, each compared with its checksum.

Law: built from columns, never row by row. A record is ten pieces back to back: five of fixed
length that are packed from numbers, two hosts, body, topic, properties. All pieces of all rows are
copied by one call of a kernel.
Page: docs/format/record.md.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow  # noqa: ICN001 - `pa` is the same without its annotations
import pyarrow.compute

from rocketstore.errors import ArchiveDamagedError
from rocketstore.format.record import MESSAGE_MAGIC_V1_SIGNED
from rocketstore.scan import kernels

pa: Any = pyarrow
pc: Any = pyarrow.compute

Numbers = npt.NDArray[np.int64]

COLUMNS: Final = (
    "topic",
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
    "rawTopic",
    "rawProperties",
    "rawBornHost",
    "rawStoreHost",
    "rawBornTimestamp",
    "rawStoreTimestamp",
    "recordCRC",
)
"""What is read of a row to write its record."""

FROM_BACKUP: Final = (
    "restore another version (as_of, --as-of), or the archive from a backup; nothing was restored"
)

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
_PLACE_AT: Final = 28
"""Where a record says at which physical offset it stands."""


def encode_records(rows: pyarrow.RecordBatch, path: str) -> tuple[npt.NDArray[np.uint8], Numbers]:
    """Return records back to back, and their sizes.

    Parameters
    ----------
    rows
        With the columns ``COLUMNS``.
    path
        Of the file that they are from, for errors.

    Raises
    ------
    ArchiveDamagedError
        A row gives another record than was archived, by its `size` or its `recordCRC`.
    """
    count = rows.num_rows
    numbers = {
        name: numbers_of(rows, name)
        for name in ("magic", *(_FIXED.names or ()))
        if name in COLUMNS and not name.endswith("Timestamp")
    }
    numbers |= {name: milliseconds(rows, name) for name in ("bornTimestamp", "storeTimestamp")}
    sources = [_binary(rows.column(name)) for name in ("rawBornHost", "rawStoreHost", "body")]
    sources += [_binary(_topics(rows)), _binary(rows.column("rawProperties"))]
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
    totals = sizes.sum(axis=1)
    _compare(rows, path, "bytes", totals, numbers["size"])
    numbers |= dict(zip(("body_size", "topic_size", "properties_size"), sizes.T[5::2], strict=True))
    fixed = np.empty(count, dtype=_FIXED)
    for name in _FIXED.names or ():
        fixed[name] = numbers[name]
    heads = np.arange(count, dtype=np.int64) * _FIXED.itemsize
    at[:, 0], at[:, 2], at[:, 4] = heads, heads + _HEAD, heads + _HEAD + _STORE_TIME
    # The short length is the lower of two bytes.
    at[:, 6] = heads + _HEAD + _STORE_TIME + _MIDDLE + is_short
    at[:, 8] = heads + _FIXED.itemsize - _PROPERTIES_SIZE
    source = np.concatenate([fixed.view(np.uint8), *(data for data, _, _ in sources)])
    content = np.empty(int(totals.sum()), dtype=np.uint8)
    written = kernels.copy_slices(source, at.reshape(-1), sizes.reshape(-1), content)
    assert written == len(content), "the pieces lie inside the source"
    crcs = np.empty(count, dtype=np.int64)
    kernels.slice_crcs(content, np.cumsum(totals) - totals, totals, crcs)
    _compare(rows, path, "CRC", crcs, numbers_of(rows, "recordCRC"))
    return content, totals


def _compare(
    rows: pyarrow.RecordBatch, path: str, what: str, found: Numbers, expected: Numbers
) -> None:
    wrong = np.flatnonzero(found != expected)
    if len(wrong):
        row = int(wrong[0])
        raise ArchiveDamagedError(
            f"{path}: the record at physical offset {rows.column('physicalOffset')[row]} has "
            f"{what} {found[row]}: expected {expected[row]}",
            hint=FROM_BACKUP,
        )


def move_records(content: npt.NDArray[np.uint8], sizes: Numbers, offsets: Numbers) -> None:
    """Make records back to back say that they stand at other physical offsets."""
    at = (np.cumsum(sizes) - sizes + _PLACE_AT)[:, np.newaxis] + np.arange(8)
    content[at] = offsets.astype(">i8").view(np.uint8).reshape(-1, 8)


def numbers_of(rows: pyarrow.RecordBatch, name: str) -> Numbers:
    """Return a column of numbers; 0 where it is null."""
    found: Numbers = pc.fill_null(rows.column(name), 0).to_numpy().astype(np.int64)
    return found


def milliseconds(rows: pyarrow.RecordBatch, name: str) -> Numbers:
    """Return times as they are stored, those that no calendar has included."""
    micros = rows.column(name).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    raw = rows.column(f"raw{name[0].upper()}{name[1:]}")
    found: Numbers = pc.fill_null(pc.coalesce(pc.divide(micros, 1000), raw), 0).to_numpy()
    return found


def _topics(rows: pyarrow.RecordBatch) -> Any:
    return pc.coalesce(rows.column("rawTopic"), rows.column("topic").cast(pa.binary()), b"")


def _binary(array: Any) -> tuple[npt.NDArray[np.uint8], Numbers, Numbers]:
    """Return the bytes of a column, and where each value starts and how long it is."""
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[array.offset :][: len(array) + 1]
    offsets = offsets.astype(np.int64)
    data = np.empty(0, dtype=np.uint8)
    if data_buffer is not None:
        data = np.frombuffer(data_buffer, dtype=np.uint8)[offsets[0] : offsets[-1]]
    return data, offsets[:-1] - offsets[0], np.diff(offsets)
