"""One row of a format page, as data.

Each codec of a fixed layout carries its field table in the order of the bytes; the table of its
page in ``docs/format`` is compared with it by a test, so that neither can drift.
"""

from __future__ import annotations

from typing import NamedTuple


class Field(NamedTuple):
    """A field of fixed width.

    Attributes
    ----------
    name
        As the format page calls it.
    code
        `struct` code, always used big-endian.
    width_bytes
        What the code takes on disk.
    unit
        ``bytes``, ``ms``, ``s``, ``count``, or ``-`` for a plain number.
    meaning
        One clause.
    """

    name: str
    code: str
    width_bytes: int
    unit: str
    meaning: str


def field_offset(fields: tuple[Field, ...], name: str) -> int:
    """Return the position of the field `name` from the start of its table.

    Raises
    ------
    KeyError
        No field has that name.
    """
    offset = 0
    for field in fields:
        if field.name == name:
            return offset
        offset += field.width_bytes
    raise KeyError(name)


def layout_code(fields: tuple[Field, ...]) -> str:
    """Return the big-endian `struct` format of the whole table."""
    return ">" + "".join(field.code for field in fields)
