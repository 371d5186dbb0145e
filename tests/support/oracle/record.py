"""A record as the plain codec reads it, which says why none is there.

The decoder of the store, which only says that no intact record is there, is held against it at each
call. Source: CommitLog.checkMessageAndReturnSize, MessageDecoder.decode of 4.9 (spec F3).
Compatible: an empty body is not checked against its CRC. Unlike Java, a negative body or properties
length is damage here, and the stored physical offset must be right (K-R5, K-Q3).
"""

import mmap
from typing import Final, TypeAlias

from rocketstore.errors import FormatError
from rocketstore.format import checked
from rocketstore.format.host import decode_host
from rocketstore.format.record import topic_text
from rocketstore.format.stored_message import StoredMessage
from rocketstore.native.decode import decode
from rocketstore.scan.columns import Column, StopReason
from support.oracle.walk import check_record, row_of

RecordBuffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap

MESSAGE_MAGIC_V2: Final = 0xDAA320AB
"""Record of 5.x with a topic longer than 127 bytes: its length takes 2 bytes."""


def decode_record(
    view: RecordBuffer, position: int, *, base: int, check_crc: bool = True
) -> StoredMessage:
    """Decode the record at a position of bytes whose first has physical offset `base`.

    Raises a `FormatError` that names the `StopReason` if none is there; the store's decoder agrees.
    """
    found = decode(view, position, base, check_crc)
    try:
        message = _decoded(view, position, base, check_crc=check_crc)
    except FormatError:
        assert found is None, found
        raise
    assert found == message
    return message


def _decoded(view: RecordBuffer, position: int, base: int, *, check_crc: bool) -> StoredMessage:
    what = "position is outside the bytes to decode"
    checked(position, 0, len(view), what, "position", position)
    with memoryview(view) as whole, whole[position:] as data:
        places = check_record(data, 0, base + position, len(data), check_crc=check_crc)
        if isinstance(places, StopReason):
            raise FormatError(f"{places.name}: no record at physical offset {base + position}")
        row = row_of(data, 0, base + position, places)
        record = bytes(data[: row[Column.SIZE]])
    store_host_at = row[Column.STORE_HOST_AT]
    topic_end = places.topic_at + places.topic_size
    return StoredMessage(
        topic=topic_text(record[places.topic_at : topic_end]),
        queue_id=row[Column.QUEUE_ID],
        queue_offset=row[Column.QUEUE_OFFSET],
        physical_offset=row[Column.PHYSICAL_OFFSET],
        size=row[Column.SIZE],
        sys_flag=row[Column.SYS_FLAG],
        flag=row[Column.FLAG],
        born_timestamp_ms=row[Column.BORN_TIMESTAMP],
        born_host=decode_host(record[48 : places.store_time_at]),
        store_timestamp_ms=row[Column.STORE_TIMESTAMP],
        store_host=decode_host(record[store_host_at : places.tail_at]),
        reconsume_times=row[Column.RECONSUME_TIMES],
        prepared_transaction_offset=row[Column.PREPARED_OFFSET],
        body_crc=row[Column.BODY_CRC],
        raw_body=record[places.body_at : places.body_at + places.body_size],
        raw_properties=record[places.properties_at :],
    )
