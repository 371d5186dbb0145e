"""A disk that is really full: a status or a typed error, no signal, and nothing acknowledged lost.

A small tmpfs is filled by a process of its own, because the fault that must not happen, SIGBUS,
would take the test with it. Single calls that find no room are in ``tests/unit/storage``
(``test_put.py``, ``test_preallocate.py``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rocketstore import MessageStore
from rocketstore.storage.verify import verify_store

if TYPE_CHECKING:
    from collections.abc import Iterator

DISK_BYTES = 3 * 1024 * 1024

WRITER = """
import json, sys
from rocketstore import FlushDiskType, Message, MessageStore, RocketStoreError, StoreConfig

config = StoreConfig(
    mapped_file_size_commit_log=262144, mapped_file_size_consume_queue=20000,
    max_hash_slot_num=1000, max_index_num=4000, retention=False,
    flush_disk_type=FlushDiskType(sys.argv[2]),
)
acknowledged, refused = 0, []
with MessageStore.open(sys.argv[1], config) as store:
    for number in range(20000):
        message = Message(topic="full", body=b"%06d" % number + b"x" * 1000, keys=f"k{number}")
        result = store.put(message)
        if result.status.value == "PUT_OK":
            acknowledged += 1
        else:
            refused.append((result.status.value, result.detail))
        if len(refused) == 5:
            break
print(json.dumps({"acknowledged": acknowledged, "refused": refused}))
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(mount)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_full_disk_is_a_status_and_every_acknowledged_message_is_there_afterwards(
    small_disk: Path, flush: str
) -> None:
    root = small_disk / "store"
    command = [sys.executable, "-W", "ignore", "-c", WRITER, str(root), flush]
    written = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert written.returncode == 0, (written.returncode, written.stderr)
    outcome = json.loads(written.stdout)
    assert outcome["acknowledged"] > 100
    assert len(outcome["refused"]) == 5
    assert {status for status, _ in outcome["refused"]} == {"CREATE_MAPEDFILE_FAILED"}
    assert "no room" in outcome["refused"][0][1]
    with MessageStore.open(root, read_only=True) as store:
        numbers = []
        while page := store.get("full", 0, len(numbers)).messages:
            numbers += [int(message.body[:6]) for message in page]
    assert numbers == list(range(outcome["acknowledged"]))
    assert not verify_store(root).is_damaged


def test_a_store_opens_for_writing_on_the_disk_that_it_filled(small_disk: Path) -> None:
    root = small_disk / "store"
    command = [sys.executable, "-W", "ignore", "-c", WRITER, str(root), "ASYNC_FLUSH"]
    written = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    count = json.loads(written.stdout)["acknowledged"]
    with MessageStore.open(root) as store:
        assert store.max_offset("full", 0) == count
        assert [m.queue_offset for m in store.find("full", key=f"k{count - 1}")] == [count - 1]
