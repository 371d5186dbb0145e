"""Wake threads, cheaply, without a lock that an interrupt could leave held.

An exception out of a signal handler may be raised inside ``Condition.__enter__``, which is Python:
the lock is taken then and nobody gives it back. What is here takes no lock but to sleep on it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Bell:
    """Wakes the thread that waits; rings while it is awake count as one.

    A plain lock, because ``threading.Event`` makes a lock per wait and takes another per ring.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """Wake the thread, or let its next wait return at once."""
        with contextlib.suppress(RuntimeError):  # rung already
            self._lock.release()

    def wait(self, timeout_s: float = -1) -> bool:
        """Wait for a ring, -1 as long as it takes; whether there was one."""
        return self._lock.acquire(timeout=timeout_s)


class Changes:
    """Threads that wait until something is true, and are told when to look again.

    Whoever waits is in the list before it looks, and a ring before it sleeps is kept, so nothing
    that is told after it happened can be missed.
    """

    def __init__(self) -> None:
        self._bells: list[Bell] = []

    def __bool__(self) -> bool:
        """Return whether somebody waits."""
        return bool(self._bells)

    def tell(self) -> None:
        """Let all who wait look again."""
        for bell in tuple(self._bells):
            bell.ring()

    def wait_for(self, is_true: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `is_true`; False when that takes too long, None being no time."""
        if is_true():
            return True
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        bell = Bell()
        try:
            self._bells.append(bell)
            while not is_true():
                left_s = -1 if deadline is None else max(0.0, deadline - time.monotonic())
                if not bell.wait(min(left_s, threading.TIMEOUT_MAX)):
                    return is_true()
            return True
        finally:
            with contextlib.suppress(ValueError):
                self._bells.remove(bell)


class StopSign:
    """Tells threads to stop; ``threading.Event`` without its lock."""

    def __init__(self) -> None:
        self._is_set = False
        self._changes = Changes()

    def is_set(self) -> bool:
        """Return whether it was set."""
        return self._is_set

    def clear(self) -> None:
        """Take it back, before anybody waits."""
        self._is_set = False

    def set(self) -> None:
        """Set it, and wake all who wait."""
        self._is_set = True
        self._changes.tell()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set; False when that takes too long."""
        return self._changes.wait_for(self.is_set, timeout_s)
