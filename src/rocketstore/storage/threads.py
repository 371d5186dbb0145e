"""The threads of a store: one life cycle for those that stay, and how they are woken.

Law: a thread is started, asked to stop, and waited for, but not for ever; one whose work fails is
logged and works again, unless its owner wants it to end; an end is logged, and the owner is
notified. A lock is acquired here only to sleep on it: inside ``Condition.__enter__``, which is
Python, a signal handler may raise once the lock is taken, and then it is never released.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from rocketstore.errors import (
    RocketStoreError,
    StoreError,
    SystemRefusedError,
    UnsupportedEnvironmentError,
)
from rocketstore.events import get_logger
from rocketstore.locks import begin
from rocketstore.units import monotonic_ms

JOIN_TIMEOUT_S: Final = 60.0
"""Longest wait for a thread asked to stop: it may be in a last system call, or batch."""

PAUSE_AFTER_ERROR_S: Final = 1.0
"""Pause after which refused descriptors, memory and threads may be available again."""

GREEN: Final = ("gevent", "eventlet")
"""Libraries that put coroutines in place of threads: one that waits for the system stops all."""

OnDeath: TypeAlias = "Callable[[str, BaseException], object]"
"""Called on a thread that ends by an error, with the thread's name and the error."""


REPEAT_MS: Final = 600_000

_log: Final = get_logger(__name__)


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
        """Wait for a ring, -1 as long as it takes; whether there was one.

        Nothing rings once Python ends: its other threads do not run any more.
        """
        return self._lock.acquire(timeout=0 if sys.is_finalizing() else timeout_s)


class Seldom:
    """Whether something that goes on for long is worth a line: new, or said ten minutes ago."""

    def __init__(self, monotonic: Callable[[], int] = monotonic_ms) -> None:
        self._monotonic = monotonic
        self._said, self._again_ms = "", 0

    def is_due(self, what: object) -> bool:
        """Whether to say it now; None stands for the end of it."""
        text, now_ms = repr(what), self._monotonic()
        is_new = text != self._said or now_ms >= self._again_ms
        if is_new:
            self._said, self._again_ms = text, now_ms + REPEAT_MS
        return is_new and what is not None


class Changes:
    """Threads that wait until something is true, and are notified when to look again.

    Each is in the list before it looks, and a ring before it sleeps is kept: none is missed.
    """

    def __init__(self) -> None:
        self._bells: list[Bell] = []

    def __bool__(self) -> bool:
        """Return whether a thread waits."""
        return bool(self._bells)

    def tell(self) -> None:
        """Let all waiting threads look again."""
        for bell in tuple(self._bells):
            bell.ring()

    def ring(self, bell: Bell) -> Callable[[], None]:
        """Ring `bell` at every change, until the returned function is called."""
        self._bells.append(bell)
        return functools.partial(self._bells.remove, bell)

    def wait_for(self, is_true: Callable[[], object], timeout_s: float | None = None) -> bool:
        """Wait until `is_true`; False when that takes too long, None waits for ever."""
        if is_true():
            return True
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        bell = Bell()
        try:
            self._bells.append(bell)
            while not is_true():
                left_s = -1 if deadline is None else max(0.0, deadline - time.monotonic())
                if not bell.wait(min(left_s, threading.TIMEOUT_MAX)):
                    return bool(is_true())
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

    def set(self) -> None:
        """Set it, and wake all waiting threads."""
        self._is_set = True
        self._changes.tell()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set; False when that takes too long."""
        return self._changes.wait_for(self.is_set, timeout_s)


class ServiceThread:
    """A thread that works until it is asked to stop.

    `work` runs on the thread and returns soon after `stopping` was set; `wake`, called then, lets
    it look. Where it raises an error it is called again after a pause, unless `ends_by_errors`.
    """

    def __init__(
        self, name: str, work: Callable[[], object], wake: Callable[[], object] | None = None,
        *, ends_by_errors: bool = False, on_death: OnDeath | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.stopping = StopSign()
        self._on_death = on_death
        self._work = work
        self._wake = wake
        self._ends_by_errors = ends_by_errors
        self._thread: threading.Thread | None = None
        self._failing = Seldom()

    @property
    def is_running(self) -> bool:
        """Whether the thread lives."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_gone(self) -> bool:
        """Whether it was started and Python is ending: it never lets go of the locks it has."""
        return self._thread is not None and sys.is_finalizing()

    @property
    def is_current(self) -> bool:
        """Whether this is that thread."""
        return self._thread is threading.current_thread()

    def start(self) -> None:
        """Start the thread; `SystemRefusedError` where the process may have no more of them.

        `UnsupportedEnvironmentError` where it would be no thread.
        """
        library = str(_thread.start_new_thread.__module__).partition(".")[0]
        if library in GREEN:
            raise UnsupportedEnvironmentError(
                f"{library} has replaced Python's threads, which a store needs",
                hint="have it patch all but threads (thread=False), or open it in another process",
            )
        # Known before it starts: an interrupt may come once it has.
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        try:
            begin(self._thread)
        except RuntimeError as error:
            self._thread = None
            raise SystemRefusedError(
                f"cannot start the thread {self.name}: {error}",
                hint="raise the limit of threads or of memory (ulimit -u, -v, or the container's)",
            ) from error

    def stop(self) -> None:
        """Tell the thread to stop and wait; `SystemRefusedError` where it works on for a minute."""
        self.refuse_itself()
        self.stopping.set()
        if self._wake is not None:
            self._wake()
        if self._thread is None:
            return
        with contextlib.suppress(RuntimeError):  # not started, or not yet: then it ends at once
            self._thread.join(JOIN_TIMEOUT_S)
        if self._thread.is_alive():
            raise SystemRefusedError(
                f"the thread {self.name} has not stopped within {JOIN_TIMEOUT_S:.0f} s",
                hint="see the system's log (dmesg) for a disk that hangs, then close it again",
            )
        self._thread = None

    def refuse_itself(self) -> None:
        """Raise `StoreError` on that thread, as in a callback, or where no thread ends any more."""
        if self.is_gone:
            raise StoreError(
                f"Python is ending, and its thread {self.name} does not run any more",
                hint="close the store before, in a with block or by atexit.register(store.close); "
                "what it holds is written, and the next open looks at its end",
            )
        if self.is_current:
            raise StoreError(
                f"close was called on the store's own thread {self.name}, for which it waits",
                hint="have the listener or callback set an event, and close on another thread",
            )

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                try:
                    self._work()
                except Exception as error:
                    if self._ends_by_errors:
                        raise
                    self._note_failure(error)
                    self.stopping.wait(PAUSE_AFTER_ERROR_S)
                else:
                    return
        except BaseException as error:  # noqa: BLE001 - otherwise it would go unnoticed
            _log.exception(
                "service.died", service=self.name, hint="close the store and open it again"
            )
            if self._on_death is not None:
                self._on_death(self.name, error)

    def went_well(self) -> None:
        """Let the next error be logged, also the one that was logged last."""
        self._failing.is_due(None)

    def _note_failure(self, error: Exception) -> None:
        """Log what ended a turn: on a full disk no line at each, which would fill it too."""
        if not self._failing.is_due(error):
            return
        shown = None if isinstance(error, (OSError, RocketStoreError)) else error
        said, then = str(error), "tried again"
        _log.error("service.failed", service=self.name, error=said, next=then, exc_info=shown)


class Periodic(ServiceThread):
    """Does a job at an interval; one that fails is logged, and done again at the next turn.

    `interval_s` is the pause before each turn, `first_s` the one before the first, if another.
    """

    def __init__(
        self, name: str, job: Callable[[], object], interval_s: float, first_s: float | None = None,
        *, on_death: OnDeath | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, self._do_turns, on_death=on_death)
        self._job = job
        self._interval_s = interval_s
        self._first_s = interval_s if first_s is None else first_s

    def _do_turns(self) -> None:
        pause_s = self._first_s
        while not self.stopping.wait(pause_s):
            pause_s = self._interval_s
            try:
                self._job()
            except Exception as error:  # noqa: BLE001 - one bad turn does not end it (K-R4)
                self._note_failure(error)
            else:
                self.went_well()
