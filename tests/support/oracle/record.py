"""A record as the plain codec reads it, which says what is wrong with one.

The decoder of the store, which only says that no intact record is there, is held against it at each
call. Source: CommitLog.checkMessageAndReturnSize, MessageDecoder.decode of 4.9 (spec F3).
Compatible: an empty body is not checked against its CRC. Unlike Java, a negative body or properties
length is damage here, and the stored physical offset must be right (K-R5, K-Q3).
"""

import mmap
import struct
from typing import Any, Final, TypeAlias

from rocketstore.errors import FieldRangeError, FormatError, TruncatedRecordError
from rocketstore.format import checked
from rocketstore.format.host import decode_host
from rocketstore.format.record import (
    BLANK_MAGIC,
    FIXED_SIZE,
    MESSAGE_MAGIC_V1,
    body_crc,
    topic_text,
)
from rocketstore.format.stored_message import StoredMessage
from rocketstore.message import BORN_HOST_V6_FLAG, STORE_HOST_V6_FLAG
from rocketstore.native.decode import decode
from support.oracle.properties import is_text_whole


class BadMagicError(FormatError):
    """The magic number is that of no known record."""


class ChecksumMismatchError(FormatError):
    """CRC-32 of the body, masked to 31 bits, differs from the stored one."""


class MisaddressedRecordError(FormatError):
    """A record states another physical offset than the one it stands at."""


RecordBuffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap

MESSAGE_MAGIC_V2: Final = 0xDAA320AB
"""Record of 5.x with a topic longer than 127 bytes: its length takes 2 bytes."""

_HEADS: Final = {
    born_flag | store_flag: struct.Struct(f">iIiiiqqiq{born_size}sq{store_size}siqi")
    for born_flag, born_size in ((0, 8), (BORN_HOST_V6_FLAG, 20))
    for store_flag, store_size in ((0, 8), (STORE_HOST_V6_FLAG, 20))
}
_HOST_FLAGS: Final = BORN_HOST_V6_FLAG | STORE_HOST_V6_FLAG
_START: Final = struct.Struct(">iI")
_ADDRESS: Final = struct.Struct(">qi")
"""At byte 28: the physical offset, and sysFlag, which gives the sizes of the hosts."""


def decode_record(
    view: RecordBuffer, position: int, *, base: int, check_crc: bool = True
) -> StoredMessage:
    """Decode the record at a position of bytes whose first has physical offset `base`.

    Raises the `FormatError` that says why none is there; the store's decoder agrees.
    """
    found = decode(view, position, base, check_crc)
    try:
        message = _decoded(view, position, base, check_crc=check_crc)
    except FormatError:
        assert found is None, found
        raise
    assert found == message
    return message


def _decoded(view: RecordBuffer, position: int, base: int, *, check_crc: bool) -> StoredMessage:
    room = len(view) - position
    what = "position is outside the bytes to decode"
    checked(position, 0, len(view), what, "position", position)
    if room < _START.size:
        raise _truncated(FIXED_SIZE, room, position, base)
    total_size, magic = _START.unpack_from(view, position)
    if magic not in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2):
        raise BadMagicError(
            f"no message has this magic {_at(position, base)}",
            offset=position + 4,
            field="magic",
            expected=f"{MESSAGE_MAGIC_V1:#010x} or {MESSAGE_MAGIC_V2:#010x}",
            found=f"{magic:#010x}" + (", a BLANK" if magic == BLANK_MAGIC else ""),
        )
    topic_at = 1 if magic == MESSAGE_MAGIC_V1 else 2
    flags, stated = 0, base + position
    if room >= FIXED_SIZE:
        stated, flags = _ADDRESS.unpack_from(view, position + 28)
    head = _HEADS[flags & _HOST_FLAGS]
    smallest = head.size + topic_at + 2
    if total_size < smallest:
        raise _misfit("total_size", total_size, position, position, base, f"at least {smallest}")
    if stated != base + position:
        raise MisaddressedRecordError(
            f"record states another physical offset than its own {_at(position, base)}",
            offset=position + 28,
            field="physical_offset",
            expected=base + position,
            found=stated,
        )
    if total_size > room:
        raise _truncated(total_size, room, position, base)
    fields = head.unpack_from(view, position)
    record = bytes(view[position : position + total_size])
    body, topic, raw_properties = _variable_parts(record, head.size, topic_at, position, base)
    if check_crc and body and body_crc(body) != fields[2]:
        raise ChecksumMismatchError(
            f"body CRC mismatch {_at(position, base)}",
            offset=position + 8,
            field="body_crc",
            expected=f"{fields[2] & 0xFFFFFFFF:#010x}",
            found=f"{body_crc(body):#010x}",
        )
    return _message(fields, body, topic, raw_properties)


def _message(
    fields: tuple[Any, ...], body: bytes, topic: bytes, raw_properties: bytes
) -> StoredMessage:
    (
        total_size, _, stored_crc, queue_id, flag, queue_offset, physical_offset, sys_flag,
        born_timestamp_ms, born_host, store_timestamp_ms, store_host, reconsume_times,
        prepared_transaction_offset, _,
    ) = fields  # fmt: skip
    return StoredMessage(
        topic=topic_text(topic),
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        size=total_size,
        sys_flag=sys_flag,
        flag=flag,
        born_timestamp_ms=born_timestamp_ms,
        born_host=decode_host(born_host),
        store_timestamp_ms=store_timestamp_ms,
        store_host=decode_host(store_host),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        body_crc=stored_crc,
        raw_body=body,
        raw_properties=raw_properties,
    )


def _variable_parts(
    record: bytes, body_at: int, topic_at: int, position: int, base: int
) -> tuple[bytes, bytes, bytes]:
    """Return body, topic and properties, each length checked before it is used."""
    body_size = int.from_bytes(record[body_at - 4 : body_at], "big", signed=True)
    body_end = body_at + body_size
    if body_size < 0 or body_end + topic_at + 2 > len(record):
        raise _misfit("body_size", body_size, position + body_at - 4, position, base)
    text_at = body_end + topic_at
    topic_size = int.from_bytes(record[body_end:text_at], "big", signed=True)
    properties_at = text_at + topic_size + 2
    if topic_size < 0 or properties_at > len(record):
        raise _misfit("topic_size", topic_size, position + body_end, position, base)
    size = int.from_bytes(record[properties_at - 2 : properties_at], "big", signed=True)
    if size != len(record) - properties_at:
        raise _misfit("properties_size", size, position + properties_at - 2, position, base)
    if not is_text_whole(record[text_at:], topic_size, base + position + text_at):
        raise FieldRangeError(
            f"topic or properties were cut off or overwritten {_at(position, base)}",
            offset=position + text_at,
            field="topic, properties",
            expected="properties in UTF-8 with 0x01 after a name, no zero at the end of either",
            found=record[properties_at:][:40] or record[text_at : properties_at - 2],
        )
    return record[body_at:body_end], record[text_at : properties_at - 2], record[properties_at:]


def _at(position: int, base: int) -> str:
    return f"(record at physical offset {base + position})"


def _truncated(needed: int, room: int, position: int, base: int) -> TruncatedRecordError:
    return TruncatedRecordError(
        f"bytes end before the record does {_at(position, base)}",
        expected=f"{needed} bytes",
        found=f"{room} bytes",
        offset=position,
    )


def _misfit(
    field: str, found: int, at: int, position: int, base: int, expected: str = "one that fits"
) -> FieldRangeError:
    return FieldRangeError(
        f"{field} does not agree with the length of the record {_at(position, base)}",
        offset=at,
        field=field,
        expected=expected,
        found=found,
    )
