"""index_file: header, slots and items."""

from datetime import UTC, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.errors import FieldRangeError, FormatError, TruncatedRecordError
from rocketstore.format.index_file import (
    DEFAULT_ITEM_COUNT,
    DEFAULT_SLOT_COUNT,
    INDEX_HEADER_SIZE,
    ITEM_SIZE_BYTES,
    IndexHeader,
    IndexLayout,
    decode_header,
    encode_header,
    index_file_name,
    is_index_file_name,
    item_array,
    layout_of,
    next_index_file_name,
    used_item_count,
)
from rocketstore.format.java_hash import key_hash
from support.golden_stores import STORES, golden_root, golden_store
from support.oracle.codecs import IndexItem, decode_item, encode_item
from support.page_tables import DOCS
from support.vectors import vector

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
headers = st.builds(IndexHeader, INT64, INT64, INT64, INT64, INT32, INT32)
items = st.builds(IndexItem, INT32, INT64, INT32, INT32)
LAYOUT = IndexLayout(slot_count=3, item_count=12)
GOLDEN_LAYOUT = IndexLayout(slot_count=500, item_count=2000)


def test_default_file_has_the_size_that_java_s_has():
    assert IndexLayout(DEFAULT_SLOT_COUNT, DEFAULT_ITEM_COUNT).size_bytes == 420_000_040


def test_item_and_header_are_what_java_writes():
    item = IndexItem(key_hash("TopicTest", "k1"), 847067, 0, 0)
    assert encode_item(item).hex() == "0029e6a800000000000cecdb0000000000000000"
    header = IndexHeader(1600000000123, 1600000000123, 847067, 847067, 1, 2)
    assert encode_header(header).hex() == (
        "00000174876e807b00000174876e807b00000000000cecdb00000000000cecdb0000000100000002"
    )
    layout = IndexLayout(DEFAULT_SLOT_COUNT, DEFAULT_ITEM_COUNT)
    assert layout.slot_position(item.key_hash % layout.slot_count) == 10984136
    assert layout.item_position(1) == 20000060


def test_worked_example_of_the_page_is_that_of_basic():
    page = (DOCS / "format/index-file.md").read_text("utf-8")
    data = vector("index-file/header")
    for start, stop in ((0, 8), (8, 16), (16, 24), (24, 32), (32, 36), (36, 40)):
        assert data[start:stop].hex() in page
    item = decode_item(vector("index-file/first-items"), ITEM_SIZE_BYTES)
    assert item.key_hash == key_hash("TopicA", "7F0000012A139A550000000000001000") == 1128653479
    slot = item.key_hash % GOLDEN_LAYOUT.slot_count
    assert slot == 479
    assert f"\n{GOLDEN_LAYOUT.slot_position(slot):04x}    " in page
    assert f"\n{GOLDEN_LAYOUT.item_position(1):04x}    {item.key_hash:08x} " in page


@given(headers)
def test_header_decodes_to_what_was_encoded(header):
    assert decode_header(encode_header(header) + b"x") == header


@given(st.integers(1, 10_000_000))
def test_layout_is_learnt_from_every_size_of_one_to_four(slots):
    layout = IndexLayout(slots, 4 * slots)
    assert layout_of(layout.size_bytes) == layout


@pytest.mark.parametrize("size", [0, 39, 40, 123, 125, IndexLayout(500, 1999).size_bytes])
def test_size_of_another_ratio_asks_for_slots_and_items(size):
    with pytest.raises(FormatError, match="--set maxHashSlotNum=… --set maxIndexNum=…"):
        layout_of(size)


def test_cut_off_header_is_refused():
    with pytest.raises(TruncatedRecordError, match="expected 40 bytes, found 39 bytes"):
        decode_header(bytes(39))


def test_numbers_that_do_not_fit_are_refused():
    with pytest.raises(FieldRangeError, match="header"):
        encode_header(IndexHeader(begin_timestamp_ms=2**63))


def test_array_of_another_size_is_refused():
    with pytest.raises(FormatError, match="not an index file of that layout"):
        item_array(bytes(LAYOUT.size_bytes + 1), LAYOUT)


@pytest.mark.parametrize(
    ("index_count", "used"), [(-5, 1), (0, 1), (1, 1), (7, 7), (12, 12), (2**31 - 1, 12)]
)
def test_used_items_stay_within_the_file(index_count, used):
    assert used_item_count(IndexHeader(index_count=index_count), LAYOUT) == used


def test_file_name_is_the_time_in_the_given_zone():
    assert index_file_name(1600000000123, UTC) == "20200913122640123"
    assert index_file_name(1600000000123, timezone(timedelta(hours=8))) == "20200913202640123"
    assert index_file_name(-1, UTC) == "19691231235959999"
    assert index_file_name(-62135596800000, UTC) == "00010101000000000"


def test_file_name_of_no_zone_is_local(monkeypatch):
    assert len(index_file_name(1600000000123, None)) == 17


@pytest.mark.parametrize("timestamp_ms", [2**63 - 1, -(2**63), 10**15])
def test_time_without_a_date_has_no_name(timestamp_ms):
    with pytest.raises(FieldRangeError, match="no date"):
        index_file_name(timestamp_ms, UTC)


def test_names_made_in_one_millisecond_or_back_in_time_still_grow():
    first = next_index_file_name(1600000000123, UTC, None)
    second = next_index_file_name(1600000000123, UTC, first)
    third = next_index_file_name(1500000000000, UTC, second)
    later = next_index_file_name(1700000000000, UTC, third)
    assert first < second < third < later
    assert all(map(is_index_file_name, (first, second, third, later)))
    assert later == index_file_name(1700000000000, UTC)


def test_an_extra_file_does_not_influence_the_next_name():
    assert next_index_file_name(1600000000123, UTC, "zzz") == "20200913122640123"


@pytest.mark.parametrize("name", ["", "2020", "2020091312264012x", "\u0660" * 17, "2" * 18])
def test_other_names_are_no_index_files(name):
    assert not is_index_file_name(name)


@pytest.mark.parametrize("name", STORES)
def test_golden_headers_are_those_of_the_manifest(name):
    store, described = golden_store(name)
    paths = sorted((store / "index").glob("*"))
    assert [path.name for path in paths] == [row["file"] for row in described["indexFiles"]]
    for path, row in zip(paths, described["indexFiles"], strict=True):
        data = path.read_bytes()
        header = decode_header(data)
        assert header == IndexHeader(
            row["beginTimestamp"],
            row["endTimestamp"],
            row["beginPhyOffset"],
            row["endPhyOffset"],
            row["hashSlotCount"],
            row["indexCount"],
        )
        assert encode_header(header) == data[:INDEX_HEADER_SIZE]
        assert layout_of(len(data)) == GOLDEN_LAYOUT
        assert is_index_file_name(path.name)


@pytest.mark.parametrize("name", STORES)
def test_golden_items_link_down_and_every_slot_in_use_is_counted(name):
    store = golden_root(name)
    for path in (store / "index").glob("*"):
        data = path.read_bytes()
        header = decode_header(data)
        table = item_array(data, GOLDEN_LAYOUT)
        slots = np.frombuffer(data, ">i4", GOLDEN_LAYOUT.slot_count, INDEX_HEADER_SIZE)
        numbers = np.arange(header.index_count)
        assert (table["previous_item"][1 : header.index_count] < numbers[1:]).all()
        assert np.count_nonzero(slots) == header.hash_slot_count
        assert bytes(table[1]) == encode_item(decode_item(data, GOLDEN_LAYOUT.item_position(1)))
