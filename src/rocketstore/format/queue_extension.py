"""One unit of a ConsumeQueueExt: tags code, store time and bit map that a queue entry refers to.

The entry keeps the unit's address where its tags code would stand. Units stand back to back in
files named as those of a ConsumeQueue; a negative size ends a file early.

Law: an incomplete unit is None, which is an expected outcome: a unit only spares reading the
record. Page: docs/format/queue-extension.md.
Source: rocketmq-all-4.9.8, ConsumeQueueExt and ConsumeQueueExt.CqExtUnit (spec F7).
"""

import struct
from typing import Final, NamedTuple

from rocketstore.format import Buffer, Field, layout_code, packed
from rocketstore.format.queue_entry import MAX_EXT_ADDRESS

FIELDS: Final = (
    Field("unit_size", "h", "2", "bytes", "20 + bit map"),
    Field("tags_code", "q", "8", "-", "what the entry would keep: hash of the tags, deliver time"),
    Field("store_timestamp", "q", "8", "ms", "when the record was stored"),
    Field("bit_map_size", "h", "2", "bytes", "length of the bit map, 0 without one"),
    Field("bit_map", "s", "bit_map_size", "bits", "Bloom filter of the consumers that want it"),
)
"""The page's table."""

UNIT_STRUCT: Final = struct.Struct(layout_code(FIELDS[:-1]))
LEAST_UNIT_BYTES: Final = UNIT_STRUCT.size
MOST_UNIT_BYTES: Final = 2**15 - 1
RESERVED_BYTES: Final = 4
"""Left free at the end of a file (END_BLANK_DATA_LENGTH)."""
END_MARK: Final = struct.pack(">h", -1)
MAX_POSITION: Final = MAX_EXT_ADDRESS + 2**63


class ExtensionUnit(NamedTuple):
    """Content of a unit about a message."""

    tags_code: int
    store_timestamp_ms: int
    bit_map: bytes = b""

    @property
    def size(self) -> int:
        """Bytes of the unit."""
        return LEAST_UNIT_BYTES + len(self.bit_map)


def address_of(position: int) -> int:
    """Return what an entry keeps of a unit at a position in the queue's extension."""
    return position - 2**63


def position_of(address: int) -> int | None:
    """Return the position that an entry's tags code names; None where it names no unit."""
    return address + 2**63 if address <= MAX_EXT_ADDRESS else None


def encode_unit(unit: ExtensionUnit) -> bytes:
    """Encode one unit; raises `FieldRangeError`."""
    tags_code, stored_ms, bit_map = unit
    values = (unit.size, tags_code, stored_ms, len(bit_map))
    return packed(UNIT_STRUCT, values, "a number of an extension unit") + bit_map


def decode_unit(view: Buffer, position: int = 0) -> ExtensionUnit | None:
    """Decode the unit that starts at `position` of `view`; None where none stands there."""
    if position < 0 or len(view) - position < LEAST_UNIT_BYTES:
        return None
    size, tags_code, stored_ms, bit_map_size = UNIT_STRUCT.unpack_from(view, position)
    bit_map = bytes(view[position + LEAST_UNIT_BYTES : position + max(size, 0)])
    is_whole = 0 <= bit_map_size == size - LEAST_UNIT_BYTES == len(bit_map)
    return ExtensionUnit(tags_code, stored_ms, bit_map) if is_whole else None
