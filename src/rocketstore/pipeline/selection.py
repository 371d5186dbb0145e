"""Which records of a batch a query wants, decided on columns before anything is copied.

Law: topics, tags, offsets and times of the options are decided here and nowhere else, exactly;
comparisons pushed down by Spark only take rows away that Spark would take away itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocketstore.message import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rocketstore.pipeline.offsets import ANY_BROKER
from rocketstore.pipeline.pushdown import NUMBER_COLUMNS, TIME_COLUMNS
from rocketstore.scan.columns import Column, RecordColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.pushdown import Comparison
    from rocketstore.pipeline.queue_range import QueueRange

    Mask = npt.NDArray[np.bool_]

_NUMBERS: Final = {
    "flag": Column.FLAG,
    "queueId": Column.QUEUE_ID,
    "queueOffset": Column.QUEUE_OFFSET,
    "physicalOffset": Column.PHYSICAL_OFFSET,
    "size": Column.SIZE,
    "sysFlag": Column.SYS_FLAG,
    "reconsumeTimes": Column.RECONSUME_TIMES,
    "preparedTransactionOffset": Column.PREPARED_OFFSET,
    "bodyCRC": Column.BODY_CRC,
    "bornTimestamp": Column.BORN_TIMESTAMP,
    "storeTimestamp": Column.STORE_TIMESTAMP,
}
assert set(_NUMBERS) == NUMBER_COLUMNS | TIME_COLUMNS

_OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_LIMIT_MS: Final = 9_000_000_000_000_000
"""Times beyond it would not fit as microseconds; they are far outside any calendar."""


def select(
    columns: RecordColumns,
    options: ReadOptions,
    comparisons: Sequence[Comparison],
    ranges: Sequence[QueueRange],
    broker: str,
) -> RecordColumns:
    """Return the wanted records of a batch."""
    masks = [_compared(columns, one) for one in comparisons if one.column in _NUMBERS]
    masks += _stored_between(columns, options)
    topic_tests = [_text_test(one.values) for one in comparisons if one.column == "topic"]
    if options.has_topic_choice:
        topic_tests.append(options.wants_topic)
    if topic_tests:
        masks.append(_where_text(columns, "topic", lambda text: all(t(text) for t in topic_tests)))
    tag_tests = [_text_test(one.values) for one in comparisons if one.column == "tags"]
    if options.tags is not None:
        tag_tests.append(_text_test(tuple(options.tags)))
    if tag_tests:
        masks.append(_where_text(columns, "tags", lambda text: all(t(text) for t in tag_tests)))
    if options.queues is not None:
        masks.append(_assigned(columns, options, broker))
    if options.has_offsets:
        masks.append(_in_ranges(columns, ranges))
    if not masks:
        return columns
    mask = np.logical_and.reduce(masks)
    if mask.all():
        return columns
    return RecordColumns(columns.buffer, columns.cols[mask], columns.base)


def _text_test(values: tuple[Any, ...]) -> Callable[[str], bool]:
    return frozenset(values).__contains__


def _compared(columns: RecordColumns, one: Comparison) -> Mask:
    numbers = columns.cols[:, _NUMBERS[one.column]]
    if one.column in TIME_COLUMNS:
        numbers = np.clip(numbers, -_LIMIT_MS, _LIMIT_MS) * 1000
    if one.operator in ("=", "in"):
        return np.isin(numbers, np.array(one.values, dtype=np.int64))
    found: Mask = _OPERATORS[one.operator](numbers, one.values[0])
    return found


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
