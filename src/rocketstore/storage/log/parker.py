"""A permit that one thread waits for: plain Python, or compiled where it was.

Law: a permit given before anybody waits is kept, and no more than one. Whoever waits may find that
it has waited in vain; it looks at what it waited for and waits again.

How derived: LockSupport.park and unpark of Java. `Parker.hand_over` is their one call for "you go
on, I sleep". The compiled one (``_parker.c``, optional as ``_append.c`` is) gives up the
interpreter's lock before it wakes the other thread; the plain one cannot, and a thread that is
woken too early goes to sleep again at that lock.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from rocketstore.scan import kernels


class PlainParker:
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

    def hand_over(self, other: PlainParker, timeout_s: float) -> bool:
        """Give `other` its permit and take the own one, as `park` does."""
        other.unpark()
        return self.park(timeout_s)


def _chosen() -> Any:
    """Return the compiled class, or the plain one where there is none."""
    if kernels.is_compiled():
        try:
            from rocketstore.storage.log import _parker  # noqa: PLC0415 - optional
        except ImportError:
            pass
        else:
            return _parker.Parker
    return PlainParker


if TYPE_CHECKING:
    Parker = PlainParker
else:
    Parker = _chosen()
