"""Tags codes of many queue entries at once, where they stand in the queue's extension.

Pure: the caller says how bytes are read, so tasks of Spark use it as well.

How derived: DefaultMessageStore.getMessage of 4.9, which asks for one at a time (spec B13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from rocketstore.format.queue_entry import MAX_EXT_ADDRESS
from rocketstore.format.queue_extension import LEAST_UNIT_BYTES, MOST_UNIT_BYTES, RESERVED_BYTES
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.native.row import Int64Array

LONGEST_READ_BYTES: Final = 4 * MiB
"""Read at once; the units of a page are some 30 KB."""

_HEAD: Final = np.dtype([("size", ">i2"), ("code", ">i8"), ("stored", ">i8"), ("bits", ">i2")])
assert _HEAD.itemsize == LEAST_UNIT_BYTES


def resolved(codes: Int64Array, read: Callable[[int, int], bytes | None]) -> Int64Array:
    """Return codes with those of units in the place of addresses that have one.

    `read` gives up to so many bytes from a position of the extension on, as far as one file goes.
    """
    found = codes.copy()
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
        wanted = int(positions[last]) + LEAST_UNIT_BYTES - start
        raw = read(start, min(wanted, LONGEST_READ_BYTES)) or b""
        past = int(np.searchsorted(positions, start + len(raw) - LEAST_UNIT_BYTES, side="right"))
        if past > at:
            inside = (positions[at:past] - start)[:, None] + np.arange(LEAST_UNIT_BYTES)
            heads = np.frombuffer(raw, np.uint8)[inside].view(_HEAD)[:, 0]
            is_unit = (heads["bits"] >= 0) & (heads["size"] == heads["bits"] + LEAST_UNIT_BYTES)
            found[rows[at:past][is_unit]] = heads["code"][is_unit]
        at = max(past, at + 1)
    return found
