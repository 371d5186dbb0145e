"""Where each number stands in the tables that compiled code shares with Python.

A row holds the record's numbers and the *positions* of its bytes (``…_AT`` is a position inside the
scanned buffer, ``…_SIZE`` a length), never a copy of them. ``setup.py`` makes constants of C of
these numbers, a module for each enum. ``storage.queues`` fills the tables of queues.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]

NO_LEVEL_DELAY_MS: Final = 1000
"""Delay of a level that the table of levels does not have (spec F5)."""


class Column(IntEnum):
    """Number of each column of the matrix that a walk fills."""

    PHYSICAL_OFFSET = 0
    """Where the record stands in the CommitLog; it says so itself."""
    SIZE = 1
    """Length of the whole record."""
    QUEUE_ID = 2
    QUEUE_OFFSET = 3
    FLAG = 4
    SYS_FLAG = 5
    BORN_TIMESTAMP = 6
    STORE_TIMESTAMP = 7
    RECONSUME_TIMES = 8
    PREPARED_OFFSET = 9
    BODY_CRC = 10
    """As stored; whether it was compared is the walk's `check_crc`."""
    BODY_AT = 11
    BODY_SIZE = 12
    TOPIC_AT = 13
    TOPIC_SIZE = 14
    PROPERTIES_AT = 15
    PROPERTIES_SIZE = 16
    TAGS_AT = 17
    """Of the value of ``TAGS``; 0 with size 0 when absent. Likewise ``KEYS`` and ``UNIQ_KEY``."""
    TAGS_SIZE = 18
    TAGS_CODE = 19
    """Java ``String.hashCode`` of the tags, sign-extended; 0 when absent (spec F5)."""
    KEYS_AT = 20
    KEYS_SIZE = 21
    UNIQUE_KEY_AT = 22
    UNIQUE_KEY_SIZE = 23
    TOPIC_HASH = 24
    """Java ``String.hashCode`` of the topic, sign-extended."""
    CALLS_FOR = 25
    """The numbers of ``CallsFor`` that are true of the record, added up."""
    STORE_HOST_AT = 26
    """8 bytes, or 20 when sysFlag says IPv6; likewise the born host, at byte 48 of the record."""
    DELAY_LEVEL = 27
    """The property ``DELAY`` when it is a decimal number below 2^31, else 0."""


COLUMN_COUNT: Final = len(Column)


class CallsFor(IntEnum):
    """What dispatch makes of a record; only ``native.walk.calls_for`` decides it.

    Entries of its queue and of the extra ones that it names, a time when it is due in the place of
    the tags' hash, and index items of its keys, if it has any.
    """

    ENTRY = 1
    EXTRA_ENTRIES = 2
    DUE_TIME = 4
    ITEMS = 8


class StopReason(IntEnum):
    """Why a walk ended where it did."""

    END = 0
    """Reached `stop`, or the matrix is full."""
    BLANK = 1
    """A BLANK record that says exactly how much of the file remains (spec F3.1)."""
    UNWRITTEN = 2
    """Zeros where the length and the magic number would be."""
    BAD_LENGTH = 3
    """A length below the smallest record's or beyond the end of the file."""
    BAD_MAGIC = 4
    BAD_ADDRESS = 5
    """The record states another offset than its own."""
    BAD_FIELDS = 6
    """The inner lengths do not add up to the record's, or topic or properties were cut off or
    overwritten (``format.properties``)."""
    BAD_CRC = 7
    TRUNCATED = 8
    """The record goes on where the buffer ends, although the file should not end there."""


class PutEntry(IntEnum):
    """Outcome of putting an entry."""

    WRITTEN = 0
    REPEATED = 1
    """The same entry stands there already."""
    REFUSED = 2
    """Another entry stands there already, or the queue offset cannot be reached."""


class SlotColumn(IntEnum):
    """Columns of the hash table ``slots`` that finds a queue by topic bytes and queue id.

    Law: only the dispatching thread writes the tables of queues, and only while no kernel runs;
    other threads may read single numbers of them at any time.
    """

    TOPIC_HASH = 0
    QUEUE_ID = 1
    TOPIC_AT = 2
    TOPIC_SIZE = 3
    QUEUE = 4


class QueueColumn(IntEnum):
    """Columns of ``queues``, one row per known queue.

    ``FILE_START`` to ``FILE_STOP`` is the byte range of the queue that is mapped for writing at
    memory address ``ADDRESS``; both are 0 while no file is. ``NEXT`` is the byte position after
    the last entry, ``MAX_PHYSICAL`` the end of the last record entered. ``CHANGES`` counts entries
    written, so that a flush knows whether there is anything to flush. ``IS_EXTENDED`` is 1 for a
    queue with an extension.
    """

    ADDRESS = 0
    FILE_START = 1
    FILE_STOP = 2
    NEXT = 3
    MAX_PHYSICAL = 4
    IS_EXTENDED = 5
    CHANGES = 6


QUEUE_COLUMN_COUNT: Final = len(QueueColumn)
SLOT_COLUMN_COUNT: Final = len(SlotColumn)


def slot_of(topic_hash: int, queue_id: int, slot_count: int) -> int:
    """Return the first slot to look at for a queue; `slot_count` is a power of two.

    Wrapping 64-bit arithmetic, equal to the kernels'.
    """
    mixed = (topic_hash * 0x9E3779B1) ^ (queue_id * 0x85EBCA77)
    mixed ^= mixed >> 15
    return mixed & (slot_count - 1)
