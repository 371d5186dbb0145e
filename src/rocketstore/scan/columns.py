"""What a walk finds, as columns: a row of int64 numbers per record, numpy views, Arrow batches.

A row holds the record's numbers and the *places* of its bytes (``…_AT`` is a position inside the
scanned buffer, ``…_SIZE`` a length), never a copy of them. So a row costs 224 bytes whatever the
body weighs; a caller that needs bytes takes them from the buffer.

Law: a row is written only for a record whose every length was checked, so the places of a row are
inside the buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocketstore.errors import UnsupportedEnvironmentError
from rocketstore.native.row import COLUMN_COUNT, Column, StopReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt
    import pyarrow as pa

__all__ = [
    "BORN_HOST_V6",
    "COLUMN_COUNT",
    "STORE_HOST_V6",
    "Column",
    "RecordColumns",
    "StopReason",
    "new_columns",
]

BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
"""Bits of sysFlag (spec F4)."""


def new_columns(record_count: int) -> npt.NDArray[np.int64]:
    """Return an uninitialised matrix for that many records."""
    return np.empty((record_count, COLUMN_COUNT), dtype=np.int64)


def _column(column: Column, meaning: str) -> Any:
    def view(self: RecordColumns) -> npt.NDArray[np.int64]:
        return self.cols[:, column]

    view.__doc__ = meaning
    return property(view)


class RecordColumns:
    """The records of one stretch of a CommitLog, one row of `cols` each.

    `buffer` has the scanned bytes, borrowed; `base` is the physical offset of its first.
    """

    __slots__ = ("base", "buffer", "cols")

    def __init__(
        self, buffer: npt.NDArray[np.uint8], cols: npt.NDArray[np.int64], base: int
    ) -> None:
        self.buffer = buffer
        self.cols = cols
        self.base = base

    def __len__(self) -> int:
        return len(self.cols)

    def __repr__(self) -> str:
        return f"RecordColumns({len(self)} records, base={self.base})"

    physical_offset = _column(Column.PHYSICAL_OFFSET, "Physical offset of each record.")
    size = _column(Column.SIZE, "Length of each record in bytes.")
    queue_id = _column(Column.QUEUE_ID, "Queue id of each record.")
    queue_offset = _column(Column.QUEUE_OFFSET, "Queue offset of each record.")
    flag = _column(Column.FLAG, "The application's flag.")
    sys_flag = _column(Column.SYS_FLAG, "Bits of spec F4.")
    born_timestamp = _column(Column.BORN_TIMESTAMP, "When the producer made it, in ms.")
    store_timestamp = _column(Column.STORE_TIMESTAMP, "When the store appended it, in ms.")
    reconsume_times = _column(Column.RECONSUME_TIMES, "How often consumers gave it back.")
    prepared_offset = _column(Column.PREPARED_OFFSET, "Offset of the half message, or 0.")
    body_crc = _column(Column.BODY_CRC, "CRC of the body as stored.")
    body_at = _column(Column.BODY_AT, "Position of the body in the buffer.")
    body_size = _column(Column.BODY_SIZE, "Length of the body in bytes.")
    topic_at = _column(Column.TOPIC_AT, "Position of the topic in the buffer.")
    topic_size = _column(Column.TOPIC_SIZE, "Length of the topic in bytes.")
    properties_at = _column(Column.PROPERTIES_AT, "Position of the properties in the buffer.")
    properties_size = _column(Column.PROPERTIES_SIZE, "Length of the properties in bytes.")
    tags_at = _column(Column.TAGS_AT, "Position of the tags in the buffer.")
    tags_size = _column(Column.TAGS_SIZE, "Length of the tags in bytes, 0 when absent.")
    tags_code = _column(Column.TAGS_CODE, "Hash of the tags, 0 when absent.")
    keys_at = _column(Column.KEYS_AT, "Position of the keys in the buffer.")
    keys_size = _column(Column.KEYS_SIZE, "Length of the keys in bytes, 0 when absent.")
    unique_key_at = _column(Column.UNIQUE_KEY_AT, "Position of the unique key in the buffer.")
    unique_key_size = _column(Column.UNIQUE_KEY_SIZE, "Length of the unique key, 0 when absent.")
    topic_hash = _column(Column.TOPIC_HASH, "Hash of the topic.")
    born_host_at = _column(Column.BORN_HOST_AT, "Position of the born host in the buffer.")
    store_host_at = _column(Column.STORE_HOST_AT, "Position of the store host in the buffer.")
    delay_level = _column(Column.DELAY_LEVEL, "Delay level asked for, 0 for none.")

    def taken(self, rows: slice | npt.NDArray[Any]) -> RecordColumns:
        """Return some of the records, by a slice, a mask or their numbers; bytes are not copied."""
        return RecordColumns(self.buffer, self.cols[rows], self.base)

    def bytes_of(self, row: int, at: Column, size: Column) -> bytes:
        """Return a copy of the bytes that two columns of a row name."""
        begin = int(self.cols[row, at])
        return self.buffer[begin : begin + int(self.cols[row, size])].tobytes()

    def topic(self, row: int) -> str:
        """Topic of a record; malformed UTF-8 is replaced as Java does."""
        return self.bytes_of(row, Column.TOPIC_AT, Column.TOPIC_SIZE).decode("utf-8", "replace")

    def body(self, row: int) -> bytes:
        """Body of a record as stored."""
        return self.bytes_of(row, Column.BODY_AT, Column.BODY_SIZE)

    def properties(self, row: int) -> bytes:
        """Properties of a record as stored."""
        return self.bytes_of(row, Column.PROPERTIES_AT, Column.PROPERTIES_SIZE)

    def record(self, row: int) -> memoryview:
        """View of a whole record."""
        begin = int(self.cols[row, Column.PHYSICAL_OFFSET]) - self.base
        return self.buffer.data[begin : begin + int(self.cols[row, Column.SIZE])]

    def to_arrow(self, names: Iterable[str] | None = None) -> pa.RecordBatch:
        """Return the records as an Arrow batch; see ``rocketstore.scan.arrow`` for the columns."""
        try:
            from rocketstore.scan.arrow import to_arrow  # noqa: PLC0415 - only when asked for
        except ModuleNotFoundError as error:
            raise UnsupportedEnvironmentError(
                "an Arrow batch needs pyarrow", hint="pip install 'rocketstore[arrow]'"
            ) from error

        return to_arrow(self, names)
