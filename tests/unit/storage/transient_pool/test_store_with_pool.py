"""A store with a pool: what is put is seen when it is committed, and nothing is lost in order."""

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from rocketstore import (
    BrokerRole,
    FlushDiskType,
    Message,
    MessageStore,
    PutMessageStatus,
    PutResult,
    StoreError,
    StoreFullError,
    verify_store,
)
from rocketstore.aio import AsyncMessageStore
from rocketstore.config.sources import from_properties
from rocketstore.format.metadata_json import DelayOffsets, decode_table
from rocketstore.storage import transient_pool as pool_module
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.mapped_file import MappedFile
from rocketstore.storage.read_only import ReadOnlyStore
from rocketstore.storage.transient_pool import PooledFile
from support.clock import START_MS, TickingClock
from support.configured_store import LOG_FILE_BYTES, open_small, small_config
from support.inside import parts_of, workers_of
from support.patience import PATIENCE_S, wait_until
from support.pooled_store import BODY, fill_file, in_files, open_pooled
from support.said import capture_logs

TOPIC = "orders"


def put(store: MessageStore, body: bytes = BODY) -> PutResult:
    result = store.put(Message(topic=TOPIC, body=body, keys="k"))
    assert result.status is PutMessageStatus.PUT_OK, result
    return result


def put_until_refused(store: MessageStore) -> PutResult:
    """Put what one file of the log has no room for; return the first refusal."""
    for _ in range(LOG_FILE_BYTES // len(BODY) + 1):
        result = store.put(Message(topic=TOPIC, body=BODY))
        if not result.is_stored:
            return result
    raise AssertionError(f"{store.appended_physical_offset} bytes were stored, and none refused")


def bodies(store: MessageStore) -> list[bytes]:
    return [message.body for message in store.get(TOPIC, 0, 0).messages]


# --- when there is a pool -------------------------------------------------------------------------


def test_a_pool_is_off_unless_it_is_asked_for(tmp_path):
    with open_small(tmp_path) as store:
        assert store.transient_pool is None
        result = put(store, b"in the file")
        assert store.max_physical_offset == store.appended_physical_offset == result.size
        assert b"in the file" in in_files(store)


def test_a_pool_is_for_asynchronous_flushes_of_masters(tmp_path):
    with open_pooled(tmp_path / "1", flush_disk_type=FlushDiskType.SYNC_FLUSH) as store:
        assert store.transient_pool is None
        result = put(store)
        assert store.flushed_physical_offset == result.size
    with open_pooled(tmp_path / "2", broker_role=BrokerRole.SLAVE) as store:
        assert store.transient_pool is None


def test_size_lock_and_failing_fast_are_settings(tmp_path, monkeypatch):
    given = []

    def pool(count: int, file_size: int, **settings: bool) -> object:
        given.append((count, file_size, settings))
        return original(count, file_size, **settings)

    original = pool_module.TransientStorePool
    monkeypatch.setattr(pool_module, "TransientStorePool", pool)
    open_pooled(tmp_path / "1").close()
    config = from_properties({
        "transientStorePoolEnable": "true", "transientStorePoolSize": "2",
        "transientStorePoolLock": "true", "fastFailIfNoBufferInStorePool": "true",
    })  # fmt: skip
    open_pooled(
        tmp_path / "2",
        transient_store_pool_size=config.transient_store_pool_size,
        transient_store_pool_lock=config.transient_store_pool_lock,
        fast_fail_if_no_buffer_in_store_pool=config.fast_fail_if_no_buffer_in_store_pool,
    ).close()
    assert given == [
        (5, LOG_FILE_BYTES, {"lock": False, "fails_fast": False}),
        (2, LOG_FILE_BYTES, {"lock": True, "fails_fast": True}),
    ]


# --- what readers see -----------------------------------------------------------------------------


def test_nobody_sees_what_is_not_committed(tmp_path):
    with open_pooled(tmp_path) as store:
        first, second = put(store, b"first"), put(store, b"second")
        end = second.physical_offset + second.size
        assert (first.queue_offset, second.queue_offset) == (0, 1)
        while parts_of(store).dispatcher.run_once():
            pass
        assert not any(in_files(store))
        assert store.dispatched_physical_offset == store.max_physical_offset == 0
        assert store.appended_physical_offset == end
        assert store.max_offset(TOPIC, 0) == 0
        assert bodies(store) == store.find(TOPIC, "k") == []
        assert store.earliest_log_timestamp() is None
        assert store.replicated_log.end == 0
        assert store.replicated_log.read(0, 1000) == b""
        info = store.runtime_info()
        assert info["commitLogMaxOffset"] == "0"
        assert info["remainHowManyDataToCommit"] == f"{end} B"
        assert info["remainTransientStoreBufferNumbs"] == "4"
        with ReadOnlyStore.open(tmp_path, small_config()) as reader:
            assert reader.max_physical_offset == 0

        store.transient_pool.commit()
        while parts_of(store).dispatcher.run_once():
            pass
        assert b"first" in in_files(store)
        assert store.dispatched_physical_offset == store.max_physical_offset == end
        assert bodies(store) == [b"first", b"second"]
        assert len(store.find(TOPIC, "k")) == 2
        assert store.earliest_log_timestamp() == START_MS
        assert store.replicated_log.end == end
        assert store.replicated_log.read(0, 1000) == in_files(store)[:end]
        assert store.runtime_info()["remainHowManyDataToCommit"] == "0 B"
        assert store.flushed_physical_offset == 0


def test_a_commit_has_whole_records_only(tmp_path):
    with open_pooled(tmp_path) as store:
        put(store, b"first")
        end = store.appended_physical_offset
        parts_of(store).log.end.file.array[end : end + 100] = 7  # a put that is under way
        store.transient_pool.commit()
        assert not any(in_files(store)[end:])


def test_a_message_is_read_from_the_pool_by_its_offset(tmp_path):
    with open_pooled(tmp_path) as store:
        put(store, b"first")
        second = put(store, b"second")
        assert store.by_id(second.message_id).body == b"second"
        assert store.at_physical_offset(second.physical_offset + second.size) is None
        third = put(store, b"third")
        parts_of(store).disk.is_full = True
        assert store.at_physical_offset(third.physical_offset).body == b"third"


def test_what_cannot_be_committed_cannot_be_read_by_its_offset(tmp_path, disk):
    with open_pooled(tmp_path, disk=disk) as store:
        result = put(store)
        disk.is_full = True
        assert store.at_physical_offset(result.physical_offset) is None
        disk.is_full = False
        assert store.at_physical_offset(result.physical_offset).body == BODY


def test_waiting_for_dispatch_commits(tmp_path):
    with open_pooled(tmp_path) as store:
        put(store, b"x")
        assert store.wait_dispatched(timeout_s=PATIENCE_S)
        assert bodies(store) == [b"x"]
    with open_pooled(tmp_path, threads=True, commit_interval_commit_log=3_600_000) as store:
        for number in range(20):
            put(store, b"%d" % number)
            assert store.wait_dispatched(timeout_s=PATIENCE_S)
            assert store.max_offset(TOPIC, 0) == number + 2


def test_a_task_of_asyncio_waits_for_what_is_in_the_pool_too(tmp_path):
    async def run() -> list[bytes]:
        store = open_pooled(tmp_path, threads=True, commit_interval_commit_log=1)
        asynchronous = AsyncMessageStore(store)
        try:
            await asynchronous.put(Message(topic=TOPIC, body=b"x"))
            assert await asynchronous.wait_dispatched(timeout_s=PATIENCE_S)
            return bodies(store)
        finally:
            await asynchronous.close()

    assert asyncio.run(run()) == [b"x"]


def test_a_flush_commits_and_syncs_everything(tmp_path, disk):
    with open_pooled(tmp_path, disk=disk) as store:
        put(store)
        store.flush()
        end = store.appended_physical_offset
        assert store.flushed_physical_offset == store.max_physical_offset == end
        assert ("fdatasync", f"{0:020d}") in disk.calls
        put(store)
        workers_of(store).flusher.flush()  # by the clock: it syncs what is committed
        assert store.flushed_physical_offset == end


def test_a_put_that_waits_for_replicas_is_committed_first(tmp_path):
    seen = []
    with open_pooled(tmp_path, broker_role=BrokerRole.SYNC_MASTER) as store:

        def wait(end: int, _timeout_s: float) -> PutMessageStatus:
            seen.append((end, store.replicated_log.end))
            return PutMessageStatus.PUT_OK

        store.replicated_log.set_replica(wait)
        result = put(store)
    assert seen == [(result.size, result.size)]


def test_futures_delays_and_transactions_work(tmp_path, clock):
    with open_pooled(tmp_path, clock) as store:
        assert store.put_async(Message(topic=TOPIC, body=b"1")).result(PATIENCE_S).is_stored
        store.put(Message(topic=TOPIC, body=b"2", properties={"DELAY": "1"}))
        half = store.begin(Message(topic=TOPIC, body=b"3"))
        assert store.commit(half)
        store.wait_dispatched()
        clock.now_ms += 1000
        for _ in range(3):
            store.delays.turn()
            store.wait_dispatched()
        assert sorted(bodies(store)) == [b"1", b"2", b"3"]


def test_what_was_delivered_is_written_down_when_the_copy_is_on_the_disk(tmp_path, clock):
    with open_pooled(tmp_path, clock, flush_delay_offset_interval=1) as store:
        store.put(Message(topic=TOPIC, body=b"1", properties={"DELAY": "1"}))
        store.flush()
        store.delays.turn()
        clock.now_ms += 1000
        store.delays.turn()
        assert store.appended_physical_offset > store.max_physical_offset
        clock.now_ms += 1000
        store.delays.turn()
        assert saved_offsets(tmp_path) == {}
        store.flush()
        store.delays.turn()
        assert saved_offsets(tmp_path) == {1: 1}


def saved_offsets(root: Path) -> dict[int, int]:
    path = root / "config" / "delayOffset.json"
    return decode_table(path.read_bytes(), DelayOffsets).offset_table if path.exists() else {}


# --- files ----------------------------------------------------------------------------------------


def test_the_files_are_those_of_a_store_without_a_pool(tmp_path):
    logs = []
    for number, pool_size in enumerate((0, 1, 5)):
        settings = {"transient_store_pool_enable": bool(pool_size)}
        if pool_size:
            settings["transient_store_pool_size"] = pool_size
        with open_small(tmp_path / str(number), **settings) as store:
            for step in range(400):
                put(store, b"%d" % step * (1 + 37 * step % 500))
                if step % 7 == 0 and store.transient_pool is not None:
                    store.transient_pool.commit(step % 3)
        with open_small(tmp_path / str(number)) as store:
            assert store.recovery.was_clean
            logs.append(in_files(store))
        assert verify_store(tmp_path / str(number)).findings == []
    assert logs[0] == logs[1] == logs[2]
    assert len(logs[0]) == 5 * LOG_FILE_BYTES


def test_a_full_file_is_committed_to_its_end_before_its_buffer_is_another_s(tmp_path):
    with open_pooled(tmp_path, transient_store_pool_size=1) as store:
        first = fill_file(store, lambda: put(store))
        second = parts_of(store).log.files.last()
        assert not isinstance(second, PooledFile)
        assert in_files(store)[LOG_FILE_BYTES:].count(BODY) == 1, "as without a pool"
        assert store.max_physical_offset == LOG_FILE_BYTES, "no hole may be before that"
        assert store.transient_pool.pool.free_count == 1
        fill_file(store, lambda: put(store))
        third = parts_of(store).log.files.last()
        assert isinstance(third, PooledFile)
        assert store.max_physical_offset <= 2 * LOG_FILE_BYTES
        store.wait_dispatched()
        assert store.max_offset(TOPIC, 0) > 2 * first - 2
    assert verify_store(tmp_path).findings == []


def test_nothing_is_written_through_a_mapping_before_all_before_it_is_committed(tmp_path, disk):
    with open_pooled(tmp_path, transient_store_pool_size=1, disk=disk) as store:
        put(store)
        parts_of(store).preallocator._ready[LOG_FILE_BYTES] = ahead = file_at(store, LOG_FILE_BYTES)
        disk.is_full = True
        result = put_until_refused(store)
        assert result.status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
        assert "no room" in result.detail
        assert not ahead.array.any()
        assert store.appended_physical_offset == LOG_FILE_BYTES, "its BLANK is there"
        workers_of(store).flusher.flush()
        while parts_of(store).dispatcher.run_once():
            pass
        assert store.max_physical_offset == store.flushed_physical_offset == 0
        assert store.dispatched_physical_offset == 0
        disk.is_full = False
        store.flush()
        put(store)
        assert parts_of(store).log.files.last() is ahead
        assert ahead.array.any()
        store.wait_dispatched()
    assert verify_store(tmp_path).findings == []


def file_at(store: MessageStore, base: int) -> MappedFile:
    """Return a file that was made ahead while no buffer was free."""
    return parts_of(store).preallocator._make(base)


def test_flush_and_dispatch_stop_where_the_commit_stopped(tmp_path):
    with open_pooled(tmp_path) as store:
        fill_file(store, lambda: put(store))
        workers_of(store).flusher.flush()
        while parts_of(store).dispatcher.run_once():
            pass
        assert store.max_physical_offset == store.flushed_physical_offset == 0
        assert store.dispatched_physical_offset == 0


def test_failing_fast_a_put_without_a_buffer_is_refused_until_one_is_free(tmp_path):
    with open_pooled(
        tmp_path, transient_store_pool_size=1, fast_fail_if_no_buffer_in_store_pool=True
    ) as store:
        result = put_until_refused(store)
        assert result.status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
        assert "fastFailIfNoBufferInStorePool" in result.detail
        assert store.appended_physical_offset < LOG_FILE_BYTES
        assert store.put(Message(topic=TOPIC, body=b"small")).is_stored, "as 4.9.8"
        store.transient_pool.commit()
        assert not store.put(Message(topic=TOPIC, body=BODY)).is_stored, "the file is not full"


def test_a_file_that_was_there_is_written_through_its_mapping_and_the_next_one_is_not(tmp_path):
    with open_small(tmp_path) as store:
        put(store, b"before")
    with open_pooled(tmp_path) as store:
        put(store, b"through the mapping")
        assert b"through the mapping" in in_files(store)
        fill_file(store, lambda: put(store))
        assert isinstance(parts_of(store).log.files.last(), PooledFile)
        store.wait_dispatched()
        assert bodies(store)[:2] == [b"before", b"through the mapping"]


def test_files_are_made_ahead_with_buffers(tmp_path):
    with open_pooled(tmp_path, threads=True) as store:
        fill_file(store, lambda: put(store))
        ready = parts_of(store).preallocator._ready
        ahead = (2 * LOG_FILE_BYTES, 3 * LOG_FILE_BYTES)
        wait_until(lambda: all(base in ready for base in ahead), "two files ahead")
        assert all(isinstance(ready[base], PooledFile) for base in ahead)
        store.wait_dispatched()
        wait_until(lambda: store.transient_pool.pool.free_count == 2, "one is in use, two wait")
    assert store.transient_pool.pool.free_count == 0, "the memory is let go of"


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [False, True])
def test_an_orderly_close_loses_nothing(tmp_path, threads):
    with open_pooled(tmp_path, threads=threads, commit_interval_commit_log=3_600_000) as store:
        for number in range(200):
            put(store, b"%d" % number)
    with ReadOnlyStore.open(tmp_path) as reader:
        page = reader.get(TOPIC, 0, 168, 32)
        assert [message.body for message in page.messages] == [b"%d" % n for n in range(168, 200)]
    assert not (tmp_path / "abort").exists()
    assert verify_store(tmp_path).findings == []


def test_what_a_kill_takes_is_what_was_not_committed(tmp_path):
    store = open_pooled(tmp_path)
    put(store, b"committed")
    store.transient_pool.commit()
    lost = put(store, b"lost")
    store.abandon()
    with open_pooled(tmp_path) as store:
        assert bodies(store) == [b"committed"]
        again = put(store, b"after")
        assert (again.queue_offset, again.physical_offset) == (1, lost.physical_offset)
        store.wait_dispatched()
        assert bodies(store) == [b"committed", b"after"]
    assert verify_store(tmp_path).findings == []


def test_a_put_that_comes_to_the_lock_of_a_closing_store_is_refused(tmp_path):
    with open_pooled(tmp_path) as store:
        put(store)
        parts_of(store).log.settle()
        store._writer.plain.close()
        result = store.put(Message(topic=TOPIC, body=b"late"))
        assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    with ReadOnlyStore.open(tmp_path) as reader:
        assert reader.max_offset(TOPIC, 0) == 1


# --- what the system refuses ----------------------------------------------------------------------


def test_while_nothing_can_be_committed_puts_are_refused_and_nothing_is_lost(tmp_path, disk):
    with open_pooled(tmp_path, disk=disk) as store:
        put(store, b"kept")
        disk.is_full = True
        with capture_logs() as lines:
            for _ in range(3):
                with pytest.raises(StoreFullError, match="no room"):
                    store.flush()
        assert [line["event"] for line in lines] == ["log.commit_failed"]
        result = store.put(Message(topic=TOPIC, body=b"x"))
        assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert "COMMIT_ERROR" in result.detail
        assert "no room" in result.detail
        assert store.transient_pool.take_turn() == 0.2, "it is not tried again at once"
        disk.is_full = False
        assert store.transient_pool.take_turn() >= 0
        put(store, b"again")
        store.wait_dispatched()
        assert bodies(store) == [b"kept", b"again"]


def test_a_store_that_cannot_commit_is_closed_by_another_call(tmp_path, disk):
    store = open_pooled(tmp_path, disk=disk, threads=True, commit_interval_commit_log=3_600_000)
    store.wait_dispatched()
    disk.is_full = True
    parts_of(store).disk.is_full = False
    put(store, b"kept")
    disk.is_full = True
    with pytest.raises(StoreFullError):
        store.close()
    assert store.put(Message(topic=TOPIC, body=b"x")).status.name == "SERVICE_NOT_AVAILABLE"
    disk.is_full = False
    store.close()
    with ReadOnlyStore.open(tmp_path) as reader:
        assert [message.body for message in reader.get(TOPIC, 0, 0).messages] == [b"kept"]
    assert not (tmp_path / "abort").exists()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_an_error_of_pwrite_says_where_and_what_to_do(tmp_path, monkeypatch, number):
    with open_pooled(tmp_path) as store:
        put(store)

        def refuse(*_arguments: object) -> int:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", refuse)
            with pytest.raises(StoreError, match=r"CommitLog from offset 0|no room") as why:
                store.transient_pool.commit()
        assert why.value.hint
        store.flush()
        assert store.flushed_physical_offset == store.appended_physical_offset


@pytest.mark.parametrize("written", [0, 700])
def test_an_interrupted_commit_is_done_again_and_leaves_no_lock_held(
    tmp_path, monkeypatch, written
):
    write = os.pwrite

    def interrupt(descriptor: int, data: memoryview, position: int) -> int:
        write(descriptor, data[:written], position)
        raise KeyboardInterrupt

    with open_pooled(tmp_path) as store:
        put(store, b"first")
        put(store, BODY)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", interrupt)
            with pytest.raises(KeyboardInterrupt):
                store.flush()
        assert store.max_physical_offset == 0
        assert not store.running_flags.bits
        put(store, b"third")
        store.flush()
        store.wait_dispatched()
        assert bodies(store) == [b"first", BODY, b"third"]


# --- turns ----------------------------------------------------------------------------------------


def test_a_turn_commits_four_pages_or_what_is_200_ms_old(tmp_path, clock):
    with open_pooled(tmp_path, clock) as store:
        turn = store.transient_pool.take_turn
        assert turn() == -1, "nothing to do until a put"
        put(store)
        assert turn() == 0.01
        assert store.max_physical_offset == store.appended_physical_offset
        clock.now_ms += 199
        put(store)
        assert turn() == 0.2
        assert store.max_physical_offset < store.appended_physical_offset
        for _ in range(16):
            put(store)
        assert turn() == 0.01
        assert store.max_physical_offset == store.appended_physical_offset
        put(store)
        assert turn() == 0.2
        clock.now_ms += 1
        assert turn() == 0.01
        assert store.max_physical_offset == store.appended_physical_offset
        assert turn() == -1


def test_interval_pages_and_the_thorough_interval_are_settings(tmp_path, clock):
    with open_pooled(
        tmp_path, clock, commit_interval_commit_log=7, commit_commit_log_least_pages=1,
        commit_commit_log_thorough_interval=50,
    ) as store:  # fmt: skip
        turn = store.transient_pool.take_turn
        put(store)
        assert turn() == 0.01
        put(store)
        assert turn() == 0.007
        for _ in range(4):
            put(store)
        assert turn() == 0.01
        put(store)
        clock.now_ms += 49
        assert turn() == 0.007
        clock.now_ms += 1
        assert turn() == 0.01


def test_a_clock_that_goes_back_puts_no_commit_off(tmp_path, clock):
    with open_pooled(tmp_path, clock) as store:
        put(store)
        assert store.transient_pool.take_turn() == 0.01
        clock.now_ms -= 1_000_000
        put(store)
        assert store.transient_pool.take_turn() == 0.01


def test_puts_wake_the_thread_and_its_commits_wake_dispatch(tmp_path):
    with open_pooled(tmp_path, TickingClock(), threads=True) as store:
        for number in range(5):
            put(store, b"%d" % number)
            wait_until(lambda: store.max_offset(TOPIC, 0) == number + 1, "it is seen")  # noqa: B023


@pytest.mark.parametrize("timed", [True, False])
def test_a_commit_wakes_the_flush_unless_that_goes_by_the_clock_only(tmp_path, timed):
    with open_pooled(tmp_path, flush_commit_log_timed=timed) as store:
        group = workers_of(store).flusher.group
        put(store)
        assert not group.rest(0.0), "a put alone wakes nobody"
        store.transient_pool.commit()
        assert group.rest(0.0) is not timed


def test_a_slow_commit_is_worth_a_line(tmp_path, monkeypatch):
    times = iter((10.0, 10.6, 10.6))
    with open_pooled(tmp_path) as store:
        put(store)
        monkeypatch.setattr(pool_module.time, "monotonic", lambda: next(times))
        with capture_logs(slow=True) as lines:
            store.transient_pool.commit()
        monkeypatch.undo()
    assert ("log.commit_slow", 600) in [(one["event"], one.get("took_ms")) for one in lines]


# --- the thread -----------------------------------------------------------------------------------


class StrangeDisk(Disk):
    """Ends the thread that commits when it writes: any error would have it try again."""

    def write_at(
        self, descriptor: int, path: Path, position: int, data: bytes | memoryview
    ) -> None:
        if threading.current_thread().name == "rocketstore-commit":
            raise SystemExit("from the depth")
        super().write_at(descriptor, path, position, data)


def test_when_its_thread_dies_puts_are_refused_and_close_commits(tmp_path):
    with open_pooled(tmp_path, TickingClock(), disk=StrangeDisk(), threads=True) as store:
        put(store, b"kept")
        wait_until(lambda: store.running_flags.bits, "its death is seen")
        result = store.put(Message(topic=TOPIC, body=b"x"))
        assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert "rocketstore-commit" in result.detail
    with ReadOnlyStore.open(tmp_path) as reader:
        assert [message.body for message in reader.get(TOPIC, 0, 0).messages] == [b"kept"]


def test_the_thread_goes_on_after_what_the_disk_refused(tmp_path, disk):
    with open_pooled(
        tmp_path, TickingClock(), disk=disk, threads=True, commit_interval_commit_log=1
    ) as store:
        put(store, b"first")
        wait_until(lambda: store.max_offset(TOPIC, 0) == 1, "the first is seen")
        disk.is_full = True
        put(store, b"second")
        wait_until(lambda: store.running_flags.bits, "puts are refused")
        disk.is_full = False
        wait_until(lambda: not store.running_flags.bits, "puts are taken")
        wait_until(lambda: store.max_offset(TOPIC, 0) == 2, "the second is seen")
