"""Flush: nothing is acknowledged before its sync, one sync serves many, one failure ends it all."""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rocketstore.config import FlushDiskType, StoreConfig
from rocketstore.errors import FlushFailedError
from rocketstore.message import Message
from rocketstore.storage.log.prepared import PreparedMessage
from rocketstore.storage.results import PutMessageStatus
from rocketstore.units import MiB
from support.failing_disk import FailingDisk, HeldDisk
from support.log_parts import LOG_FILE_BYTES, LogParts
from support.patience import PATIENCE_S, wait_until
from support.said import capture_logs

# Longer than a put can take: one that is not woken takes longer, and so is noticed.
UNWOKEN_S = 45
SYNC = StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout=UNWOKEN_S * 1000)
MESSAGE = Message(topic="orders", body=b"x" * 100)


class RecordingDisk(FailingDisk):
    """Knows what was in the log when the last sync without an error began."""

    def __init__(self) -> None:
        super().__init__()
        self.end = lambda: 0
        self.durable_end = 0

    def fdatasync(self, descriptor: int, path: Path) -> None:
        end = self.end()
        super().fdatasync(descriptor, path)
        self.durable_end = end


@pytest.fixture
def sync_parts(tmp_path):
    parts = LogParts(tmp_path, SYNC, disk=HeldDisk(), log_file_bytes=65_536)
    parts.writer.put(MESSAGE)  # makes the file, whose creation syncs it
    parts.flusher.start()
    yield parts
    parts.disk.may_go.set()
    if parts.flusher.failure is None:
        parts.flusher.close()


def put(parts):
    """Put as a store does: the second one of a queue is plain, and waits by itself."""
    return parts.writer.put_at_once(MESSAGE) or parts.writer.put(MESSAGE)


def test_a_sync_put_returns_after_its_bytes_are_on_the_disk(sync_parts):
    for _ in range(2):
        result = put(sync_parts)
        assert result.status is PutMessageStatus.PUT_OK
        assert sync_parts.log.flushed_offset >= result.physical_offset + result.size


def test_a_sync_put_waits_while_the_disk_does(sync_parts):
    disk = sync_parts.disk
    put(sync_parts)
    disk.may_go.clear()
    disk.is_waiting.clear()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(put, sync_parts)
        assert disk.is_waiting.wait(PATIENCE_S)
        assert not future.done()
        assert sync_parts.log.flushed_offset < sync_parts.log.max_offset
        disk.may_go.set()
        assert future.result(PATIENCE_S).status is PutMessageStatus.PUT_OK


def test_one_sync_serves_all_puts_that_came_during_the_one_before(sync_parts):
    disk = sync_parts.disk
    disk.may_go.clear()
    disk.is_waiting.clear()
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(sync_parts.writer.put, MESSAGE)
        assert disk.is_waiting.wait(PATIENCE_S)
        before = disk.count("fdatasync")
        others = [pool.submit(sync_parts.writer.put, MESSAGE) for _ in range(16)]
        while len(sync_parts.flusher.group) < 16:
            pass
        began = time.monotonic()
        disk.may_go.set()
        assert {future.result(PATIENCE_S).status for future in [first, *others]} == {
            PutMessageStatus.PUT_OK
        }
        assert time.monotonic() - began < UNWOKEN_S
    assert disk.count("fdatasync") - before == 2


def test_a_put_that_waits_for_no_flush_is_flushed_all_the_same(sync_parts):
    result = sync_parts.writer.put(Message(topic="orders", wait_flush=False))
    assert result.status is PutMessageStatus.PUT_OK
    assert sync_parts.flusher.wait_flushed(result.physical_offset + result.size, 10)


@pytest.mark.parametrize(("wait", "waits"), [("true", True), ("TRUE", True), ("no", False)])
def test_the_property_wait_is_java_s_boolean(sync_parts, wait, waits):
    disk = sync_parts.disk
    disk.may_go.clear()
    with ThreadPoolExecutor(1) as pool:
        message = Message(topic="orders", properties={"WAIT": wait})
        future = pool.submit(sync_parts.writer.put, message)
        if waits:
            while not sync_parts.flusher.group and not disk.is_waiting.is_set():
                pass
            assert not future.done()
        else:
            assert future.result(PATIENCE_S).status is PutMessageStatus.PUT_OK
        disk.may_go.set()


@pytest.mark.parametrize("in_rounds", [True, False])
def test_a_sync_says_nothing_of_what_was_put_while_it_ran(sync_parts, in_rounds):
    disk, group = sync_parts.disk, sync_parts.flusher.group
    if not in_rounds:  # as in a file whose name is not on the disk yet
        sync_parts.flusher._flush_in_rounds = lambda: False
    disk.may_go.clear()
    disk.is_waiting.clear()
    told = []
    disk.on_release = lambda: told.append(group.flushed_offset)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(sync_parts.writer.put, MESSAGE)
        assert disk.is_waiting.wait(PATIENCE_S)
        second = pool.submit(sync_parts.writer.put, MESSAGE)
        while len(group) < 1:
            pass
        disk.may_go.set()
        ends = [
            put.result(PATIENCE_S).physical_offset + put.result().size for put in (first, second)
        ]
    assert told[1:] == ends[:1]


def test_a_flush_that_takes_too_long_is_a_status_and_the_message_is_stored(tmp_path):
    config = StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout=20)
    parts = LogParts(tmp_path, config, disk=HeldDisk())
    parts.writer.put(MESSAGE)
    parts.flusher.start()
    parts.disk.may_go.clear()
    with capture_logs() as logs:
        result = put(parts)
    assert result.status is PutMessageStatus.FLUSH_DISK_TIMEOUT
    [log] = logs
    assert (log["event"], log["timeout_ms"]) == ("put.flush_timeout", 20)
    assert log["end_physical_offset"] == result.physical_offset + result.size
    assert log["flushed_physical_offset"] == result.physical_offset
    assert result.is_stored
    assert result.queue_offset == 1
    assert result.message_id
    parts.disk.may_go.set()
    assert parts.flusher.wait_flushed(parts.log.max_offset, 60)
    parts.flusher.close()


def test_a_failed_sync_fails_the_waiting_put_and_every_one_after(sync_parts):
    disk, writer = sync_parts.disk, sync_parts.writer
    flushed = sync_parts.log.flushed_offset
    disk.fails_sync = {"*"}
    with pytest.raises(FlushFailedError, match="fdatasync"):
        writer.put(MESSAGE)
    disk.fails_sync = set()
    end = sync_parts.log.max_offset
    for _ in range(2):
        with pytest.raises(FlushFailedError):
            writer.put(MESSAGE)
    with pytest.raises(FlushFailedError):
        sync_parts.writer.put_messages([MESSAGE])
    with pytest.raises(FlushFailedError):
        sync_parts.flusher.flush()
    with pytest.raises(FlushFailedError):
        sync_parts.flusher.wait_flushed(end, 1)
    assert sync_parts.log.flushed_offset == flushed
    assert sync_parts.log.max_offset == end
    assert sync_parts.log.readable_limit == flushed


def test_a_failed_sync_fails_all_puts_that_wait_for_it(sync_parts):
    disk = sync_parts.disk
    disk.may_go.clear()
    disk.is_waiting.clear()
    disk.fails_sync = {"*"}
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(sync_parts.writer.put, MESSAGE) for _ in range(4)]
        assert disk.is_waiting.wait(PATIENCE_S)
        disk.may_go.set()
        errors = [future.exception(10) for future in futures]
    assert {type(error) for error in errors} == {FlushFailedError}


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_nothing_is_acknowledged_that_no_sync_has_covered_nor_anything_after_a_failed_one(
    tmp_path, threads
):
    disk = RecordingDisk()
    parts = LogParts(tmp_path, SYNC, disk=disk, log_file_bytes=4 * MiB)
    parts.writer.put(MESSAGE)
    parts.flusher.start()
    disk.end = lambda: parts.log.max_offset
    prepared = PreparedMessage.of(MESSAGE)
    too_early, acknowledged = [], []

    def put_until_failure(number):
        for turn in itertools.count(number):
            put = parts.writer.put_prepared if turn % 2 else parts.writer.put
            try:
                result = put(prepared if turn % 2 else MESSAGE)
            except FlushFailedError:
                return
            end = result.physical_offset + result.size
            acknowledged.append(end)
            if result.status is not PutMessageStatus.PUT_OK or end > disk.durable_end:
                too_early.append(result)

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(put_until_failure, number) for number in range(threads)]
        wait_until(lambda: len(acknowledged) >= 200 * threads)
        disk.fails_sync = {"*"}
        for future in futures:
            future.result(PATIENCE_S)
    assert too_early == []
    assert max(acknowledged) <= parts.log.flushed_offset <= disk.durable_end
    with pytest.raises(FlushFailedError):
        parts.flusher.close()


def test_a_put_without_a_thread_that_flushes_syncs_itself(tmp_path):
    parts = LogParts(tmp_path, SYNC, disk=FailingDisk(), log_file_bytes=65_536)
    for _ in range(3):
        result = parts.writer.put(MESSAGE)
        assert result.status is PutMessageStatus.PUT_OK
        assert parts.log.flushed_offset >= result.physical_offset + result.size


def test_a_flush_goes_through_every_file_that_was_filled_since(tmp_path):
    parts = LogParts(tmp_path, disk=FailingDisk())
    for _ in range(100):
        parts.writer.put(MESSAGE)
    assert len(parts.files.files) > 3
    assert parts.flusher.flush() == parts.log.max_offset
    assert [file.flushed_position for file in parts.files.files[:-1]] == [LOG_FILE_BYTES] * (
        len(parts.files.files) - 1
    )


def test_the_flushed_offset_stops_before_the_file_that_fails(tmp_path):
    parts = LogParts(tmp_path, disk=FailingDisk())
    for _ in range(100):
        parts.writer.put(MESSAGE)
    parts.disk.fails_sync = {f"{2 * LOG_FILE_BYTES:020d}"}
    with pytest.raises(FlushFailedError):
        parts.flusher.flush()
    assert parts.log.flushed_offset == 2 * LOG_FILE_BYTES


class PuttingDisk(FailingDisk):
    """A disk during whose next sync something is done."""

    then = None

    def fdatasync(self, descriptor, path):
        super().fdatasync(descriptor, path)
        then, self.then = self.then, None
        if then is not None:
            then()


@pytest.mark.parametrize("in_rounds", [False, True])
def test_the_checkpoint_promises_no_message_that_came_during_the_sync(tmp_path, in_rounds):
    disk = PuttingDisk()
    parts = LogParts(tmp_path, disk=disk)

    def put():
        parts.clock.now_ms += 50
        return parts.writer.put(MESSAGE)

    put()
    parts.flusher.flush()
    put()
    end, stored_ms, group = parts.log.max_offset, parts.clock.now_ms, parts.flusher.group
    disk.then = put
    if in_rounds:
        group.open()
        waiting = threading.Thread(target=group.wait, args=(end, PATIENCE_S))
        waiting.start()
        wait_until(lambda: len(group))
        assert parts.flusher._flush_in_rounds()
        group.close()
        waiting.join(PATIENCE_S)
    else:
        parts.flusher.flush()
    assert parts.log.flushed_offset == end < parts.log.max_offset
    assert parts.checkpoint.times.physic_ms == stored_ms


def test_the_checkpoint_learns_the_time_of_the_last_message_on_the_disk(tmp_path):
    parts = LogParts(tmp_path, log_file_bytes=65_536)
    parts.flusher.flush()  # of an empty log
    assert parts.checkpoint.times.physic_ms == 0
    parts.writer.put(MESSAGE)
    parts.clock.now_ms += 50
    parts.writer.put(MESSAGE)
    assert parts.checkpoint.times.physic_ms == 0
    parts.flusher.flush(least_pages=4)
    assert parts.checkpoint.times.physic_ms == 0
    stored_ms = parts.clock.now_ms
    parts.clock.now_ms += 7000  # nothing was stored since
    parts.flusher.flush()
    assert parts.checkpoint.times.physic_ms == stored_ms
    parts.writer.put(MESSAGE)
    parts.flusher.flush(least_pages=4)  # its page waits for more
    assert parts.checkpoint.times.physic_ms == stored_ms


def test_somebody_may_wait_for_an_asynchronous_flush_too(tmp_path):
    config = StoreConfig(flush_interval_commit_log=3_600_000)
    parts = LogParts(tmp_path, config)
    parts.flusher.start()
    result = parts.writer.put(MESSAGE)
    assert parts.flusher.wait_flushed(result.size, 10)
    parts.flusher.close()


def test_an_untimed_flush_is_woken_by_a_put(tmp_path):
    config = StoreConfig(
        flush_commit_log_timed=False,
        flush_interval_commit_log=3_600_000,
        flush_commit_log_least_pages=0,
    )
    parts = LogParts(tmp_path, config)
    parts.flusher.start()
    parts.writer.put(MESSAGE)
    wait_until(lambda: parts.log.flushed_offset == parts.log.max_offset)
    parts.flusher.close()


@pytest.mark.parametrize("timed", [True, False])
def test_a_put_wakes_the_flush_unless_that_goes_by_the_clock_only(tmp_path, monkeypatch, timed):
    parts = LogParts(tmp_path, StoreConfig(flush_commit_log_timed=timed))
    woken = []
    monkeypatch.setattr(parts.flusher, "wake", lambda: woken.append(None))
    parts.writer.put(MESSAGE)
    parts.writer.put_prepared(PreparedMessage.of(MESSAGE))
    parts.writer.put_messages([MESSAGE])
    assert len(woken) == (0 if timed else 3)


def test_the_thread_flushes_by_the_clock_without_being_woken(tmp_path):
    config = StoreConfig(flush_interval_commit_log=20, flush_commit_log_least_pages=0)
    parts = LogParts(tmp_path, config)
    parts.flusher.start()
    for _ in range(2):
        parts.writer.put(MESSAGE)
        wait_until(lambda: parts.log.flushed_offset == parts.log.max_offset)
    parts.flusher.close()


def test_closing_flushes_what_is_left(tmp_path):
    parts = LogParts(tmp_path, StoreConfig(flush_interval_commit_log=3_600_000))
    parts.flusher.start()
    parts.writer.put(MESSAGE)
    parts.flusher.close()
    assert parts.log.flushed_offset == parts.log.max_offset
    assert parts.checkpoint.times.physic_ms == parts.clock.now_ms
