"""Pulls of what is not in memory: a thread reads it, and the loop goes on."""

import threading
from typing import Any

import pytest

from rocketstore import MessageStore
from rocketstore.broker.testing import Broker
from support.broker_desk import SEND
from support.broker_wire import Wire
from support.patience import PATIENCE_S
from unit.broker.test_pulling import PULL


class SlowDisk:
    """Nothing of a store is in memory, and nothing is read until `has_read` is set."""

    def __init__(self, store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_read = threading.Event()
        self.asked: list[tuple[Any, ...]] = []
        monkeypatch.setattr(store, "is_in_memory", self.is_in_memory)

    def is_in_memory(self, *place: Any, waits: bool = False) -> bool:
        if waits:
            self.asked.append(place)
            assert self.has_read.wait(PATIENCE_S)
        return waits


def test_slow_disk_holds_its_own_pull_and_not_the_loop(monkeypatch):
    with Broker() as broker, Wire(broker.address) as wire:
        assert wire.ask(310, SEND, b"x").code == 0
        broker.store.wait_dispatched()
        disk, offsets = SlowDisk(broker.store, monkeypatch), broker.store.consumer_offsets

        def commit_and_read():
            assert offsets.get("orders", "G", 0) == 7
            offsets.set("orders", "G", 0, 9)  # what comes later is not undone by the pull
            disk.has_read.set()

        # Another request of the same connection is answered before the disk has read.
        found = wire.ask_while(
            (11, {**PULL, "sysFlag": 5, "commitOffset": 7}, b""), commit_and_read
        )
        assert found.code == 0
        assert found.body == broker.store.get_raw("orders", 0, 0).records
        assert disk.asked == [("orders", 0, 0, 32, "*")]
        assert offsets.get("orders", "G", 0) == 9


def test_pull_that_waited_too_long_for_the_disk_is_refused(desk, monkeypatch):
    desk.dispatched("orders")
    disk = SlowDisk(desk.store, monkeypatch)
    disk.has_read.set()
    once_read = desk.loop.once_read

    def late(*work: Any) -> Any:
        desk.clock.now_ms += 5000
        return once_read(*work)

    monkeypatch.setattr(desk.loop, "once_read", late)
    found = desk.answer(11, PULL)
    assert (found.code, disk.asked) == (2, [])
    assert str(found.remark).startswith("[TIMEOUT_CLEAN_QUEUE]")
