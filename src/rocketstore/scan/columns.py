"""The result of a walk as columns: a row of int64 numbers per record, numpy views.

A row (``native.row``) costs 224 bytes whatever the body weighs; a caller that needs bytes takes
them from the buffer.

Law: a row is written only for a record whose every length was checked, so its positions are inside
the buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rocketstore.native.row import COLUMN_COUNT, CallsFor, Column, StopReason

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["COLUMN_COUNT", "CallsFor", "Column", "RecordColumns", "StopReason", "new_columns"]


def new_columns(record_count: int) -> npt.NDArray[np.int64]:
    """Return an uninitialised matrix for that many records."""
    return np.empty((record_count, COLUMN_COUNT), dtype=np.int64)


class RecordColumns:
    """The records of one stretch of a CommitLog, one row of `cols` each.

    `buffer` has the scanned bytes, borrowed; `base` is the physical offset of its first. Each
    `Column` is also an attribute in small letters: ``columns.queue_id`` are those of all records.
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

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> npt.NDArray[np.int64]: ...

    def taken(self, rows: slice | npt.NDArray[Any]) -> RecordColumns:
        """Return some of the records, by a slice, a mask or their numbers; bytes are not copied."""
        return RecordColumns(self.buffer, self.cols[rows], self.base)

    def bytes_of(self, row: int, at: Column, size: Column) -> bytes:
        """Return a copy of the bytes that two columns of a row name."""
        begin = int(self.cols[row, at])
        return self.buffer[begin : begin + int(self.cols[row, size])].tobytes()

    def call_for(self, what: CallsFor) -> npt.NDArray[np.bool_]:
        """Return which records call for an entry, extra ones, or index items."""
        return (self.cols[:, Column.CALLS_FOR] & what).astype(np.bool_)

    def topic(self, row: int) -> str:
        """Topic of a record; malformed UTF-8 is replaced as Java does."""
        return self.bytes_of(row, Column.TOPIC_AT, Column.TOPIC_SIZE).decode("utf-8", "replace")

    def body(self, row: int) -> bytes:
        """Body of a record as stored."""
        return self.bytes_of(row, Column.BODY_AT, Column.BODY_SIZE)

    def properties(self, row: int) -> bytes:
        """Properties of a record as stored."""
        return self.bytes_of(row, Column.PROPERTIES_AT, Column.PROPERTIES_SIZE)


def _column(column: Column) -> property:
    return property(lambda self: self.cols[:, column])


for _each in Column:
    setattr(RecordColumns, _each.name.lower(), _column(_each))
