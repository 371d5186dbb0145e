"""Plain Python: a batch of messages to CommitLog records; see ``scan.compiled.batch``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.errors import FormatError
from rocketstore.format.client_batch import decode_client_batch
from rocketstore.format.record import TOPIC_SIZE_MAX, encode_record
from rocketstore.message import BORN_HOST_V6_FLAG, STORE_HOST_V6_FLAG
from rocketstore.scan.batch_state import (
    BATCH_COLUMN_COUNT,
    MESSAGE_FIXED_SIZE,
    NO_TIMESTAMP,
    BatchColumn,
    BatchRefusal,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    ByteArray = npt.NDArray[np.uint8]
    Table = npt.NDArray[np.int64]

_CLOSING_SIZE = 8
_PROPERTIES_MAX = 32767
_SEPARATOR = b"\x02"


def client_batch_table(batch: ByteArray, table: Table, common: tuple[int, int, int, int]) -> int:
    """Fill one row per message of a client's batch; as the compiled kernel."""
    at = count = 0
    messages = decode_client_batch(batch.tobytes())
    while True:
        try:
            message = next(messages)
        except StopIteration:
            return count
        except FormatError:
            return -1 - at
        properties_at = at + MESSAGE_FIXED_SIZE + len(message.body)
        if count < len(table):
            row = table[count]
            row[BatchColumn.SYS_FLAG] = common[0]
            row[BatchColumn.BORN_TIMESTAMP] = common[1]
            row[BatchColumn.BORN_HOST_AT] = common[2]
            row[BatchColumn.RECONSUME_TIMES] = common[3]
            row[BatchColumn.PREPARED_OFFSET] = 0
            row[BatchColumn.FLAG] = message.flag
            row[BatchColumn.BODY_AT] = at + 20
            row[BatchColumn.BODY_SIZE] = len(message.body)
            row[BatchColumn.PROPERTIES_AT] = properties_at
            row[BatchColumn.PROPERTIES_SIZE] = len(message.properties)
        count += 1
        at = properties_at + len(message.properties)


def write_batch(
    source: ByteArray,
    table: Table,
    common: tuple[ByteArray, ByteArray, ByteArray],
    numbers: tuple[int, int, int, int, int],
    target: ByteArray,
    position: int,
) -> int:
    """Write rows as consecutive records; as the compiled kernel."""
    count = numbers[0]
    if not _is_possible(table, count, common):
        return BatchRefusal.BAD_TABLE
    records: list[bytes] = []
    raw = source.tobytes()
    total = 0
    for index, row in enumerate(table[:count]):
        record = _record(raw, row, common, (numbers, index, position + total))
        if isinstance(record, BatchRefusal):
            return record
        row[BatchColumn.RECORD_SIZE] = len(record)
        records.append(record)
        total += len(record)
    if position < 0 or total > len(target) - _CLOSING_SIZE - position:
        return BatchRefusal.NO_ROOM
    target.data[position : position + total] = b"".join(records)
    return total


def _is_possible(table: Table, count: int, common: tuple[ByteArray, ByteArray, ByteArray]) -> bool:
    """Return whether table, topic and store host agree with each other."""
    topic, store_host, _ = common
    if not 0 <= count <= len(table) or table.shape[1] != BATCH_COLUMN_COUNT:
        return False
    sizes = {20 if flag & STORE_HOST_V6_FLAG else 8 for flag in table[:count, BatchColumn.SYS_FLAG]}
    return len(topic) <= TOPIC_SIZE_MAX and sizes <= {len(store_host)}


def _record(
    source: bytes,
    row: npt.NDArray[np.int64],
    common: tuple[ByteArray, ByteArray, ByteArray],
    place: tuple[tuple[int, int, int, int, int], int, int],
) -> bytes | BatchRefusal:
    """Return one record, or why there is none."""
    (_, queue_id, queue_offset, timestamp, base), index, position = place
    topic, store_host, more = (part.tobytes() for part in common)
    (
        flag, sys_flag, born, host_at, reconsume_times, prepared_offset, body_at, body_size,
        properties_at, properties_size, _,
    ) = (int(number) for number in row)  # fmt: skip
    host_size = 20 if sys_flag & BORN_HOST_V6_FLAG else 8
    parts = ((body_at, body_size), (properties_at, properties_size), (host_at, host_size))
    for at, size in parts:
        if not (0 <= at <= len(source) and 0 <= size <= len(source) - at):
            return BatchRefusal.BAD_TABLE
    body, properties, born_host = (source[at : at + size] for at, size in parts)
    if properties and more and not properties.endswith(_SEPARATOR):
        properties += _SEPARATOR
    properties += more
    if len(properties) > _PROPERTIES_MAX:
        return BatchRefusal.PROPERTIES_TOO_LONG
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
