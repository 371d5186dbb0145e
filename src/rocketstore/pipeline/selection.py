"""Which records of a batch a query wants, decided on columns before anything is copied.

Law: topics, tags, offsets and times of the options are decided here and nowhere else, exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rocketstore.message import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rocketstore.pipeline.options import ANY_BROKER
from rocketstore.scan.columns import RecordColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.queue_range import QueueRange

    Mask = npt.NDArray[np.bool_]


def select(
    columns: RecordColumns, options: ReadOptions, ranges: Sequence[QueueRange], broker: str
) -> RecordColumns:
    """Return the wanted records of a batch."""
    masks = list(_masks(columns, options, ranges, broker))
    mask = np.logical_and.reduce(masks) if masks else None
    if mask is None or mask.all():
        return columns
    return RecordColumns(columns.buffer, columns.cols[mask], columns.base)


def _masks(
    columns: RecordColumns, options: ReadOptions, ranges: Sequence[QueueRange], broker: str
) -> Iterator[Mask]:
    if options.starting_timestamp_ms is not None:
        yield columns.store_timestamp >= options.starting_timestamp_ms
    if options.ending_timestamp_ms is not None:
        yield columns.store_timestamp < options.ending_timestamp_ms
    if options.tags is not None:
        yield _passing(*_distinct(columns, "tags"), options.tags.__contains__)
    if not options.has_topic_choice:
        return
    kind = columns.sys_flag & TRANSACTION_MASK  # those two have no place in a queue
    yield (kind != TRANSACTION_PREPARED) & (kind != TRANSACTION_ROLLBACK)
    topics, numbers = _distinct(columns, "topic")
    yield _passing(topics, numbers, options.wants_topic)

    def in_queue(topic: str, queue_id: int) -> Mask:
        mask: Mask = columns.queue_id == queue_id
        return mask & _passing(topics, numbers, topic.__eq__)

    if options.queues is not None:
        chosen = [one for one in options.queues if one.broker in (ANY_BROKER, broker)]
        queues = [in_queue(one.topic, one.queue_id) for one in chosen]
        yield np.logical_or.reduce([np.zeros(len(columns), dtype=np.bool_), *queues])
    for one in ranges:
        outside = columns.queue_offset < one.start
        if one.stop is not None:
            outside |= columns.queue_offset >= one.stop
        yield ~(outside & in_queue(one.topic, one.queue_id))


def _distinct(columns: RecordColumns, name: str) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the distinct texts of a column, and which of them each record has; -1 is none."""
    encoded: Any = columns.to_arrow([name]).column(0).dictionary_encode()
    numbers = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return encoded.dictionary.to_pylist(), numbers


def _passing(texts: list[str], numbers: npt.NDArray[np.int64], test: Callable[[str], bool]) -> Mask:
    """Test each distinct text once; a missing one, the last verdict, never passes."""
    found: Mask = np.array([*map(test, texts), False], dtype=np.bool_)[numbers]
    return found
