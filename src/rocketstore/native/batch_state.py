"""The table through which a batch becomes records: one row per message, numbers only.

`write_batch` fills it from what a producer sent, the store from messages of its own; then it turns
the rows into records in a mapped CommitLog file.

Law: positions (``…_AT``) count from the start of the source buffer, and `write_batch` checks every
one of them, and every size, before it writes anything.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypeAlias


class BatchColumn(IntEnum):
    """Columns of the table.

    ``BORN_TIMESTAMP`` -1 stands for the store's time. How long the born host is, 8 or 20 bytes, is
    said by ``SYS_FLAG``. ``RECORD_SIZE`` is written by `write_batch`.
    """

    FLAG = 0
    SYS_FLAG = 1
    BORN_TIMESTAMP = 2
    BORN_HOST_AT = 3
    RECONSUME_TIMES = 4
    PREPARED_OFFSET = 5
    BODY_AT = 6
    BODY_SIZE = 7
    PROPERTIES_AT = 8
    PROPERTIES_SIZE = 9
    RECORD_SIZE = 10


BATCH_COLUMN_COUNT: Final = len(BatchColumn)

MESSAGE_FIXED_SIZE: Final = 22
"""Bytes of one message of a client's batch besides body and properties (spec F15)."""

NO_TIMESTAMP: Final = -1


class BatchPlan(IntEnum):
    """Places in the tuple of numbers that all records of a batch share.

    ``MESSAGE_COUNT`` is how many rows of the table are filled; or -1 when the source begins with a
    client's batch of ``BATCH_SIZE`` bytes, from which the kernel fills them, each with sysFlag,
    born timestamp, place of the born host and reconsume times as given here. ``IS_CHECKED`` is 1
    when it is known that no message asks for a delay or for several queues. The store's host, the
    topic and the properties that are added to those of every message stand somewhere in the source.
    """

    MESSAGE_COUNT = 0
    BATCH_SIZE = 1
    IS_CHECKED = 2
    SYS_FLAG = 3
    BORN_TIMESTAMP = 4
    BORN_HOST_AT = 5
    RECONSUME_TIMES = 6
    STORE_HOST_AT = 7
    STORE_HOST_SIZE = 8
    TOPIC_AT = 9
    TOPIC_SIZE = 10
    MORE_AT = 11
    MORE_SIZE = 12


Plan: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""Numbers by `BatchPlan`."""


class BatchRefusal(IntEnum):
    """What `write_batch` answers instead of counts; nothing was written."""

    BAD_TABLE = -1
    """A place or a number of table or plan is impossible."""

    PROPERTIES_TOO_LONG = -2
    """Properties of a message and of the batch together exceed 32,767 bytes."""

    SPECIAL = -3
    """Some message may ask for a delay or for several queues; look closer."""

    EMPTY = -4
    """The batch has no message."""

    BAD_PROPERTIES = -5
    """Bytes that are no properties of a message; see ``format.record_text``."""

    CUT_OFF = -100
    """This value minus the position of the message inside which the client's batch ends."""

    NO_ROOM = -(1 << 40)
    """This value minus the bytes of all records: they, and the 8 bytes that close a file, do not
    fit behind the position. A batch has at most a 32-bit number of bytes, so it is unambiguous."""


COUNT_SHIFT: Final = 32
"""`write_batch` answers ``count << 32 | size`` when it wrote."""
