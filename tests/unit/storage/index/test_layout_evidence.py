"""An index file whose length does not tell its slots and items: cut short, or set otherwise."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from rocketstore.config import FileObservation, StoreConfig
from rocketstore.errors import ConfigError
from rocketstore.storage.audit.repair import repair_store
from rocketstore.storage.audit.verify import verify_store
from rocketstore.storage.index.layout_evidence import believable_index_file
from rocketstore.storage.store import MessageStore
from support.small_store import START_MS, Clock, messages, put_all

if TYPE_CHECKING:
    from pathlib import Path

NOW_MS = START_MS + 3_600_000
SLOTS, ITEMS = 100, 400
USED_END = 40 + 4 * SLOTS + 20 * 61


def store_with_index(root: Path, slots: int, items: int) -> Path:
    config = StoreConfig(
        mapped_file_size_commit_log=65_536,
        mapped_file_size_consume_queue=2_000,
        max_hash_slot_num=slots,
        max_index_num=items,
    )
    clock = Clock()
    with MessageStore.open(root, config, clock=clock, threads=False) as store:
        put_all(store, messages(60), clock)
    (path,) = (root / "index").iterdir()
    return path


@pytest.mark.parametrize(
    "length", [40 + 4 * SLOTS + 20 * 40, 40 + 4 * SLOTS + 333, USED_END + 7, 8_201]
)
def test_a_sole_index_file_that_was_cut_is_a_finding_and_repair_makes_it_anew(
    length: int, tmp_path: Path
) -> None:
    path = store_with_index(tmp_path, SLOTS, ITEMS)
    path.write_bytes(path.read_bytes()[:length])
    found = {finding.kind for finding in verify_store(tmp_path, now_ms=NOW_MS).findings}
    assert "index-length" in found
    repaired = repair_store(tmp_path, now_ms=NOW_MS)
    assert repaired.remaining == []
    (path,) = (tmp_path / "index").iterdir()
    assert path.stat().st_size == 40 + 4 * SLOTS + 20 * ITEMS
    with MessageStore.open(tmp_path, read_only=True) as store:
        assert len(store.find("Topic1", key="key-59")) == 1


@pytest.mark.parametrize("content", [b"", bytes(3000), b"\xff" * 500, b"x" * 39])
def test_an_index_file_that_tells_nothing_counts_for_nothing(
    content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "20231114221320000"
    path.write_bytes(content)
    assert believable_index_file(FileObservation(path, len(content))) is None


def test_a_whole_index_file_of_another_ratio_needs_its_settings(tmp_path: Path) -> None:
    path = store_with_index(tmp_path, 103, 317)
    with pytest.raises(ConfigError, match=r"--set maxHashSlotNum"):
        verify_store(tmp_path, now_ms=NOW_MS)
    config = StoreConfig(max_hash_slot_num=103, max_index_num=317)
    assert verify_store(tmp_path, config, now_ms=NOW_MS).findings == []
    seen = FileObservation(path, path.stat().st_size)
    assert believable_index_file(seen) == seen


def test_random_bytes_never_make_a_layout_or_an_error(tmp_path: Path) -> None:
    path = store_with_index(tmp_path, SLOTS, ITEMS)
    content = path.read_bytes()[:5_001]
    chance = random.Random(5)
    for _ in range(200):
        broken = bytearray(content)
        for _ in range(chance.randint(1, 30)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        path.write_bytes(broken)
        told = believable_index_file(FileObservation(path, len(broken)))
        assert told is None or told.size_bytes in {8_440, len(broken)}
