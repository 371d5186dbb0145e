"""Which entries of batch queues the records of a log call for.

Law: one entry for each record of a batch topic, in the order of the log; a record whose queue
offsets cannot come after those before it gets none.

How derived: BatchConsumeQueue.putMessagePositionInfoWrapper of 5.3.1 (spec F9, B12).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rocketstore.format.batch_queue_entry import BATCH_COUNT_MAX, BatchEntry, encode_batch_entry
from rocketstore.format.client_batch import BATCH_MESSAGE_FIXED_SIZE
from rocketstore.format.properties import INNER_BASE, INNER_NUM, decode_properties
from rocketstore.message import INNER_BATCH
from rocketstore.rules.queue_numbers import DOUBTFUL_BEGINNING, QueueNumbers
from rocketstore.scan.batch_search import written_count
from rocketstore.scan.columns import CallsFor, Column, RecordColumns

if TYPE_CHECKING:
    from rocketstore.native.row import Int64Array
    from rocketstore.scan.batch_search import BatchEntryArray
    from rocketstore.units import QueueKey


def inner_place(sys_flag: int, queue_offset: int, properties: Mapping[str, str]) -> tuple[int, int]:
    """Return first queue offset and number of messages of a record; (-1, 0) where these are false.

    A record that holds no batch is one message.
    """
    if not sys_flag & INNER_BATCH:
        return queue_offset, 1
    base, count = properties.get(INNER_BASE, ""), properties.get(INNER_NUM, "")
    if not (base.isascii() and base.isdigit() and count.isascii() and count.isdigit()):
        return -1, 0
    is_true = 0 < int(count) <= BATCH_COUNT_MAX and int(base) == queue_offset
    return (queue_offset, int(count)) if is_true else (-1, 0)


def entry_of(columns: RecordColumns, number: int) -> BatchEntry:
    """Return the entry that a record of a batch topic calls for; zeros if its numbers are false."""
    row = columns.cols[number].tolist()
    properties = {}
    if row[Column.SYS_FLAG] & INNER_BATCH:
        properties = decode_properties(columns.properties(number))
    base, count = inner_place(row[Column.SYS_FLAG], row[Column.QUEUE_OFFSET], properties)
    return BatchEntry(
        row[Column.PHYSICAL_OFFSET],
        row[Column.SIZE],
        row[Column.TAGS_CODE],
        row[Column.STORE_TIMESTAMP],
        base,
        count,
    )


def queue_stops(columns: RecordColumns) -> Int64Array:
    """Return the queue offset after each record: after its last message where it holds a batch."""
    stops: Int64Array = columns.queue_offset + 1
    for row in np.flatnonzero(columns.sys_flag & INNER_BATCH).tolist():
        entry = entry_of(columns, row)
        if entry.is_written:
            stops[row] = entry.stop_offset
    return stops


def entries_called_for(
    columns: RecordColumns, numbers: QueueNumbers
) -> Iterator[tuple[QueueKey, bytes]]:
    """Yield queue and entry of each record of a batch topic, false ones too (`entry_of`)."""
    if not numbers.batch_topics:
        return
    queues = numbers.of(columns)
    is_batch = numbers.batch_mask(queues) & columns.call_for(CallsFor.ENTRY)
    for row in np.flatnonzero(is_batch & (columns.queue_id >= 0)).tolist():
        yield numbers.key(int(queues[row])), encode_batch_entry(entry_of(columns, row))


def batch_may_follow(base_offset: Any, queue_stop: Any, physical_offset: Any) -> Any:
    """Whether a record's first number may come after those of a queue up to `queue_stop`.

    A forged number would refuse every later message, so at most as many as fit into the log may be
    missing. Numbers or columns of them.
    """
    most = np.maximum(DOUBTFUL_BEGINNING, physical_offset // BATCH_MESSAGE_FIXED_SIZE)
    return (queue_stop <= base_offset) & (base_offset <= queue_stop + most)


# --- a queue ------------------------------------------------------------------------------------


def queue_bounds(stored: BatchEntryArray, log_min: int) -> tuple[int, int]:
    """Return the queue offsets of the first message that has not expired and after the last."""
    stored = stored[: written_count(stored)]
    stop = int(stored["base_offset"][-1]) + int(stored["message_count"][-1]) if len(stored) else 0
    left = stored["base_offset"][stored["physical_offset"] >= log_min]
    return (int(left[0]) if len(left) else stop), stop
