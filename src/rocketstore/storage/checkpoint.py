"""What is known to be on the disk of an open store: checkpoint, ends of queues and index.

Law: a time of the checkpoint is written only after what it promises is on the disk, and none goes
back between two openings. `physic_ms`: the CommitLog is synced up to the last message of that time;
`logics_ms`: so are *all* queues, which only a thorough flush can say (K-R7); `index_ms`: the index,
its file full or not (K-I2).

Law: ``known-ends`` has the number that each queue had got to, at each opening, checkpoint and
orderly end, so that a queue that lost the end of its files is recognised (decision 0021). It only
makes recovery look further: nothing is cut because of it, and a store without it opens.

Every second the queues' files with enough new pages and full index files are flushed, every minute
all; only then, and only when nothing was left over, does the checkpoint move, to the store time
that had been dispatched when the flush began. The newest index file goes with the queues (K-I2).

How derived: StoreCheckpoint of 4.9 (spec F11), by plain writes, and FlushConsumeQueueService (spec
B9.4, B9.5); a broker ignores ``known-ends``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from rocketstore.errors import StoreError, StoreFullError
from rocketstore.events import get_logger
from rocketstore.format.checkpoint import (
    CHECKPOINT_SIZE_BYTES,
    Checkpoint,
    encode_times,
)
from rocketstore.format.file_name import KNOWN_ENDS_FILE_NAME
from rocketstore.format.known_ends import (
    KnownEnds,
    QueueEnds,
    decode_known_ends,
    encode_known_ends,
    tie_at,
)
from rocketstore.locks import Lock
from rocketstore.native.row import Int64Array, QueueColumn
from rocketstore.rules.queue_numbers import grown
from rocketstore.storage.files.disk import NO_SPACE_ERRORS, Disk, read_whole
from rocketstore.storage.files.whole_file import replace_whole

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.config import StoreConfig
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.index.index_service import IndexService
    from rocketstore.storage.layout import StoreLayout
    from rocketstore.storage.queues.queue_table import ConsumeQueueTable
    from rocketstore.units import QueueKey

_log: Final = get_logger(__name__)


class StoreCheckpoint:
    """The file ``checkpoint``, read once and rewritten in place; `times` are flushed or not."""

    def __init__(self, path: Path, *, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._lock = Lock()
        self.times = read_checkpoint(path)
        self._written = self.times

    def advance(self, *, physic_ms: int = 0, logics_ms: int = 0, index_ms: int = 0) -> None:
        """Note what became durable; a time never goes back."""
        with self._lock:
            self.times = Checkpoint(*map(max, self.times, (physic_ms, logics_ms, index_ms)))

    def reset(self, times: Checkpoint) -> None:
        """Replace all times, as recovery does when it knows better."""
        with self._lock:
            self.times = times

    def flush(self) -> None:
        """Write the times durably; no system call when nothing changed.

        If that fails, the old times stay, so recovery goes back further than it must.
        """
        with self._lock:
            times = self.times
            if times == self._written and self.path.exists():
                return
            try:
                descriptor, is_new = self._disk.open_file(self.path, writable=True), False
            except FileNotFoundError:
                descriptor, is_new = self._disk.create_file(self.path), True
            try:
                if os.fstat(descriptor).st_size < CHECKPOINT_SIZE_BYTES:
                    self._disk.allocate(descriptor, self.path, CHECKPOINT_SIZE_BYTES)
                # One write of 24 bytes into one page: only a torn sector could tear it.
                self._disk.write_at(descriptor, self.path, 0, encode_times(times))
                self._disk.fdatasync(descriptor, self.path)
            finally:
                os.close(descriptor)
            if is_new:
                self._disk.fsync_directory(self.path.parent)
            self._written = times


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the times in the file at `path`, as `Checkpoint.of`."""
    with suppress(FileNotFoundError):
        return Checkpoint.of(read_whole(path))
    return Checkpoint()


def mark_in_use(abort: Path, disk: Disk) -> None:
    """Make ``abort``, which only an orderly end deletes (spec F12)."""
    if not abort.exists():
        os.close(disk.create_file(abort))
    disk.fsync_directory(abort.parent)


def promise_nothing(layout: StoreLayout, disk: Disk) -> None:
    """Make an opening after an interruption check everything: promised entries are made again."""
    mark_in_use(layout.abort, disk)
    checkpoint = StoreCheckpoint(layout.checkpoint, disk=disk)
    checkpoint.reset(Checkpoint())
    checkpoint.flush()


# --- known ends ---------------------------------------------------------------------------------


def read_known_ends(root: Path, damaged: KnownEnds | None = None) -> KnownEnds | None:
    """Return the content of the file below `root`, `damaged` of one not whole; None without one."""
    try:
        return decode_known_ends(read_whole(root / KNOWN_ENDS_FILE_NAME)) or damaged
    except FileNotFoundError:
        return None


def known_log_end(root: Path) -> int:
    """Return how far a log went by the file, whichever log that was; 0 where nothing says."""
    known = read_known_ends(root)
    return known.log_end if known else 0


def write_known_ends(root: Path, ends: KnownEnds, *, disk: Disk) -> None:
    """Replace the file, its bytes durably; a crash leaves the old one or the new one."""
    encoded = encode_known_ends(ends)
    replace_whole(root / KNOWN_ENDS_FILE_NAME, encoded, disk, sync_name=False)


def forget_known_ends(root: Path, *, keep_queues: bool, disk: Disk) -> None:
    """Forget the index files, which a repair rebuilt; without `keep_queues` the queues as well."""
    known = read_known_ends(root)
    if known is not None and keep_queues:
        write_known_ends(root, msgspec.structs.replace(known, index_files=None), disk=disk)
    else:
        disk.unlink(root / KNOWN_ENDS_FILE_NAME)


@dataclass(slots=True)
class KnownEndsWriter:
    """Keeps the file of an open store; one thread at a time."""

    root: Path
    log: MappedFileQueue
    queues: ConsumeQueueTable
    index: IndexService
    dispatched_offset: Callable[[], int]
    disk: Disk
    _written: KnownEnds | None = None
    _nexts: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    _ends: dict[int, tuple[object, tuple[QueueKey, QueueEnds]]] = field(default_factory=dict)

    def take(self, *, is_closed: bool = False) -> KnownEnds:
        """Return how far everything is now."""
        log_end = self.dispatched_offset()
        queues = self._queue_ends()
        batches = [
            (key, QueueEnds(queue.first_offset, queue.max_offset))
            for kind in self.queues.kinds.on_disk()
            for key in kind.queue_keys()
            for queue in [kind.queue(key)]
        ]
        return KnownEnds(
            1, is_closed, log_end, queues, self.index.headers(), self._ties(log_end), batches
        )

    def _queue_ends(self) -> list[tuple[QueueKey, QueueEnds]]:
        """Return how far each queue is; one without new entries, or other files, is as it was."""
        nexts, before = self.queues.rows.queues[:, QueueColumn.NEXT].copy(), self._nexts
        before = grown(before, len(nexts))[: len(nexts)]
        written = {*np.flatnonzero(nexts != before).tolist()}
        ends = []
        for queue in self.queues.all():
            files, known = queue.files.files, self._ends.get(queue.row)
            if known is None or known[0] is not files or queue.row in written:
                known = files, (queue.key, QueueEnds(queue.first_offset, queue.given_stop))
                self._ends[queue.row] = known
            ends.append(known[1])
        self._nexts = nexts
        return ends

    def _ties(self, log_end: int) -> list[tuple[int, int]]:
        """Return ties to the log's first record and last, the first of its file and of that before.

        One that cannot be read makes an opening fail if it is one of the last; else it is left out.
        """
        latest = self.queues.latest()
        last = None if latest is None else latest.last_message()
        near = set() if last is None else {last[1].physical_offset}
        for file in filter(None, map(self.log.find, [*near, log_end - 1])):
            near |= {file.base, file.base - self.log.file_size}
        ties, known = [], dict(self._written.ties if self._written else ())
        for at in sorted(near | {self.log.min_offset}):
            try:
                checksum = known.get(at) or tie_at(self.log.read, at)
            except (OSError, StoreError):
                if self._written is None and at in near:
                    raise
                continue
            ties += [] if checksum is None else [(at, checksum)]
        return ties

    def write(self, ends: KnownEnds) -> None:
        """Write the file if it changed; if the disk is full, the old one stays."""
        if ends == self._written:
            return
        try:
            write_known_ends(self.root, ends, disk=self.disk)
        except (StoreFullError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in NO_SPACE_ERRORS:
                raise
            _log.warning("known_ends.no_room", root=str(self.root), error=str(error))
        else:
            self._written = ends


# --- the flush that moves them -------------------------------------------------------------------


@dataclass
class QueueFlusher:
    """Flushes queues and index; `run_once` is called at the interval of the settings."""

    table: ConsumeQueueTable
    index: IndexService
    checkpoint: StoreCheckpoint
    dispatched_timestamp: Callable[[], int]
    config: StoreConfig
    monotonic: Callable[[], int]
    known_ends: KnownEndsWriter

    def __post_init__(self) -> None:
        self._last_thorough_ms = self.monotonic()
        self._flushing = Lock()

    def run_once(self) -> bool:
        """Do one turn; return whether it was a thorough one. As `flush_all`, it may raise."""
        now_ms = self.monotonic()
        if now_ms < self._last_thorough_ms + self.config.flush_consume_queue_thorough_interval:
            with self._flushing:
                self.table.flush(self.config.flush_consume_queue_least_pages)
                self.index.flush(full_only=True)
            return False
        self._last_thorough_ms = now_ms
        self.flush_all()
        return True

    def flush_all(self, *, is_closed: bool = False) -> bool:
        """Flush everything dispatched so far and move the checkpoint; return whether it moved.

        `is_closed`: the store ends in order, and nothing is written after this. A failed sync
        raises; after it the checkpoint does not move any more.
        """
        with self._flushing:
            # Read first: entries of later records may or may not be in what is flushed.
            timestamp = self.dispatched_timestamp()
            ends = self.known_ends.take(is_closed=is_closed)
            if not all([self.table.flush(), self.index.flush()]):
                return False
            self.known_ends.write(ends)
            self.checkpoint.advance(logics_ms=timestamp, index_ms=timestamp)
            self.checkpoint.flush()
            return True
