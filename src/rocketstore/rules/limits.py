"""Limits of what is put: each is a refusal with the status of 4.9 and a reason, or None.

How derived: DefaultMessageStore.checkMessage, CommitLog.asyncPutMessage of 4.9.8 (spec F3, B3.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from rocketstore.format.properties import PROPERTIES_SIZE_MAX
from rocketstore.format.record import END_FILE_MIN_BLANK_SIZE, TOPIC_SIZE_MAX

if TYPE_CHECKING:
    from rocketstore.format.metadata_json import TopicConfig

MOST_QUEUES: Final = 65_536
"""Of a topic, so that no request makes a broker count to two thousand million; 4.9 has no limit."""


def with_queues_limited(topic: TopicConfig) -> TopicConfig:
    """Return a topic with no more than `MOST_QUEUES`, whatever a table says."""
    return msgspec.structs.replace(
        topic, read_queue_nums=min(topic.read_queue_nums, MOST_QUEUES),
        write_queue_nums=min(topic.write_queue_nums, MOST_QUEUES),
    )  # fmt: skip


class Refusal(NamedTuple):
    """What is too long; `status` is the name of the status that a put answers with."""

    status: str
    why: str


def refused_topic(name: str) -> Refusal | None:
    """Refuse a topic that a record cannot hold; its characters are ASCII."""
    if len(name) <= TOPIC_SIZE_MAX:
        return None
    why = f"topic of {len(name)} bytes exceeds the limit of {TOPIC_SIZE_MAX}"
    return Refusal("MESSAGE_ILLEGAL", why)


def refused_length(what: str, size: int, longest: int) -> Refusal | None:
    """Refuse a body or a batch of more bytes than maxMessageSize."""
    if size <= longest:
        return None
    return Refusal("MESSAGE_ILLEGAL", f"{what} of {size} bytes exceeds maxMessageSize of {longest}")


def refused_record(size: int, file_size: int) -> Refusal | None:
    """Refuse records of one put that do not fit into a CommitLog file."""
    room = file_size - END_FILE_MIN_BLANK_SIZE
    if size <= room:
        return None
    return Refusal(
        "MESSAGE_ILLEGAL",
        f"{size} bytes do not fit a CommitLog file of {file_size} bytes, which holds {room}",
    )


def refused_properties(
    properties: bytes, what: str = "properties", room: int = 0
) -> Refusal | None:
    """Refuse properties that are too long, with `room` bytes for what is added to them.

    4.9 looks at the length of the string first, then at its bytes, with a status for each.
    """
    size = len(properties) + room
    if size <= PROPERTIES_SIZE_MAX:
        return None
    units = len(properties.decode("utf-8", "replace").encode("utf-16-le")) // 2
    why = f"{what} of {size} bytes exceed the limit of {PROPERTIES_SIZE_MAX}"
    if units > PROPERTIES_SIZE_MAX and what == "properties":
        return Refusal("MESSAGE_ILLEGAL", f"{why} ({units} characters)")
    return Refusal("PROPERTIES_SIZE_EXCEEDED", why)
