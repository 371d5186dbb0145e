"""The custom headers of a send: with long names (10 and 324), and with letters (310, 320 and 325).

Source: SendMessageRequestHeader, SendMessageRequestHeaderV2, SendMessageResponseHeader and
ReplyMessageRequestHeader of 4.9.
"""

from msgspec import field

from rocketstore.remoting.fields import Header, Int32, Int64


class MessageHeader(Header):
    """What a send says of its message."""

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


class SendHeader(MessageHeader):
    """A send; 4.9 takes one without names of template and group."""

    max_reconsume_times: Int32 | None = None
    batch: bool = False


class PushHeader(MessageHeader, kw_only=True):
    """A reply, as the client that waits for it gets it (326)."""

    born_host: str
    store_host: str
    store_timestamp: Int64


class SendHeaderV2(Header):
    """The same with a letter for each name, of which 4.9 needs the first eight."""

    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c")
    default_topic_queue_nums: Int32 = field(name="d")
    queue_id: Int32 = field(name="e")
    sys_flag: Int32 = field(name="f")
    born_timestamp: Int64 = field(name="g")
    flag: Int32 = field(name="h")
    properties: str | None = field(default=None, name="i")
    reconsume_times: Int32 | None = field(default=None, name="j")
    unit_mode: bool = field(default=False, name="k")
    max_reconsume_times: Int32 | None = field(default=None, name="l")
    batch: bool = field(default=False, name="m")


AnySend = SendHeader | SendHeaderV2


class SendReply(Header):
    """Where a message was stored; region and trace stand on every reply, of a failure too."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
