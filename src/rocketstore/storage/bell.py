"""Wake one thread, cheaply."""

from __future__ import annotations

import contextlib
import threading


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

    def wait(self, timeout_s: float = -1) -> None:
        """Wait for a ring; -1 waits as long as it takes."""
        self._lock.acquire(timeout=timeout_s)
