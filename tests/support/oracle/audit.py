"""Plain Python: which records name extra queues, and whether an index file's links are its own.

The twin of ``rocketstore.native.audit``.
"""

import numpy as np
import numpy.typing as npt

from rocketstore.format.index_file import ITEM_DTYPE, ITEM_SIZE_BYTES
from rocketstore.native.row import ByteArray, Int64Array


def follow_items(items: ByteArray, first: int, newest: Int64Array, found: Int64Array) -> None:
    """Put items into slots one by one, and compare each link with the slot's item before."""
    if len(newest) < 1 or len(found) < 5:
        return
    count = len(items) // ITEM_SIZE_BYTES
    rows: npt.NDArray[np.void] = items[: count * ITEM_SIZE_BYTES].view(ITEM_DTYPE)
    for number, (key_hash, offset, _, previous) in enumerate(rows.tolist(), start=first):
        if found[3] == 0 and offset < found[4]:
            found[3] = number
        found[4] = offset
        if key_hash < 0:
            if found[2] == 0:
                found[2] = number
            continue
        slot = key_hash % len(newest)
        if previous != newest[slot]:
            if found[0] == 0:
                found[1] = number
            found[0] += 1
        newest[slot] = number
