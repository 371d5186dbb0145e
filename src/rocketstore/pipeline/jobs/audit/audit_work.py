"""What the audit's tasks read: ranges of the log with the entries and index items of their records.

Law: rows are few and small where a store is healthy; a task lists no directory.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from rocketstore.errors import StoreError
from rocketstore.format.file_name import file_name, is_directory_name, parse_file_name
from rocketstore.format.index_file import FIRST_ITEM, IndexLayout
from rocketstore.format.markers import CONSUME_QUEUE_DIRECTORY, CONSUME_QUEUE_EXT_DIRECTORY
from rocketstore.format.queue_entry import ENTRY_DTYPE, ENTRY_SIZE_BYTES
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.jobs.execution import row_batch
from rocketstore.pipeline.stores import StoreFile
from rocketstore.scan.scanner import scan_window
from rocketstore.verification.expectation import (
    ExpectedEntries,
    ExpectedItems,
    expected_entries,
    expected_items,
    groups,
)
from rocketstore.verification.file_rules import FileFinding, FileProblem, usable_files
from rocketstore.verification.index_rules import check_index_file, compare_items, read_items
from rocketstore.verification.log_rules import Stretch
from rocketstore.verification.queue_numbers import QueueNumbers
from rocketstore.verification.queue_rules import MISSING_COLUMNS, QueuePart, compare, entries_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.pipeline.files import FileEntry, OpenFile
    from rocketstore.scan.scanner import ScanBatch
    from rocketstore.units import QueueKey

    Int64Array: TypeAlias = npt.NDArray[np.int64]


@contextlib.contextmanager
def passing_over_deleted() -> Iterator[None]:
    """Pass over a file that retention deleted since it was listed."""
    try:
        yield
    except StoreError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise


class FileRow(NamedTuple):
    """The files of one log or queue."""

    files: tuple[StoreFile, ...]
    problems: tuple[FileFinding[str], ...]

    @property
    def first(self) -> int:
        """Offset of the first byte, 0 without files."""
        return self.files[0].base if self.files else 0


def row_of(listings: Iterable[Iterable[FileEntry]], file_size: int) -> FileRow:
    """Return the files that were listed, each of which should have `file_size` bytes."""
    problems: list[FileFinding[str]] = []
    found: list[StoreFile] = []
    for entry in itertools.chain.from_iterable(listings):
        base = parse_file_name(entry.name)
        if base is None:
            wrong = FileProblem.WRONG_NAME, "20 digits", repr(entry.name)
            problems.append(FileFinding(entry.path, *wrong))
        elif entry.is_directory:
            wrong = FileProblem.NOT_A_FILE, "a file", "something else"
            problems.append(FileFinding(entry.path, *wrong))
        else:
            found.append(StoreFile(base, entry.size, entry.path))
    return FileRow(tuple(usable_files(sorted(found), file_size, problems)), tuple(problems))


class Cut(NamedTuple):
    """A byte range of a file, and the physical offsets whose index items are compared with it.

    After `data_stop` the file is zeros; None: look it up. Cuts leave no item between them.
    """

    path: str
    base: int
    start: int
    stop: int
    file_size: int
    data_stop: int | None
    items_start: int = 0
    items_stop: int = 0


def scanned(cut: Cut, location: str, log_file_bytes: int) -> Iterator[ScanBatch]:
    """Yield what starts in a range of the log; a file cut short ends in zeros, as after repair."""
    with opened(location, cut.path) as file:
        stop = cut.data_stop
        yield from scan_window(
            file,
            base=cut.base,
            size=log_file_bytes,
            start=cut.start,
            stop=cut.stop,
            data_stop=min(cut.file_size, file.data_stop(cut.file_size)) if stop is None else stop,
            whole_damage=True,
        )


class QueueSource:
    """Reads the entries of a queue; without a list of its files, by the names that they must have.

    `has_lost` becomes true when a file was not there.
    """

    def __init__(
        self, location: str, file_bytes: int, key: QueueKey, listed: Sequence[StoreFile] | None
    ) -> None:
        self._location = location
        self._files, root = files_at(location)
        self._file_bytes, self._listed = file_bytes, listed
        below = f"{key.topic}/{key.queue_id}" if is_directory_name(key.topic) else ""
        self._directory = f"{root.rstrip('/')}/{CONSUME_QUEUE_DIRECTORY}/{below}" if below else ""
        self._extension = f"{root.rstrip('/')}/{CONSUME_QUEUE_EXT_DIRECTORY}/{below}"
        self.has_lost = False

    def read(self, start: int, count: int) -> EntryArray:
        """Return entries from a queue offset, zeros where no file or byte is."""
        content = np.zeros(count * ENTRY_SIZE_BYTES, dtype=np.uint8)
        at, stop = start * ENTRY_SIZE_BYTES, (start + count) * ENTRY_SIZE_BYTES
        for file in self._holding(at, stop):
            begin, end = max(at, file.base), min(stop, file.stop)
            try:
                with opened(self._location, file.path) as source:
                    source.read_into(begin - file.base, content[begin - at : end - at].data)
            except StoreError as error:
                if not isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError)):
                    raise
                self.has_lost = True
        return content.view(ENTRY_DTYPE)

    def _holding(self, at: int, stop: int) -> Iterable[StoreFile]:
        if self._listed is not None:
            return (one for one in self._listed if one.base < stop and at < one.stop)
        size = self._file_bytes
        bases = range(at - at % size, stop, size) if self._directory else ()
        return (StoreFile(base, size, f"{self._directory}/{file_name(base)}") for base in bases)

    def listed_again(self) -> tuple[StoreFile, ...]:
        """Return the queue's files as they are by now."""
        return row_of([self._files.list(self._directory)], self._file_bytes).files

    def has_extension(self) -> bool:
        """Whether the queue's tags may stand in an extension."""
        return any(not one.is_directory for one in self._files.list(self._extension))


FACTS: Final = "target STRING, place LONG, kind STRING, facts BINARY, a LONG, b LONG, c LONG"
"""Rows that tasks send: for whom, at which physical offset, what, and three numbers by kind."""

BLOCK_RECORDS: Final = 131_072
"""Records that are compared at once."""

CHUNK_ITEMS: Final = 65_536
_ROWS: Final = 256


class Row(NamedTuple):
    """A row of `FACTS`.

    By `kind`: ``stretch`` and ``index`` for the driver; ``part`` of a queue; ``lacking`` keys;
    ``backed``, ``stray`` and ``repeated`` items.
    """

    target: str
    place: int
    kind: str
    facts: bytes = b""
    a: int = 0
    b: int = 0
    c: int = 0


class IndexFile(NamedTuple):
    """An index file: the number after its last item, records of the first and the last one."""

    path: str
    name: str
    stop: int
    first: int
    last: int


class AuditTask(NamedTuple):
    """Ranges of the log and the index files that name their records; or an index file by itself.

    Of records from `items_end` on, items may be missing. A store time later than `latest_ms` is a
    damaged header. `odd_queues` has the files of those queues in which not every file is the one
    that its name says.
    """

    location: str
    log_file_bytes: int
    queue_file_bytes: int
    layout: IndexLayout
    has_index: bool
    is_live: bool
    items_end: int
    delays_ms: Int64Array
    latest_ms: int
    odd_queues: Mapping[QueueKey, Sequence[StoreFile]]
    cuts: tuple[Cut, ...] = ()
    index_files: tuple[IndexFile, ...] = ()


def read_task(task: AuditTask) -> Iterator[pa.RecordBatch]:
    """Yield what a task finds as rows of `FACTS`."""
    rows = _LogReader(task).rows() if task.cuts else _index_rows(task, task.index_files[0])
    yield from as_batches(rows)


def as_batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches of `FACTS`."""
    found = iter(rows)
    while group := list(itertools.islice(found, _ROWS)):
        yield row_batch(group, FACTS)


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Yield the rows of batches of `FACTS`."""
    for batch in batches:
        yield from (Row(**row) for row in batch.to_pylist())


def queue_target(topic: str, queue_id: int) -> str:
    """Return the name under which what belongs to a queue comes together."""
    return f"queue/{queue_id}/{topic}"


def packed(facts: Any) -> bytes:
    """Return facts as bytes."""
    return msgspec.msgpack.encode(facts)


def part_row(target: str, part: QueuePart) -> Row:
    """Return what is said of a queue as a row."""
    *numbers, backed, missing, stated = part
    sets = (one.tobytes() for one in (backed, missing, stated))
    return Row(target, part.start, "part", packed((*numbers, *sets)))


def part_of(row: Row) -> QueuePart:
    """Return what a row of the kind ``part`` says."""
    *numbers, backed, missing, stated = msgspec.msgpack.decode(row.facts)
    columns = ((backed, 2), (missing, MISSING_COLUMNS), (stated, 2))
    sets = (np.frombuffer(one, np.int64).reshape(-1, count) for one, count in columns)
    return QueuePart._make((*numbers, *sets))


def stated_runs(_: None, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the runs of queue offsets that parts of queues state: `a` first, `b` count, `c`th."""
    for row in rows:
        for number, (first, past) in enumerate(part_of(row).stated.tolist()):
            yield Row(row.target, row.place, "stated", b"", first, past - first, number)


# --- the log ------------------------------------------------------------------------------------


class _LogReader:
    """Reads the ranges of one task."""

    def __init__(self, task: AuditTask) -> None:
        self._task = task
        self._numbers = QueueNumbers()
        self._items = _Items(task)
        self._entries: list[ExpectedEntries] = []
        self._keys: list[ExpectedItems] = []
        self._count = 0

    def rows(self) -> Iterator[Row]:
        for cut in self._task.cuts:
            yield from self._read(cut)

    def _read(self, cut: Cut) -> Iterator[Row]:
        task, stretch = self._task, Stretch(cut.base, cut.base + cut.start)
        stretch.is_gone = cut.start < cut.stop
        reached = cut.items_start
        with passing_over_deleted():
            for batch in scanned(cut, *task[:2]) if stretch.is_gone else ():
                stretch.take(batch, task.latest_ms)
                columns = batch.columns
                if not len(columns):
                    continue
                self._entries.append(expected_entries(columns, self._numbers, task.delays_ms))
                if task.has_index:
                    self._keys.append(expected_items(columns))
                self._count += len(columns)
                reached = int(columns.physical_offset[-1]) + 1
                if self._count >= BLOCK_RECORDS:
                    yield from self._compared(stretch, reached)
            stretch.is_gone = False
        yield from self._compared(stretch, reached)
        yield Row("stretch", stretch.start, "stretch", packed(stretch))
        for found in self._items.until(cut.items_stop):
            yield found.stray(np.arange(found.offsets.size))

    def _compared(self, stretch: Stretch, stop: int) -> Iterator[Row]:
        """Compare what was read so far, up to a physical offset; no row is of two chains."""
        starts = np.array([chain.start for chain in stretch.chains], dtype=np.int64)
        if self._entries:
            columns = zip(*self._entries, strict=True)
            yield from self._compared_entries(
                ExpectedEntries._make(map(np.concatenate, columns)), starts
            )
        if self._keys:
            columns = zip(*self._keys, strict=True)
            keys = ExpectedItems._make(map(np.concatenate, columns))
            yield from self._compared_keys(keys, starts, stop)
        self._entries, self._keys, self._count = [], [], 0

    def _compared_entries(self, entries: ExpectedEntries, starts: Int64Array) -> Iterator[Row]:
        chains = _chains_of(starts, entries.entries["physical_offset"].astype(np.int64))
        task = self._task
        for rows in groups(chains * len(self._numbers) + entries.queue_number):
            block = entries.rows(rows)
            key = self._numbers.key(int(block.queue_number[0]))
            files = QueueSource(task.location, task.queue_file_bytes, key, task.odd_queues.get(key))
            found = entries_at(block.queue_offset, files.read)
            part = compare(block, found, files.has_extension)
            # Extra queues are written only where that is switched on.
            if len(part.backed) or not block.is_extra.all():
                yield part_row(queue_target(*key), part)

    def _compared_keys(self, keys: ExpectedItems, starts: Int64Array, stop: int) -> Iterator[Row]:
        found = list(self._items.until(stop))
        none = np.empty(0, dtype=np.int64)
        lacking, stray = compare_items(
            (keys.physical_offset, keys.key_hash),
            (
                np.concatenate([none, *(one.offsets for one in found)]),
                np.concatenate([none, *(one.hashes for one in found)]),
            ),
        )
        count = sum(one.offsets.size for one in found) - stray.size
        if repeated := count - keys.key_hash.size + lacking.size:
            yield Row("index", int(keys.physical_offset[0]), "repeated", b"", repeated)
        lacking = lacking[keys.physical_offset[lacking] < self._task.items_end]
        for rows in groups(_chains_of(starts, keys.physical_offset[lacking])):
            first = int(keys.physical_offset[lacking[rows[0]]])
            yield Row("index", first, "lacking", b"", rows.size)
        bounds = np.cumsum([one.offsets.size for one in found])[:-1]
        is_stray = np.zeros(count + stray.size, dtype=np.bool_)
        is_stray[stray] = True
        for one, mask in zip(found, np.split(is_stray, bounds), strict=bool(found)):
            if mask.any():
                yield one.stray(np.flatnonzero(mask))
            backed = np.flatnonzero(~mask)
            for rows in groups(_chains_of(starts, one.offsets[backed])):
                numbers, place = one.first + backed[rows], int(one.offsets[backed[rows[0]]])
                target = f"index/{one.name}"
                yield Row(target, place, "backed", b"", numbers.size, int(numbers[0]))


def _chains_of(starts: Int64Array, offsets: Int64Array) -> Int64Array:
    chains: Int64Array = np.searchsorted(starts, offsets, side="right") - 1
    return chains


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
        self._location, self._layout = task.location, task.layout
        self._start = task.cuts[0].items_start
        self._next: dict[IndexFile, int | None] = dict.fromkeys(task.index_files)

    def until(self, stop: int) -> Iterator[_FoundItems]:
        """Yield the items of records before a physical offset that were not yielded yet."""
        for index, known in self._next.items():
            with passing_over_deleted(), opened(self._location, index.path) as file:
                number = self._first(file, index) if known is None else known
                while number < index.stop:
                    count = min(CHUNK_ITEMS, index.stop - number)
                    items = read_items(partial(_bytes_of, file), self._layout, number, count)
                    offsets = items["physical_offset"].astype(np.int64)
                    inside = int(np.searchsorted(offsets, stop))
                    if inside:
                        hashes = items["key_hash"][:inside].astype(np.int64)
                        yield _FoundItems(index.name, number, offsets[:inside], hashes)
                    number += inside
                    if inside < count:
                        break
                self._next[index] = number

    def _first(self, file: OpenFile, index: IndexFile) -> int:
        def offset(number: int) -> int:
            content = file.read(self._layout.item_position(number) + 4, 8)
            return int.from_bytes(content, "big", signed=True)

        numbers = range(FIRST_ITEM, index.stop)
        return FIRST_ITEM + bisect.bisect_left(numbers, self._start, key=offset)


def _index_rows(task: AuditTask, index: IndexFile) -> Iterator[Row]:
    with passing_over_deleted(), opened(task.location, index.path) as file:
        read = partial(_bytes_of, file)
        facts = check_index_file(index.name, read, task.layout, is_live=task.is_live)
        yield Row("index", facts.first, "index", packed(facts))


def _bytes_of(file: OpenFile, position: int, size: int) -> npt.NDArray[np.uint8]:
    content = np.empty(size, dtype=np.uint8)
    return content[: file.read_into(position, content.data)]
