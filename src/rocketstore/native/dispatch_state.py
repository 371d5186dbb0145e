"""The tables of queues that compiled dispatch shares with Python: where each number stands.

Dispatch runs outside the interpreter, so which queues there are and where their open files are
mapped lies in int64 arrays. This module names their columns; ``storage.queues`` fills them.

Law: only the dispatching thread writes these arrays, and only while no kernel runs; other threads
may read single numbers of them at any time.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]

NO_LEVEL_DELAY_MS: Final = 1000
"""Delay of a level that the table of levels does not have (spec F5)."""


class SlotColumn(IntEnum):
    """Columns of the hash table ``slots`` that finds a queue by topic bytes and queue id."""

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
    written, so that a flush knows whether there is anything to flush.
    """

    ADDRESS = 0
    FILE_START = 1
    FILE_STOP = 2
    NEXT = 3
    MAX_PHYSICAL = 4
    IS_DELAY = 5
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
