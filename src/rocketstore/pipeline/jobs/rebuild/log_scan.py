"""Scan a stretch of the CommitLog into rows: packed queue entries, packed index items, facts.

Entries of one queue whose queue offsets rise by one, and items, travel as blocks of 20 bytes each,
so a row stands for hundreds of records. A block never crosses a *piece*: records that follow one
another without a break inside one task. What is wrong with a log decides over whole pieces, and the
facts of a task say everything that has to be known of its pieces, so nothing is read twice.
"""

from __future__ import annotations

import itertools
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.message import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rocketstore.pipeline.jobs.rebuild.extraction import (
    QueueNumbers,
    entries_of,
    items_of,
    joined_entries,
)
from rocketstore.pipeline.log_read import read_split
from rocketstore.scan.columns import RecordColumns

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from rocketstore.pipeline.jobs.rebuild.extraction import Entries, Items
    from rocketstore.pipeline.jobs.rebuild.settings import RebuildSettings
    from rocketstore.pipeline.planning import SplitTask
    from rocketstore.scan.dispatch_state import Int64Array

ROW_SCHEMA: Final = (
    "target BINARY, piece LONG, at LONG, ordinal LONG, first LONG, data BINARY, crc LONG, "
    "facts BINARY"
)
"""A block: `target` is `INDEX_TARGET`, or `QUEUE_TARGET` and the queue's directory; `piece` the
physical offset at which its piece begins; `at` that of its first entry or item, `ordinal` orders
blocks with the same; `first` the queue offset of the first entry, or the number of the first item
in its piece. The last row of a task has only `facts`."""

INDEX_TARGET: Final = b"i"
QUEUE_TARGET: Final = b"q"

ITEM_DTYPE: Final = np.dtype([("hash", "<i4"), ("physical", "<i8"), ("stored", "<i8")])
assert ITEM_DTYPE.itemsize == ENTRY_SIZE_BYTES

_BLOCK_ROWS: Final = 256
"""Most entries or items of a block: 5 KiB, of which Spark hands 10,000 at a time to a worker."""

_HELD_RECORDS: Final = 131_072
"""Records whose entries and items are in memory until they are sorted into blocks."""

_WITNESSES: Final = 3
"""Times at each end of a piece, for the verdict on records behind damage."""


class ScanTask(NamedTuple):
    """Scan some splits.

    Attributes
    ----------
    latest_ms
        A later store time is a damaged header.
    """

    splits: tuple[SplitTask, ...]
    settings: RebuildSettings
    latest_ms: int


class Broken(msgspec.Struct, frozen=True, array_like=True):
    """A damaged range of the log.

    Attributes
    ----------
    is_torn_tail
        Nothing follows it: it may be a record that was never finished.
    """

    start: int
    stop: int
    reason: str
    evidence: str
    path: str
    base: int
    is_torn_tail: bool


class Piece(msgspec.Struct, array_like=True):
    """Records that follow one another without a break, inside one file and one task.

    Attributes
    ----------
    base
        Physical offset of the file.
    refused_count
        Records whose topic, queue id or queue offset cannot be true.
    last_ms
        Newest believable store time at its end; 0 without one.
    head, tail
        Store times of the first and last records; `normal_head`, `normal_tail` of those that are
        neither prepared nor rolled back.
    """

    base: int
    start: int
    stop: int
    record_count: int = 0
    refused_count: int = 0
    entry_count: int = 0
    item_count: int = 0
    last_ms: int = 0
    head: list[int] = []
    tail: list[int] = []
    normal_head: list[int] = []
    normal_tail: list[int] = []

    def add(self, more: Piece) -> None:
        """Go on with what follows."""
        self.stop = more.stop
        for name in ("record_count", "refused_count", "entry_count", "item_count"):
            setattr(self, name, getattr(self, name) + getattr(more, name))
        self.last_ms = more.last_ms or self.last_ms
        self.head = (self.head + more.head)[:_WITNESSES]
        self.tail = (self.tail + more.tail)[-_WITNESSES:]
        self.normal_head = (self.normal_head + more.normal_head)[:_WITNESSES]
        self.normal_tail = (self.normal_tail + more.normal_tail)[-_WITNESSES:]


class ScanFacts(msgspec.Struct, array_like=True):
    """What one task has met."""

    pieces: list[Piece]
    broken: list[Broken]


def scan_log(task: ScanTask) -> Iterator[pa.RecordBatch]:
    """Yield rows of `ROW_SCHEMA`."""
    scan = _LogScan(task)
    for split in task.splits:
        scan.begin(split)
        for columns, found in read_split(split):
            scan.broken += [_broken(split, one.damage, one.is_torn_tail) for one in found]
            scan.take(columns)
            if scan.held_count >= _HELD_RECORDS:
                yield from scan.blocks()
    yield from scan.blocks()
    yield scan.facts()


def _broken(split: SplitTask, damage: Any, is_torn_tail: bool) -> Broken:  # noqa: FBT001 - a field
    return Broken(
        damage.range.start,
        damage.range.stop,
        damage.reason.value,
        damage.evidence,
        split.segment.path,
        split.segment.base,
        is_torn_tail,
    )


class _LogScan:
    """Collects what records call for until there is enough for blocks."""

    def __init__(self, task: ScanTask) -> None:
        self.held_count = 0
        self.pieces: list[Piece] = []
        self.broken: list[Broken] = []
        self._task = task
        self._numbers = QueueNumbers()
        self._base = -1
        self._entries: list[tuple[int, Entries]] = []
        self._items: list[tuple[int, int, Items]] = []

    def begin(self, split: SplitTask) -> None:
        """Go on in another range."""
        self._base = split.segment.base

    def take(self, columns: RecordColumns) -> None:
        """Take records of one batch."""
        if not len(columns):
            return
        starts = columns.physical_offset
        stops = starts + columns.size
        breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
        for first, behind in itertools.pairwise([0, *breaks.tolist(), len(starts)]):
            start, stop = int(starts[first]), int(stops[behind - 1])
            self._take_piece(
                RecordColumns(columns.buffer, columns.cols[first:behind], columns.base), start, stop
            )
        self.held_count += len(columns)

    def _take_piece(self, columns: RecordColumns, start: int, stop: int) -> None:
        settings = self._task.settings
        entries, refused = entries_of(columns, self._numbers, settings)
        times = columns.store_timestamp
        kind = columns.sys_flag & TRANSACTION_MASK
        normal = times[(kind != TRANSACTION_PREPARED) & (kind != TRANSACTION_ROLLBACK)]
        believable = np.flatnonzero((times > 0) & (times <= self._task.latest_ms))
        found = Piece(
            self._base, start, stop, len(columns), refused, len(entries.numbers), 0,
            int(times[believable[-1]]) if believable.size else 0,
            times[:_WITNESSES].tolist(), times[-_WITNESSES:].tolist(),
            normal[:_WITNESSES].tolist(), normal[-_WITNESSES:].tolist(),
        )  # fmt: skip
        last = self.pieces[-1] if self.pieces else None
        first_item = 0
        if last is not None and (last.base, last.stop) == (self._base, start):
            first_item = last.item_count
            last.add(found)
        else:
            self.pieces.append(found)
        if len(entries.numbers):
            self._entries.append((self.pieces[-1].start, entries))
        if settings.has_index:
            items = items_of(columns)
            self.pieces[-1].item_count += len(items.key_hashes)
            if len(items.key_hashes):
                self._items.append((self.pieces[-1].start, first_item, items))

    def blocks(self) -> Iterator[pa.RecordBatch]:
        """Yield what was collected."""
        if self._entries:
            yield self._entry_blocks()
        if self._items:
            yield self._item_blocks()
        self._entries, self._items, self.held_count = [], [], 0

    def _entry_blocks(self) -> pa.RecordBatch:
        import pyarrow as pa  # noqa: PLC0415 - only where rows are made

        parts = [entries for _, entries in self._entries]
        numbers = np.concatenate([one.numbers for one in parts])
        offsets = np.concatenate([one.queue_offsets for one in parts])
        pieces = np.repeat(
            np.array([piece for piece, _ in self._entries], np.int64),
            [len(one.numbers) for one in parts],
        )
        names = self._numbers.names
        # Of 16-bit numbers a stable sort is a radix sort.
        narrow = numbers.astype(np.uint16) if len(names) <= np.iinfo(np.uint16).max else numbers
        order = np.argsort(narrow, kind="stable")
        numbers, offsets, pieces = numbers[order], offsets[order], pieces[order]
        entries = joined_entries([one.entries for one in parts])[order]
        is_new = np.ones(len(numbers), np.bool_)
        is_new[1:] = (
            (numbers[1:] != numbers[:-1])
            | (pieces[1:] != pieces[:-1])
            | (offsets[1:] != offsets[:-1] + 1)
        )
        starts = _cut(np.flatnonzero(is_new), len(numbers))
        targets = [
            QUEUE_TARGET + name.directory.encode() if name.is_usable else b"" for name in names
        ]
        used = pa.DictionaryArray.from_arrays(pa.array(numbers[starts], pa.int32()), targets)
        physical = entries["physical_offset"].astype(np.int64)
        return _block_rows(
            used.cast(pa.binary()), pieces[starts], physical[starts], offsets[starts],
            np.append(starts, len(numbers)), np.ascontiguousarray(entries),
        )  # fmt: skip

    def _item_blocks(self) -> pa.RecordBatch:
        import pyarrow as pa  # noqa: PLC0415 - only where rows are made

        counts = [len(items.key_hashes) for _, _, items in self._items]
        total = sum(counts)
        packed = np.empty(total, ITEM_DTYPE)
        packed["hash"] = np.concatenate([items.key_hashes for _, _, items in self._items])
        packed["physical"] = np.concatenate([one.physical_offsets for _, _, one in self._items])
        packed["stored"] = np.concatenate([one.store_timestamps for _, _, one in self._items])
        pieces = np.repeat(np.array([one[0] for one in self._items], np.int64), counts)
        within = np.concatenate(
            [np.arange(first, first + len(one.key_hashes)) for _, first, one in self._items]
        )
        is_new = np.ones(total, np.bool_)
        is_new[1:] = pieces[1:] != pieces[:-1]
        starts = _cut(np.flatnonzero(is_new), total)
        return _block_rows(
            pa.array([INDEX_TARGET] * len(starts), pa.binary()), pieces[starts],
            packed["physical"][starts], within[starts], np.append(starts, total), packed,
        )  # fmt: skip

    def facts(self) -> pa.RecordBatch:
        """Return the row that says what was met."""
        import pyarrow as pa  # noqa: PLC0415 - only where rows are made

        encoded = msgspec.msgpack.encode(ScanFacts(self.pieces, self.broken))
        columns = [*[None] * 7, encoded]
        return pa.RecordBatch.from_arrays(
            [pa.array([one], kind) for one, kind in zip(columns, _kinds(), strict=True)],
            names=column_names(),
        )


def column_names() -> list[str]:
    """Return the columns of `ROW_SCHEMA`."""
    return [column.split()[0] for column in ROW_SCHEMA.split(", ")]


def _kinds() -> list[pa.DataType]:
    import pyarrow as pa  # noqa: PLC0415 - only where rows are made

    return [
        pa.binary() if column.endswith("BINARY") else pa.int64()
        for column in ROW_SCHEMA.split(", ")
    ]


def _cut(starts: Int64Array, total: int) -> Int64Array:
    """Cut runs that begin at `starts` so that none is longer than a block."""
    lengths = np.diff(np.append(starts, total))
    counts = -(-lengths // _BLOCK_ROWS)
    before = np.cumsum(counts) - counts
    numbers = np.arange(int(counts.sum())) - np.repeat(before, counts)
    cut: Int64Array = np.repeat(starts, counts) + numbers * _BLOCK_ROWS
    return cut


def _block_rows(
    targets: Any,
    pieces: Int64Array,
    at: Int64Array,
    firsts: Int64Array,
    bounds: Int64Array,
    packed: np.ndarray[Any, Any],
) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 - only where rows are made

    content = packed.view(np.uint8)
    edges = (bounds * ENTRY_SIZE_BYTES).astype(np.int32)
    count = len(pieces)
    data = pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(edges), pa.py_buffer(content)]
    )
    view = content.data
    checks = [zlib.crc32(view[a:b]) for a, b in itertools.pairwise(edges.tolist())]
    numbers = [pieces, at, np.arange(count), firsts]
    columns = [targets, *(pa.array(one, pa.int64()) for one in numbers)]
    columns += [data, pa.array(checks, pa.int64()), pa.nulls(count, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=column_names())
