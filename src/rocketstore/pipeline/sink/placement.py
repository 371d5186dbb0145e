"""Give staged records their offsets, as the store's own append would: pure numbers, no file.

Law: the same chunks from the same `LogEnd` give the same bytes at the same places, so a commit that
was interrupted can be told from the log, byte for byte.

How derived: CommitLog.append (a record goes into a file only if 8 bytes stay free behind it, else a
BLANK closes the file). Fields are set for a whole chunk at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocketstore.errors import RefusedMessageError
from rocketstore.format.blank import END_FILE_MIN_BLANK_SIZE
from rocketstore.message import BORN_HOST_V6_FLAG
from rocketstore.pipeline.sink.rows import BORN_AT_STORE
from rocketstore.pipeline.sink.staging import Chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]
    ByteArray = npt.NDArray[np.uint8]

_QUEUE_OFFSET_AT: Final = 20
_PHYSICAL_OFFSET_AT: Final = 28
_SYS_FLAG_LAST_BYTE_AT: Final = 39
_BORN_AT: Final = 40
_STORE_TIME_AT: Final = 56
_V6_EXTRA_BYTES: Final = 12
"""Places in a record (docs/format/record.md); the store time follows the born host."""

_EIGHT: Final = np.arange(8)


class CommitClock:
    """The time, until a commit stops it: all records of a batch have one store time."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._stopped_ms: int | None = None

    def __call__(self) -> int:
        """Return the time in ms."""
        return self._clock() if self._stopped_ms is None else self._stopped_ms

    def stop_at_least(self, earliest_ms: int) -> int:
        """Stop at the present time, or at `earliest_ms` when the clock went back; return it."""
        self._stopped_ms = max(self._clock(), earliest_ms)
        return self._stopped_ms


@dataclass
class LogEnd:
    """Where the log ends, and where its queues go on; moved by `place_chunks`.

    Attributes
    ----------
    offset
        Physical offset behind the last record.
    file_start
        Of the file that holds `offset`, or ends there; -1 without any file.
    next_offset
        Gives the next offset of a queue that was not met yet.
    queues
        Next offset of each queue that was met.
    first_offsets
        Offset of the first record placed in each queue.
    """

    offset: int
    file_start: int
    file_size: int
    store_timestamp_ms: int
    next_offset: Callable[[tuple[str, int]], int]
    queues: dict[tuple[str, int], int] = field(default_factory=dict)
    first_offsets: dict[tuple[str, int], int] = field(default_factory=dict)

    def first_offset(self, queue: tuple[str, int]) -> int:
        """Return the next offset of a queue, remembering where it began."""
        found = self.queues.get(queue)
        if found is None:
            found = self.queues[queue] = self.first_offsets[queue] = self.next_offset(queue)
        return found

    def room(self) -> int:
        """Return how many bytes of records the file of `offset` still takes."""
        if self.file_start < 0:
            return 0
        return self.file_start + self.file_size - self.offset - END_FILE_MIN_BLANK_SIZE

    def roll(self) -> None:
        """Go on in the next file."""
        self.file_start = 0 if self.file_start < 0 else self.file_start + self.file_size
        self.offset = self.file_start


class PlacedRun(NamedTuple):
    """Records that stand one behind the other in one file.

    Attributes
    ----------
    offset
        Physical offset of the first.
    data
        Their bytes, complete.
    starts, sizes
        Of each, in `data`.
    queues
        Next offset and bytes of each queue after them.
    """

    offset: int
    data: ByteArray
    starts: Numbers
    sizes: Numbers
    queues: dict[tuple[str, int], tuple[int, int]]


def place_chunks(chunks: Iterable[Chunk], end: LogEnd) -> Iterator[PlacedRun]:
    """Yield the records of chunks with their offsets and times, moving `end` behind them."""
    for chunk in chunks:
        _refuse_larger_than_file(chunk, end)
        stops = np.cumsum(chunk.sizes)
        starts = stops - chunk.sizes
        queue_offsets = _queue_offsets(chunk, end)
        _put(chunk.records, starts + _QUEUE_OFFSET_AT, queue_offsets)
        _put_times(chunk.records, starts, end.store_timestamp_ms)
        first, count = 0, len(starts)
        while first < count:
            begin = int(starts[first])
            stop = int(np.searchsorted(stops, begin + end.room(), side="right"))
            if stop <= first:
                end.roll()
                continue
            part = slice(first, stop)
            _put(
                chunk.records,
                starts[part] + _PHYSICAL_OFFSET_AT,
                starts[part] - begin + end.offset,
            )
            data = chunk.records[begin : int(stops[stop - 1])]
            queues = _queue_ends(chunk, queue_offsets, part)
            yield PlacedRun(end.offset, data, starts[part] - begin, chunk.sizes[part], queues)
            end.offset += len(data)
            first = stop


def without_records(chunk: Chunk, first: int, skipped: Sequence[tuple[int, int]]) -> Chunk:
    """Return a chunk without some of its records.

    Parameters
    ----------
    first
        Number of its first record.
    skipped
        Ranges of numbers, first and one behind the last.
    """
    count = len(chunk.sizes)
    keep = np.ones(count, dtype=bool)
    for start, stop in skipped:
        keep[max(start - first, 0) : max(stop - first, 0)] = False
    if keep.all():
        return chunk
    return Chunk(
        chunk.queues,
        chunk.sizes[keep],
        chunk.queue_indexes[keep],
        chunk.records[np.repeat(keep, chunk.sizes)],
    )


def united(
    left: Sequence[tuple[int, int]], right: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the union of ranges of numbers, in order."""
    merged: list[tuple[int, int]] = []
    for first, stop in sorted((*left, *right)):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((first, stop))
    return merged


def numbers_outside(skipped: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Yield the numbers from 0 on that are in no range."""
    number = 0
    for first, stop in sorted(skipped):
        yield from range(number, first)
        number = stop
    while True:
        yield number
        number += 1


def _refuse_larger_than_file(chunk: Chunk, end: LogEnd) -> None:
    largest = int(chunk.sizes.max(initial=0))
    if largest + END_FILE_MIN_BLANK_SIZE > end.file_size:
        raise RefusedMessageError(
            f"a record of {largest} bytes does not fit a CommitLog file of {end.file_size} bytes",
            hint="the store has smaller files than when the tasks began; run the write again",
        )


def _queue_offsets(chunk: Chunk, end: LogEnd) -> Numbers:
    """Return the queue offset of each record, and move the queues on."""
    indexes = chunk.queue_indexes
    counts = np.bincount(indexes, minlength=len(chunk.queues))
    # Of a filtered chunk a queue may have no record left, and then its offset is not asked for.
    bases = np.array(
        [
            end.first_offset(queue) if count else 0
            for queue, count in zip(chunk.queues, counts.tolist(), strict=True)
        ],
        dtype=np.int64,
    )
    for queue, base, count in zip(chunk.queues, bases.tolist(), counts.tolist(), strict=True):
        if count:
            end.queues[queue] = base + count
    # The how-manieth of its queue each record is: its rank in an order that keeps theirs.
    order = np.argsort(indexes, kind="stable")
    ranks = np.empty(len(indexes), dtype=np.int64)
    ranks[order] = np.arange(len(indexes)) - np.repeat(np.cumsum(counts) - counts, counts)
    offsets: Numbers = bases[indexes] + ranks
    return offsets


def _queue_ends(
    chunk: Chunk, queue_offsets: Numbers, part: slice
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return next offset and bytes of each queue that has records in a part of a chunk."""
    indexes = chunk.queue_indexes[part]
    count = len(chunk.queues)
    sizes = np.zeros(count, dtype=np.int64)
    np.add.at(sizes, indexes, chunk.sizes[part])
    ends = np.full(count, -1, dtype=np.int64)
    np.maximum.at(ends, indexes, queue_offsets[part] + 1)
    return {
        queue: (end, size)
        for queue, end, size in zip(chunk.queues, ends.tolist(), sizes.tolist(), strict=True)
        if end >= 0
    }


def _put_times(records: ByteArray, starts: Numbers, store_timestamp_ms: int) -> None:
    is_v6 = (records[starts + _SYS_FLAG_LAST_BYTE_AT] & BORN_HOST_V6_FLAG) != 0
    times = np.full(len(starts), store_timestamp_ms, dtype=np.int64)
    _put(records, starts + _STORE_TIME_AT + _V6_EXTRA_BYTES * is_v6, times)
    born_at = starts + _BORN_AT
    born = records[born_at[:, None] + _EIGHT].view(">i8").reshape(-1)
    missing = born == BORN_AT_STORE
    _put(records, born_at[missing], times[missing])


def _put(records: ByteArray, places: Numbers, numbers: Numbers) -> None:
    """Write 8-byte numbers, big-endian, at places."""
    records[places[:, None] + _EIGHT] = numbers.astype(">i8").view(np.uint8).reshape(-1, 8)
