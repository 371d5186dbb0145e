"""The tables that the dispatch kernels share with Python: where each number stands.

A dispatch kernel runs outside the interpreter over whole files, so everything it needs or changes
lies in int64 arrays: which queues there are, where their open files are mapped, how far dispatch
has come. This module names the columns of those arrays and nothing else;
``storage.dispatch.dispatcher`` and ``storage.queues.consume_queue`` fill them.

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


class IndexColumn(IntEnum):
    """``index_state``: the open index file's shape, and what its last record already has.

    ``ITEMS_AT_END`` items of the record at the header's end offset are indexed already, counted
    over all files: so much is skipped when that record comes again (K-I8).
    """

    ENABLED = 0
    SLOT_LIMIT = 1
    ITEM_LIMIT = 2
    ITEMS_AT_END = 3


class State(IntEnum):
    """``state``: where a pass stands, its settings, and what it counted.

    ``WALKED`` is the position in the buffer up to which records were walked, ``CURSOR`` to
    ``FILLED`` the walked records not dispatched yet, ``STEP`` how far the record at ``CURSOR``
    came (see `Step`). ``WALK_STOP`` is why the last walk ended (``columns.StopReason``).
    ``STOP_AFTER_BATCH`` 1 asks for a return after each walked batch; the kernel makes it 2 when it
    has returned and 1 again with the next batch.
    """

    WALKED = 0
    CURSOR = 1
    FILLED = 2
    STEP = 3
    WALK_STOP = 4
    CHECK_CRC = 5
    FORCE = 6
    MULTI_DISPATCH = 7
    STOP_AFTER_BATCH = 8
    RECORDS = 9
    ENTRIES_WRITTEN = 10
    ENTRIES_REPEATED = 11
    ENTRIES_REFUSED = 12
    WITHOUT_ENTRY = 13
    INDEX_ITEMS = 14
    LAST_STORE_TIMESTAMP = 15
    LAST_PHYSICAL_STOP = 16


class Step(IntEnum):
    """How far one record came when the kernel asked Python."""

    NEW = 0
    ENTERED = 1
    MULTI_DISPATCHED = 2


class DispatchStop(IntEnum):
    """Why a dispatch kernel returned."""

    DONE = 0
    UNKNOWN_QUEUE = 1
    QUEUE_ROLL = 2
    QUEUE_GAP = 3
    QUEUE_CONFLICT = 4
    INDEX_FULL = 5
    MULTI_DISPATCH = 6
    BATCH = 7
    WALK_ENDED = 8


QUEUE_COLUMN_COUNT: Final = len(QueueColumn)
SLOT_COLUMN_COUNT: Final = len(SlotColumn)
INDEX_COLUMN_COUNT: Final = len(IndexColumn)
STATE_COUNT: Final = len(State)


def slot_of(topic_hash: int, queue_id: int, slot_count: int) -> int:
    """Return the first slot to look at for a queue; `slot_count` is a power of two.

    Wrapping 64-bit arithmetic, equal to the kernels'.
    """
    mixed = (topic_hash * 0x9E3779B1) ^ (queue_id * 0x85EBCA77)
    mixed ^= mixed >> 15
    return mixed & (slot_count - 1)
