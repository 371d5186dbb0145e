"""Where 4.9.3 ends a log: its record check, its start file, its queue ends."""

import itertools
import struct

import numpy as np
import pytest

from rocketstore.config import StoreConfig
from rocketstore.format.checkpoint import Checkpoint
from rocketstore.format.queue_entry import FILLER_BYTES
from rocketstore.format.record import encode_blank
from rocketstore.storage.recovery.recovery_compatible import (
    check_as_java,
    compatible_end,
    compatible_queue_end,
    start_after_crash,
)
from support.oracle.codecs import encode_entry
from support.synthetic_log import MAGIC_V2, record_bytes

FILE_BYTES = 1000
CONFIG = StoreConfig()
HOST = bytes([127, 0, 0, 1, 0, 0, 0, 80])


def record(
    offset: int, *, body: bytes = b"body", topic: bytes = b"topic", properties: bytes = b"",
    store_timestamp_ms: int = 5000,
) -> bytes:  # fmt: skip
    return record_bytes(
        offset, body=body, topic=topic, properties=properties, store_timestamp_ms=store_timestamp_ms
    )


class MemoryFile:
    """A log file of 1,000 bytes."""

    def __init__(self, base: int, content: bytes) -> None:
        self.base = base
        self.size = FILE_BYTES
        self.array = np.frombuffer(content.ljust(FILE_BYTES, b"\0"), np.uint8).copy()


def full_file(base: int, *, store_timestamp_ms: int = 5000) -> MemoryFile:
    content = b""
    while len(content) < 800:
        content += record(base + len(content), store_timestamp_ms=store_timestamp_ms)
    return MemoryFile(base, content + encode_blank(FILE_BYTES - len(content)))


def size_of(content: bytes, *, check_crc: bool = True) -> int | None:
    return check_as_java(memoryview(content), 0, check_crc=check_crc)


def test_an_intact_record_is_accepted_wherever_it_stands():
    for offset in (0, 123_456):
        content = record(offset)
        assert size_of(content) == len(content)


def test_a_blank_of_any_size_is_accepted():
    assert size_of(struct.pack(">iI", 7, 0xCBD43194)) == 0
    assert size_of(struct.pack(">iI", -1, 0xCBD43194)) == 0


def test_the_magic_of_5_is_refused():
    content = bytearray(record(0))
    content[7] = 0xAB
    assert size_of(bytes(content)) is None
    newer = [MemoryFile(at, record_bytes(at, magic=MAGIC_V2)) for at in (0, FILE_BYTES)]
    assert compatible_end(newer[:1], CONFIG).end == 0
    late = Checkpoint(1 << 60, 1 << 60, 0)
    assert start_after_crash([full_file(0), newer[1]], late, index_counts=False) == 0


def test_a_wrong_checksum_is_refused_unless_nobody_looks():
    content = bytearray(record(0))
    content[90] ^= 1
    assert size_of(bytes(content)) is None
    assert size_of(bytes(content), check_crc=False) == len(content)


def test_the_checksum_of_an_empty_body_is_not_looked_at():
    content = bytearray(record(0, body=b""))
    content[8:12] = b"\1\2\3\4"
    assert size_of(bytes(content)) == len(content)


def test_negative_lengths_count_as_nothing():
    content = bytearray(record(0, properties=b""))
    content[-2:] = b"\xff\xff"
    assert size_of(bytes(content)) == len(content)
    content = bytearray(record(0, body=b""))
    content[84:88] = b"\xff\xff\xff\xff"
    assert size_of(bytes(content)) == len(content)


@pytest.mark.parametrize("cut", [1, 7, 8, 40, 80, 92])
def test_a_record_that_the_file_cuts_off_is_refused(cut):
    assert size_of(record(0)[:cut]) is None


@pytest.mark.parametrize("total", [-1, 0, 90, 2**31 - 1])
def test_a_wrong_length_is_refused(total):
    content = bytearray(record(0))
    content[:4] = struct.pack(">i", total)
    assert size_of(bytes(content)) is None


@pytest.mark.parametrize(
    ("level", "is_accepted"),
    [
        ("3", True), ("-3", True), ("+3", True), ("x", False), ("", True),
        ("0" * 5000 + "3", True), ("3" * 5000, False),
    ],
)  # fmt: skip
def test_a_delay_that_is_no_number_is_refused_in_the_delay_topic(level, *, is_accepted):
    properties = f"DELAY\x01{level}\x02".encode()
    delayed = record(0, topic=b"SCHEDULE_TOPIC_XXXX", properties=properties)
    assert (size_of(delayed) is not None) == is_accepted
    assert size_of(record(0, properties=properties)) is not None


def test_the_log_ends_at_the_first_refused_record_whatever_follows():
    first, second = full_file(0), full_file(FILE_BYTES)
    first.array[200 + 88] ^= 0xFF
    broken = 200 // len(record(0)) * len(record(0))
    found = compatible_end([first, second], CONFIG)
    assert found.end == broken
    assert found.reason in {"bad crc", "bad fields"}


def test_a_misaddressed_record_does_not_end_the_log():
    file = full_file(0)
    file.array[28:36] = 0x11
    found = compatible_end([file, MemoryFile(FILE_BYTES, record(FILE_BYTES))], CONFIG)
    assert found.end == FILE_BYTES + len(record(0))


def test_a_blank_leads_to_the_next_file_and_counts_only_then():
    alone = compatible_end([full_file(0)], CONFIG)
    assert alone.end < FILE_BYTES
    followed = compatible_end([full_file(0), MemoryFile(FILE_BYTES, b"")], CONFIG)
    assert followed.end == FILE_BYTES


def test_a_missing_file_ends_the_log():
    found = compatible_end([full_file(0), full_file(2 * FILE_BYTES)], CONFIG)
    assert found.end < FILE_BYTES
    assert found.reason == "the next file is missing"


def test_a_clean_start_looks_at_the_last_three_files():
    files = [full_file(n * FILE_BYTES) for n in range(10)]
    starts = [compatible_end(files[:n], CONFIG).start // FILE_BYTES for n in (0, 1, 3, 4, 10)]
    assert starts == [0, 0, 0, 1, 7]


@pytest.mark.parametrize(
    ("physic", "logics", "index", "expected"),
    [(0, 0, 0, 0), (9000, 9000, 0, 1), (9000, 50_000, 50_000, 1), (50_000, 50_000, 0, 2)],
)
def test_a_start_after_a_crash_is_the_newest_file_older_than_the_checkpoint(
    physic, logics, index, expected
):
    files = [full_file(n * FILE_BYTES, store_timestamp_ms=5000 * n + 1000) for n in range(3)]
    checkpoint = Checkpoint(physic, logics, index)
    assert start_after_crash(files, checkpoint, index_counts=False) == expected


def test_the_index_counts_only_when_it_is_asked_for():
    files = [full_file(n * FILE_BYTES, store_timestamp_ms=5000 * n + 1000) for n in range(3)]
    checkpoint = Checkpoint(50_000, 50_000, 0)
    for is_there, is_safe in itertools.product((False, True), repeat=2):
        config = StoreConfig(message_index_enable=is_there, message_index_safe=is_safe)
        expected = 0 if is_there and is_safe else 2 * FILE_BYTES
        assert compatible_end(files, config, checkpoint).start == expected


def test_a_queue_ends_at_its_first_invalid_entry_of_the_last_three_files():
    entry = encode_entry(100, 100, 7)
    array = np.frombuffer(FILLER_BYTES + entry * 2 + bytes(20) + entry, np.uint8)
    assert compatible_queue_end([(0, array)]) == 60
    full = np.frombuffer(entry * 5, np.uint8)
    assert compatible_queue_end([(100 * n, full) for n in range(4)]) == 400
    assert compatible_queue_end([]) == 0
