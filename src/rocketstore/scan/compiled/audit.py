"""Compiled: which records name extra queues, and whether an index file's links are its own.

Sources: DefaultMessageStore.checkMultiDispatchQueue, IndexFile.putKey (spec F8, F10).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import types

from rocketstore.scan.columns import Column
from rocketstore.scan.compiled import BYTES, COLUMNS, NUMBERS, kernel
from rocketstore.scan.compiled.memory import load_i32, load_i64

_NAME: Final = np.frombuffer(b"INNER_MULTI_DISPATCH\x01", dtype=np.uint8)
_NAME_SIZE: Final = 21
_LAST: Final = 20
_ITEM_SIZE: Final = 20
_SEPARATOR: Final = 2

_SKIPS: Final = np.full(256, _NAME_SIZE, dtype=np.int64)
"""By how much the name must be moved at least when this byte stands at its end (Horspool)."""
for _place in range(_LAST):
    _SKIPS[_NAME[_place]] = _LAST - _place


@kernel(types.int64(BYTES, COLUMNS, NUMBERS))
def list_extra_queues(buffer: Any, cols: Any, rows: Any) -> Any:
    """List the records whose properties have ``INNER_MULTI_DISPATCH``.

    Parameters
    ----------
    buffer, cols
        Records and their bytes.
    rows
        Filled with row numbers; at least as long as `cols`.

    Returns
    -------
    int
        How many rows.
    """
    count = 0
    for number in range(min(cols.shape[0], rows.shape[0])):
        start = cols[number, Column.PROPERTIES_AT]
        stop = start + cols[number, Column.PROPERTIES_SIZE]
        at = start
        while at + _NAME_SIZE <= stop:
            k = _LAST
            while k >= 0 and buffer[at + k] == _NAME[k]:
                k -= 1
            if k < 0 and (at == start or buffer[at - 1] == _SEPARATOR):
                rows[count] = number
                count += 1
                break
            at += _SKIPS[buffer[at + _LAST]]
    return count


@kernel(types.void(BYTES, types.int64, NUMBERS, NUMBERS))
def follow_items(items: Any, first: Any, newest: Any, found: Any) -> None:
    """Put items into slots one by one, and compare each item's link with the slot's item before.

    Parameters
    ----------
    items
        Whole items of one index file, in order.
    first
        Number of the first of them.
    newest
        For each slot the number of its newest item so far, 0 for none; changed in place.
    found
        Five numbers, changed in place: how many items link to a wrong one, the first of them, the
        first with a negative hash, the first that stands before its predecessor in the log (each 0
        for none), and the physical offset of the last item.
    """
    slot_limit = newest.shape[0]
    if slot_limit < 1 or found.shape[0] < 5:
        return
    for k in range(items.shape[0] // _ITEM_SIZE):
        at = k * _ITEM_SIZE
        number = first + k
        key_hash = load_i32(items, at)
        offset = load_i64(items, at + 4)
        if found[3] == 0 and offset < found[4]:
            found[3] = number
        found[4] = offset
        if key_hash < 0:
            if found[2] == 0:
                found[2] = number
            continue
        slot = key_hash % slot_limit
        if load_i32(items, at + 16) != newest[slot]:
            if found[0] == 0:
                found[1] = number
            found[0] += 1
        newest[slot] = number
