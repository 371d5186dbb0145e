"""A CommitLog as replication sees it: bytes that leave it, and bytes that come from a master.

How derived: DefaultMessageStore.getCommitLogData and appendToCommitLog of 4.9.8.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from rocketstore.errors import StoreError

if TYPE_CHECKING:
    from rocketstore.storage.log.writer import StoreWriter
    from rocketstore.storage.opening import StoreParts
    from rocketstore.storage.results import PutMessageStatus
    from rocketstore.storage.threads import Bell


class ReplicatedLog:
    """The log of an open store, `file_size` that of each of its files; `commit` fills them."""

    def __init__(
        self, parts: StoreParts, writer: StoreWriter, commit: Callable[[], object]
    ) -> None:
        self._log = parts.log
        self._dispatcher = parts.dispatcher
        self._writer, self._commit = writer, commit
        self._timeout_s = parts.config.sync_flush_timeout / 1000
        self.file_size = parts.log.files.file_size

    @property
    def is_new(self) -> bool:
        """Whether it has no file yet, so that it may begin anywhere."""
        return not self._log.files.files

    @property
    def begin(self) -> int:
        """Physical offset of its first byte."""
        return self._log.min_offset

    @property
    def end(self) -> int:
        """Physical offset after the last byte that readers may see."""
        return self._log.readable_limit

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes of one file as they are; empty where the log has none."""
        stop = min(offset + size, self.end)
        found = self._log.bytes_at(offset, size) if offset < stop else None
        if found is None:
            return b""
        return bytes(memoryview(found.buffer)[offset - found.base : stop - found.base])

    def append(self, offset: int, records: memoryview, store_time_ms: int) -> None:
        """Append checked bytes of a master's log where this one ends; with SYNC_FLUSH flush them.

        They are of one file, and `store_time_ms` is that of the last record.
        """
        self._writer.refuse_forked()
        if self.is_new:
            self._dispatcher.start_at(offset)
        self._log.append_replicated(offset, records, store_time_ms)
        self.wait_flushed()

    def wait_flushed(self) -> None:
        """Wait until `end` includes all that was appended, which with SYNC_FLUSH takes a sync.

        `StoreError` says that this takes longer than a put would wait.
        """
        log = self._log
        flusher, timeout_s = self._writer.flusher, self._timeout_s
        if log.sync_flush and not flusher.wait_flushed(log.max_offset, timeout_s):
            raise StoreError(
                f"after {timeout_s} s the log is flushed only up to offset "
                f"{log.flushed_offset} of {log.max_offset}",
                hint="see the system's log (dmesg) for a disk that hangs",
            )

    def ring_at_progress(self, bell: Bell) -> Callable[[], None]:
        """Ring `bell` whenever there is more to read, until the returned function is called."""
        return self._dispatcher.board.changes.ring(bell)

    def set_replica(self, wait: Callable[[int, float], PutMessageStatus]) -> None:
        """Have the puts of a SYNC_MASTER wait for replicas by `wait`; see `StoreWriter`."""

        def wait_for_replicas(end: int, timeout_s: float) -> PutMessageStatus:
            with contextlib.suppress(StoreError):  # then no replica can get the message
                self._commit()
            return wait(end, timeout_s)

        self._writer.set_replica(wait_for_replicas)
