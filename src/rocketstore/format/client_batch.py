"""The body of a batch as a producer sends it: messages of one topic, back to back.

Law: `decode_client_batch` yields whole messages or raises a `FormatError`.

How derived: MessageDecoder.encodeMessages (the producer) and CommitLog.MessageExtEncoder.encode
for a MessageExtBatch (the store) of 4.9 (spec F15).
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from rocketstore.errors import FieldRangeError, TruncatedRecordError
from rocketstore.format import Buffer, Field, checked
from rocketstore.format.properties import PROPERTIES_SIZE_MAX

BATCH_MESSAGE_FIXED_SIZE: Final = 22
"""Bytes of one message besides body and properties."""

_HEAD: Final = struct.Struct(">iiiii")
_PROPERTIES_SIZE: Final = struct.Struct(">h")

assert _HEAD.size + _PROPERTIES_SIZE.size == BATCH_MESSAGE_FIXED_SIZE


FIELDS: Final = (
    Field("total_size", "i", "4", "bytes", "22 + body + properties; not read by the store"),
    Field("magic", "i", "4", "constant", "0; not read by the store"),
    Field("body_crc", "i", "4", "checksum", "0; the store computes its own"),
    Field("flag", "i", "4", "application bits", "opaque to the store"),
    Field("body_size", "i", "4", "bytes", "length of the body, 0 allowed"),
    Field("body", "s", "body_size", "bytes", "the body, never compressed singly"),
    Field("properties_size", "h", "2", "bytes", "length of the properties, signed"),
    Field("properties", "s", "properties_size", "UTF-8", "names and values"),
)
"""One message of the batch; the table in docs/format/client-batch.md is this one."""


class BatchMessage(NamedTuple):
    """One message of a batch: what differs between messages that are sent together."""

    flag: int
    body: bytes
    properties: bytes


def encode_client_batch(messages: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    r"""Return the batch of (flag, body, properties) triples, as a producer sends it.

    Raises `FieldRangeError` where a flag is not a signed 32-bit number, or properties exceed 32767
    bytes.

    >>> encode_client_batch([(0, b"a", b"K\x01v")]).hex()
    '0000001a000000000000000000000000000000016100034b0176'
    """
    parts: list[bytes] = []
    for flag, body, properties in messages:
        size = BATCH_MESSAGE_FIXED_SIZE + len(body) + len(properties)
        try:
            head = _HEAD.pack(size, 0, 0, flag, len(body))
            parts += (head, body, _PROPERTIES_SIZE.pack(len(properties)), properties)
        except struct.error as error:
            raise FieldRangeError(
                "flag, size or properties do not fit a batch",
                expected=f"signed 32-bit numbers, and at most {PROPERTIES_SIZE_MAX} bytes",
                found=(flag, size, len(properties)),
            ) from error
    return b"".join(parts)


def decode_client_batch(batch: Buffer) -> Iterator[BatchMessage]:
    """Yield the messages of a batch in order; an empty one has none.

    Raises `TruncatedRecordError` where it ends inside a message, `FieldRangeError` where a length
    is negative. Compatible: total size, magic and CRC are stepped over unread, so a producer that
    fills them in differently is understood. Source:
    CommitLog.MessageExtEncoder.encode(MessageExtBatch, PutMessageContext).
    """
    end = len(batch)
    at = 0
    while at < end:
        body_size = properties_size = 0
        body_at = at + _HEAD.size
        properties_at = at + BATCH_MESSAGE_FIXED_SIZE
        if properties_at <= end:
            flag, body_size = _HEAD.unpack_from(batch, at)[3:]
            properties_at += _not_negative("body_size", body_size, at + 16)
        if properties_at <= end:
            size_at = properties_at - _PROPERTIES_SIZE.size
            (properties_size,) = _PROPERTIES_SIZE.unpack_from(batch, size_at)
            _not_negative("properties_size", properties_size, size_at)
        stop = properties_at + properties_size
        if stop > end:
            raise TruncatedRecordError(
                "batch ends inside a message",
                expected=f"{stop - at} bytes",
                found=f"{end - at} bytes",
                offset=at,
            )
        body = bytes(batch[body_at : body_at + body_size])
        yield BatchMessage(flag, body, bytes(batch[properties_at:stop]))
        at = stop


def _not_negative(field: str, size: int, offset: int) -> int:
    what = f"{field} of a batched message is negative"
    return checked(size, 0, 2**31 - 1, what, field, offset)
