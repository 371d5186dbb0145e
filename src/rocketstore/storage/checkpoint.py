"""The checkpoint of an open store: how far each structure is known to be on the disk.

Law: a time is written here only after what it promises is on the disk, and no time goes back
between two openings. `physic_ms`: the CommitLog is synced up to the last message of that time.
`logics_ms`: so are *all* queues up to the entries of messages of that time, which only a thorough
flush can say (K-R7). `index_ms`: likewise the index, whether its file is full or not (K-I2).

How derived: StoreCheckpoint of 4.9 (spec F11), with plain writes instead of a mapping.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from rocketstore.errors import TruncatedRecordError
from rocketstore.format.checkpoint import (
    CHECKPOINT_SIZE_BYTES,
    Checkpoint,
    decode_checkpoint,
    encode_times,
)

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.storage.files.disk import Disk
    from rocketstore.storage.layout import StoreLayout


class StoreCheckpoint:
    """The file ``checkpoint``, read once and rewritten in place."""

    def __init__(self, path: Path, *, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._lock = threading.Lock()
        self._times = read_checkpoint(path)
        self._written = self._times

    @property
    def times(self) -> Checkpoint:
        """The three times, flushed or not."""
        return self._times

    def advance(self, *, physic_ms: int = 0, logics_ms: int = 0, index_ms: int = 0) -> None:
        """Take note of what became durable; a time never goes back."""
        with self._lock:
            old = self._times
            self._times = Checkpoint(
                max(old.physic_ms, physic_ms),
                max(old.logics_ms, logics_ms),
                max(old.index_ms, index_ms),
            )

    def reset(self, times: Checkpoint) -> None:
        """Replace all times, as recovery does when it knows better."""
        with self._lock:
            self._times = times

    def flush(self) -> None:
        """Write the times down, durably; no call of the system when nothing changed.

        Raises
        ------
        OSError, StoreFullError
            The old times stay on the disk, so recovery goes back further than it must.
        """
        with self._lock:
            times = self._times
            if times == self._written and self.path.exists():
                return
            try:
                descriptor, is_new = self._disk.open_file(self.path, writable=True), False
            except FileNotFoundError:
                descriptor, is_new = self._disk.create_file(self.path), True
            try:
                if os.fstat(descriptor).st_size < CHECKPOINT_SIZE_BYTES:
                    self._disk.allocate(descriptor, self.path, CHECKPOINT_SIZE_BYTES)
                # One write of 24 bytes into one page: torn by nothing but a torn sector.
                self._disk.write_at(descriptor, self.path, 0, encode_times(times))
                self._disk.fdatasync(descriptor, self.path)
            finally:
                os.close(descriptor)
            if is_new:
                self._disk.fsync_directory(self.path.parent)
            self._written = times


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the times in the file at `path`; all 0 where it is missing or too short to hold them.

    Zeros are always safe: recovery then starts at the first file.
    """
    try:
        return decode_checkpoint(path.read_bytes())
    except (FileNotFoundError, TruncatedRecordError):
        return Checkpoint()


def mark_in_use(abort: Path, disk: Disk) -> None:
    """Make ``abort``, which only an orderly end deletes (spec F12)."""
    if not abort.exists():
        os.close(disk.create_file(abort))
    disk.fsync_directory(abort.parent)


def promise_nothing(layout: StoreLayout, disk: Disk) -> None:
    """Let an opening after an interruption check everything: what was promised is made again."""
    mark_in_use(layout.abort, disk)
    checkpoint = StoreCheckpoint(layout.checkpoint, disk=disk)
    checkpoint.reset(Checkpoint())
    checkpoint.flush()
