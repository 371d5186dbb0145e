"""record: any bytes are a message that is exactly those bytes, or a FormatError."""

import struct
import zlib

import msgspec
from hypothesis import strategies as st

from rocketstore.errors import FormatError
from rocketstore.format.host import encode_host
from rocketstore.format.record import MESSAGE_MAGIC_V1
from rocketstore.format.stored_message import StoredMessage
from support.oracle.record import decode_record
from support.synthetic_log import record_bytes
from support.vectors import vector

GOLDEN = tuple(
    vector(f"record/{name}")
    for name in ("one-message", "ipv6-hosts", "compressed-unicode", "empty-body", "v2-long-topic")
)
ANY = st.binary(max_size=400)


def check(data: bytes) -> None:
    """Decode from both ends of the law: as the bytes are, and with address and CRC put right."""
    check_as_it_is(data)
    check_as_it_is(resealed(data))


def check_as_it_is(data: bytes) -> None:
    base = int.from_bytes(data[28:36], "big", signed=True)
    for check_crc in (True, False):
        try:
            message = decode_record(data, 0, base=base, check_crc=check_crc)
        except FormatError as error:
            str(error)
            continue
        assert message.size <= len(data)
        assert msgspec.json.encode(message.to_dict())
        check_body(message)
        check_encoded_again(message, data)


def check_body(message: StoredMessage) -> None:
    try:
        assert isinstance(message.body, bytes)
    except FormatError:
        assert message.is_compressed


def check_encoded_again(message: StoredMessage, data: bytes) -> None:
    if data[4:8] != MESSAGE_MAGIC_V1.to_bytes(4, "big") or "\ufffd" in message.topic:
        return
    born_size = 20 if message.sys_flag & 0x10 else 8
    store_at = 56 + born_size
    encoded = record_bytes(
        topic=message.topic.encode("utf-8"),
        body=message.raw_body,
        properties=message.raw_properties,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        born_timestamp_ms=message.born_timestamp_ms,
        # Hosts as they stand: a broken port has no text that could be encoded.
        born_host=data[48 : 48 + born_size],
        store_timestamp_ms=message.store_timestamp_ms,
        store_host=data[store_at : store_at + (20 if message.sys_flag & 0x20 else 8)],
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        crc=message.body_crc,
    )
    assert encoded == data[: message.size]


def resealed(data: bytes) -> bytes:
    """Return `data` with total size, magic and CRC that let the decoder look further."""
    if len(data) < 91:
        return data
    changed = bytearray(data)
    struct.pack_into(">i", changed, 0, len(data))
    if data[7] != 0xAB:
        struct.pack_into(">I", changed, 4, MESSAGE_MAGIC_V1)
    head = 88 + (12 if data[39] & 0x10 else 0) + (12 if data[39] & 0x20 else 0)
    body_size = int.from_bytes(data[head - 4 : head], "big")
    crc = zlib.crc32(data[head : head + body_size]) & 0x7FFFFFFF
    struct.pack_into(">i", changed, 8, crc)
    return bytes(changed)


def test_golden_records_are_messages():
    for data in GOLDEN:
        base = int.from_bytes(data[28:36], "big")
        assert decode_record(data, 0, base=base).size == len(data)


def test_host_of_a_message_is_encoded_again_when_its_port_is_one():
    for data in GOLDEN:
        base = int.from_bytes(data[28:36], "big")
        message = decode_record(data, 0, base=base)
        assert data[48:].startswith(encode_host(message.born_host))
