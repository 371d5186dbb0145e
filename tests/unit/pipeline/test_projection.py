"""Columns built as arrays say what the codecs say of each record alone."""

import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.format import stored_message
from rocketstore.format.properties import decode_properties
from rocketstore.pipeline import projection
from rocketstore.pipeline.projection import record_batches
from rocketstore.scan.arrow import property_maps, timestamps
from rocketstore.scan.scanner import scan_window
from support.scan_strategies import record_fields, whole_properties
from support.synthetic_log import SyntheticLog


def scanned(log):
    (batch,) = scan_window(bytes(log.data), base=log.base)
    return batch.columns


def log_with_properties(blocks):
    log = SyntheticLog(0)
    for block in blocks:
        log.add(properties=block)
    return scanned(log)


@given(st.lists(whole_properties(), min_size=1, max_size=8))
def test_maps_of_properties_are_what_the_codec_decodes(blocks):
    maps = property_maps(log_with_properties(blocks))
    maps.validate(full=True)
    assert maps.to_pylist() == [list(decode_properties(block).items()) for block in blocks]


def test_of_a_name_stored_twice_the_later_value_wins_at_the_earlier_place():
    block = b"a\x011\x02b\x012\x02a\x013"
    maps = property_maps(log_with_properties([b"a\x010", block, b""]))
    assert maps.to_pylist() == [[("a", "0")], [("a", "3"), ("b", "2")], []]


@given(st.lists(record_fields(is_whole=True), min_size=1, max_size=6))
def test_keys_are_split_at_blanks(fields):
    log = SyntheticLog(0)
    for one in fields:
        log.add(**one)
    columns = scanned(log)
    schema = pa.schema([("keys", pa.list_(pa.field("element", pa.string())))])
    (batch,) = record_batches(columns, schema, broker="b", decompress=True)
    assert batch.column(0).to_pylist() == [
        [key for key in decode_properties(one["properties"]).get("KEYS", "").split(" ") if key]
        for one in fields
    ]


BODY = pa.schema([("physicalOffset", pa.int64()), ("body", pa.binary())])


def bodies(log, *, decompress=True):
    batches = list(record_batches(scanned(log), BODY, broker="b", decompress=decompress))
    return [body for batch in batches for body in batch.column("body").to_pylist()], batches


def test_only_bodies_that_say_zlib_are_inflated():
    packed, other = zlib.compress(b"hello" * 50), b"\x04\x22\x4d\x18 lz4"
    log = SyntheticLog(0)
    log.add(body=packed, sys_flag=1)
    log.add(body=b"plain", sys_flag=0)
    log.add(body=packed, sys_flag=0x301)
    log.add(body=other, sys_flag=0x101)
    log.add(body=packed, sys_flag=0)
    log.add(body=b"no zlib at all", sys_flag=1)
    log.add(body=b"", sys_flag=1)
    log.add(body=packed[:-1], sys_flag=1)
    inflated, _ = bodies(log)
    hello = b"hello" * 50
    assert inflated == [hello, b"plain", hello, other, packed, b"no zlib at all", b"", packed[:-1]]
    stored, _ = bodies(log, decompress=False)
    assert stored == [packed, b"plain", packed, other, packed, b"no zlib at all", b"", packed[:-1]]


def test_inflated_bodies_end_a_batch_before_it_grows_too_large(monkeypatch):
    monkeypatch.setattr(projection, "INFLATED_BATCH_BYTES", 5000)
    monkeypatch.setattr(stored_message, "INFLATED_BODY_LIMIT_BYTES", 50_000)
    log = SyntheticLog(0)
    contents = []
    for number in range(20):
        content = bytes([number]) * 1500
        packed = number % 3 != 0
        log.add(body=zlib.compress(content) if packed else content, sys_flag=int(packed))
        contents.append(content)
    bomb = zlib.compress(bytes(60_000))
    log.add(body=bomb, sys_flag=1)
    found, batches = bodies(log)
    assert found == [*contents, bomb]
    assert len(batches) > 3
    offsets = [at for batch in batches for at in batch.column("physicalOffset").to_pylist()]
    assert offsets == scanned(log).physical_offset.tolist()


@pytest.mark.parametrize("broken", [-(2**63), 2**63 - 1, 253_402_300_800_000, -62_135_596_800_001])
def test_a_time_that_no_calendar_has_is_null(broken):
    array = timestamps(np.array([0, broken, 1_700_000_000_123], dtype=np.int64))
    assert array.type == pa.timestamp("us", "UTC")
    assert array.cast(pa.int64()).to_pylist() == [0, None, 1_700_000_000_123_000]
