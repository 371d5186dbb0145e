"""Compiled: the messages that carry a key, from one index file and one CommitLog file.

A lookup is a hash, a short walk through the index file, and a look at each record the walk names.
In Python each of these steps costs more than the whole does here.

Law: an item is a hit only when the record it names is intact (its body's checksum aside), has the
topic, one of the keys, and a store time in the range. Items of records in other files come back
with a size of 0: the caller looks at those itself.

Sources: IndexFile.selectPhyOffset, DefaultMessageStore.queryMessage (spec B14, B15.5), with K-Q1,
K-I5 and K-I6 put right.
"""

from __future__ import annotations

from typing import Any

from numba import types

from rocketstore.format.record import FIXED_SIZE
from rocketstore.scan.columns import StopReason
from rocketstore.scan.compiled import BYTES, NUMBERS, inner, kernel
from rocketstore.scan.compiled.gather import texts_equal, topic_of
from rocketstore.scan.compiled.index import find_items, positive_hash
from rocketstore.scan.compiled.java_hash import java_hash_unchecked
from rocketstore.scan.compiled.memory import load_i32, load_i64, load_u8, load_u32
from rocketstore.scan.compiled.walk import check_record, find_value_end, v6_extra_bytes

_INTACT = int(StopReason.END)
_HEADER_SIZE = 40
_BLANK = 0x20


@inner
def _has_word(log: Any, at: Any, end: Any, name: Any, key_at: Any) -> Any:
    """Return whether the key is one of the words, parted by blanks, of a value."""
    key_size = len(name) - key_at
    while at < end:
        stop = at
        while stop < end and load_u8(log, stop) != _BLANK:
            stop += 1
        if stop - at == key_size and texts_equal(log, at, name, key_at, key_size):
            return True
        at = stop + 1
    return False


@inner
def _carries(log: Any, at: Any, stop: Any, name: Any, key_at: Any) -> Any:
    """Return whether properties name the key in the last ``KEYS`` or the last ``UNIQ_KEY``."""
    keys_at, keys_end, unique_at, unique_end = 0, 0, 0, 0
    while at < stop:
        end = find_value_end(log, at, stop)
        size = end - at
        if size >= 6 and load_u32(log, at) == 0x4B455953 and load_u8(log, at + 4) == 1:  # KEYS
            keys_at, keys_end = at + 5, end
        elif (
            size >= 10
            and load_u32(log, at) == 0x554E4951  # UNIQ
            and load_u32(log, at + 4) == 0x5F4B4559  # _KEY
            and load_u8(log, at + 8) == 1
        ):
            unique_at, unique_end = at + 9, end
        at = end + 1
    key_size = len(name) - key_at
    if unique_end - unique_at == key_size and texts_equal(log, unique_at, name, key_at, key_size):
        return True
    return _has_word(log, keys_at, keys_end, name, key_at)


@inner
def _is_hit(
    log: Any, at: Any, base: Any, readable: Any, name: Any, topic_size: Any, times: Any
) -> Any:
    """Return whether the record at a place is intact and one that was asked for."""
    if at + FIXED_SIZE > readable:
        return False
    if check_record(log, at, base, readable, check_crc=False) != _INTACT:
        return False
    topic_at, size = topic_of(log, at)
    if size != topic_size or not texts_equal(log, topic_at, name, 0, size):
        return False
    born_extra, _ = v6_extra_bytes(load_u32(log, at + 36))
    stored = load_i64(log, at + 56 + born_extra)
    if stored < times[0] or stored > times[1]:
        return False
    stop = at + load_i32(log, at)
    return _carries(log, topic_at + size + 2, stop, name, topic_size + 1)


@kernel(
    types.UniTuple(types.int64, 2)(  # type: ignore[no-untyped-call]
        BYTES, types.int64, types.int64, BYTES, types.int64, types.int64, types.int64, types.int64,
        BYTES, types.int64, types.int64, NUMBERS,
    )
)  # fmt: skip
def find_hits(
    index_file: Any, slot_limit: Any, item_limit: Any,
    name: Any, topic_size: Any, begin_ms: Any, end_ms: Any, start_number: Any,
    log: Any, base: Any, readable: Any, hits: Any,
) -> Any:  # fmt: skip
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
        An odd number of int64. The first half receives physical offsets, and behind one number
        between, the second half receives the records' sizes, 0 for those in another file.

    Returns
    -------
    tuple
        Item to go on from, 0 when the chain ended; and how many hits there are.
    """
    room = (len(hits) - 1) // 2
    readable = min(readable, len(log))
    if len(index_file) < _HEADER_SIZE or topic_size < 0 or topic_size >= len(name) or room < 1:
        return 0, 0
    if load_i64(index_file, 0) > end_ms or load_i64(index_file, 8) < begin_ms:
        return 0, 0
    key_hash = positive_hash(java_hash_unchecked(name, 0, len(name), 0))
    number = find_items(
        index_file, slot_limit, item_limit, key_hash, begin_ms, end_ms, start_number,
        hits[: room + 1],
    )  # fmt: skip
    found = hits[room]
    count = 0
    for n in range(found):
        offset = hits[n]
        at = offset - base
        size = 0
        if 0 <= at < len(log):
            if not _is_hit(log, at, base, readable, name, topic_size, (begin_ms, end_ms)):
                continue
            size = load_i32(log, at)
        hits[count] = offset
        hits[room + 1 + count] = size
        count += 1
    return number, count
