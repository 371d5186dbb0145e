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
from rocketstore.format.file_name import (
    CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
    file_name,
    is_directory_name,
)
from rocketstore.format.index_file import FIRST_ITEM
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.jobs.audit import audit_plan
from rocketstore.pipeline.jobs.audit.audit_plan import passing_over_deleted, scanned
from rocketstore.pipeline.jobs.execution import row_batch
from rocketstore.pipeline.queues import StoredFiles, files_of
from rocketstore.pipeline.stores import StoreFile
from rocketstore.queue_extension.tags_codes import resolved
from rocketstore.scan.queue_search import padded
from rocketstore.verification import expectation, index_rules, queue_rules
from rocketstore.verification.batch_entries import entries_called_for, stored_entries
from rocketstore.verification.expectation import ExpectedEntries, ExpectedItems
from rocketstore.verification.log_rules import Stretch
from rocketstore.verification.queue_numbers import QueueNumbers
from rocketstore.verification.queue_rules import QueuePart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt
    import pyarrow as pa

    from rocketstore.pipeline.files import OpenFile
    from rocketstore.pipeline.jobs.audit.audit_plan import AuditIndexFile, AuditTask
    from rocketstore.units import QueueKey

    Int64Array = npt.NDArray[np.int64]

FACTS: Final = "target STRING, place LONG, kind STRING, facts BINARY, a LONG, b LONG, c LONG"
"""Rows that tasks send: for whom, at which physical offset, what, and three numbers by kind."""

BLOCK_RECORDS: Final = 131_072
"""Records that are compared at once."""

_BATCH_ROWS: Final = 256


class Row(NamedTuple):
    """A row of `FACTS`.

    The first pass sends, by `kind`: ``stretch`` and ``index`` to the driver; of a queue ``part``
    (`a` is how far it was dispatched),
    of a batch queue the ``entries`` that are called for; of the index ``lacking`` keys, ``backed``,
    ``stray`` and ``repeated`` items. The driver adds what is ``listed`` of a queue, and each
    consumer's ``position``. The second pass yields ``finding``, ``queue``, ``lacking``, ``stray``
    and ``sums``; ``stated`` are a part's runs.
    """

    target: str
    place: int
    kind: str
    facts: bytes = b""
    a: int = 0
    b: int = 0
    c: int = 0


def as_batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches of `FACTS`."""
    found = iter(rows)
    while group := list(itertools.islice(found, _BATCH_ROWS)):
        yield row_batch(group, FACTS)


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Yield the rows of batches of `FACTS`."""
    for batch in batches:
        yield from (Row(**row) for row in batch.to_pylist())


def queue_target(key: QueueKey, kind: str = "queue") -> str:
    """Return the name under which what belongs to a queue, or a ``batch`` one, comes together."""
    return f"{kind}/{key.queue_id}/{key.topic}"


def packed(facts: Any) -> bytes:
    """Return facts as bytes."""
    return msgspec.msgpack.encode(facts)


def part_of(row: Row) -> QueuePart:
    """Return what a row of the kind ``part`` says."""
    *numbers, backed, missing, stated = msgspec.msgpack.decode(row.facts)
    columns = ((backed, 2), (missing, queue_rules.MISSING_COLUMNS), (stated, 2))
    sets = (np.frombuffer(one, np.int64).reshape(-1, count) for one, count in columns)
    return QueuePart._make((*numbers, *sets))


def stated_runs(_: None, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the runs of queue offsets that records state: `a` first, `b` count, `c`th.

    A record that holds a batch is by itself, with a negative count: see `judged_log`.
    """
    for row in rows:
        if row.kind == "part":
            found = [(first, past - first) for first, past in part_of(row).stated.tolist()]
        else:
            entries = map(BatchEntry._make, stored_entries(row.facts).tolist())
            found = [(one.base_offset, -one.message_count) for one in entries]
        for number, (first, count) in enumerate(found):
            yield Row(row.target, row.place, "stated", b"", first, count, number)


# --- the log ------------------------------------------------------------------------------------


def read_task(task: AuditTask) -> Iterator[pa.RecordBatch]:
    """Yield what a task finds as rows of `FACTS`."""
    return as_batches(_LogReader(task).rows() if task.cuts else _index_rows(task))


class NamedFiles(StoredFiles):
    """The files of a queue by the names that they must have: no directory is listed."""

    def __init__(self, task: AuditTask, key: QueueKey) -> None:
        super().__init__(task.location, (), spares_lost=True)
        self.file_size = task.sizes.consume_queue_file_bytes
        root = files_at(task.location)[1].rstrip("/")
        is_name = is_directory_name(key.topic)
        self._directory = f"{root}/{CONSUME_QUEUE_DIRECTORY}/{key}" if is_name else ""

    def find(self, offset: int) -> StoreFile | None:
        """Return the file that would hold the byte at an offset."""
        base = offset - offset % self.file_size
        file = StoreFile(base, self.file_size, f"{self._directory}/{file_name(base)}")
        return file if self._directory else None

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of one file, zeros where none is."""
        left = min(size, self.file_size - offset % self.file_size)
        return super().read(offset, size) or bytes(left)


class _LogReader:
    """Reads the ranges of one task."""

    def __init__(self, task: AuditTask) -> None:
        self._task, self._items = task, _Items(task)
        self._numbers = QueueNumbers(task.batch_topics)
        self._entries: list[ExpectedEntries] = []
        self._keys: list[ExpectedItems] = []
        self._batches: defaultdict[QueueKey, bytearray] = defaultdict(bytearray)

    def rows(self) -> Iterator[Row]:
        task = self._task
        for cut in task.cuts:
            stretch = Stretch(cut.base, cut.base + cut.start, is_gone=True)
            reached, count = cut.items_start, 0
            with passing_over_deleted():
                for batch in scanned(cut, task.location, task.sizes.commit_log_file_bytes):
                    stretch.take(batch, task.latest_ms)
                    columns = batch.columns
                    if not len(columns):
                        continue
                    self._entries.append(
                        expectation.expected_entries(columns, self._numbers, task.delays_ms)
                    )
                    for key, entry in entries_called_for(columns, self._numbers):
                        self._batches[key] += entry
                    if task.has_index:
                        self._keys.append(expectation.expected_items(columns))
                    count += len(columns)
                    reached = int(columns.physical_offset[-1]) + 1
                    if count >= BLOCK_RECORDS:
                        yield from self._compared(stretch, reached)
                        count = 0
                stretch.is_gone = False
            yield from self._compared(stretch, reached)
            yield Row("stretch", stretch.start, "stretch", packed(stretch))
            for found in self._items.until(cut.items_stop):
                yield found.stray(np.arange(found.offsets.size))

    def _compared(self, stretch: Stretch, stop: int) -> Iterator[Row]:
        """Compare what was read so far, up to a physical offset; no row is of two chains."""
        starts = np.array([chain.start for chain in stretch.chains], dtype=np.int64)
        if self._entries:
            columns = map(np.concatenate, zip(*self._entries, strict=True))
            yield from self._compared_entries(ExpectedEntries._make(columns), starts)
        if self._keys:
            columns = map(np.concatenate, zip(*self._keys, strict=True))
            yield from self._compared_keys(ExpectedItems._make(columns), starts, stop)
        for key, content in self._batches.items():
            called = stored_entries(content)
            for rows in expectation.groups(starts.searchsorted(called["physical_offset"], "right")):
                place = int(called["physical_offset"][rows[0]])
                yield Row(queue_target(key, "batch"), place, "entries", called[rows].tobytes())
        self._entries, self._keys = [], []
        self._batches.clear()

    def _compared_entries(self, entries: ExpectedEntries, starts: Int64Array) -> Iterator[Row]:
        chains = starts.searchsorted(entries.entries["physical_offset"], side="right")
        for rows in expectation.groups(chains * len(self._numbers) + entries.queue_number):
            block = entries.rows(rows)
            key = self._numbers.key(int(block.queue_number[0]))
            odd = self._task.odd_queues.get(key)
            files = (
                NamedFiles(self._task, key)
                if odd is None
                else StoredFiles(self._task.location, odd, spares_lost=True)
            )
            found = queue_rules.entries_at(block.queue_offset, partial(padded, files))
            part = queue_rules.compare(block, found, partial(self._tags_codes, key))
            # Extra queues are written only where that is switched on.
            if len(part.backed) or not block.is_extra.all():
                *numbers, backed, missing, stated = part
                sets = (one.tobytes() for one in (backed, missing, stated))
                facts = packed((*numbers, *sets))
                yield Row(queue_target(key), part.start, "part", facts, part.dispatched_to)

    def _tags_codes(self, key: QueueKey, codes: Int64Array) -> Int64Array:
        """Return the tags codes that entries mean, some of which stand in the extension."""
        extension = files_of(self._task.location, CONSUME_QUEUE_EXT_DIRECTORY, key)
        return resolved(codes, StoredFiles(self._task.location, extension, spares_lost=True).read)

    def _compared_keys(self, keys: ExpectedItems, starts: Int64Array, stop: int) -> Iterator[Row]:
        found = list(self._items.until(stop))
        none = np.empty(0, dtype=np.int64)
        offsets = np.concatenate([none, *(one.offsets for one in found)])
        hashes = np.concatenate([none, *(one.hashes for one in found)])
        lacking, stray = index_rules.compare_items(
            (keys.physical_offset, keys.key_hash), (offsets, hashes)
        )
        if repeated := (offsets.size - stray.size) - (keys.key_hash.size - lacking.size):
            yield Row("index", int(keys.physical_offset[0]), "repeated", a=repeated)
        places = keys.physical_offset[lacking]
        places = places[places < self._task.items_end]
        for rows in expectation.groups(starts.searchsorted(places, side="right")):
            yield Row("index", int(places[rows[0]]), "lacking", a=rows.size)
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
                yield Row(f"index/{one.name}", place, "backed", a=rows.size, b=number)


# --- the index ----------------------------------------------------------------------------------


class _FoundItems(NamedTuple):
    """Neighbouring items of a file, of which the first has the number `first`."""

    name: str
    first: int
    offsets: Int64Array
    hashes: Int64Array

    def stray(self, rows: Int64Array) -> Row:
        """Return some of them, which no record calls for, as a row."""
        facts = packed(((rows + self.first).tobytes(), self.offsets[rows].tobytes()))
        return Row(f"index/{self.name}", int(self.offsets[rows[0]]), "stray", facts)


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
        start, numbers = self._task.cuts[0].items_start, range(FIRST_ITEM, index.stop)
        key = partial(audit_plan.item_offset, file, self._task.sizes.index_layout)
        return FIRST_ITEM + bisect.bisect_left(numbers, start, key=key)


def _index_rows(task: AuditTask) -> Iterator[Row]:
    index, layout = task.index_files[0], task.sizes.index_layout
    with passing_over_deleted(), opened(task.location, index.path) as file:
        read = partial(_bytes_of, file)
        facts = index_rules.check_index_file(index.name, read, layout, is_live=task.is_live)
        yield Row("index", facts.first, "index", packed(facts))


def _bytes_of(file: OpenFile, position: int, size: int) -> npt.NDArray[np.uint8]:
    content = np.empty(size, dtype=np.uint8)
    return content[: file.read_into(position, content.data)]
