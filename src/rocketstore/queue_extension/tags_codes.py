"""Units of many queue entries at once: what they say, above all the tags codes.

Pure: the caller says how bytes are read, so tasks of Spark use it as well.

How derived: DefaultMessageStore.getMessage of 4.9, which asks for one at a time (spec B13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from rocketstore.format.queue_entry import MAX_EXT_ADDRESS
from rocketstore.format.queue_extension import LEAST_UNIT_BYTES, MOST_UNIT_BYTES, RESERVED_BYTES
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rocketstore.native.row import Int64Array

    Read: TypeAlias = Callable[[int, int], bytes | None]

LONGEST_READ_BYTES: Final = 4 * MiB
"""Read at once; the units of a page are some 30 KB."""

_HEAD: Final = np.dtype([("size", ">i2"), ("code", ">i8"), ("stored", ">i8"), ("bits", ">i2")])
assert _HEAD.itemsize == LEAST_UNIT_BYTES


class Units(NamedTuple):
    """Units that were read at once: the row of each, its head, its place in the bytes."""

    rows: Int64Array
    heads: np.ndarray
    places: Int64Array
    raw: bytes

    def bit_maps(self) -> Iterator[tuple[int, bytes]]:
        """Yield the bit map of each row whose unit is whole."""
        starts = (self.places + LEAST_UNIT_BYTES).tolist()
        for row, start, size in zip(
            self.rows.tolist(), starts, self.heads["bits"].tolist(), strict=True
        ):
            bit_map = self.raw[start : start + size]
            if len(bit_map) == size:
                yield row, bit_map


def resolved(codes: Int64Array, read: Read) -> Int64Array:
    """Return codes with those of units in the place of addresses that have one; see `units_of`."""
    found = codes.copy()
    for units in units_of(codes, read):
        found[units.rows] = units.heads["code"]
    return found


def units_of(codes: Int64Array, read: Read, most: int = LEAST_UNIT_BYTES) -> Iterator[Units]:
    """Yield the units whose addresses are among some codes.

    `read` gives up to so many bytes from a position of the extension on, as far as one file goes;
    `most` bytes of each unit are wanted: its head, or ``MOST_UNIT_BYTES`` with its bit map.
    """
    rows = np.flatnonzero(codes <= MAX_EXT_ADDRESS)
    positions = codes[rows] & np.int64(2**63 - 1)
    order = np.argsort(positions, kind="stable")
    rows, positions = rows[order], positions[order]
    # Units further apart than one is long are not of one stretch: an address may be damaged.
    breaks = np.flatnonzero(np.diff(positions) > MOST_UNIT_BYTES + RESERVED_BYTES) + 1
    ends = np.append(breaks, len(rows))
    at = 0
    while at < len(rows):
        start, last = int(positions[at]), int(ends[np.searchsorted(ends, at, side="right")]) - 1
        wanted = int(positions[last]) + most - start
        raw = read(start, min(wanted, LONGEST_READ_BYTES)) or b""
        # The next read begins with a unit that this one may have cut.
        room = most if len(raw) == LONGEST_READ_BYTES else LEAST_UNIT_BYTES
        past = int(np.searchsorted(positions, start + len(raw) - room, side="right"))
        if past > at:
            places = positions[at:past] - start
            inside = places[:, None] + np.arange(LEAST_UNIT_BYTES)
            heads = np.frombuffer(raw, np.uint8)[inside].view(_HEAD)[:, 0]
            is_unit = (heads["bits"] >= 0) & (heads["size"] == heads["bits"] + LEAST_UNIT_BYTES)
            yield Units(rows[at:past][is_unit], heads[is_unit], places[is_unit], raw)
        at = max(past, at + 1)
