"""One record of the CommitLog: the table of its fields, and bytes to message.

Law: `decode_record` returns a message that is at the offset that it states, whose lengths agree
with each other, whose text is whole and whose body has the stored checksum, or raises a
`FormatError`, whatever the bytes are. Records are written by ``native.log_end`` alone.

How derived: CommitLog.checkMessageAndReturnSize of 4.9, MessageDecoder of 5.x for the second magic
(spec F3). The layout in prose: docs/format/record.md. Bytes are
copied, so that a message outlives its file. Bulk reading is not done here but in ``scan``.
"""

from __future__ import annotations

import mmap
import struct
from functools import lru_cache
from typing import Any, Final, TypeAlias

from rocketstore.errors import (
    BadMagicError,
    ChecksumMismatchError,
    FieldRangeError,
    MisaddressedRecordError,
    TruncatedRecordError,
)
from rocketstore.format import Field, checked
from rocketstore.format.host import HOST_V4_SIZE, HOST_V6_SIZE, decode_host, encode_host
from rocketstore.format.properties import is_text_whole
from rocketstore.format.stored_message import StoredMessage
from rocketstore.message import BORN_HOST_V6_FLAG, STORE_HOST_V6_FLAG

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:  # the extra "fast" is not installed
    from zlib import crc32 as _crc32

crc32: Final = _crc32
"""The fastest CRC-32 at hand; all give the same numbers."""

RecordBuffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap
"""Bytes to decode from; a memoryview must be one of bytes (format ``B``)."""

MESSAGE_MAGIC_V1: Final = 0xDAA320A7
"""MessageDecoder.MESSAGE_MAGIC_CODE: the only record of 4.x."""

MESSAGE_MAGIC_V2: Final = 0xDAA320AB
"""Record of 5.x with a topic longer than 127 bytes: its length takes 2 bytes. Only read here."""

BLANK_MAGIC: Final = 0xCBD43194
"""CommitLog.BLANK_MAGIC_CODE, -875286124 as Java prints it."""

END_FILE_MIN_BLANK_SIZE: Final = 8
"""Bytes that always stay free after a record (CommitLog.END_FILE_MIN_BLANK_LENGTH): a record of
size L goes into a file only if ``L + 8`` bytes are left."""

TOPIC_SIZE_MAX: Final = 127
"""Most bytes of a topic in V1: its length is a signed byte."""

FIXED_SIZE: Final = 91
"""Bytes of a V1 record with IPv4 hosts besides body, topic and properties."""

HOST_V6_FLAGS: Final = BORN_HOST_V6_FLAG | STORE_HOST_V6_FLAG

BODY_CRC_MASK: Final = 0x7FFFFFFF
"""Compatible: Java masks the CRC to 31 bits (UtilAll.crc32)."""

FIELDS: Final = (
    Field("total_size", "i", "4", "bytes", "length of the whole record, this field included"),
    Field("magic", "I", "4", "constant", "DAA320A7 (V1) or DAA320AB (V2)"),
    Field("body_crc", "i", "4", "checksum", "CRC-32 of the stored body, masked to 31 bits"),
    Field("queue_id", "i", "4", "queue", "queue of the topic"),
    Field("flag", "i", "4", "application bits", "opaque to the store"),
    Field("queue_offset", "q", "8", "entries", "offset in its queue; 0 if prepared or rolled back"),
    Field("physical_offset", "q", "8", "bytes", "where in the CommitLog this record begins"),
    Field("sys_flag", "i", "4", "bits", "compression, transaction, host kinds"),
    Field("born_timestamp_ms", "q", "8", "ms since 1970", "time of the producer"),
    Field("born_host", "s", "8 or 20", "host", "address and port of the producer"),
    Field("store_timestamp_ms", "q", "8", "ms since 1970", "time of the store at the append"),
    Field("store_host", "s", "8 or 20", "host", "address and port of the store"),
    Field("reconsume_times", "i", "4", "count", "how often consumers gave the message back"),
    Field("prepared_transaction_offset", "q", "8", "bytes", "where its half message is, else 0"),
    Field("body_size", "i", "4", "bytes", "length of the body, 0 allowed"),
    Field("body", "s", "body_size", "bytes", "the body as stored, compressed or not"),
    Field("topic_size", "b", "1 (V2: 2)", "bytes", "length of the topic, signed"),
    Field("topic", "s", "topic_size", "UTF-8", "topic"),
    Field("properties_size", "h", "2", "bytes", "length of the properties, signed"),
    Field("properties", "s", "properties_size", "UTF-8", "names and values, see properties.md"),
)
"""The record, field by field; the table in docs/format/record.md is this one."""

# By the two host bits of sysFlag: all in front of the body.
_HEADS: Final = {
    born_flag | store_flag: struct.Struct(f">iIiiiqqiq{born_size}sq{store_size}siqi")
    for born_flag, born_size in ((0, HOST_V4_SIZE), (BORN_HOST_V6_FLAG, HOST_V6_SIZE))
    for store_flag, store_size in ((0, HOST_V4_SIZE), (STORE_HOST_V6_FLAG, HOST_V6_SIZE))
}
_HEAD_V4: Final = _HEADS[0]
_START: Final = struct.Struct(">iI")
_ADDRESS: Final = struct.Struct(">qi")
"""At byte 28: the physical offset, and sysFlag, which gives the sizes of the hosts."""
assert _HEAD_V4.size + 1 + 2 == FIXED_SIZE

_INT32_MAX: Final = 0x7FFFFFFF
_CACHED_TOPICS: Final = 4096


def body_crc(body: bytes | bytearray | memoryview) -> int:
    """Return the checksum that a record stores for `body`; 0 for an empty one.

    >>> body_crc(b"Hello RocketMQ 0")
    613185359
    """
    return crc32(body) & BODY_CRC_MASK


def host_flags(born_host: bytes, store_host: bytes) -> int:
    """Return the bits of sysFlag that say which of the two stored hosts are IPv6."""
    return (BORN_HOST_V6_FLAG if len(born_host) == HOST_V6_SIZE else 0) | (
        STORE_HOST_V6_FLAG if len(store_host) == HOST_V6_SIZE else 0
    )


def record_size(*, body_size: int, topic_size: int, properties_size: int, sys_flag: int) -> int:
    """Return the length of a V1 record in bytes (CommitLog.calMsgLength)."""
    hosts = _HEADS[sys_flag & HOST_V6_FLAGS].size - _HEAD_V4.size
    return FIXED_SIZE + hosts + body_size + topic_size + properties_size


def encode_blank(remaining: int) -> bytes:
    """Return the 8 bytes that close a file of which `remaining` bytes are left.

    Raises `FieldRangeError` where that is below 8 or does not fit a signed 32-bit number.

    >>> encode_blank(100).hex()
    '00000064cbd43194'
    """
    what = "a blank cannot have this size"
    checked(remaining, END_FILE_MIN_BLANK_SIZE, _INT32_MAX, what, "total_size")
    return _START.pack(remaining, BLANK_MAGIC)


def encode_stored(message: StoredMessage) -> bytes:
    """Return the record of a stored message, its length computed again; `decode_record` reads it.

    Raises `FieldRangeError` where its topic is too long for a V1 record.
    """
    born_host, store_host = encode_host(message.born_host), encode_host(message.store_host)
    topic = message.topic.encode()
    checked(len(topic), 0, TOPIC_SIZE_MAX, "a topic of this length", "topic_size")
    flags = message.sys_flag & ~HOST_V6_FLAGS | host_flags(born_host, store_host)
    body, properties = message.raw_body, message.raw_properties
    size = record_size(
        body_size=len(body), topic_size=len(topic), properties_size=len(properties), sys_flag=flags
    )
    head = _HEADS[flags & HOST_V6_FLAGS].pack(
        size, MESSAGE_MAGIC_V1, body_crc(body), message.queue_id, message.flag,
        message.queue_offset, message.physical_offset, flags, message.born_timestamp_ms, born_host,
        message.store_timestamp_ms, store_host, message.reconsume_times,
        message.prepared_transaction_offset, len(body),
    )  # fmt: skip
    sizes = bytes([len(topic)]), len(properties).to_bytes(2, "big")
    return b"".join((head, body, sizes[0], topic, sizes[1], properties))


# --- decoding -----------------------------------------------------------------------------------


def decode_record(
    view: RecordBuffer, position: int, *, base: int, check_crc: bool = True
) -> StoredMessage:
    """Decode the record that starts at `position` of `view`, a CommitLog file or a part of one.

    `base` is the physical offset of ``view[0]``. The message owns its bytes; invalid UTF-8 in its
    topic becomes U+FFFD, as in Java. ``native.decode`` gives the same message in a sixth of
    the time, without the reason for a refusal.

    Raises
    ------
    BadMagicError
        The four bytes at ``position + 4`` are those of no message; a BLANK is not one.
    TruncatedRecordError
        `view` ends before the record does.
    MisaddressedRecordError
        The record's own physical offset is not ``base + position``: bytes left by an earlier file,
        or a record inside the body of another.
    FieldRangeError
        A length is negative or does not agree with the others; topic or properties were cut off.
    ChecksumMismatchError
        CRC-32 of the body, masked to 31 bits, differs. Nothing else is covered by the checksum.

    Notes
    -----
    Compatible: an empty body is not checked against its CRC. Unlike Java, a negative body or
    properties length is damage here, and the stored physical offset must be right (K-R5, K-Q3).
    Source: CommitLog.checkMessageAndReturnSize, MessageDecoder.decode.
    """
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
    head = _HEADS[flags & HOST_V6_FLAGS]
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


@lru_cache(maxsize=_CACHED_TOPICS)
def topic_text(topic: bytes) -> str:
    """Return a topic as text, with U+FFFD for invalid UTF-8."""
    return topic.decode("utf-8", "replace")


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
