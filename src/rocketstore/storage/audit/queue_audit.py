"""Compare ConsumeQueues with what the log calls for, without holding either in memory.

Records come in log order; each batch asks its queues for the entries at the records' queue offsets
and compares. What remains of a queue, entries that no record called for, is judged at the end:
places of lost records, entries that point behind the log or at something else.

Law: nothing is written, and a queue offset is never moved: the answer is always "what should stand
at this place of this queue".
"""

from __future__ import annotations

import itertools
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from rocketstore.format.markers import CONSUME_QUEUE_EXT_DIRECTORY
from rocketstore.format.queue_entry import (
    ENTRY_SIZE_BYTES,
    MAX_EXT_ADDRESS,
    entry_array,
    filler_mask,
    is_likely_beginning,
    kept_place_mask,
    written_mask,
)
from rocketstore.format.record import FIXED_SIZE
from rocketstore.scan import kernels
from rocketstore.storage.audit.intervals import Intervals
from rocketstore.storage.files.pread_files import OpenFiles, PreadFiles
from rocketstore.storage.queues.queue_table import is_directory_name
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.storage.audit.queue_expectation import ExpectedEntries
    from rocketstore.units import ByteRange

    Int64Array: TypeAlias = npt.NDArray[np.int64]
    BoolArray: TypeAlias = npt.NDArray[np.bool_]

_CHUNK_ENTRIES: Final = 65_536


class UnbackedKind(Enum):
    """What entries without an intact record are."""

    EXPIRED = "expired"
    """Their records were deleted with old log files."""
    FILLER = "filler"
    """Fillers in front of the first message, or kept places."""
    LOST = "lost"
    """They point into damage: the places of lost records."""
    UNWRITTEN = "unwritten"
    """Zeros between entries; 4.9 takes them for the queue's end."""
    KEPT = "kept"
    """Kept places: given out to records that were lost with the log's end."""
    STALE = "stale"
    """They point at or behind the log's end."""
    BEYOND = "beyond"
    """They point behind the last log file: a file is gone, or was never seen again."""
    WRONG = "wrong"
    """They point at something else: another queue's record, or no record's start."""

    @property
    def is_hole(self) -> bool:
        """Whether such an entry may stay: it keeps a place."""
        return self in {UnbackedKind.FILLER, UnbackedKind.LOST, UnbackedKind.KEPT}


class LogBounds(NamedTuple):
    """Physical offsets: the first file's start, the log's end, the last file's stop."""

    min: int
    end: int
    files_stop: int
    old: Sequence[ByteRange] = ()
    """What an earlier log left behind the end."""


class Unbacked(NamedTuple):
    """Neighbouring entries without an intact record."""

    kind: UnbackedKind
    start: int
    stop: int
    """Queue offsets."""
    is_tail: bool
    """Nothing that stays comes behind them."""


class AuditedQueue:
    """One queue: its files, and which of its entries have a record.

    Attributes
    ----------
    backed
        Queue offsets whose entry agrees with an intact record.
    missing
        Queue offsets of records whose entry is absent or says something else, `backed` ones
        included: two records may claim one place.
    impossible
        Records whose number cannot be, with their physical offsets, in log order.
    """

    def __init__(self, key: QueueKey, files: PreadFiles) -> None:
        self.key = key
        self.files = files
        self.backed = Intervals()
        self.missing = Intervals()
        self.impossible: list[tuple[int, int]] = []
        self._number_stop: int | None = None
        self._undecided: tuple[int, int] | None = None
        self._last_physical = 0

    @property
    def first_offset(self) -> int:
        """Queue offset of the first place on disk."""
        return max(0, self.files.min_offset) // ENTRY_SIZE_BYTES

    @property
    def place_count(self) -> int:
        """One past the last place on disk, used or not."""
        return self.files.max_offset // ENTRY_SIZE_BYTES

    def read(self, start: int, count: int) -> EntryArray:
        """Return entries from queue offset `start`, zeros where no file or byte is."""
        content = bytearray(count * ENTRY_SIZE_BYTES)
        at, stop = start * ENTRY_SIZE_BYTES, (start + count) * ENTRY_SIZE_BYTES
        begin = at
        while at < stop:
            file = self.files.find(at)
            if file is None:
                following = self.files.next_file(at)
                if following is None or following.base >= stop:
                    break
                at = following.base
                continue
            piece = self.files.read(at, min(stop, file.range.stop) - at)
            if not piece:
                break
            content[at - begin : at - begin + len(piece)] = piece
            at += len(piece)
        return entry_array(content)

    def parts(self, first: int, behind: int) -> Iterator[tuple[int, int, bool]]:
        """Yield the parts of [first, behind), each with whether a file holds its places."""
        at = first
        for file in self.files.files:
            low = file.base // ENTRY_SIZE_BYTES
            high = min(behind, -(-file.range.stop // ENTRY_SIZE_BYTES))
            if high <= at:
                continue
            if at < low:
                yield at, min(low, behind), False
                at = low
            if at < high:
                yield at, high, True
                at = high
        if at < behind:
            yield at, behind, False

    def end(self) -> int:
        """Return one past the last entry that is not zeros."""
        stop = self.place_count
        while stop > self.first_offset:
            start = max(self.first_offset, stop - _CHUNK_ENTRIES)
            content = self.read(start, stop - start).view(np.uint8)
            last = int(kernels.last_nonzero(content, 0, content.size))
            if last >= 0:
                return start + last // ENTRY_SIZE_BYTES + 1
            stop = start
        return stop

    def believed(self, numbers: Int64Array, physical_offsets: Int64Array) -> BoolArray:
        """Return which records, in log order, may have the queue offsets that they state.

        A record's header has no checksum. A number that so many messages would have to precede as
        have no room in front of the record is not believed: the places before it would fill the
        disk. The rule is that of dispatch (`EntryDecisions`).
        """
        places = max(1, self.files.file_size // ENTRY_SIZE_BYTES)
        if self._number_stop is None:
            self._last_physical = int(physical_offsets[0])
            self._number_stop = self.end()
            self._decide_beginning(int(numbers[0]))
            if not self.files.files and not self._number_stop:
                begins = _beginning(numbers, physical_offsets, places)
                if begins is None and len(numbers) == 1 and numbers[0] >= 0:
                    # Only the queue's next record tells.
                    self._number_stop = None
                    self._undecided = int(numbers[0]), int(physical_offsets[0])
                    return np.zeros(1, dtype=np.bool_)
                self._number_stop = begins or 0
        stop, last = self._number_stop, self._last_physical
        believed = np.ones(len(numbers), dtype=np.bool_)
        if int(numbers.min()) < 0 or int(numbers.max()) >= stop + places:
            pairs = zip(numbers.tolist(), physical_offsets.tolist(), strict=True)
            for row, (number, at) in enumerate(pairs):
                room = max(at - last, 0) // FIXED_SIZE + places
                if not 0 <= number <= stop + room:
                    believed[row] = False
                    self.impossible.append((number, at))
                    continue
                stop, last = max(stop, number + 1), at
        else:
            stop, last = max(stop, int(numbers.max()) + 1), int(physical_offsets[-1])
        self._number_stop, self._last_physical = stop, last
        return believed

    def _decide_beginning(self, following: int | None) -> None:
        """Believe the number that a queue without files would begin with, or do not."""
        if self._undecided is None:
            return
        (number, at), self._undecided = self._undecided, None
        places = max(1, self.files.file_size // ENTRY_SIZE_BYTES)
        if following is None or 0 <= following - number <= places:
            self.missing.add(number, number + 1)
            self._number_stop = number + 1
        else:
            self.impossible.append((number, at))

    def settle(self) -> None:
        """Decide what waits for a record that did not come."""
        self._decide_beginning(None)

    def truly_missing(self) -> Iterator[tuple[int, int]]:
        """Yield the runs of queue offsets that need an entry and have none that agrees."""
        for start, stop in self.missing:
            yield from self.backed.gaps(start, stop)


class QueueAudit:
    """All queues of a store.

    Parameters
    ----------
    directory
        ``consumequeue`` of the store.
    file_size
        Bytes of a queue file.
    """

    def __init__(self, directory: Path, file_size: int) -> None:
        self._directory = directory
        self._file_size = file_size
        self._open_files = OpenFiles()
        self.queues: dict[QueueKey, AuditedQueue] = {}
        self.without_queue: dict[QueueKey, int] = {}
        """Records whose topic cannot be a directory."""
        for key in listed_queues(directory):
            self._add(key)

    def _add(self, key: QueueKey) -> AuditedQueue:
        files = PreadFiles(
            (self._directory / key.topic / str(key.queue_id),),
            open_files=self._open_files,
            file_size=self._file_size,
        )
        queue = self.queues[key] = AuditedQueue(key, files)
        return queue

    def close(self) -> None:
        """Let go of the files."""
        self._open_files.close()

    def compare(self, expected: ExpectedEntries, keys: Sequence[QueueKey]) -> int:
        """Compare a batch of expected entries with what stands in the queues.

        Returns
        -------
        int
            End of the last record whose entry agrees; 0 when none does.
        """
        end = 0
        for number, batch in expected.by_queue():
            key = keys[number]
            queue = self.queues.get(key)
            if queue is None:
                if batch.is_extra.all():
                    continue  # 4.9 writes extra queues only when that is switched on
                if not is_directory_name(key.topic):
                    self.without_queue[key] = self.without_queue.get(key, 0) + len(batch.entries)
                    continue
                queue = self._add(key)
            end = max(end, self._compare(queue, batch))
        return end

    def _compare(self, queue: AuditedQueue, batch: ExpectedEntries) -> int:
        offsets = batch.queue_offset
        found = _gather(queue, offsets)
        agrees = (found["physical_offset"] == batch.entries["physical_offset"]) & (
            found["record_size"] == batch.entries["record_size"]
        )
        agrees &= _tags_agree(found["tags_code"], batch) | self._are_extended(queue, found)
        queue.backed.add_numbers(offsets[agrees])
        own = ~batch.is_extra
        if own.any():
            believed = queue.believed(offsets[own], batch.entries["physical_offset"][own])
            queue.missing.add_numbers(offsets[own][believed & ~agrees[own]])
        stops = batch.entries["physical_offset"] + batch.entries["record_size"]
        return int(stops[agrees].max(initial=0))

    def _are_extended(self, queue: AuditedQueue, entries: EntryArray) -> BoolArray:
        """Return whose tags stand in an extension file (spec F7), where the queue has one."""
        extended: BoolArray = entries["tags_code"] <= MAX_EXT_ADDRESS
        if extended.any():
            directory = self._directory.with_name(CONSUME_QUEUE_EXT_DIRECTORY)
            files = (directory / queue.key.topic / str(queue.key.queue_id)).glob("*")
            extended &= any(files)
        return extended

    def unbacked(
        self, queue: AuditedQueue, *, log: LogBounds, lost: Sequence[ByteRange]
    ) -> list[Unbacked]:
        """Return the entries of a queue that no intact record backs, in runs of one kind.

        Parameters
        ----------
        queue
            After all records were compared.
        log
            Physical offsets of the log.
        lost
            Ranges of the log that hold no kept record, in order.
        """
        queue.settle()
        end = max(queue.end(), queue.backed.stop)
        runs: list[Unbacked] = []
        for first, behind in queue.backed.gaps(queue.first_offset, end):
            for begin, end_of_part, has_file in queue.parts(first, behind):
                if not has_file:  # however far away a stray file lies behind it
                    unwritten = UnbackedKind.UNWRITTEN
                    runs.append(Unbacked(unwritten, begin, end_of_part, is_tail=False))
                    continue
                for start in range(begin, end_of_part, _CHUNK_ENTRIES):
                    stop = min(end_of_part, start + _CHUNK_ENTRIES)
                    kinds = _kinds(queue.read(start, stop - start), log, lost)
                    runs += _runs_of_kinds(kinds, start)
        return _with_tails(_merged(runs), max(end, queue.missing.stop), queue)


def _beginning(numbers: Int64Array, physical_offsets: Int64Array, places: int) -> int | None:
    """Return the number that a queue without files begins with.

    It may be any, because old files of log and queue may be gone. It is a forged one where neither
    the log in front of its record has room for so many messages, nor the next record goes on there.
    """
    following = [*numbers[1:].tolist(), None]
    rows = zip(numbers.tolist(), physical_offsets.tolist(), following, strict=True)
    for number, at, after in rows:
        is_followed = after is not None and 0 <= after - number <= places
        if number >= 0 and (is_likely_beginning(number, at) or is_followed):
            return int(number)
    return None


def _gather(queue: AuditedQueue, offsets: Int64Array) -> EntryArray:
    """Return the entries at some queue offsets, reading neighbours at once."""
    order = np.argsort(offsets, kind="stable")
    ordered = offsets[order]
    found = np.zeros(len(offsets), dtype=entry_array(b"").dtype)
    breaks = np.flatnonzero(np.diff(ordered) > _CHUNK_ENTRIES) + 1
    bounds = [0, *breaks.tolist(), len(ordered)]
    for begin, behind in itertools.pairwise(bounds):
        start = int(ordered[begin])
        # One flipped offset must not make this read a whole disk of nothing.
        stop = min(int(ordered[behind - 1]) + 1, max(queue.place_count, start))
        entries = queue.read(start, stop - start)
        rows = order[begin:behind]
        inside = offsets[rows] < stop
        found[rows[inside]] = entries[offsets[rows[inside]] - start]
    return found


def _tags_agree(tags_code: Int64Array, batch: ExpectedEntries) -> BoolArray:
    agrees = tags_code == batch.entries["tags_code"]
    # A deliver time follows the levels set when it was dispatched; a hash is smaller (K-S1).
    agrees |= ~batch.is_exact & (tags_code >= batch.store_timestamp)
    mask: BoolArray = agrees
    return mask


def _kinds(
    entries: EntryArray, log: LogBounds, lost: Sequence[ByteRange]
) -> npt.NDArray[np.object_]:
    offsets = entries["physical_offset"].astype(np.int64)
    kinds = np.full(len(entries), UnbackedKind.WRONG, dtype=object)
    if lost:
        starts = np.array([place.start for place in lost], dtype=np.int64)
        stops = np.array([place.stop for place in lost], dtype=np.int64)
        at = np.searchsorted(starts, offsets, side="right") - 1
        kinds[(at >= 0) & (offsets < stops[np.maximum(at, 0)])] = UnbackedKind.LOST
    kinds[offsets >= log.end] = UnbackedKind.STALE
    kinds[offsets >= log.files_stop] = UnbackedKind.BEYOND
    for place in log.old:
        kinds[(offsets >= max(place.start, log.end)) & (offsets < place.stop)] = UnbackedKind.WRONG
    kinds[offsets < log.min] = UnbackedKind.EXPIRED
    kinds[~written_mask(entries)] = UnbackedKind.WRONG
    kinds[kept_place_mask(entries)] = UnbackedKind.KEPT
    kinds[filler_mask(entries)] = UnbackedKind.FILLER
    kinds[empty_mask(entries)] = UnbackedKind.UNWRITTEN
    return kinds


def empty_mask(entries: EntryArray) -> BoolArray:
    """Return which entries are zeros throughout."""
    mask: BoolArray = (
        (entries["physical_offset"] == 0)
        & (entries["record_size"] == 0)
        & (entries["tags_code"] == 0)
    )
    return mask


def _runs_of_kinds(kinds: npt.NDArray[np.object_], first: int) -> list[Unbacked]:
    if not kinds.size:
        return []
    breaks = np.flatnonzero(kinds[1:] != kinds[:-1]) + 1
    bounds = [0, *breaks.tolist(), kinds.size]
    return [
        Unbacked(kinds[begin], first + begin, first + behind, is_tail=False)
        for begin, behind in itertools.pairwise(bounds)
    ]


def _merged(runs: list[Unbacked]) -> list[Unbacked]:
    merged: list[Unbacked] = []
    for run in runs:
        if merged and merged[-1].stop == run.start and merged[-1].kind is run.kind:
            merged[-1] = merged[-1]._replace(stop=run.stop)
        else:
            merged.append(run)
    return merged


def _with_tails(runs: list[Unbacked], end: int, queue: AuditedQueue) -> list[Unbacked]:
    """Mark runs that nothing follows: they are cut, or kept as places, but not filled."""
    missing_stop = max((stop for _, stop in queue.truly_missing()), default=0)
    marked = list(runs)
    at = len(marked) - 1
    while at >= 0 and marked[at].stop == end and marked[at].start >= missing_stop:
        if marked[at].kind not in TAIL_KINDS:
            break
        marked[at] = marked[at]._replace(is_tail=True)
        end = marked[at].start
        at -= 1
    return marked


TAIL_KINDS: Final = frozenset(
    {
        UnbackedKind.KEPT,
        UnbackedKind.STALE,
        UnbackedKind.BEYOND,
        UnbackedKind.WRONG,
        UnbackedKind.UNWRITTEN,
    }
)


def listed_queues(directory: Path) -> list[QueueKey]:
    """Return the queues that have a directory; as in 4.9, a name must be a number to count."""
    return [
        QueueKey(topic, int(name))
        for topic in _subdirectories(directory)
        for name in _subdirectories(directory / topic)
        if name.isascii() and name.isdigit() and str(int(name)) == name
    ]


def _subdirectories(directory: Path) -> list[str]:
    if not directory.is_dir():
        return []
    return sorted(path.name for path in directory.iterdir() if path.is_dir())
