"""batch_queue_entry: 46 bytes that say where the messages of one record lie (5.x)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.errors import FieldRangeError
from rocketstore.format.batch_queue_entry import BatchEntry, decode_batch_entry, encode_batch_entry
from rocketstore.scan.batch_search import BATCH_ENTRY_DTYPE, written_count
from support.vectors import vector

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
entries = st.builds(BatchEntry, INT64, INT32, INT64, INT64, INT64, INT16, INT32, INT32)

OF_JAVA = {
    # spec F17, from the rules
    "00000000000cecdb0000012c000000000027a80700000174876e807b"
    "00000000000000050003ffffffff00000000": (BatchEntry(847067, 300, 2598919, 1600000000123, 5, 3))
}


@pytest.mark.parametrize(("hexadecimal", "entry"), OF_JAVA.items())
def test_entry_is_what_java_writes(hexadecimal, entry):
    assert encode_batch_entry(entry).hex() == hexadecimal
    assert decode_batch_entry(bytes.fromhex(hexadecimal)) == entry
    assert entry.is_written
    assert entry.stop_offset == 8


@given(entries)
def test_every_entry_comes_back(entry):
    data = encode_batch_entry(entry)
    assert decode_batch_entry(data) == entry
    row = np.frombuffer(data, BATCH_ENTRY_DTYPE)
    assert tuple(row[0].tolist()) == entry
    assert written_count(row) == entry.is_written


def test_a_count_beyond_16_bits_has_no_entry():
    with pytest.raises(FieldRangeError):
        encode_batch_entry(BatchEntry(0, 1, 0, 0, 0, 32768))


GOOD = [BatchEntry(0, 100, 0, 0, 0, 2), BatchEntry(150, 10, 0, 0, 2, 1)]


@pytest.mark.parametrize(
    ("third", "count"),
    [
        (BatchEntry(160, 10, 0, 0, 3, 1), 3),
        (BatchEntry(160, 10, 0, 0, 30, 1), 3),  # numbers may be missing, as after a lost record
        (BatchEntry(159, 10, 0, 0, 3, 1), 2),  # inside the record before
        (BatchEntry(160, 10, 0, 0, 2, 1), 2),  # a number that is taken
        (BatchEntry(160, 0, 0, 0, 3, 1), 2),
        (BatchEntry(160, 10, 0, 0, 3, 0), 2),
        (BatchEntry(-1, 10, 0, 0, 3, 1), 2),
        (BatchEntry(2**63 - 1, 10, 0, 0, 2**63 - 1, 1), 3),
    ],
)
def test_entries_count_as_long_as_each_follows_the_one_before(third, count):
    data = b"".join(map(encode_batch_entry, [*GOOD, third]))
    assert written_count(np.frombuffer(data, BATCH_ENTRY_DTYPE)) == count


def test_entries_of_a_genuine_queue_are_those_of_its_batches():
    data = vector("batch-queue/entries")
    array = np.frombuffer(data, BATCH_ENTRY_DTYPE)
    assert written_count(array) == 7
    entries = [BatchEntry._make(row) for row in array.tolist()]
    assert [(entry.base_offset, entry.message_count) for entry in entries] == [
        (0, 3), (3, 1), (4, 5), (9, 2), (11, 4), (15, 1), (16, 1),
    ]  # fmt: skip
    assert {entry[2::4] for entry in entries} == {(0, -1)}
    assert b"".join(map(encode_batch_entry, entries)) == data
