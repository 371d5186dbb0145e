"""The messages that carry a key, from one index file and one CommitLog file.

A lookup is a hash, a short walk through the index file, and a look at each record the walk names.

Law: an item is a hit only when the record it names is intact (its body's checksum aside), has the
topic, one of the keys, and a store time in the range. Items of records in other files come back
with a size of 0: the caller looks at those itself.

Sources: IndexFile.selectPhyOffset, DefaultMessageStore.queryMessage (spec B14, B15.5), with K-Q1,
K-I5 and K-I6 put right.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

if not cython.compiled:
    from rocketstore.format.record import FIXED_SIZE as _FIXED_SIZE
    from rocketstore.native.index import follow_chain, positive_hash
    from rocketstore.native.java_hash import hash_of
    from rocketstore.native.page import texts_equal, topic_of
    from rocketstore.native.row import StopReason
    from rocketstore.native.view import (
        Bytes,
        Numbers,
        bytes_of,
        find_byte,
        load_i32,
        load_i64,
        load_u8,
        load_u32,
        numbers_of,
    )
    from rocketstore.native.walk import check_record, v6_extra_bytes

    _HEADER_SIZE = 40

_NAME_KEYS = int.from_bytes(b"KEYS", "big")
_NAME_UNIQ = int.from_bytes(b"UNIQ", "big")
_NAME_KEY = int.from_bytes(b"_KEY", "big")


def has_word(log: Bytes, at: int, end: int, name: Bytes, key_at: int) -> bool:
    """Return whether the key is one of the words, parted by blanks, of a value."""
    key_size = name.size - key_at
    while at < end:
        stop = find_byte(log, at, end, 32)
        if stop - at == key_size and texts_equal(log, at, name, key_at, key_size):
            return True
        at = stop + 1
    return False


def carries(log: Bytes, at: int, stop: int, name: Bytes, key_at: int) -> bool:
    """Return whether properties name the key in the last ``KEYS`` or the last ``UNIQ_KEY``."""
    keys_at = 0
    keys_end = 0
    unique_at = 0
    unique_end = 0
    while at < stop:
        end = find_byte(log, at, stop, 2)
        size = end - at
        if size >= 6 and load_u32(log, at) == _NAME_KEYS and load_u8(log, at + 4) == 1:
            keys_at = at + 5
            keys_end = end
        elif (
            size >= 10
            and load_u32(log, at) == _NAME_UNIQ
            and load_u32(log, at + 4) == _NAME_KEY
            and load_u8(log, at + 8) == 1
        ):
            unique_at = at + 9
            unique_end = end
        at = end + 1
    key_size = name.size - key_at
    if unique_end - unique_at == key_size and texts_equal(log, unique_at, name, key_at, key_size):
        return True
    return has_word(log, keys_at, keys_end, name, key_at)


def is_hit(
    log: Bytes,
    at: int,
    base: int,
    readable: int,
    name: Bytes,
    topic_size: int,
    begin_ms: int,
    end_ms: int,
) -> bool:
    """Return whether the record at a place is intact and one that was asked for."""
    if at + _FIXED_SIZE > readable:
        return False
    if check_record(log, at, base, readable, False) != StopReason.END:
        return False
    topic_at, size = topic_of(log, at)
    if size != topic_size or not texts_equal(log, topic_at, name, 0, size):
        return False
    born_extra, _ = v6_extra_bytes(load_u32(log, at + 36))
    stored = load_i64(log, at + 56 + born_extra)
    if stored < begin_ms or stored > end_ms:
        return False
    stop = at + load_i32(log, at)
    return carries(log, topic_at + size + 2, stop, name, topic_size + 1)


def find_hits(
    index_file: Bytes,
    slot_limit: int,
    item_limit: int,
    name: Bytes,
    topic_size: int,
    begin_ms: int,
    end_ms: int,
    start_number: int,
    log: Bytes,
    base: int,
    readable: int,
    hits: Numbers,
) -> tuple[int, int]:
    """Collect the messages that carry a key, newest first.

    Parameters
    ----------
    index_file, slot_limit, item_limit, start_number
        See ``find_items``.
    name, topic_size
        UTF-8 of ``topic#key``, and how much of it is the topic.
    begin_ms, end_ms
        Store times of interest, both included.
    log, base, readable
        One CommitLog file, the physical offset of its first byte, and how much may be read.
    hits
        An odd number of int64. The first half receives physical offsets, and after one number
        between, the second half receives the records' sizes, 0 for those in another file.

    Returns
    -------
    tuple
        Item to go on from, 0 when the chain ended; and how many hits there are.
    """
    items = bytes_of(index_file)
    records = bytes_of(log)
    text = bytes_of(name)
    numbers = numbers_of(hits)
    room = (hits.shape[0] - 1) // 2
    limit = min(readable, records.size)
    if items.size < _HEADER_SIZE or topic_size < 0 or topic_size >= text.size or room < 1:
        return 0, 0
    if load_i64(items, 0) > end_ms or load_i64(items, 8) < begin_ms:
        return 0, 0
    key_hash = positive_hash(hash_of(text, 0, text.size, 0))
    number = follow_chain(
        items, slot_limit, item_limit, key_hash, begin_ms, end_ms, start_number, numbers, room
    )
    count = 0
    for n in range(numbers[room]):
        offset = numbers[n]
        size = 0
        if base <= offset < base + records.size:
            at = offset - base
            if not is_hit(records, at, base, limit, text, topic_size, begin_ms, end_ms):
                continue
            size = load_i32(records, at)
        numbers[count] = offset
        numbers[room + 1 + count] = size
        count += 1
    return int(number), count
