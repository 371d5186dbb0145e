"""What waits for the disk many times does so at once: an end, an opening after a kill, a flush."""

import threading
import time

import pytest

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.errors import FlushFailedError
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.threads import LEAST_EACH, at_once
from support.clock import Clock
from support.faulty_disk import FaultyDisk

QUEUES = 8 * LEAST_EACH
TOGETHER = 4
LONGEST_S = 30


def test_results_come_in_the_order_of_the_items():
    assert at_once(lambda number: number * 2, range(1000)) == [*range(0, 2000, 2)]
    assert at_once(lambda number: number * 2, range(3)) == [0, 2, 4]
    assert at_once(lambda number: number * 2, []) == []


def test_several_threads_work_and_have_ended_after_it():
    together = threading.Barrier(TOGETHER, timeout=LONGEST_S)
    seen = set()

    def work(_number):
        together.wait()
        seen.add(threading.current_thread())

    at_once(work, range(QUEUES))
    assert len(seen) >= TOGETHER
    assert not any(thread.is_alive() for thread in seen - {threading.current_thread()})


def test_the_caller_works_alone_where_the_system_gives_no_thread(monkeypatch):
    def refused(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert at_once(abs, range(QUEUES)) == [*range(QUEUES)]


@pytest.mark.parametrize("error", [ValueError, IndexError, KeyboardInterrupt])
def test_an_error_is_raised_and_nothing_more_is_begun(error):
    begun = []
    failed = threading.Event()

    def work(number):
        begun.append(number)
        if number == 2:
            failed.set()
            raise error
        failed.wait(LONGEST_S)
        time.sleep(0.01)

    with pytest.raises(error):
        at_once(work, range(1000))
    assert len(begun) < 1000


class TogetherDisk(Disk):
    """A disk whose syncs of queues' files, or of topics' directories, end only several at once."""

    def __init__(self) -> None:
        self.together = threading.Barrier(TOGETHER, timeout=LONGEST_S)

    def fdatasync(self, descriptor, path):
        if "consumequeue" in path.parts:
            self.together.wait()
        super().fdatasync(descriptor, path)

    def fsync_directory(self, directory):
        if directory.parent.name == "consumequeue":
            self.together.wait()
        super().fsync_directory(directory)


def put_to_each(store):
    for number in range(QUEUES):
        store.put(Message(topic=f"T{number}", body=b"x"))


def test_a_flush_and_an_opening_after_a_kill_wait_for_many_queues_at_once(tmp_path):
    disk = TogetherDisk()
    config = StoreConfig.small()
    with MessageStore.open(tmp_path, config, clock=Clock(), threads=False, disk=disk) as store:
        put_to_each(store)
        store.flush()
        put_to_each(store)
        store.abandon()
    with MessageStore.open(tmp_path, config, clock=Clock(), threads=False, disk=disk) as store:
        assert [store.max_offset(f"T{number}", 0) for number in range(QUEUES)] == [2] * QUEUES


def test_every_queue_is_tried_where_one_of_many_fails(tmp_path):
    bad = tmp_path / "consumequeue" / "T3"
    disk = FaultyDisk(
        lambda call, path, _: 5 if call == "fdatasync" and bad in path.parents else None
    )
    with MessageStore.open(
        tmp_path, StoreConfig.small(), clock=Clock(), threads=False, disk=disk
    ) as store:
        put_to_each(store)
        before = disk.calls["fdatasync"]
        with pytest.raises(FlushFailedError, match="T3"):
            store.flush()
        assert disk.calls["fdatasync"] - before >= QUEUES
        disk.fails = lambda *_: None
