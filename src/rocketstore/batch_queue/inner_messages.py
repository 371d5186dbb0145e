"""The messages that one record of a batch topic holds.

Law: a body that breaks off in the middle gives the messages before the break and raises nothing;
only whole ones are given.

How derived: MessageDecoder.decodeMessage and PullAPIWrapper.processPullResult of the client of
5.3.1, which does this there (spec F9, F15).
"""

from __future__ import annotations

import contextlib
import zlib
from typing import TYPE_CHECKING

import msgspec

from rocketstore.errors import FormatError
from rocketstore.format.client_batch import decode_client_batch
from rocketstore.format.properties import decode_properties
from rocketstore.message import (
    COMPRESSED_FLAG,
    COMPRESSION_TYPE_MASK,
    COMPRESSION_TYPE_ZLIB,
    INNER_BATCH,
    NEED_UNWRAP,
)

if TYPE_CHECKING:
    from rocketstore.message import StoredMessage

_OF_THE_RECORD = COMPRESSED_FLAG | COMPRESSION_TYPE_MASK | NEED_UNWRAP | INNER_BATCH


def unwrapped(message: StoredMessage, count: int) -> list[StoredMessage]:
    """Return the messages of a record, `count` at most; each has its own queue offset.

    They have flag, body and properties of their own and all else from the record, compression
    excepted: that was of the whole body.
    """
    sys_flag = message.sys_flag
    if not sys_flag & INNER_BATCH:
        return [message]
    is_zlib = sys_flag & COMPRESSION_TYPE_MASK in (0, COMPRESSION_TYPE_ZLIB)
    if sys_flag & COMPRESSED_FLAG and not is_zlib:
        return []  # what no reader here can inflate
    found: list[StoredMessage] = []
    with contextlib.suppress(FormatError):
        inner = decode_client_batch(message.body)
        for number, (flag, body, properties) in zip(range(count), inner, strict=False):
            one = msgspec.structs.replace(
                message,
                queue_offset=message.queue_offset + number,
                sys_flag=sys_flag & ~_OF_THE_RECORD,
                flag=flag,
                body_crc=zlib.crc32(body) & 0x7FFFFFFF,
                raw_body=body,
                raw_properties=properties,
                properties=decode_properties(properties),
            )
            found.append(one)
    return found
