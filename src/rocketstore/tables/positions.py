"""Which log a table of positions belongs to: it has marks, and they say what stood in that log.

A mark is [first byte, end, checksum] of a stretch of the log that was on the disk when the table
was written; it holds a record's head, with a store time that another log does not have there. The
newest comes first and ends after all that the table counts; older ones become fewer the
farther back they are, so that a log which was cut, replaced or restored is recognised up to near
its end.

Law: a position counts no message that the log at hand lacks, or that comes from another log. A
table without marks (4.9 knows none) is believed, as far as the queues go.
"""

from __future__ import annotations

import zlib
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

import numpy as np

from rocketstore.scan import kernels
from rocketstore.storage.attached import Service
from rocketstore.storage.files.pread_files import PreadFiles
from rocketstore.units import KiB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rocketstore.storage.layout import StoreLayout
    from rocketstore.storage.replicated_log import ReplicatedLog
    from rocketstore.storage.store import BaseStore

MARKS: Final = "logMarks"
REPLACED: Final = ".replaced"
"""Suffix of the files that a slave had before it began again."""

COMPARED_BYTES: Final = 64 * KiB
"""How much of a log, from its end back, a mark has, and a slave compares at each connection: what
was lost in an accident of the master is newer than that, unless the loss is large."""


def known_start(read: Callable[[int, int], bytes | None], file_size: int, end: int) -> int:
    """Return where a record begins, not far before the end of a log that is not empty.

    It is never 0, which for a master of 4.9 means that there is nothing; so it is the end itself
    where the log has one record.
    """
    back, base = COMPARED_BYTES, end - 1 - (end - 1) % file_size
    while (start := max(base, end - back)) > base:
        data = np.frombuffer(read(start, end - start) or b"", np.uint8)
        found = int(kernels.resync(data, 0, len(data), start, base + file_size - start))
        if found >= 0:
            return start + found
        back *= 4
    return base or int.from_bytes(read(0, 4) or b"", "big")


class LogMark(Service):
    """The newest mark of an open store's log, shared by the tables that are saved."""

    name = "log_mark"

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._mark: Sequence[int] = (0, 0, 0)

    def after(self, counted: int) -> Sequence[int]:
        """Return a mark for a table that counts nothing after `counted`, which is on the disk."""
        if self._mark[1] < counted:
            self._mark = mark_of(self._store.replicated_log, self._store.flushed_physical_offset)
        return self._mark


def mark_of(log: ReplicatedLog | PreadFiles, end: int) -> Sequence[int]:
    """Return the mark of a log up to `end`, where a record ends that is on the disk."""
    start = known_start(log.read, log.file_size, end)
    start = end - 1 - (end - 1) % log.file_size if start >= end else start  # its first record
    return [start, end, zlib.crc32(log.read(start, end - start) or b"")]


def with_mark(mark: Sequence[int], marks: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """Return marks with a newer one; of an empty log there is none."""
    end = mark[1]
    if not end:
        return list(marks)
    kept = [mark]
    for one, older in zip_longest(marks, marks[1:]):
        # A mark is left out where its neighbours are enough.
        if one[1] < end and (older is None or end - older[1] > 2 * (end - kept[-1][1])):
            kept.append(one)
    return kept


def agreed_end(layout: StoreLayout, marks: Sequence[Sequence[int]]) -> int | None:
    """Return up to where the log at hand agrees with the marks; None if it does to their end."""
    files = PreadFiles(layout.log_directories)
    if not marks or _is_in(files, marks[0]):
        return None
    end = begin = max(files.min_offset, 0)
    for one in marks[1:]:
        if end == begin and one[1] > begin and _is_in(files, one):
            end = one[1]
    kept = PreadFiles([path.with_name(path.name + REPLACED) for path in layout.log_directories])
    if _is_in(kept, marks[0]):
        while (ours := files.read(end, COMPARED_BYTES)) and ours == kept.read(end, len(ours)):
            end += len(ours)
        pairs = zip(ours or b"", kept.read(end, COMPARED_BYTES) or b"", strict=False)
        end += next((at for at, (one, other) in enumerate(pairs) if one != other), 0)
    return end


def _is_in(files: PreadFiles, mark: Sequence[int]) -> bool:
    start, end, checksum = mark
    read = files.read(start, end - start) if 0 <= start < end else None
    return read is not None and len(read) == end - start and zlib.crc32(read) == checksum
