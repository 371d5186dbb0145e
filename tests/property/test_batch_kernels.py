"""Compiled batch kernels and plain-Python references: the same bytes, or the same refusal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstore.format.client_batch import encode_client_batch
from rocketstore.format.record import decode_record
from rocketstore.scan.batch_state import (
    BATCH_COLUMN_COUNT,
    NO_TIMESTAMP,
    BatchColumn,
    BatchRefusal,
)
from rocketstore.scan.reference import batch as reference

compiled = pytest.importorskip("rocketstore.scan.compiled.batch")

V4_HOST = bytes([10, 0, 0, 1, 0, 0, 4, 210])
V6_HOST = bytes(range(16)) + bytes([0, 0, 4, 210])
ROOM = 20_000

INT32 = st.integers(-(2**31), 2**31 - 1)
BLOCKS = st.sampled_from([b"", b"TAGS\x01a", b"TAGS\x01a\x02", b"\x02", "schlüssel\x01ß".encode()])
MESSAGES = st.lists(st.tuples(INT32, st.binary(max_size=200), BLOCKS), max_size=20)


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def table_of(batch: bytes, common: tuple[int, int, int, int], rows: int, module):
    table = np.full((rows, BATCH_COLUMN_COUNT), -7, np.int64)
    return module.client_batch_table(array(batch), table, common), table


@given(MESSAGES, st.integers(0, 30))
def test_a_batch_is_parsed_alike_also_into_a_table_that_is_too_small(messages, rows):
    batch = encode_client_batch(messages)
    common = (0x10, 5, len(batch), 2)
    (ours, table), (expected, other) = (
        table_of(batch, common, rows, module) for module in (compiled, reference)
    )
    assert ours == expected == len(messages)
    assert np.array_equal(table, other)
    filled = min(rows, len(messages))
    assert table[:filled, BatchColumn.BODY_SIZE].tolist() == [
        len(body) for _, body, _ in messages[:filled]
    ]


@given(st.binary(max_size=300) | MESSAGES.map(encode_client_batch), st.integers(0, 400), INT32)
def test_anything_is_parsed_alike_without_leaving_the_batch(batch, cut, number):
    batch = batch[:cut]
    if len(batch) >= 20 and cut % 3 == 0:
        batch = batch[:16] + number.to_bytes(4, "big", signed=True) + batch[20:]
    common = (0, NO_TIMESTAMP, 0, 0)
    (ours, table), (expected, other) = (
        table_of(batch, common, 40, module) for module in (compiled, reference)
    )
    assert ours == expected
    if ours >= 0:
        assert np.array_equal(table, other)


@settings(max_examples=300)
@given(
    messages=MESSAGES,
    more=BLOCKS,
    position=st.integers(0, ROOM),
    born=st.sampled_from([NO_TIMESTAMP, 0, 1_700_000_000_000]),
    hosts=st.tuples(st.booleans(), st.booleans()),
    numbers=st.tuples(INT32, st.integers(0, 2**40), st.integers(0, 2**60)),
)
def test_rows_become_the_same_records(messages, more, position, born, hosts, numbers):
    batch = encode_client_batch(messages)
    born_host, store_host = (V6_HOST if is_v6 else V4_HOST for is_v6 in hosts)
    sys_flag = hosts[0] * 0x10 | hosts[1] * 0x20
    queue_id, queue_offset, base = numbers
    results = []
    for module in (compiled, reference):
        count, table = table_of(batch, (sys_flag, born, len(batch), 3), 20, module)
        target = np.zeros(ROOM, np.uint8)
        size = module.write_batch(
            array(batch + born_host),
            table,
            (array(b"orders"), array(store_host), array(more)),
            (count, queue_id, queue_offset, 1_700_000_000_123, base),
            target,
            position,
        )
        results.append((size, target.tobytes(), table[:count].tolist() if size >= 0 else None))
    assert results[0] == results[1]
    size, content, rows = results[0]
    if size < 0:
        assert size == BatchRefusal.NO_ROOM
        assert content == bytes(ROOM)
        return
    at = position
    for number, (flag, body, block) in enumerate(messages):
        record = decode_record(content, at, base=base)
        assert (record.flag, record.raw_body) == (flag, body)
        assert record.raw_properties.startswith(block)
        assert record.raw_properties.endswith(more)
        assert (record.queue_id, record.queue_offset) == (queue_id, queue_offset + number)
        assert record.born_timestamp_ms == (1_700_000_000_123 if born == NO_TIMESTAMP else born)
        assert record.size == rows[number][BatchColumn.RECORD_SIZE]
        at += record.size
    assert at == position + size


@given(st.lists(st.tuples(*[st.integers(-5, 60)] * BATCH_COLUMN_COUNT), min_size=1, max_size=4))
def test_a_table_of_anything_is_refused_alike_or_written_alike(rows):
    results = []
    for module in (compiled, reference):
        table = np.array(rows, np.int64)
        table[:, BatchColumn.SYS_FLAG] &= 0x1F  # the store host is IPv4
        target = np.zeros(2000, np.uint8)
        size = module.write_batch(
            array(bytes(range(50))),
            table,
            (array(b"t"), array(V4_HOST), array(b"")),
            (len(rows), 0, 0, 1, 0),
            target,
            0,
        )
        results.append((size, target.tobytes()))
    assert results[0] == results[1]


def test_properties_that_are_too_long_together_are_refused_before_anything_is_written():
    batch = encode_client_batch([(0, b"", b""), (0, b"", b"x" * 20_000)])
    for module in (compiled, reference):
        count, table = table_of(batch, (0, NO_TIMESTAMP, len(batch), 0), 2, module)
        target = np.zeros(100_000, np.uint8)
        size = module.write_batch(
            array(batch + V4_HOST),
            table,
            (array(b"t"), array(V4_HOST), array(b"y" * 12_767)),
            (count, 0, 0, 0, 0),
            target,
            0,
        )
        assert size == BatchRefusal.PROPERTIES_TOO_LONG
        assert not target.any()


@pytest.mark.parametrize("module", [compiled, reference])
def test_a_count_or_a_host_that_cannot_be_is_refused(module):
    table = np.zeros((1, BATCH_COLUMN_COUNT), np.int64)
    target = np.zeros(500, np.uint8)
    source = array(V4_HOST)
    for common, count in (
        ((b"t", V6_HOST, b""), 1),
        ((b"t" * 128, V4_HOST, b""), 1),
        ((b"t", V4_HOST, b""), 2),
        ((b"t", V4_HOST, b""), -1),
    ):
        arrays = tuple(array(part) for part in common)
        size = module.write_batch(source, table, arrays, (count, 0, 0, 0, 0), target, 0)
        assert size == BatchRefusal.BAD_TABLE
