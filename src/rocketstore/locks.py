"""`Lock`: one for ``with`` blocks, which no interrupt leaves taken. `begin` starts threads so.

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


def begin(thread: threading.Thread) -> None:
    """Start a thread on another one, where no signal handler runs; raises what its start does.

    What a handler raises inside ``Thread.start`` may leave a lock taken for which the new thread
    waits for ever, and so does the end of Python; or it becomes a RuntimeError, as if there were
    no threads left.
    """
    ended, begun, outcome = threading.Lock(), list[int](), list[BaseException | None]()
    ended.acquire()

    def start() -> None:
        try:
            thread.start()
            outcome.append(None)
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            outcome.append(error)
        ended.release()

    try:
        # Without a bytecode between the start and the note of it, in which an interrupt could come.
        begun.extend(map(_thread.start_new_thread, [start], [()]))
        while not outcome:
            ended.acquire()
    finally:
        while begun and not outcome:  # after an interrupt, so that the thread can be joined
            ended.acquire()
    if outcome[0] is not None:
        raise outcome[0]
