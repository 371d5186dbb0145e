"""What an opening reads: the end of the log, and no zeros that something left after it."""

import os

import pytest

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.holes import data_stop
from rocketstore.storage.files.ahead import touch_pages
from rocketstore.storage.files.disk import Disk
from rocketstore.units import OS_PAGE_SIZE_BYTES, MiB
from support.clock import Clock
from support.inside import parts_of

LOG_FILE_BYTES = 64 * MiB
CONFIG = StoreConfig.small(mapped_file_size_commit_log=LOG_FILE_BYTES)


def known_data(path):
    with path.open("rb", buffering=0) as file:
        return data_stop(file.fileno(), LOG_FILE_BYTES)


@pytest.mark.parametrize("count", [1, 9])
def test_zeros_that_a_backup_brought_into_memory_are_not_read_at_each_opening(
    tmp_path_factory, count
):
    root = tmp_path_factory.mktemp("store")  # on a disk: memory knows zeros that were read
    with MessageStore.open(root, CONFIG, clock=Clock(), threads=False) as store:
        for number in range(count):
            store.put(Message(topic="T", body=b"x" * number))
    log_file = root / "commitlog" / f"{0:020d}"
    log_file.read_bytes()
    if known_data(log_file) < LOG_FILE_BYTES:
        pytest.skip("this file system tells zeros that were read from data")
    with MessageStore.open(root, CONFIG, clock=Clock(), threads=False) as store:
        assert known_data(log_file) < LOG_FILE_BYTES // 2
        assert store.max_offset("T", 0) == count
        assert not store.recovery.findings


def can_know_zeros(path):
    path.write_bytes(bytes(MiB))
    with path.open("r+b", buffering=0) as file:
        os.fsync(file.fileno())
        Disk().know_zeros(file.fileno(), 0, MiB)
        return data_stop(file.fileno(), MiB) == 0


def test_pages_touched_ahead_of_a_writer_are_given_back_at_an_orderly_end(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    if not can_know_zeros(root.with_name("zeros")):
        pytest.skip("this file system cannot be told that bytes are zeros")
    log_file = root / "commitlog" / f"{0:020d}"
    with MessageStore.open(root, CONFIG, clock=Clock(), threads=False) as store:
        store.put(Message(topic="T", body=b"x"))
        file = parts_of(store).log.files.last()
        assert touch_pages(file, OS_PAGE_SIZE_BYTES, 8 * MiB)
        file.sync()
        assert known_data(log_file) >= 8 * MiB
        assert store.put(Message(topic="T", body=b"y" * OS_PAGE_SIZE_BYTES)).is_stored
        end = store.max_physical_offset
    assert end <= known_data(log_file) < end + OS_PAGE_SIZE_BYTES
    with MessageStore.open(root, CONFIG, clock=Clock(), threads=False) as store:
        assert store.max_offset("T", 0) == 2
        assert store.get("T", 0, 1).messages[0].body == b"y" * OS_PAGE_SIZE_BYTES
        assert not store.recovery.findings
