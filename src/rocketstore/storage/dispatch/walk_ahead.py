"""Walk a CommitLog file in batches, here or in a second thread that is a few batches ahead.

Checking a log and entering its records cost about the same, the walk lets go of the interpreter's
lock, and a machine has more than one core. Batch after batch is the same in both ways.

Law: one thread at a time, which is gone when the batches are closed, by whatever way. An error of
the walk is raised where its batch is taken. Only the log is read, and nothing is written.

Law: memory is bounded: `AHEAD_BATCHES` matrices, whatever the size of the log.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.scan import kernels
from rocketstore.scan.columns import RecordColumns, StopReason, new_columns
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

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
    """What one call of the walk gave: rows, the position it reached, and what stands there.

    The rows are filled again once the next batch is taken.
    """

    columns: RecordColumns
    walked: int
    reason: StopReason


def can_walk_ahead() -> bool:
    """Whether a second thread gains anything: another core, and kernels without the lock."""
    return len(os.sched_getaffinity(0)) > 1 and kernels.is_compiled()


def walk_batches(
    file: MappedFile, start: int, stop: int, matrices: Iterable[Int64Array], *, check_crc: bool
) -> Generator[WalkedBatch]:
    """Walk a stretch of a file, a batch into each of `matrices`, up to what the walk cannot pass.

    Parameters
    ----------
    file
        Of the CommitLog.
    start, stop
        Positions in the file; records that start in between are walked.
    matrices
        More than are needed.
    check_crc
        Whether bodies are compared with their CRC.
    """
    position, reason = start, StopReason.END
    for cols in matrices:
        if position >= stop or reason is not StopReason.END:
            return
        count, position, found = kernels.walk(
            file.array, position, stop, file.base, file.size, check_crc, cols
        )
        reason = StopReason(found)
        yield WalkedBatch(RecordColumns(file.array, cols[:count], file.base), position, reason)


def walked_ahead(
    file: MappedFile, start: int, stop: int, *, check_crc: bool
) -> Generator[WalkedBatch]:
    """Give the batches of a stretch as `walk_batches` does; another thread walks them."""
    matrices = [new_columns(AHEAD_RECORDS) for _ in range(AHEAD_BATCHES)]
    batches = walk_batches(file, start, stop, cycle(matrices), check_crc=check_crc)
    walker = ThreadPoolExecutor(1, "rocketstore-walk")
    try:
        ahead = deque(walker.submit(next, batches, None) for _ in range(AHEAD_BATCHES - 1))
    except RuntimeError:  # the process may have no more threads: the walk does without
        yield from batches
        return
    try:
        while (batch := ahead.popleft().result()) is not None:
            yield batch
            ahead.append(walker.submit(next, batches, None))
    finally:
        walker.shutdown(cancel_futures=True)
