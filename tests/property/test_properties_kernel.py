"""The kernel that splits property blocks, held to its reference and to the codec."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.format.properties import decode_properties
from rocketstore.native import columns as compiled
from support.guarded_memory import guarded
from support.oracle import properties as reference
from support.scan_strategies import properties_blocks

BOTH = pytest.mark.parametrize("module", [compiled, reference], ids=["compiled", "reference"])


def split(module, blocks, *, room=None, shift=0):
    buffer = np.frombuffer(b"##" + b"".join(blocks) + b"#", dtype=np.uint8)
    size = np.array([len(block) for block in blocks], dtype=np.int64)
    at = 2 + np.cumsum(size) - size + shift
    ends = np.zeros(len(blocks), dtype=np.int64)
    parts = np.zeros((int(size.sum()) + 1 if room is None else room, 4), dtype=np.int64)
    count, doubtful = module.split_properties(buffer, at, size, ends, parts)
    return buffer.tobytes(), count, doubtful, ends.tolist(), parts[: max(count, 0)].tolist()


@given(st.lists(properties_blocks() | st.binary(max_size=30), max_size=8))
def test_compiled_and_reference_agree(blocks):
    assert split(compiled, blocks) == split(reference, blocks)


@BOTH
@given(blocks=st.lists(properties_blocks(), max_size=8))
def test_parts_are_what_the_codec_decodes(module, blocks):
    data, count, doubtful, ends, parts = split(module, blocks)
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
    assert count == sum(len(reference._pairs(block, 0)) for block in blocks)


@BOTH
def test_many_names_are_doubtful_and_not_compared(module):
    def block(count):
        return b"\x02".join(b"n%d\x01v" % number for number in range(count))

    assert split(module, [block(65)])[1:3] == (65, 0)
    assert split(module, [block(66)])[1:3] == (66, 1)


@BOTH
@given(shift=st.sampled_from([-3, -(2**62), 2, 2**62]))
def test_a_block_outside_the_buffer_is_refused(module, shift):
    assert split(module, [b"a\x01b"], shift=shift)[1] == -1


@BOTH
def test_too_little_room_is_refused(module):
    assert split(module, [b"a\x01b\x02c\x01d"], room=1)[1] == -1
    assert split(module, [b"a\x01b\x02c\x01d"], room=2)[1] == 2
