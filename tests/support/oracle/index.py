"""Plain Python: put items into an index file, walk its chains, and rebuild its slots.

The twin of ``rocketstore.native.index``, which explains the format's rules.
"""

import struct
from typing import Final

from rocketstore.native.row import ByteArray, Int64Array
from support.oracle.properties import SECTOR_SIZE_BYTES

_HEADER_SIZE: Final = 40
_SLOT_SIZE: Final = 4
_ITEM_SIZE: Final = 20
_INT32_MAX: Final = 0x7FFFFFFF
_MAX_BEGIN_MS: Final = 1 << 60
"""A header's begin is taken as no more, so that sums of times stay in 64 bits."""
_HEADER: Final = struct.Struct(">qqqqii")
_ITEM: Final = struct.Struct(">iqii")
_NUMBER: Final = struct.Struct(">i")


def positive_hash(value: int) -> int:
    """Return the key hash that Java keeps: ``abs`` of 32 bits, where ``abs(MIN_VALUE)`` is 0."""
    low = value & 0xFFFFFFFF
    if low == 0x80000000:
        return 0
    return 0x100000000 - low if low > 0x80000000 else low


def put_item(
    index_file: ByteArray,
    slot_limit: int,
    item_limit: int,
    key_hash: int,
    physical_offset: int,
    store_timestamp: int,
) -> bool:
    """Put one item; False when the file has no room for it."""
    begin, _, begin_physical, _, slots, number = _HEADER.unpack_from(index_file.data)
    number = max(number, 1)
    if number >= item_limit:
        return False
    slot_at = _HEADER_SIZE + (key_hash % slot_limit) * _SLOT_SIZE
    item_at = _HEADER_SIZE + slot_limit * _SLOT_SIZE + number * _ITEM_SIZE
    (older,) = _NUMBER.unpack_from(index_file.data, slot_at)
    if older >= number or older < 0:
        older = 0
    if number == 1:
        begin, begin_physical = store_timestamp, physical_offset
    difference = 0
    if begin > 0 and store_timestamp > begin:
        difference = min((store_timestamp - begin) // 1000, _INT32_MAX)
    _ITEM.pack_into(index_file.data, item_at, key_hash, physical_offset, difference, older)
    _NUMBER.pack_into(index_file.data, slot_at, number)
    slots += older == 0
    _HEADER.pack_into(
        index_file.data,
        0,
        begin,
        store_timestamp,
        begin_physical,
        physical_offset,
        slots,
        number + 1,
    )
    return True


def put_items(
    index_file: ByteArray,
    slot_limit: int,
    item_limit: int,
    key_hashes: Int64Array,
    physical_offsets: Int64Array,
    store_timestamps: Int64Array,
) -> int:
    """Put items into an index file, as dispatch does one by one; return how many had room."""
    if index_file.shape[0] < _HEADER_SIZE + slot_limit * _SLOT_SIZE + item_limit * _ITEM_SIZE:
        return 0
    count = min(len(key_hashes), len(physical_offsets), len(store_timestamps))
    if slot_limit < 1:
        return 0
    for at in range(count):
        item = (int(key_hashes[at]), int(physical_offsets[at]), int(store_timestamps[at]))
        if item[0] < 0 or not put_item(index_file, slot_limit, item_limit, *item):
            return at
    return count


def find_items(
    index_file: ByteArray,
    slot_limit: int,
    item_limit: int,
    key_hash: int,
    begin_ms: int,
    end_ms: int,
    start_number: int,
    offsets: Int64Array,
) -> int:
    """Collect the physical offsets of a key's items, newest first, until `offsets` is full."""
    room = offsets.shape[0] - 1
    offsets[room] = 0
    if index_file.shape[0] < _HEADER_SIZE + slot_limit * _SLOT_SIZE + item_limit * _ITEM_SIZE:
        return 0
    if slot_limit < 1 or key_hash < 0:
        return 0
    view = index_file.data
    begin, _, _, _, _, count = _HEADER.unpack_from(view)
    begin = min(max(begin, 0), _MAX_BEGIN_MS)
    count = min(count, item_limit)
    number = start_number
    if number <= 0:
        (number,) = _NUMBER.unpack_from(view, _HEADER_SIZE + (key_hash % slot_limit) * _SLOT_SIZE)
        if number == count:
            count += 1
    if number <= 0 or number >= min(count, item_limit):
        return 0
    found = 0
    items_at = _HEADER_SIZE + slot_limit * _SLOT_SIZE
    while True:
        item_hash, offset, difference, older = _ITEM.unpack_from(
            view, items_at + number * _ITEM_SIZE
        )
        if difference < 0:
            break
        stored = begin if number == 1 else begin + difference * 1000
        if item_hash == key_hash and stored + 999 >= begin_ms and stored <= end_ms:
            if found == room:
                offsets[room] = found
                return int(number)
            offsets[found] = offset
            found += 1
        if older <= 0 or older >= number:
            break
        number = older
    offsets[room] = found
    return 0


def _is_torn(index_file: ByteArray, at: int, items_at: int, items_end: int) -> bool:
    """Tell whether a power cut took the sector in which the item at `at` begins, or goes on.

    Then it is zeros on that side of the sector's edge, and so is the whole item next to it.
    """
    edge = (at // SECTOR_SIZE_BYTES + 1) * SECTOR_SIZE_BYTES
    if edge >= at + _ITEM_SIZE:
        return False
    # Zeros in the last eight bytes are an item's first in its chain and its second.
    if edge < at + 12 and not index_file[edge : min(at + 2 * _ITEM_SIZE, items_end)].any():
        return True
    # Item 0 is never used: its zeros say nothing.
    before = at - _ITEM_SIZE
    return before > items_at and not index_file[before:edge].any()


def rebuild_slots(
    index_file: ByteArray, slot_limit: int, item_limit: int, physical_limit: int
) -> int:
    """Drop items of records at or behind an offset, and chain the others anew."""
    items_at = _HEADER_SIZE + slot_limit * _SLOT_SIZE
    if index_file.shape[0] < items_at + item_limit * _ITEM_SIZE or slot_limit < 1:
        return 0
    view = index_file.data
    begin, end, begin_physical, _, _, count = _HEADER.unpack_from(view)
    count = min(max(count, 1), item_limit)
    index_file[_HEADER_SIZE:items_at] = 0
    kept, slots, last_offset = 1, 0, 0
    for number in range(1, count):
        item = _ITEM.unpack_from(view, items_at + number * _ITEM_SIZE)
        key_hash, offset, difference, _ = item
        if key_hash < 0 or offset >= physical_limit or offset < last_offset:
            continue
        # Offset 0 is the log's first record's, which only the first file has items of.
        if offset == 0 and begin_physical > 0:
            continue
        if number > 1 and item == (0, 0, 0, 0):
            continue
        items_end, at = items_at + count * _ITEM_SIZE, items_at + number * _ITEM_SIZE
        if (number > 1 or begin_physical > 0) and _is_torn(index_file, at, items_at, items_end):
            continue
        slot_at = _HEADER_SIZE + (key_hash % slot_limit) * _SLOT_SIZE
        (older,) = _NUMBER.unpack_from(view, slot_at)
        slots += older == 0
        _ITEM.pack_into(view, items_at + kept * _ITEM_SIZE, key_hash, offset, difference, older)
        _NUMBER.pack_into(view, slot_at, kept)
        last_offset = offset
        kept += 1
    index_file[items_at + kept * _ITEM_SIZE : items_at + count * _ITEM_SIZE] = 0
    _HEADER.pack_into(view, 0, begin, end, begin_physical, last_offset, slots, kept)
    return kept
