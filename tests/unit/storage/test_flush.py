"""What "stored" means in each flush mode, and what a failed sync stops (spec B9.1, B9.2)."""

from __future__ import annotations

import threading

import pytest

from rocketstore import FlushDiskType, FlushFailedError, Message, PutMessageStatus, StoreConfig
from rocketstore.storage.checkpoint import read_checkpoint
from rocketstore.storage.flush import CommitLogFlusher
from support.failing_disk import FailingDisk
from support.small_store import LOG_FILE_BYTES, START_MS, Clock, open_small

SYNC = FlushDiskType.SYNC_FLUSH
WAIT_S = 30
PAGE = 4096


class GatedDisk(FailingDisk):
    """Lets a test hold back the syncs of the CommitLog."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)

    def fdatasync(self, descriptor, path):
        if path.parent.name == "commitlog":
            self.entered.release()
            self.gate.wait(WAIT_S)
        super().fdatasync(descriptor, path)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def disk():
    return GatedDisk()


@pytest.fixture
def sync_store(tmp_path, clock, disk):
    with open_small(
        tmp_path / "store", clock, disk=disk, threads=True, flush_disk_type=SYNC
    ) as store:
        yield store


def message(size=1, **fields):
    return Message(topic="TopicTest", body=bytes(size), **fields)


def log_syncs(disk):
    return sum(
        what == "fdatasync" and name.isdigit() and len(name) == 20 for what, name in disk.calls
    )


# --- SYNC_FLUSH -----------------------------------------------------------------------------------


def test_a_put_is_acknowledged_only_after_its_bytes_are_synced(sync_store, disk):
    sync_store.put(message())  # makes the file
    disk.gate.clear()
    while disk.entered.acquire(blocking=False):
        pass
    results = []
    putter = threading.Thread(target=lambda: results.append(sync_store.put(message())))
    putter.start()
    assert disk.entered.acquire(timeout=WAIT_S)
    assert results == []
    disk.gate.set()
    putter.join(WAIT_S)
    (result,) = results
    assert result.status is PutMessageStatus.PUT_OK
    assert sync_store.flushed_physical_offset >= result.physical_offset + result.size


def test_one_sync_serves_all_puts_that_came_meanwhile(sync_store, disk):
    sync_store.put(message())
    disk.gate.clear()
    putters = [threading.Thread(target=sync_store.put, args=(message(),)) for _ in range(16)]
    first = putters[0]
    first.start()
    disk.entered.acquire(timeout=WAIT_S)
    for putter in putters[1:]:
        putter.start()
    while sync_store.next_queue_offset("TopicTest", 0) < 17:
        pass
    before = log_syncs(disk)
    disk.gate.set()
    for putter in putters:
        putter.join(WAIT_S)
    assert log_syncs(disk) - before <= 3


def test_a_put_that_is_not_synced_in_time_is_stored_and_says_so(tmp_path, disk):
    with open_small(
        tmp_path / "store", disk=disk, threads=True, flush_disk_type=SYNC, sync_flush_timeout=200
    ) as store:
        store.put(message())  # makes the file
        disk.gate.clear()
        result = store.put(message())
        assert result.status is PutMessageStatus.FLUSH_DISK_TIMEOUT
        assert result.is_stored
        assert result.message_id
        disk.gate.set()
        assert store.wait_dispatched(timeout_s=WAIT_S)
        assert len(store.get("TopicTest", 0, 0).messages) == 2


@pytest.mark.parametrize(
    "fields", [{"wait_flush": False}, {"properties": {"WAIT": "false"}}], ids=["field", "property"]
)
def test_a_put_that_does_not_ask_to_wait_does_not(sync_store, disk, fields):
    sync_store.put(message())
    disk.gate.clear()
    result = sync_store.put(message(**fields))
    assert result.status is PutMessageStatus.PUT_OK
    assert sync_store.flushed_physical_offset < result.physical_offset + result.size
    disk.gate.set()
    assert sync_store.wait_dispatched(timeout_s=WAIT_S)


def test_messages_over_several_files_are_one_wait(sync_store):
    for _ in range(5):
        result = sync_store.put_batch([message(9000) for _ in range(6)])
        assert result.status is PutMessageStatus.PUT_OK
    assert sync_store.max_physical_offset > 3 * LOG_FILE_BYTES
    assert sync_store.flushed_physical_offset == sync_store.max_physical_offset


def test_consumers_see_only_what_is_synced(sync_store, disk):
    sync_store.put(message())
    assert sync_store.wait_dispatched(timeout_s=WAIT_S)
    disk.gate.clear()
    result = sync_store.put(message(wait_flush=False))
    assert not sync_store.wait_for("TopicTest", 0, 1, timeout_s=0.05)
    assert sync_store.max_offset("TopicTest", 0) == 1
    assert sync_store.by_id(result.message_id) is None
    disk.gate.set()
    assert sync_store.wait_for("TopicTest", 0, 1, timeout_s=WAIT_S)
    assert sync_store.by_id(result.message_id) is not None


# --- a sync that fails ----------------------------------------------------------------------------


def test_a_failed_sync_fails_the_put_and_every_later_one(tmp_path, disk):
    store = open_small(tmp_path / "store", disk=disk, threads=True, flush_disk_type=SYNC)
    good = store.put(message())
    disk.fails_sync = {"*"}
    with pytest.raises(FlushFailedError, match="fdatasync"):
        store.put(message())
    disk.fails_sync = set()
    # A later sync may succeed although pages are gone: nothing is acknowledged any more.
    with pytest.raises(FlushFailedError):
        store.put(message())
    assert store.flushed_physical_offset == good.physical_offset + good.size
    with pytest.raises(FlushFailedError):
        store.close()
    assert store.layout.abort.exists()


def test_a_failed_background_sync_stops_puts_of_async_flush_too(tmp_path, disk):
    store = open_small(tmp_path / "store", disk=disk)
    store.put(message())
    disk.fails_sync = {"*"}
    with pytest.raises(FlushFailedError):
        store.flush()
    with pytest.raises(FlushFailedError):
        store.put(message())
    with pytest.raises(FlushFailedError):
        store.close()


# --- ASYNC_FLUSH ----------------------------------------------------------------------------------


@pytest.fixture
def async_store(tmp_path, clock, disk):
    with open_small(tmp_path / "store", clock, disk=disk) as store:
        yield store


def flusher_of(store, **settings) -> CommitLogFlusher:
    parts = store._parts
    flusher = CommitLogFlusher(
        parts.log, checkpoint=parts.checkpoint, config=StoreConfig(**settings), clock=parts.clock
    )
    flusher._last_thorough_ms = parts.clock()
    return flusher


def test_the_defaults_are_those_of_4_9():
    config = StoreConfig()
    assert config.flush_interval_commit_log == 500
    assert config.flush_commit_log_least_pages == 4
    assert config.flush_commit_log_thorough_interval == 10_000
    assert config.flush_commit_log_timed
    assert config.sync_flush_timeout == 5000


def test_an_asynchronous_put_does_not_sync(async_store, disk):
    async_store.put(message())  # makes the file
    before = log_syncs(disk)
    result = async_store.put(message())
    assert result.status is PutMessageStatus.PUT_OK
    assert log_syncs(disk) == before
    assert async_store.flushed_physical_offset == 0


def test_a_turn_leaves_fewer_than_four_new_pages_for_later(async_store, clock):
    flusher = flusher_of(async_store)
    async_store.put(message(3 * PAGE))
    assert flusher.run_once(clock.now_ms + 500) == 0
    async_store.put(message(PAGE))
    assert flusher.run_once(clock.now_ms + 1000) == async_store.max_physical_offset


def test_after_ten_seconds_a_turn_flushes_every_byte(async_store, clock):
    flusher = flusher_of(async_store)
    async_store.put(message())
    assert flusher.run_once(clock.now_ms + 9_999) == 0
    assert flusher.run_once(clock.now_ms + 10_000) == async_store.max_physical_offset
    async_store.put(message())
    assert flusher.run_once(clock.now_ms + 19_999) < async_store.max_physical_offset


def test_the_checkpoint_learns_the_time_of_the_last_message_that_is_on_disk(async_store, clock):
    flusher = flusher_of(async_store)
    async_store.put(message())
    clock.now_ms += 7
    async_store.put(message())
    assert async_store._parts.checkpoint.times.physic_ms == 0
    flusher.flush()
    assert async_store._parts.checkpoint.times.physic_ms == START_MS + 7


def test_the_background_thread_flushes_by_itself(tmp_path):
    with open_small(
        tmp_path / "store",
        threads=True,
        flush_interval_commit_log=1,
        flush_commit_log_thorough_interval=0,
    ) as store:
        result = store.put(message())
        flusher = store._services.flusher
        assert flusher.wait_flushed(result.physical_offset + result.size, WAIT_S)


def test_without_the_timer_a_put_wakes_the_flush(tmp_path):
    with open_small(
        tmp_path / "store",
        threads=True,
        flush_interval_commit_log=3_600_000,
        flush_commit_log_timed=False,
        flush_commit_log_least_pages=0,
    ) as store:
        end = store.put(message()).size
        flushed = threading.Event()
        store._services.flusher.on_flushed = flushed.set
        while store.flushed_physical_offset < end and flushed.wait(WAIT_S):
            flushed.clear()
        assert store.flushed_physical_offset >= end


def test_an_orderly_close_flushes_everything_and_writes_the_checkpoint(tmp_path):
    with open_small(tmp_path / "store") as store:
        store.put(message())
        root = store.layout
    times = read_checkpoint(root.checkpoint)
    assert (times.physic_ms, times.logics_ms, times.index_ms) == (START_MS,) * 3
    assert not root.abort.exists()


def test_flush_makes_everything_durable_at_once(async_store):
    async_store.put(message(keys="k"))
    async_store.flush()
    times = read_checkpoint(async_store.layout.checkpoint)
    assert (times.physic_ms, times.logics_ms, times.index_ms) == (START_MS,) * 3
    assert async_store.flushed_physical_offset == async_store.max_physical_offset
