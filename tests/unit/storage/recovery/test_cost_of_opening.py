"""What an opening reads: the end of the log, and no zeros that something brought into memory."""

import pytest

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.storage.files.whole_file import data_stop
from rocketstore.units import MiB
from support.clock import Clock

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
