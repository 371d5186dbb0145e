"""Who copies a store by the times of its files (rsync, incremental backups) copies all of it."""

import os
from pathlib import Path

import pytest

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.config import FlushDiskType
from support.fault_workload import small_files
from support.power_cut import abandon

LONG_AGO = (1_000_000_000, 1_000_000_000)


def files_of(root: Path) -> dict[Path, bytes]:
    parts = ("commitlog", "consumequeue", "index")
    return {
        path: path.read_bytes()
        for part in parts
        for path in (root / part).rglob("*")
        if path.is_file()
    }


def put(store: MessageStore, count: int, body: bytes) -> None:
    for number in range(count):
        message = Message(topic="orders", body=body, keys=(f"k-{number}",))
        store.put(message).raise_for_status()
    assert store.wait_dispatched()


def same_time(before: dict[Path, bytes]) -> list[Path]:
    """Return the files that hold something else than before, and do not say so."""
    changed = [path for path, content in before.items() if path.read_bytes() != content]
    return [path for path in changed if path.stat().st_mtime == LONG_AGO[1]]


def copied(root: Path) -> dict[Path, bytes]:
    """Let each file look as if a copier had just seen it."""
    found = files_of(root)
    for path in found:
        os.utime(path, LONG_AGO)
    return found


CONFIGS = [
    *(small_files(flush) for flush in FlushDiskType),
    StoreConfig(
        mapped_file_size_commit_log=32_768, max_hash_slot_num=50, max_index_num=200,
        mapped_file_size_consume_queue=1200, transient_store_pool_enable=True,
    ),
]  # fmt: skip
NAMES = [*(flush.value for flush in FlushDiskType), "pool"]


@pytest.mark.parametrize("count", [3, 400], ids=["into-one-page", "over-many-files"])
@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_each_file_that_changed_since_a_copy_says_so_after_an_orderly_end(tmp_path, config, count):
    with MessageStore.open(tmp_path, config) as store:
        put(store, 3, b"before")
        before = copied(tmp_path)
        assert len(before) >= 3
        put(store, count, b"after")
    assert not same_time(before)


def test_what_a_killed_writer_wrote_says_so_after_the_next_end(tmp_path):
    config = small_files(FlushDiskType.ASYNC_FLUSH)
    store = MessageStore.open(tmp_path, config, threads=False)
    put(store, 3, b"before")
    before = copied(tmp_path)
    put(store, 3, b"after")
    abandon(store)
    MessageStore.open(tmp_path, config).close()
    assert not same_time(before)
