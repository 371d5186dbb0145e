"""A store of messages for several queues whose settings were lost: nothing else is."""

import shutil

import pytest

from rocketstore import Message, RefusedMessageError, repair_store
from rocketstore.cli.application import run
from support.clock import Clock
from support.configured_store import open_small
from support.store_oracle import check_queues, read_log, read_queues

LOG_FILE_BYTES = 64 * 1024
ON = {"enable_multi_dispatch": True, "enable_lmq": True}
NAMES = "INNER_MULTI_DISPATCH"
LISTED = Message(topic="orders", properties={NAMES: "%LMQ%a,copies"})
ENDS = {("orders", 3): 5, ("%LMQ%a", 0): 5, ("copies", 3): 5}


def ends(store):
    return {tuple(key): store.max_offset(*key) for key in store.queues()}


def assert_every_number_was_given_once(root):
    records = read_log(root / "commitlog", LOG_FILE_BYTES).records
    check_queues(records, read_queues(root / "consumequeue"), [])


@pytest.mark.parametrize("lost", [None, "consumequeue", "consumequeue/%LMQ%a"])
def test_what_is_in_the_log_is_dispatched_without_the_settings(tmp_path, lost):
    with open_small(tmp_path, **ON) as store:
        for _ in range(3):
            store.put(LISTED, 3)
    store = open_small(tmp_path, **ON)
    for _ in range(2):
        store.put(LISTED, 3)
    store.abandon()  # not dispatched
    if lost is not None:
        shutil.rmtree(tmp_path / lost)
    with open_small(tmp_path) as store:
        assert ends(store) == ENDS
        assert store.put(Message(topic="copies"), 3).queue_offset == 5
        with pytest.raises(RefusedMessageError, match="open the store with enableMulti"):
            store.put(LISTED, 3)
    with open_small(tmp_path, **ON) as store:
        store.put(LISTED, 3)
        store.wait_dispatched()
        assert ends(store) == {("orders", 3): 6, ("%LMQ%a", 0): 6, ("copies", 3): 7}
    assert_every_number_was_given_once(tmp_path)


def test_a_repair_makes_what_the_opening_after_a_crash_would_have_made(tmp_path):
    store = open_small(tmp_path, **ON)
    for _ in range(5):
        store.put(LISTED, 3)
    store.put(Message(topic="later", body=bytes(LOG_FILE_BYTES - 500)))
    store.put(Message(topic="later"))  # an opening after an orderly end begins in the last file
    store.wait_dispatched()
    store.abandon()
    (tmp_path / "known-ends").unlink()  # as if a broker of 4.9 had written it
    for lost in ("%LMQ%a", "copies"):
        shutil.rmtree(tmp_path / "consumequeue" / lost)
    assert repair_store(tmp_path).remaining == []
    with open_small(tmp_path) as store:
        assert ends(store) == {**ENDS, ("later", 0): 2}


def test_what_waits_goes_to_its_queues_without_the_settings(tmp_path):
    clock = Clock()
    with open_small(tmp_path, clock, **ON) as store:
        store.put(LISTED, 3)
        store.put(Message(topic="orders", properties={NAMES: "%LMQ%a,copies", "DELAY": "1"}), 3)
        half = store.begin(LISTED, 3)
    with open_small(tmp_path, clock) as store:
        store.commit(half)
        clock.now_ms += 1_000
        for _ in range(3):
            store.delays.turn()
            store.wait_dispatched()
        found = ends(store)
    assert [found[key] for key in ENDS] == [3, 3, 3]


def test_queues_are_rebuilt_without_the_settings(tmp_path):
    with open_small(tmp_path, **ON) as store:
        for _ in range(5):
            store.put(LISTED, 3)
        store.wait_dispatched()
        before = read_queues(tmp_path / "consumequeue")
    assert run(["queue", "rebuild", str(tmp_path)]) == 1
    assert read_queues(tmp_path / "consumequeue") == before
