"""Locks that one thread waits for and another opens, a clock, a sync: ``parking.pxd`` in Python.

Law: compiled, nothing here needs the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import os
import threading
from time import monotonic_ns as now_ns
from typing import TypeAlias

__all__ = [
    "INTERRUPTED", "NO_LOCK", "Lock", "free_lock", "let_run", "new_lock", "now_ns", "open_lock",
    "run_handlers", "sync_file", "take_lock",
]  # fmt: skip

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
    """Let through the thread that waits, or the next one that does; None is nobody's."""
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
    """Call fdatasync; return 0 or the number of its error."""
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        return error.errno or 0
    return 0
