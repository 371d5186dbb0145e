"""A permit that one thread waits for.

Law: a permit given before anybody waits is kept, and no more than one. Whoever waits may find that
it has waited in vain; it looks at what it waited for and waits again.

How derived: LockSupport.park and unpark of Java. `Parker.hand_over` is their one call for "you go
on, I sleep".
"""

from __future__ import annotations

import contextlib
import threading


class Parker:
    """One thread's permit to go on; it has none at first."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        # A plain lock: ``threading.Event`` makes one per wait and takes another to set it.
        self._lock = threading.Lock()
        self._lock.acquire()

    def unpark(self) -> None:
        """Give the permit, unless it was given already."""
        with contextlib.suppress(RuntimeError):  # given already
            self._lock.release()

    def park(self, timeout_s: float) -> bool:
        """Take the permit; False when it did not come in time. -1 waits as long as it takes."""
        return self._lock.acquire(timeout=timeout_s)

    def hand_over(self, other: Parker, timeout_s: float) -> bool:
        """Give `other` its permit and take the own one, as `park` does."""
        other.unpark()
        return self.park(timeout_s)
