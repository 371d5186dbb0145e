"""The puts that wait for a sync, and how they take turns with the thread that syncs for them.

Law: whoever was taken is released, and nobody who waits is left behind by a put that does not come
back. Threads that put again at once are woken one by one, each by the one before it as that goes
to sleep, so that one at a time wants the interpreter's lock; when all are back the next sync
begins, one for all. Where one stays away, all others go on at once, and for some rounds nobody
waits for anybody.

Why, and what it gains: docs/decisions/0002-group-commit.md.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from rocketstore.storage.log.parker import Parker

_LOOK_S: Final = 0.00025
"""A put that comes back takes some 20 us; in two looks of this length somebody should have."""

_LOOKS_IN_VAIN: Final = 2
"""One may be another thread's fault that held the interpreter's lock meanwhile."""

_GATHER_S: Final = 0.002
"""Longest wait for all to come back where syncs are fast; enough for a hundred threads."""

_GATHER_SHARE: Final = 0.5
"""Longest wait as a part of what a sync takes, where syncs are slow."""

_LONGEST_APART: Final = 64
"""Most rounds in which nobody waits for anybody before that is tried again."""

_NOBODY: Final = 1 << 62
"""So many puts never wait: the thread is awake and needs no ring."""


class PutGroup:
    """Puts that wait for one thread, which alone calls what is below `ask`.

    Attributes
    ----------
    company
        How many puts were served or waiting at the end of the last round.
    rounds_apart
        How many rounds will wait for nobody.
    """

    def __init__(self) -> None:
        # Appending to a deque and taking from it need no lock of their own.
        self._waiting: deque[Parker] = deque()
        self._served: deque[Parker] = deque()
        self._bell = Parker()
        self._ring_at = 1
        self._is_asked = False
        self._apart_next = 1
        self.company = 0
        self.rounds_apart = 0

    def __len__(self) -> int:
        """Return how many wait to be served."""
        return len(self._waiting)

    # --- puts -----------------------------------------------------------------------------------

    def join(self) -> Parker:
        """Be one of those who the next `take` returns; `wait` comes after."""
        woken = Parker()
        self._waiting.append(woken)
        return woken

    def wait(self, woken: Parker, timeout_s: float) -> None:
        """Wait for the release, for a while, and let the next of those released last go on."""
        if len(self._waiting) >= self._ring_at:
            # The thread is rung once: a ring that it does not wait for would end its next wait.
            self._ring_at = _NOBODY
            # On a loaded machine a single put is faster if both want to run for a moment.
            if self.company > 1:
                woken.hand_over(self._bell, timeout_s)
            else:
                self._bell.unpark()
                woken.park(timeout_s)
            return
        try:
            following = self._served.popleft()
        except IndexError:
            woken.park(timeout_s)
        else:
            woken.hand_over(following, timeout_s)

    def ask(self) -> None:
        """Let the thread go on although nobody waits, or not everybody."""
        self._is_asked = True
        self._bell.unpark()

    # --- the thread -----------------------------------------------------------------------------

    def gather(self, sync_s: float) -> None:
        """Let go of those who were served, and wait until somebody waits: all of them, if they may.

        Parameters
        ----------
        sync_s
            What the last sync took.
        """
        if self.rounds_apart:
            self.rounds_apart -= 1
            self.let_go()
        elif self.company > 1:
            self._gather_company(sync_s)
        else:
            self.let_go()
        self._ring_at = 1
        if not self._waiting and not self._is_asked:
            self._sleep(-1)
        self._is_asked = False
        self._ring_at = _NOBODY
        self.let_go()

    def _gather_company(self, sync_s: float) -> None:
        """Wake those who were served one by one until all wait again, or one stays away."""
        waiting, company = self._waiting, self.company
        self._ring_at = company
        began = time.monotonic()
        seen, looks = len(waiting), 0
        if seen < company:
            self._sleep(_LOOK_S)
        while len(waiting) < company and not self._is_asked:
            here = len(waiting)
            looks = 0 if here > seen else looks + 1
            seen = here
            if looks >= _LOOKS_IN_VAIN:
                self.let_go()
            waited_s = time.monotonic() - began
            share_s = sync_s * _GATHER_SHARE
            if waited_s >= share_s and (looks >= _LOOKS_IN_VAIN or waited_s >= _GATHER_S):
                break
            self._bell.park(_LOOK_S)
        if len(waiting) >= company:
            self._apart_next = 1
        elif 2 * len(waiting) < company and not self._is_asked:
            self.rounds_apart = self._apart_next
            self._apart_next = min(2 * self._apart_next, _LONGEST_APART)

    def _sleep(self, timeout_s: float) -> None:
        """Wait for a ring; the first of those who were served goes on meanwhile."""
        if self._served:
            self._bell.hand_over(self._served.popleft(), timeout_s)
        else:
            self._bell.park(timeout_s)

    def rest(self, timeout_s: float) -> None:
        """Wait until somebody waits or asks, or for a while."""
        self._ring_at = 1
        if not self._waiting and not self._is_asked:
            self._bell.park(timeout_s)
        self._is_asked = False
        self._ring_at = _NOBODY

    def take(self) -> list[Parker]:
        """Return all who wait; they wait until they are released."""
        waiting = self._waiting
        return [waiting.popleft() for _ in range(len(waiting))]

    def serve(self, taken: list[Parker]) -> None:
        """Take note of those who were taken as served; `gather` or `let_go` releases them."""
        self.company = len(taken) + len(self._waiting)
        self._served.extend(taken)

    def let_go(self) -> None:
        """Release everybody who was served, at once."""
        _release(self._served)

    def release_all(self) -> None:
        """Release everybody, served or not."""
        _release(self._served)
        _release(self._waiting)


def _release(parkers: deque[Parker]) -> None:
    while True:
        try:
            parkers.popleft().unpark()
        except IndexError:
            return
