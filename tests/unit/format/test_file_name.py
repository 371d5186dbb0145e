"""file_name: offsets as names, and nothing else as an offset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.errors import FieldRangeError
from rocketstore.format.file_name import MAX_OFFSET, file_name, parse_file_name, parse_queue_id
from support.golden_stores import STORES, golden_root


@given(st.integers(0, MAX_OFFSET))
def test_parse_gives_back_the_offset(offset):
    assert parse_file_name(file_name(offset)) == offset


@given(st.integers(0, MAX_OFFSET), st.integers(0, MAX_OFFSET))
def test_names_sort_as_their_offsets(one, other):
    assert (file_name(one) < file_name(other)) == (one < other)


@pytest.mark.parametrize("offset", [-1, MAX_OFFSET + 1])
def test_impossible_offset_has_no_name(offset):
    with pytest.raises(FieldRangeError, match="no file can start"):
        file_name(offset)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0",
        "0" * 19,
        "0" * 21,
        "00000000000000000000.bak",
        "+0000000000000000000",
        "0000000000000000000 ",
        "\u0660" * 20,
        "²" * 20,
        "99999999999999999999",
    ],
)
def test_other_names_are_extra_files(name):
    assert parse_file_name(name) is None


def test_a_queue_s_directory_has_its_number_s_own_spelling():
    assert [parse_queue_id(str(number)) for number in (0, 7, 2**31 - 1)] == [0, 7, 2**31 - 1]
    for name in ("", "007", "+7", "-1", "x", "\u0667", "²", str(2**31), "9" * 5_000):
        assert parse_queue_id(name) is None


@pytest.mark.parametrize("name", STORES)
def test_golden_files_are_named_by_their_first_byte(name):
    store = golden_root(name)
    directories = [store / "commitlog", *(store / "consumequeue").glob("*/*")]
    for directory in directories:
        files = sorted(path for path in directory.iterdir() if path.is_file())
        offsets = [parse_file_name(path.name) for path in files]
        assert None not in offsets
        if directory.name == "commitlog":
            stated = [int.from_bytes(path.read_bytes()[28:36], "big") for path in files]
            assert offsets == stated, "each begins with a record, which says where it stands"
        for path, offset, following in zip(files, offsets, offsets[1:], strict=False):
            assert following == offset + path.stat().st_size
