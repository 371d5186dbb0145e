"""Compare records with the queue entries at the places that they state, many at a time.

Law: nothing is written, and a queue offset is never moved: the question is always what stands at
this place of this queue. Entries are read in runs, so a queue costs some reads for each block of
records, whatever their number.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from rocketstore.errors import StoreError
from rocketstore.format.markers import CONSUME_QUEUE_EXT_DIRECTORY
from rocketstore.format.queue_entry import (
    ENTRY_DTYPE,
    ENTRY_SIZE_BYTES,
    MAX_EXT_ADDRESS,
    entry_array,
    filler_mask,
    written_mask,
)
from rocketstore.pipeline.files import opened
from rocketstore.pipeline.jobs.audit.store_files import FileRow, file_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.pipeline.files import Files

    Int64Array: TypeAlias = npt.NDArray[np.int64]
    BoolArray: TypeAlias = npt.NDArray[np.bool_]

CHUNK_ENTRIES: Final = 65_536
"""Entries that may lie between two that are read at once."""

DELAY_TOPIC: Final = b"SCHEDULE_TOPIC_XXXX"


@contextlib.contextmanager
def passing_over_deleted() -> Iterator[None]:
    """Pass over a file that retention deleted since it was listed."""
    try:
        yield
    except StoreError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise


class Expected(NamedTuple):
    """Entries of one queue that records call for, in log order.

    Attributes
    ----------
    tags_code
        Hash of the tags.
    deliver_from_ms
        For records that wait in the delay topic their store time, else -1: their entry holds a
        deliver time, which depends on settings at the time of dispatch, so that only this lower
        bound is known.
    """

    queue_offset: Int64Array
    physical_offset: Int64Array
    size: Int64Array
    tags_code: Int64Array
    deliver_from_ms: Int64Array


class Compared(NamedTuple):
    """Which entries agree, and which places hold an entry of something else."""

    agrees: BoolArray
    contradicts: BoolArray


class QueueEntries:
    """The entries of one queue, read where they are asked for."""

    def __init__(self, files: Files, row: FileRow) -> None:
        self._files = files
        self.row = row

    @classmethod
    def at(cls, files: Files, directory: str, file_bytes: int) -> QueueEntries:
        """Return the queue whose files lie in a directory, none when there is no directory."""
        return cls(files, file_row(files, [directory], file_bytes))

    @classmethod
    def none(cls, files: Files) -> QueueEntries:
        """Return a queue without files."""
        return cls(files, FileRow((), ()))

    @property
    def first_offset(self) -> int:
        """Queue offset of the first place on disk."""
        return self.row.first // ENTRY_SIZE_BYTES

    @property
    def place_count(self) -> int:
        """One past the last place on disk, used or not."""
        return self.row.stop // ENTRY_SIZE_BYTES

    def read(self, start: int, count: int) -> EntryArray:
        """Return entries from queue offset `start`, zeros where no file or byte is."""
        content = np.zeros(count * ENTRY_SIZE_BYTES, dtype=np.uint8)
        at = start * ENTRY_SIZE_BYTES
        for file in self.row.files:
            begin, stop = max(at, file.base), min(at + content.size, file.stop)
            if begin < stop:
                with passing_over_deleted(), opened(self._files, file.path) as source:
                    source.read_into(begin - file.base, content[begin - at : stop - at].data)
        return entry_array(content)

    def end(self) -> int:
        """Return one past the last entry that is not zeros."""
        for file in reversed(self.row.files):
            with passing_over_deleted(), opened(self._files, file.path) as source:
                stop = min(source.data_stop(file.size), file.size)
                # It may stand a little behind the last byte that is not zero.
                while stop > 0:
                    begin = max(0, stop - CHUNK_ENTRIES * ENTRY_SIZE_BYTES)
                    written = source.read(begin, stop - begin).rstrip(b"\0")
                    if written:
                        last = file.base + begin + len(written) - 1
                        return min(last // ENTRY_SIZE_BYTES + 1, self.place_count)
                    stop = begin
        return self.first_offset

    def compare(self, expected: Expected) -> Compared:
        """Compare what records call for with what stands there."""
        found = self._gather(expected.queue_offset)
        agrees = (found["physical_offset"] == expected.physical_offset) & (
            found["record_size"] == expected.size
        )
        tags_code = found["tags_code"]
        agrees &= np.where(
            expected.deliver_from_ms >= 0,
            tags_code >= expected.deliver_from_ms,
            tags_code == expected.tags_code,
        ) | self._are_extended(tags_code)
        return Compared(agrees, written_mask(found) & ~filler_mask(found) & ~agrees)

    def _are_extended(self, tags_code: Int64Array) -> BoolArray:
        """Return whose tags stand in an extension file (spec F7), where the queue has one."""
        extended: BoolArray = tags_code <= MAX_EXT_ADDRESS
        if extended.any():
            root, _, topic, queue, _ = self.row.files[0].path.rsplit("/", 4)
            directory = f"{root}/{CONSUME_QUEUE_EXT_DIRECTORY}/{topic}/{queue}"
            extended &= bool(self._files.list(directory))
        return extended

    def _gather(self, offsets: Int64Array) -> EntryArray:
        """Return the entries at some queue offsets, reading neighbours at once."""
        if offsets.size and (np.diff(offsets) == 1).all():
            return self._run(int(offsets[0]), len(offsets))
        order = np.argsort(offsets, kind="stable")
        ordered = offsets[order]
        found = np.zeros(len(offsets), dtype=ENTRY_DTYPE)
        breaks = np.flatnonzero(np.diff(ordered) > CHUNK_ENTRIES) + 1
        bounds = [0, *breaks.tolist(), len(ordered)]
        for begin, behind in itertools.pairwise(bounds):
            start = int(ordered[begin])
            # One flipped offset must not make this read a whole disk of nothing.
            stop = min(int(ordered[behind - 1]) + 1, max(self.place_count, start))
            entries = self.read(start, stop - start)
            rows = order[begin:behind]
            inside = rows[offsets[rows] < stop]
            found[inside] = entries[offsets[inside] - start]
        return found

    def _run(self, start: int, count: int) -> EntryArray:
        there = max(0, min(count, self.place_count - start))
        found = np.zeros(count, dtype=ENTRY_DTYPE)
        found[:there] = self.read(start, there)
        return found
