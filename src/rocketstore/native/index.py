"""Put items into an index file, follow its chains, and chain it again.

An index file is one hash table in one fixed file (spec F10): a header of 40 bytes, slots that hold
the number of the newest item of their chain, and items that hold the number of the next older one.
The header is kept only in the file, with no copy elsewhere.

Law: an item number read from the file is used only when it is below the number it was reached
from, so a damaged chain ends, and only when its 20 bytes lie inside the array.

Sources: IndexFile.putKey, selectPhyOffset (spec F10, B15.2, B15.5), with K-I5 and K-I6 corrected.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

if not cython.compiled:
    from rocketstore.native import view
    from rocketstore.native.touch import fault_in
    from rocketstore.native.view import Bytes, Numbers
    from rocketstore.native.walk import hash_of, is_zeros

    _HEADER_SIZE = 40
    _SLOT_SIZE = 4
    _ITEM_SIZE = 20
    _SECTOR = 512
    _MOST_NUMBERS = 0x7FFFFFFF

_LOW_32 = 0xFFFFFFFF
_TOP_BIT_32 = 0x80000000
_MAX_BEGIN_MS = 1 << 60
"""A header's begin is taken as no more, so that sums of times stay in 64 bits."""


def positive_hash(value: int) -> int:
    """Return the key hash that Java keeps: ``abs`` of 32 bits, where ``abs(MIN_VALUE)`` is 0."""
    low = value & _LOW_32
    if low == _TOP_BIT_32:
        return 0
    if low > _TOP_BIT_32:
        return _LOW_32 + 1 - low
    return low


def key_hash_of(data: Bytes, at: int, size: int, topic_hash: int) -> int:
    """Return the hash that the index keeps of ``topic#key``."""
    return positive_hash(hash_of(data, at, size, topic_hash * 31 + 35))


def slot_start(slot_limit: int, key_hash: int) -> int:
    """Return where a key's slot stands."""
    return _HEADER_SIZE + (key_hash % slot_limit) * _SLOT_SIZE


def put_item(
    index_file: Bytes, slot_limit: int, item_limit: int, key_hash: int, physical_offset: int,
    store_timestamp: int,
) -> bool:  # fmt: skip
    """Put one item; False when the file is full."""
    number = max(view.load_i32(index_file, 36), 1)
    if number >= item_limit:
        return False
    slot_at = slot_start(slot_limit, key_hash)
    item_at = _HEADER_SIZE + slot_limit * _SLOT_SIZE + number * _ITEM_SIZE
    older = view.load_i32(index_file, slot_at)
    if older >= number or older < 0:
        older = 0
    if number == 1:
        # K-I5: Java computes the first difference against the file before this one.
        view.store_i64(index_file, 0, store_timestamp)
        view.store_i64(index_file, 16, physical_offset)
    begin = view.load_i64(index_file, 0)
    difference = 0
    if begin > 0 and store_timestamp > begin:
        difference = min((store_timestamp - begin) // 1000, 0x7FFFFFFF)
    view.store_i32(index_file, item_at, key_hash)
    view.store_i64(index_file, item_at + 4, physical_offset)
    view.store_i32(index_file, item_at + 12, difference)
    view.store_i32(index_file, item_at + 16, older)
    # A reader may follow the slot at once, so the item is written before the slot names it.
    view.store_i32(index_file, slot_at, number)
    if older == 0:
        view.store_i32(index_file, 32, view.load_i32(index_file, 32) + 1)
    view.store_i32(index_file, 36, number + 1)
    view.store_i64(index_file, 8, store_timestamp)
    view.store_i64(index_file, 24, physical_offset)
    return True


def has_room(index_file: Bytes, slot_limit: int, item_limit: int) -> bool:
    """Return whether a file is as long as its slots and items need."""
    if not (1 <= slot_limit <= _MOST_NUMBERS and 0 <= item_limit <= _MOST_NUMBERS):
        return False  # and no product below is more than 64 bits hold
    items_at = _HEADER_SIZE + slot_limit * _SLOT_SIZE
    return index_file.size >= items_at + item_limit * _ITEM_SIZE


def put_items(
    index_file: Bytes, slot_limit: int, item_limit: int, key_hashes: Numbers,
    physical_offsets: Numbers, store_timestamps: Numbers,
) -> int:  # fmt: skip
    """Put items into an index file, in the order of the log, as dispatch does one by one.

    Returns how many were put; the others do not fit into the file.
    """
    data = view.bytes_of(index_file)
    if not has_room(data, slot_limit, item_limit):
        return 0
    count = min(key_hashes.shape[0], physical_offsets.shape[0], store_timestamps.shape[0])
    for at in range(count):
        if key_hashes[at] < 0 or not put_item(
            data, slot_limit, item_limit, key_hashes[at], physical_offsets[at], store_timestamps[at]
        ):
            return at
    return count


def first_item(data: Bytes, slot_limit: int, item_limit: int, key_hash: int) -> int:
    """Return the newest item of a key's slot, 0 without one; `has_room` said yes."""
    number = view.load_i32(data, slot_start(slot_limit, key_hash))
    # An item is whole before its slot names it; the header's count follows a moment later.
    if number <= 0 or number > min(view.load_i32(data, 36), item_limit - 1):
        return 0
    view.prefetch(data, _HEADER_SIZE + slot_limit * _SLOT_SIZE + number * _ITEM_SIZE)
    return number


def follow_chain(
    data: Bytes, slot_limit: int, key_hash: int, begin_ms: int, end_ms: int, number: int,
    offsets: Numbers, room: int, steps: int,
) -> int:  # fmt: skip
    """Collect physical offsets from item `number` on, newest first; return the next item.

    That is 0 at the chain's end. ``offsets[room]`` receives how many there are. An item knows whole
    seconds only, so up to 999 ms more than asked for may come (K-I6): the caller looks at records.
    """
    begin = min(max(view.load_i64(data, 0), 0), _MAX_BEGIN_MS)
    found = 0
    while number > 0 and found < room and steps > 0:
        steps -= 1
        at = _HEADER_SIZE + slot_limit * _SLOT_SIZE + number * _ITEM_SIZE
        difference = view.load_i32(data, at + 12)
        if difference < 0:
            number = 0
            break
        # K-I5: the first item of a file was stored exactly when the file begins, whatever it says.
        stored = begin if number == 1 else begin + difference * 1000
        if view.load_i32(data, at) == key_hash and stored + 999 >= begin_ms and stored <= end_ms:
            offsets[found] = view.load_i64(data, at + 4)
            found += 1
        older = view.load_i32(data, at + 16)
        number = older if 0 < older < number else 0
    offsets[room] = found
    return number


def is_torn(data: Bytes, at: int, items_at: int, items_end: int) -> bool:
    """Tell whether a power cut lost the sector in which the item at `at` begins, or continues.

    Then it is zeros on that side of the sector's edge, and so is the whole item next to it.
    """
    edge = (at // _SECTOR + 1) * _SECTOR
    if edge >= at + _ITEM_SIZE:
        return False
    # An intact item that starts its chain in the file's first second ends in eight zeros, too.
    if edge < at + 12 and is_zeros(data, edge, min(at + 2 * _ITEM_SIZE, items_end)):
        return True
    # Item 0 is never used: its zeros mean nothing.
    before = at - _ITEM_SIZE
    return before > items_at and is_zeros(data, before, edge)


def rebuild_slots(index_file: Bytes, slot_limit: int, item_limit: int, physical_limit: int) -> int:
    """Drop items of records at or after an offset, and chain the others again.

    Items keep their order and close up over dropped ones: those with an offset of `physical_limit`
    or more, and those that a power cut damaged (all zeros, zeros from a sector's edge on, an offset
    out of order, or a negative hash). The header's count, slot count and end offset are set; its
    times are left to the caller.
    Returns the number of the next free item: 1 when none is left.
    """
    data = view.bytes_of(index_file)
    if not has_room(data, slot_limit, item_limit):
        return 0
    items_at = _HEADER_SIZE + slot_limit * _SLOT_SIZE
    count = min(max(view.load_i32(data, 36), 1), item_limit)
    items_end = items_at + count * _ITEM_SIZE
    begins_after_zero = view.load_i64(data, 16) > 0
    kept, slots, last_offset = 1, 0, 0
    with cython.nogil:
        fault_in(data, 0, items_end)  # a page that is read first, and written then, costs twice
        view.clear_bytes(data, _HEADER_SIZE, items_at)
        for number in range(1, count if physical_limit > 0 else 1):  # nothing is before 0
            at = items_at + number * _ITEM_SIZE
            key_hash = view.load_i32(data, at)
            offset = view.load_i64(data, at + 4)
            difference = view.load_i32(data, at + 12)
            if key_hash < 0 or offset >= physical_limit or offset < last_offset:
                continue
            # Offset 0 is the log's first record's, which only the first file has items of.
            if offset == 0 and begins_after_zero:
                continue
            if number > 1 and is_zeros(data, at, at + _ITEM_SIZE):
                continue
            if (number > 1 or begins_after_zero) and is_torn(data, at, items_at, items_end):
                continue
            slot_at = slot_start(slot_limit, key_hash)
            older = view.load_i32(data, slot_at)
            slots += older == 0
            to = items_at + kept * _ITEM_SIZE
            view.store_i32(data, to, key_hash)
            view.store_i64(data, to + 4, offset)
            view.store_i32(data, to + 12, difference)
            view.store_i32(data, to + 16, older)
            view.store_i32(data, slot_at, kept)
            last_offset = offset
            kept += 1
        view.clear_bytes(data, items_at + kept * _ITEM_SIZE, items_end)
    view.store_i32(data, 32, slots)
    view.store_i32(data, 36, kept)
    view.store_i64(data, 24, last_offset)
    return int(kept)


def follow_items(items: Bytes, first: int, newest: Numbers, found: Numbers) -> None:
    """Put items into slots one by one, and compare each item's link with the slot's item before.

    `items` are whole items of one index file, from number `first` on. `newest` has for each slot
    the number of its newest item so far, 0 for none, and `found` five numbers: how many items link
    to a wrong one, the first of them, the first with a negative hash, the first that is before its
    predecessor in the log (each 0 for none), and the physical offset of the last item. Both are
    changed in place.
    """
    if newest.shape[0] < 1 or found.shape[0] < 5:
        return
    data, slots, facts = view.bytes_of(items), view.numbers_of(newest), view.numbers_of(found)
    slot_limit = newest.shape[0]
    with cython.nogil:
        for k in range(data.size // _ITEM_SIZE):
            at, number = k * _ITEM_SIZE, first + k
            key_hash, offset = view.load_i32(data, at), view.load_i64(data, at + 4)
            if facts[3] == 0 and offset < facts[4]:
                facts[3] = number
            facts[4] = offset
            if key_hash < 0:
                if facts[2] == 0:
                    facts[2] = number
                continue
            slot = key_hash % slot_limit
            if view.load_i32(data, at + 16) != slots[slot]:
                if facts[0] == 0:
                    facts[1] = number
                facts[0] += 1
            slots[slot] = number
