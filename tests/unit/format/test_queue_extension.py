"""queue_extension: the unit that a queue entry refers to, and how it refers to it."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.errors import FieldRangeError
from rocketstore.format.queue_entry import ENTRY_STRUCT, MAX_EXT_ADDRESS
from rocketstore.format.queue_extension import (
    END_MARK,
    LEAST_UNIT_BYTES,
    MAX_POSITION,
    MOST_UNIT_BYTES,
    ExtensionUnit,
    address_of,
    decode_unit,
    encode_unit,
    position_of,
)
from support.golden_stores import golden_store
from support.page_tables import DOCS
from support.vectors import vector

INT64 = st.integers(-(2**63), 2**63 - 1)
units = st.builds(ExtensionUnit, INT64, INT64, st.binary(max_size=200))

FIRST = vector("queue-extension/first-units")


def test_worked_example_of_the_page_is_that_of_cqext():
    page = (DOCS / "format/queue-extension.md").read_text("utf-8").replace(" ", "")
    assert FIRST[:44].hex() in page.replace("\n", "")


def test_unit_is_what_the_specification_says():
    unit = ExtensionUnit(2598919, 1600000000123, bytes(14))
    expected = "0022000000000027a80700000174876e807b000e" + "00" * 14
    assert encode_unit(unit).hex() == expected
    assert address_of(0).to_bytes(8, signed=True).hex() == "8000000000000000"


@pytest.mark.parametrize("queue", ["0", "1"])
def test_golden_units_are_those_of_the_manifest(queue):
    store, expected = golden_store("cqext")
    directory = store / "consumequeue_ext" / "ExtTopic" / queue
    files = {int(path.name): path.read_bytes() for path in directory.iterdir()}
    raw = b"".join(
        path.read_bytes() for path in sorted((store / "consumequeue/ExtTopic" / queue).iterdir())
    )
    rows = expected["consumeQueues"]["ExtTopic"][queue]["ext"]
    assert len(rows) == 250
    for queue_offset, size, tags_code, stored_ms, bit_map in rows:
        position = position_of(ENTRY_STRUCT.unpack_from(raw, 20 * queue_offset)[2])
        unit = ExtensionUnit(tags_code, stored_ms, bytes.fromhex(bit_map))
        base = position // 4096 * 4096
        assert decode_unit(files[base], position - base) == unit
        assert unit.size == size
        assert encode_unit(unit) == files[base][position - base : position - base + size]


def test_end_of_a_golden_file_is_the_mark():
    end = vector("queue-extension/end-of-file")
    last = decode_unit(end)
    assert last.bit_map.hex() == "2f303132"
    assert end[last.size :].startswith(END_MARK)
    assert decode_unit(end, last.size) is None


@given(units)
def test_decode_gives_back_what_was_encoded(unit):
    assert decode_unit(b"x" + encode_unit(unit) + b"y", 1) == unit


@given(st.integers(0, MAX_POSITION))
def test_address_gives_back_the_position_and_is_no_tags_code(position):
    assert position_of(address_of(position)) == position
    assert address_of(position) <= MAX_EXT_ADDRESS


@given(st.integers(MAX_EXT_ADDRESS + 1, 2**63 - 1))
def test_tags_codes_and_times_are_no_addresses(code):
    assert position_of(code) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(40),
        FIRST[:19],
        FIRST[20:43],  # its bit map is cut off
        struct.pack(">hqqh", 20, 1, 2, 4) + bytes(4),
        struct.pack(">hqqh", 24, 1, 2, 0) + bytes(4),
        struct.pack(">hqqh", 18, 1, 2, -2),
        END_MARK + bytes(40),
    ],
)
def test_what_is_no_whole_unit_is_none(data):
    assert decode_unit(data) is None
    assert decode_unit(data, -1) is None


def test_unit_that_is_too_long_is_refused():
    longest = MOST_UNIT_BYTES - LEAST_UNIT_BYTES
    assert len(encode_unit(ExtensionUnit(1, 2, bytes(longest)))) == MOST_UNIT_BYTES
    with pytest.raises(FieldRangeError, match="does not fit"):
        encode_unit(ExtensionUnit(1, 2, bytes(longest + 1)))
