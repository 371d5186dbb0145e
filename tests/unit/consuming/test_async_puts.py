"""Puts with a future: the results and errors of `put`, later (S0-14, asyncPutMessage)."""

import threading
from concurrent.futures import wait

import pytest

from rocketstore import (
    FlushDiskType,
    FlushFailedError,
    InvalidNameError,
    Message,
    MessageStore,
    PutMessageStatus,
    RefusedMessageError,
)
from support.configured_store import open_small, small_config
from support.failing_disk import HeldDisk
from support.patience import PATIENCE_S

SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}


def put_threads():
    return [thread for thread in threading.enumerate() if thread.name == "rocketstore-put-async"]


def message(number, **fields):
    return Message(topic="T", body=b"%d" % number, **fields)


@pytest.mark.parametrize("settings", [{}, SYNC], ids=["async", "sync"])
def test_futures_have_the_results_of_put(root, settings):
    with open_small(root, threads=True, **settings) as store:
        futures = [store.put_async(message(number)) for number in range(200)]
        results = [future.result(PATIENCE_S) for future in futures]
        assert {result.status for result in results} == {PutMessageStatus.PUT_OK}
        assert [result.queue_offset for result in results] == list(range(200))
        assert len(put_threads()) == (1 if settings else 0)
        if settings:
            end = results[-1].physical_offset + results[-1].size
            assert store.flushed_physical_offset >= end
    assert not put_threads()


def test_a_future_is_resolved_when_the_message_is_on_the_disk_and_not_before(root):
    disk = HeldDisk()
    with MessageStore.open(root, small_config(**SYNC), disk=disk) as store:
        store.put(message(0))
        disk.may_go.clear()
        future = store.put_async(message(0))
        assert store.max_physical_offset > store.flushed_physical_offset
        assert not future.done()
        assert not future.cancel()
        assert store.put_async(message(1, wait_flush=False)).done()
        disk.may_go.set()
        assert future.result(PATIENCE_S).status is PutMessageStatus.PUT_OK


def test_a_put_that_waits_too_long_says_so(root):
    disk = HeldDisk()
    config = small_config(sync_flush_timeout=50, **SYNC)
    with MessageStore.open(root, config, disk=disk) as store:
        store.put(message(0))
        disk.may_go.clear()
        result = store.put_async(message(0)).result(PATIENCE_S)
        disk.may_go.set()
        assert result.status is PutMessageStatus.FLUSH_DISK_TIMEOUT


def test_a_sync_that_fails_fails_the_futures_that_waited_for_it(root):
    disk = HeldDisk()
    store = MessageStore.open(root, small_config(**SYNC), disk=disk)
    store.put(message(0))
    disk.may_go.clear()
    disk.fails_sync = {"*"}
    futures = [store.put_async(message(number)) for number in range(5)]
    disk.may_go.set()
    wait(futures, PATIENCE_S)
    assert {type(future.exception(0)) for future in futures} == {FlushFailedError}
    assert isinstance(store.put_async(message(6)).exception(PATIENCE_S), FlushFailedError)
    with pytest.raises(FlushFailedError):
        store.close()


@pytest.mark.parametrize("settings", [{}, SYNC], ids=["async", "sync"])
def test_what_put_refuses_is_in_the_future(root, settings):
    with open_small(root, threads=True, **settings) as store:
        assert isinstance(store.put_async(Message(topic="a/b")).exception(0), InvalidNameError)
        assert isinstance(store.put_async(b"no message").exception(0), RefusedMessageError)
        long = Message(topic="T", body=bytes(store.config.max_message_size + 1))
        assert store.put_async(long).result(0).status is PutMessageStatus.MESSAGE_ILLEGAL
    assert store.put_async(message(0)).result(0).status is PutMessageStatus.SERVICE_NOT_AVAILABLE


def test_closing_resolves_what_is_left(root):
    store = open_small(root, threads=True, **SYNC)
    futures = [store.put_async(message(number)) for number in range(50)]
    store.close()
    assert all(future.done() for future in futures)
    with MessageStore.open(root, read_only=True) as reader:
        stored = [future.result(0) for future in futures]
        assert reader.max_offset("T", 0) == sum(result.is_stored for result in stored)


def test_without_threads_a_future_is_resolved_at_once(root):
    with open_small(root, threads=False, **SYNC) as store:
        assert store.put_async(message(0)).result(0).status is PutMessageStatus.PUT_OK
        assert store.flushed_physical_offset == store.max_physical_offset
