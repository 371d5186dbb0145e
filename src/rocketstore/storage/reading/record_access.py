"""One record of the CommitLog at a time: is it there, whose is it, what does it say.

Whoever points into the log (a queue entry, an index item, a message id of a client) may be wrong:
stale, damaged, or invented. Here is decided whether a message stands where they point.

Law: a record is returned only when its magic number is a message's, it states its own address, it
ends where it says, its body has its checksum, and nobody is handed a message of another topic or
queue (K-Q3, K-R5). Everything else is None, and no error.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.errors import FormatError
from rocketstore.format.properties import (
    INNER_MULTI_DISPATCH,
    decode_properties,
)
from rocketstore.format.record import (
    FIXED_SIZE,
    HOST_V6_EXTRA_SIZE,
    HOST_V6_FLAGS,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    decode_record,
)
from rocketstore.format.record_text import is_text_whole
from rocketstore.format.topic_name import LMQ_PREFIX
from rocketstore.message import BORN_HOST_V6_FLAG, STORE_HOST_V6_FLAG

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocketstore.message import StoredMessage
    from rocketstore.storage.reading.read_sources import LogSource
    from rocketstore.units import QueueKey

_START: Final = struct.Struct(">iI")
_HEAD: Final = struct.Struct(">iIiiiqqi")
"""Total size, magic, CRC, queue id, flag, queue offset, address, sysFlag."""

_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")

_BODY_SIZE_AT: Final = 84
_STORE_TIMESTAMP_AT: Final = 56
_SMALLEST_HEAD: Final = 76
"""Enough bytes for the store timestamp behind either kind of born host, and fewer than a record."""
assert _STORE_TIMESTAMP_AT + HOST_V6_EXTRA_SIZE + 8 <= _SMALLEST_HEAD <= FIXED_SIZE


class RecordPlace(NamedTuple):
    """Where the variable parts of a raw record are."""

    topic: bytes
    queue_id: int
    topic_at: int
    properties_at: int


def message_at(
    log: LogSource, physical_offset: int, size: int | None = None
) -> StoredMessage | None:
    """Return the message at an offset, None when no intact record stands there.

    Parameters
    ----------
    size
        What the record's length must be; None takes what the record says.
    """
    if size is None:
        size = record_size_at(log, physical_offset)
    if size is None or size < FIXED_SIZE:
        return None
    view = log.slice(physical_offset, size)
    if view is None:
        return None
    try:
        message = decode_record(view, 0, base=physical_offset)
    except FormatError:
        return None
    return message if message.size == size else None


def record_size_at(log: LogSource, physical_offset: int) -> int | None:
    """Return the length that a record at an offset states, None when no message starts there."""
    start = log.slice(physical_offset, _START.size)
    if start is None:
        return None
    size, magic = _START.unpack(start)
    return size if magic in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2) else None


def store_timestamp_at(log: LogSource, physical_offset: int, size: int) -> int | None:
    """Return the store time of the record at an offset, None when none of this size stands there.

    Only the head is read: a body with a wrong checksum still has its time.
    """
    if size < FIXED_SIZE:
        return None
    head = log.slice(physical_offset, _SMALLEST_HEAD)
    if head is None or not _is_head(head, physical_offset, size):
        return None
    sys_flag = _HEAD.unpack_from(head)[7]
    extra = HOST_V6_EXTRA_SIZE if sys_flag & BORN_HOST_V6_FLAG else 0
    timestamp: int = _INT64.unpack_from(head, _STORE_TIMESTAMP_AT + extra)[0]
    return timestamp


def _is_head(view: memoryview | bytes, physical_offset: int, size: int) -> bool:
    stated_size, magic, _, _, _, _, address, _ = _HEAD.unpack_from(view)
    return (
        stated_size == size
        and address == physical_offset
        and magic in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2)
    )


def raw_record_at(log: LogSource, physical_offset: int, size: int) -> memoryview | bytes | None:
    """Return the bytes of a record with the right magic, address and length; no checksum is made.

    The lengths inside are checked by `locate_record`, which every user of the bytes calls.
    """
    if size < FIXED_SIZE:
        return None
    view = log.slice(physical_offset, size)
    return view if view is not None and _is_head(view, physical_offset, size) else None


def locate(view: memoryview | bytes) -> RecordPlace | None:
    """Return topic, queue and properties of a raw record, None when its lengths do not agree."""
    _, magic, _, queue_id, _, _, _, sys_flag = _HEAD.unpack_from(view)
    body_size_at = _BODY_SIZE_AT
    if sys_flag & HOST_V6_FLAGS:
        body_size_at += HOST_V6_EXTRA_SIZE if sys_flag & BORN_HOST_V6_FLAG else 0
        body_size_at += HOST_V6_EXTRA_SIZE if sys_flag & STORE_HOST_V6_FLAG else 0
    length_size = 2 if magic == MESSAGE_MAGIC_V2 else 1
    end = len(view)
    if body_size_at + 4 > end:
        return None
    topic_at = body_size_at + 4 + _INT32.unpack_from(view, body_size_at)[0] + length_size
    if not body_size_at + 4 + length_size <= topic_at <= end - 2:
        return None
    topic_size = int.from_bytes(view[topic_at - length_size : topic_at], "big", signed=True)
    properties_at = topic_at + topic_size + 2
    if topic_size < 0 or properties_at > end:
        return None
    properties_size = int.from_bytes(view[properties_at - 2 : properties_at], "big", signed=True)
    if properties_at + properties_size != end:
        return None
    topic = bytes(view[topic_at : topic_at + topic_size])
    return RecordPlace(topic, queue_id, topic_at, properties_at)


def locate_record(view: memoryview | bytes, physical_offset: int) -> RecordPlace | None:
    """Return what `locate` does, None also where topic or properties are not whole."""
    place = locate(view)
    if place is None:
        return None
    text = bytes(view[place.topic_at :])
    is_whole = is_text_whole(text, len(place.topic), physical_offset + place.topic_at)
    return place if is_whole else None


def raw_properties(view: memoryview | bytes, place: RecordPlace) -> dict[str, str]:
    """Return the decoded properties of a raw record."""
    return decode_properties(bytes(view[place.properties_at :]))


def belongs_to(topic: str, queue_id: int, properties: Mapping[str, str], key: QueueKey) -> bool:
    """Return whether a record may stand in a queue.

    It may in the queue of its own topic and id, and in those its property INNER_MULTI_DISPATCH
    names. The queue offset is not compared: queues of 4.9 can be shifted (K-C1), and a message
    under a wrong number is better than none.

    Notes
    -----
    Source: CommitLogDispatcherBuildConsumeQueue, ConsumeQueue.multiDispatchLmqQueue (spec F8).
    """
    if (topic, queue_id) == key:
        return True
    names = properties.get(INNER_MULTI_DISPATCH)
    if not names or key.topic not in names.split(","):
        return False
    return key.queue_id == queue_id or (key.topic.startswith(LMQ_PREFIX) and key.queue_id == 0)
