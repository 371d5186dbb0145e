"""The custom headers of a send: with long names (10), and with letters (310 and 320).

Source: SendMessageRequestHeader, SendMessageRequestHeaderV2 and SendMessageResponseHeader of 4.9.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from rocketstore.remoting.fields import Header, Int32, Int64


class SendHeader(Header):
    """A send; 4.9 takes one without names of template and group."""

    topic: str
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    producer_group: str | None = None
    default_topic: str | None = None
    default_topic_queue_nums: Int32 = 0
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False


_BY_LETTER: Final = (
    "producer_group", "topic", "default_topic", "default_topic_queue_nums", "queue_id", "sys_flag",
    "born_timestamp", "flag", "properties", "reconsume_times", "unit_mode", "max_reconsume_times",
    "batch",
)  # fmt: skip
"""The fields that are called a to m."""


class SendHeaderV2(Header, rename=dict(zip(_BY_LETTER, "abcdefghijklm", strict=True))):
    """The same with a letter for each name, of which 4.9 needs the first eight."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False


AnySend: TypeAlias = SendHeader | SendHeaderV2


class SendReply(Header):
    """Where a message was stored; region and trace stand on every reply, of a failure too."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
