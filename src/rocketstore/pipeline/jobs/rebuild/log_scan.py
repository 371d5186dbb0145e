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
    joined_entries,
)
from rocketstore.pipeline.log_read import read_split
from rocketstore.scan.columns import RecordColumns
from rocketstore.verification.expectation import expected_items

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from rocketstore.pipeline.jobs.rebuild.extraction import Entries
    from rocketstore.pipeline.jobs.rebuild.settings import RebuildSettings
    from rocketstore.pipeline.planning import SplitTask
    from rocketstore.scan.dispatch_state import Int64Array
    from rocketstore.verification.expectation import ExpectedItems

ROW_SCHEMA: Final = (
    "target BINARY, piece LONG, at LONG, ordinal LONG, first LONG, data BINARY, crc LONG, "
    "facts BINARY"
)
"""A block: `target` is `INDEX_TARGET`, or `QUEUE_TARGET` and the queue's directory; `piece` the
physical offset at which its piece begins; `at` that of its first entry or item, `ordinal` orders
blocks with the same; `first` the queue offset of the first entry, or the number of the first item
in its piece. The last row of a task has only `facts`."""

_COLUMNS: Final = [column.split()[0] for column in ROW_SCHEMA.split(", ")]

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
    import pyarrow as pa  # noqa: PLC0415 - only where rows are made

    scan = _LogScan(task)
    for split in task.splits:
        segment = split.segment
        for columns, found in read_split(split):
            for damage, is_torn_tail in found:
                extent, reason = damage.range, damage.reason.value
                scan.facts.broken.append(
                    Broken(
                        extent.start, extent.stop, reason, damage.evidence, segment.path,
                        segment.base, is_torn_tail,
                    )
                )  # fmt: skip
            scan.take(columns, segment.base)
            if scan.held_count >= _HELD_RECORDS:
                yield from scan.blocks()
    yield from scan.blocks()
    encoded = msgspec.msgpack.encode(scan.facts)
    yield pa.RecordBatch.from_pylist([dict.fromkeys(_COLUMNS) | {"facts": encoded}])


class _LogScan:
    """Collects what records call for until there is enough for blocks."""

    def __init__(self, task: ScanTask) -> None:
        self.facts = ScanFacts([], [])
        self.held_count = 0
        self._task = task
        self._queues = QueueNumbers()
        self._entries: list[tuple[int, Entries]] = []
        self._items: list[tuple[int, int, ExpectedItems]] = []

    def take(self, columns: RecordColumns, base: int) -> None:
        """Take records of a file that begins at `base`."""
        if not len(columns):
            return
        starts = columns.physical_offset
        breaks = np.flatnonzero(starts[1:] != starts[:-1] + columns.size[:-1]) + 1
        for first, behind in itertools.pairwise([0, *breaks.tolist(), len(starts)]):
            piece = RecordColumns(columns.buffer, columns.cols[first:behind], columns.base)
            self._take_piece(piece, base)
        self.held_count += len(columns)

    def _take_piece(self, columns: RecordColumns, base: int) -> None:
        settings, times = self._task.settings, columns.store_timestamp
        entries, refused = entries_of(columns, self._queues, settings)
        items = expected_items(columns) if settings.has_index else None
        item_count = len(items.key_hash) if items else 0
        kind = columns.sys_flag & TRANSACTION_MASK
        normal = times[(kind != TRANSACTION_PREPARED) & (kind != TRANSACTION_ROLLBACK)]
        believable = times[(times > 0) & (times <= self._task.latest_ms)]
        start = int(columns.physical_offset[0])
        found = Piece(
            base, start, int(columns.physical_offset[-1] + columns.size[-1]),
            len(columns), refused, len(entries.numbers), item_count,
            int(believable[-1]) if believable.size else 0,
            times[:_WITNESSES].tolist(), times[-_WITNESSES:].tolist(),
            normal[:_WITNESSES].tolist(), normal[-_WITNESSES:].tolist(),
        )  # fmt: skip
        pieces = self.facts.pieces
        if pieces and (pieces[-1].base, pieces[-1].stop) == (base, start):
            pieces[-1].add(found)
        else:
            pieces.append(found)
        if len(entries.numbers):
            self._entries.append((pieces[-1].start, entries))
        if items and item_count:
            self._items.append((pieces[-1].start, pieces[-1].item_count - item_count, items))

    def blocks(self) -> Iterator[pa.RecordBatch]:
        """Yield what was collected."""
        if self._entries:
            yield self._entry_blocks()
        if self._items:
            yield self._item_blocks()
        self._entries, self._items, self.held_count = [], [], 0

    def _entry_blocks(self) -> pa.RecordBatch:
        starts, parts = zip(*self._entries, strict=True)
        numbers = np.concatenate([one.numbers for one in parts])
        pieces = np.repeat(np.array(starts, np.int64), [len(one.numbers) for one in parts])
        names = self._queues.names
        # Of 16-bit numbers a stable sort is a radix sort.
        narrow = numbers.astype(np.uint16) if len(names) <= np.iinfo(np.uint16).max else numbers
        order = np.argsort(narrow, kind="stable")
        targets = [QUEUE_TARGET + one.directory.encode() if one.is_usable else b"" for one in names]
        entries = joined_entries([one.entries for one in parts])[order]
        return _block_rows(
            targets, numbers[order], pieces[order],
            np.concatenate([one.queue_offsets for one in parts])[order],
            entries["physical_offset"].astype(np.int64), np.ascontiguousarray(entries),
        )  # fmt: skip

    def _item_blocks(self) -> pa.RecordBatch:
        starts, firsts, parts = zip(*self._items, strict=True)
        counts = [len(one.key_hash) for one in parts]
        packed = np.empty(sum(counts), ITEM_DTYPE)
        packed["hash"] = np.concatenate([one.key_hash for one in parts])
        packed["physical"] = np.concatenate([one.physical_offset for one in parts])
        packed["stored"] = np.concatenate([one.store_timestamp_ms for one in parts])
        numbers = [np.arange(at, at + count) for at, count in zip(firsts, counts, strict=True)]
        return _block_rows(
            [INDEX_TARGET], np.zeros(len(packed), np.int64),
            np.repeat(np.array(starts, np.int64), counts), np.concatenate(numbers),
            packed["physical"], packed,
        )  # fmt: skip


def _block_rows(
    names: Sequence[bytes],
    targets: Int64Array,
    pieces: Int64Array,
    numbers: Int64Array,
    physical: Int64Array,
    packed: npt.NDArray[Any],
) -> pa.RecordBatch:
    """Cut packed entries or items into blocks, each of one target and piece, numbered in a row."""
    import pyarrow as pa  # noqa: PLC0415 - only where rows are made

    is_new = np.ones(len(packed), np.bool_)
    is_new[1:] = (
        (targets[1:] != targets[:-1])
        | (pieces[1:] != pieces[:-1])
        | (numbers[1:] != numbers[:-1] + 1)
    )
    runs = np.flatnonzero(is_new)
    # No block is longer than `_BLOCK_ROWS`.
    counts = -(-np.diff(np.append(runs, len(packed))) // _BLOCK_ROWS)
    nth = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(runs, counts) + nth * _BLOCK_ROWS
    edges = (np.append(starts, len(packed)) * ENTRY_SIZE_BYTES).astype(np.int32)
    content = packed.view(np.uint8)
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(content)]
    view, cuts = content.data, itertools.pairwise(edges.tolist())
    used = pa.DictionaryArray.from_arrays(pa.array(targets[starts], pa.int32()), list(names))
    columns = [
        used.cast(pa.binary()),
        *(pa.array(one[starts], pa.int64()) for one in (pieces, physical)),
        pa.array(np.arange(len(starts)), pa.int64()),
        pa.array(numbers[starts], pa.int64()),
        pa.BinaryArray.from_buffers(pa.binary(), len(starts), buffers),
        pa.array([zlib.crc32(view[start:stop]) for start, stop in cuts], pa.int64()),
        pa.nulls(len(starts), pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=_COLUMNS)
