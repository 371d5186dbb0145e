"""The body of a batch as a producer sends it: messages of one topic, back to back.

Law: `decode_client_batch` yields whole messages or raises a `FormatError`; no length is used before
it is checked against what remains.

How derived: MessageDecoder.encodeMessages (the producer) and CommitLog.MessageExtEncoder.encode
for a MessageExtBatch (the store) of 4.9 (spec F15).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.errors import FieldRangeError, TruncatedRecordError
from rocketstore.format import Field
from rocketstore.format.properties import PROPERTIES_SIZE_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BATCH_MESSAGE_FIXED_SIZE: Final = 22
"""Bytes of one message besides body and properties."""

_HEAD: Final = struct.Struct(">iiiii")
_PROPERTIES_SIZE: Final = struct.Struct(">h")

_INT32_MAX: Final = 0x7FFFFFFF
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

    Raises `FieldRangeError` where a flag is no signed 32-bit number, or properties exceed 32767
    bytes.

    >>> encode_client_batch([(0, b"a", b"K\x01v")]).hex()
    '0000001a000000000000000000000000000000016100034b0176'
    """
    parts: list[bytes] = []
    for flag, body, properties in messages:
        if len(properties) > PROPERTIES_SIZE_MAX:
            raise FieldRangeError(
                "properties are too long for a batch",
                field="properties",
                expected=f"at most {PROPERTIES_SIZE_MAX} bytes",
                found=f"{len(properties)} bytes",
            )
        size = BATCH_MESSAGE_FIXED_SIZE + len(body) + len(properties)
        try:
            head = _HEAD.pack(size, 0, 0, flag, len(body))
        except struct.error as error:
            raise FieldRangeError(
                "flag or size does not fit a batch",
                field="flag" if size <= _INT32_MAX else "total_size",
                expected="a signed 32-bit number",
                found=flag if size <= _INT32_MAX else size,
            ) from error
        parts += (head, body, _PROPERTIES_SIZE.pack(len(properties)), properties)
    return b"".join(parts)


def decode_client_batch(batch: bytes | bytearray | memoryview) -> Iterator[BatchMessage]:
    """Yield the messages of a batch in order.

    Raises
    ------
    TruncatedRecordError
        The batch ends inside a message.
    FieldRangeError
        A length is negative.

    Notes
    -----
    Compatible: total size, magic and CRC are stepped over unread, so a producer that fills them in
    differently is understood; an empty batch has no message. Source:
    CommitLog.MessageExtEncoder.encode(MessageExtBatch, PutMessageContext).
    """
    end = len(batch)
    at = 0
    while at < end:
        if end - at < BATCH_MESSAGE_FIXED_SIZE:
            raise _truncated(BATCH_MESSAGE_FIXED_SIZE, end - at, at)
        _, _, _, flag, body_size = _HEAD.unpack_from(batch, at)
        if body_size < 0:
            raise _negative("body_size", body_size, at + 16)
        body_at = at + _HEAD.size
        properties_at = body_at + body_size + _PROPERTIES_SIZE.size
        if properties_at > end:
            raise _truncated(BATCH_MESSAGE_FIXED_SIZE + body_size, end - at, at)
        (properties_size,) = _PROPERTIES_SIZE.unpack_from(batch, body_at + body_size)
        if properties_size < 0:
            raise _negative("properties_size", properties_size, body_at + body_size)
        stop = properties_at + properties_size
        if stop > end:
            raise _truncated(stop - at, end - at, at)
        yield BatchMessage(
            flag,
            bytes(batch[body_at : body_at + body_size]),
            bytes(batch[properties_at:stop]),
        )
        at = stop


def _truncated(needed: int, found: int, offset: int) -> TruncatedRecordError:
    return TruncatedRecordError(
        "batch ends inside a message", needed_bytes=needed, found=found, offset=offset
    )


def _negative(field: str, found: int, offset: int) -> FieldRangeError:
    return FieldRangeError(
        f"{field} of a batched message is negative",
        offset=offset,
        field=field,
        expected="0 or more",
        found=found,
    )
