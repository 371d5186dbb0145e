"""The thread that dispatches, and whoever waits for it.

Law: the thread ends only when it is told to. Whatever goes wrong is logged, shown in `health`, and
tried again from the same record after a pause that grows to a second (K-R4); when it works again
the trouble is over (K-C6). Nothing is skipped meanwhile.

How derived: ReputMessageService.run of 4.9 (spec B11), which sleeps a millisecond between rounds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.events import get_logger
from rocketstore.storage.bell import StopSign
from rocketstore.storage.threads import started

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from rocketstore.storage.dispatch.dispatcher import Dispatcher

_log: Final = get_logger(__name__)

IDLE_PAUSE_S: Final = 0.001
"""Pause when there is nothing to dispatch, as in 4.9."""

FIRST_RETRY_PAUSE_S: Final = 0.01
LONGEST_RETRY_PAUSE_S: Final = 1.0


class DispatchHealth(NamedTuple):
    """How the dispatching thread is.

    Attributes
    ----------
    failure_count
        Failed tries in a row; 0 when all is well.
    error
        The last of them, None when all is well.
    since_ms
        When the first of them happened.
    """

    failure_count: int = 0
    error: BaseException | None = None
    since_ms: int = 0

    @property
    def is_well(self) -> bool:
        """Whether the last try worked."""
        return self.error is None


_WELL: Final = DispatchHealth()


class DispatchService:
    """Runs a `Dispatcher` in a thread.

    Parameters
    ----------
    dispatcher
        What runs; nobody else may call its ``run_once`` meanwhile.
    clock
        Returns the time in ms.
    on_health
        Called on the thread when trouble begins and when it is over.
    pause
        Waits so many seconds between two rounds; a test passes its own.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        clock: Callable[[], int],
        on_health: Callable[[DispatchHealth], None] | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.dispatcher = dispatcher
        self.health = _WELL
        self._clock = clock
        self._on_health = on_health
        self._pause = pause
        self._stopping = StopSign()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether the thread lives."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._stopping.clear()
        self._thread = started(self._run, "rocketstore-dispatch")

    def stop(self) -> None:
        """Stop the thread after the round it is in, and let go of everybody who waits."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.dispatcher.board.close()

    def wait_dispatched(self, physical_offset: int, timeout_s: float | None = None) -> bool:
        """Wait until everything before an offset is dispatched; False when that takes too long."""
        dispatcher = self.dispatcher
        return dispatcher.board.wait_until(
            lambda: dispatcher.dispatched_offset >= physical_offset, timeout_s
        )

    def wait_until(self, is_true: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `is_true`, which is asked whenever dispatch got on."""
        return self.dispatcher.board.wait_until(is_true, timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._pause_after(self.run_once())

    def run_once(self) -> bool | None:
        """Do one round; return whether there was anything, None when it failed."""
        try:
            was_busy = self.dispatcher.run_once()
        except BaseException as error:  # noqa: BLE001 - the thread outlives everything (K-R4)
            self._note_failure(error)
            return None
        if self.health is not _WELL:
            self._note_recovery()
        return was_busy

    def _pause_after(self, outcome: bool | None) -> None:  # noqa: FBT001 - what run_once returned
        if outcome is None:
            doublings = min(self.health.failure_count - 1, 10)
            seconds = min(FIRST_RETRY_PAUSE_S * 2**doublings, LONGEST_RETRY_PAUSE_S)
            self._stopping.wait(seconds) if self._pause is time.sleep else self._pause(seconds)
        elif not outcome:
            self._pause(IDLE_PAUSE_S)

    def _note_failure(self, error: BaseException) -> None:
        before = self.health
        since = before.since_ms if before.failure_count else self._clock()
        self.health = DispatchHealth(before.failure_count + 1, error, since)
        _log.error(
            "dispatch.failed",
            error=f"{type(error).__name__}: {error}",
            failure_count=self.health.failure_count,
            dispatched_offset=self.dispatcher.dispatched_offset,
        )
        if before.is_well:
            self._tell()

    def _note_recovery(self) -> None:
        _log.info("dispatch.recovered", failure_count=self.health.failure_count)
        self.health = _WELL
        self._tell()

    def _tell(self) -> None:
        if self._on_health is not None:
            self._on_health(self.health)
