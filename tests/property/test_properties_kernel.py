"""The kernel that splits property blocks, held to the separators and to the codec."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.format.properties import decode_properties
from rocketstore.native import columns as compiled
from support.guarded_memory import guarded
from support.oracle.properties import pairs
from support.scan_strategies import properties_blocks


def split(blocks, *, room=None, shift=0):
    buffer = np.frombuffer(b"##" + b"".join(blocks) + b"#", dtype=np.uint8)
    size = np.array([len(block) for block in blocks], dtype=np.int64)
    at = 2 + np.cumsum(size) - size + shift
    ends = np.zeros(len(blocks), dtype=np.int64)
    parts = np.zeros((int(size.sum()) + 1 if room is None else room, 4), dtype=np.int64)
    count, doubtful = compiled.split_properties(buffer, at, size, ends, parts)
    return buffer.tobytes(), count, doubtful, ends.tolist(), parts[: max(count, 0)].tolist()


@given(st.lists(properties_blocks() | st.binary(max_size=30), max_size=8))
def test_parts_are_those_between_the_separators(blocks):
    _, count, _, ends, parts = split(blocks)
    expected, expected_ends, begin = [], [], 2
    for block in blocks:
        expected += pairs(block, begin)
        expected_ends.append(len(expected))
        begin += len(block)
    assert (count, ends, parts) == (len(expected), expected_ends, expected)


@given(blocks=st.lists(properties_blocks() | st.binary(max_size=30), max_size=8))
def test_parts_are_what_the_codec_decodes(blocks):
    data, count, doubtful, ends, parts = split(blocks)
    assert count == len(parts) == (ends[-1] if ends else 0)
    begin = 0
    repeated = False
    for block, end in zip(blocks, ends, strict=True):
        found = [
            (data[name : name + n].decode("utf-8", "replace"),
             data[value : value + v].decode("utf-8", "replace"))
            for name, n, value, v in parts[begin:end]
        ]  # fmt: skip
        assert dict(found) == decode_properties(block)
        repeated |= len({data[name : name + n] for name, n, _, _ in parts[begin:end]}) < end - begin
        begin = end
    assert bool(doubtful) == repeated


@pytest.mark.parametrize("at_end", [True, False])
@given(blocks=st.lists(properties_blocks() | st.binary(max_size=30), min_size=1, max_size=5))
def test_no_byte_outside_the_buffer_is_touched(at_end, blocks):
    buffer = guarded(b"".join(blocks) or b"#", at_end=at_end)
    size = np.array([len(block) for block in blocks], dtype=np.int64)
    ends = np.zeros(len(blocks), dtype=np.int64)
    parts = np.zeros((len(buffer) + 1, 4), dtype=np.int64)
    count, _ = compiled.split_properties(buffer, np.cumsum(size) - size, size, ends, parts)
    assert count == sum(len(pairs(block, 0)) for block in blocks)


def test_many_names_are_doubtful_and_not_compared():
    def block(count):
        return b"\x02".join(b"n%d\x01v" % number for number in range(count))

    assert split([block(65)])[1:3] == (65, 0)
    assert split([block(66)])[1:3] == (66, 1)


@given(shift=st.sampled_from([-3, -(2**62), 2, 2**62]))
def test_a_block_outside_the_buffer_is_refused(shift):
    assert split([b"a\x01b"], shift=shift)[1] == -1


def test_too_little_room_is_refused():
    assert split([b"a\x01b\x02c\x01d"], room=1)[1] == -1
    assert split([b"a\x01b\x02c\x01d"], room=2)[1] == 2
