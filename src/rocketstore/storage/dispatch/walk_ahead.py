"""Walk a CommitLog file in a second thread, a few batches ahead of the thread that dispatches them.

Checking a log and entering its records cost about the same, kernels let go of the interpreter's
lock, and a machine has more than one core. The walk is the same one, batch after batch, so what
arrives is what the dispatching thread would have read itself, in the same order.

Law: one thread at a time, which is gone when the ``with`` block is left, by whatever way. An error
of the walk is raised where its batch is taken. Only the log is read, and nothing is written.

Law: memory is bounded: `AHEAD_BATCHES` matrices, whatever the size of the log.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.scan import kernels
from rocketstore.scan.columns import StopReason, new_columns
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketstore.native.dispatch_state import Int64Array
    from rocketstore.storage.files.mapped_file import MappedFile

AHEAD_RECORDS: Final = 8192
"""Records per batch: about a millisecond of work, against some 50 µs for handing it over."""

AHEAD_BATCHES: Final = 3
"""One is walked, one is dispatched, one waits: 5.5 MB of columns together."""

LEAST_AHEAD_BYTES: Final = 4 * MiB
"""Shorter stretches, and as much after every break, are walked where they are dispatched: the
next break may be close, and starting a thread costs as much as walking a few hundred records."""


class WalkedBatch(NamedTuple):
    """What one call of the walk gave.

    Attributes
    ----------
    cols
        The matrix; its first `filled` rows are filled. It is filled again once the next is taken.
    walked
        Position in the file up to which records were walked.
    reason
        What stands there.
    """

    cols: Int64Array
    filled: int
    walked: int
    reason: StopReason


def can_walk_ahead() -> bool:
    """Whether a second thread gains anything: another core, and kernels without the lock."""
    return len(os.sched_getaffinity(0)) > 1 and kernels.is_compiled()


@contextmanager
def walked_ahead(
    file: MappedFile, start: int, stop: int, *, check_crc: bool
) -> Iterator[Iterator[WalkedBatch]]:
    """Give the batches of a stretch of a file, up to its end or what the walk cannot pass.

    Parameters
    ----------
    file
        Of the CommitLog.
    start, stop
        Positions in the file; records that start in between are walked.
    check_crc
        Whether bodies are compared with their CRC.
    """
    walker = _Walker(file, start, stop, check_crc=check_crc)
    walker.begin()
    try:
        yield walker.batches()
    finally:
        walker.end()


class _Walker:
    """The thread, and the two ways matrices go: free ones to it, filled ones back."""

    def __init__(self, file: MappedFile, start: int, stop: int, *, check_crc: bool) -> None:
        self._file = file
        self._position = start
        self._stop = stop
        self._check_crc = check_crc
        self._array = file.array
        self._walk = kernels.walk  # loaded here: not in a thread that is not ours to wait for
        self._free: SimpleQueue[Int64Array | None] = SimpleQueue()
        self._filled: SimpleQueue[WalkedBatch | BaseException] = SimpleQueue()
        self._has_thread = True
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="rocketstore-walk", daemon=True)

    def begin(self) -> None:
        for _ in range(AHEAD_BATCHES):
            self._free.put(new_columns(AHEAD_RECORDS))
        try:
            self._thread.start()
        except RuntimeError:  # the process may have no more threads: the walk does without
            self._has_thread = False

    def end(self) -> None:
        """Let the thread stop after the batch it is at, and wait for that."""
        self._has_ended = True
        self._free.put(None)
        if self._has_thread:
            self._thread.join()

    def batches(self) -> Iterator[WalkedBatch]:
        while True:
            batch = self._filled.get() if self._has_thread else self._next(self._free.get())
            if isinstance(batch, BaseException):
                raise batch
            yield batch
            if self._is_last(batch):
                return
            self._free.put(batch.cols)

    def _is_last(self, batch: WalkedBatch) -> bool:
        return batch.reason is not StopReason.END or batch.walked >= self._stop

    def _run(self) -> None:
        try:
            while (cols := self._free.get()) is not None and not self._has_ended:
                batch = self._next(cols)
                self._filled.put(batch)
                if self._is_last(batch):
                    return
        except BaseException as error:  # noqa: BLE001 - raised again where the batch is taken
            self._filled.put(error)

    def _next(self, cols: Int64Array | None) -> WalkedBatch:
        assert cols is not None
        file = self._file
        count, self._position, reason = self._walk(
            self._array, self._position, self._stop, file.base, file.size, self._check_crc, cols
        )
        return WalkedBatch(cols, count, self._position, StopReason(reason))
