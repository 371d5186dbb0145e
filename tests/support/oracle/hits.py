"""Plain Python: the messages that carry a key, from one index file and one CommitLog file.

The twin of ``rocketstore.native.lookup``, which explains the rules.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from rocketstore.format.index_file import INDEX_HEADER_SIZE, decode_header
from rocketstore.format.record import FIXED_SIZE
from rocketstore.message import BORN_HOST_V6_FLAG
from rocketstore.scan.columns import StopReason
from support.oracle.index import find_items, positive_hash
from support.oracle.java_hash import hash_of_bytes
from support.oracle.walk import check_record

if TYPE_CHECKING:
    from rocketstore.native.dispatch_state import ByteArray, Int64Array

_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


def _carries(properties: bytes, key: bytes) -> bool:
    keys = unique = b""
    for part in properties.split(b"\x02"):
        name, _, value = part.partition(b"\x01")
        if value and name == b"KEYS":
            keys = value
        elif value and name == b"UNIQ_KEY":
            unique = value
    return key == unique or (bool(keys) and key in keys.split(b" "))


def _hit_size(
    log: memoryview, at: int, base: int, readable: int, name: bytes, topic_size: int,
    times: tuple[int, int],
) -> int:  # fmt: skip
    """Return the size of the record at a place, 0 when it is not one that was asked for."""
    if at + FIXED_SIZE > readable:
        return 0
    places = check_record(log, at, base, readable, check_crc=False)
    if isinstance(places, StopReason):
        return 0
    topic_end = places.topic_at + places.topic_size
    if log[places.topic_at : topic_end] != name[:topic_size]:
        return 0
    is_v6 = _INT32.unpack_from(log, at + 36)[0] & BORN_HOST_V6_FLAG
    (stored,) = _INT64.unpack_from(log, at + (68 if is_v6 else 56))
    (size,) = _INT32.unpack_from(log, at)
    if not times[0] <= stored <= times[1]:
        return 0
    properties = bytes(log[topic_end + 2 : at + size])
    return int(size) if _carries(properties, name[topic_size + 1 :]) else 0


def find_hits(
    index_file: ByteArray, slot_limit: int, item_limit: int,
    name: ByteArray, topic_size: int, begin_ms: int, end_ms: int, start_number: int,
    log: ByteArray, base: int, readable: int, hits: Int64Array,
) -> tuple[int, int]:  # fmt: skip
    """Collect the messages that carry a key, newest first."""
    room = (len(hits) - 1) // 2
    readable = min(readable, len(log))
    if len(index_file) < INDEX_HEADER_SIZE or not 0 <= topic_size < len(name) or room < 1:
        return 0, 0
    header = decode_header(index_file.data)
    if header.begin_timestamp_ms > end_ms or header.end_timestamp_ms < begin_ms:
        return 0, 0
    text = name.tobytes()
    key_hash = positive_hash(hash_of_bytes(text))
    number = find_items(
        index_file, slot_limit, item_limit, key_hash, begin_ms, end_ms, start_number,
        hits[: room + 1],
    )  # fmt: skip
    found = []
    for offset in hits[: int(hits[room])].tolist():
        at, size = offset - base, 0
        if 0 <= at < len(log):
            size = _hit_size(log.data, at, base, readable, text, topic_size, (begin_ms, end_ms))
            if not size:
                continue
        found.append((offset, size))
    for n, (offset, size) in enumerate(found):
        hits[n], hits[room + 1 + n] = offset, size
    return number, len(found)
