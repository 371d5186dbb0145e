"""Messages by key: what the index suggests is held against the records."""

import struct
from collections.abc import Callable

import pytest

from rocketstore.format.java_hash import key_hash
from rocketstore.storage.read_only import ReadOnlyStore
from rocketstore.storage.reading.reader import Reader
from support.mapped_reader import mapped_reader
from support.store_files import INDEX_LAYOUT, StoreFiles

OpenReader = Callable[[], Reader]


FIRST, SECOND = "20240101000000000", "20240101000001000"


@pytest.fixture
def files(tmp_path):
    return StoreFiles(tmp_path)


@pytest.fixture(params=["mapped", "pread"])
def open_reader(request, files):
    if request.param != "pread":
        return lambda: mapped_reader(files.root, end=files.end)
    return lambda: ReadOnlyStore(files.root)


def found(reader: Reader, topic: str, key: str, **bounds: int) -> list[int]:
    return [message.physical_offset for message in reader.find(topic, key, **bounds)]


def test_k_q1_topics_and_keys_that_hash_alike_are_told_apart(files, open_reader):
    offsets = {}
    items = []
    for topic in ("AaTopic", "BBTopic"):
        for key in ("Aa", "BB"):
            offset = offsets[topic, key] = files.put(topic, keys=key)
            items.append((topic, key, offset, 1_000))
    files.index(FIRST, items, begin_ms=1_000, end_ms=1_000)
    reader = open_reader()
    for (topic, key), offset in offsets.items():
        assert found(reader, topic, key) == [offset]


def test_k_q1_collisions_do_not_use_up_the_quota(files, open_reader):
    wanted = files.put("AaTopic", keys="Aa")
    items = [("AaTopic", "Aa", wanted, 1_000)]
    items += [("BBTopic", "BB", files.put("BBTopic", keys="BB"), 1_000) for _ in range(50)]
    files.index(FIRST, items, begin_ms=1_000, end_ms=1_000)
    # Java: the first hits of the chain fill the quota, all of them of another topic.
    assert found(open_reader(), "AaTopic", "Aa", max_messages=1) == [wanted]


def test_a_range_finds_what_stands_after_an_item_whose_clock_had_gone_back(files, open_reader):
    """4.9 ends the walk at the first item before the range, and misses what is older and later."""
    times = (1_000_000, 5_000_000, 1_000_000)
    offsets = [files.put("T", keys="k", store_timestamp_ms=time) for time in times]
    items = [("T", "k", offset, time) for offset, time in zip(offsets, times, strict=True)]
    files.index(FIRST, items, begin_ms=1_000_000, end_ms=5_000_000)
    assert found(open_reader(), "T", "k", begin_ms=4_000_000) == [offsets[1]]


def test_keys_are_words_of_keys_or_the_unique_key_and_nothing_else(files, open_reader):
    offset = files.put(keys="k1 k2", properties={"UNIQ_KEY": "u1", "other": "k3"})
    items = [("TopicTest", key, offset, 1_000) for key in ("k1", "k2", "u1", "k3", "k1 k2")]
    files.index(FIRST, items, begin_ms=1_000, end_ms=1_000)
    reader = open_reader()
    for key, count in {"k1": 1, "k2": 1, "u1": 1, "k3": 0, "k1 k2": 0, "": 0, "k": 0}.items():
        assert len(found(reader, "TopicTest", key)) == count, key


def test_newest_come_first_over_several_files_and_the_quota_keeps_them(files, open_reader):
    offsets = [files.put(keys="k", store_timestamp_ms=1_000 * n) for n in range(1, 7)]
    items = [("TopicTest", "k", o, 1_000 * n) for n, o in enumerate(offsets, 1)]
    files.index(FIRST, items[:4], begin_ms=1_000, end_ms=4_000)
    files.index(SECOND, items[4:], begin_ms=5_000, end_ms=6_000)
    reader = open_reader()
    assert found(reader, "TopicTest", "k") == offsets[::-1]
    assert found(reader, "TopicTest", "k", max_messages=3) == offsets[:2:-1]
    assert found(reader, "TopicTest", "k", max_messages=0) == []


def test_k_i8_a_message_indexed_twice_comes_once(files, open_reader):
    offsets = [files.put(keys="k") for _ in range(3)]
    items = [("TopicTest", "k", offset, 1_000) for offset in offsets for _ in range(2)]
    files.index(FIRST, items, begin_ms=1_000, end_ms=1_000)
    files.index(SECOND, items, begin_ms=1_000, end_ms=1_000)
    assert found(open_reader(), "TopicTest", "k") == offsets[::-1]


def test_k_i6_ranges_are_exact_although_the_index_knows_seconds(files, open_reader):
    times = [10_000, 10_400, 10_999, 11_000, 11_700]
    offsets = [files.put(keys="k", store_timestamp_ms=stored) for stored in times]
    items = [("TopicTest", "k", o, t) for o, t in zip(offsets, times, strict=True)]
    files.index(FIRST, items, begin_ms=10_000, end_ms=11_700)
    reader = open_reader()
    for begin, end in (
        (10_400, 10_400),
        (10_401, 10_999),
        (11_001, 11_700),
        (0, 10_399),
        (11_701, 99_999),
    ):
        expected = [o for o, t in zip(offsets, times, strict=True) if begin <= t <= end]
        assert found(reader, "TopicTest", "k", begin_ms=begin, end_ms=end) == expected[::-1]


def test_k_i5_the_first_item_of_a_file_is_found_by_the_time_of_its_record(files, open_reader):
    offset = files.put(keys="k", store_timestamp_ms=90_000)
    # Java computed the difference against the file before, which ended 40 seconds earlier: the
    # item seems to be of 130000, and Java finds nothing in the range of the record's true time.
    files.index(
        FIRST, [("TopicTest", "k", offset, 90_000)], begin_ms=90_000, end_ms=90_000,
        first_difference_s=40,
    )  # fmt: skip
    assert found(open_reader(), "TopicTest", "k", begin_ms=89_000, end_ms=91_000) == [offset]


def test_k_q2_items_of_records_that_are_gone_are_passed_over(files, open_reader):
    offsets = [files.put(keys="k", body=b"x" * 900) for _ in range(8)]
    items = [("TopicTest", "k", o, 1_000) for o in offsets]
    items += [("TopicTest", "k", 10**9, 1_000), ("TopicTest", "k", offsets[-1] + 1, 1_000)]
    files.index(FIRST, items, begin_ms=1_000, end_ms=1_000)
    files.log_path(0).unlink()
    kept = [o for o in offsets if o >= 4096]
    assert found(open_reader(), "TopicTest", "k", max_messages=len(kept)) == kept[::-1]


@pytest.mark.timeout(60)  # a walk in a circle does not end
def test_a_damaged_chain_ends_the_search_and_nothing_else(files, open_reader):
    offsets = [files.put(keys="k") for _ in range(3)]
    items = [("TopicTest", "k", o, 1_000) for o in offsets]
    files.index(FIRST, items, begin_ms=1_000, end_ms=1_000)
    path = files.root / "index" / FIRST
    data = bytearray(path.read_bytes())
    at = INDEX_LAYOUT.item_position(3) + 16
    for previous in (3, 60, -1, 2**31 - 1):
        data[at : at + 4] = previous.to_bytes(4, "big", signed=True)
        path.write_bytes(data)
        assert found(open_reader(), "TopicTest", "k") == [offsets[2]]


def test_a_slot_that_names_no_item_in_use_finds_nothing(files, open_reader):
    items = [("TopicTest", "k", files.put(keys="k"), 1_000) for _ in range(3)]
    files.index(FIRST, items, begin_ms=1_000, end_ms=1_000)
    path = files.root / "index" / FIRST
    data = bytearray(path.read_bytes())
    slot = key_hash("TopicTest", "k") % INDEX_LAYOUT.slot_count
    for number in (-(2**31), -1, 0, 5, 2000, 2**31 - 1):
        struct.pack_into(">i", data, INDEX_LAYOUT.slot_position(slot), number)
        path.write_bytes(data)
        assert found(open_reader(), "TopicTest", "k") == []


def test_strange_files_in_the_index_directory_are_named(files):
    offset = files.put(keys="k")
    files.index(FIRST, [("TopicTest", "k", offset, 1_000)], begin_ms=1_000, end_ms=1_000)
    (files.root / "index" / "20240101").write_bytes(b"x")
    (files.root / "index" / SECOND).touch()
    store = ReadOnlyStore(files.root)
    assert found(store, "TopicTest", "k") == [offset]
    assert {finding.path.name for finding in store.findings} == {"20240101", SECOND}
    assert [name for name, _ in store.index_files()] == [FIRST]


def test_without_an_index_no_key_is_found(files, open_reader):
    files.put(keys="k")
    assert found(open_reader(), "TopicTest", "k") == []
