"""Every future of `put_async` ends, and tells the truth about its message."""

import ctypes
import itertools
import os
import threading
from concurrent.futures import Future, wait
from pathlib import Path

import pytest

from rocketstore import FlushDiskType, Message, MessageStore, PutMessageStatus, StoreForkedError
from rocketstore.config import BrokerRole
from rocketstore.consuming import async_puts
from rocketstore.storage.files.disk import Disk
from support.configured_store import open_small, small_config
from support.failing_disk import HeldDisk, QuickDisk
from support.interrupts import Interrupt, InterruptAt

WAIT_S = 60
THREAD = "rocketstore-put-async"
OK = PutMessageStatus.PUT_OK

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def held_disk() -> HeldDisk:
    """Return a disk that holds syncs of the flush thread."""
    return HeldDisk(is_held=lambda _: threading.current_thread().name == "rocketstore-flush")


def opened(root: Path, disk: Disk | None = None, **settings: object) -> MessageStore:
    patient = {"os_page_cache_busy_time_out_mills": 2**31 - 1}  # where the machine stands still
    config = small_config(flush_disk_type=FlushDiskType.SYNC_FLUSH, **patient, **settings)
    return MessageStore.open(root, config, disk=disk or QuickDisk())


def message(number: int) -> Message:
    return Message(topic="T", body=b"%d" % number)


def worker() -> threading.Thread:
    (thread,) = (one for one in threading.enumerate() if one.name == THREAD)
    return thread


def bodies(root: Path) -> dict[int, bytes]:
    with open_small(root) as store:
        store.wait_dispatched()
        page = [store.get("T", 0, at, 1).messages[0] for at in range(store.max_offset("T", 0))]
    return {one.physical_offset: one.body for one in page}


@pytest.mark.parametrize("flush", FlushDiskType)
@pytest.mark.parametrize("part", ["consuming", "storage"])
def test_an_interrupt_at_any_line_of_a_put_leaves_no_future_that_does_not_end(
    tmp_path, flush, part
):
    interrupts, futures = InterruptAt(part), []
    config = small_config(flush_disk_type=flush)
    with MessageStore.open(tmp_path, config, disk=QuickDisk()) as store:
        for line in itertools.count(1):
            one = message(line)
            hit = interrupts.run(line, lambda one=one: futures.append(store.put_async(one)))
            # And one after it, which uses what the interrupt left behind.
            futures.append(store.put_async(message(1000 + line)))
            if not hit:
                break
        assert line > (5 if part == "consuming" else 1)
        assert [one.name for one in threading.enumerate()].count(THREAD) == (
            1 if flush is FlushDiskType.SYNC_FLUSH else 0
        )
        done, _ = wait(futures, WAIT_S)
        assert len(done) == len(futures)
    stored = bodies(tmp_path)
    for future in futures:
        assert future.result(0).status is OK
        assert future.result(0).physical_offset in stored


def test_an_interrupted_close_ends_every_future(tmp_path):
    interrupts = InterruptAt("")
    for line in itertools.count(1, 41):
        store = opened(tmp_path / str(line))
        futures = [store.put_async(message(number)) for number in range(5)]
        hit = interrupts.run(line, store.close)
        store.close()
        assert {future.result(0).status for future in futures} == {OK}, interrupts.where
        if not hit:
            break
    assert line > 200


def test_puts_beside_close_end_and_say_what_is_stored(tmp_path):
    for turn in range(10):
        root = tmp_path / str(turn)
        store, futures = opened(root), []

        def put(store: MessageStore = store, futures: list[Future] = futures) -> None:
            for number in itertools.count():
                futures.append(store.put_async(message(number)))
                if futures[-1].done() and not futures[-1].result().is_stored:
                    return

        threads = [threading.Thread(target=put) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(futures) < 20 * turn:
            assert threads[0].is_alive()
        store.close()
        for thread in threads:
            thread.join(WAIT_S)
        assert not wait(futures, WAIT_S).not_done
        stored = [one.result() for one in futures if one.result().is_stored]
        assert {one.status for one in stored} == {OK}
        assert len(bodies(root)) == len(stored)


class Trouble:
    """Stands in for what asks the store, and raises the first times."""

    def __init__(self, store: MessageStore, errors: list[BaseException]) -> None:
        self.ask, self.errors = store.acknowledged, errors

    def __call__(self, *arguments: object) -> object:
        if self.errors:
            raise self.errors.pop()
        return self.ask(*arguments)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("?"), SystemExit(1), Interrupt()])
def test_what_nobody_foresaw_is_asked_again_and_the_message_is_said_to_be_stored(
    tmp_path, monkeypatch, error
):
    monkeypatch.setattr(async_puts, "_ASK_AGAIN_S", 0.01)
    with opened(tmp_path) as store:
        monkeypatch.setattr(store._async_puts._store, "acknowledged", Trouble(store, [error] * 3))
        futures = [store.put_async(message(number)) for number in range(5)]
        assert [one.result(WAIT_S).status for one in futures] == [OK] * 5


def test_what_lasts_is_in_the_future_at_last(tmp_path, monkeypatch):
    monkeypatch.setattr(async_puts, "_ASK_AGAIN_S", 0.01)
    store = opened(tmp_path)
    monkeypatch.setattr(async_puts.AsyncPuts._resolve, "__defaults__", (0.1,))
    monkeypatch.setattr(store, "acknowledged", Trouble(store, [MemoryError()] * (1 << 20)))
    future = store.put_async(message(1))
    store.close()
    assert isinstance(future.exception(0), MemoryError)


def test_what_a_thread_that_died_has_left_ends_with_the_store(tmp_path, monkeypatch):
    monkeypatch.setattr(async_puts.AsyncPuts, "_work", lambda puts: puts._bell.wait())
    with opened(tmp_path) as store:
        future = store.put_async(message(0))
        assert not future.done()
    assert future.result(0).status is OK


def test_a_callback_that_raises_ends_neither_the_thread_nor_other_futures(tmp_path):
    def exits(_future: Future) -> None:
        raise SystemExit

    disk = held_disk()
    with opened(tmp_path, disk) as store:
        disk.may_go.clear()
        futures = [store.put_async(message(number)) for number in range(5)]
        futures[1].add_done_callback(exits)
        disk.may_go.set()
        assert [one.result(WAIT_S).status for one in futures] == [OK] * 5
        assert store.put_async(message(6)).result(WAIT_S).status is OK
        assert worker().is_alive()


def test_an_exception_set_in_the_thread_from_outside_ends_no_future(tmp_path):
    disk = held_disk()
    with opened(tmp_path, disk) as store:
        disk.may_go.clear()
        futures = [store.put_async(message(number)) for number in range(5)]
        ident = ctypes.c_ulong(worker().ident)
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Interrupt)) == 1
        disk.may_go.set()
        assert [one.result(WAIT_S).status for one in futures] == [OK] * 5


def test_time_outs_count_from_the_put_and_not_from_when_its_turn_comes(tmp_path):
    may_go_on, left = threading.Event(), []

    def replica(_offset: int, timeout_s: float) -> PutMessageStatus:
        assert may_go_on.wait(WAIT_S)
        left.append(timeout_s)
        return PutMessageStatus.FLUSH_SLAVE_TIMEOUT

    settings = {"broker_role": BrokerRole.SYNC_MASTER, "slave_timeout": 1}
    with opened(tmp_path, **settings) as store:
        store.replicated_log.set_replica(replica)
        futures = [store.put_async(message(number)) for number in range(50)]
        done, _ = wait(futures, 0.01)
        assert not done
        may_go_on.set()
        statuses = {future.result(WAIT_S).status for future in futures}
    assert statuses == {PutMessageStatus.FLUSH_SLAVE_TIMEOUT}
    assert left[1:] == [0.0] * 49


def test_in_a_forked_child_futures_say_so_and_call_nobody(tmp_path):
    disk, called = held_disk(), []
    with opened(tmp_path, disk) as store:
        disk.may_go.clear()
        future = store.put_async(message(1))
        future.add_done_callback(lambda _one: called.append(os.getpid()))
        with future._condition:  # as another thread may hold it when the process forks
            child = os.fork()
        if not child:
            is_right = isinstance(future.exception(WAIT_S), StoreForkedError) and not called
            os._exit(0 if is_right else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert not future.done()
        disk.may_go.set()
        assert future.result(WAIT_S).status is OK
        assert called == [os.getpid()]
