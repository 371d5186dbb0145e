"""Dispatch by a loop that leads: what it does itself, and what it leaves to the thread."""

import threading

import pytest

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.native.dispatch import NotHereError
from rocketstore.storage.dispatch import dispatch_service
from rocketstore.storage.dispatch.dispatch_service import DispatchService
from support.dispatch_parts import DispatchParts
from support.inside import wait_until_led
from support.patience import PATIENCE_S


class Log:
    """In place of a log: it says how far it goes, and keeps what is to be rung."""

    def __init__(self, parts):
        self.parts = parts
        self.rings = []

    @property
    def max_offset(self):
        return self.parts.end

    def ring_at_next_append(self, ring):
        self.rings.append(ring)


@pytest.fixture
def parts(tmp_path):
    """A log whose queue has a file with room for four entries more, and an index with room."""
    parts = DispatchParts(tmp_path)
    parts.append()
    parts.run()
    return parts


@pytest.fixture
def service(parts):
    return DispatchService(parts.dispatcher, monotonic=parts.clock, log=Log(parts))


def due():
    """Be called by an append."""


def left_to_thread(service):
    return service._bell.wait(0)


def test_guest_does_all_for_which_no_file_is_needed(parts):
    placed = parts.append(6)
    with pytest.raises(NotHereError):
        parts.dispatcher.run_once(as_guest=True)
    assert parts.queue().max_offset == 5
    assert parts.dispatcher.dispatched_offset == placed[4]
    assert len(list((parts.root / "consumequeue").rglob("0*"))) == 2  # the queue, and its file
    assert parts.dispatcher.run_once()
    assert [entry[0] for entry in parts.entries()[1:]] == placed
    parts.append()
    assert parts.dispatcher.run_once(as_guest=True)


@pytest.mark.parametrize(
    "fields", [{"topic": b"new"}, {"queue_id": 1}, {"queue_offset": 3}, {"properties": b"KEYS\1k"}],
    ids=["topic", "queue", "gap", "index file"],
)  # fmt: skip
def test_guest_leaves_decisions_alone(parts, fields):
    before = parts.bytes_on_disk()
    [placed] = parts.append(**fields)
    with pytest.raises(NotHereError):
        parts.dispatcher.run_once(as_guest=True)
    after = {name: found for name, found in parts.bytes_on_disk().items() if name in before}
    assert len(parts.bytes_on_disk()) == len(before)
    assert parts.dispatcher.dispatched_offset == placed
    if fields.keys() != {"properties"}:
        assert after == before
    assert parts.dispatcher.run_once()


def test_turn_does_what_is_there_and_is_due_again_at_the_next_append(parts, service):
    service.lead(due)
    assert left_to_thread(service)  # what there was before is the thread's
    [placed] = parts.append()
    service.turn()
    assert parts.entries()[-1][0] == placed
    assert service.log.rings == [due]
    assert not left_to_thread(service)


def test_turn_leaves_to_the_thread_what_takes_longer(parts, service, monkeypatch):
    service.lead(due)
    left_to_thread(service)
    parts.append(6)  # a file of the queue is to be made
    service.turn()
    assert left_to_thread(service)
    assert service.health.is_well
    assert service.run_once()
    parts.append()
    monkeypatch.setattr(dispatch_service, "MOST_IN_A_TURN_BYTES", 0)
    service.turn()
    assert left_to_thread(service)
    assert parts.dispatcher.behind_bytes > 0


def test_turn_leaves_listeners_of_others_to_the_thread(parts, service):
    told = []
    service.lead(due)
    left_to_thread(service)
    parts.dispatcher.board.add_listener(lambda arrival: told.append("the loop"))
    parts.append()
    service.turn()
    assert told == ["the loop"]
    parts.dispatcher.board.add_listener(lambda arrival: told.append("a program"))
    parts.append()
    service.turn()
    assert left_to_thread(service)
    assert told == ["the loop"]
    assert service.run_once()
    assert sorted(told) == ["a program", "the loop", "the loop"]


def test_turn_leaves_a_round_that_is_under_way_alone(parts, service):
    service.lead(due)
    left_to_thread(service)
    parts.append()
    with service._round:
        service.turn()
    assert parts.dispatcher.behind_bytes > 0
    assert left_to_thread(service)


def test_thread_that_is_led_sleeps_at_once_and_has_appends_call_its_leader(parts, service):
    assert service.pause_after(service.run_once()) > 0
    service.lead(due)
    parts.append()
    assert service.pause_after(service.run_once()) == 0
    assert service.pause_after(service.run_once()) == -1
    assert service.log.rings == [due]


def test_put_on_any_thread_is_due_once_and_dispatched_by_a_turn(tmp_path):
    asked = threading.Semaphore(0)
    with MessageStore.open(tmp_path, StoreConfig.small()) as store:
        store.put(Message(topic="orders", body=b"first"))
        assert store.wait_dispatched(timeout_s=PATIENCE_S)
        store.dispatching.lead(asked.release)
        for number in range(1, 6):
            wait_until_led(store, asked.release)
            putter = threading.Thread(target=store.put, args=(Message(topic="orders", body=b"x"),))
            putter.start()
            assert asked.acquire(timeout=PATIENCE_S)
            putter.join()
            store.dispatching.turn()
            assert store.wait_for("orders", 0, number, PATIENCE_S)
        store.dispatching.lead(None)
        store.put(Message(topic="orders", body=b"last"))
        assert store.wait_for("orders", 0, 6, PATIENCE_S)
