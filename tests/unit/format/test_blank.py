"""blank: the record that fills a file behind its last message."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.errors import FieldRangeError
from rocketstore.format.record import BLANK_MAGIC, END_FILE_MIN_BLANK_SIZE, encode_blank
from support.vectors import vector


def test_blank_is_what_java_writes():
    assert encode_blank(100) == vector("blank/100-bytes-left")


def test_magic_is_the_number_java_prints():
    assert BLANK_MAGIC - (1 << 32) == -875286124


@given(st.integers(END_FILE_MIN_BLANK_SIZE, 0x7FFFFFFF))
def test_blank_says_what_remains(remaining):
    assert struct.unpack(">iI", encode_blank(remaining)) == (remaining, BLANK_MAGIC)


@pytest.mark.parametrize("remaining", [-1, 0, 7, 0x80000000])
def test_blank_of_impossible_size_is_refused(remaining):
    with pytest.raises(FieldRangeError, match="a blank cannot have this size"):
        encode_blank(remaining)
