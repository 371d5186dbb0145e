"""Compiled kernels and their plain-Python references give the same answer, whatever the bytes."""

import re
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.format.java_hash import key_hash, string_hash
from rocketstore.format.properties import decode_properties
from rocketstore.scan.columns import COLUMN_COUNT, Column, RecordColumns, StopReason, new_columns
from support.guarded_memory import guarded
from support.oracle import resync as reference_resync
from support.oracle import walk as reference_walk
from support.scan_strategies import damaged_logs, texts_or_noise, whole_properties
from support.synthetic_log import MAGIC_V1, MAGIC_V2, record_bytes

compiled_resync = pytest.importorskip("rocketstore.native.resync")
compiled_slices = pytest.importorskip("rocketstore.native.columns")
compiled_walk = pytest.importorskip("rocketstore.native.walk")


CHECK_CRC = True


def as_array(data: bytes | bytearray) -> np.ndarray:
    return guarded(data)


@given(texts_or_noise(), st.sampled_from([MAGIC_V1, MAGIC_V2]))
def test_the_hash_of_a_topic_is_that_of_java_also_for_malformed_utf8(text, magic):
    text = text[:127].rstrip(b"\0")
    cols = new_columns(1)
    array = as_array(record_bytes(0, topic=text, magic=magic))
    assert compiled_walk.walk(array, 0, 1, 0, array.size, CHECK_CRC, cols)[0] == 1
    assert cols[0, Column.TOPIC_HASH] == string_hash(text.decode("utf-8", "replace"))


@given(texts_or_noise(), texts_or_noise())
def test_the_hash_of_a_key_is_that_of_the_joined_text(topic, key):
    topic, key = (part.decode("utf-8", "replace") for part in (topic, key))
    topic, key = topic[:30].rstrip("\0"), re.sub("[ \1\2\0]", "", key)
    array = as_array(record_bytes(0, topic=topic.encode(), properties=b"KEYS\1" + key.encode()))
    cols = new_columns(1)
    assert compiled_walk.walk(array, 0, 1, 0, array.size, CHECK_CRC, cols)[0] == 1
    rows, hashes = np.zeros(2, np.int64), np.zeros(2, np.int64)
    found = compiled_slices.list_items(array, cols, rows, hashes)
    assert hashes[:found].tolist() == ([key_hash(topic, key)] if key else [])


@given(damaged_logs(), st.data())
def test_the_compiled_walk_is_the_reference_walk(log, data):
    array = as_array(log.data)
    size = len(array)
    position = data.draw(
        st.sampled_from([at for at, _ in log.records] or [0]) | st.integers(0, size)
    )
    stop = data.draw(st.just(size) | st.integers(0, size + 9))
    file_size = data.draw(st.just(size) | st.integers(0, size + 200))
    check_crc = data.draw(st.booleans())
    rows = data.draw(st.sampled_from([0, 1, 3, 64]))
    results = []
    for module in (compiled_walk, reference_walk):
        cols = new_columns(rows)
        cols[:] = -7
        result = module.walk(array, position, stop, log.base, file_size, check_crc, cols)
        results.append((tuple(int(n) for n in result), cols.tolist()))
    assert results[0] == results[1]


@given(damaged_logs(), st.data())
def test_the_compiled_resync_is_the_reference_resync(log, data):
    array = as_array(log.data)
    size = len(array)
    position = data.draw(st.integers(0, size + 2))
    stop = data.draw(st.just(size) | st.integers(0, size + 9))
    file_size = data.draw(st.just(size) | st.integers(0, size + 200))
    compiled, reference = (
        module.resync(array, position, stop, log.base, file_size)
        for module in (compiled_resync, reference_resync)
    )
    assert compiled == reference
    assert compiled == -1 or position <= compiled < stop


@given(damaged_logs(), st.integers(0, 3000), st.data())
def test_a_budget_changes_what_resync_costs_and_never_what_it_finds(log, budget, data):
    array = as_array(log.data)
    size = len(array)
    position = data.draw(st.integers(0, size))
    expected = reference_resync.resync(array, position, size, log.base, size)
    assert expected == compiled_resync.resync(array, position, size, log.base, size)
    assert (
        expected == compiled_resync.resync_within(array, position, size, log.base, size, budget)[0]
    )


BLOCK_BYTES = 4096
"""How far apart the checksums of a prefix stand that the search keeps."""


def forged_headers(size: int, step: int, *, last_is_true: bool) -> np.ndarray:
    """Return garbage in which each header says that its body goes on to the end."""
    content = bytearray(b"\x07" * size)
    end = size - 5
    content[end - 4 : end] = b"\x01T\x00\x00"  # topic, and no properties
    starts = [*range(0, size // 2, step), size // 2]
    for at in starts:
        content[at : at + 8] = (end - at).to_bytes(4, "big") + b"\xda\xa3\x20\xa7"
        content[at + 28 : at + 36] = at.to_bytes(8, "big")
        content[at + 36 : at + 40] = bytes(4)
        content[at + 84 : at + 88] = (end - 4 - at - 88).to_bytes(4, "big")
    if last_is_true:
        at = starts[-1]
        crc = zlib.crc32(content[at + 88 : end - 4]) & 0x7FFFFFFF
        content[at + 8 : at + 12] = crc.to_bytes(4, "big")
    return np.frombuffer(bytes(content), np.uint8)


@pytest.mark.parametrize("last_is_true", [False, True])
def test_forged_headers_with_long_bodies_cost_blocks_and_not_bodies(last_is_true):
    size, step = 4 << 20, 500
    buffer = forged_headers(size, step, last_is_true=last_is_true)
    headers = size // 2 // step + 2
    found, spent = compiled_resync.resync_within(buffer, 0, size, 0, size, 1 << 20)
    assert found == (size // 2 if last_is_true else -1)
    bodies = headers * size * 3 // 4
    assert size < spent <= (1 << 20) + size + headers * 2 * BLOCK_BYTES < bodies // 100


@given(damaged_logs(), st.data())
def test_resync_is_the_first_position_that_a_walk_believes(log, data):
    array = as_array(log.data)
    size = len(array)
    position = data.draw(st.integers(0, size))
    believed = (
        at
        for at in range(position, size)
        if not isinstance(
            verdict := reference_walk.check_record(array.data, at, log.base, size, check_crc=True),
            StopReason,
        )
        or verdict is StopReason.BLANK
    )
    assert compiled_resync.resync(array, position, size, log.base, size) == next(believed, -1)


@given(st.binary(max_size=100), st.integers(0, 300), st.integers(0, 300), st.integers(0, 500))
def test_the_last_written_byte_is_found(data, zeros, position, stop):
    array = as_array(data + bytes(zeros))
    expected = max((at for at in range(position, min(stop, len(array))) if array[at]), default=-1)
    assert compiled_resync.last_nonzero(array, position, stop) == expected


@given(whole_properties())
def test_tags_and_keys_are_those_that_the_properties_decode_to(block):
    array = as_array(record_bytes(0, properties=block))
    properties = decode_properties(block)
    for module in (compiled_walk, reference_walk):
        cols = new_columns(1)
        assert module.walk(array, 0, len(array), 0, len(array), CHECK_CRC, cols)[0] == 1
        columns = RecordColumns(array, cols, 0)
        for name, at, size in (
            ("TAGS", Column.TAGS_AT, Column.TAGS_SIZE),
            ("KEYS", Column.KEYS_AT, Column.KEYS_SIZE),
            ("UNIQ_KEY", Column.UNIQUE_KEY_AT, Column.UNIQUE_KEY_SIZE),
        ):
            value = columns.bytes_of(0, at, size).decode("utf-8", "replace")
            assert value == properties.get(name, "")
        assert cols[0, Column.TAGS_CODE] == string_hash(properties.get("TAGS", ""))
        delay = properties.get("DELAY", "").removeprefix("+")
        is_number = delay.isascii() and delay.isdecimal() and int(delay) < 2**31
        assert cols[0, Column.DELAY_LEVEL] == (int(delay) if is_number else 0)


@given(st.binary(max_size=50), st.lists(st.tuples(st.integers(-2, 52), st.integers(-2, 30))))
def test_slices_are_copied_and_have_the_crcs_of_the_c_library_or_are_refused(data, places):
    at = np.array([place for place, _ in places], dtype=np.int64)
    sizes = np.array([size for _, size in places], dtype=np.int64)
    is_inside = all(min(place, size) >= 0 and place + size <= len(data) for place, size in places)
    slices = [data[place:][:size] for place, size in places] if is_inside else []
    target = np.zeros(100, dtype=np.uint8)
    written = compiled_slices.copy_slices(as_array(data), at, sizes, target)
    if is_inside and sum(map(len, slices)) <= len(target):
        assert target[:written].tobytes() == b"".join(slices)
        assert not target[written:].any()
    else:
        assert written == -1
    found = np.zeros(len(places), dtype=np.int64)
    count = compiled_slices.slice_crcs(as_array(data), at, sizes, found)
    assert count == (len(places) if is_inside else -1)
    if is_inside:
        assert found.tolist() == [zlib.crc32(one) & 0x7FFFFFFF for one in slices]
    if places:
        assert compiled_slices.slice_crcs(as_array(data), at, sizes, found[:-1]) == -1


@pytest.mark.parametrize("module", [compiled_walk, reference_walk])
def test_a_matrix_of_another_width_is_refused(module):
    cols = np.zeros((4, COLUMN_COUNT - 1), dtype=np.int64)
    with pytest.raises(ValueError, match="COLUMN_COUNT"):
        module.walk(as_array(record_bytes(0)), 0, 100, 0, 100, CHECK_CRC, cols)
