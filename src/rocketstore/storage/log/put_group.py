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
from typing import TYPE_CHECKING, Any, Final

from rocketstore.scan import kernels
from rocketstore.storage.log.parker import Parker

if TYPE_CHECKING:
    from collections.abc import Callable

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


class PlainPutGroup:
    """Puts that wait for one thread, which alone calls what is below `ask`.

    Attributes
    ----------
    flushed_offset
        All before it is on the disk.
    company
        How many puts were served or waiting at the end of the last round.
    rounds_apart
        How many rounds will wait for nobody.
    """

    def __init__(self) -> None:
        # Appending to a deque and taking from it need no lock of their own.
        self._waiting: deque[Parker] = deque()
        self._taken: deque[Parker] = deque()
        self._served: deque[Parker] = deque()
        self._bell = Parker()
        self._ring_at = 1
        self._is_asked = False
        self._is_open = False
        self.flushed_offset = -1
        self._apart_next = 1
        self.company = 0
        self.rounds_apart = 0

    def __len__(self) -> int:
        """Return how many wait to be served."""
        return len(self._waiting)

    # --- puts -----------------------------------------------------------------------------------

    def wait(self, offset: int, timeout_s: float) -> bool:
        """Wait until all before `offset` is on the disk, and let the next go on meanwhile.

        Returns
        -------
        bool
            False when nobody can say so: the time is over, or the group is closed.
        """
        deadline = time.monotonic() + timeout_s
        while self.flushed_offset < offset:
            woken = Parker()
            self._waiting.append(woken)
            # Whoever closes the group lets go of all it finds after it has said so.
            if not self._is_open:
                break
            left_s = max(0.0, deadline - time.monotonic())
            if not self._hand_over(woken, left_s):
                break
        return self.flushed_offset >= offset

    def _hand_over(self, woken: Parker, timeout_s: float) -> bool:
        """Let the next of those released last go on, or the thread, and wait for the release."""
        if len(self._waiting) >= self._ring_at:
            try:
                # The thread is rung once: a ring that it does not wait for would end its next wait.
                self._ring_at = _NOBODY
                return woken.hand_over(self._bell, timeout_s)
            except BaseException:
                # An interrupt: a ring too many is better than none for ever.
                self._bell.unpark()
                raise
        try:
            following = self._served.popleft()
        except IndexError:
            return woken.park(timeout_s)
        return woken.hand_over(following, timeout_s)

    def ask(self) -> None:
        """Let the thread go on although nobody waits, or not everybody."""
        self._is_asked = True
        self._bell.unpark()

    # --- the thread -----------------------------------------------------------------------------

    def gather(self, sync_s: float) -> bool:
        """Let go of those who were served, and wait until somebody waits: all of them, if they may.

        Parameters
        ----------
        sync_s
            What the last sync took.

        Returns
        -------
        bool
            Whether somebody asked.
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
        was_asked, self._is_asked = self._is_asked, False
        self._ring_at = _NOBODY
        self.let_go()
        return was_asked

    def sync_rounds(
        self, sync: int | Callable[[], object], limit: int, longest_s: float
    ) -> float | None:
        """Sync for all who wait and gather them again, for a while, without Python in between.

        Parameters
        ----------
        sync
            The descriptor of the file in which all wait for their bytes, or a call that syncs it.
        limit
            Offset of the file's end; where somebody waits for more, nothing is done.
        longest_s
            No round begins later than that, nor after somebody asked.

        Returns
        -------
        float or None
            What the last sync took, in seconds; None where none was done. Plain Python does none:
            it has nothing to leave out.

        Raises
        ------
        OSError
            A sync failed; whom it was for waits until the group is closed.
        """
        del sync, limit, longest_s
        return None

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

    def take(self) -> int:
        """Take all who wait to be served now; return how many they are."""
        waiting = self._waiting
        for _ in range(len(waiting)):
            self._taken.append(waiting.popleft())
        return len(self._taken)

    def serve(self, flushed_offset: int) -> None:
        """Say what is on the disk to those who were taken; `gather` or `let_go` releases them."""
        self.flushed_offset = max(self.flushed_offset, flushed_offset)
        self.company = len(self._taken) + len(self._waiting)
        self._served.extend(self._taken)
        self._taken.clear()

    def let_go(self) -> None:
        """Release everybody who was served, at once."""
        _release(self._served)

    def open(self) -> None:
        """Have puts wait from now on: there is a thread that serves them."""
        self._is_open = True

    def close(self) -> None:
        """Release everybody, served or not; nobody waits any more."""
        self._is_open = False
        for parkers in (self._waiting, self._taken, self._served):
            _release(parkers)


def _release(parkers: deque[Parker]) -> None:
    while True:
        try:
            parkers.popleft().unpark()
        except IndexError:
            return


def _chosen() -> Any:
    """Return the compiled class, or the plain one where there is none."""
    if kernels.is_compiled():
        try:
            from rocketstore.storage.log import _put_group  # noqa: PLC0415 - optional
        except ImportError:
            pass
        else:
            # One that was built of older sources has no rounds.
            if hasattr(_put_group.PutGroup, "sync_rounds"):
                return _put_group.PutGroup
    return PlainPutGroup


if TYPE_CHECKING:
    PutGroup = PlainPutGroup
else:
    PutGroup = _chosen()
