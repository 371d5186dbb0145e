"""CommitLog bytes made for a test, by a second, independent hand: struct only, no product code."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
HOST_V4 = bytes([10, 0, 0, 1]) + (1234).to_bytes(4, "big")
HOST_V6 = bytes.fromhex("20010db8000000000000000000000001") + (10911).to_bytes(4, "big")


def record_bytes(  # one argument per field that a test may want to bend
    physical_offset: int,
    *,
    body: bytes = b"body",
    topic: bytes = b"TopicTest",
    properties: bytes = b"",
    magic: int = MAGIC_V1,
    sys_flag: int = 0,
    queue_id: int = 0,
    queue_offset: int = 0,
    store_timestamp_ms: int = 1_600_000_000_123,
    born_timestamp_ms: int = 1_600_000_000_000,
    store_host: bytes | None = None,
    born_host: bytes | None = None,
    flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    crc: int | None = None,
) -> bytes:
    """Return one record; sysFlag's host bits choose the hosts, or say how long those given are.

    Source: CommitLog.MessageExtEncoder.encode.
    """
    stored_crc = (zlib.crc32(body) & 0x7FFFFFFF if body else 0) if crc is None else crc
    born_host = born_host or (HOST_V6 if sys_flag & 0x10 else HOST_V4)
    store_host = store_host or (HOST_V6 if sys_flag & 0x20 else HOST_V4)
    topic_length = struct.pack(">B" if magic == MAGIC_V1 else ">H", len(topic))
    rest = b"".join(
        (
            struct.pack(">IiiiqqIq", magic, stored_crc, queue_id, flag, queue_offset,
                        physical_offset, sys_flag & 0xFFFFFFFF, born_timestamp_ms),
            born_host,
            struct.pack(">q", store_timestamp_ms),
            store_host,
            struct.pack(">iqi", reconsume_times, prepared_transaction_offset, len(body)),
            body,
            topic_length,
            topic,
            struct.pack(">H", len(properties)),
            properties,
        )
    )  # fmt: skip
    return struct.pack(">i", 4 + len(rest)) + rest


def blank_bytes(remaining: int) -> bytes:
    return struct.pack(">iI", remaining, MAGIC_BLANK)


@dataclass
class SyntheticLog:
    """A CommitLog file under construction; remembers where its records are."""

    base: int = 0
    data: bytearray = field(default_factory=bytearray)
    records: list[tuple[int, int]] = field(default_factory=list)
    """(position, size) of each record."""

    def add(self, **fields: object) -> SyntheticLog:
        """Append a record that states its true address."""
        position = len(self.data)
        record = record_bytes(self.base + position, **fields)  # type: ignore[arg-type]
        self.records.append((position, len(record)))
        self.data += record
        return self

    def garbage(self, noise: bytes) -> SyntheticLog:
        self.data += noise
        return self

    def zeros(self, size: int) -> SyntheticLog:
        self.data += bytes(size)
        return self

    def blank(self, remaining: int = 100) -> SyntheticLog:
        """Close the file with a BLANK and something arbitrary behind it."""
        self.data += blank_bytes(remaining) + b"\xee" * (remaining - 8)
        return self
