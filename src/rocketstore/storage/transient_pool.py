"""The transient store pool: puts go to memory first, and a thread writes them to the log's files.

Law: no reader goes past the committed position, up to which buffer and file hold the same bytes: so
readers may have a view of either. It moves when `pwrite` took all of the bytes before it; what that
refused stays in the buffer and is tried again at every turn. Until that works puts are refused, by
a flag that says why and goes then: nothing that was acknowledged is dropped while this process
lives. A buffer is free again when its file is committed to the end and no view of it is left.

The first put after a pause is committed at once, those that follow ten ms later if they fill
enough pages, and after ``commitIntervalCommitLog`` in any case.

How derived: TransientStorePool, CommitLog.CommitRealTimeService, MappedFile.appendMessagesInner and
MappedFile.commit of 4.9 (spec B5, B8, B9.3). There a buffer goes back with its bytes in it, and the
next file's last blank may bring some of them to the disk; here zeros follow the BLANK, as in a
store without a pool. Page: docs/how-it-works/transient-pool.md, decision 0026.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from rocketstore.errors import StoreError
from rocketstore.events import get_logger
from rocketstore.storage.files.disk import Disk, libc, system_errors
from rocketstore.storage.files.mapped_file import MappedFile, address_of
from rocketstore.storage.running_flags import RunningFlag, RunningFlags
from rocketstore.storage.threads import Bell, ServiceThread
from rocketstore.units import OS_PAGE_SIZE_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from rocketstore.config import StoreConfig
    from rocketstore.storage.log.commit_log import CommitLog

LOW_SHARE: Final = 0.4
"""A warning is logged when less of the pool is left (TransientStorePool.borrowBuffer)."""

_log: Final = get_logger(__name__)


class TransientStorePool:
    """`count` buffers for files of `file_size`; memory is taken when a buffer is first written.

    With `lock` it is taken, and locked, at once. With `fails_fast` no file is made while no buffer
    is free; else such a file is written without one.
    """

    def __init__(self, count: int, file_size: int, *, lock: bool, fails_fast: bool) -> None:
        self.count = count
        self._fails_fast = fails_fast
        # A forked child gets a copy: what it has views of does not change under them.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        with system_errors(f"no memory for a transient store pool of {count} x {file_size} bytes"):
            self._free = deque(mmap.mmap(-1, file_size, flags=flags) for _ in range(count))
        locked = sum(map(_is_locked, self._free)) if lock else count
        if locked < count:
            _log.warning("pool.not_locked", buffers=count - locked, errno=ctypes.get_errno())

    @property
    def free_count(self) -> int:
        """How many buffers are free (TransientStorePool.availableBufferNums)."""
        return len(self._free)

    def borrow(self) -> npt.NDArray[np.uint8] | None:
        """Return a buffer, which is free again when its last view goes; None where none is free."""
        try:
            memory = self._free.popleft()
        except IndexError:
            memory = None
        if self.free_count < LOW_SHARE * self.count:
            _log.warning("pool.low", free=self.free_count, count=self.count)
        if memory is None:
            return None
        buffer = np.frombuffer(memory, np.uint8)
        weakref.finalize(buffer, self._free.appendleft, memory).atexit = False
        return buffer

    def make_file(self, path: Path, *, base: int, size: int, disk: Disk) -> MappedFile:
        """Make a file as `MappedFile.create` does, with a buffer if one is free."""
        if self._fails_fast and not self.free_count:
            raise StoreError(
                f"none of the {self.count} buffers of the transient store pool is free for {path}, "
                "and fastFailIfNoBufferInStorePool is set",
                hint="put again later: the disk lags behind; or set transientStorePoolSize higher",
            )
        buffer = self.borrow()
        if buffer is None:
            return MappedFile.create(path, base=base, size=size, disk=disk)
        file = PooledFile.create(path, base=base, size=size, disk=disk)
        file.lend(buffer)
        return file

    def close(self) -> None:
        """Release the memory; that of borrowed buffers goes with their last view."""
        self.count = 0
        self._free = deque(maxlen=0)


class PooledFile(MappedFile):
    """A new file whose bytes are written to a buffer, and by `commit` from there to the file."""

    has_buffer = True
    committed_position = 0

    def lend(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Take a buffer in the place of the mapping, until all of the file is committed."""
        # Readers of a mapping use no more than its bytes.
        self.array, self.mapping = buffer, cast("mmap.mmap", buffer)

    @property
    def readable_position(self) -> int:
        """Position after the last byte that is in the file."""
        return self.committed_position

    def reserve(self, stop: int) -> None:
        """Make sure of disk space, in whole pages: those before are written meanwhile."""
        super().reserve(min(stop + -stop % OS_PAGE_SIZE_BYTES, self.size))

    def write_bytes(self, position: int, data: bytes | memoryview) -> None:
        """Write the last bytes of the file, with zeros after them."""
        stop = position + len(data)
        self.array[position:stop] = np.frombuffer(data, np.uint8)
        self.array[stop:] = 0

    def commit(self, least_pages: int = 0) -> int:
        """Write what is in the buffer to the file; return the committed position.

        With fewer than `least_pages` whole new pages nothing is done, unless the file is full. One
        thread at a time. Source: MappedFile.commit, isAbleToCommit, commit0.
        """
        start, stop = self.committed_position, self.write_position
        pages = stop // OS_PAGE_SIZE_BYTES - start // OS_PAGE_SIZE_BYTES
        if start < stop and (pages >= least_pages or stop == self.size):
            with self.descriptor() as descriptor:
                self._disk.write_at(descriptor, self.path, start, self.array[start:stop].data)
            self.committed_position = stop
        if self.committed_position == self.size:
            self.unmap()  # what is asked for from here on is the mapping of the file
        return self.committed_position


def _is_locked(memory: mmap.mmap) -> bool:
    address = address_of(np.frombuffer(memory, np.uint8))
    return bool(libc().mlock(address, len(memory)) == 0)


_TURN_S: Final = 0.01
"""Pause between two commits of a busy writer, whose puts share the second."""

_UNTIL_RUNG: Final = -1.0

_SLOW_COMMIT_S: Final = 0.5
"""A commit that takes longer is logged (CommitRealTimeService, 500 ms)."""


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
                _log.error("log.commit_failed", error=str(error), next="puts are refused")
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
        return self._interval_s if self._log.max_offset > self.max_offset else _UNTIL_RUNG

    def _run(self) -> None:
        while not self.thread.stopping.is_set():
            self._bell.wait(self.take_turn())
