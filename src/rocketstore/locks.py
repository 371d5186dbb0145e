"""`Lock`: one for ``with`` blocks, which no interrupt leaves taken.

Up to 3.13 CPython runs no signal handler between a lock's ``__enter__`` and its block, and a plain
lock will do. 3.14 does, and what a handler raises there passes by ``__exit__``. After a call of
``acquire`` every version runs them, before the ``try`` that would let go.
"""

import _thread
import sys
import threading
from collections.abc import Callable
from typing import Any

from rocketstore.errors import StoreError

_RLock: Any = _thread.RLock


class OwnedLock(_RLock):  # type: ignore[misc] # of C, with an `__exit__` that nothing interrupts
    """A lock that knows its thread: it lets go where taking it was interrupted.

    `StoreError` on the thread that holds it already, where a plain lock would wait for ever.
    """

    __slots__ = ()

    def is_held_here(self) -> bool:
        """Return whether this thread holds it."""
        return bool(self._is_owned())

    def run_if_free(self, work: Callable[[], bool]) -> bool:
        """Return what `work` returned in the lock; False where the lock was held, here too."""
        if self._is_owned():
            return False
        try:
            if not self.acquire(blocking=False):
                return False
            outcome = work()
            self.release()
        except BaseException:
            if self._is_owned():
                self.release()
            raise
        return outcome

    def __enter__(self) -> None:
        if self._is_owned():
            raise StoreError(
                "a signal handler used the store amid another call of its thread to the store",
                hint="have the handler raise an exception, or set an event",
            )
        try:
            self.acquire()
        except BaseException:
            if self._is_owned():
                self.release()
            raise


if sys.version_info < (3, 14):
    Lock = threading.Lock
else:
    Lock = OwnedLock
