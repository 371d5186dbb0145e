"""config.files: set, else learnt from the files, else 4.9's; never a guess."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore import Message, MessageStore, verify_store
from rocketstore.config import StoreConfig, StoreSizes, resolve_sizes
from rocketstore.config.files import FileObservation, ObservedSizes, commonest, observed_in
from rocketstore.errors import ConfigError, FormatError
from rocketstore.format import index_file
from support.configured_store import open_small


def _observed(family, size):
    return ObservedSizes(**{family: FileObservation(Path("store/file"), size)})


def test_sizes_are_learnt_from_files():
    seen = ObservedSizes(
        commit_log=FileObservation(Path("c"), 65_536),
        consume_queue=FileObservation(Path("q"), 2000),
        index_file=FileObservation(Path("i"), 42_040),
    )
    learnt = resolve_sizes(StoreConfig(), seen)
    assert learnt == StoreSizes(65_536, 2000, 500, 2000)
    assert (learnt.index_layout.size_bytes, learnt.entries_per_file) == (42_040, 100)


def test_files_without_bytes_tell_no_size():
    files = [(Path("a"), 0), (Path("b"), 0), (Path("c"), 2000)]
    assert commonest(files, 20) == FileObservation(Path("c"), 2000)
    assert commonest(files[:2]) is None


@pytest.mark.parametrize(
    ("family", "key", "field"),
    [
        ("commit_log", "mappedFileSizeCommitLog", "mapped_file_size_commit_log"),
        ("consume_queue", "mappedFileSizeConsumeQueue", "mapped_file_size_consume_queue"),
    ],
)
def test_set_size_that_differs_from_the_files_names_file_and_sizes(family, key, field):
    config = StoreConfig(**{field: 4000})
    assert resolve_sizes(config, _observed(family, 4000))
    with pytest.raises(ConfigError, match=f"{key} is 4000, but store/file has 8000 bytes"):
        resolve_sizes(config, _observed(family, 8000))


def test_a_set_size_is_right_though_more_files_were_cut_than_have_it():
    log = [(Path(f"{base:020}"), size) for base, size in ((0, 4096), (4096, 100), (8192, 100))]
    observed_in(StoreConfig(mapped_file_size_commit_log=4096), log, (), ())


@pytest.mark.parametrize(("wanted", "used"), [(20, 20), (21, 40), (1999, 2000), (2000, 2000)])
def test_queue_file_size_is_rounded_up_to_whole_entries(wanted, used):
    config = StoreConfig(mapped_file_size_consume_queue=wanted)
    assert resolve_sizes(config).consume_queue_file_bytes == used
    assert resolve_sizes(config, _observed("consume_queue", used)).consume_queue_file_bytes == used


def test_queue_file_of_half_an_entry_is_named():
    with pytest.raises(ConfigError, match="store/file has 2010 bytes, which are not whole entries"):
        resolve_sizes(StoreConfig(), _observed("consume_queue", 2010))


@pytest.mark.parametrize(
    ("slots", "items"), [(300, 1000), (300, None), (None, 1000)], ids=["both", "slots", "items"]
)
def test_slots_and_items_of_another_ratio_may_be_set(slots, items):
    size = index_file.IndexLayout(300, 1000).size_bytes
    config = StoreConfig(max_hash_slot_num=slots, max_index_num=items)
    learnt = resolve_sizes(config, _observed("index_file", size))
    assert (learnt.hash_slot_count, learnt.index_item_count) == (300, 1000)


def test_slots_and_items_of_another_ratio_cannot_be_learnt():
    size = index_file.IndexLayout(300, 1000).size_bytes
    with pytest.raises(ConfigError, match="--set maxHashSlotNum=… --set maxIndexNum=…"):
        resolve_sizes(StoreConfig(), _observed("index_file", size))


@pytest.mark.parametrize(
    ("slots", "items", "said"),
    [
        (1, None, "maxHashSlotNum=1"),
        (100_000, None, "maxHashSlotNum=100000"),
        (None, 999_999, "maxIndexNum=999999"),
        (301, 1000, "maxHashSlotNum=301 and maxIndexNum=1000"),
    ],
)
def test_a_layout_that_does_not_fit_is_named_with_the_file(slots, items, said):
    seen = ObservedSizes(index_file=FileObservation(Path("index/1"), 40 + 300 * 4 + 1000 * 20))
    config = StoreConfig(max_hash_slot_num=slots, max_index_num=items)
    expected = "cannot be right for index/1, which has 21240 bytes; set both"
    with pytest.raises(ConfigError, match=f"^{said} {expected}"):
        resolve_sizes(config, seen)


@given(st.integers(0, 2**34))
def test_any_index_size_is_learnt_as_the_format_learns_it_or_refused(size):
    try:
        learnt = resolve_sizes(StoreConfig(), _observed("index_file", size))
    except ConfigError:
        with pytest.raises(FormatError):
            index_file.layout_of(size)
    else:
        assert (learnt.hash_slot_count, learnt.index_item_count) == index_file.layout_of(size)


@pytest.mark.parametrize(
    "changed",
    [
        {"max_hash_slot_num": 50},
        {"max_index_num": 380},
        {"max_hash_slot_num": 5, "max_index_num": 419},
    ],
)
@pytest.mark.parametrize("read_only", [True, False])
def test_slots_and_items_that_only_fit_the_length_of_a_written_index_are_refused(
    tmp_path, read_only, changed
):
    """Keys would be looked for, and written, where the file has something else."""
    sizes = {"max_hash_slot_num": 100, "max_index_num": 400}
    with open_small(tmp_path, **sizes) as store:
        for number in range(9):
            store.put(Message(topic="orders", keys=f"k{number}"))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"cannot be right for .*set both to what the writer"):
            MessageStore.open(tmp_path, StoreConfig(**changed), read_only=read_only)
        with MessageStore.open(tmp_path, StoreConfig(**sizes), read_only=read_only) as store:
            assert [len(store.find("orders", f"k{number}")) for number in range(9)] == [1] * 9
    one = dict(list(changed.items())[:1])  # with both set, a file of other sizes is a finding
    with pytest.raises(ConfigError, match="cannot be right for"):
        verify_store(tmp_path, StoreConfig(**one))
