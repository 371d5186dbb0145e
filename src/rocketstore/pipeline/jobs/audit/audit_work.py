"""The audit's first pass on workers: compare stretches of the log with queues and index.

It reads ranges of the log with the entries and index items of their records; the second pass
(`audit_judgement`) judges each queue and each index file by the rows that this one sends.

Law: rows are few and small where a store is healthy; a task lists no directory.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from rocketstore.format.batch_queue_entry import BatchEntry
from rocketstore.format.file_name import CONSUME_QUEUE_DIRECTORY, file_name, is_directory_name
from rocketstore.format.index_file import FIRST_ITEM
from rocketstore.format.queue_entry import ENTRY_DTYPE, ENTRY_SIZE_BYTES
from rocketstore.pipeline.jobs.audit import audit_plan
from rocketstore.pipeline.jobs.audit.audit_plan import AuditIndexFile, AuditTask, scanned
from rocketstore.pipeline.jobs.execution import row_batch
from rocketstore.places.files import OpenFile, StoreFile, files_at, opened, passing_over_deleted
from rocketstore.places.queue_files import QueueFiles, StoredFiles
from rocketstore.rules import expectation
from rocketstore.rules.batch_entries import entries_called_for
from rocketstore.rules.expectation import ExpectedEntries, ExpectedItems
from rocketstore.rules.log_rules import Stretch
from rocketstore.rules.queue_numbers import QueueNumbers
from rocketstore.scan.batch_search import stored_entries
from rocketstore.scan.queue_search import padded
from rocketstore.verification import index_rules, queue_rules
from rocketstore.verification.queue_rules import QueuePart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from rocketstore.native.row import ByteArray, Int64Array
    from rocketstore.units import QueueKey

FACTS: Final = (
    "target STRING, kind STRING, place BIGINT, last BIGINT, first BIGINT, size BIGINT, "
    "reached BIGINT, file STRING, who STRING, facts BINARY"
)
"""Rows that tasks send: target, kind, physical offset; for the other columns see `FactRow`."""

RUNS: Final = "target STRING, piece BIGINT, ordinal BIGINT, first BIGINT, count BIGINT"
"""Runs of queue offsets; see `judged_log`."""

BLOCK_RECORDS: Final = 131_072
"""Records that are compared at once."""

MOST_HELD: Final = 2**21
"""Most entries that wait until there are `_PER_READ` of a queue: a read opens a file."""

MOST_PARTS: Final = 65_536
"""Parts that a task holds before it sends them: some 60 MB."""

_PER_READ: Final = 16
_BATCH_ROWS: Final = 256


class FactRow(NamedTuple):
    """A row of `FACTS`.

    By `kind`: ``log`` and ``index`` are `facts` for the driver; a task of the log has sent so many
    other rows (`size`), and records are dispatched as far as `reached`. For a queue, ``parts`` are
    what each chain of a task says (`QueuePart`), from `place` to `last`, dispatched as far;
    ``entries`` are those that a batch queue is called for. For the index there are `size` keys
    ``lacking``, items ``repeated``, or ``backed``, the first of which has the number `first`;
    ``stray`` ones are numbers and physical offsets. The driver adds each `file` of `size` bytes
    that is ``listed``, and each consumer's ``position``, which is `first`.
    """

    target: str
    kind: str
    place: int
    last: int = -1
    first: int = 0
    size: int = 0
    reached: int = -1
    file: str | None = None
    who: str | None = None
    facts: bytes = b""

    @property
    def parts(self) -> Iterator[QueuePart]:
        """Content of a row of the kind ``parts``."""
        for *numbers, explained, backed, missing, stated in msgspec.msgpack.decode(self.facts):
            sets = zip((backed, missing, stated), (2, queue_rules.MISSING_COLUMNS, 2), strict=True)
            arrays = (np.array(one, np.int64).reshape(-1, width) for one, width in sets)
            yield QueuePart._make((*numbers, tuple(explained), *arrays))


def as_batches(rows: Iterable[Iterable[Any]], schema: str) -> Iterator[pa.RecordBatch]:
    """Yield rows, with values in the order of a schema's columns, in batches."""
    found = iter(rows)
    while group := list(itertools.islice(found, _BATCH_ROWS)):
        yield row_batch(group, schema)


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[FactRow]:
    """Yield the rows of batches of `FACTS`."""
    for batch in batches:
        columns = (column.to_pylist() for column in batch.columns)
        yield from map(FactRow._make, zip(*columns, strict=True))


def queue_target(key: QueueKey, kind: str = "queue") -> str:
    """Return the target under which the rows of a queue, or a ``batch`` one, are grouped."""
    return f"{kind}/{key.queue_id}/{key.topic}"


def stated_runs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the runs of queue offsets that records state, in rows of parts and entries."""
    return as_batches(itertools.chain.from_iterable(map(_runs_of, rows_of(batches))), RUNS)


def _runs_of(row: FactRow) -> Iterator[tuple[str, int, int, int, int]]:
    if row.kind == "parts":
        found = [(one.start, *run) for one in row.parts for run in one.stated.tolist()]
    else:
        entries = map(BatchEntry._make, stored_entries(row.facts).tolist())
        bases = ((one.base_offset, one.message_count) for one in entries)
        found = [(row.place, base, base - count) for base, count in bases]
    for number, (place, first, past) in enumerate(found):
        yield row.target, place, number, first, past - first


# --- the log ------------------------------------------------------------------------------------


def read_task(task: AuditTask) -> Iterator[pa.RecordBatch]:
    """Yield the findings of a task as rows of `FACTS`."""
    rows = _LogReader(task).rows() if task.cuts else _index_rows(task)
    return as_batches(rows, FACTS)


def _files_of(task: AuditTask, key: QueueKey, offsets: Int64Array) -> StoredFiles:
    """Return the files that have a queue's entries at some offsets, by their names, not listed."""
    files = task.irregular_queues.get(key)
    if files is None:
        size = task.sizes.consume_queue_file_bytes
        root = files_at(task.location)[1].rstrip("/")
        numbers = offsets * ENTRY_SIZE_BYTES // size
        changed = [*numbers[:-1][numbers[1:] != numbers[:-1]].tolist(), int(numbers[-1])]
        # An entry may lie in two files.
        bases = sorted({base for one in changed for base in (one * size, one * size + size)})
        place = f"{root}/{CONSUME_QUEUE_DIRECTORY}/{key}"
        named = [StoreFile(base, size, f"{place}/{file_name(base)}") for base in bases]
        files = named if is_directory_name(key.topic) else []
    return StoredFiles(task.location, files, spares_lost=True)


class _LogReader:
    """Reads the ranges of one task."""

    def __init__(self, task: AuditTask) -> None:
        self._task, self._items = task, _Items(task)
        self._numbers = QueueNumbers(task.batch_topics)
        self._stretches: list[Stretch] = []
        self._entries: list[ExpectedEntries] = []
        self._held_count = 0
        self._keys: list[ExpectedItems] = []
        self._batches: defaultdict[QueueKey, bytearray] = defaultdict(bytearray)
        self._parts: dict[tuple[int, int], QueuePart] = {}

    def rows(self) -> Iterator[FactRow]:
        """Yield what is found, then a row about the log and the rows before it."""
        count, reached = 0, -1
        for row in self._found():
            count, reached = count + 1, max(reached, row.reached)
            yield row
        facts = msgspec.msgpack.encode(self._stretches)
        yield FactRow("log", "log", self._task.edges[0], size=count, reached=reached, facts=facts)

    def _found(self) -> Iterator[FactRow]:
        task = self._task
        for cut, (begin, end) in zip(task.cuts, itertools.pairwise(task.edges), strict=True):
            stretch = Stretch(cut.segment.base, cut.segment.base + cut.start, is_gone=True)
            self._stretches.append(stretch)
            reached, count = begin, 0
            with passing_over_deleted():
                for batch in scanned(cut):
                    stretch.take(batch, task.latest_ms)
                    columns = batch.columns
                    if not len(columns):
                        continue
                    entries = expectation.expected_entries(columns, self._numbers, task.delays_ms)
                    self._entries.append(entries)
                    self._held_count += len(entries.entries)
                    for key, entry in entries_called_for(columns, self._numbers):
                        self._batches[key] += entry
                    if task.has_index:
                        self._keys.append(expectation.expected_items(columns))
                    count += len(columns)
                    reached = int(columns.physical_offset[-1]) + 1
                    if count >= BLOCK_RECORDS:
                        yield from self._compared(reached)
                        count = 0
                stretch.is_gone = False
            yield from self._compared(reached)
            for found in self._items.until(end):
                yield found.stray(np.arange(found.offsets.size))
        if self._entries:
            yield from self._compared_entries()
        yield from self._part_rows()

    def _compared(self, stop: int) -> Iterator[FactRow]:
        """Compare the records read so far, up to a physical offset; no fact is of two chains."""
        queue_count = len(self._numbers)
        if self._held_count >= max(BLOCK_RECORDS, min(MOST_HELD, _PER_READ * queue_count)):
            yield from self._compared_entries()
        # All are of the last cut: a task may have thousands.
        starts = np.array([chain.start for chain in self._stretches[-1].chains], dtype=np.int64)
        if self._keys:
            columns = map(np.concatenate, zip(*self._keys, strict=True))
            yield from self._compared_keys(ExpectedItems._make(columns), starts, stop)
        for key, content in self._batches.items():
            called = stored_entries(content)
            for rows in expectation.groups(starts.searchsorted(called["physical_offset"], "right")):
                place = int(called["physical_offset"][rows[0]])
                facts = called[rows].tobytes()
                yield FactRow(queue_target(key, "batch"), "entries", place, facts=facts)
        self._keys = []
        self._batches.clear()

    def _compared_entries(self) -> Iterator[FactRow]:
        """Add what the entries held say to the parts of their chain and queue."""
        # As bytes: numpy turns the numbers of entries around that it joins.
        held = (one._replace(entries=one.entries.view(np.uint8)) for one in self._entries)
        whole = ExpectedEntries._make(map(np.concatenate, zip(*held, strict=True)))
        chains = itertools.chain.from_iterable(one.chains for one in self._stretches)
        starts = np.array([chain.start for chain in chains], dtype=np.int64)
        self._entries, self._held_count = [], 0
        for number, block in whole._replace(entries=whole.entries.view(ENTRY_DTYPE)).by_queue():
            key = self._numbers.key(number)
            files = _files_of(self._task, key, block.queue_offset)
            found = queue_rules.entries_at(block.queue_offset, partial(padded, files))
            tags_codes = QueueFiles(self._task.location, key).extension.tags_codes
            of_chains = starts.searchsorted(block.entries["physical_offset"], side="right")
            for rows in expectation.groups(of_chains):
                is_whole = rows.size == len(found)
                some, there = (block, found) if is_whole else (block.rows(rows), found.take(rows))
                part = queue_rules.compare(some, there, tags_codes)
                # Extra queues are written only where that is switched on.
                if len(part.backed) or not some.is_extra.all():
                    place = int(of_chains[rows[0]]), number
                    self._parts[place] = queue_rules.added(self._parts.get(place), part)
            if len(self._parts) >= MOST_PARTS:
                yield from self._part_rows()

    def _part_rows(self) -> Iterator[FactRow]:
        """Yield a row for each queue, and forget the parts."""
        of_queues: defaultdict[int, list[QueuePart]] = defaultdict(list)
        for (_, number), part in self._parts.items():
            of_queues[number].append(part)
        for number, parts in of_queues.items():
            target, places = queue_target(self._numbers.key(number)), [one.start for one in parts]
            reached = max(one.dispatched_to for one in parts)
            facts = msgspec.msgpack.encode(parts, enc_hook=np.ndarray.tolist)
            row = FactRow(target, "parts", min(places), max(places), reached=reached)
            yield row._replace(facts=facts)
        self._parts.clear()

    def _compared_keys(
        self, keys: ExpectedItems, starts: Int64Array, stop: int
    ) -> Iterator[FactRow]:
        found = list(self._items.until(stop))
        none = np.empty(0, dtype=np.int64)
        offsets = np.concatenate([none, *(one.offsets for one in found)])
        hashes = np.concatenate([none, *(one.hashes for one in found)])
        stated = keys.physical_offset, keys.key_hash
        lacking, stray = index_rules.compare_items(stated, (offsets, hashes))
        if repeated := (offsets.size - stray.size) - (keys.key_hash.size - lacking.size):
            yield FactRow("index", "repeated", int(keys.physical_offset[0]), size=repeated)
        places = keys.physical_offset[lacking]
        places = places[places < self._task.items_end]
        for rows in expectation.groups(starts.searchsorted(places, side="right")):
            yield FactRow("index", "lacking", int(places[rows[0]]), size=rows.size)
        is_stray = np.zeros(offsets.size, dtype=np.bool_)
        is_stray[stray] = True
        bounds = np.cumsum([one.offsets.size for one in found])[:-1]
        for one, mask in zip(found, np.split(is_stray, bounds), strict=bool(found)):
            if mask.any():
                yield one.stray(np.flatnonzero(mask))
            backed = np.flatnonzero(~mask)
            for rows in expectation.groups(starts.searchsorted(one.offsets[backed], side="right")):
                first = int(backed[rows[0]])
                place, number = int(one.offsets[first]), one.first + first
                yield FactRow(f"index/{one.name}", "backed", place, first=number, size=rows.size)


# --- the index ----------------------------------------------------------------------------------


class _FoundItems(NamedTuple):
    """Neighbouring items of a file, of which the first has the number `first`."""

    name: str
    first: int
    offsets: Int64Array
    hashes: Int64Array

    def stray(self, rows: Int64Array) -> FactRow:
        """Return some of them, which no record calls for, as a row."""
        pairs = np.stack((rows + self.first, self.offsets[rows]))
        row = FactRow(f"index/{self.name}", "stray", int(pairs[1, 0]))
        return row._replace(facts=pairs.tobytes())


class _Items:
    """Goes through the items of index files along the log."""

    def __init__(self, task: AuditTask) -> None:
        self._task = task
        self._next: dict[AuditIndexFile, int | None] = dict.fromkeys(task.index_files)

    def until(self, stop: int) -> Iterator[_FoundItems]:
        """Yield the items of records before a physical offset that were not yielded yet."""
        layout = self._task.sizes.index_layout
        for index, known in self._next.items():
            with passing_over_deleted(), opened(self._task.location, index.path) as file:
                number = self._first(file, index) if known is None else known
                while number < index.stop:
                    count = min(index_rules.CHUNK_ITEMS, index.stop - number)
                    items = index_rules.read_items(partial(_bytes_of, file), layout, number, count)
                    offsets = items["physical_offset"].astype(np.int64)
                    inside = int(np.searchsorted(offsets, stop))
                    if inside:
                        hashes = items["key_hash"][:inside].astype(np.int64)
                        yield _FoundItems(index.name, number, offsets[:inside], hashes)
                    number += inside
                    if inside < count:
                        break
                self._next[index] = number

    def _first(self, file: OpenFile, index: AuditIndexFile) -> int:
        start, numbers = self._task.edges[0], range(FIRST_ITEM, index.stop)
        key = partial(audit_plan.item_offset, file, self._task.sizes.index_layout)
        return FIRST_ITEM + bisect.bisect_left(numbers, start, key=key)


def _index_rows(task: AuditTask) -> Iterator[FactRow]:
    index, layout = task.index_files[0], task.sizes.index_layout
    with passing_over_deleted(), opened(task.location, index.path) as file:
        read = partial(_bytes_of, file)
        facts = index_rules.check_index_file(index.name, read, layout, is_live=task.is_live)
        yield FactRow("index", "index", facts.first, facts=msgspec.msgpack.encode(facts))


def _bytes_of(file: OpenFile, position: int, size: int) -> ByteArray:
    content = np.empty(size, dtype=np.uint8)
    return content[: file.read_into(position, content.data)]
