"""Check a byte range of the log: every record, its queue entries and its index items.

Law: the range is read once, piece by piece; what is held is a window of the file and one block of
records' numbers, whatever the range or the file. Nothing is done record by record in Python.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from rocketstore.format.properties import decode_properties
from rocketstore.format.queue_entry import MAX_QUEUE_OFFSET
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.jobs.audit import runs
from rocketstore.pipeline.jobs.audit.entry_check import (
    DELAY_TOPIC,
    Expected,
    QueueEntries,
    passing_over_deleted,
)
from rocketstore.pipeline.jobs.audit.facts import (
    NO_PLACE,
    ChainFacts,
    DamageFacts,
    QueueFacts,
    SplitFacts,
)
from rocketstore.pipeline.jobs.audit.index_check import IndexPlace, RangeItems
from rocketstore.pipeline.jobs.audit.queue_numbers import QueueNumbers, TaskQueue
from rocketstore.scan import kernels
from rocketstore.scan.columns import Column
from rocketstore.scan.window import scan_window

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from rocketstore.pipeline.jobs.audit.store_files import StoreFile
    from rocketstore.scan.columns import RecordColumns
    from rocketstore.scan.scanner import ScanBatch

    Int64Array: TypeAlias = npt.NDArray[np.int64]

BLOCK_RECORDS: Final = 262_144
"""Records whose entries are compared at once: 20 MB of numbers, and one read per queue."""

LIGHT_QUEUE_PREFIX: Final = "%LMQ%"
_KEPT: Final = [
    Column.QUEUE_OFFSET,
    Column.PHYSICAL_OFFSET,
    Column.SIZE,
    Column.TAGS_CODE,
    Column.STORE_TIMESTAMP,
    Column.DELAY_LEVEL,
]
_OFFSET, _PHYSICAL, _SIZE, _TAGS, _STORED, _LEVEL, _QUEUE, _IS_EXTRA = range(8)
"""Columns of a block: those of `_KEPT`, the queue's number, and whether it is an extra queue."""


class SplitTask(NamedTuple):
    """A byte range of one CommitLog file.

    Attributes
    ----------
    queue_directory
        ``consumequeue`` as a path inside the store's file system.
    log_file_bytes, queue_file_bytes
        What files should have.
    indexes
        Index files; None when the store has no index.
    data_stop
        Position behind which the file holds zeros and nobody writes; None: to be looked up.
    """

    location: str
    file: StoreFile
    start: int
    stop: int
    queue_directory: str
    log_file_bytes: int
    queue_file_bytes: int
    indexes: tuple[IndexPlace, ...] | None
    data_stop: int | None = None


def check_split(task: SplitTask) -> SplitFacts:
    """Return what stands in a byte range.

    Raises
    ------
    StoreError
        Something cannot be read.
    """
    base = task.file.base
    check = _SplitCheck(task)
    files, _ = files_at(task.location)
    is_read = False
    with passing_over_deleted():
        with opened(files, task.file.path) as file:
            data_stop = task.data_stop
            if data_stop is None:
                data_stop = min(task.file.size, file.data_stop(task.file.size))
            batches = scan_window(
                file,
                base=base,
                # A file cut short ends in zeros: so repair and the next opening will have it.
                size=task.log_file_bytes,
                start=task.start,
                stop=task.stop,
                data_stop=data_stop,
                whole_damage=True,
            )
            for batch in batches:
                check.take(batch)
        is_read = True
    if not is_read:
        return SplitFacts(base, base + task.start, base + task.stop, is_gone=True)
    return check.facts()


class _Chain:
    """A chain that is being read: its facts, and the runs of each of its queues."""

    def __init__(self, start: int) -> None:
        self.facts = ChainFacts(start, start)
        self.queues: dict[int, _QueueRuns] = {}


class _QueueRuns:
    def __init__(self, *, is_extra: bool) -> None:
        self.count = 0
        self.first = NO_PLACE
        self.last = -1
        self.backed: list[runs.Runs] = []
        self.missing: list[runs.Runs] = []
        self.is_extra = is_extra


class _SplitCheck:
    """Takes batches of a scan and compares them block by block."""

    def __init__(self, task: SplitTask) -> None:
        self._task = task
        self._files, _ = files_at(task.location)
        self._numbers = QueueNumbers()
        self._entries: dict[int, QueueEntries] = {}
        self._chains: list[_Chain] = []
        self._damage: list[DamageFacts] = []
        self._rows: list[Int64Array] = []
        self._row_count = 0
        self._items: list[tuple[Int64Array, Int64Array]] = []
        self._place = np.empty((2, 4096), dtype=np.int64)
        self._reach: int | None = None
        start = task.file.base + task.start
        self._range = (
            None if task.indexes is None else RangeItems(task.location, task.indexes, start)
        )

    # --- what a scan gives ----------------------------------------------------------------------

    def take(self, batch: ScanBatch) -> None:
        """Take a batch; it borrows the window, so what is kept is copied."""
        for one in batch.damage:
            extent = one.range
            facts = DamageFacts(extent.start, extent.stop, one.reason.value, one.evidence)
            self._damage.append(facts)
        if len(batch.columns):
            self._take_records(batch.columns)
        elif not self._chains:
            # Only records in front of the range so far.
            self._reach = batch.end_of_data
        for blank in batch.blanks:
            chain = self._chain_at(blank.physical_offset)
            chain.facts.stop = blank.physical_offset + blank.size
            chain.facts.has_blank = True

    def _chain_at(self, start: int) -> _Chain:
        """Return the chain that a record or blank at `start` continues, else a new one."""
        if not self._chains or self._chains[-1].facts.stop != start:
            self._chains.append(_Chain(start))
        return self._chains[-1]

    def _take_records(self, columns: RecordColumns) -> None:
        starts = columns.physical_offset
        stops = starts + columns.size
        breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
        for first, behind in itertools.pairwise([0, *breaks.tolist(), len(starts)]):
            facts = self._chain_at(int(starts[first])).facts
            facts.stop = int(stops[behind - 1])
            facts.record_count += behind - first
            facts.record_bytes += int(columns.size[first:behind].sum())
            facts.body_bytes += int(columns.body_size[first:behind].sum())
            facts.last_ms = int(columns.store_timestamp[behind - 1])
            facts.latest_ms = max(facts.latest_ms, int(columns.store_timestamp[first:behind].max()))
        numbers = self._numbers.of(columns)
        has_place = (
            (numbers >= 0)
            & (columns.queue_offset >= 0)
            & (columns.queue_offset <= MAX_QUEUE_OFFSET)
            & (columns.queue_id >= 0)
        )
        rows = np.empty((len(columns), 8), dtype=np.int64)
        for at, column in enumerate(_KEPT):
            rows[:, at] = columns.cols[:, column]
        rows[:, _QUEUE] = numbers
        rows[:, _IS_EXTRA] = 0
        if not has_place.all():
            rows = rows[has_place]
        self._rows.append(rows)
        self._row_count += len(rows)
        self._take_extra_queues(columns, has_place)
        if self._range is not None:
            self._take_items(columns)
        if self._row_count >= BLOCK_RECORDS:
            # The last record may reach behind the range; items that point there are the next's.
            self._compare(min(int(stops[-1]), self._task.file.base + self._task.stop))

    def _take_extra_queues(self, columns: RecordColumns, has_place: npt.NDArray[np.bool_]) -> None:
        listed = np.empty(len(columns), dtype=np.int64)
        cols = np.ascontiguousarray(columns.cols)
        count = kernels.list_extra_queues(columns.buffer, cols, listed)
        found = []
        for row in listed[:count].tolist():
            if not has_place[row]:
                continue
            kept = columns.cols[row, _KEPT].tolist()
            for queue, offset in _extra_queues(columns, row):
                found.append([offset, *kept[1:], self._numbers.number_of(queue), 1])
        if found:
            self._rows.append(np.array(found, dtype=np.int64))

    def _take_items(self, columns: RecordColumns) -> None:
        cols = np.ascontiguousarray(columns.cols)
        while True:
            rows, hashes = self._place
            count = kernels.list_items(columns.buffer, cols, rows, hashes)
            if count >= 0:
                break
            self._place = np.empty((2, 2 * rows.size), dtype=np.int64)
        offsets = columns.physical_offset[rows[:count]]
        self._items.append((offsets, hashes[:count].copy()))

    # --- comparing a block ----------------------------------------------------------------------

    def _compare(self, stop: int) -> None:
        """Compare the records before the physical offset `stop` that were not compared yet."""
        rows = np.concatenate([np.empty((0, 8), np.int64), *self._rows])
        self._rows, self._row_count = [], 0
        starts = np.array([chain.facts.start for chain in self._chains], dtype=np.int64)
        if len(rows):
            chain = np.searchsorted(starts, rows[:, _PHYSICAL], side="right") - 1
            self._compare_entries(rows, chain)
        if self._range is None:
            return
        none = np.empty(0, dtype=np.int64)
        offsets = np.concatenate([none, *(offsets for offsets, _ in self._items)])
        hashes = np.concatenate([none, *(hashes for _, hashes in self._items)])
        self._items = []
        lacking = self._range.match(stop, offsets, hashes)
        of_chain = np.searchsorted(starts, lacking, side="right") - 1
        for at in np.unique(of_chain).tolist():
            facts = self._chains[at].facts
            facts.lacking_count += int((of_chain == at).sum())
            facts.first_lacking = min(facts.first_lacking, int(lacking[of_chain == at][0]))

    def _compare_entries(self, rows: Int64Array, chain: Int64Array) -> None:
        # Extra queues keep the plain hash of the tags, and nobody misses their entries.
        group = (chain * len(self._numbers) + rows[:, _QUEUE]) * 2 + rows[:, _IS_EXTRA]
        small = np.int16 if int(group.max()) < 2**15 else np.int64
        order = np.argsort(group.astype(small), kind="stable")
        ordered = group[order]
        bounds = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(order)]
        for begin, behind in itertools.pairwise(bounds):
            number, is_extra = divmod(int(ordered[begin]), 2)
            at, queue = divmod(number, len(self._numbers))
            block = rows[order[begin:behind]]
            self._compare_queue(self._chains[at], queue, block, is_extra=bool(is_extra))

    def _compare_queue(
        self, chain: _Chain, queue: int, block: Int64Array, *, is_extra: bool
    ) -> None:
        is_delayed = (block[:, _LEVEL] > 0) & (not is_extra)
        is_delayed &= self._numbers.queues[queue].topic == DELAY_TOPIC
        offsets = block[:, _OFFSET]
        compared = self._queue_entries(queue).compare(
            Expected(
                offsets,
                block[:, _PHYSICAL],
                block[:, _SIZE],
                block[:, _TAGS],
                np.where(is_delayed, block[:, _STORED], -1),
            )
        )
        known = chain.queues.get(queue)
        if known is None:
            known = chain.queues[queue] = _QueueRuns(is_extra=is_extra)
        known.backed.append(runs.runs_of(offsets[compared.agrees]))
        if is_extra:
            return
        known.is_extra = False
        known.count += len(block)
        known.first = min(known.first, int(offsets.min()))
        known.last = max(known.last, int(offsets.max()))
        known.missing.append(runs.runs_of(offsets[~compared.agrees]))
        facts = chain.facts
        facts.placed_count += len(block)
        facts.agreed_count += int(compared.agrees.sum())
        facts.contradicted_count += int(compared.contradicts.sum())

    def _queue_entries(self, number: int) -> QueueEntries:
        known = self._entries.get(number)
        if known is None:
            queue = self._numbers.queues[number]
            directory = f"{self._task.queue_directory}/{queue.name}/{queue.queue_id}"
            # A topic that is no directory's name must not lead out of this one.
            is_name = queue.name not in {"", ".", ".."} and not {"/", "\0"} & set(queue.name)
            size = self._task.queue_file_bytes
            empty = QueueEntries.none(self._files)
            known = QueueEntries.at(self._files, directory, size) if is_name else empty
            self._entries[number] = known
        return known

    # --- what is said ---------------------------------------------------------------------------

    def facts(self) -> SplitFacts:
        """Compare what is left and return everything."""
        task, base = self._task, self._task.file.base
        self._compare(base + task.stop)
        extents = [(chain.facts.start, chain.facts.stop) for chain in self._chains]
        chains = np.array(extents, dtype=np.int64).reshape(-1, 2)
        # Without a batch of its own, the record in front ends where the first chain begins.
        reach = self._reach
        if reach is None:
            reach = extents[0][0] if extents else base
        for chain in self._chains:
            chain.facts.queues = list(self._queue_facts(chain))
        return SplitFacts(
            base,
            base + task.start,
            base + task.stop,
            [chain.facts for chain in self._chains],
            self._damage,
            [] if self._range is None else self._range.stray(chains, reach),
        )

    def _queue_facts(self, chain: _Chain) -> Iterator[QueueFacts]:
        for number, found in chain.queues.items():
            queue = self._numbers.queues[number]
            yield QueueFacts(
                queue.topic,
                queue.queue_id,
                found.count,
                found.first,
                found.last,
                runs.pairs(runs.joined(found.backed)),
                runs.pairs(runs.joined(found.missing)),
                found.is_extra,
            )


def _extra_queues(columns: RecordColumns, row: int) -> Iterator[tuple[TaskQueue, int]]:
    """Yield the extra queues of a multi-dispatch record (spec F8)."""
    properties = decode_properties(columns.properties(row))
    names = properties.get("INNER_MULTI_DISPATCH", "").split(",")
    offsets = properties.get("INNER_MULTI_QUEUE_OFFSET", "").split(",")
    if not names[0] or len(names) != len(offsets):
        return
    for name, offset in zip(names, offsets, strict=True):
        if offset.isascii() and offset.isdigit() and int(offset) <= MAX_QUEUE_OFFSET:
            own = int(columns.queue_id[row])
            # As in `queue_expectation.extra_queue_ids`, which a task may not import.
            for queue_id in {0, own} if name.startswith(LIGHT_QUEUE_PREFIX) else {own}:
                yield TaskQueue(name.encode(), queue_id), int(offset)
