"""Puts take turns with the thread that syncs for them, and none is left behind by another."""

import threading
import time

import pytest

from rocketstore.storage.log import put_group
from rocketstore.storage.log.parker import Parker, PlainParker
from rocketstore.storage.log.put_group import PutGroup

FAST_S, SLOW_S = 0.0001, 0.04


@pytest.fixture(params=sorted({PlainParker, Parker}, key=repr), ids=lambda kind: kind.__module__)
def group(request, monkeypatch):
    monkeypatch.setattr(put_group, "Parker", request.param)
    return PutGroup()


class Putter(threading.Thread):
    """Waits `rounds` times to be served, and pauses in between."""

    def __init__(self, group, rounds, pause=lambda: None):
        super().__init__(daemon=True)
        self.group, self.rounds, self.pause = group, rounds, pause

    def run(self):
        for _ in range(self.rounds):
            self.group.wait(self.group.join(), 30)
            self.pause()


def serve(group, putters, sync_s=FAST_S):
    """Serve until all have what they want; return how many were served each round."""
    served = []
    for putter in putters:
        putter.start()
    wanted = sum(putter.rounds for putter in putters)
    while sum(served) < wanted:
        group.gather(sync_s)
        taken = group.take()
        served.append(len(taken))
        group.serve(taken)
    group.let_go()
    for putter in putters:
        putter.join(30)
        assert not putter.is_alive()
    return served


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_threads_that_put_again_at_once_are_served_together(group, threads):
    rounds = 200
    served = serve(group, [Putter(group, rounds) for _ in range(threads)])
    assert sum(served) == threads * rounds
    # Not each time: another process may keep one of them away for a while.
    assert len(served) < 2 * rounds + 20


def test_one_that_stays_away_holds_up_nobody(group):
    are_done, waits = threading.Event(), []
    quick = [Putter(group, 50) for _ in range(4)]
    away = Putter(group, 2, pause=lambda: waits.append(are_done.wait(20)))

    def come_back():
        for putter in quick:
            putter.join(20)
        are_done.set()

    watcher = threading.Timer(0.01, come_back)
    watcher.start()
    serve(group, [away, *quick])
    watcher.join(30)
    assert waits == [True, True]


def test_who_ends_while_others_wait_for_their_turn_leaves_none_behind(group):
    putters = [Putter(group, 1 + number) for number in range(16)]
    assert sum(serve(group, putters)) == sum(range(1, 17))


def test_a_put_that_waited_too_long_is_no_one_s_loss(group):
    group.wait(group.join(), 0.01)
    other = Putter(group, 1)
    other.start()
    while len(group) < 2:
        pass
    group.gather(FAST_S)
    group.serve(group.take())
    group.let_go()
    other.join(10)
    assert not other.is_alive()


def test_the_thread_goes_on_when_asked_although_nobody_waits(group):
    group.ask()
    group.gather(FAST_S)
    assert group.take() == []
    group.ask()
    group.company = 8
    began = time.monotonic()
    group.gather(60.0)
    assert time.monotonic() - began < 30


def test_a_slow_sync_waits_for_those_who_were_served_last(group):
    group.company = 2
    first, second = Putter(group, 1), Putter(group, 1)
    threading.Timer(0.05, second.start).start()
    first.start()
    group.gather(60.0)
    taken = group.take()
    assert len(taken) == 2
    assert group.rounds_apart == 0
    group.serve(taken)
    group.let_go()
    first.join(10)
    second.join(10)


def test_waiting_in_vain_lasts_a_part_of_a_sync_and_then_is_left_for_longer_and_longer(group):
    apart = []
    for _ in range(3):
        group.company, group.rounds_apart = 8, 0
        putter = Putter(group, 1)
        putter.start()
        began = time.monotonic()
        group.gather(SLOW_S)
        assert time.monotonic() - began >= SLOW_S / 2
        apart.append(group.rounds_apart)
        group.serve(group.take())
        group.let_go()
        putter.join(10)
    assert apart == [1, 2, 4]


def test_nobody_waits_for_anybody_in_rounds_apart(group):
    group.company, group.rounds_apart = 8, 1
    putter = Putter(group, 1)
    putter.start()
    while not group:
        pass
    group.gather(60.0)
    group.serve(group.take())
    assert group.rounds_apart == 0
    group.let_go()
    putter.join(10)


def test_a_rest_ends_with_its_time_or_the_first_put(group):
    group.rest(0.001)
    putter = Putter(group, 1)
    threading.Timer(0.02, putter.start).start()
    group.rest(60)
    assert len(group) == 1
    group.release_all()
    putter.join(10)
    assert not putter.is_alive()
