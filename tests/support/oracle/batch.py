"""Plain Python: a batch of messages to CommitLog records; see ``native.batch``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.errors import FormatError
from rocketstore.format.client_batch import decode_client_batch
from rocketstore.format.record import TOPIC_SIZE_MAX, encode_record
from rocketstore.format.record_text import hold_names
from rocketstore.message import BORN_HOST_V6_FLAG, STORE_HOST_V6_FLAG
from rocketstore.native.batch_state import (
    BATCH_COLUMN_COUNT,
    COUNT_SHIFT,
    MESSAGE_FIXED_SIZE,
    NO_TIMESTAMP,
    BatchColumn,
    BatchPlan,
    BatchRefusal,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from rocketstore.native.batch_state import Plan

    ByteArray = npt.NDArray[np.uint8]
    Row = npt.NDArray[np.int64]
    Table = npt.NDArray[np.int64]

_CLOSING_SIZE = 8
_LENGTH_SIZE = 4
_PROPERTIES_MAX = 32767
_SEPARATOR = b"\x02"
_SPECIAL_STARTS = (b"DELAY\x01", b"INNER_MU")


def write_batch(
    source: ByteArray,
    table: Table,
    plan: Plan,
    numbers: tuple[int, int, int, int],
    target: ByteArray,
    position: int,
) -> int:
    """Write a batch as consecutive records; as the compiled kernel."""
    raw = source.tobytes()
    if not _is_possible(raw, table, plan):
        return BatchRefusal.BAD_TABLE
    count = plan[BatchPlan.MESSAGE_COUNT]
    if count < 0:
        count = _parse(raw, table, plan)
    if count <= 0:
        return count or BatchRefusal.EMPTY
    sizes = {20 if flag & STORE_HOST_V6_FLAG else 8 for flag in table[:count, BatchColumn.SYS_FLAG]}
    if sizes != {plan[BatchPlan.STORE_HOST_SIZE]}:
        return BatchRefusal.BAD_TABLE
    records: list[bytes] = []
    total = 0
    for index, row in enumerate(table[:count]):
        record = _record(raw, row, plan, numbers, (index, position + total))
        if isinstance(record, BatchRefusal):
            return record
        row[BatchColumn.RECORD_SIZE] = len(record)
        records.append(record)
        total += len(record)
    if position < 0 or total > len(target) - _CLOSING_SIZE - position:
        return BatchRefusal.NO_ROOM - total
    _write(records, target, position)
    return count << COUNT_SHIFT | total


def _write(records: Sequence[bytes], target: ByteArray, position: int) -> None:
    """Write records one by one, each length last: who is killed amid it leaves the first ones.

    A copy of all at once may come in any order; glibc's writes a range's first bytes last.
    """
    view = target.data
    for record in records:
        stop = position + len(record)
        view[position + _LENGTH_SIZE : stop] = record[_LENGTH_SIZE:]
        view[position : position + _LENGTH_SIZE] = record[:_LENGTH_SIZE]
        position = stop


def _is_inside(at: int, size: int, end: int) -> bool:
    return 0 <= at <= end and 0 <= size <= end - at


def _is_possible(raw: bytes, table: Table, plan: Plan) -> bool:
    """Return whether the plan's places are inside the source, and its sizes those of a record."""
    count, batch_size, _, _, _, _, _, host_at, host_size, topic_at, topic_size, more_at, more = plan
    return (
        -1 <= count <= len(table)
        and table.shape[1] == BATCH_COLUMN_COUNT
        and 0 <= batch_size <= len(raw)
        and host_size in {8, 20}
        and topic_size <= TOPIC_SIZE_MAX
        and _is_inside(host_at, host_size, len(raw))
        and _is_inside(topic_at, topic_size, len(raw))
        and _is_inside(more_at, more, len(raw))
    )


def _parse(raw: bytes, table: Table, plan: Plan) -> int:
    """Fill one row per message of a client's batch; return how many, or why not."""
    _, batch_size, is_checked, *shared = plan
    at = count = 0
    messages = decode_client_batch(raw[:batch_size])
    while True:
        try:
            message = next(messages)
        except StopIteration:
            return count
        except FormatError:
            return BatchRefusal.CUT_OFF - at
        if count == len(table):
            return BatchRefusal.BAD_TABLE
        names = message.properties.split(_SEPARATOR)
        if not is_checked and any(name.startswith(_SPECIAL_STARTS) for name in names):
            return BatchRefusal.SPECIAL
        if message.properties and not hold_names(message.properties):
            return BatchRefusal.BAD_PROPERTIES
        properties_at = at + MESSAGE_FIXED_SIZE + len(message.body)
        table[count, : BatchColumn.RECORD_SIZE] = (
            message.flag, *shared[:4], 0, at + 20, len(message.body), properties_at,
            len(message.properties),
        )  # fmt: skip
        count += 1
        at = properties_at + len(message.properties)


def _record(
    raw: bytes, row: Row, plan: Plan, numbers: tuple[int, int, int, int], place: tuple[int, int]
) -> bytes | BatchRefusal:
    """Return one record, or why there is none."""
    queue_id, queue_offset, timestamp, base = numbers
    store_host, topic, more = (
        raw[plan[at] : plan[at] + plan[at + 1]]
        for at in (BatchPlan.STORE_HOST_AT, BatchPlan.TOPIC_AT, BatchPlan.MORE_AT)
    )
    (
        flag, sys_flag, born, host_at, reconsume_times, prepared_offset, body_at, body_size,
        properties_at, properties_size, _,
    ) = (int(number) for number in row)  # fmt: skip
    host_size = 20 if sys_flag & BORN_HOST_V6_FLAG else 8
    parts = ((body_at, body_size), (properties_at, properties_size), (host_at, host_size))
    if not all(_is_inside(at, size, len(raw)) for at, size in parts):
        return BatchRefusal.BAD_TABLE
    body, properties, born_host = (raw[at : at + size] for at, size in parts)
    if properties and not properties.endswith(_SEPARATOR) and (more or properties[-1] == 0):
        properties += _SEPARATOR
    properties += more
    if len(properties) > _PROPERTIES_MAX:
        return BatchRefusal.PROPERTIES_TOO_LONG
    index, position = place
    return encode_record(
        topic=topic,
        body=body,
        properties=properties,
        queue_id=queue_id,
        queue_offset=queue_offset + index,
        physical_offset=base + position,
        born_timestamp_ms=timestamp if born == NO_TIMESTAMP else born,
        born_host=born_host,
        store_timestamp_ms=timestamp,
        store_host=store_host,
        flag=flag,
        sys_flag=sys_flag,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_offset,
    )
