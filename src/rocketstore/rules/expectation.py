"""Which queue entries and which index items the records of a log call for.

Law: one entry per record that has a place in a queue (no prepared or rollback records), at the
queue offset that the record states, plus one per extra queue of a multi-dispatch record. One item
for UNIQ_KEY and one for each part of KEYS between blanks, for every record that is no rollback
record; equal parts count each.

How derived: CommitLogDispatcherBuildConsumeQueue, multiDispatchLmqQueue and
IndexService.buildIndex of 4.9.3 (spec B11, B12, B15.1, F5, F8), as the dispatch kernels write them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rocketstore.format.queue_entry import ENTRY_DTYPE, MAX_QUEUE_OFFSET
from rocketstore.native.row import NO_LEVEL_DELAY_MS, BoolArray, CallsFor, Int64Array
from rocketstore.rules.extra_queues import extra_offsets, extra_queue_ids
from rocketstore.rules.queue_numbers import QueueNumbers, TaskQueue
from rocketstore.scan import kernels

if TYPE_CHECKING:
    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.scan.columns import RecordColumns


class ExpectedEntries(NamedTuple):
    """Entries that records call for, in log order, extra queues of multi-dispatch records last.

    `deliver_from_ms` is the store time of records that wait in the delay topic, else -1: when they
    are due depends on settings at the time of dispatch, so only a lower bound is known.
    """

    queue_number: Int64Array
    queue_offset: Int64Array
    entries: EntryArray
    deliver_from_ms: Int64Array
    is_extra: BoolArray

    def rows(self, chosen: Int64Array) -> ExpectedEntries:
        """Return some of them."""
        # `take` copies structures four times as fast as an index does.
        return ExpectedEntries._make(column.take(chosen) for column in self)

    def by_queue(self) -> Iterator[tuple[int, ExpectedEntries]]:
        """Yield the entries of each queue."""
        for rows in groups(self.queue_number):
            yield int(self.queue_number[rows[0]]), self.rows(rows)


def groups(keys: Int64Array) -> Iterator[Int64Array]:
    """Yield the rows of each key, in order."""
    if keys.size and (keys == keys[0]).all():
        yield np.arange(keys.size)
        return
    # Of 16-bit numbers a stable sort is a radix sort.
    small = np.int16 if keys.size and int(keys.max()) < 2**15 else np.int64
    order = np.argsort(keys.astype(small), kind="stable")
    bounds = np.flatnonzero(np.diff(keys[order])) + 1
    yield from (rows for rows in np.split(order, bounds) if rows.size)


def expected_entries(
    columns: RecordColumns, numbers: QueueNumbers, delays_ms: Int64Array
) -> ExpectedEntries:
    """Return the entries that these intact records call for; new queues get numbers.

    `delays_ms` has the delay of each level, from index 1 (spec F5).
    """
    queue_number = numbers.of(columns)
    has_place = (
        (queue_number >= 0)
        & (columns.queue_offset >= 0)
        & (columns.queue_offset <= MAX_QUEUE_OFFSET)
        & (columns.queue_id >= 0)
    )
    if numbers.batch_topics:
        is_batch = numbers.batch_mask(queue_number)
        numbers.batch_count += int(is_batch.sum())
        has_place &= ~is_batch
    rows = np.flatnonzero(has_place)
    extra = [
        (row, numbers.number_of(TaskQueue(name.encode(), queue_id)), offset)
        for row, name, queue_id, offset in extra_entries(columns)
    ]
    extra_columns = np.array(extra, dtype=np.int64).reshape(-1, 3)
    all_rows = np.concatenate((rows, extra_columns[:, 0]))
    entries = np.empty(len(all_rows), dtype=ENTRY_DTYPE)
    entries["physical_offset"] = columns.physical_offset[all_rows]
    entries["record_size"] = columns.size[all_rows]
    codes = np.empty(len(columns), dtype=np.int64)
    kernels.list_codes(np.ascontiguousarray(columns.cols), delays_ms, codes)
    # An extra queue keeps the plain hash of the tags (spec F8).
    entries["tags_code"] = np.concatenate((codes[rows], columns.tags_code[extra_columns[:, 0]]))
    is_extra = np.arange(len(all_rows)) >= len(rows)
    is_due = columns.call_for(CallsFor.DUE_TIME)[all_rows]  # 4.9 has it in extra queues too (K-L6)
    deliver_from = np.where(is_due, columns.store_timestamp[all_rows], -1)
    return ExpectedEntries(
        np.concatenate((queue_number[rows], extra_columns[:, 1])),
        np.concatenate((columns.queue_offset[rows], extra_columns[:, 2])),
        entries,
        deliver_from,
        is_extra,
    )


def delay_array(levels: Mapping[int, int]) -> Int64Array:
    """Return the delay of each level from index 1; one without a delay waits a second (spec F5)."""
    last = max(levels, default=0)
    return np.array(
        [levels.get(level, NO_LEVEL_DELAY_MS) for level in range(last + 1)], dtype=np.int64
    )


def extra_entries(columns: RecordColumns) -> Iterator[tuple[int, str, int, int]]:
    """Yield row, topic, queue id and queue offset of each extra queue of multi-dispatch records."""
    for row in np.flatnonzero(columns.call_for(CallsFor.EXTRA_ENTRIES)).tolist():
        for name, offset in extra_offsets(columns.properties(row)) or ():
            if offset >= 0:
                for queue_id in extra_queue_ids(name, int(columns.queue_id[row])):
                    yield row, name, queue_id, offset


class ExpectedItems(NamedTuple):
    """Items in log order: of which record, with which hash, and when that was stored."""

    physical_offset: Int64Array
    key_hash: Int64Array
    store_timestamp_ms: Int64Array


def expected_items(columns: RecordColumns) -> ExpectedItems:
    """Return the items that these records call for."""
    sizes = columns.keys_size
    # Each key but the last is followed by a blank.
    room = int((columns.unique_key_size > 0).sum() + ((sizes + 1) // 2).sum())
    rows, hashes = np.empty(room, np.int64), np.empty(room, np.int64)
    cols = np.ascontiguousarray(columns.cols)
    count = kernels.list_items(columns.buffer, cols, rows, hashes)
    rows = rows[:count]
    return ExpectedItems(
        columns.physical_offset[rows], hashes[:count].copy(), columns.store_timestamp[rows]
    )
