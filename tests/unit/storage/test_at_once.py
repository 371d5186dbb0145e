"""What waits for the disk many times does so at once: an end, an opening after a kill, a flush."""

import _thread
import itertools
import threading
import time
from collections import Counter
from contextlib import contextmanager

import pytest

from rocketstore import Message, MessageStore, StoreConfig, repair_store
from rocketstore.at_once import LEAST_EACH, at_once, spread
from rocketstore.errors import FlushFailedError
from rocketstore.storage.files.disk import Disk
from support.clock import Clock
from support.faulty_disk import FaultyDisk
from support.interrupts import InterruptAt
from support.patience import wait_until

QUEUES = 8 * LEAST_EACH
TOGETHER = 4
LONGEST_S = 30


def test_results_come_in_the_order_of_the_items():
    assert at_once(lambda number: number * 2, range(1000)) == [*range(0, 2000, 2)]
    assert at_once(lambda number: number * 2, range(3)) == [0, 2, 4]
    assert at_once(lambda number: number * 2, []) == []


def test_several_threads_work_and_have_ended_after_it():
    together = threading.Barrier(TOGETHER, timeout=LONGEST_S)
    before, seen = _thread._count(), set()

    def work(_number):
        together.wait()
        seen.add(threading.get_ident())

    at_once(work, range(QUEUES))
    assert len(seen) >= TOGETHER
    wait_until(lambda: _thread._count() <= before)


def test_the_caller_works_alone_where_the_system_gives_no_thread(monkeypatch):
    def refused(*_call):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refused)
    assert at_once(abs, range(QUEUES)) == [*range(QUEUES)]
    assert [*spread(abs, range(3), most=2)] == [*range(3)]


def test_what_is_ready_is_handed_on_before_the_rest_is_done():
    """What a whole store makes of all its files need not be in memory."""
    done = []
    for number in spread(done.append, range(100), most=1):
        assert number is None
        assert len(done) < 100
        break


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


def test_an_interrupt_at_any_line_leaves_no_thread_and_no_lock():
    before = _thread._count()
    for lines in itertools.count(1):
        if not InterruptAt().run(lines, lambda: at_once(lambda _: time.sleep(0.001), range(16))):
            break
        wait_until(lambda: _thread._count() <= before)
        assert at_once(abs, range(16)) == [*range(16)]
    assert lines > 16


class WaitingDisk(Disk):
    """A disk whose syncs wait for each other; `most` are how many of a kind went on at once."""

    def __init__(self) -> None:
        self.most = Counter()
        self._now = Counter()
        self._lock = threading.Lock()
        self._until = time.monotonic() + LONGEST_S

    def fdatasync(self, descriptor, path):
        kind = "copies" if "repair" in path.parts else "files"
        with self._under_way(kind if "consumequeue" in path.parts else "others"):
            super().fdatasync(descriptor, path)

    def fsync_directory(self, directory):
        with self._under_way("topics" if directory.parent.name == "consumequeue" else "others"):
            super().fsync_directory(directory)

    @contextmanager
    def _under_way(self, kind):
        with self._lock:
            self._now[kind] += 1
            self.most[kind] = max(self.most[kind], self._now[kind])
        if kind != "others":  # however late a busy machine starts the threads
            while self.most[kind] < TOGETHER and time.monotonic() < self._until:
                time.sleep(0.001)
        yield
        with self._lock:
            self._now[kind] -= 1


def put_to_each(store):
    for number in range(QUEUES):
        store.put(Message(topic=f"T{number}", body=b"x"))


def test_a_flush_and_an_opening_after_a_kill_wait_for_many_queues_at_once(tmp_path):
    flushed, opened = WaitingDisk(), WaitingDisk()
    config = StoreConfig.small()
    with MessageStore.open(tmp_path, config, clock=Clock(), threads=False, disk=flushed) as store:
        put_to_each(store)
        store.flush()
        put_to_each(store)
        store.abandon()
    with MessageStore.open(tmp_path, config, clock=Clock(), threads=False, disk=opened) as store:
        assert opened.most["topics"] >= TOGETHER
        assert [store.max_offset(f"T{number}", 0) for number in range(QUEUES)] == [2] * QUEUES
    assert flushed.most["files"] >= TOGETHER
    assert flushed.most["topics"] >= TOGETHER


def test_a_repair_waits_for_many_queues_at_once(tmp_path):
    config, disk = StoreConfig.small(), WaitingDisk()
    with MessageStore.open(tmp_path, config, clock=Clock(), threads=False) as store:
        put_to_each(store)
    for number in range(QUEUES):
        with (tmp_path / f"consumequeue/T{number}/0/{0:020d}").open("r+b") as file:
            file.write(b"\xff")
    assert not repair_store(tmp_path, config, disk=disk).remaining
    assert disk.most["copies"] >= TOGETHER
    assert disk.most["topics"] >= TOGETHER
    assert disk.most["files"] >= TOGETHER
    with MessageStore.open(tmp_path, config, clock=Clock(), threads=False) as store:
        for number in range(QUEUES):
            assert store.get(f"T{number}", 0, 0).messages[0].body == b"x"


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
