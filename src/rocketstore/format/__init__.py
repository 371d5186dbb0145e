"""Bytes to values and back, one module per format.

Functions of bytes and tuples::

    >>> from rocketstore.format.queue_entry import decode_entry
    >>> decode_entry(bytes.fromhex("0000000000000400 0000006a 00000000000003e9"))
    QueueEntry(physical_offset=1024, record_size=106, tags_code=1001)

Law: nothing here knows a file, socket, clock or thread. Each codec carries its field table in the
order of the bytes; a test compares the table of its page in ``docs/format`` with it, so that
neither can drift.
"""

import struct
from typing import Any, NamedTuple, TypeAlias

from rocketstore.errors import FieldRangeError, TruncatedRecordError

Buffer: TypeAlias = bytes | bytearray | memoryview


class Field(NamedTuple):
    """A row of a format's table.

    `code` is that of `struct`, big-endian, where ``s`` is a run of bytes; `width` is in bytes: a
    number, a choice, or the field that says it; `unit` is what one means, or the kind of bytes.
    """

    name: str
    code: str
    width: str
    unit: str
    meaning: str


def layout_code(fields: tuple[Field, ...]) -> str:
    """Return the big-endian `struct` format of a table whose widths are all fixed."""
    return ">" + "".join(field.code for field in fields)


def packed(row: struct.Struct, values: tuple[int, ...], what: str) -> bytes:
    """Return the bytes of a row of numbers; raises `FieldRangeError` where one is too large."""
    try:
        return row.pack(*values)
    except struct.error as error:
        raise FieldRangeError(f"{what} does not fit: {error}", found=values) from error


def checked(
    number: int, low: int, high: int, what: str, field: str | None = None, offset: int | None = None
) -> int:
    """Return a number that is within its limits; raises `FieldRangeError` for any other."""
    if not low <= number <= high:
        limits = f"{low} to {high}"
        raise FieldRangeError(what, offset=offset, field=field, expected=limits, found=number)
    return number


def unpacked(row: struct.Struct, view: Buffer, position: int, what: str) -> tuple[Any, ...]:
    """Return the numbers of the row at a position; raises `TruncatedRecordError` if it is cut."""
    room = len(view) - position
    if position < 0 or room < row.size:
        raise TruncatedRecordError(
            f"{what} cut off",
            expected=f"{row.size} bytes",
            found=f"{max(0, room)} bytes",
            offset=position,
        )
    return row.unpack_from(view, position)
