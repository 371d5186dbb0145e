"""The messages that one record of a batch topic holds.

Law: a body that breaks off in the middle gives the messages before the break and raises nothing;
only whole ones are given.

How derived: MessageDecoder.decodeMessage and PullAPIWrapper.processPullResult of the client of
5.3.1, which does this there (spec F9, F15).
"""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from rocketstore.errors import FormatError
from rocketstore.format.client_batch import BatchMessage, decode_client_batch
from rocketstore.format.record import body_crc
from rocketstore.message import (
    COMPRESSED_FLAG,
    COMPRESSION_TYPE_MASK,
    COMPRESSION_TYPE_ZLIB,
    INNER_BATCH,
    NEED_UNWRAP,
)

if TYPE_CHECKING:
    from rocketstore.format.stored_message import StoredMessage

OF_THE_RECORD: Final = COMPRESSED_FLAG | COMPRESSION_TYPE_MASK | NEED_UNWRAP | INNER_BATCH


def whole_messages(body: bytes, count: int) -> list[BatchMessage]:
    """Return the messages of a record's body up to where it breaks off, `count` at most."""
    found: list[BatchMessage] = []
    with contextlib.suppress(FormatError):
        found.extend(islice(decode_client_batch(body), count))
    return found


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
    try:
        content = message.body
    except FormatError:
        return []
    return [
        msgspec.structs.replace(
            message,
            queue_offset=message.queue_offset + number,
            sys_flag=sys_flag & ~OF_THE_RECORD,
            flag=flag,
            body_crc=body_crc(body),
            raw_body=body,
            raw_properties=properties,
        )
        for number, (flag, body, properties) in enumerate(whole_messages(content, count))
    ]
