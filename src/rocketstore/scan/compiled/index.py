"""Compiled: put items into an index file, walk its chains, and rebuild its slots.

An index file is one hash table in one fixed file (spec F10): a header of 40 bytes, slots that hold
the number of the newest item of their chain, and items that hold the number of the next older one.
The header in the file is the truth; nothing of it is kept elsewhere.

Law: an item number read from the file is used only when it is below the number it was reached
from, so a damaged chain ends, and only when its 20 bytes lie inside the array.

Sources: IndexFile.putKey, selectPhyOffset (spec F10, B15.2, B15.5), with K-I5 and K-I6 put right.
"""

from __future__ import annotations

from typing import Any, Final

from numba import types

from rocketstore.format.record_text import SECTOR_SIZE_BYTES
from rocketstore.scan.compiled import BYTES, NUMBERS, WRITABLE_BYTES, inner, kernel
from rocketstore.scan.compiled.memory import load_i32, load_i64, store_i32, store_i64

_HEADER_SIZE: Final = 40
_SLOT_SIZE: Final = 4
_ITEM_SIZE: Final = 20
_INT32_MAX: Final = 0x7FFFFFFF
_MAX_BEGIN_MS: Final = 1 << 60
"""A header's begin is taken as no more, so that sums of times stay in 64 bits."""


@inner
def positive_hash(value: Any) -> Any:
    """Return the key hash that Java keeps: ``abs`` of 32 bits, where ``abs(MIN_VALUE)`` is 0."""
    low = value & 0xFFFFFFFF
    if low == 0x80000000:
        return 0
    if low > 0x80000000:
        return 0x100000000 - low
    return low


@inner
def put_item(
    index_file: Any,
    slot_limit: Any,
    item_limit: Any,
    key_hash: Any,
    physical_offset: Any,
    store_timestamp: Any,
) -> Any:
    """Put one item; False when the file has no room for it."""
    number = load_i32(index_file, 36)
    number = max(number, 1)
    if number >= item_limit:
        return False
    slot_at = _HEADER_SIZE + (key_hash % slot_limit) * _SLOT_SIZE
    item_at = _HEADER_SIZE + slot_limit * _SLOT_SIZE + number * _ITEM_SIZE
    older = load_i32(index_file, slot_at)
    if older >= number or older < 0:
        older = 0
    if number == 1:
        # K-I5: Java computes the first difference against the file before this one.
        store_i64(index_file, 0, store_timestamp)
        store_i64(index_file, 16, physical_offset)
    begin = load_i64(index_file, 0)
    difference = 0
    if begin > 0 and store_timestamp > begin:
        difference = min((store_timestamp - begin) // 1000, _INT32_MAX)
    store_i32(index_file, item_at, key_hash)
    store_i64(index_file, item_at + 4, physical_offset)
    store_i32(index_file, item_at + 12, difference)
    store_i32(index_file, item_at + 16, older)
    # A reader may follow the slot at once, so the item stands before the slot names it.
    store_i32(index_file, slot_at, number)
    if older == 0:
        store_i32(index_file, 32, load_i32(index_file, 32) + 1)
    store_i32(index_file, 36, number + 1)
    store_i64(index_file, 8, store_timestamp)
    store_i64(index_file, 24, physical_offset)
    return True


@kernel(types.int64(WRITABLE_BYTES, types.int64, types.int64, NUMBERS, NUMBERS, NUMBERS))
def put_items(
    index_file: Any,
    slot_limit: Any,
    item_limit: Any,
    key_hashes: Any,
    physical_offsets: Any,
    store_timestamps: Any,
) -> Any:
    """Put items into an index file, as dispatch does one by one.

    Parameters
    ----------
    index_file
        The bytes of one index file.
    slot_limit, item_limit
        How many slots and items it has room for.
    key_hashes, physical_offsets, store_timestamps
        The items, in the order of the log; of equal length.

    Returns
    -------
    int
        How many were put; the file has no room for the others.
    """
    if index_file.shape[0] < _HEADER_SIZE + slot_limit * _SLOT_SIZE + item_limit * _ITEM_SIZE:
        return 0
    count = min(key_hashes.shape[0], physical_offsets.shape[0], store_timestamps.shape[0])
    if slot_limit < 1:
        return 0
    for at in range(count):
        if key_hashes[at] < 0 or not put_item(
            index_file,
            slot_limit,
            item_limit,
            key_hashes[at],
            physical_offsets[at],
            store_timestamps[at],
        ):
            return at
    return count


@kernel(
    types.int64(
        BYTES, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, NUMBERS
    )
)
def find_items(
    index_file: Any,
    slot_limit: Any,
    item_limit: Any,
    key_hash: Any,
    begin_ms: Any,
    end_ms: Any,
    start_number: Any,
    offsets: Any,
) -> Any:
    """Collect the physical offsets of a key's items, newest first, until `offsets` is full.

    Parameters
    ----------
    index_file
        The bytes of one index file.
    slot_limit, item_limit
        How many slots and items it has room for.
    key_hash
        The non-negative hash of ``topic#key``.
    begin_ms, end_ms
        Store times of interest, both included. An item knows whole seconds only, so up to 999 ms
        more than asked for may come back (K-I6): the caller looks at the records.
    start_number
        Item to go on from, as an earlier call returned it; 0 to start from the slot.
    offsets
        Filled with physical offsets; its last element receives how many.

    Returns
    -------
    int
        Item to go on from, or 0 when the chain ended.
    """
    room = offsets.shape[0] - 1
    offsets[room] = 0
    if index_file.shape[0] < _HEADER_SIZE + slot_limit * _SLOT_SIZE + item_limit * _ITEM_SIZE:
        return 0
    if slot_limit < 1 or key_hash < 0:
        return 0
    count = min(load_i32(index_file, 36), item_limit)
    begin = min(max(load_i64(index_file, 0), 0), _MAX_BEGIN_MS)
    number = start_number
    if number <= 0:
        number = load_i32(index_file, _HEADER_SIZE + (key_hash % slot_limit) * _SLOT_SIZE)
        if number == count:
            # The item is whole before its slot names it; the header's count follows a moment later.
            count += 1
    if number <= 0 or number >= min(count, item_limit):
        return 0
    found = 0
    while True:
        at = _HEADER_SIZE + slot_limit * _SLOT_SIZE + number * _ITEM_SIZE
        difference = load_i32(index_file, at + 12)
        if difference < 0:
            break
        # K-I5: the first item of a file was stored exactly when the file begins, whatever it says.
        stored = begin if number == 1 else begin + difference * 1000
        if load_i32(index_file, at) == key_hash and stored + 999 >= begin_ms and stored <= end_ms:
            if found == room:
                offsets[room] = found
                return number
            offsets[found] = load_i64(index_file, at + 4)
            found += 1
        older = load_i32(index_file, at + 16)
        if older <= 0 or older >= number:
            break
        number = older
    offsets[room] = found
    return 0


@inner
def _is_zeros(index_file: Any, start: Any, stop: Any) -> Any:
    while start < stop and index_file[start] == 0:
        start += 1
    return start == stop


@inner
def _is_torn(index_file: Any, at: Any, items_at: Any, items_end: Any) -> Any:
    """Tell whether a power cut took the sector in which the item at `at` begins, or goes on.

    Then it is zeros on that side of the sector's edge, and so is the whole item next to it.
    """
    edge = (at // SECTOR_SIZE_BYTES + 1) * SECTOR_SIZE_BYTES
    if edge >= at + _ITEM_SIZE:
        return False
    # Zeros in the last eight bytes are an item's first in its chain and its second.
    if edge < at + 12 and _is_zeros(index_file, edge, min(at + 2 * _ITEM_SIZE, items_end)):
        return True
    # Item 0 is never used: its zeros say nothing.
    before = at - _ITEM_SIZE
    return before > items_at and _is_zeros(index_file, before, edge)


@kernel(types.int64(WRITABLE_BYTES, types.int64, types.int64, types.int64))
def rebuild_slots(index_file: Any, slot_limit: Any, item_limit: Any, physical_limit: Any) -> Any:
    """Drop items of records at or behind an offset, and chain the others anew.

    Items stay in their order and move together where one before them went. Dropped are items whose
    offset is `physical_limit` or more, that are all zero or from a sector's edge on, or whose
    offset or hash goes backwards out of order or below zero: bytes that a power cut left. The
    header's count, slot count and end
    offset are set; its times are the caller's matter.

    Returns
    -------
    int
        Number of the next free item: 1 when none is left.
    """
    items_at = _HEADER_SIZE + slot_limit * _SLOT_SIZE
    if index_file.shape[0] < items_at + item_limit * _ITEM_SIZE or slot_limit < 1:
        return 0
    count = min(max(load_i32(index_file, 36), 1), item_limit)
    begins_behind_zero = load_i64(index_file, 16) > 0
    index_file[_HEADER_SIZE:items_at] = 0
    kept = 1
    slots = 0
    last_offset = 0
    for number in range(1, count):
        at = items_at + number * _ITEM_SIZE
        key_hash = load_i32(index_file, at)
        offset = load_i64(index_file, at + 4)
        difference = load_i32(index_file, at + 12)
        if key_hash < 0 or offset >= physical_limit or offset < last_offset:
            continue
        # Offset 0 is the log's first record's, which only the first file has items of.
        if offset == 0 and begins_behind_zero:
            continue
        if number > 1 and _is_zeros(index_file, at, at + _ITEM_SIZE):
            continue
        if (number > 1 or begins_behind_zero) and _is_torn(
            index_file, at, items_at, items_at + count * _ITEM_SIZE
        ):
            continue
        slot_at = _HEADER_SIZE + (key_hash % slot_limit) * _SLOT_SIZE
        older = load_i32(index_file, slot_at)
        if older == 0:
            slots += 1
        to = items_at + kept * _ITEM_SIZE
        store_i32(index_file, to, key_hash)
        store_i64(index_file, to + 4, offset)
        store_i32(index_file, to + 12, difference)
        store_i32(index_file, to + 16, older)
        store_i32(index_file, slot_at, kept)
        last_offset = offset
        kept += 1
    index_file[items_at + kept * _ITEM_SIZE : items_at + count * _ITEM_SIZE] = 0
    store_i32(index_file, 32, slots)
    store_i32(index_file, 36, kept)
    store_i64(index_file, 24, last_offset)
    return kept
