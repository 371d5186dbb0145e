"""Scan a stretch of the CommitLog into rows: packed queue entries, packed index items, facts.

Entries of one queue whose queue offsets rise by one, and items, travel in blocks of up to 2,048, so
that Spark moves few rows and few bytes. A block never crosses a *piece*: records that follow one
another without a break inside one task. What is wrong with a log decides over whole pieces, and the
facts of a task say everything that has to be known of its pieces, so nothing is read twice.
"""

from __future__ import annotations

import itertools
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec
import numpy as np

from rocketstore.config import parse_delay_levels
from rocketstore.errors import StoreDamagedError
from rocketstore.format.file_name import is_directory_name
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.message import TRANSACTION_PREPARED
from rocketstore.pipeline.log_read import read_split
from rocketstore.scan.columns import RecordColumns
from rocketstore.scan.dispatch_state import NO_LEVEL_DELAY_MS
from rocketstore.verification.expectation import (
    LIGHT_QUEUE_PREFIX,
    expected_entries,
    expected_items,
)
from rocketstore.verification.log_rules import Damaged
from rocketstore.verification.queue_numbers import QueueNumbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from rocketstore.config import StoreConfig
    from rocketstore.pipeline.planning import SplitTask
    from rocketstore.verification.expectation import ExpectedEntries
    from rocketstore.verification.queue_numbers import TaskQueue

    Int64Array = npt.NDArray[np.int64]
    Bytes = npt.NDArray[np.uint8]
    Row = tuple[bytes, int, int, int, int, bytes, int]

ROW_SCHEMA: Final = (
    "target BINARY, piece LONG, ordinal LONG, first LONG, count LONG, data BINARY, crc LONG"
)
"""A block: `target` is `INDEX_TARGET`, or `QUEUE_TARGET` and the queue's directory; `piece` the
physical offset at which its piece begins, in which `ordinal` orders the blocks of a target; `first`
the queue offset of the first entry, or the number of the first item in its piece. The last row of a
task has its facts."""

FACTS_TARGET: Final = b"f"
INDEX_TARGET: Final = b"i"
QUEUE_TARGET: Final = b"q"

ITEM_DTYPE: Final = np.dtype([("hash", "<i4"), ("physical", "<i8"), ("stored", "<i8")])
assert ITEM_DTYPE.itemsize == ENTRY_SIZE_BYTES

_BLOCK_ROWS: Final = 2_048
"""Most entries or items of a block: 40 KiB, of which packing leaves some 5."""

_UNPACKED_ROWS: Final = 16
"""So few entries or items are sent as they are."""

_HELD_RECORDS: Final = 131_072
"""Records whose entries and items are in memory until they are sorted into blocks."""

_WITNESSES: Final = 3
"""Times at each end of a piece, for the verdict on records after damage."""


class Dispatch(NamedTuple):
    """Settings by which dispatch enters records.

    Attributes
    ----------
    delays_ms
        Delay of each level, from index 1; a level without one waits a second (spec F5).
    """

    delays_ms: tuple[int, ...]
    has_index: bool
    multi_dispatch: bool
    lmq: bool

    @classmethod
    def of(cls, config: StoreConfig) -> Self:
        """Return those of a configuration."""
        levels = parse_delay_levels(config.message_delay_level)
        last = max(levels, default=0)
        return cls(
            tuple(levels.get(level, NO_LEVEL_DELAY_MS) for level in range(last + 1)),
            config.message_index_enable,
            config.enable_multi_dispatch,
            config.enable_lmq,
        )


class ScanTask(NamedTuple):
    """Scan some splits; a store time later than `latest_ms` is a damaged header."""

    splits: tuple[SplitTask, ...]
    dispatch: Dispatch
    latest_ms: int


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
        Store times of the first and last records: of all, and of those that are neither prepared
        nor rolled back.
    """

    base: int
    start: int
    stop: int
    record_count: int
    refused_count: int
    entry_count: int
    item_count: int
    last_ms: int
    head: list[list[int]]
    tail: list[list[int]]

    def extend(self, more: Piece) -> None:
        """Add what follows."""
        self.stop = more.stop
        self.record_count += more.record_count
        self.refused_count += more.refused_count
        self.entry_count += more.entry_count
        self.item_count += more.item_count
        self.last_ms = more.last_ms or self.last_ms
        self.head = [(a + b)[:_WITNESSES] for a, b in zip(self.head, more.head, strict=True)]
        self.tail = [(a + b)[-_WITNESSES:] for a, b in zip(self.tail, more.tail, strict=True)]


class ScanFacts(msgspec.Struct, array_like=True):
    """What one task has met."""

    pieces: list[Piece]
    damage: list[Damaged]


def scan_log(task: ScanTask) -> Iterator[pa.RecordBatch]:
    """Yield rows of `ROW_SCHEMA`."""
    scan = _LogScan(task)
    for split in task.splits:
        for columns, found in read_split(split):
            scan.facts.damage += [
                Damaged(one.range.start, one.range.stop, one.reason.value, one.evidence)
                for one, _ in found
            ]
            starts, sizes = columns.physical_offset, columns.size
            breaks = np.flatnonzero(starts[1:] != starts[:-1] + sizes[:-1]) + 1
            for first, after in itertools.pairwise([0, *breaks.tolist(), len(starts)]):
                if first < after:
                    rows = columns.cols[first:after]
                    scan.take(RecordColumns(columns.buffer, rows, columns.base), split.segment.base)
            if scan.held_count >= _HELD_RECORDS:
                yield _batch(scan.blocks())
    yield _batch(scan.blocks())
    yield _batch([(FACTS_TARGET, 0, 0, 0, 0, msgspec.msgpack.encode(scan.facts), 0)])


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 - an import of this package loads no Arrow

    columns = zip(*rows, strict=True) if rows else [()] * 7
    fields = [column.split() for column in ROW_SCHEMA.split(", ")]
    kinds = {"BINARY": pa.binary(), "LONG": pa.int64()}
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kinds[kind]) for column, (_, kind) in zip(columns, fields, strict=True)],
        names=[name for name, _ in fields],
    )


class _LogScan:
    """Collects what records call for until there is enough for blocks."""

    def __init__(self, task: ScanTask) -> None:
        self.facts = ScanFacts([], [])
        self.held_count = 0
        self._task = task
        self._delays = np.array(task.dispatch.delays_ms, np.int64)
        self._queues = QueueNumbers()
        self._targets: list[bytes] = []
        self._is_usable = np.zeros(0, np.bool_)
        self._entries: list[tuple[int, ExpectedEntries]] = []
        self._items: list[tuple[int, int, Any]] = []
        self._ordinal = 0

    def take(self, columns: RecordColumns, base: int) -> None:
        """Take records of a file that follow one another; the file begins at `base`."""
        times, is_normal = columns.store_timestamp, columns.sys_flag & TRANSACTION_PREPARED == 0
        entries, refused_count = self._entries_of(columns, int(is_normal.sum()))
        items = expected_items(columns) if self._task.dispatch.has_index else None
        item_count = len(items.key_hash) if items else 0
        believable = times[(times > 0) & (times <= self._task.latest_ms)]
        normal = times[is_normal]
        piece = Piece(
            base, int(columns.physical_offset[0]),
            int(columns.physical_offset[-1] + columns.size[-1]),
            len(columns), refused_count, len(entries.entries), item_count,
            int(believable[-1]) if believable.size else 0,
            [times[:_WITNESSES].tolist(), normal[:_WITNESSES].tolist()],
            [times[-_WITNESSES:].tolist(), normal[-_WITNESSES:].tolist()],
        )  # fmt: skip
        pieces = self.facts.pieces
        if pieces and (pieces[-1].base, pieces[-1].stop) == (base, piece.start):
            pieces[-1].extend(piece)
        else:
            pieces.append(piece)
        self._entries.append((pieces[-1].start, entries))
        if items:
            self._items.append((pieces[-1].start, pieces[-1].item_count - item_count, items))
        self.held_count += len(columns)

    def _entries_of(self, columns: RecordColumns, normal_count: int) -> tuple[ExpectedEntries, int]:
        """Return entries in the order of the log, and how many records can have none."""
        found = expected_entries(columns, self._queues, self._delays)
        self._name_queues()
        chosen = self._is_usable[found.queue_number]
        own = ~found.is_extra
        refused_count = normal_count - int((chosen & own).sum())
        if not own.all():
            chosen &= own | self._is_dispatched(found, columns)
            # An extra entry follows that of its record.
            order = np.argsort(found.entries["physical_offset"], kind="stable")
            return found.rows(order[chosen[order]]), refused_count
        return found if chosen.all() else found.rows(np.flatnonzero(chosen)), refused_count

    def _name_queues(self) -> None:
        new = self._queues.queues[len(self._targets) :]
        if new:
            self._targets += [_target(queue) for queue in new]
            self._is_usable = np.array([bool(one) for one in self._targets])

    def _is_dispatched(
        self, found: ExpectedEntries, columns: RecordColumns
    ) -> npt.NDArray[np.bool_]:
        """Return which extra entries dispatch writes with these settings (spec F8)."""
        settings, queues = self._task.dispatch, self._queues.queues
        if not settings.multi_dispatch:
            return np.zeros(len(found.entries), np.bool_)
        light = LIGHT_QUEUE_PREFIX.encode()
        is_light = np.array([settings.lmq and one.topic.startswith(light) for one in queues])
        records = np.searchsorted(columns.physical_offset, found.entries["physical_offset"])
        wanted = np.where(is_light[found.queue_number], 0, columns.queue_id[records])
        ids = np.array([queue.queue_id for queue in queues])
        is_dispatched: npt.NDArray[np.bool_] = ids[found.queue_number] == wanted
        return is_dispatched

    def blocks(self) -> list[Row]:
        """Return what was collected as rows."""
        rows = [*self._entry_blocks(), *self._item_blocks()]
        self._entries, self._items, self.held_count = [], [], 0
        return rows

    def _entry_blocks(self) -> Iterator[Row]:
        if not self._entries:
            return
        starts, parts = zip(*self._entries, strict=True)
        # Names that are no UTF-8 may be read as one that another queue has.
        targets = list(dict.fromkeys(self._targets))
        codes = {target: code for code, target in enumerate(targets)}
        code_of = np.array([codes[target] for target in self._targets])
        # Of 16-bit numbers a stable sort is a radix sort.
        kind = np.uint16 if len(targets) <= np.iinfo(np.uint16).max else np.int64
        queues = code_of[np.concatenate([one.queue_number for one in parts])].astype(kind)
        order = np.argsort(queues, kind="stable")
        # Joined as bytes: numpy turns the numbers of joined entries around.
        entries = np.concatenate([one.entries.view(np.uint8) for one in parts])
        yield from self._cut(
            targets, queues[order],
            np.repeat(np.array(starts), [len(one.entries) for one in parts])[order],
            np.concatenate([one.queue_offset for one in parts])[order],
            entries.reshape(-1, ENTRY_SIZE_BYTES)[order],
        )  # fmt: skip

    def _item_blocks(self) -> Iterator[Row]:
        if not self._items:
            return
        starts, firsts, parts = zip(*self._items, strict=True)
        counts = [len(one.key_hash) for one in parts]
        packed = np.empty(sum(counts), ITEM_DTYPE)
        packed["hash"] = np.concatenate([one.key_hash for one in parts])
        packed["physical"] = np.concatenate([one.physical_offset for one in parts])
        packed["stored"] = np.concatenate([one.store_timestamp_ms for one in parts])
        numbers = [np.arange(at, at + count) for at, count in zip(firsts, counts, strict=True)]
        yield from self._cut(
            [INDEX_TARGET], np.zeros(len(packed), np.int64), np.repeat(np.array(starts), counts),
            np.concatenate(numbers), packed.view(np.uint8).reshape(-1, ENTRY_SIZE_BYTES),
        )  # fmt: skip

    def _cut(
        self,
        names: Sequence[bytes],
        targets: npt.NDArray[Any],
        pieces: Int64Array,
        numbers: Int64Array,
        content: Bytes,
    ) -> Iterator[Row]:
        """Yield blocks of what is sorted by target, each of one piece and numbered in a row."""
        is_new = np.diff(numbers) != 1
        is_new |= (targets[1:] != targets[:-1]) | (pieces[1:] != pieces[:-1])
        bounds = [0, *(np.flatnonzero(is_new) + 1).tolist(), len(numbers)]
        for first, after in itertools.pairwise(bounds):
            for start in range(first, after, _BLOCK_ROWS):
                stop = min(after, start + _BLOCK_ROWS)
                data = packed(content[start:stop])
                self._ordinal += 1
                yield (
                    names[int(targets[start])], int(pieces[start]), self._ordinal,
                    int(numbers[start]), stop - start, data, zlib.crc32(data),
                )  # fmt: skip


def _target(queue: TaskQueue) -> bytes:
    """Return the target of a queue; nothing where no directory can have its name."""
    is_usable = is_directory_name(queue.name) and 0 <= queue.queue_id < 2**31
    return QUEUE_TARGET + f"{queue.name}/{queue.queue_id}".encode() if is_usable else b""


def packed(rows: Bytes) -> bytes:
    """Return rows of 20 bytes in LZ4, all first bytes before all second: some 15 % of them."""
    if len(rows) <= _UNPACKED_ROWS:
        return rows.tobytes()
    import pyarrow as pa  # noqa: PLC0415 - as above

    content: bytes = pa.compress(rows.T.tobytes(), codec="lz4_raw", asbytes=True)
    return content


def unpacked(data: bytes, count: int, crc: int) -> Bytes:
    """Return the bytes that `packed` was given.

    Raises
    ------
    StoreDamagedError
        They are not what was sent.
    """
    if zlib.crc32(data) != crc:
        raise StoreDamagedError(
            f"a block of {len(data)} bytes came out of Spark's shuffle with another checksum: "
            f"expected {crc:#010x}, found {zlib.crc32(data):#010x}",
            hint="nothing was replaced; check the executors' disks and memory, and run the "
            "rebuild again",
        )
    if count > _UNPACKED_ROWS:
        import pyarrow as pa  # noqa: PLC0415 - as above

        size = count * ENTRY_SIZE_BYTES
        plain = pa.decompress(data, decompressed_size=size, codec="lz4_raw", asbytes=True)
        return np.frombuffer(plain, np.uint8).reshape(ENTRY_SIZE_BYTES, -1).T.reshape(-1)
    return np.frombuffer(data, np.uint8)
