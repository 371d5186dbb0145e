"""Puts take turns with the thread that syncs for them, and none is left behind by another."""

import signal
import threading
import time

import pytest

from rocketstore.native.group import SyncGroup
from support.patience import PATIENCE_S

FAST_S, SLOW_S = 0.0001, 0.04


@pytest.fixture
def group():
    made = SyncGroup()
    made.open()
    return made


class Log:
    """Gives offsets to puts; all that were given are on the disk when their sync is over."""

    def __init__(self):
        self.end = 0
        self.lock = threading.Lock()

    def append(self):
        with self.lock:
            self.end += 1
            return self.end

    def serve(self, group):
        """Serve all who wait; return how many they are."""
        taken = group.take()
        group.serve(self.end)
        return taken


@pytest.fixture
def log():
    return Log()


class Putter(threading.Thread):
    """Waits `rounds` times to be served, and pauses in between; `asks` for a last turn or not."""

    def __init__(self, group, log, rounds, pause=lambda: None):
        super().__init__(daemon=True)
        self.group, self.log, self.rounds, self.pause = group, log, rounds, pause
        self.results = []
        self.asks = False

    def run(self):
        for _ in range(self.rounds):
            self.results.append(self.group.wait(self.log.append(), 30))
            self.pause()
        if self.asks:
            self.group.ask()


def waiting(group, log, rounds=1):
    """Return a putter that waits."""
    putter = Putter(group, log, rounds)
    putter.start()
    while not group:
        pass
    return putter


def end(group, log, *putters):
    """Serve all who wait, and let them go; return how many they were."""
    taken = log.serve(group)
    group.let_go()
    for putter in putters:
        putter.join(PATIENCE_S)
        assert putter.results == [True]
    return taken


def serve(group, log, putters, sync_s=FAST_S):
    """Serve until all have what they want; return how many were served each round."""
    served = []
    for putter in putters:
        putter.asks = True
        putter.start()
    while any(putter.is_alive() for putter in putters):
        group.gather(sync_s)
        served.append(log.serve(group))
        if all(len(putter.results) == putter.rounds for putter in putters):
            break
    group.let_go()
    for putter in putters:
        putter.join(PATIENCE_S)
        assert not putter.is_alive()
        assert putter.results == [True] * putter.rounds
    return served


@pytest.mark.parametrize(("threads", "most"), [(1, 210), (2, 250), (16, 400)])
def test_threads_that_put_again_at_once_are_served_together(group, log, threads, most):
    """Each alone they would be served 200, 400, and 3,200 times.

    After a sync as slow as this the thread waits for them although other processes keep one away.
    """
    putters = [Putter(group, log, 200) for _ in range(threads)]
    assert len(serve(group, log, putters, PATIENCE_S)) <= most


def test_one_that_stays_away_holds_up_nobody(group, log):
    waits = []
    quick = [Putter(group, log, 50) for _ in range(4)]

    def stay_away():
        for putter in quick:
            putter.join(PATIENCE_S)
        waits.append(not any(putter.is_alive() for putter in quick))

    serve(group, log, [Putter(group, log, 2, pause=stay_away), *quick])
    assert waits == [True, True]


def test_a_put_that_ends_while_others_wait_for_their_turn_leaves_none_behind(group, log):
    putters = [Putter(group, log, 1 + number) for number in range(16)]
    served = serve(group, log, putters)
    assert 16 <= len(served) <= sum(range(1, 17)) + 32


def test_the_thread_goes_on_when_asked_although_nobody_waits(group):
    group.ask()
    group.gather(FAST_S)
    assert group.take() == 0
    group.ask()
    group.waiting_goal = 8
    began = time.monotonic()
    group.gather(60.0)
    assert time.monotonic() - began < 30


def test_a_slow_sync_waits_for_those_that_were_served_last(group, log):
    group.waiting_goal = 2
    first, second = Putter(group, log, 1), Putter(group, log, 1)
    threading.Timer(0.05, second.start).start()
    first.start()
    group.gather(60.0)
    assert end(group, log, first, second) == 2
    assert group.rounds_apart == 0


def test_waiting_in_vain_lasts_a_part_of_a_sync_and_then_is_left_for_longer_and_longer(group, log):
    apart = []
    for _ in range(3):
        group.waiting_goal, group.rounds_apart = 8, 0
        putter = Putter(group, log, 1)
        putter.start()
        began = time.monotonic()
        group.gather(SLOW_S)
        assert time.monotonic() - began >= SLOW_S / 2
        apart.append(group.rounds_apart)
        end(group, log, putter)
    assert apart == [1, 2, 4]


def test_nobody_waits_for_anybody_in_rounds_apart(group, log):
    group.waiting_goal, group.rounds_apart = 8, 1
    putter = waiting(group, log)
    group.gather(60.0)
    end(group, log, putter)
    assert group.rounds_apart == 0


def test_a_rest_ends_with_its_time_or_the_first_put(group, log):
    group.rest(0.001)
    putter = Putter(group, log, 1)
    threading.Timer(0.02, putter.start).start()
    group.rest(60)
    assert len(group) == 1
    group.close()
    putter.join(PATIENCE_S)
    assert putter.results == [False]


def test_nothing_waits_in_a_group_that_is_closed_and_what_did_is_let_go(group, log):
    putter = waiting(group, log, rounds=2)
    group.take()
    group.close()
    putter.join(PATIENCE_S)
    assert putter.results == [False, False]
    began = time.monotonic()
    assert group.wait(log.append(), 30) is False
    assert time.monotonic() - began < 10


def test_a_put_taken_by_a_sync_that_did_not_reach_its_end_waits_for_the_next(group, log):
    putter = waiting(group, log)
    group.take()
    group.serve(0)
    group.let_go()
    while not group:
        pass
    assert putter.results == []
    end(group, log, putter)


def test_what_is_on_the_disk_is_not_waited_for(group):
    group.serve(100)
    assert group.wait(100, 0) is True
    assert group.wait(101, 0) is False


def test_a_put_that_waits_too_long_is_forgotten_by_those_that_wait_after_it(group, log):
    assert group.wait(log.append(), 0.01) is False
    first = waiting(group, log)
    group.gather(FAST_S)
    assert group.take() >= 1
    end(group, log, first)


@pytest.mark.parametrize("arguments", [(), (1,), ("1", 1.0), (1, "1"), (1, None)])
def test_offset_and_timeout_are_numbers(group, arguments):
    with pytest.raises(TypeError):
        group.wait(*arguments)


def test_a_signal_is_handled_while_its_thread_waits(group):
    def interrupt(_number, _frame):
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(InterruptedError):
            group.wait(1, 30)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_signal_that_is_handled_without_an_error_ends_no_wait(group):
    calls = []
    before = signal.signal(signal.SIGALRM, lambda *_: calls.append(1))
    began = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert group.wait(1, 0.1) is False
    finally:
        signal.signal(signal.SIGALRM, before)
    assert calls
    assert time.monotonic() - began >= 0.1
