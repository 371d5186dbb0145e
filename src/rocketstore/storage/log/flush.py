"""What "stored" means: when bytes of the CommitLog are on the disk, and who waits for it.

Law: `CommitLog.flushed_offset` moves only after `fdatasync` of every byte before it returned
without an error, file after file. After the first failed sync nothing is acknowledged any more: the
kernel may have dropped the pages it could not write, so a later success would prove nothing (K-D1).

How derived: GroupCommitService, FlushDiskWatcher and FlushRealTimeService of 4.9 (spec B9.1, B9.2).
One thread syncs for all puts that came meanwhile, and `native.group` lets them take turns with it,
round after round. Other work after a sync (the checkpoint's time) is done every few rounds.
Why a thread and not the waiting put itself: docs/decisions/0002-group-commit.md.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from rocketstore.errors import FlushFailedError, StoreError
from rocketstore.events import get_logger
from rocketstore.locks import Lock
from rocketstore.storage.files.ahead import touch_for_syncs
from rocketstore.storage.threads import ServiceThread

if TYPE_CHECKING:
    from rocketstore.config import StoreConfig
    from rocketstore.storage.checkpoint import StoreCheckpoint
    from rocketstore.storage.files.mapped_file import MappedFile
    from rocketstore.storage.log.commit_log import CommitLog

_SLOW_FLUSH_S: Final = 0.5
"""A flush that takes longer is logged (FlushRealTimeService, 500 ms)."""

_ROUNDS_S: Final = 0.005
"""Longest time in which only puts are served: some 30 syncs of a fast disk."""

_log: Final = get_logger(__name__)


@dataclass(eq=False)
class CommitLogFlusher:
    """Flushes a CommitLog, on demand and in the background.

    `failure` is the error of the first sync that failed; `group` are the puts that wait; `wake`
    lets the thread flush now, not at its next turn.
    """

    _log: CommitLog
    checkpoint: StoreCheckpoint
    config: StoreConfig
    monotonic: Callable[[], int]

    def __post_init__(self) -> None:
        config = self.config
        self.failure_listeners: list[Callable[[], object]] = []
        self.failure: FlushFailedError | None = None
        self._flushing = Lock()
        self.group = self._log.put_group
        self.wake = self.group.ask
        self._sync_s = 0.0
        # A warmed file's pages were written when it was made.
        self._touches = config.is_sync_flush and not config.warm_mapped_file_enable
        self._touched_offset = 0
        self._last_thorough_ms = 0
        work = self._run_sync if config.is_sync_flush else self._run_async
        self.thread = ServiceThread(
            "rocketstore-flush", work, self.group.ask, ends_by_errors=True,
            on_death=self._note_death,
        )  # fmt: skip

    # --- flushing -------------------------------------------------------------------------------

    def flush(self, least_pages: int = 0, *, serves: bool = False) -> int:
        """Flush what is written; return the flushed offset.

        Fewer dirty pages than `least_pages` are left alone in the last file. With `serves`, the
        puts that the group took before are notified. `FlushFailedError` says that this sync failed,
        or an earlier one did.
        """
        log = self._log
        with self._flushing:
            self.raise_failure()
            # Read before the files: every message up to this time lies before their positions.
            timestamp = log.last_store_timestamp_ms
            written = log.max_offset
            began = time.monotonic()
            try:
                dirty = log.files.ending_after(log.flushed_offset)
                # Read after the files: one is not committed before all before it are.
                committed = log.committed_offset
                for file in takewhile(lambda file: file.base < committed, dirty):
                    self._touch(file)
                    before, sync_began = file.flushed_position, time.monotonic()
                    flushed = file.flush(least_pages)
                    if flushed > before:
                        log.sync_times.note(time.monotonic() - sync_began)
                    if flushed == file.size:
                        file.close_descriptor()
                    log.flushed_offset = file.base + flushed
            except FlushFailedError as error:
                self._fail(error)
                raise
            if serves:
                self.group.serve(log.flushed_offset)
            self._note_flushed(log.flushed_offset, timestamp, written)
        if time.monotonic() - began > _SLOW_FLUSH_S:
            _log.warning("log.flush_slow", took_ms=round((time.monotonic() - began) * 1000))
        return log.flushed_offset

    def _note_flushed(self, flushed: int, timestamp_ms: int, written: int) -> None:
        """Move the checkpoint to a store time if all that was written by then is flushed."""
        if flushed >= written:
            self.checkpoint.advance(physic_ms=timestamp_ms)

    def _flush_in_rounds(self) -> bool:
        """Flush the last file for all waiting puts, round after round; False if more is to flush.

        Readers see each round's bytes at once; checkpoint and files are updated by the last one.
        """
        log = self._log
        with self._flushing:
            self.raise_failure()
            file = log.files.last()
            if file is None or log.flushed_offset < file.base or not file.has_durable_name:
                return False
            before = log.last_store_timestamp_ms, log.max_offset
            end = file.base + file.size
            self._touch(file)
            try:
                sync_s = file.sync_by(lambda sync: self.group.sync_rounds(sync, end, _ROUNDS_S))
            except FlushFailedError as error:
                self._fail(error)
                raise
            if sync_s is None:
                return False
            self._sync_s = sync_s
            flushed = log.flushed_offset
            file.flushed_position = max(file.flushed_position, flushed - file.base)
            if flushed == end:
                file.close_descriptor()
            # Later puts count too if they are on the disk already; times first, as above.
            self._note_flushed(flushed, *before)
            self._note_flushed(flushed, log.last_store_timestamp_ms, log.max_offset)
        if sync_s > _SLOW_FLUSH_S:
            _log.warning("log.flush_slow", took_ms=round(sync_s * 1000))
        return True

    def _touch(self, file: MappedFile) -> None:
        if self._touches:
            with contextlib.suppress(OSError, StoreError):  # a sync needs no page touched
                self._touched_offset = touch_for_syncs(file, self._touched_offset)

    def _fail(self, error: FlushFailedError) -> None:
        self.failure = error
        _log.error("log.flush_failed", error=str(error), next="puts are refused from now on")
        for listen in self.failure_listeners:
            listen()

    def raise_failure(self) -> None:
        """Raise where a sync failed earlier."""
        if self.failure is not None:
            raise FlushFailedError(self.failure.message, hint=self.failure.hint)

    # --- waiting --------------------------------------------------------------------------------

    def wait_flushed(self, offset: int, timeout_s: float) -> bool:
        """Wait until all bytes before `offset` are durable; False when that takes too long.

        `FlushFailedError` says that a sync failed before that.
        """
        deadline = time.monotonic() + timeout_s
        while not self.group.wait(offset, deadline - time.monotonic()):
            self.raise_failure()
            if self.thread.is_gone:
                return False
            if not self.thread.is_running:
                self.flush()
            elif time.monotonic() >= deadline:
                return False
        return True

    # --- the thread -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start flushing in the background, by the mode of the settings."""
        self._last_thorough_ms = self.monotonic()
        self.group.open()
        self.thread.start()

    def close(self) -> None:
        """Stop the thread and flush what is left; raises `FlushFailedError`."""
        self.thread.stop()
        try:
            self.flush()
        finally:
            self.group.close()

    def _note_death(self, _name: str, error: BaseException) -> None:
        """Tell all waiting puts that the flushing thread has ended."""
        if self.failure is None:
            what = f"ended by an unforeseen error: {type(error).__name__}: {error}"
            hint = "close the store and open it again; please report the traceback in the log"
            self._fail(FlushFailedError(f"the thread that flushes {what}", hint=hint))
        self.group.close()

    def _run_sync(self) -> None:
        """Sync whenever a put waits; one that comes during a sync is served by the next."""
        while not self.thread.stopping.is_set():
            was_asked = self.group.gather(self._sync_s)
            if not self._serve(in_rounds=not was_asked):
                return

    def _run_async(self) -> None:
        """Sync by the clock, and at once when a put waits or wakes the thread."""
        interval_s = self.config.flush_interval_commit_log / 1000
        while not self.thread.stopping.is_set():
            self.group.rest(interval_s)
            if not self._serve(0 if self.group else self.least_pages(self.monotonic())):
                return
            self.group.let_go()

    def _serve(self, least_pages: int = 0, *, in_rounds: bool = False) -> bool:
        """Flush for all puts that wait by now; False when that failed, for good."""
        try:
            if in_rounds and self._flush_in_rounds():
                return True
            self.group.take()
            began = time.monotonic()
            self.flush(least_pages, serves=True)
        except FlushFailedError:
            self.group.close()
            return False
        self._sync_s = time.monotonic() - began
        return True

    def least_pages(self, now_ms: int) -> int:
        """Return how many pages make a turn by the clock worth while; 0 for a thorough one.

        Source: CommitLog.FlushRealTimeService.run.
        """
        if now_ms >= self._last_thorough_ms + self.config.flush_commit_log_thorough_interval:
            self._last_thorough_ms = now_ms
            return 0
        return self.config.flush_commit_log_least_pages
