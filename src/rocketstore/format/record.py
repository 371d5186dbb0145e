"""One record of the CommitLog: the table of its fields, its sizes and its checksum.

Records are written by ``native.log_end`` and read by ``native.decode``, many at once by ``scan``.

How derived: CommitLog.checkMessageAndReturnSize of 4.9, MessageDecoder of 5.x for the second magic
(spec F3). The layout in prose: docs/format/record.md.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from rocketstore.format import Field, checked
from rocketstore.format.host import HOST_V4_SIZE, HOST_V6_SIZE, encode_host
from rocketstore.message import BORN_HOST_V6_FLAG, STORE_HOST_V6_FLAG

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:  # the extra "fast" is not installed
    from zlib import crc32 as _crc32

if TYPE_CHECKING:
    from rocketstore.format.stored_message import StoredMessage

crc32: Final = _crc32
"""The fastest CRC-32 at hand; all give the same numbers."""

MESSAGE_MAGIC_V1: Final = 0xDAA320A7
"""MessageDecoder.MESSAGE_MAGIC_CODE: the only record of 4.x. One of 5.x, DAA320AB, is only read."""

RECORD_MAGICS: Final = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")
"""The bytes of both."""

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
    """Return the record of a stored message, its length computed again.

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


@lru_cache(maxsize=_CACHED_TOPICS)
def topic_text(topic: bytes) -> str:
    """Return a topic as text, with U+FFFD for invalid UTF-8."""
    return topic.decode("utf-8", "replace")
