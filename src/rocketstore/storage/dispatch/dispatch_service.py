"""The thread that dispatches, and callers that wait for it.

Law: the thread ends only when `stop` is called. Whatever goes wrong is logged, shown in `health`,
and tried again from the same record after a pause that grows to a second (K-R4); when it works
again the trouble is over (K-C6). Nothing is skipped meanwhile.

When everything is dispatched it looks once more after a millisecond, after four without a listener
or waiter, so that the puts of a busy writer share a round and none of them wakes the thread;
then it sleeps until the next append rings.
Messages that wait for a sync, which does not ring, are looked for after growing pauses.

A loop that puts may lead: the append calls it, and it does the round itself (`lead`, `turn`). The
thread does what takes longer: files to be made, many bytes, errors, and calling listeners other
than the loop's own.

How derived: ReputMessageService.run of 4.9 (spec B11), which sleeps a millisecond between rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from rocketstore.events import get_logger
from rocketstore.locks import OwnedLock
from rocketstore.storage.threads import Bell, OnDeath, ServiceThread
from rocketstore.units import KiB

if TYPE_CHECKING:
    from rocketstore.storage.dispatch.dispatcher import Dispatcher

_log: Final = get_logger(__name__)

IDLE_PAUSE_S: Final = 0.001
"""Pause when there is nothing to dispatch, as in 4.9."""

UNWATCHED_PAUSE_S: Final = 0.004
"""The same without a waiter: each round costs a busy writer the interpreter's lock."""

GATHERING_PAUSE_S: Final = 0.001
"""Pause after a round whose arrivals were told: the next one tells of more, for one waking."""

LONGEST_IDLE_PAUSE_S: Final = 0.064

MOST_IN_A_TURN_BYTES: Final = 256 * KiB
"""More is left to the thread: some millisecond of work."""

FIRST_RETRY_PAUSE_S: Final = 0.01
LONGEST_RETRY_PAUSE_S: Final = 1.0

_UNTIL_RUNG: Final = -1.0


class DispatchHealth(NamedTuple):
    """Health of the dispatching thread: failures in a row, the last error, the first one's time."""

    failure_count: int = 0
    error: BaseException | None = None
    since_ms: int = 0

    @property
    def is_well(self) -> bool:
        """Whether the last try worked."""
        return self.error is None


_WELL: Final = DispatchHealth()


class LogProgress(Protocol):
    """A log, or a stand-in that says how far it can be dispatched."""

    @property
    def max_offset(self) -> int:
        """How far it can be."""

    def ring_at_next_append(self, ring: Callable[[], None]) -> None:
        """Have `ring` called when that is farther; it may be called again later."""


@dataclass(eq=False)
class DispatchService:
    """Runs a `Dispatcher` in a thread, which sleeps while there is no progress in `log`."""

    dispatcher: Dispatcher
    monotonic: Callable[[], int]
    log: LogProgress | None = None
    on_death: OnDeath | None = None

    def __post_init__(self) -> None:
        self.health = _WELL
        self._bell = Bell()
        self._round = OwnedLock()
        self._led_by: Callable[[], None] | None = None
        self._idle_rounds = 0
        self.thread = ServiceThread(
            "rocketstore-dispatch", self._run, wake=self._bell.ring, on_death=self.on_death
        )

    def stop(self) -> None:
        """Stop the thread after the round it is in, and let all waiting callers go."""
        self.thread.stop()
        self.dispatcher.board.close()

    def wait_until(self, is_true: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `is_true`, which is called whenever dispatch made progress."""
        self._bell.ring()
        return self.dispatcher.board.wait_until(is_true, timeout_s)

    # --- by a loop that leads ---------------------------------------------------------------------

    def lead(self, due: Callable[[], None] | None) -> None:
        """Have an append call `due`, on any thread, for a `turn`; None lets the thread do all."""
        self._led_by = due
        self._bell.ring()

    def turn(self) -> None:
        """Do a round on this thread, or leave it to the own one."""
        if not self._round.run_if_free(self._is_turn_done):
            self._bell.ring()

    def _is_turn_done(self) -> bool:
        if self.dispatcher.behind_bytes > MOST_IN_A_TURN_BYTES or not self.health.is_well:
            return False
        if len(self.dispatcher.board.listeners) > 1:  # a program's, which may take its time
            return False
        try:
            self.dispatcher.run_once(as_guest=True)
        except BaseException:  # noqa: BLE001 - a file is needed; or the thread meets it, and says so
            return False
        return self.log is not None and self._is_idle(self.log)

    # --- by the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self.thread.stopping.is_set():
            pause_s = self.pause_after(self.run_once())
            if pause_s and self._bell.wait(pause_s):
                self._idle_rounds = 0

    def run_once(self) -> bool | None:
        """Do one round; return whether there was a record, None when it failed."""
        try:
            with self._round:
                was_busy = self.dispatcher.run_once()
        except BaseException as error:  # noqa: BLE001 - the thread outlives everything (K-R4)
            self._note_failure(error)
            return None
        if not self.health.is_well:
            _log.info("dispatch.recovered", failure_count=self.health.failure_count)
            self.health = _WELL
        return was_busy

    def pause_after(self, outcome: bool | None) -> float:  # noqa: FBT001 - what run_once returned
        """Return how many seconds to wait after a round; -1 until the next append."""
        if outcome is None:
            doublings = min(self.health.failure_count - 1, 10)
            return float(min(FIRST_RETRY_PAUSE_S * 2**doublings, LONGEST_RETRY_PAUSE_S))
        board = self.dispatcher.board
        if outcome:
            self._idle_rounds = 0
            return GATHERING_PAUSE_S if board.listeners and self._led_by is None else 0.0
        self._idle_rounds += 1
        may_sleep = self._idle_rounds > 1 or self._led_by is not None
        if may_sleep and self.log is not None and self._is_idle(self.log):
            return _UNTIL_RUNG
        pause_s = IDLE_PAUSE_S if board.listeners or board.changes else UNWATCHED_PAUSE_S
        return float(min(pause_s * 2 ** min(self._idle_rounds - 1, 10), LONGEST_IDLE_PAUSE_S))

    def _is_idle(self, log: LogProgress) -> bool:
        """Return whether nothing is left to dispatch; if so, have the next append ring."""
        dispatched = self.dispatcher.dispatched_offset
        if dispatched < log.max_offset:
            return False
        log.ring_at_next_append(self._led_by or self._bell.ring)
        # Messages that were put before the bell was set are seen here.
        return dispatched >= log.max_offset

    def _note_failure(self, error: BaseException) -> None:
        count, _, since_ms = self.health
        self.health = DispatchHealth(count + 1, error, since_ms if count else self.monotonic())
        _log.error(
            "dispatch.failed",
            error=f"{type(error).__name__}: {error}",
            failure_count=self.health.failure_count,
            dispatched_offset=self.dispatcher.dispatched_offset,
            next="tried again",
        )
