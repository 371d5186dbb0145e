"""Which records of a batch a query wants, decided on columns before anything is copied.

Law: topics, tags, offsets and times of the options are decided here and nowhere else, exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rocketstore.message import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rocketstore.pipeline.offsets import ANY_BROKER
from rocketstore.scan.columns import RecordColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.queue_range import QueueRange

    Mask = npt.NDArray[np.bool_]


def select(
    columns: RecordColumns,
    options: ReadOptions,
    ranges: Sequence[QueueRange],
    broker: str,
) -> RecordColumns:
    """Return the wanted records of a batch."""
    masks = _stored_between(columns, options)
    if options.has_topic_choice:
        masks.append(_where_text(columns, "topic", options.wants_topic))
    if options.tags is not None:
        masks.append(_where_text(columns, "tags", options.tags.__contains__))
    if options.queues is not None:
        masks.append(_assigned(columns, options, broker))
    if options.has_topic_choice:
        masks.append(_in_ranges(columns, ranges))
    if not masks:
        return columns
    mask = np.logical_and.reduce(masks)
    if mask.all():
        return columns
    return RecordColumns(columns.buffer, columns.cols[mask], columns.base)


def _stored_between(columns: RecordColumns, options: ReadOptions) -> list[Mask]:
    masks = []
    if options.starting_timestamp_ms is not None:
        masks.append(columns.store_timestamp >= options.starting_timestamp_ms)
    if options.ending_timestamp_ms is not None:
        masks.append(columns.store_timestamp < options.ending_timestamp_ms)
    return masks


def _where_text(columns: RecordColumns, name: str, test: Callable[[str], bool]) -> Mask:
    """Test a text column, each distinct text once; a missing text never passes."""
    texts: Any = columns.to_arrow([name]).column(0)
    encoded = texts.dictionary_encode()
    verdicts = np.array([*map(test, encoded.dictionary.to_pylist()), False], dtype=np.bool_)
    numbers = encoded.indices.fill_null(len(verdicts) - 1).to_numpy(zero_copy_only=False)
    found: Mask = verdicts[numbers]
    return found


def _assigned(columns: RecordColumns, options: ReadOptions, broker: str) -> Mask:
    queue_ids: dict[str, set[int]] = {}
    for place in options.queues or ():
        if place.broker in (ANY_BROKER, broker):
            queue_ids.setdefault(place.topic, set()).add(place.queue_id)
    mask = np.zeros(len(columns), dtype=np.bool_)
    for topic, wanted in queue_ids.items():
        mask |= _where_text(columns, "topic", topic.__eq__) & np.isin(
            columns.queue_id, np.array(sorted(wanted), dtype=np.int64)
        )
    return mask


def _in_ranges(columns: RecordColumns, ranges: Sequence[QueueRange]) -> Mask:
    """Return which records have a place in a queue, inside the queue's range if it has one."""
    kind = columns.sys_flag & TRANSACTION_MASK
    mask: Mask = (kind != TRANSACTION_PREPARED) & (kind != TRANSACTION_ROLLBACK)
    by_topic: dict[str, list[QueueRange]] = {}
    for one in ranges:
        by_topic.setdefault(one.topic, []).append(one)
    for topic, queues in by_topic.items():
        is_topic = _where_text(columns, "topic", topic.__eq__)
        for one in queues:
            outside = columns.queue_offset < one.start
            if one.stop is not None:
                outside |= columns.queue_offset >= one.stop
            mask &= ~(is_topic & (columns.queue_id == one.queue_id) & outside)
    return mask
