"""Read the units of a queue's extension, above all the tags codes of entries.

Law: a unit is derived from its record, which counts more: without a unit nothing is known, and the
record is read. How bytes are read is the caller's, so tasks of Spark use it as well.

How derived: ConsumeQueueExt.get, ConsumeQueue.getExt and DefaultMessageStore.getMessage of 4.9,
which asks for one unit at a time (spec F7, B13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from rocketstore.format.queue_entry import (
    ENTRY_DTYPE,
    ENTRY_SIZE_BYTES,
    MAX_EXT_ADDRESS,
    entry_array,
)
from rocketstore.format.queue_extension import (
    LEAST_UNIT_BYTES,
    MOST_UNIT_BYTES,
    RESERVED_BYTES,
    ExtensionUnit,
    decode_unit,
    position_of,
)
from rocketstore.units import MiB, Window

if TYPE_CHECKING:
    from rocketstore.native.row import Int64Array
    from rocketstore.scan.queue_search import Files

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


class UnitReader:
    """Reads the units of one queue's extension, whose files are listed when one is asked for."""

    def __init__(self, list_files: Callable[[], Files]) -> None:
        self._list_files = list_files

    @cached_property
    def _files(self) -> Any:
        return self._list_files()

    def read(self, position: int, size: int) -> bytes | None:
        """Return up to so many bytes from a position on, as `units_of` wants them."""
        found: bytes | None = self._files.read(position, size)
        return found

    def unit_at(self, address: int) -> ExtensionUnit | None:
        """Return what an entry's tags code refers to; None where it refers to no unit."""
        position = position_of(address)
        if position is None:
            return None
        raw = self.read(position, LEAST_UNIT_BYTES) or b""
        size = int.from_bytes(raw[:2], signed=True)
        if LEAST_UNIT_BYTES < size <= MOST_UNIT_BYTES:
            raw = self.read(position, size) or b""
        return decode_unit(raw)

    def tags_codes(self, codes: Int64Array) -> Int64Array:
        """Return the tags codes that entries mean; an address without a unit stays as it is."""
        found = codes.copy()
        for units in units_of(codes, self.read):
            found[units.rows] = units.heads["code"]
        return found

    def with_tags_codes(self, window: Window, start: int, limit: int) -> Window:
        """Return entries of a queue (`QueueSearch.bytes_at`) with the tags codes that they mean."""
        base = start * ENTRY_SIZE_BYTES
        low, high = base - window.base, base - window.base + limit * ENTRY_SIZE_BYTES
        held = memoryview(window.buffer)[low : min(high, window.size)]
        entries = np.array(entry_array(held), ENTRY_DTYPE)
        codes = entries["tags_code"].astype(np.int64)
        if not (codes <= MAX_EXT_ADDRESS).any():
            return window._replace(file=None)
        entries["tags_code"] = self.tags_codes(codes)
        return Window(entries.tobytes(), base, entries.nbytes)
