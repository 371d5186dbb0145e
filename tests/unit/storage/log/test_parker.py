"""A parker keeps one permit, whoever gave it when."""

import signal
import threading
import time

import pytest

from rocketstore.storage.log.parker import Parker


def test_a_parker_has_no_permit_at_first():
    assert Parker().park(0.001) is False


def test_a_permit_given_before_is_kept_and_no_more_than_one():
    parker = Parker()
    parker.unpark()
    parker.unpark()
    assert parker.park(10) is True
    assert parker.park(0) is False


def test_a_permit_ends_a_wait_without_end():
    parker, results = Parker(), []
    thread = threading.Thread(target=lambda: results.append(parker.park(-1)))
    thread.start()
    parker.unpark()
    thread.join(10)
    assert results == [True]


def test_who_hands_over_wakes_the_other_and_waits():
    mine, others = Parker(), Parker()

    def answer():
        others.park(-1)
        mine.unpark()

    thread = threading.Thread(target=answer)
    thread.start()
    assert mine.hand_over(others, 10) is True
    thread.join(10)


def test_a_permit_handed_over_twice_is_still_one():
    mine, others = Parker(), Parker()
    assert mine.hand_over(others, 0.001) is False
    assert mine.hand_over(others, 0.001) is False
    assert others.park(0) is True
    assert others.park(0) is False


def test_threads_that_hand_over_in_a_ring_never_lose_the_permit():
    ring, laps = [Parker() for _ in range(5)], 200
    counts = [0] * len(ring)

    def go_round(number):
        following = ring[(number + 1) % len(ring)]
        ring[number].park(-1)
        for _ in range(laps - 1):
            counts[number] += 1
            assert ring[number].hand_over(following, 30)
        counts[number] += 1
        following.unpark()

    threads = [threading.Thread(target=go_round, args=(number,)) for number in range(len(ring))]
    for thread in threads:
        thread.start()
    ring[0].unpark()
    for thread in threads:
        thread.join(60)
    assert counts == [laps] * len(ring)


def test_a_wait_is_as_long_as_it_was_asked_for():
    began = time.monotonic()
    assert Parker().park(0.05) is False
    assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize("timeout", ["1", None])
def test_a_timeout_is_a_number(timeout):
    with pytest.raises(TypeError):
        Parker().park(timeout)
    with pytest.raises(TypeError):
        Parker().hand_over(Parker(), timeout)


def test_nothing_but_a_parker_is_handed_over_to():
    with pytest.raises((TypeError, AttributeError)):
        Parker().hand_over(object(), 0.001)


def test_a_signal_is_handled_while_its_thread_waits():
    def interrupt(_number, _frame):
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(InterruptedError):
            Parker().park(30)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_signal_that_is_handled_without_an_error_ends_no_wait():
    calls = []
    before = signal.signal(signal.SIGALRM, lambda *_: calls.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert Parker().park(0.1) is False
    finally:
        signal.signal(signal.SIGALRM, before)
    assert calls
