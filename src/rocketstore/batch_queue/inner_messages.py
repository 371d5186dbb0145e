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
from rocketstore.format.batch_queue_entry import BATCH_COUNT_MAX, BatchEntry
from rocketstore.format.client_batch import decode_client_batch
from rocketstore.format.properties import INNER_BASE, INNER_NUM, decode_properties
from rocketstore.message import (
    COMPRESSED_FLAG,
    COMPRESSION_TYPE_MASK,
    COMPRESSION_TYPE_ZLIB,
    INNER_BATCH,
    NEED_UNWRAP,
)
from rocketstore.scan.columns import Column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocketstore.message import StoredMessage
    from rocketstore.scan.columns import RecordColumns

_OF_THE_RECORD = COMPRESSED_FLAG | COMPRESSION_TYPE_MASK | NEED_UNWRAP | INNER_BATCH


def inner_place(sys_flag: int, queue_offset: int, properties: Mapping[str, str]) -> tuple[int, int]:
    """Return first queue offset and number of messages of a record; (-1, 0) where it lies.

    A record that holds no batch is one message.
    """
    if not sys_flag & INNER_BATCH:
        return queue_offset, 1
    base, count = properties.get(INNER_BASE, ""), properties.get(INNER_NUM, "")
    if not (base.isascii() and base.isdigit() and count.isascii() and count.isdigit()):
        return -1, 0
    is_true = 0 < int(count) <= BATCH_COUNT_MAX and int(base) == queue_offset
    return (queue_offset, int(count)) if is_true else (-1, 0)


def entry_of(columns: RecordColumns, number: int) -> BatchEntry | None:
    """Return the entry that a record of a batch topic calls for; None where its header lies."""
    row = columns.cols[number].tolist()
    properties = {}
    if row[Column.SYS_FLAG] & INNER_BATCH:
        properties = decode_properties(columns.properties(number))
    base, count = inner_place(row[Column.SYS_FLAG], row[Column.QUEUE_OFFSET], properties)
    entry = BatchEntry(
        row[Column.PHYSICAL_OFFSET],
        row[Column.SIZE],
        row[Column.TAGS_CODE],
        row[Column.STORE_TIMESTAMP],
        base,
        count,
    )
    return entry if entry.is_written else None


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
