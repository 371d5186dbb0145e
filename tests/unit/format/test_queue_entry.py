"""queue_entry: 20 bytes that say where a message lies."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.errors import FormatError, TruncatedRecordError
from rocketstore.format.java_hash import tags_code
from rocketstore.format.queue_entry import (
    FILLER,
    FILLER_BYTES,
    MAX_EXT_ADDRESS,
    QueueEntry,
    decode_entry,
    entry_array,
)
from support.oracle.codecs import encode_entries, encode_entry, iterate_entries
from support.page_tables import DOCS
from support.vectors import vector

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
entries = st.builds(QueueEntry, INT64, INT32, INT64)


@pytest.mark.parametrize(
    ("entry", "hexadecimal"),
    [
        ((847067, 133, 2598919), "00000000000cecdb00000085000000000027a807"),
        ((0, 1, -2147483648), "000000000000000000000001ffffffff80000000"),
        (FILLER, "00000000000000007fffffff0000000000000000"),
    ],
)
def test_entry_is_what_java_writes(entry, hexadecimal):
    assert encode_entry(*entry).hex() == hexadecimal


def test_copied_golden_entries_are_fillers_then_messages():
    found = list(iterate_entries(vector("queue-entry/fillers-then-messages")))
    assert [entry.is_filler for entry in found] == [True, True, False, False, False, False]
    assert found[2] == (132188, 369, 2652)
    assert encode_entries(found) == vector("queue-entry/fillers-then-messages")


def test_worked_example_of_the_page_is_that_of_basic():
    page = (DOCS / "format/consume-queue.md").read_text("utf-8")
    for entry in iterate_entries(vector("queue-entry/first-messages")):
        data = encode_entry(*entry).hex()
        assert f"{data[:16]} {data[16:24]} {data[24:]}" in page
        assert f"record at {entry.physical_offset}, {entry.record_size} bytes" in page


@given(entries)
def test_decode_gives_back_what_was_encoded(entry):
    assert decode_entry(b"x" + encode_entry(*entry), 1) == entry


def test_array_of_a_numpy_buffer_is_a_view():
    data = np.zeros(40, dtype=np.uint8)
    array = entry_array(data)
    data[11] = 7
    assert array["record_size"].tolist() == [7, 0]


@pytest.mark.parametrize(
    ("entry", "written", "filler", "message"),
    [
        ((0, 0, 0), False, False, False),
        (FILLER, True, True, False),
        ((0, 100, 0), True, False, True),
        ((-1, 100, 0), False, False, False),
        ((5, -1, 0), False, False, False),
        ((0, 0x7FFFFFFF, 1), True, False, True),
    ],
)
def test_kinds_of_entries_are_told_apart(entry, written, filler, message):
    decoded = QueueEntry(*entry)
    assert (decoded.is_written, decoded.is_filler, decoded.is_message) == (written, filler, message)


def test_filler_bytes_decode_to_the_filler():
    assert bytes.fromhex("00000000000000007fffffff0000000000000000") == FILLER_BYTES
    assert decode_entry(FILLER_BYTES) == FILLER


def test_no_hash_is_taken_for_an_extension_address():
    assert min(map(tags_code, ("polygenelubricants", "x"))) == -(2**31) > MAX_EXT_ADDRESS


@pytest.mark.parametrize(("size", "position"), [(19, 0), (40, 21), (20, -1), (0, 0), (20, 30)])
def test_cut_off_entry_is_refused(size, position):
    with pytest.raises(TruncatedRecordError, match="expected 20 bytes"):
        decode_entry(bytes(size), position)


def test_bytes_that_are_no_whole_entries_are_refused():
    with pytest.raises(FormatError, match="multiple of 20"):
        entry_array(bytes(21))
