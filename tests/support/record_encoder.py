"""Records of the CommitLog as 4.9 writes them, by `struct`: an oracle for `native.log_end`."""

import struct

from rocketstore.errors import FieldRangeError
from rocketstore.format.host import HOST_V4_SIZE, HOST_V6_SIZE
from rocketstore.format.record import HOST_V6_FLAGS, MESSAGE_MAGIC_V1, body_crc
from rocketstore.message import BORN_HOST_V6_FLAG, STORE_HOST_V6_FLAG

_HOST_SIZES = {
    born_flag | store_flag: (born_size, store_size)
    for born_flag, born_size in ((0, HOST_V4_SIZE), (BORN_HOST_V6_FLAG, HOST_V6_SIZE))
    for store_flag, store_size in ((0, HOST_V4_SIZE), (STORE_HOST_V6_FLAG, HOST_V6_SIZE))
}


def encode_record(
    *,
    topic: bytes,
    body: bytes,
    properties: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    born_timestamp_ms: int,
    born_host: bytes,
    store_timestamp_ms: int,
    store_host: bytes,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    crc: int | None = None,
) -> bytes:
    """Return the V1 record of these fields, bytes as they are to be stored.

    Hosts are 8 or 20 bytes of `host.encode_host`, as the bits of `host_flags` in `sys_flag` say. A
    checksum is given only to repeat a record exactly as it was. Raises `FieldRangeError` where a
    field does not fit its width. Source: CommitLog.MessageExtEncoder.encode.
    """
    hosts = (len(born_host), len(store_host))
    if hosts != _HOST_SIZES[sys_flag & HOST_V6_FLAGS]:
        raise FieldRangeError(
            f"hosts do not have the lengths that sys_flag {sys_flag:#x} says",
            field="born_host, store_host",
            expected=_HOST_SIZES[sys_flag & HOST_V6_FLAGS],
            found=hosts,
        )
    layout = f">iIiiiqqiq{hosts[0]}sq{hosts[1]}siqi{len(body)}sb{len(topic)}sh{len(properties)}s"
    fields = (
        struct.calcsize(layout), MESSAGE_MAGIC_V1, body_crc(body) if crc is None else crc, queue_id,
        flag, queue_offset, physical_offset, sys_flag, born_timestamp_ms, born_host,
        store_timestamp_ms, store_host, reconsume_times, prepared_transaction_offset, len(body),
        body, len(topic), topic, len(properties), properties,
    )  # fmt: skip
    try:
        return struct.pack(layout, *fields)
    except struct.error as error:
        raise FieldRangeError(f"a field does not fit its width: {error}", found=fields) from error
