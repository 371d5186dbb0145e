"""Walk CommitLog records from one to the next; see ``rocketstore.native.walk``.

Cost: about 4 µs a record, most of it the row and the properties.
"""

import struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rocketstore.format.record import body_crc
from rocketstore.message import (
    BORN_HOST_V6_FLAG,
    STORE_HOST_V6_FLAG,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from rocketstore.scan.columns import COLUMN_COUNT, CallsFor, Column, StopReason
from support.oracle.java_hash import hash_of_bytes
from support.oracle.properties import is_text_whole

_MAGIC_V1: Final = 0xDAA320A7
_MAGIC_V2: Final = 0xDAA320AB
_MAGIC_BLANK: Final = 0xCBD43194
_FIXED: Final = {_MAGIC_V1: 91, _MAGIC_V2: 92}
"""Bytes of a record with IPv4 hosts that are neither body, topic nor properties."""

_LENGTH_AND_MAGIC: Final = struct.Struct(">iI").unpack_from
# crc, queue id, flag, queue offset, physical offset, sysFlag, born timestamp: bytes 8 to 48
_HEAD: Final = struct.Struct(">iiiqqiq").unpack_from
_LONG: Final = struct.Struct(">q").unpack_from
_RECONSUME_AND_PREPARED: Final = struct.Struct(">iq").unpack_from
_INT: Final = struct.Struct(">i").unpack_from
_SHORT: Final = struct.Struct(">h").unpack_from
_SIGNED_BYTE: Final = struct.Struct(">b").unpack_from

_DECIMAL_DIGITS: Final = frozenset(b"0123456789")
_INT_MAX: Final = 0x7FFFFFFF


class _Places(NamedTuple):
    """Where the parts of a record are whose lengths agree."""

    store_time_at: int
    tail_at: int
    body_at: int
    body_size: int
    topic_at: int
    topic_size: int
    properties_at: int


def _places(view: memoryview, position: int, total: int, magic: int) -> _Places | None:
    """Follow the inner lengths; None when they do not add up to the record's."""
    (sys_flag,) = _INT(view, position + 36)
    store_time_at = position + 56 + (12 if sys_flag & BORN_HOST_V6_FLAG else 0)
    tail_at = store_time_at + 16 + (12 if sys_flag & STORE_HOST_V6_FLAG else 0)
    body_at = tail_at + 16
    length_size = _FIXED[magic] - 90
    room = position + total - body_at - length_size - 2
    if room < 0:
        return None
    (body_size,) = _INT(view, body_at - 4)
    if not 0 <= body_size <= room:
        return None
    (topic_size,) = (_SIGNED_BYTE if length_size == 1 else _SHORT)(view, body_at + body_size)
    room -= body_size + topic_size
    topic_at = body_at + body_size + length_size
    if topic_size < 0 or room < 0 or _SHORT(view, topic_at + topic_size)[0] != room:
        return None
    properties_at = topic_at + topic_size + 2
    return _Places(store_time_at, tail_at, body_at, body_size, topic_at, topic_size, properties_at)


def _judge_blank_or_other(total: int, magic: int, remaining: int) -> StopReason:
    if magic == _MAGIC_BLANK:
        return StopReason.BLANK if total == remaining else StopReason.BAD_LENGTH
    return StopReason.UNWRITTEN if total == 0 and magic == 0 else StopReason.BAD_MAGIC


def check_record(
    view: memoryview, position: int, base: int, file_size: int, *, check_crc: bool
) -> StopReason | _Places:
    """Judge what stands at `position`: the places of an intact record, or why it is none."""
    remaining = file_size - position
    available = len(view) - position
    if min(remaining, available) < 8:
        if not any(view[position : min(len(view), file_size)]):
            return StopReason.UNWRITTEN
        return StopReason.TRUNCATED if remaining >= 8 else StopReason.BAD_LENGTH
    total, magic = _LENGTH_AND_MAGIC(view, position)
    if magic not in _FIXED:
        return _judge_blank_or_other(total, magic, remaining)
    if not _FIXED[magic] <= total <= remaining:
        return StopReason.BAD_LENGTH
    if total > available:
        return StopReason.TRUNCATED
    if _LONG(view, position + 28)[0] != base + position:
        return StopReason.BAD_ADDRESS
    places = _places(view, position, total, magic)
    if places is None:
        return StopReason.BAD_FIELDS
    text = bytes(view[places.topic_at : position + total])
    if not is_text_whole(text, places.topic_size, base + places.topic_at):
        return StopReason.BAD_FIELDS
    if check_crc:
        body = view[places.body_at : places.body_at + places.body_size]
        if body and _INT(view, position + 8)[0] != body_crc(body):
            return StopReason.BAD_CRC
    return places


def _property_columns(view: memoryview, at: int, end: int) -> dict[Column, int]:
    """Return the places of the properties that dispatch needs (spec F3.3)."""
    noted: dict[Column, int] = {}
    block = bytes(view[at:end])
    for part in block.split(b"\x02"):
        name, _, value = part.partition(b"\x01")
        value_at = at + len(name) + 1
        at += len(part) + 1
        if not name or not value:
            continue
        if name == b"TAGS":
            noted[Column.TAGS_AT], noted[Column.TAGS_SIZE] = value_at, len(value)
            noted[Column.TAGS_CODE] = hash_of_bytes(value)
        elif name == b"KEYS":
            noted[Column.KEYS_AT], noted[Column.KEYS_SIZE] = value_at, len(value)
        elif name == b"UNIQ_KEY":
            noted[Column.UNIQUE_KEY_AT], noted[Column.UNIQUE_KEY_SIZE] = value_at, len(value)
        elif name == b"DELAY":
            noted[Column.DELAY_LEVEL] = _decimal(value)
        elif name == b"INNER_MULTI_DISPATCH":
            noted[Column.CALLS_FOR] = CallsFor.EXTRA_ENTRIES
    return noted


def _decimal(text: bytes) -> int:
    # Leading zeros may be many: int() limits the digits it takes, so they go first.
    digits = (text[1:] if text[:1] == b"+" and len(text) > 1 else text).lstrip(b"0") or b"0"
    if not _DECIMAL_DIGITS.issuperset(digits) or len(digits) > len(str(_INT_MAX)):
        return 0
    value = int(digits)
    return value if value <= _INT_MAX else 0


def row_of(view: memoryview, position: int, base: int, places: _Places) -> list[int]:
    """Return the row of an intact record, in the order of ``Column``."""
    total, _ = _LENGTH_AND_MAGIC(view, position)
    crc, queue_id, flag, queue_offset, _, sys_flag, born_time = _HEAD(view, position + 8)
    (store_time,) = _LONG(view, places.store_time_at)
    reconsume_times, prepared_offset = _RECONSUME_AND_PREPARED(view, places.tail_at)
    end = position + total
    topic = bytes(view[places.topic_at : places.topic_at + places.topic_size])
    noted = _property_columns(view, places.properties_at, end)
    return [
        base + position,
        total,
        queue_id,
        queue_offset,
        flag,
        sys_flag,
        born_time,
        store_time,
        reconsume_times,
        prepared_offset,
        crc,
        places.body_at,
        places.body_size,
        places.topic_at,
        places.topic_size,
        places.properties_at,
        end - places.properties_at,
        noted.get(Column.TAGS_AT, 0),
        noted.get(Column.TAGS_SIZE, 0),
        noted.get(Column.TAGS_CODE, 0),
        noted.get(Column.KEYS_AT, 0),
        noted.get(Column.KEYS_SIZE, 0),
        noted.get(Column.UNIQUE_KEY_AT, 0),
        noted.get(Column.UNIQUE_KEY_SIZE, 0),
        hash_of_bytes(topic),
        _calls_for(sys_flag, topic, noted),
        places.store_time_at + 8,
        noted.get(Column.DELAY_LEVEL, 0),
    ]


def _calls_for(sys_flag: int, topic: bytes, noted: dict[Column, int]) -> int:
    if sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return 0
    if sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED:
        return CallsFor.ITEMS
    is_due = topic == b"SCHEDULE_TOPIC_XXXX" and noted.get(Column.DELAY_LEVEL, 0) > 0
    due = CallsFor.DUE_TIME if is_due else 0
    return noted.get(Column.CALLS_FOR, 0) + due + CallsFor.ENTRY + CallsFor.ITEMS


def walk(
    buffer: npt.NDArray[np.uint8],
    position: int,
    stop: int,
    base: int,
    file_size: int,
    check_crc: bool,
    cols: npt.NDArray[np.int64],
) -> tuple[int, int, int]:
    """Fill `cols` with the records that start in ``[position, stop)``, each where the last ended.

    Returns the rows filled, the first byte that no row accounts for, and what stands there.
    """
    if cols.shape[1] != COLUMN_COUNT:
        raise ValueError("cols needs COLUMN_COUNT columns")
    view = buffer.data
    position = max(position, 0)
    stop = min(stop, file_size, len(buffer))
    rows: list[list[int]] = []
    row_count = cols.shape[0]
    reason = StopReason.END
    while position < stop and len(rows) < row_count:
        found = check_record(view, position, base, file_size, check_crc=check_crc)
        if isinstance(found, StopReason):
            reason = found
            break
        row = row_of(view, position, base, found)
        rows.append(row)
        position += row[Column.SIZE]
    if rows:
        cols[: len(rows)] = rows
    return len(rows), position, int(reason)
