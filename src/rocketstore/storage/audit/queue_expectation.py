"""Which queue entries the records of a log call for.

Law: one entry per record that has a place in a queue (no prepared or rollback records), at the
queue offset that the record states, plus one per extra queue of a multi-dispatch record.

How derived: CommitLogDispatcherBuildConsumeQueue and multiDispatchLmqQueue of 4.9.3 (spec B11, B12,
F5, F8); as the dispatch kernels write them, but without files, for audit and repair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from rocketstore.format.properties import decode_properties
from rocketstore.format.queue_entry import ENTRY_DTYPE, MAX_QUEUE_OFFSET
from rocketstore.scan.columns import Column
from rocketstore.storage.recovery.leftovers import normal_mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.scan.columns import RecordColumns
    from rocketstore.storage.recovery.queue_numbers import QueueNumbers

    Int64Array: TypeAlias = npt.NDArray[np.int64]

DELAY_TOPIC: Final = b"SCHEDULE_TOPIC_XXXX"
LIGHT_QUEUE_PREFIX: Final = "%LMQ%"
_MULTI_DISPATCH: Final = b"INNER_MULTI_DISPATCH\x01"


class ExpectedEntries(NamedTuple):
    """Entries that a batch of records calls for, in log order, extra queues last.

    Attributes
    ----------
    is_exact
        False where the tags code is a deliver time, which depends on settings at the time of
        dispatch, so that only a lower bound is known.
    is_extra
        True for the extra queues of multi-dispatch records.
    """

    queue_number: Int64Array
    queue_offset: Int64Array
    entries: EntryArray
    is_exact: npt.NDArray[np.bool_]
    is_extra: npt.NDArray[np.bool_]
    store_timestamp: Int64Array

    def by_queue(self) -> Iterator[tuple[int, ExpectedEntries]]:
        """Yield the entries of each queue."""
        order = np.argsort(self.queue_number, kind="stable")
        numbers, firsts = np.unique(self.queue_number[order], return_index=True)
        bounds = [*firsts.tolist(), len(order)]
        for at, number in enumerate(numbers.tolist()):
            rows = order[bounds[at] : bounds[at + 1]]
            yield (
                number,
                ExpectedEntries(
                    self.queue_number[rows],
                    self.queue_offset[rows],
                    self.entries[rows],
                    self.is_exact[rows],
                    self.is_extra[rows],
                    self.store_timestamp[rows],
                ),
            )


def expected_entries(
    columns: RecordColumns, numbers: QueueNumbers, delays_ms: Int64Array
) -> ExpectedEntries:
    """Return the entries that these records call for.

    Parameters
    ----------
    columns
        Intact records of the log.
    numbers
        Numbers the queues, new ones included.
    delays_ms
        Delay of each level, from index 1 (spec F5).
    """
    has_place = (
        normal_mask(columns.sys_flag)
        & (columns.queue_offset >= 0)
        & (columns.queue_offset <= MAX_QUEUE_OFFSET)
        & (columns.queue_id >= 0)
    )
    rows = np.flatnonzero(has_place)
    tags_code = columns.tags_code.copy()
    is_delayed = _deliver_times(columns, tags_code, delays_ms)
    queue_number = numbers.of(columns)
    extra = list(_extra_entries(columns, numbers, has_place))
    extra_rows = np.array([row for row, _, _ in extra], dtype=np.int64)
    all_rows = np.concatenate((rows, extra_rows))
    entries = np.empty(len(all_rows), dtype=ENTRY_DTYPE)
    entries["physical_offset"] = columns.physical_offset[all_rows]
    entries["record_size"] = columns.size[all_rows]
    # An extra queue keeps the plain hash of the tags (spec F8).
    entries["tags_code"][: len(rows)] = tags_code[rows]
    entries["tags_code"][len(rows) :] = columns.tags_code[extra_rows]
    is_extra = np.zeros(len(all_rows), dtype=np.bool_)
    is_extra[len(rows) :] = True
    return ExpectedEntries(
        np.concatenate((queue_number[rows], _numbers(number for _, number, _ in extra))),
        np.concatenate((columns.queue_offset[rows], _numbers(offset for _, _, offset in extra))),
        entries,
        ~is_delayed[all_rows] | is_extra,
        is_extra,
        columns.store_timestamp[all_rows],
    )


def _numbers(values: Iterator[int]) -> Int64Array:
    return np.array(list(values), dtype=np.int64)


def _deliver_times(
    columns: RecordColumns, tags_code: Int64Array, delays_ms: Int64Array
) -> npt.NDArray[np.bool_]:
    """Put deliver times into `tags_code` for records of the delay topic; return which those are."""
    is_delayed = (columns.topic_size == len(DELAY_TOPIC)) & (columns.delay_level > 0)
    for row in np.flatnonzero(is_delayed).tolist():
        if columns.bytes_of(row, Column.TOPIC_AT, Column.TOPIC_SIZE) != DELAY_TOPIC:
            is_delayed[row] = False
        elif len(delays_ms) > 1:
            level = min(int(columns.delay_level[row]), len(delays_ms) - 1)
            tags_code[row] = columns.store_timestamp[row] + delays_ms[level]
    mask: npt.NDArray[np.bool_] = is_delayed
    return mask


def _extra_entries(
    columns: RecordColumns, numbers: QueueNumbers, has_place: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, int, int]]:
    """Yield row, queue number and queue offset of each extra queue of multi-dispatch records."""
    if not len(columns):
        return
    starts = columns.physical_offset - columns.base
    begin, end = int(starts[0]), int(starts[-1] + columns.size[-1])
    content = columns.buffer[begin:end].tobytes() if _may_hold(columns, begin, end) else b""
    at = content.find(_MULTI_DISPATCH)
    done = -1
    while at >= 0:
        row = int(np.searchsorted(starts, begin + at, side="right")) - 1
        if row > done and has_place[row]:
            yield from _extra_queues(columns, numbers, row)
            done = row
        at = content.find(_MULTI_DISPATCH, at + 1)


def _may_hold(columns: RecordColumns, begin: int, end: int) -> bool:
    """Whether the name occurs at all; a search that copies nothing."""
    view = columns.buffer[begin:end]
    lead = np.flatnonzero(
        view[: max(0, view.size - len(_MULTI_DISPATCH) + 1)] == _MULTI_DISPATCH[0]
    )
    for offset in (6, 12, len(_MULTI_DISPATCH) - 1):
        lead = lead[view[lead + offset] == _MULTI_DISPATCH[offset]]
    return bool(lead.size)


def _extra_queues(
    columns: RecordColumns, numbers: QueueNumbers, row: int
) -> Iterator[tuple[int, int, int]]:
    properties = decode_properties(columns.properties(row))
    names = properties.get("INNER_MULTI_DISPATCH", "").split(",")
    offsets = properties.get("INNER_MULTI_QUEUE_OFFSET", "").split(",")
    if not names[0] or len(names) != len(offsets):
        return
    for name, offset in zip(names, offsets, strict=True):
        if offset.isascii() and offset.isdigit() and int(offset) <= MAX_QUEUE_OFFSET:
            for queue_id in extra_queue_ids(name, int(columns.queue_id[row])):
                yield row, numbers.number_of(name.encode(), queue_id), int(offset)


def extra_queue_ids(name: str, queue_id: int) -> set[int]:
    """Return the queues in which an extra entry of a record of queue `queue_id` may stand.

    A light queue is queue 0 of its name where the broker had ``enableLmq``, else the record's own;
    nothing in the store tells which.
    """
    return {0, queue_id} if name.startswith(LIGHT_QUEUE_PREFIX) else {queue_id}
