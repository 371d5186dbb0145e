"""Making queue entries and index items durable, and saying in the checkpoint how far they are.

Every second the files with enough new pages and full index files are flushed, every minute all;
only then, and only when nothing was left over, does the checkpoint move, to the store time that had
been dispatched when the flush began (K-R7). The newest index file is flushed with the queues
(K-I2).

Law: after a failed sync nothing here is promised any more while the store is open: the system may
have dropped the pages it could not write, so a later success proves nothing. Entries and items can
be rebuilt from the CommitLog; the next start does so from the checkpoint on.

How derived: FlushConsumeQueueService of 4.9 (spec B9.4, B9.5).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.config import StoreConfig
    from rocketstore.storage.checkpoint import KnownEndsWriter, StoreCheckpoint
    from rocketstore.storage.index.index_service import IndexService
    from rocketstore.storage.queues.queue_table import ConsumeQueueTable


class QueueFlusher:
    """Flushes queues and index; `run_once` is called at the interval of the settings."""

    def __init__(  # noqa: PLR0913 - by name, all but two
        self,
        table: ConsumeQueueTable,
        index: IndexService,
        *,
        checkpoint: StoreCheckpoint,
        dispatched_timestamp: Callable[[], int],
        config: StoreConfig,
        clock: Callable[[], int],
        known_ends: KnownEndsWriter | None = None,
    ) -> None:
        self._table = table
        self._index = index
        self._checkpoint = checkpoint
        self._dispatched_timestamp = dispatched_timestamp
        self._least_pages = config.flush_consume_queue_least_pages
        self._thorough_interval_ms = config.flush_consume_queue_thorough_interval
        self._clock = clock
        self._known_ends = known_ends
        self._last_thorough_ms = clock()
        self._flushing = threading.Lock()

    def run_once(self) -> bool:
        """Do one turn; return whether it was a thorough one. As `flush_all`, it may raise."""
        now_ms = self._clock()
        if now_ms < self._last_thorough_ms + self._thorough_interval_ms:
            with self._flushing:
                self._table.flush(self._least_pages)
                self._index.flush(full_only=True)
            return False
        self._last_thorough_ms = now_ms
        self.flush_all()
        return True

    def flush_all(self, *, is_closed: bool = False) -> bool:
        """Flush everything dispatched so far and move the checkpoint; return whether it moved.

        `is_closed`: nothing comes after it, the store ends in order. After a sync that failed,
        which raises, the checkpoint does not move any more.
        """
        with self._flushing:
            # Read first: entries of later records may or may not be in what is flushed.
            timestamp = self._dispatched_timestamp()
            ends = None if self._known_ends is None else self._known_ends.take(is_closed=is_closed)
            queues_done = self._table.flush()
            index_done = self._index.flush()
            if not queues_done or not index_done:
                return False
            if self._known_ends is not None and ends is not None:
                self._known_ends.write(ends)
            self._checkpoint.advance(logics_ms=timestamp, index_ms=timestamp)
            self._checkpoint.flush()
            return True
