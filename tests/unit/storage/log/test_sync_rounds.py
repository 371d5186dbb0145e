"""Rounds in which the thread that syncs serves puts and does nothing else (`sync_rounds`)."""

import errno
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rocketstore.config import FlushDiskType, StoreConfig
from rocketstore.errors import FlushFailedError
from rocketstore.message import Message
from rocketstore.native.group import SyncGroup
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.results import PutMessageStatus
from support.log_parts import LogParts
from support.patience import PATIENCE_S

SYNC = StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH)
LONGEST_S = 0.2
FAR = 1 << 40


class Waiter(threading.Thread):
    """Waits for one offset."""

    def __init__(self, group, offset):
        super().__init__(daemon=True)
        self.group, self.offset, self.result = group, offset, None
        before = len(group)
        self.start()
        while len(group) == before:
            pass

    def run(self):
        self.result = self.group.wait(self.offset, 30)

    def ended(self):
        self.join(PATIENCE_S)
        assert not self.is_alive()
        return self.result


class SyncCalls:
    """Counts syncs, and does something in each."""

    def __init__(self, then=lambda: None):
        self.count, self.then = 0, then

    def __call__(self):
        self.count += 1
        self.then()


@pytest.fixture
def group():
    made = SyncGroup()
    made.open()
    return made


@pytest.fixture
def descriptor(tmp_path):
    made = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield made
    os.close(made)


def test_all_that_wait_are_served_up_to_where_they_want(group, descriptor):
    waiters = [Waiter(group, offset) for offset in (30, 10, 20)]
    took_s = group.sync_rounds(descriptor, FAR, 0.0)
    assert 0 < took_s < 10
    assert group.flushed_offset == 30
    group.let_go()
    assert [waiter.ended() for waiter in waiters] == [True] * 3


def test_a_put_that_comes_during_a_round_is_served_by_the_next(group):
    late = []
    sync = SyncCalls(lambda: late or late.append(Waiter(group, 20)))
    first = Waiter(group, 10)
    assert group.sync_rounds(sync, FAR, LONGEST_S) is not None
    assert sync.count == 2
    assert group.flushed_offset == 20
    group.let_go()
    assert first.ended()
    assert late[0].ended()


def test_rounds_end_when_their_time_is_over(group):
    first = Waiter(group, 10)
    assert group.gather(0.0) is False
    began = time.monotonic()
    assert group.sync_rounds(SyncCalls(), FAR, 0.05) is not None
    assert 0.05 <= time.monotonic() - began < 10
    assert first.ended()


def test_nothing_is_done_where_nobody_waits_or_somebody_wants_another_file(group):
    sync = SyncCalls()
    assert group.sync_rounds(sync, FAR, LONGEST_S) is None
    near, far = Waiter(group, 10), Waiter(group, 11)
    assert group.sync_rounds(sync, 10, LONGEST_S) is None
    assert sync.count == 0
    assert len(group) == 2
    assert group.sync_rounds(sync, 11, 0.0) is not None
    group.let_go()
    assert near.ended()
    assert far.ended()


def test_a_put_that_asks_ends_the_rounds_and_is_heard_by_the_next_that_gathers(group):
    first = Waiter(group, 10)
    asker = threading.Timer(0.05, group.ask)
    asker.start()
    began = time.monotonic()
    assert group.sync_rounds(SyncCalls(), FAR, 60.0) is not None
    assert time.monotonic() - began < 30
    assert group.gather(0.0) is True
    assert first.ended()


def test_a_failed_sync_serves_nobody(group):
    ends = os.pipe()
    waiter = Waiter(group, 10)
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        group.sync_rounds(ends[0], FAR, LONGEST_S)
    assert group.flushed_offset == -1
    assert waiter.is_alive()
    group.close()
    assert waiter.ended() is False
    for end in ends:
        os.close(end)


def test_what_a_call_raises_comes_out(group):
    def fail():
        raise KeyError("x")

    waiter = Waiter(group, 10)
    with pytest.raises(KeyError):
        group.sync_rounds(fail, FAR, LONGEST_S)
    assert group.flushed_offset == -1
    group.close()
    assert waiter.ended() is False


@pytest.mark.parametrize("arguments", [(), (1, 2), ("x", "y", "z"), (1, 2, "z")])
def test_wrong_arguments_are_refused(group, arguments):
    with pytest.raises((TypeError, OverflowError)):
        group.sync_rounds(*arguments)


# --- with a log ---------------------------------------------------------------------------------


class BrokenDisk(Disk):
    """Lends a descriptor that cannot be synced, once told to."""

    is_broken = False

    def sync_call(self, descriptor, path):
        ends = os.pipe()
        os.close(ends[1])
        return ends[0] if self.is_broken else super().sync_call(descriptor, path)


@pytest.mark.parametrize("threads", [1, 5])
def test_every_sync_put_is_on_the_disk_when_it_returns_over_many_files(tmp_path, threads):
    parts = LogParts(tmp_path, SYNC)
    parts.flusher.start()
    too_early = []

    def put(number):
        for turn in range(60):
            result = parts.writer.put(Message(topic="t", body=bytes(50 + 7 * turn)), number)
            end = result.physical_offset + result.size
            if result.status is not PutMessageStatus.PUT_OK or parts.log.flushed_offset < end:
                too_early.append(result)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(put, range(threads)))
    assert too_early == []
    assert len(parts.files.files) > 3
    parts.flusher.close()
    assert [file.flushed_position for file in parts.files.files] == [
        file.write_position for file in parts.files.files
    ]
    assert parts.checkpoint.times.physic_ms == parts.clock.now_ms


def test_the_checkpoint_never_runs_ahead_of_the_disk(tmp_path):
    parts = LogParts(tmp_path, SYNC, log_file_bytes=1 << 20)
    parts.flusher.start()
    ahead = []
    for _ in range(200):
        parts.clock.now_ms += 1
        known = parts.checkpoint.times.physic_ms
        if known >= parts.clock.now_ms:
            ahead.append(known)
        parts.writer.put(Message(topic="t"))
    assert ahead == []
    parts.flusher.close()
    assert parts.checkpoint.times.physic_ms == parts.clock.now_ms


def test_a_sync_of_the_system_that_fails_stops_the_writer(tmp_path):
    parts = LogParts(tmp_path, SYNC, disk=BrokenDisk(), log_file_bytes=1 << 20)
    parts.flusher.start()
    assert parts.writer.put(Message(topic="t")).status is PutMessageStatus.PUT_OK
    flushed = parts.log.flushed_offset
    with parts.flusher._flushing:  # after the rounds that go on; the next have a new descriptor
        parts.disk.is_broken = True
    with pytest.raises(FlushFailedError, match="fdatasync"):
        parts.writer.put(Message(topic="t"))
    parts.disk.is_broken = False
    with pytest.raises(FlushFailedError):
        parts.writer.put(Message(topic="t"))
    assert parts.log.flushed_offset == flushed
    with pytest.raises(FlushFailedError):
        parts.flusher.close()


def test_a_disk_lends_its_descriptor_only_if_its_sync_is_the_system_s(tmp_path):
    class Other(Disk):
        synced = 0

        def fdatasync(self, descriptor, path):
            self.synced += 1

    assert Disk().sync_call(7, tmp_path) == 7
    other = Other()
    other.sync_call(7, tmp_path)()
    assert other.synced == 1
    patched = Disk()
    patched.fdatasync = lambda descriptor, path: None
    assert callable(patched.sync_call(7, tmp_path))
