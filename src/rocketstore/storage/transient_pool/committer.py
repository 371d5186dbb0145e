"""The thread that writes the pool's content to the files, where readers see it.

Law: what could not be written stays where it is and is tried again at every turn; until that works
puts are refused, by a flag that says why and goes then. Nothing that was acknowledged is dropped
while this process lives.

The first put after a pause is committed at once, those that follow ten ms later if they fill
enough pages, and after ``commitIntervalCommitLog`` in any case.

How derived: CommitLog.CommitRealTimeService of 4.9 (spec B9.3), which every put wakes.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from rocketstore.errors import StoreError
from rocketstore.events import get_logger
from rocketstore.storage.running_flags import RunningFlag, RunningFlags
from rocketstore.storage.threads import Bell, ServiceThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.config import StoreConfig
    from rocketstore.storage.log.commit_log import CommitLog
    from rocketstore.storage.transient_pool.pool import TransientStorePool

_TURN_S: Final = 0.01
"""Pause between two commits of a busy writer, whose puts share the second."""

_UNTIL_RUNG: Final = -1.0

_SLOW_COMMIT_S: Final = 0.5
"""A commit that takes longer is logged (CommitRealTimeService, 500 ms)."""

_log: Final = get_logger(__name__)


class Committer:
    """Commits what the pool of a log holds; `wake_flush` is called after a commit."""

    def __init__(
        self, log: CommitLog, pool: TransientStorePool, *, config: StoreConfig, flags: RunningFlags,
        clock: Callable[[], int], wake_flush: Callable[[], object],
    ) -> None:  # fmt: skip
        self.pool = pool
        self._log, self._flags, self._clock = log, flags, clock
        self._wake_flush = None if config.flush_commit_log_timed else wake_flush
        self._interval_s = config.commit_interval_commit_log / 1000
        self._least_pages = config.commit_commit_log_least_pages
        self._thorough_ms = config.commit_commit_log_thorough_interval
        self._last_ms = 0
        self._told = log.committed_offset
        self._bell = Bell()
        self._ring: Callable[[], None] | None = None
        self.thread = ServiceThread(
            "rocketstore-commit", self._run, self._bell.ring, on_death=flags.note_death
        )

    def stop(self) -> None:
        """Stop the thread, once nothing is left to commit."""
        self.thread.stop()
        self.pool.close()

    # --- what dispatch asks of a log ------------------------------------------------------------

    @property
    def max_offset(self) -> int:
        """One past the last byte that is committed."""
        return self._log.committed_offset

    def ring_at_next_append(self, ring: Callable[[], None]) -> None:
        """Have the next commit call `ring`, and none after it."""
        self._ring = ring

    # --- committing -----------------------------------------------------------------------------

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes that are in memory only (DefaultMessageStore.remainHowManyDataToCommit)."""
        return max(self._log.max_offset - self.max_offset, 0)

    def commit(self, least_pages: int = 0) -> bool:
        """Commit what was put; return whether there was a message.

        Fewer whole new pages than `least_pages` are left alone in the last file. `StoreError` says
        that the system refused it; it is tried again at the next turn.
        """
        began = time.monotonic()
        try:
            after = self._log.commit(least_pages)
        except StoreError as error:
            if self._flags.set(RunningFlag.COMMIT_ERROR, str(error)):
                _log.error("log.commit_failed", error=str(error))
            raise
        if self._flags.clear(RunningFlag.COMMIT_ERROR):
            _log.info("log.commit_works", committed_physical_offset=after)
        if after == self._told:
            return False
        self._told = after
        ring, self._ring = self._ring, None
        if ring is not None:
            ring()
        if self._wake_flush is not None:
            self._wake_flush()
        if time.monotonic() - began > _SLOW_COMMIT_S:
            _log.warning("log.commit_slow", took_ms=round((time.monotonic() - began) * 1000))
        return True

    def commit_beyond(self, physical_offset: int) -> None:
        """Commit if that brings the record at an offset to its file."""
        if self.max_offset <= physical_offset < self._log.max_offset:
            with contextlib.suppress(StoreError):  # then it cannot be read yet
                self.commit()

    def take_turn(self) -> float:
        """Commit if it is time or enough; return how many seconds to wait then, -1 for a put."""
        now_ms = self._clock()
        is_due = not 0 <= now_ms - self._last_ms < self._thorough_ms
        try:
            did = self.commit(0 if is_due else self._least_pages)
        except StoreError:
            return self._interval_s
        if did:
            self._last_ms = now_ms if is_due else self._last_ms
            return _TURN_S
        self._log.ring_at_next_append(self._bell.ring)
        # Messages that were put before the bell was set are seen here.
        return self._interval_s if self.uncommitted_bytes else _UNTIL_RUNG

    def _run(self) -> None:
        while not self.thread.stopping.is_set():
            self._bell.wait(self.take_turn())
