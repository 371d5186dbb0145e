"""Where recovery after a crash begins: before all of it, log, queues and index are durable."""

import pytest

from rocketstore.format.checkpoint import Checkpoint
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.mapped_file import MappedFile
from rocketstore.storage.recovery.log_survey import crash_start
from support.mapped_bytes import append_bytes
from support.synthetic_log import record_bytes

SIZE = 4096
START_MS = 1_600_000_000_000
NOW_MS = START_MS + 1_000_000


@pytest.fixture
def files(tmp_path):
    """Four files whose first records were stored at 0, 10, 20 and 30 s."""
    return [
        log_file(tmp_path, number, START_MS + 10_000 * number, keys=number == 0)
        for number in range(4)
    ]


def log_file(directory, number, stored, *, keys=False, sys_flag=0):
    file = MappedFile.create(directory / str(number), base=number * SIZE, size=SIZE, disk=Disk())
    properties = b"KEYS\x01k" if keys else b""
    append_bytes(
        file,
        record_bytes(
            file.base, store_timestamp_ms=stored, properties=properties, sys_flag=sys_flag
        ),
    )
    return file


def at(seconds):
    return START_MS + round(seconds * 1000)


def start(files, physic, logics, index, **options):
    options = {"index_enabled": True, "has_index": True, "now_ms": NOW_MS} | options
    return crash_start(files, Checkpoint(physic, logics, index), **options) // SIZE


@pytest.mark.parametrize("which", ["physic", "logics", "index"])
def test_it_begins_before_whatever_is_durable_the_least(files, which):
    times = {"physic": at(100), "logics": at(100), "index": at(100)}
    assert start(files, **times) == 3
    assert start(files, **(times | {which: at(25)})) == 2
    assert start(files, **(times | {which: at(15)})) == 1
    assert start(files, **(times | {which: 0})) == 0


def test_the_margin_is_three_seconds(files):
    for times, wanted in (((at(33),) * 3, 3), ((at(32.999),) * 3, 2)):
        assert start(files, *times) == wanted


def test_without_an_index_its_time_does_not_count(files):
    assert start(files, at(100), at(100), 0, index_enabled=False) == 3


@pytest.mark.parametrize("impossible", [-1, NOW_MS + 10**12, 2**62])
def test_a_time_that_cannot_be_true_is_the_beginning(files, impossible):
    assert start(files, impossible, at(100), at(100)) == 0


def test_a_file_that_looks_older_than_the_one_before_is_passed_over(files, tmp_path):
    files.append(log_file(tmp_path, 4, at(5)))
    assert start(files, at(35), at(35), at(35)) == 3


def test_a_file_without_a_readable_first_record_is_passed_over(files):
    files[3].write_bytes(0, bytes(100))
    assert start(files, at(100), at(100), at(100)) == 2


def test_records_with_keys_and_no_index_at_all_are_all_indexed_again(files):
    assert start(files[:2], at(100), at(100), at(100)) == 1
    assert start(files[:2], at(100), at(100), at(100), has_index=False) == 0


def test_keys_of_rolled_back_messages_need_no_index(tmp_path):
    first = log_file(tmp_path, 0, START_MS, keys=True, sys_flag=0xC)
    files = [first, log_file(tmp_path, 1, at(10))]
    assert start(files, at(100), at(100), at(100), has_index=False) == 1
