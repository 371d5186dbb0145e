"""blank: the record that fills a file behind its last message."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.errors import FieldRangeError
from rocketstore.format.blank import BLANK_MAGIC, END_FILE_MIN_BLANK_SIZE, encode_blank, fits
from support.vectors import vector


def test_blank_is_what_java_writes():
    assert encode_blank(100) == vector("blank/100-bytes-left")


def test_magic_is_the_number_java_prints():
    assert BLANK_MAGIC - (1 << 32) == -875286124


@given(st.integers(8, 0x7FFFFFFF))
def test_blank_says_what_remains(remaining):
    assert struct.unpack(">iI", encode_blank(remaining)) == (remaining, BLANK_MAGIC)


@pytest.mark.parametrize("remaining", [-1, 0, 7, 0x80000000])
def test_blank_of_impossible_size_is_refused(remaining):
    with pytest.raises(FieldRangeError, match="a blank cannot have this size"):
        encode_blank(remaining)


@given(st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_a_record_that_fits_leaves_room_for_a_blank(record_size, remaining):
    assert fits(record_size, remaining) == (remaining - record_size >= END_FILE_MIN_BLANK_SIZE)
