"""A store as a whole: opened, used, closed, opened again; and what stays when something fails."""

import contextlib
import os
import threading
import time

import msgspec
import pytest

from rocketstore.audit.repair import repair_store
from rocketstore.audit.verify import verify_store
from rocketstore.config import FlushDiskType, RecoveryPolicy, StoreConfig
from rocketstore.config.sources import load_config
from rocketstore.errors import (
    ConfigError,
    FlushFailedError,
    NotReadableError,
    StoreClosedError,
    StoreError,
)
from rocketstore.message import Message
from rocketstore.message_store import MessageStore
from rocketstore.storage import workers as workers_module
from rocketstore.storage.dispatch.dispatcher import Dispatcher
from rocketstore.storage.results import GetMessageStatus, PutMessageStatus
from rocketstore.storage.running_flags import RunningFlag
from rocketstore.storage.workers import DISPATCH_ERROR_AFTER_MS
from support.clock import START_MS
from support.configured_store import small_config
from support.failing_disk import HeldDisk
from support.inside import parts_of, workers_of
from support.patience import PATIENCE_S
from support.public_calls import READS

SMALL = small_config(mapped_file_size_commit_log=16_384)
SYNC = msgspec.structs.replace(SMALL, flush_disk_type=FlushDiskType.SYNC_FLUSH)
MESSAGE = Message(topic="orders", body=b"x" * 100, keys="k", tags="t")

KNOWN_STILL = {
    "max_physical_offset", "appended_physical_offset", "flushed_physical_offset",
    "dispatched_physical_offset", "last_store_timestamp_ms", "dispatch_health",
    "next_queue_offset", "statistics", "running_flags",
}  # fmt: skip
"""What a store that was closed still tells: numbers of its own."""


def test_what_was_put_is_there_after_the_next_open(tmp_path):
    with MessageStore.open(tmp_path, SMALL) as store:
        ids = [store.put(MESSAGE, number % 3).message_id for number in range(300)]
        end = store.max_physical_offset
    with MessageStore.open(tmp_path) as store:
        assert store.recovery.was_clean
        assert store.recovery.findings == []
        assert store.max_physical_offset == end
        assert [store.max_offset("orders", number) for number in range(3)] == [100] * 3
        assert [store.by_id(one).message_id for one in ids] == ids
        assert store.put(MESSAGE).queue_offset == 100
        assert store.next_queue_offset("orders", 0) == 101


def test_a_get_gives_what_was_put_from_the_offset_asked_for_on(tmp_path):
    put = [b"zero", b"one", b"two"]
    with MessageStore.open(tmp_path, SMALL) as store:
        for body in put:
            store.put(Message(topic="orders", body=body))
        assert store.wait_dispatched()
        for offset in range(4):
            got = store.get("orders", 0, offset).messages
            assert [message.body for message in got] == put[offset:]


def test_what_a_dead_writer_left_in_the_page_cache_is_synced_before_it_is_read(tmp_path, disk):
    store = MessageStore.open(tmp_path, SMALL, threads=False)
    for _ in range(200):
        store.put(MESSAGE)
    parts_of(store).lock.release()
    with MessageStore.open(tmp_path, SYNC, disk=disk, threads=False) as again:
        synced = disk.synced
        files = [file.path.name for file in parts_of(again).log.files.files]
        assert set(files) <= set(synced)
        assert len(files) > 1
        assert again.flushed_physical_offset == again.max_physical_offset


def test_without_sync_flush_the_first_flush_covers_what_a_dead_writer_left(tmp_path, disk):
    store = MessageStore.open(tmp_path, SMALL, threads=False)
    for _ in range(200):
        store.put(MESSAGE)
    parts_of(store).lock.release()
    with MessageStore.open(tmp_path, SMALL, disk=disk, threads=False) as again:
        parts = parts_of(again)
        files = {file.path.name for file in parts.log.files.files}
        assert len(files) > 1
        assert not files & set(disk.synced)
        disk.calls.clear()
        assert again.flushed_physical_offset == again.recovery.start
        assert parts.checkpoint.times.physic_ms == 0
        again.flush()
        assert files <= set(disk.synced)
        assert again.flushed_physical_offset == again.max_physical_offset
        assert parts.checkpoint.times.physic_ms > 0


def test_an_open_that_fails_leaves_no_lock_no_thread_and_no_mark(tmp_path):
    MessageStore.open(tmp_path, SMALL).close()
    with MessageStore.open(tmp_path, SMALL) as store:
        store.put(MESSAGE)
    threads = set(threading.enumerate())
    for _ in range(2):
        with pytest.raises(ConfigError, match="mappedFileSizeCommitLog"):
            MessageStore.open(tmp_path, StoreConfig(mapped_file_size_commit_log=32_768))
    assert set(threading.enumerate()) <= threads
    assert not (tmp_path / "abort").exists()
    MessageStore.open(tmp_path, SMALL).close()


def test_a_path_that_cannot_be_a_store_is_an_error_of_the_store(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError):
        MessageStore.open(tmp_path / "file" / "store")


@pytest.mark.parametrize("read_only", [False, True])
def test_a_closed_store_refuses_every_question_that_needs_it_open(tmp_path, *, read_only):
    MessageStore.open(tmp_path, SMALL).close()
    store = MessageStore.open(tmp_path, SMALL, read_only=read_only)
    store.close()
    store.close()
    for name, ask in READS.items():
        if name not in KNOWN_STILL and hasattr(type(store), name.partition(" ")[0]):
            with pytest.raises(StoreClosedError, match="was closed; open it again"):
                ask(store)


def test_a_closed_store_refuses_puts_by_status_and_flushes_by_error(tmp_path):
    store = MessageStore.open(tmp_path, SMALL)
    store.close()
    assert store.is_closed
    assert store.put(MESSAGE).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    with pytest.raises(StoreClosedError, match="was closed; open it again"):
        store.flush()


def test_without_threads_everything_happens_when_it_is_asked_for(tmp_path):
    threads = set(threading.enumerate())
    with MessageStore.open(tmp_path, SYNC, threads=False) as store:
        assert store.put(MESSAGE).status is PutMessageStatus.PUT_OK
        assert store.flushed_physical_offset == store.max_physical_offset
        assert store.max_offset("orders", 0) == 0
        assert store.wait_dispatched()
        assert store.max_offset("orders", 0) == 1
        assert set(threading.enumerate()) <= threads
        assert not store.wait_for("orders", 0, offset=1, timeout_s=None)


def test_a_message_is_read_once_it_has_its_entry_and_not_before(tmp_path):
    with MessageStore.open(tmp_path, SMALL, threads=False) as store:
        store.put(MESSAGE)
        store.wait_dispatched()
        store.put(MESSAGE)
        assert store.next_queue_offset("orders", 0) == 2
        assert store.max_offset("orders", 0) == 1
        page = store.get("orders", 0, 1)
        assert (page.status, page.messages) == (GetMessageStatus.OFFSET_OVERFLOW_ONE, [])
        store.wait_dispatched()
        assert len(store.get("orders", 0, 1).messages) == 1


def test_consumers_of_a_sync_store_never_see_what_is_not_on_the_disk(tmp_path):
    disk = HeldDisk()
    with contextlib.ExitStack() as ending:
        store = ending.enter_context(MessageStore.open(tmp_path, SYNC, disk=disk))
        ending.callback(disk.may_go.set)  # before the store closes, also where a line below fails
        first = store.put(MESSAGE)
        assert store.wait_dispatched(timeout_s=PATIENCE_S)  # which makes files, and syncs them
        disk.may_go.clear()
        second = store.put(Message(topic="orders", wait_flush=False))
        assert second.status is PutMessageStatus.PUT_OK
        workers_of(store).dispatch.run_once()  # not only when its thread gets to it
        assert not store.wait_dispatched(timeout_s=0.05)
        assert store.max_offset("orders", 0) == 1
        assert store.by_id(first.message_id) is not None
        assert store.by_id(second.message_id) is None
        disk.may_go.set()
        assert store.wait_dispatched(timeout_s=PATIENCE_S)
        assert store.max_offset("orders", 0) == 2
        assert store.by_id(second.message_id) is not None


def test_a_failed_sync_at_the_end_is_raised_and_leaves_the_mark(tmp_path, disk):
    store = MessageStore.open(tmp_path, SMALL, disk=disk)
    store.put(MESSAGE)
    disk.fails_sync = {"*"}
    with pytest.raises(FlushFailedError):
        store.close()
    assert (tmp_path / "abort").exists()
    with MessageStore.open(tmp_path, SMALL) as again:
        assert not again.recovery.was_clean
        assert again.max_offset("orders", 0) == 1


def test_an_error_inside_the_block_is_not_hidden_by_one_of_the_end(tmp_path, disk):

    def work() -> None:
        with MessageStore.open(tmp_path, SMALL, disk=disk) as store:
            store.put(MESSAGE)
            disk.fails_sync = {"*"}
            raise KeyError("the reason")

    with pytest.raises(KeyError, match="the reason"):
        work()
    MessageStore.open(tmp_path, SMALL).close()


def test_dispatch_that_fails_for_30_s_refuses_puts_until_it_works(tmp_path, monkeypatch, clock):
    monkeypatch.setattr(workers_module, "monotonic_ms", clock)
    with MessageStore.open(tmp_path, SMALL, threads=False) as store:
        workers, refused = workers_of(store), PutMessageStatus.SERVICE_NOT_AVAILABLE
        (watch,) = (one for one in workers._watchers if one.name == "rocketstore-statistics")
        store.put(MESSAGE)
        with monkeypatch.context() as patched:
            patched.setattr(Dispatcher, "_dispatch_to", lambda *_: os.fsync(-1))
            for pause_ms in (0, 1, DISPATCH_ERROR_AFTER_MS - 2, 1):  # each try fails again
                clock.now_ms += pause_ms
                assert workers.dispatch.run_once() is None
                watch._job()
                result = store.put(MESSAGE)
                is_due = clock.now_ms == START_MS + DISPATCH_ERROR_AFTER_MS
                assert (result.status is refused) is is_due
        assert "dispatch has failed for 30 s" in (result.detail or "")
        assert workers.dispatch.run_once()
        watch._job()
        assert store.put(MESSAGE).status is PutMessageStatus.PUT_OK


def test_gets_are_counted(tmp_path):
    with MessageStore.open(tmp_path, SMALL) as store:
        store.put(MESSAGE)
        store.wait_dispatched()
        store.get("orders", 0, 0)
        store.get_raw("orders", 0, 0)
        store.get("orders", 0, 1)
        statistics = store.statistics
        assert (statistics.gets.found, statistics.gets.missed) == (2, 1)
        assert statistics.gets.messages == 2


def test_a_store_that_is_not_readable_gives_no_page_until_it_is(tmp_path):
    with MessageStore.open(tmp_path, SMALL) as store:
        store.put(MESSAGE)
        store.wait_dispatched()
        store.running_flags.set(RunningFlag.NOT_READABLE, "the disk is being copied")
        assert store.put(MESSAGE).status is PutMessageStatus.PUT_OK
        pages = (store.get, store.get_raw, store.get_views)
        for page in pages:
            with pytest.raises(NotReadableError, match="the disk is being copied"):
                page("orders", 0, 0)
        store.running_flags.clear(RunningFlag.NOT_READABLE)
        assert all(page("orders", 0, 0).status is GetMessageStatus.FOUND for page in pages)


def test_a_store_says_what_it_is(tmp_path):
    store = MessageStore.open(tmp_path, SMALL)
    assert repr(store) == f"MessageStore({tmp_path}, open)"
    assert store.dispatch_health.is_well
    assert store.dispatched_physical_offset == 0
    assert store.min_physical_offset == 0
    reader = MessageStore.open(tmp_path, read_only=True)
    assert repr(reader) == f"ReadOnlyStore({tmp_path}, open)"
    for each in (reader, store):
        each.close()
    assert repr(store) == f"MessageStore({tmp_path}, closed)"
    assert repr(reader) == f"ReadOnlyStore({tmp_path}, closed)"


@pytest.mark.parametrize("others", [{}, {"read_only": True}])
@pytest.mark.parametrize(
    ("path", "config", "said"),
    [
        ("", None, "the path of the store is empty"),
        ("s", StoreConfig.small, "config is a StoreConfig, not <bound method"),
        ("s", StoreConfig, "config is a StoreConfig, not <class"),
        ("s", load_config(environment={}), "config is a StoreConfig, not LoadedConfig"),
        ("s", {"flushDiskType": "SYNC_FLUSH"}, "config is a StoreConfig, not {'flush"),
    ],
)
def test_what_is_no_path_or_no_config_is_named(tmp_path, monkeypatch, path, config, said, others):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        MessageStore.open(path, config, **others)
    assert not any(tmp_path.iterdir())
    MessageStore.open(tmp_path, SMALL).close()  # here or below it there is one
    MessageStore.open("s", SMALL).close()
    for judge in (verify_store, repair_store):
        with pytest.raises(ConfigError, match=said):
            judge(path, config)


@pytest.mark.parametrize(
    ("clock", "said"),
    [(lambda: time.time() * 1000, "whole milliseconds"), (lambda: "1", "whole milliseconds")],
)
def test_a_clock_of_something_else_is_named(tmp_path, clock, said):
    with pytest.raises(ConfigError, match=said):
        MessageStore.open(tmp_path, SMALL, clock=clock)
    MessageStore.open(tmp_path, SMALL).close()


@pytest.mark.parametrize("name", ["salvage", "compatible"])
def test_a_policy_is_taken_as_such_or_by_its_name(tmp_path, name):
    """One that is misspelt, or of the other form, must not be the one that cuts the log."""
    policies = (name, RecoveryPolicy(name))
    for policy in policies:
        with MessageStore.open(tmp_path, SMALL, policy=policy) as store:
            assert store.recovery.policy is RecoveryPolicy(name)
        assert repair_store(tmp_path, policy=policy, dry_run=True).policy == name
    for wrong in (name.upper(), "", 1):
        for call in (MessageStore.open, repair_store):
            with pytest.raises(ConfigError, match="is no policy"):
                call(tmp_path, SMALL, policy=wrong)


def test_one_thread_dispatches_whichever_threads_put(tmp_path, monkeypatch):
    seen = set()
    run_once = Dispatcher.run_once

    def noted(self):
        seen.add(threading.get_ident())
        return run_once(self)

    monkeypatch.setattr(Dispatcher, "run_once", noted)
    with MessageStore.open(tmp_path / "store", SMALL) as store:
        putters = [
            threading.Thread(target=lambda: [store.put(MESSAGE) for _ in range(50)])
            for _ in range(4)
        ]
        idents = set()
        for thread in putters:
            thread.start()
            idents.add(thread.ident)
        for thread in putters:
            thread.join()
        assert store.wait_dispatched(timeout_s=PATIENCE_S)
        assert store.max_offset("orders", 0) == 200
        assert len(seen) == 1
        assert not seen & {*idents, threading.get_ident()}
