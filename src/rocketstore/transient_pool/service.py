"""The thread that brings what the pool holds to the files, where readers see it.

Law: what could not be written stays where it is and is tried again at every turn; until that works
puts are refused, by a flag that says why and goes then. Nothing that was acknowledged is dropped
while this process lives.

The first put after a pause is committed at once, those that follow ten ms later if they fill
enough pages, and after ``commitIntervalCommitLog`` in any case.

How derived: CommitLog.CommitRealTimeService of 4.9 (spec B9.3), which every put wakes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final

from rocketstore.errors import StoreError
from rocketstore.events import get_logger
from rocketstore.storage.attached import Service
from rocketstore.storage.files.disk import system_errors
from rocketstore.storage.running_flags import RunningFlag
from rocketstore.storage.threads import Bell, ServiceThread
from rocketstore.transient_pool.pool import TransientStorePool

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.storage.opening import StoreParts
    from rocketstore.storage.services import StoreServices

_TURN_S: Final = 0.01
"""Pause between two commits of a busy writer, whose puts share the second."""

_UNTIL_RUNG: Final = -1.0

_SLOW_COMMIT_S: Final = 0.5
"""A commit that takes longer is worth a line (CommitRealTimeService, 500 ms)."""

_log: Final = get_logger(__name__)


class TransientPoolService(Service):
    """Has a store that was just opened write by way of a pool, and commits what that holds."""

    name = "transient_pool"

    def __init__(self, parts: StoreParts, services: StoreServices) -> None:
        config = parts.config
        self._log = log = parts.log
        self._flags = parts.flags
        self._clock = parts.clock
        self._wake_flush = None if config.flush_commit_log_timed else services.flusher.wake
        self._interval_s = config.commit_interval_commit_log / 1000
        self._least_pages = config.commit_commit_log_least_pages
        self._thorough_ms = config.commit_commit_log_thorough_interval
        self._last_ms = 0
        self._committing = threading.Lock()
        self._bell = Bell()
        self._ring: Callable[[], None] | None = None
        self.pool = TransientStorePool(
            config.transient_store_pool_size,
            log.files.file_size,
            lock=config.transient_store_pool_lock,
            fails_fast=config.fast_fail_if_no_buffer_in_store_pool,
        )
        self.thread = ServiceThread(
            "rocketstore-commit", self._run, self._bell.ring, on_death=parts.flags.note_death
        )
        parts.preallocator.make_file = self.pool.make_file
        log.committer = services.commit = self.commit
        services.dispatch.log = self

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """Stop the thread; what is left to commit, the store commits while it closes."""
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
        """How much is in memory only (DefaultMessageStore.remainHowManyDataToCommit)."""
        return max(self._log.max_offset - self.max_offset, 0)

    def commit(self, least_pages: int = 0) -> bool:
        """Commit what was put; return whether anything was.

        Fewer whole new pages than `least_pages` are left alone in the last file. `StoreError` says
        that the system refused it; it is tried again at the next turn.
        """
        began = time.monotonic()
        with self._committing:
            before = self.max_offset
            try:
                with system_errors(f"cannot commit the CommitLog from offset {before} on"):
                    after = self._log.commit(least_pages)
            except StoreError as error:
                if self._flags.set(RunningFlag.COMMIT_ERROR, str(error)):
                    _log.error("log.commit_failed", error=str(error))
                raise
            if self._flags.clear(RunningFlag.COMMIT_ERROR):
                _log.info("log.commit_works", committed_physical_offset=after)
        if after == before:
            return False
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
            with contextlib.suppress(StoreError):  # then nobody can read it yet
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
        # What was put before the bell was there is seen here.
        return self._interval_s if self.uncommitted_bytes else _UNTIL_RUNG

    def _run(self) -> None:
        while not self.thread.stopping.is_set():
            self._bell.wait(self.take_turn())
