"""The table through which a batch becomes records: one row per message, numbers only.

`client_batch_table` fills it from what a producer sent, the store from messages of its own;
`write_batch` turns rows into records in a mapped CommitLog file.

Law: positions (``…_AT``) count from the start of the source buffer, and `write_batch` checks every
one of them, and every size, before it writes anything.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


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


class BatchRefusal(IntEnum):
    """What `write_batch` answers instead of the number of bytes; nothing was written."""

    NO_ROOM = -1
    """The records, and the 8 bytes that close a file, do not fit behind the position."""

    BAD_TABLE = -2
    """A row points outside the source, or a number in it is impossible."""

    PROPERTIES_TOO_LONG = -3
    """Properties of a message and of the batch together exceed 32,767 bytes."""
