"""No thread of a store ends in silence, and none keeps a store from being closed."""

import _thread
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rocketstore import FlushFailedError, Message, MessageStore, SystemRefusedError
from rocketstore.config import FlushDiskType
from rocketstore.errors import UnsupportedEnvironmentError
from rocketstore.storage import workers
from rocketstore.storage.checkpoint import read_checkpoint
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.results import PutMessageStatus
from rocketstore.storage.threads import ServiceThread
from support.clock import Clock
from support.configured_store import open_small
from support.failing_disk import QuickDisk
from support.patience import PATIENCE_S, wait_until, within_time
from support.ports import free_port


class UnforeseenError(Exception):
    """What no code expects from a disk."""


class StrangeDisk(Disk):
    """Raises what nobody expects when one thread syncs a file."""

    def __init__(self, thread: str, *, times: int = 1 << 30) -> None:
        self.thread = thread
        self.times = times
        self.is_strange = False
        self.was_strange = threading.Event()
        self.went_on = threading.Event()

    def fdatasync(self, descriptor: int, path: Path) -> None:
        if self.is_strange and threading.current_thread().name == self.thread:
            if self.times:
                self.times -= 1
                self.was_strange.set()
                raise UnforeseenError("from the depth")
            self.went_on.set()
        super().fdatasync(descriptor, path)


@pytest.mark.parametrize("writers", [1, 4])
@pytest.mark.parametrize("kind", [Message, bytes], ids=["put", "batch"])
def test_an_unforeseen_error_of_the_flush_thread_answers_waiting_puts_at_once(
    tmp_path, kind, writers
):
    disk = StrangeDisk("rocketstore-flush")
    store = open_small(
        tmp_path, disk=disk, threads=True, flush_disk_type=FlushDiskType.SYNC_FLUSH,
        sync_flush_timeout=600_000,
    )  # fmt: skip
    message = Message(topic="orders", body=b"x")
    assert store.put(message).status is PutMessageStatus.PUT_OK
    disk.is_strange = True
    call = store.put if kind is Message else lambda one: store.put_batch([one])
    with ThreadPoolExecutor(writers) as pool:
        outcomes = list(pool.map(lambda _: within_time(call, message), range(writers)))
    assert [type(outcome) for outcome in outcomes] == [FlushFailedError] * writers
    assert "UnforeseenError: from the depth" in str(outcomes[0])
    disk.is_strange = False
    with pytest.raises(FlushFailedError):
        store.put(message)
    assert isinstance(within_time(store.close), FlushFailedError)
    with open_small(tmp_path) as again:
        assert 1 < again.next_queue_offset("orders", 0) <= writers + 1


def test_an_unforeseen_error_of_the_asynchronous_flush_stops_the_puts_as_well(tmp_path):
    disk = StrangeDisk("rocketstore-flush")
    store = open_small(
        tmp_path, disk=disk, threads=True, flush_interval_commit_log=1,
        flush_commit_log_thorough_interval=1, flush_commit_log_least_pages=0,
    )  # fmt: skip
    message = Message(topic="orders", body=b"x")
    assert store.put(message).status is PutMessageStatus.PUT_OK
    disk.is_strange = True
    store.put(message)
    assert disk.was_strange.wait(PATIENCE_S)
    for thread in threading.enumerate():
        if thread.name == "rocketstore-flush":
            thread.join(PATIENCE_S)
    with pytest.raises(FlushFailedError, match="UnforeseenError"):
        store.put(message)
    assert isinstance(within_time(store.close), FlushFailedError)


def test_the_queue_flush_goes_on_after_an_unforeseen_error(tmp_path):
    clock = Clock()
    disk = StrangeDisk("rocketstore-queue-flush", times=1)
    store = open_small(
        tmp_path, clock, disk=disk, threads=True,
        flush_interval_consume_queue=1, flush_consume_queue_thorough_interval=1,
    )  # fmt: skip
    disk.is_strange = True  # before there is anything to flush
    store.put(Message(topic="orders", body=b"x"))
    assert store.wait_dispatched(timeout_s=PATIENCE_S)
    assert disk.was_strange.wait(PATIENCE_S)
    assert disk.went_on.wait(PATIENCE_S), "the thread ended"
    within_time(store.close)
    assert read_checkpoint(tmp_path / "checkpoint").logics_ms > 0
    assert not (tmp_path / "abort").exists()


@pytest.mark.parametrize("error", [OSError(24, "no more"), MemoryError(), UnforeseenError()])
def test_a_thread_whose_work_fails_says_so_and_works_again(monkeypatch, caplog, error):
    monkeypatch.setattr("rocketstore.storage.threads.PAUSE_AFTER_ERROR_S", 0.0)
    went_on, tries = threading.Event(), iter([error, error])
    deaths: list[BaseException] = []

    def work() -> None:
        for one in tries:
            raise one
        went_on.set()
        thread.stopping.wait()

    thread = ServiceThread("rocketstore-test", work, on_death=lambda _, why: deaths.append(why))
    thread.start()
    assert went_on.wait(PATIENCE_S)
    assert thread.is_running
    thread.stop()
    assert not deaths
    assert [line.event for line in caplog.records] == ["service.failed"], "the same error once"


def test_only_threads_whose_end_is_reported_end_by_errors(tmp_path):
    """The flush thread tells all puts; a slave's connection is closed, and the slave comes back."""
    from support.replicas import address_of, open_master, open_slave  # noqa: PLC0415

    pool = {"transient_store_pool_enable": True, "transient_store_pool_size": 2}
    served = {"retention": True, "scrub_bytes_per_second": 1000, **pool}
    with (
        open_master(tmp_path / "master", metrics_port=0, **served) as master,
        open_slave(tmp_path / "slave", address_of(master)) as slave,
    ):
        master.check_transactions(lambda _: None)
        master.consumer_offsets.set("orders", "billing", 0, 1)
        wait_until(lambda: slave.replication.is_following and master.replication.followers)
        threads = [one for one in gc.get_objects() if isinstance(one, ServiceThread)]
        running = {one.name: one for one in threads if one.is_running}
        assert {
            "rocketstore-master", "rocketstore-follow", "rocketstore-flush", "rocketstore-dispatch",
            "rocketstore-delay", "rocketstore-transaction-check", "rocketstore-retention",
            "rocketstore-disk-check", "rocketstore-scrub", "rocketstore-commit",
            "rocketstore-consumer-offsets", "rocketstore-queue-flush", "rocketstore-statistics",
        } <= running.keys()  # fmt: skip
        ending = {name.rstrip("0123456789") for name, one in running.items() if one._ends_by_errors}
        assert ending == {"rocketstore-flush", "rocketstore-slave-"}


# --- closing ------------------------------------------------------------------------------------


class WatchedDisk(QuickDisk):
    """Says when a file of the log, or of the queues, was deleted."""

    def __init__(self, below: str) -> None:
        self.below = below
        self.deleted = threading.Event()

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        if self.below in path.parts:
            self.deleted.set()


@pytest.mark.parametrize("pauses_after", ["commitlog", "consumequeue"])
def test_close_does_not_wait_for_the_pauses_of_retention(tmp_path, monkeypatch, pauses_after):
    monkeypatch.setattr(workers, "FIRST_CLEAN_AFTER_S", 0.0)
    in_log = pauses_after == "commitlog"
    clock, disk = Clock(), WatchedDisk(pauses_after)
    settings = {
        "delete_commit_log_files_interval": 600_000 if in_log else 0,
        "delete_consume_queue_files_interval": 0 if in_log else 600_000,
        "delete_when": ";".join(f"{hour:02d}" for hour in range(24)),
        "retention": True,
    }
    with open_small(tmp_path, clock) as store:
        fill(store)
    clock.now_ms += 100 * 3_600_000
    with open_small(tmp_path, clock) as store:
        fill(store, count=1)
    store = open_small(tmp_path, clock, disk=disk, threads=True, **settings)
    assert disk.deleted.wait(PATIENCE_S)
    began = time.monotonic()
    within_time(store.close)
    assert time.monotonic() - began < 60  # of the 600 s of a pause
    left = len(list((tmp_path / "commitlog").iterdir()))
    assert left > 2 if in_log else left == 1
    assert not (tmp_path / "abort").exists()


def fill(store: MessageStore, count: int = 250) -> None:
    for number in range(count):
        message = Message(topic=f"Topic{number % 2}", body=bytes(2000))
        assert store.put(message).status is PutMessageStatus.PUT_OK
    assert store.wait_dispatched()


# --- starting -----------------------------------------------------------------------------------

THREADS = (
    "rocketstore-preallocate", "rocketstore-touch", "rocketstore-flush", "rocketstore-dispatch",
    "rocketstore-queue-flush", "rocketstore-statistics", "rocketstore-disk-check",
    "rocketstore-retention", "rocketstore-scrub", "rocketstore-consumer-offsets",
    "rocketstore-delay", "rocketstore-transaction-check", "rocketstore-put-async",
    "rocketstore-master", "rocketstore-metrics", "rocketstore-commit",
)  # fmt: skip


@pytest.mark.parametrize("name", THREADS)
def test_a_store_whose_threads_cannot_be_started_is_not_open(tmp_path, monkeypatch, name):
    start = threading.Thread.start

    def start_some(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    before = set(threading.enumerate())
    settings = {
        "retention": True, "scrub_bytes_per_second": 1000, "ha_listen_port": 0,
        "metrics_port": free_port(),
    }  # fmt: skip
    if name == "rocketstore-put-async":
        settings["flush_disk_type"] = FlushDiskType.SYNC_FLUSH
    if name == "rocketstore-commit":
        settings |= {"transient_store_pool_enable": True, "transient_store_pool_size": 2}
    with pytest.raises(SystemRefusedError, match=f"{name}.*ulimit -u"):
        open_small(tmp_path, threads=True, **settings)
    assert set(threading.enumerate()) <= before
    monkeypatch.undo()
    with open_small(tmp_path, threads=True, **settings) as store:
        assert store.put(Message(topic="orders", body=b"x")).status is PutMessageStatus.PUT_OK


@pytest.mark.parametrize("module", ["gevent.thread", "eventlet.green.thread"])
def test_a_store_whose_threads_would_be_coroutines_is_not_open(tmp_path, monkeypatch, module):
    """One of them that waits for a disk or a socket would stop the whole process, for ever."""

    def start_new_thread(*_: object) -> int:
        raise AssertionError("it would hang")

    start_new_thread.__module__ = module
    with monkeypatch.context() as patched:
        patched.setattr(_thread, "start_new_thread", start_new_thread)
        with pytest.raises(UnsupportedEnvironmentError, match=r"thread=False"):
            open_small(tmp_path, threads=True)
    open_small(tmp_path, threads=True).close()  # nothing is locked


def test_an_unforeseen_error_of_the_thread_that_makes_files_ahead_stops_no_put(tmp_path):
    disk = StrangeDisk("rocketstore-preallocate")
    disk.is_strange = True
    with open_small(tmp_path, disk=disk, threads=True) as store:
        fill(store, 120)
        assert disk.was_strange.wait(PATIENCE_S)
        names = {thread.name for thread in threading.enumerate()}
        assert "rocketstore-preallocate" in names
        fill(store, 120)
