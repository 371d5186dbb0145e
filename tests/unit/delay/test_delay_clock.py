"""Delays by the clock of now: it was ahead, is set back or forth, and levels are changed."""

import shutil

import pytest

from rocketstore import Message, verify_store
from rocketstore.audit.repair import rebuild_store
from support.clock_jumps import HOUR_MS, ahead, either_way
from support.configured_store import open_small, small_config
from support.store_files import overwrite_file

TOPIC = "orders"
WAITING = "SCHEDULE_TOPIC_XXXX"
LEVEL_MS = {"1": 1_000, "3": 10_000, "18": 7_200_000}


def put(store, body, level):
    message = Message(topic=TOPIC, body=body, properties={"DELAY": str(level)})
    store.put(message).raise_for_status()
    store.wait_dispatched()


def put_while_ahead(store, clock, jump_ms):
    """Put one message while the clock is ahead; it is right again after that."""
    clock.now_ms += jump_ms
    store.put(Message(topic="T", body=b"ahead")).raise_for_status()
    store.wait_dispatched()
    clock.now_ms -= jump_ms


def bodies_after(store, clock, ms=0):
    """Return what is delivered once the clock has gone on, with the looks of the thread."""
    look(store)
    for _ in range(min(ms // 1_000, 20)):
        clock.now_ms += 1_000
        ms -= 1_000
        look(store)
    clock.now_ms += ms
    look(store)
    return [message.body for message in store.get(TOPIC, 0, 0).messages]


def look(store):
    for _ in range(4):
        store.delays.turn()
        store.wait_dispatched()


@ahead
@pytest.mark.parametrize("end", ["open", "closed", "killed"])
@pytest.mark.parametrize("level", ["1", "3", "18"])
def test_a_delay_counts_from_the_clock_though_the_store_time_is_ahead(
    tmp_path, clock, jump_ms, end, level
):
    with open_small(tmp_path, clock) as store:
        put_while_ahead(store, clock, jump_ms)
        put(store, b"later", level)
        [waiting] = store.get(WAITING, int(level) - 1, 0).messages
        assert waiting.store_timestamp_ms == clock.now_ms + jump_ms
        [(_, entry)] = store.queue_entries(WAITING, int(level) - 1)
        assert 0 <= entry.tags_code - clock.now_ms - LEVEL_MS[level] < 1_000
        if end == "open":
            waits_exactly(store, clock, LEVEL_MS[level])
            return
        if end == "killed":
            store.abandon()
    with open_small(tmp_path, clock) as store:
        waits_exactly(store, clock, LEVEL_MS[level])
    assert not verify_store(tmp_path, small_config()).is_damaged


def waits_exactly(store, clock, delay_ms):
    assert bodies_after(store, clock, delay_ms - 1) == []
    assert bodies_after(store, clock, 1) == [b"later"]
    assert bodies_after(store, clock, 100 * LEVEL_MS["18"]) == [b"later"]


def test_a_store_time_that_is_some_ms_ahead_makes_a_message_less_than_a_second_late(
    tmp_path, clock
):
    with open_small(tmp_path, clock) as store:
        put_while_ahead(store, clock, 30_999)
        put(store, b"later", 3)
        assert bodies_after(store, clock, 10_998) == []
        assert bodies_after(store, clock, 1) == [b"later"]


@ahead
@pytest.mark.parametrize("level", ["1", "3", "18"])
def test_what_was_put_while_the_clock_was_ahead_waits_for_its_delay_from_then_on(
    tmp_path, clock, jump_ms, level
):
    """At once is too early, as 4.9 does; and it does not wait until the clock is there again."""
    with open_small(tmp_path, clock) as store:
        look(store)
        clock.now_ms += jump_ms
        put(store, b"later", level)
        clock.now_ms -= jump_ms
        waits_exactly(store, clock, LEVEL_MS[level])


@either_way
def test_a_jump_while_a_message_waits_makes_it_wait_no_longer_than_its_delay_again(
    tmp_path, clock, jump_ms
):
    with open_small(tmp_path, clock) as store:
        put(store, b"later", 3)
        assert bodies_after(store, clock, 4_000) == []
        clock.now_ms += jump_ms
        assert bodies_after(store, clock, 10_000) == [b"later"]


@ahead
def test_a_clock_that_goes_back_again_and_again_does_not_add_up(tmp_path, clock, jump_ms):
    with open_small(tmp_path, clock) as store:
        put(store, b"later", 3)
        for _ in range(3):
            clock.now_ms -= jump_ms
            assert bodies_after(store, clock, 9_000) == []
        assert bodies_after(store, clock, 1_000) == [b"later"]


@ahead
def test_many_that_were_put_while_the_clock_was_ahead_wait_together(
    tmp_path, clock, jump_ms, monkeypatch
):
    """Held are only some of them at once; the others were seen then, too."""
    monkeypatch.setattr("rocketstore.delay.delivery.MOST_HELD", 4)
    with open_small(tmp_path, clock) as store:
        clock.now_ms += jump_ms
        for number in range(10):
            put(store, b"%d" % number, 3)
        clock.now_ms -= jump_ms
        assert bodies_after(store, clock, 9_999) == []
        assert max(len(level.held) for level in store.delays.delivery.levels) == 4
        assert bodies_after(store, clock, 1) == [b"%d" % number for number in range(10)]


@ahead
def test_a_queue_that_is_built_again_is_neither_early_nor_late_by_the_jump(
    tmp_path, clock, jump_ms
):
    with open_small(tmp_path, clock) as store:
        put_while_ahead(store, clock, jump_ms)
        put(store, b"later", 3)
    shutil.rmtree(tmp_path / "consumequeue")
    rebuild_store(tmp_path, small_config(), what="queues", now_ms=clock.now_ms)
    with open_small(tmp_path, clock) as store:
        waits_exactly(store, clock, 10_000)


CHANGED = {
    "fewer": ("1s 2s 1h 2h", "1s"),
    "one gone": ("1s 2s 1h 2h", "1s 2s 1h"),
    "other units": ("1s 2s 1h 2h", "1s 2s 1m 2m"),
    "reordered": ("1s 2s 1h 2h", "2h 1h 2s 1s"),
    "more": ("1s 2s 1h 2h", "1s 2s 3s 4s 5s 6s 7s"),
    "longer": ("1s 2s 1h 2h", "1d 1d 1d 1d"),
    "none": ("1s 2s 1h 2h", "0s"),
}
PUT_MS = {1: 1_000, 2: 2_000, 3: HOUR_MS, 4: 2 * HOUR_MS}


@pytest.mark.parametrize(("before", "after"), CHANGED.values(), ids=CHANGED.keys())
@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_what_waits_keeps_the_time_that_stands_in_its_entry_whatever_becomes_of_the_levels(
    tmp_path, clock, before, after, is_killed
):
    """K-S6, also in an opening that goes over the log, and each is delivered once."""
    with open_small(tmp_path, clock, message_delay_level=before) as store:
        for level in PUT_MS:
            put(store, b"%d" % level, level)
        if is_killed:
            store.abandon()
    expected, gone_ms = [], 0
    for level, delay_ms in PUT_MS.items():
        with open_small(tmp_path, clock, message_delay_level=after) as store:
            clock.now_ms += delay_ms - 1 - gone_ms
            assert bodies_after(store, clock) == expected
            expected.append(b"%d" % level)
            assert bodies_after(store, clock, 1) == expected
            gone_ms = delay_ms
            if is_killed:
                store.abandon()
    with open_small(tmp_path, clock) as store:
        assert bodies_after(store, clock, 100 * HOUR_MS) == expected


def test_a_level_that_is_shorter_now_delivers_new_messages_before_old_ones(tmp_path, clock):
    """Also killed in between: what was delivered out of its turn is not delivered again."""
    with open_small(tmp_path, clock, message_delay_level="1h") as store:
        for number in range(3):
            put(store, b"old %d" % number, 1)
    for number in range(3):
        with open_small(tmp_path, clock, message_delay_level="1s") as store:
            put(store, b"new %d" % number, 1)
            found = bodies_after(store, clock, 1_000)
            assert found == [b"new %d" % one for one in range(number + 1)]
            store.abandon()
    with open_small(tmp_path, clock, message_delay_level="1s") as store:
        found = bodies_after(store, clock, HOUR_MS)
        assert found[3:] == [b"old %d" % one for one in range(3)]


def test_a_time_that_no_level_gives_is_damage_and_holds_nobody_up(tmp_path, clock):
    with open_small(tmp_path, clock) as store:
        put(store, b"flipped", 3)
        put(store, b"whole", 3)
        store.flush()
        [path] = (tmp_path / "consumequeue" / WAITING / "2").iterdir()
        overwrite_file(path, 13, b"\x40")  # a time of the year 500,000
        assert bodies_after(store, clock) == [b"flipped"]
        assert bodies_after(store, clock, 10_000) == [b"flipped", b"whole"]


@ahead
@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_openings_that_go_over_the_log_again_give_no_later_time(
    tmp_path, clock, jump_ms, is_killed
):
    with open_small(tmp_path, clock) as store:
        put_while_ahead(store, clock, jump_ms)
        put(store, b"later", 3)
    for _ in range(9):
        with open_small(tmp_path, clock) as store:
            assert bodies_after(store, clock, 1_100) == []
            if is_killed:
                store.abandon()
    with open_small(tmp_path, clock) as store:
        assert bodies_after(store, clock, 100) == [b"later"]
