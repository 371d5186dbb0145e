"""An index file whose length does not tell its slots and items: cut short, or set otherwise."""

from pathlib import Path

import pytest

from rocketstore import repair_store, verify_store
from rocketstore.config import StoreConfig
from rocketstore.errors import ConfigError
from rocketstore.message_store import MessageStore
from support.clock import START_MS, Clock
from support.configured_store import small_config
from support.small_store import messages, put_all

NOW_MS = START_MS + 3_600_000
SLOTS, ITEMS = 100, 400
USED_END = 40 + 4 * SLOTS + 20 * 61


def store_with_index(root: Path, slots: int, items: int) -> Path:
    config = small_config(max_hash_slot_num=slots, max_index_num=items)
    clock = Clock()
    with MessageStore.open(root, config, clock=clock, threads=False) as store:
        put_all(store, messages(60), clock)
    (path,) = (root / "index").iterdir()
    return path


CUT = [40 + 4 * SLOTS + 20 * 40, 40 + 4 * SLOTS + 333, USED_END + 7, 8_201]


@pytest.mark.parametrize("length", CUT)
def test_a_sole_index_file_that_was_cut_is_a_finding_and_repair_makes_it_again(length, tmp_path):
    path = store_with_index(tmp_path, SLOTS, ITEMS)
    path.write_bytes(path.read_bytes()[:length])
    config = StoreConfig(max_hash_slot_num=SLOTS, max_index_num=ITEMS)
    found = {finding.kind for finding in verify_store(tmp_path, config, now_ms=NOW_MS).findings}
    assert "index-length" in found
    repaired = repair_store(tmp_path, config=config, now_ms=NOW_MS)
    assert repaired.remaining == []
    (path,) = (tmp_path / "index").iterdir()
    assert path.stat().st_size == 40 + 4 * SLOTS + 20 * ITEMS
    with MessageStore.open(tmp_path, read_only=True) as store:
        assert len(store.find("Topic1", key="key-59")) == 1


@pytest.mark.parametrize("length", CUT)
def test_what_is_left_of_a_sole_index_file_does_not_tell_its_settings(length, tmp_path):
    path = store_with_index(tmp_path, SLOTS, ITEMS)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ConfigError, match=r"move it out of index/"):
        verify_store(tmp_path, now_ms=NOW_MS)


def test_a_whole_index_file_of_another_ratio_needs_its_settings(tmp_path):
    store_with_index(tmp_path, 103, 317)
    with pytest.raises(ConfigError, match=r"--set maxHashSlotNum"):
        verify_store(tmp_path, now_ms=NOW_MS)
    config = StoreConfig(max_hash_slot_num=103, max_index_num=317)
    assert verify_store(tmp_path, config, now_ms=NOW_MS).findings == []
