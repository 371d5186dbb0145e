"""An idle store sleeps, wakes for the next message, and stops at once."""

import threading
import time
from pathlib import Path

import pytest

from rocketstore import Message, MessageStore
from rocketstore.config import FlushDiskType
from rocketstore.storage.running_flags import RunningFlag
from support.clock import Clock
from support.configured_store import open_small
from support.failing_disk import QuickDisk
from support.inside import parts_of, workers_of
from support.patience import PATIENCE_S, wait_until

WAKE_UPS_PER_S = 20
LOOKS_FOR_S = 1.0


def voluntary_switches(store: MessageStore) -> int:
    """Return how often the store's threads went to sleep so far."""
    assert store is not None
    total = 0
    for thread in threading.enumerate():
        if thread.name.startswith("rocketstore-"):
            status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
            (line,) = (one for one in status.splitlines() if one.startswith("voluntary"))
            total += int(line.split()[1])
    return total


def wakes_up_rarely(store: MessageStore) -> bool:
    """Look again where it was not idle yet: on a busy machine that takes a while."""
    for _ in range(10):
        before, began = voluntary_switches(store), time.monotonic()
        time.sleep(LOOKS_FOR_S)
        woken = voluntary_switches(store) - before
        if woken < WAKE_UPS_PER_S * (time.monotonic() - began):
            return True
    return False


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_an_idle_store_wakes_up_less_than_20_times_a_second(tmp_path, flush):
    settings = {"retention": True, "scrub_bytes_per_second": 1000, "flush_disk_type": flush}
    with open_small(tmp_path, threads=True, **settings) as store:
        store.put(Message(topic="orders", body=b"x"))
        assert store.wait_dispatched(timeout_s=PATIENCE_S)
        assert wakes_up_rarely(store)


def test_a_thread_that_waits_for_a_message_keeps_no_other_awake(tmp_path):
    with open_small(tmp_path, threads=True) as store:
        arrived: list[bool] = []
        waiter = threading.Thread(
            target=lambda: arrived.append(store.wait_for("orders", 0, 0, PATIENCE_S))
        )
        waiter.start()
        assert wakes_up_rarely(store)
        store.put(Message(topic="orders", body=b"x"))
        waiter.join()
        assert arrived == [True]


ORDER = Message(topic="orders", body=b"x")
KINDS = {
    "put": lambda store: store.put(ORDER),
    "put_prepared": lambda store: store.put_prepared(store.prepare(ORDER)),
    "put_batch": lambda store: store.put_batch([ORDER, ORDER]),
    "without waiting": lambda store: store.put(
        Message(topic="orders", body=b"x", wait_flush=False)
    ),
}


@pytest.mark.parametrize("flush", list(FlushDiskType))
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_put_wakes_dispatch_that_sleeps(tmp_path, kind, flush):
    with open_small(tmp_path, threads=True, flush_disk_type=flush) as store:
        for _ in range(10):
            wait_until_asleep(store)
            KINDS[kind](store)
            # Nobody waits for dispatch here, which would ring as well.
            wait_until(lambda: store.dispatched_physical_offset == store.max_physical_offset)


def wait_until_asleep(store: MessageStore) -> None:
    wait_until(lambda: parts_of(store).log._ring is not None, "dispatch goes to sleep")


def test_no_message_is_missed_by_dispatch_that_falls_asleep_meanwhile(tmp_path):
    """Puts some milliseconds apart meet dispatch at every point of its way to sleep."""
    with open_small(tmp_path, threads=True) as store:
        for number in range(200):
            store.put(ORDER)
            deadline = time.monotonic() + PATIENCE_S
            while store.dispatched_physical_offset < store.max_physical_offset:
                assert time.monotonic() < deadline, "dispatch sleeps on"
            time.sleep((number % 40) / 10_000)


def test_close_of_an_idle_store_wakes_every_thread(tmp_path):
    settings = {
        "retention": True, "scrub_bytes_per_second": 1000,
        "flush_interval_commit_log": 600_000, "flush_interval_consume_queue": 600_000,
    }  # fmt: skip
    store = open_small(tmp_path, disk=QuickDisk(), threads=True, **settings)
    store.put(ORDER)
    wait_until_asleep(store)
    began = time.monotonic()
    store.close()
    assert time.monotonic() - began < 60  # of 600 s


@pytest.mark.parametrize("name", ["rocketstore-statistics", "rocketstore-queue-flush"])
def test_puts_are_refused_after_the_death_of_a_thread_and_say_why(tmp_path, monkeypatch, name):
    def die() -> None:
        raise SystemExit("from the depth")

    with open_small(tmp_path, Clock(), threads=True) as store:
        workers = workers_of(store)
        service = next(
            one for one in (workers._queue_flush, *workers._watchers) if one.name == name
        )
        monkeypatch.setattr(service, "_job", die)
        for thread in threading.enumerate():
            if thread.name == name:
                thread.join(PATIENCE_S)
        assert store.running_flags.bits & RunningFlag.NOT_WRITEABLE
        result = store.put(ORDER)
        assert result.status.name == "SERVICE_NOT_AVAILABLE"
        assert f"{name} ended by an unforeseen error: SystemExit" in (result.detail or "")
