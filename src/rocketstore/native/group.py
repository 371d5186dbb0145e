"""The puts that wait for a sync, and how they take turns with the syncing thread.

A put appends, joins those who wait, and sleeps. The thread takes all of them, syncs, and wakes them
one by one: each one that puts again wakes the next as it goes to sleep, and the last one back wakes
the thread. So only one at a time wants the interpreter's lock, and one sync serves all.

Law: every put that was taken is released, and one that does not come back holds up no other: after
two looks in vain all go on at once, and for some rounds no put waits for another.
Law: a put gives up the interpreter's lock before it wakes another thread. What is done here between
two waits needs that lock, and is a few steps long.

How derived: GroupCommitService of 4.9 (spec B9.1); see docs/decisions/0002-group-commit.md.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from typing import Any, TypeAlias

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

if not cython.compiled:
    # What group.pxd does without the interpreter's lock.
    from errno import ENOENT
    from threading import get_ident as this_thread
    from time import monotonic_ns as now_ns

    Lock: TypeAlias = "threading.Lock | None"
    NO_LOCK = None
    INTERRUPTED = -1

    def new_lock() -> Lock:
        """Return a lock that is closed."""
        lock = threading.Lock()
        lock.acquire()
        return lock

    def free_lock(lock: Lock) -> None:
        """Give its memory back."""

    def open_lock(lock: Lock) -> None:
        """Let through the thread that waits, or the next one that does; None is no thread's."""
        if lock is not None:
            with contextlib.suppress(RuntimeError):  # open already
                lock.release()

    def take_lock(lock: Lock, timeout_ns: int) -> int:
        """Wait until the lock is open, and close it: 1 done, 0 not in time; -1 waits for ever.

        Compiled, a signal ends the wait, `INTERRUPTED`; here its handler runs inside.
        """
        assert lock is not None
        return int(lock.acquire(timeout=-1 if timeout_ns < 0 else timeout_ns / 1e9))

    def run_handlers() -> None:
        """Run the handlers of signals that came, and raise what they raise."""

    def let_run() -> None:
        """Let another thread run on this processor."""
        os.sched_yield()

    def sync_file(descriptor: int) -> int:
        """Call fdatasync; return 0 or the number of its error, ENOENT for a deleted file."""
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            return error.errno or 0
        return 0 if os.fstat(descriptor).st_nlink else ENOENT


_LOOK_NS = 250_000
"""A put that comes back takes some 20 us; in two looks of this length one should have."""
_LOOKS_IN_VAIN = 2
"""One may be due to another thread, which held the interpreter's lock meanwhile."""
_GATHER_NS = 2_000_000
"""Longest wait for all to come back where syncs are fast; half a sync where they are slow."""
_LONGEST_APART = 64
"""Most rounds without waiting for each other before that is tried again."""
_TURN_NS = 30_000
"""Twice what a put takes from its wake to its next sleep; more is another thread's doing."""
_MOST_LEFT_OUT = 64
_NOBODY = 1_000_000_000
"""More than can ever wait: the thread that syncs is awake and needs no ring."""

# --- turns --------------------------------------------------------------------------------------

_turn = 0
_looks = False
_left_out = 0
_left_out_next = 1
_may_look = bool(cython.compiled) and len(os.sched_getaffinity(0)) > 1


def begin_turn(thread: int) -> None:
    """Wait a moment while another thread runs Python, so that this one can as soon as it is up.

    A courtesy, not a lock: two threads are on their way at a time, one that runs, and one that was
    woken meanwhile, which on a virtual machine takes longer than a put. One at a time looks; after
    looking in vain that is left out once, then twice, up to 64 times.
    """
    global _turn, _looks, _left_out, _left_out_next  # noqa: PLW0603 - of the process
    if _turn != 0 and _may_look and not _looks:
        _looks = True
        if _left_out > 0:
            _left_out -= 1
        else:
            until = now_ns() + _TURN_NS
            while _turn != 0 and now_ns() < until:
                let_run()  # the one who runs Python may be on this very processor
            _left_out = 0 if _turn == 0 else _left_out_next
            _left_out_next = 1 if _left_out == 0 else min(2 * _left_out, _MOST_LEFT_OUT)
        _looks = False
    _turn = thread


def end_turn(thread: int) -> None:
    """Let the next one run Python, unless it took its turn already."""
    global _turn  # noqa: PLW0603 - of the process
    if _turn == thread:
        _turn = 0


# --- waiting ------------------------------------------------------------------------------------


class Permit:
    """One thread's permit to go on; it has none at first.

    A permit given before a thread waits is kept, and no more than one. A waiter may have waited in
    vain, looks at what it waited for, and waits again.
    """

    def __init__(self, offset: int = -1) -> None:
        self.lock = new_lock()
        self.offset = offset

    def __dealloc__(self) -> None:
        free_lock(self.lock)

    def give(self) -> None:
        """Give the permit, unless it was given already."""
        open_lock(self.lock)

    def hand_over(self, following: Permit | None, timeout_ns: int) -> bool:
        """Give another its permit and wait for one's own; False when that did not come in time.

        A `following` of None wakes no thread; a time-out of -1 waits as long as it takes.
        """
        own = self.lock
        other = NO_LOCK
        if following is not None:
            other = following.lock
        thread = this_thread()
        until = now_ns() + timeout_ns
        left = timeout_ns
        while True:
            with cython.nogil:
                end_turn(thread)
                open_lock(other)
                outcome = take_lock(own, left)
                begin_turn(thread)
            if outcome != INTERRUPTED:
                return outcome == 1
            run_handlers()
            other = NO_LOCK
            if timeout_ns >= 0:
                left = max(0, until - now_ns())


class SyncGroup:
    """Puts that wait for one thread, which alone calls what is below `ask`.

    All before `flushed_offset` is on the disk; `waiting_goal` counts the puts that were served or
    waiting at the end of the last round, `rounds_apart` the coming rounds without a wait.
    `on_sync` is called with the seconds that each sync took, by the thread that syncs.
    """

    def __init__(self, on_sync: Any = None) -> None:
        # Appending to a deque and taking from it need no lock of their own.
        self._waiting: deque[Permit] = deque()
        self._taken: deque[Permit] = deque()
        self._served: deque[Permit] = deque()
        self._bell = Permit()
        self._is_rung = self._is_asked = self._is_open = False
        self._ring_at = self._apart_next = 1
        self.flushed_offset = -1
        self.waiting_goal = self.rounds_apart = 0
        self.on_sync = on_sync

    def __len__(self) -> int:
        """Return how many puts wait to be served."""
        return len(self._waiting)

    # --- puts -----------------------------------------------------------------------------------

    def wait(self, offset: int, timeout_s: float) -> bool:
        """Wait until everything before `offset` is on the disk; let the next put go on meanwhile.

        False when that is not known: after a time-out, or when the group is closed.
        """
        until = now_ns() + int(max(0.0, min(timeout_s, 1e9)) * 1e9)
        while self.flushed_offset < offset:
            permit = Permit(offset)
            is_over = True
            try:
                self._waiting.append(permit)
                # Closing releases all that it finds after it has set this.
                is_over = not self._is_open or not self._join(permit, max(0, until - now_ns()))
            finally:
                if is_over and permit in self._waiting:
                    self._waiting.remove(permit)
            if is_over:
                break
        return bool(self.flushed_offset >= offset)

    def _join(self, permit: Permit, timeout_ns: int) -> bool:
        """Let the next of those served last go on, or the thread, and wait for the release."""
        following = None
        if len(self._waiting) < self._ring_at and self._served:
            following = self._served.popleft()
        elif not self._is_rung and (
            len(self._waiting) >= self._ring_at or (_may_look and self._ring_at != _NOBODY)
        ):
            # All are here, or the last one is on its way: so should be the thread.
            self._is_rung = True
            following = self._bell
        if following is None:
            return permit.hand_over(None, timeout_ns)
        try:
            return permit.hand_over(following, timeout_ns)
        except BaseException:
            following.give()  # an interrupt: once too often is better than never
            raise

    def ask(self) -> None:
        """Let the thread go on although not all puts, or none, wait."""
        self._is_asked = True
        self._bell.give()

    # --- the thread -----------------------------------------------------------------------------

    def open(self) -> None:
        """Have puts wait from now on: there is a thread that serves them."""
        self._is_open = True

    def close(self) -> None:
        """Release all puts, served or not; none waits any more."""
        self._is_open = False
        for permits in (self._waiting, self._taken, self._served):
            _release(permits)

    def take(self) -> int:
        """Take all who wait to be served now; return how many they are."""
        for _ in range(len(self._waiting)):
            self._taken.append(self._waiting.popleft())
        return len(self._taken)

    def serve(self, flushed_offset: int) -> None:
        """Tell the puts that were taken what is on the disk; `gather` or `let_go` releases them."""
        self.flushed_offset = max(self.flushed_offset, flushed_offset)
        self.waiting_goal = len(self._taken) + len(self._waiting)
        self._served.extend(self._taken)
        self._taken.clear()
        if _may_look and self._served:
            # While it wakes up, this thread finishes its turn.
            self._served.popleft().give()

    def let_go(self) -> None:
        """Release all served puts at once."""
        _release(self._served)

    def sync_rounds(self, sync: Any, limit: int, longest_s: float) -> float | None:
        """Sync for all who wait and gather them again, until a caller asks or the time is over.

        `sync` is the descriptor of the file in which all wait for their bytes, or a call that syncs
        it. If a put waits for more than `limit`, the offset of its end, nothing is done.
        Returns how many seconds the last sync took, None if there was none. After an `OSError` the
        puts that the sync was for wait until the group is closed.
        """
        until = now_ns() + int(longest_s * 1e9)
        descriptor = sync if isinstance(sync, int) else -1
        thread = this_thread()
        sync_s = None
        while True:
            offset = self._take_within(limit)
            if offset < 0:
                return sync_s
            began = now_ns()
            end_turn(thread)
            if descriptor < 0:
                sync()
            else:
                with cython.nogil:
                    failure = sync_file(descriptor)
                    begin_turn(thread)
                if failure:
                    raise OSError(failure, os.strerror(failure))
            ended = now_ns()
            sync_s = (ended - began) / 1e9
            if self.on_sync is not None:
                self.on_sync(sync_s)
            self.serve(offset)
            if ended >= until:
                return sync_s
            if self.gather(sync_s, (until - ended) / 1e9):
                # More was asked for than this: the next `gather` must see it.
                self._is_asked = True
                return sync_s

    def _take_within(self, limit: int) -> int:
        """Take all who wait, if none wants more; return up to where they do, -1 for none."""
        farthest = -1
        for permit in self._waiting:
            if permit.offset > limit:
                return -1
            farthest = max(farthest, permit.offset)
        self.take()
        return farthest

    def gather(self, sync_s: float, timeout_s: float = -1.0) -> bool:
        """Release those who were served, and wait until all of them wait again, if they may.

        For all of them it waits about half as long as the last sync took, then up to `timeout_s`
        for the first (-1: as long as it takes). Returns whether a caller asked.
        """
        if self.rounds_apart > 0:
            self.rounds_apart -= 1
        elif self.waiting_goal > 1:
            self._gather_waiting_goal(int(sync_s * 1e9))
        if self.waiting_goal <= 1 or len(self._waiting) < self.waiting_goal:
            self.let_go()
        was_asked = self.rest(timeout_s)
        self.let_go()
        return was_asked

    def _gather_waiting_goal(self, sync_ns: int) -> None:
        """Wake those who were served one by one until all wait again, or one stays away."""
        waiting = self._waiting
        began = now_ns()
        share = sync_ns // 2
        seen = len(waiting)
        looks = 0
        self._ring_at = self.waiting_goal
        if seen < self.waiting_goal and not self._is_asked:
            first = self._served.popleft() if self._served else None
            self._sleep(first, _LOOK_NS)
        while len(waiting) < self.waiting_goal and not self._is_asked:
            looks = 0 if len(waiting) > seen else looks + 1
            seen = len(waiting)
            if looks >= _LOOKS_IN_VAIN:
                self.let_go()
            waited = now_ns() - began
            if waited >= share and (looks >= _LOOKS_IN_VAIN or waited >= _GATHER_NS):
                break
            self._sleep(None, _LOOK_NS)
        if len(waiting) >= self.waiting_goal:
            self._apart_next = 1
        elif 2 * len(waiting) < self.waiting_goal and not self._is_asked:
            self.rounds_apart = self._apart_next
            self._apart_next = min(2 * self._apart_next, _LONGEST_APART)

    def _sleep(self, first: Permit | None, timeout_ns: int) -> bool:
        """Wait for a ring; `first` goes on meanwhile."""
        is_rung = self._bell.hand_over(first, timeout_ns)
        self._is_rung = False
        return is_rung

    def rest(self, timeout_s: float) -> bool:
        """Wait until a put waits or a caller asks, or for a while; return whether one asked."""
        self._ring_at = 1
        while not self._waiting and not self._is_asked:
            if not self._sleep(None, int(timeout_s * 1e9)):
                break
        was_asked = self._is_asked
        self._is_asked = False
        self._ring_at = _NOBODY
        return was_asked


def _release(permits: deque[Permit]) -> None:
    while permits:
        permits.popleft().give()
