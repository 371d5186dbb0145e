"""The index: candidates by key and time, new files, cutting back, durability."""

import shutil
import struct
from datetime import UTC
from pathlib import Path

import numpy as np
import pytest

from rocketstore.errors import FlushFailedError, StoreFullError
from rocketstore.format.index_file import IndexLayout, decode_header
from rocketstore.format.java_hash import key_hash
from rocketstore.scan import kernels
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.mapped_file import MappedFile
from rocketstore.storage.files.pread_files import OpenFiles
from rocketstore.storage.index.index_service import IndexService
from rocketstore.storage.index.pread_index import PreadIndex
from support.clock import Clock
from support.dispatch_parts import INDEX_LAYOUT, DispatchParts
from support.golden_stores import golden_store
from support.index_answers import candidates
from support.index_answers import find as find_in
from support.oracle.codecs import decode_item
from support.said import capture_logs

LAYOUT = IndexLayout(5, 8)
TOPIC = "TopicTest"


def open_index(root, layout=LAYOUT, **options):
    given = {"disk": Disk(), "clock": Clock(), "tz": UTC} | options
    index = IndexService(root / "index", layout, **given)
    problems = index.load()
    return index, problems


@pytest.fixture
def index(tmp_path):
    return open_index(tmp_path)[0]


def item_count(index):
    return sum(len(file.items) for file in index.files)


def put(index, key, physical_offset, stored_ms, topic=TOPIC):
    """Put one item as dispatch does."""
    numbers = (key_hash(topic, key), physical_offset, stored_ms)
    columns = [np.array([number], np.int64) for number in numbers]
    while not index.files or not kernels.put_items(index.newest_bytes, *index.layout, *columns):
        index.roll()


def find(index, key, **options):
    return find_in(index, TOPIC, key, max_count=100, **options)


@pytest.mark.parametrize("begin_ms", [-3_000, -(2**63), 2**62])
def test_items_of_a_file_whose_begin_is_damaged_have_the_same_times_for_all(begin_ms, tmp_path):
    index, _ = open_index(tmp_path)
    for number in range(3):
        put(index, "k", 100 + number, 1_000 * number)
    file = index.files[-1]
    times = {"begin_timestamp_ms": begin_ms, "end_timestamp_ms": 2**63 - 1}
    file.set_header(file.header._replace(**times))
    index.flush()
    unmapped = PreadIndex(tmp_path / "index", OpenFiles(), layout=LAYOUT)
    for first, last in ((0, 2**63 - 1), (-4_000, -1), (0, 999), (1_000, 2_000), (2**60, 2**62)):
        found = list(unmapped.candidates(TOPIC, "k", begin_ms=first, end_ms=last))
        expected = find(index, "k", begin_ms=first, end_ms=last) if begin_ms <= last else []
        assert found == expected, (first, last)
    index.drop()


@pytest.fixture
def parts(tmp_path):
    return DispatchParts(tmp_path)


# --- finding --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["basic", "batch", "ipv6", "delay", "transactions", "multidispatch", "expired/base",
     "expired/deleted_by_store"],
)  # fmt: skip
def test_candidates_in_files_of_java_are_its_answers(name, tmp_path):
    store, manifest = golden_store(name)
    shutil.copytree(store / "index", tmp_path / "index")
    config = manifest["config"]
    layout = IndexLayout(config["maxHashSlotNum"], config["maxIndexNum"])
    index, problems = open_index(tmp_path, layout, is_enabled=False)
    assert problems == []
    for question, answer in manifest["index"].items():
        topic, _, key = question.partition("#")
        assert find_in(index, topic, key, max_count=64) == answer
    for topic, key, count, begin, end, answer in manifest["indexTimeQueries"]:
        found = find_in(index, topic, key, max_count=10_000, begin_ms=begin, end_ms=end)
        # Ours may have more: an item knows whole seconds, and the caller looks (K-I6).
        assert set(answer) <= set(found)
        assert len(answer) <= count


def test_a_full_file_is_followed_by_another_and_that_is_said(parts):
    parts.append(20, properties=b"KEYS\x01k")
    with capture_logs() as logs:
        parts.run()
    names = [str(file.file.path) for file in parts.index.files]
    assert len(names) > 1
    said = [(log["path"], log["log_level"]) for log in logs if log["event"] == "index.rolled"]
    assert said == [(name, "info") for name in names]


def test_keys_are_found_newest_first_over_all_files(parts):
    placed = parts.append(20, properties=b"KEYS\x01all k")
    parts.run()
    assert len(parts.index.files) > 2
    assert find(parts.index, "all") == placed[::-1]
    assert find_in(parts.index, TOPIC, "all", max_count=3) == placed[:-4:-1]
    assert find(parts.index, "nothing") == []
    assert item_count(parts.index) == 40
    assert parts.index.end_physical_offset == placed[-1]


def test_hashes_that_collide_come_too_and_are_the_callers_matter(index):
    put(index, "Aa", 10, 1000)
    put(index, "BB", 20, 1000)
    assert key_hash(TOPIC, "Aa") == key_hash(TOPIC, "BB")
    assert find(index, "Aa") == [20, 10]


def test_the_first_item_of_a_later_file_has_its_own_time(index):
    """K-I5: Java counts it from the end of the file before."""
    for number in range(7):
        put(index, f"k{number}", number, 1_000_000)
    put(index, "late", 100, 1_090_000)
    second = index.files[1]
    header = second.header
    assert header.begin_timestamp_ms == 1_090_000
    item = decode_item(bytes(second.file.array), LAYOUT.item_position(1))
    java_value, our_value = 90, 0
    assert item.time_difference_s == our_value
    assert find(index, "late", begin_ms=1_090_000, end_ms=1_090_000) == [100]
    # The same item as Java leaves it is found as well.
    position = LAYOUT.item_position(1) + 12
    second.file.write_bytes(position, struct.pack(">i", java_value))
    assert find(index, "late", begin_ms=1_090_000, end_ms=1_090_000) == [100]


def test_a_time_bound_does_not_lose_milliseconds(index):
    """K-I6: an item knows whole seconds, rounded down."""
    put(index, "first", 1, 1000)
    put(index, "k", 2, 2900)
    assert find(index, "k", begin_ms=2900, end_ms=3000) == [2]
    assert find(index, "k", begin_ms=3000, end_ms=3000) == []
    assert find(index, "k", begin_ms=0, end_ms=1999) == []


def test_a_key_with_more_items_than_one_call_takes(tmp_path):
    index, _ = open_index(tmp_path, IndexLayout(3, 1000))
    for number in range(500):
        put(index, "same", number, 1000 + number)
    assert find(index, "same") == list(range(499, 399, -1))
    assert len(find_in(index, TOPIC, "same", max_count=10_000)) == 500


# --- items ----------------------------------------------------------------------------------------


def test_a_record_seen_again_gets_no_second_item(parts):
    """K-I8: Java's test lets the last record in twice; ours counts what it has."""
    parts.append(3, properties=b"UNIQ_KEY\x01u\x02KEYS\x01a a b")
    parts.run()
    before = parts.bytes_on_disk()
    java_items, our_items = 16, 12
    assert item_count(parts.index) == our_items < java_items
    parts.open_derived()
    last = parts.entries()[-1][0]
    parts.dispatcher.dispatch_range(last, parts.end)
    assert parts.bytes_on_disk() == before


@pytest.mark.parametrize("item_count", range(3, 9))
def test_a_record_whose_keys_span_two_files_is_finished_once(tmp_path, item_count):
    parts = DispatchParts(tmp_path, index_layout=IndexLayout(3, item_count))
    placed = parts.append(5, properties=b"UNIQ_KEY\x01u\x02KEYS\x01a b c d")
    parts.run()
    before = parts.bytes_on_disk()
    for _ in range(2):
        parts.open_derived()
        parts.dispatcher.dispatch_range(placed[0], parts.end)
        assert parts.bytes_on_disk() == before
    assert [find(parts.index, key) for key in "uabcd"] == [placed[::-1]] * 5


def test_half_a_records_items_are_completed(parts):
    placed = parts.append(2, properties=b"KEYS\x01a b c")
    parts.run()
    before = parts.bytes_on_disk()
    newest = parts.index.files[-1]
    kernels.rebuild_slots(newest.file.array, LAYOUT.slot_count, LAYOUT.item_count, placed[1])
    put(parts.index, "a", placed[1], 1_600_000_000_123)
    parts.open_derived()
    parts.dispatcher.dispatch_range(placed[1], parts.end)
    assert parts.bytes_on_disk() == before


def test_a_switched_off_index_takes_nothing_and_still_finds(tmp_path, index):
    put(index, "old", 5, 1000)
    parts = DispatchParts(tmp_path, index_enabled=False, index_layout=LAYOUT)
    parts.append(3, properties=b"KEYS\x01new")
    parts.run()
    assert find(parts.index, "new") == []
    assert find(parts.index, "old") == [5]


def test_messages_without_keys_make_no_index_file(parts):
    parts.append(5)
    parts.append(properties=b"KEYS\x01 \x02UNIQ_KEY\x01")
    parts.run()
    assert item_count(parts.index) == 0


# --- files ----------------------------------------------------------------------------------------


def test_names_rise_whatever_the_clock_says(tmp_path, clock):
    """K-I4: two files within a millisecond, or a clock set back."""
    index, _ = open_index(tmp_path, clock=clock)
    for step in (0, 0, -5000, 7):
        clock.now_ms += step
        index.roll()
    names = [file.name for file in index.files]
    assert names == sorted(set(names))
    assert len(names) == 4
    clock.now_ms -= 60_000
    again, _ = open_index(tmp_path, clock=clock)
    assert [file.name for file in again.files] == names
    for _ in range(2):  # the first call takes the newest file there is
        again.roll()
    assert again.files[-1].name > names[-1]


def test_a_file_that_cannot_be_made_leaves_nothing_behind(tmp_path, disk):
    """K-I7: Java leaves 420 MB behind at each attempt."""
    disk.is_full = True
    index, _ = open_index(tmp_path, disk=disk)
    for _ in range(3):
        with pytest.raises(StoreFullError):
            index.roll()
    assert list((tmp_path / "index").iterdir()) == []
    assert index.files == ()


@pytest.mark.parametrize("later_ms", [0, 2])
@pytest.mark.parametrize("place", ["reserve", "close_descriptor"])
def test_a_file_whose_making_was_interrupted_is_gone_after_the_next_roll(
    tmp_path, monkeypatch, place, later_ms, clock
):
    """Also within the millisecond that named it; nor does a flush look for it."""
    index, _ = open_index(tmp_path, clock=clock)
    index.roll()
    put(index, "k", 0, 1_700_000_000_000)
    call = getattr(MappedFile, place)

    def interrupted(*arguments):
        call(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MappedFile, place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            index.roll()
    clock.now_ms += later_ms
    index.roll()
    put(index, "k", 1000, 1_700_000_000_000)
    names = [file.name for file in index.files]
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == names
    assert len(names) == 2
    assert list(candidates(index, TOPIC, "k")) == [1000, 0]
    assert index.flush()


def test_a_sparse_file_of_java_is_used_when_the_disk_has_room_again(tmp_path, disk):
    """Opening does not fail on a full disk, and nothing is written into a hole of the file."""

    path = tmp_path / "index" / "20261121045310987"
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(IndexLayout(500, 2000).size_bytes)
    disk.is_full = True
    parts = DispatchParts(tmp_path, disk=disk, index_layout=IndexLayout(500, 2000))
    disk.is_full = False
    parts.append(3, properties=b"KEYS\x01k")
    disk.is_full = True
    with pytest.raises(StoreFullError):
        parts.run()
    disk.is_full = False
    parts.run()
    assert [file.name for file in parts.index.files] == [path.name]
    assert len(find(parts.index, "k")) == 3


def test_strange_files_are_passed_over_and_a_half_made_one_is_finished(tmp_path, index):
    put(index, "k", 5, 1000)
    directory = tmp_path / "index"
    (directory / "notes.txt").write_text("x")
    (directory / "00000000000000001").write_bytes(b"short")
    newest = directory / "29991231235959999"
    newest.write_bytes(b"")
    again, problems = open_index(tmp_path)
    assert {problem.path.name for problem in problems} == {
        "notes.txt", "00000000000000001", newest.name
    }  # fmt: skip
    assert [file.name for file in again.files] == [index.files[0].name, newest.name]
    assert newest.stat().st_size == LAYOUT.size_bytes
    assert again.files[-1].header.end_physical_offset == 5
    assert find(again, "k") == [5]
    assert str(problems[0]).startswith(str(problems[0].path))


def test_files_that_know_only_expired_records_go_and_the_newest_stays(tmp_path, disk):
    """K-I10 is kept: the newest file takes the next item."""
    index, _ = open_index(tmp_path, disk=disk)
    for number in range(20):
        put(index, "k", number, 1000)
    assert len(index.files) == 3
    disk.calls.clear()
    assert index.delete_expired(6, now_ms=0) == []
    assert not disk.count("fsync_directory")
    [gone] = index.delete_expired(7, now_ms=0)
    assert not gone.exists()
    assert disk.calls[-1] == ("fsync_directory", "index")
    assert find(index, "k") == list(range(19, 6, -1))
    index, _ = open_index(tmp_path)  # nothing is put into its newest file yet
    assert len(index.delete_expired(10**9, now_ms=0)) == 1
    assert len(index.files) == 1


# --- cutting --------------------------------------------------------------------------------------


def test_cutting_back_keeps_exactly_the_items_before_the_offset(tmp_path):
    for target in range(22):
        index, _ = open_index(tmp_path / str(target))
        for number in range(20):
            put(index, f"k{number % 3}", number, 1000 * number)
        dropped = index.truncate_to(target, lambda offset: 1000 * offset, now_ms=0)
        assert dropped == max(20 - target, 0)
        kept = sorted(offset for n in range(3) for offset in find(index, f"k{n}"))
        assert kept == list(range(min(target, 20)))
        fresh, _ = open_index(tmp_path / f"fresh{target}")
        for number in range(min(target, 20)):
            put(fresh, f"k{number % 3}", number, 1000 * number)
        expected = [bytes(f.file.array) for f in fresh.files]
        # Where nothing stays, the first file does, as it was when it was made.
        assert [bytes(f.file.array) for f in index.files] == (
            expected or [bytes(LAYOUT.size_bytes)]
        )


def test_slots_that_name_lost_items_are_rebuilt(index):
    """A power cut may keep a slot and lose the item it names."""
    for number in range(1, 6):
        put(index, "k", number, 1000)
    file = index.files[0]
    file.file.write_bytes(LAYOUT.item_position(4), bytes(40))
    index.truncate_to(4, lambda _: None, now_ms=0)
    assert find(index, "k") == [3, 2, 1]
    assert decode_header(bytes(file.file.array[:40])).index_count == 4


def test_without_store_times_the_end_is_known_to_the_second(index):
    for number in range(4):
        put(index, "k", number, 1000 + 1500 * number)
    index.truncate_to(2, lambda _: None, now_ms=0)
    assert index.files[-1].header.end_timestamp_ms == 1000 + 1000


def test_a_first_item_that_is_left_alone_is_as_old_as_its_file(index):
    """K-I5: its difference, in files of Java, is that against the file before."""
    for number in range(2):
        put(index, "k", number, 1000)
    index.files[0].file.write_bytes(LAYOUT.item_position(1) + 12, (99).to_bytes(4, "big"))
    index.truncate_to(1, lambda _: None, now_ms=0)
    assert index.files[-1].header.end_timestamp_ms == 1000


# --- durability -----------------------------------------------------------------------------------


def test_a_flush_syncs_the_newest_file_long_before_it_is_full(tmp_path, disk):
    """K-I2: Java syncs a file only when it is full, and never the newest."""
    index, _ = open_index(tmp_path, disk=disk)
    put(index, "k", 1, 1000)
    disk.calls.clear()
    assert index.flush()
    assert disk.synced == [index.files[0].name]
    assert index.flush()
    assert len(disk.synced) == 1
    put(index, "k", 2, 1000)
    index.flush()
    assert len(disk.synced) == 2


def test_after_a_failed_sync_nothing_is_promised_any_more(tmp_path, disk):
    index, _ = open_index(tmp_path, disk=disk)
    put(index, "k", 1, 1000)
    disk.fails_sync = {"*"}
    with pytest.raises(FlushFailedError):
        index.flush()
    disk.fails_sync = set()
    assert not index.flush()
    assert INDEX_LAYOUT == LAYOUT


def test_a_lookup_that_has_begun_goes_on_in_files_that_were_deleted_meanwhile(index):
    for number in range(20):
        put(index, "k", 1000 * number, 1_700_000_000_000 + number)
    assert len(index.files) > 2
    expected = list(candidates(index, TOPIC, "k"))
    assert expected == [1000 * number for number in reversed(range(20))]
    # Begun in the oldest file: it is finished there.
    lookup = candidates(index, TOPIC, "k", end_ms=1_700_000_000_002)
    oldest = [next(lookup)]
    # Begun in the newest one: what the others knew has expired.
    other = candidates(index, TOPIC, "k")
    newest = [next(other)]
    assert index.delete_expired(1_000_000, now_ms=0) == [], "the oldest one is being read"
    gone = index.delete_expired(1_000_000, now_ms=3000)
    assert len(gone) > 1
    oldest += lookup
    newest += other
    assert oldest == expected[-len(oldest) :] != expected[-1:]
    assert newest == expected[: len(newest)] != expected
    assert maps_of(gone) == []


def maps_of(paths):
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
    return [line for line in lines if any(str(path) in line for path in paths)]
