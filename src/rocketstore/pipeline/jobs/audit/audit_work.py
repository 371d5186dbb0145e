"""What tasks of an audit do: read a stretch of the log, an index file, a file of a queue.

A task sends what its records call for to where it stands: a block of entries to the file of the
queue that they belong in (a *cell*), a block of keys to the stretch of the log that index items
point into (a *bucket*). Spark brings blocks, queue files and items of one target together.

Law: a task reads its bytes once, piece by piece; what it holds is a window, or one cell or bucket,
whatever the log. Nothing is done record by record in Python.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from rocketstore.errors import FormatError, StoreError
from rocketstore.format.index_file import (
    FIRST_ITEM,
    INDEX_HEADER_SIZE,
    ITEM_DTYPE,
    ITEM_SIZE_BYTES,
    IndexHeader,
    IndexLayout,
    decode_header,
    used_item_count,
)
from rocketstore.format.queue_entry import ENTRY_DTYPE, ENTRY_SIZE_BYTES
from rocketstore.pipeline.files import files_at, opened
from rocketstore.scan.window import scan_window
from rocketstore.units import MiB
from rocketstore.verification.expectation import (
    ExpectedEntries,
    ExpectedItems,
    expected_entries,
    expected_items,
)
from rocketstore.verification.index_rules import IndexFileCheck, Trouble, item_keys
from rocketstore.verification.log_rules import Stretch
from rocketstore.verification.queue_numbers import QueueNumbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt
    import pyarrow as pa

    from rocketstore.pipeline.files import OpenFile

    Int64Array: TypeAlias = npt.NDArray[np.int64]

FACTS: Final = "target STRING, place LONG, kind STRING, a LONG, b LONG, c LONG, facts BINARY"
"""Rows that tasks send: for whom, at which physical offset, what, and three numbers by kind."""

BLOCK_RECORDS: Final = 262_144
"""Records whose entries are sent at once: 20 MB of numbers."""

BUCKET_BYTES: Final = 64 * MiB
CHUNK_ITEMS: Final = 65_536
_ROWS: Final = 256
_FIRST: Final = -1
"""A place before every record."""


class Row(NamedTuple):
    """A row of `FACTS`.

    By `kind`: ``stretch`` and ``index``, for the driver; ``file`` (a queue file), ``block``
    (expected entries), ``keys`` and ``items``, to be compared; ``part`` (records, agreeing and
    contradicted ones), ``cell``, ``stray`` and ``lacking`` (keys), what comparing says.
    """

    target: str
    place: int
    kind: str
    facts: bytes = b""
    a: int = 0
    b: int = 0
    c: int = 0


class Cut(NamedTuple):
    """A byte range of one file; `data_stop` is where it is zeros from on, None: look it up."""

    path: str
    base: int
    start: int
    stop: int
    file_size: int
    data_stop: int | None


class AuditedFile(NamedTuple):
    """A file of a queue."""

    topic: str
    queue_id: int
    base: int
    size: int
    path: str
    has_extension: bool


class AuditTask(NamedTuple):
    """What one task reads: ranges of the log, or an index file; or queue files, to be named.

    Attributes
    ----------
    log_start
        Physical offset of the first file of the log.
    delays_ms
        Delay of each level, from index 1.
    """

    location: str
    log_file_bytes: int
    queue_file_bytes: int
    layout: IndexLayout
    has_index: bool
    is_live: bool
    log_start: int
    delays_ms: tuple[int, ...] = ()
    cuts: tuple[Cut, ...] = ()
    index_file: tuple[str, str] | None = None
    queue_files: tuple[AuditedFile, ...] = ()

    @property
    def places(self) -> int:
        """Entries of a cell."""
        return self.queue_file_bytes // ENTRY_SIZE_BYTES


class _QueueEntries(msgspec.Struct, array_like=True):
    """Expected entries of one queue; `offsets` is empty where they follow one another."""

    first: int
    offsets: bytes
    entries: bytes
    deliver_from_ms: bytes
    extra: bytes


@contextlib.contextmanager
def passing_over_deleted() -> Iterator[None]:
    """Pass over a file that retention deleted since it was listed."""
    try:
        yield
    except StoreError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise


def read_parts(task: AuditTask) -> Iterator[pa.RecordBatch]:
    """Yield what a task reads as rows of `FACTS`."""
    yield from as_batches(_read(task))


def _read(task: AuditTask) -> Iterator[Row]:
    for cut in task.cuts:
        yield from _LogReader(task, cut).rows()
    if task.index_file is not None:
        yield from _index_rows(task, *task.index_file)
    for file in task.queue_files:
        content = msgspec.msgpack.encode(file)
        size = task.queue_file_bytes
        for cell in range(file.base // size, -(-(file.base + file.size) // size)):
            yield Row(cell_target(file.topic, file.queue_id, cell), _FIRST, "file", content)


def as_batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches of `FACTS`."""
    import pyarrow as pa  # noqa: PLC0415 - the driver plans without it

    found = iter(rows)
    while group := list(itertools.islice(found, _ROWS)):
        target, place, kind, facts, *numbers = zip(*group, strict=True)
        arrays = [pa.array(target), pa.array(place, pa.int64()), pa.array(kind)]
        arrays += [pa.array(one, pa.int64()) for one in numbers]
        names = ["target", "place", "kind", "a", "b", "c", "facts"]
        yield pa.RecordBatch.from_arrays([*arrays, pa.array(facts, pa.binary())], names=names)


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Yield the rows of batches of `FACTS`."""
    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        for at in range(batch.num_rows):
            yield Row(**{name: column[at].as_py() for name, column in columns.items()})


def cell_target(topic: str, queue_id: int, cell: int) -> str:
    """Return the name under which what belongs to one file of a queue comes together."""
    return f"cell/{cell}/{queue_target(topic, queue_id)}"


def queue_target(topic: str, queue_id: int) -> str:
    """Return the name under which what belongs to a queue comes together."""
    return f"queue/{queue_id}/{topic}"


def queue_of(target: str) -> tuple[str, int]:
    """Return topic and number of `queue_target`."""
    _, number, topic = target.split("/", 2)
    return topic, int(number)


# --- the log ------------------------------------------------------------------------------------


class _LogReader:
    """Reads one range of the log."""

    def __init__(self, task: AuditTask, cut: Cut) -> None:
        self._task, self._cut = task, cut
        self._stretch = Stretch(cut.base, cut.base + cut.start)
        self._numbers = QueueNumbers()
        self._delays = np.array(task.delays_ms, dtype=np.int64)
        self._entries: list[ExpectedEntries] = []
        self._items: list[ExpectedItems] = []
        self._count = 0

    def rows(self) -> Iterator[Row]:
        cut = self._cut
        files, _ = files_at(self._task.location)
        is_read = False
        with passing_over_deleted():
            with opened(files, cut.path) as file:
                batches = scan_window(
                    file,
                    base=cut.base,
                    # A file cut short ends in zeros: so repair and the next opening will have it.
                    size=self._task.log_file_bytes,
                    start=cut.start,
                    stop=cut.stop,
                    data_stop=self._data_stop(file),
                    whole_damage=True,
                )
                for batch in batches:
                    self._stretch.take(batch)
                    columns = batch.columns
                    if not len(columns):
                        continue
                    entries = expected_entries(columns, self._numbers, self._delays)
                    self._entries.append(entries)
                    if self._task.has_index:
                        items = expected_items(columns)
                        hashes = items.key_hash.copy()  # of a larger array
                        self._items.append(items._replace(key_hash=hashes))
                    self._count += len(columns)
                    if self._count >= BLOCK_RECORDS:
                        yield from self._blocks()
            is_read = True
        yield from self._blocks()
        self._stretch.is_gone = not is_read
        yield Row(f"stretch/{cut.base}", cut.base + cut.start, "stretch", packed(self._stretch))

    def _data_stop(self, file: OpenFile) -> int:
        known = self._cut.data_stop
        return (
            min(self._cut.file_size, file.data_stop(self._cut.file_size))
            if known is None
            else known
        )

    def _blocks(self) -> Iterator[Row]:
        """Yield what was read so far, by target; no block spans two chains."""
        starts = np.array([chain.start for chain in self._stretch.chains], dtype=np.int64)
        if self._entries:
            columns = zip(*self._entries, strict=True)
            yield from self._entry_blocks(
                ExpectedEntries._make(np.concatenate(column) for column in columns), starts
            )
        if self._items:
            columns = zip(*self._items, strict=True)
            offsets, hashes, _ = (np.concatenate(column) for column in columns)
            bucket, chain = offsets // BUCKET_BYTES, _chain_of(starts, offsets)
            for rows in _groups(bucket * (len(starts) + 1) + chain):
                first = int(offsets[rows[0]])
                number = first // BUCKET_BYTES
                keys = item_keys(offsets[rows], hashes[rows], number * BUCKET_BYTES)
                yield Row(f"bucket/{number}", first, "keys", keys.tobytes())
        self._entries, self._items, self._count = [], [], 0

    def _entry_blocks(self, entries: ExpectedEntries, starts: Int64Array) -> Iterator[Row]:
        physical = entries.entries["physical_offset"].astype(np.int64)
        cell = entries.queue_offset // self._task.places
        chain = _chain_of(starts, physical)
        keys = np.stack((chain, entries.queue_number, cell), axis=1)
        if (keys[1:] != keys[:-1]).any():
            # Cells of forged numbers may be huge: they are numbered in the order of their size.
            _, cell = np.unique(cell, return_inverse=True)
            many = int(cell.max()) + 1
            groups = _groups((chain * len(self._numbers) + entries.queue_number) * many + cell)
        else:
            groups = iter([np.arange(len(keys))] if len(keys) else [])
        for rows in groups:
            block = entries.rows(rows)
            queue = self._numbers.queues[int(block.queue_number[0])]
            target = cell_target(
                queue.name, queue.queue_id, int(block.queue_offset[0]) // self._task.places
            )
            yield Row(target, int(physical[rows[0]]), "block", packed(_block(block)))


def _chain_of(starts: Int64Array, offsets: Int64Array) -> Int64Array:
    chains: Int64Array = np.searchsorted(starts, offsets, side="right") - 1
    return chains


def _groups(keys: Int64Array) -> Iterator[Int64Array]:
    """Yield the rows of each key, in order."""
    small = np.int16 if keys.size and int(keys.max()) < 2**15 else np.int64
    order = np.argsort(keys.astype(small), kind="stable")
    bounds = np.flatnonzero(np.diff(keys[order])) + 1
    yield from (rows for rows in np.split(order, bounds) if rows.size)


def _block(entries: ExpectedEntries) -> _QueueEntries:
    offsets = entries.queue_offset
    in_order = bool((np.diff(offsets) == 1).all())
    return _QueueEntries(
        int(offsets[0]),
        b"" if in_order else offsets.tobytes(),
        entries.entries.astype(ENTRY_DTYPE).tobytes(),  # joined, it has the machine's byte order
        entries.deliver_from_ms.tobytes() if (entries.deliver_from_ms >= 0).any() else b"",
        entries.is_extra.tobytes() if entries.is_extra.any() else b"",
    )


def expected_of(content: bytes) -> ExpectedEntries:
    """Return the entries of a row of the kind ``block``."""
    block = msgspec.msgpack.decode(content, type=_QueueEntries)
    entries = np.frombuffer(block.entries, dtype=ENTRY_DTYPE)
    count = len(entries)
    offsets = np.frombuffer(block.offsets, dtype=np.int64)
    late = np.frombuffer(block.deliver_from_ms, dtype=np.int64)
    extra = np.frombuffer(block.extra, dtype=np.bool_)
    return ExpectedEntries(
        np.zeros(count, dtype=np.int64),
        offsets if block.offsets else np.arange(block.first, block.first + count),
        entries,
        late if block.deliver_from_ms else np.full(count, -1),
        extra if block.extra else np.zeros(count, dtype=np.bool_),
    )


def packed(facts: Any) -> bytes:
    """Return facts as bytes."""
    return msgspec.msgpack.encode(facts)


# --- the index ----------------------------------------------------------------------------------


def _index_rows(task: AuditTask, path: str, name: str) -> Iterator[Row]:
    files, _ = files_at(task.location)
    with passing_over_deleted(), opened(files, path) as file:

        def read(position: int, size: int) -> npt.NDArray[np.uint8]:
            content = np.zeros(size, dtype=np.uint8)
            file.read_into(position, content.data)
            return content

        troubles, header = [], IndexHeader()
        try:
            header = decode_header(file.read(0, INDEX_HEADER_SIZE))
        except FormatError as error:
            troubles.append(Trouble("index-header", 0, str(error)))
        check = IndexFileCheck(name, header, task.layout)
        for number, content in _chunks(file, task.layout, header):
            check.take(number, content)
        facts = check.facts(read, is_live=task.is_live)
        facts.troubles[:0] = troubles
        yield Row(f"index/{name}", _FIRST, "index", packed(facts))
        if not facts.is_in_order:
            return  # its items may lie anywhere: a rebuild is due
        for number, content in _chunks(file, task.layout, header):
            items = content.view(ITEM_DTYPE)
            offsets = items["physical_offset"].astype(np.int64)
            bucket = offsets // BUCKET_BYTES
            for rows in _groups(bucket - bucket[0] if len(bucket) else bucket):
                at = int(bucket[rows[0]])
                # Before the log are the items of deleted records.
                rows = rows[offsets[rows] >= task.log_start]  # noqa: PLW2901
                if rows.size:
                    hashes = items["key_hash"][rows].astype(np.int64)
                    keys = item_keys(offsets[rows], hashes, at * BUCKET_BYTES)
                    facts_of = packed((name, keys.tobytes()))
                    yield Row(f"bucket/{at}", _FIRST, "items", facts_of, number + int(rows[0]))


def _chunks(
    file: OpenFile, layout: IndexLayout, header: IndexHeader
) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Yield whole items with the number of the first."""
    stop = used_item_count(header, layout)
    for number in range(FIRST_ITEM, stop, CHUNK_ITEMS):
        count = min(CHUNK_ITEMS, stop - number)
        items = np.empty(count * ITEM_SIZE_BYTES, dtype=np.uint8)
        got = file.read_into(layout.item_position(number), items.data)
        whole = got // ITEM_SIZE_BYTES
        if whole:
            yield number, items[: whole * ITEM_SIZE_BYTES]
        if whole < count:
            return
