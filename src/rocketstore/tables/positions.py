"""Which log a table of positions belongs to: it has marks, and they say what stood in that log.

A mark is [first byte, end, checksum] of a stretch of the log that was on the disk when the table
was written; it holds a record's head, with a store time that another log does not have there. The
newest come first: two, of which one is the last record alone, so that damage before it does not
make the log another one. They end after all that the table counts; older ones become fewer the
farther back they are, so that a log which was cut, replaced or restored is recognised up to near
its end.

Law: a position counts no message that the log at hand lacks, or that comes from another log. A
table without marks (4.9 knows none) is believed, as far as the queues go.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from rocketstore.format.record import FIXED_SIZE
from rocketstore.rules.queue_numbers import QueueNumbers
from rocketstore.scan import kernels
from rocketstore.scan.columns import Column, RecordColumns, new_columns
from rocketstore.scan.scanner import scan_window
from rocketstore.storage.attached import Service
from rocketstore.storage.files.pread_files import PreadFiles, ReadLogFile
from rocketstore.units import KiB, QueueKey

if TYPE_CHECKING:
    from rocketstore.storage.layout import StoreLayout
    from rocketstore.storage.reading.reader import Reader
    from rocketstore.storage.replicated_log import ReplicatedLog
    from rocketstore.storage.store import BaseStore

Marks: TypeAlias = "Sequence[Sequence[int]]"

MARKS: Final = "logMarks"
REPLACED: Final = ".replaced"
"""Suffix of the files that a slave had before it began again."""

COMPARED_BYTES: Final = 64 * KiB
"""How much of a log, from its end back, a mark has, and a slave compares at each connection: what
was lost in an accident of the master is newer than that, unless the loss is large."""


def known_start(read: Callable[[int, int], bytes | None], file_size: int, end: int) -> int:
    """Return where a record begins, not far before the end of a log that is not empty."""
    back, base = COMPARED_BYTES, end - 1 - (end - 1) % file_size
    while (start := max(base, end - back)) > base:
        data = np.frombuffer(read(start, end - start) or b"", np.uint8)
        found = int(kernels.resync(data, 0, len(data), start, base + file_size - start))
        if found >= 0:
            return start + found
        back *= 4
    return base


class LogMark(Service):
    """The newest marks of an open store's log, shared by the tables that are saved."""

    name = "log_mark"

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._marks: Marks = []

    def after(self, counted: int) -> Marks:
        """Return marks for a table that counts nothing after `counted`, which is on the disk."""
        if counted > (self._marks[0][1] if self._marks else 0):
            self._marks = marks_of(self._store.replicated_log, self._store.flushed_physical_offset)
        return self._marks


def marks_of(log: ReplicatedLog | PreadFiles, end: int) -> Marks:
    """Return the marks of a log up to `end`, where a record ends that is on the disk."""
    start = known_start(log.read, log.file_size, end)
    held = log.read(start, end - start) or b""
    data, cols = np.frombuffer(held, np.uint8), new_columns(len(held) // FIXED_SIZE + 1)
    left = log.file_size - start % log.file_size
    count, _, _ = kernels.walk(data, 0, len(data), start, left, False, cols)  # noqa: FBT003
    last = int(cols[count - 1, Column.PHYSICAL_OFFSET]) if count else start
    return [[at, end, zlib.crc32(held[at - start :])] for at in dict.fromkeys((start, last))]


def with_marks(newest: Marks, marks: Marks) -> Marks:
    """Return marks with newer ones; of an empty log there is none."""
    if not newest:
        return list(marks)
    end, kept = newest[0][1], list(newest)
    for one, older in zip_longest(marks, marks[1:]):
        # A mark is left out where its neighbours are enough.
        if one[1] < end and (older is None or end - older[1] > 2 * (end - kept[-1][1])):
            kept.append(one)
    return kept


def agreed_end(layout: StoreLayout, marks: Marks) -> int | None:
    """Return up to where the log at hand agrees with the marks; None if it does to their end."""
    files = PreadFiles(layout.log_directories)
    if not marks or any(_is_in(files, one) for one in marks if one[1] == marks[0][1]):
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


def made_again(reader: Reader, queues: Iterable[QueueKey]) -> set[QueueKey]:
    """Return the queues of which the log has messages before the one that is numbered 0.

    4.9 begins there again with a topic that is deleted and made again, and its groups do not.
    """
    firsts = {
        one: entry.physical_offset
        for one in queues
        for _, entry in reader.queue_entries(*one, 0, int(reader.min_offset(*one) == 0))
    }
    numbers, found = QueueNumbers(), set[QueueKey]()
    for columns in log_columns(reader, 0, max(firsts.values(), default=0)):
        for number, row in zip(*np.unique(numbers.of(columns), return_index=True), strict=True):
            key = numbers.key(number) if number >= 0 else None
            if key in firsts and columns.physical_offset[row] < firsts[key]:
                found.add(key)
        if len(found) == len(firsts):
            break
    return found


def log_columns(reader: Reader, start: int, stop: int) -> Iterator[RecordColumns]:
    """Yield the records of a stretch of the log; bodies are not checked."""
    size = reader.config.mapped_file_size_commit_log
    for file in PreadFiles(reader.layout.log_directories, file_size=size).files:
        if start < file.range.stop and file.base < stop:
            place = {"start": max(0, start - file.base), "stop": min(file.size, stop - file.base)}
            read = ReadLogFile(file, file.size)
            for batch in scan_window(
                read, base=file.base, size=file.size, check_crc=False, **place
            ):
                yield batch.columns


def _is_in(files: PreadFiles, mark: Sequence[int]) -> bool:
    start, end, checksum = mark
    read = files.read(start, end - start) if 0 <= start < end else None
    return read is not None and len(read) == end - start and zlib.crc32(read) == checksum
