"""Scan a stretch of the CommitLog into rows, with facts from which `log_verdict` judges the log.

Entries of one queue whose queue offsets rise by one, and items, travel in blocks of up to 2,048, so
that Spark moves few rows and few bytes. A block never crosses a *piece*: records that follow one
another without a break inside one task. Faults of a log decide about whole pieces, and the facts of
a task tell all that is needed about its pieces, so nothing is read twice.
"""

from __future__ import annotations

import itertools
import zlib
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from rocketstore.config import StoreConfig, parse_delay_levels
from rocketstore.errors import StoreDamagedError
from rocketstore.format.batch_queue_entry import decode_batch_entry
from rocketstore.format.file_name import is_directory_name
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, LMQ_PREFIX
from rocketstore.pipeline.jobs.audit.audit_plan import scanned
from rocketstore.pipeline.jobs.execution import row_batch
from rocketstore.rules.batch_entries import entries_called_for
from rocketstore.rules.expectation import delay_array, expected_entries, expected_items
from rocketstore.rules.extra_queues import has_light_queues
from rocketstore.rules.log_rules import Chain, Stretch
from rocketstore.rules.queue_numbers import QueueNumbers, TaskQueue
from rocketstore.scan.columns import CallsFor, RecordColumns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rocketstore.native.row import BoolArray, ByteArray, Int64Array
    from rocketstore.pipeline.planning import SplitTask
    from rocketstore.rules.expectation import ExpectedEntries

    Row = tuple[bytes, int, int, int, int, bytes, int]


ROW_SCHEMA: Final = (
    "target BINARY, piece BIGINT, ordinal BIGINT, first BIGINT, count BIGINT, data BINARY, "
    "crc BIGINT"
)
"""A block: `target` is `INDEX_TARGET`, or `QUEUE_TARGET` and the queue's directory; `piece` the
physical offset at which its piece begins, in which `ordinal` orders the blocks of a target; `first`
the queue offset of the first entry, or the number of the first item in its piece. A negative
`count` is how many messages a record of a batch topic has, in a row that is no block. The last row
of a task has its facts."""

FACTS_TARGET: Final = b"f"
INDEX_TARGET: Final = b"i"
QUEUE_TARGET: Final = b"q"

ITEM_DTYPE: Final = np.dtype([("hash", "<i4"), ("physical", "<i8"), ("stored", "<i8")])
assert ITEM_DTYPE.itemsize == ENTRY_SIZE_BYTES

_BLOCK_ROWS: Final = 2_048
"""Most entries or items of a block: 40 KiB, of which packing leaves some 5."""

_HELD_RECORDS: Final = 131_072
"""Records whose entries and items are in memory until they are sorted into blocks."""


class ScanTask(NamedTuple):
    """Scan some ranges of a log; a store time later than `latest_ms` is a damaged header."""

    config: StoreConfig
    batch_topics: frozenset[str]
    latest_ms: int
    cuts: tuple[SplitTask, ...]


class Piece(msgspec.Struct, array_like=True):
    """What the records of a chain in one cut call for, by the offset at which it begins there.

    `refused_count` are records whose topic, queue id or queue offset cannot be true.
    """

    start: int
    refused_count: int = 0
    entry_count: int = 0
    item_count: int = 0


ScanFacts = tuple[list[Stretch], list[Piece]]
"""Facts that one task found."""


def scan_log(task: ScanTask) -> Iterator[pa.RecordBatch]:
    """Yield rows of `ROW_SCHEMA`."""
    scan = _LogScan(task)
    for cut in task.cuts:
        stretch = Stretch(cut.segment.base, cut.segment.base + cut.start)
        scan.stretches.append(stretch)
        for batch in scanned(cut):
            stretch.take(batch, task.latest_ms)
            if len(batch.columns):
                scan.take(batch.columns, stretch.chains)
            if scan.held_count >= _HELD_RECORDS and (rows := list(scan.blocks())):
                yield row_batch(rows, ROW_SCHEMA)
    facts = msgspec.msgpack.encode((scan.stretches, scan.pieces))
    yield row_batch([*scan.blocks(), (FACTS_TARGET, 0, 0, 0, 0, facts, 0)], ROW_SCHEMA)


class _LogScan:
    """Collects the entries and items of records until there are enough for blocks."""

    def __init__(self, task: ScanTask) -> None:
        self.stretches: list[Stretch] = []
        self.pieces: list[Piece] = []
        self.held_count = 0
        self._task = task
        self._delays = delay_array(parse_delay_levels(task.config.message_delay_level))
        self._queues = QueueNumbers(task.batch_topics)
        self._targets = {INDEX_TARGET: 0}
        self._target_of = np.zeros(0, np.int64)
        self._held: list[tuple[Int64Array, int, Int64Array, ByteArray]] = []
        self._batches: list[tuple[bytes, int, int, int]] = []
        self._ordinal = 0

    def take(self, columns: RecordColumns, chains: Sequence[Chain]) -> None:
        """Take records of the last of some chains."""
        places = columns.physical_offset
        first = bisect_right(chains, int(places[0]), key=lambda chain: chain.start) - 1
        for chain in chains[first:]:
            begin, past = np.searchsorted(places, (chain.start, chain.stop)).tolist()
            if begin < past:
                self._take_of(chain.start, columns.taken(slice(begin, past)))
        self.held_count += len(columns)

    def _take_of(self, start: int, columns: RecordColumns) -> None:
        """Take records of the piece that begins at a physical offset."""
        if not self.pieces or self.pieces[-1].start != start:
            self.pieces.append(Piece(start))
        piece = self.pieces[-1]
        before = self._queues.batch_count
        entries = self._entries_of(columns)
        is_normal = columns.call_for(CallsFor.ENTRY)
        batch_count = self._queues.batch_count - before
        piece.refused_count += int(is_normal.sum()) - int((~entries.is_extra).sum()) - batch_count
        piece.entry_count += len(entries.entries)
        for key, entry in entries_called_for(columns, self._queues):
            batch = decode_batch_entry(entry)
            if not batch.is_written:
                continue
            target = QUEUE_TARGET + str(key).encode()
            self._batches.append((target, start, batch.base_offset, -batch.message_count))
        targets = self._target_of[entries.queue_number]
        self._held.append((targets, start, entries.queue_offset, entries.entries.view(np.uint8)))
        if self._task.config.message_index_enable:
            items = expected_items(columns)
            made = np.empty(len(items.key_hash), ITEM_DTYPE)
            made["hash"], made["stored"] = items.key_hash, items.store_timestamp_ms
            made["physical"] = items.physical_offset
            numbers = np.arange(piece.item_count, piece.item_count + len(made))
            self._held.append((np.zeros_like(numbers), start, numbers, made.view(np.uint8)))
            piece.item_count += len(made)

    def _entries_of(self, columns: RecordColumns) -> ExpectedEntries:
        """Return the entries that dispatch would write, in the order of the log."""
        found = expected_entries(columns, self._queues, self._delays)
        new = self._queues.queues[len(self._target_of) :]
        if new:
            # Names that are not UTF-8 may be read as another queue's name.
            codes = [
                self._targets.setdefault(target, len(self._targets)) if target else -1
                for target in map(_target, new)
            ]
            self._target_of = np.append(self._target_of, codes)
        chosen = self._target_of[found.queue_number] >= 0
        if found.is_extra.any():
            chosen &= ~found.is_extra | self._is_dispatched(found, columns)
            # An extra entry follows that of its record.
            order = np.argsort(found.entries["physical_offset"], kind="stable")
            return found.rows(order[chosen[order]])
        return found if chosen.all() else found.rows(np.flatnonzero(chosen))

    def _is_dispatched(self, found: ExpectedEntries, columns: RecordColumns) -> BoolArray:
        """Return which extra entries dispatch writes with these settings (spec F8)."""
        queues, numbers = self._queues.queues, found.queue_number
        lmq, light = has_light_queues(self._task.config), LMQ_PREFIX.encode()
        is_light = np.array([lmq and one.topic.startswith(light) for one in queues])
        records = np.searchsorted(columns.physical_offset, found.entries["physical_offset"])
        wanted = np.where(is_light[numbers], 0, columns.queue_id[records])
        ids = np.array([queue.queue_id for queue in queues])
        is_wanted: BoolArray = ids[numbers] == wanted
        return is_wanted

    def blocks(self) -> Iterator[Row]:
        """Yield what was collected as rows, each of one target and piece, numbered in a row."""
        if not self._held:
            return
        targets, starts, numbers, contents = zip(*self._held, strict=True)
        for name, start, base, count in self._batches:
            self._ordinal += 1
            yield name, start, self._ordinal, base, count, b"", 0
        # Of 16-bit numbers a stable sort is a radix sort.
        kind = np.uint16 if len(self._targets) <= np.iinfo(np.uint16).max else np.int64
        target = np.concatenate(targets).astype(kind)
        order = np.argsort(target, kind="stable")
        target = target.take(order)
        piece = np.repeat(np.array(starts), [len(one) for one in numbers]).take(order)
        number = np.concatenate(numbers).take(order)
        # Joined as bytes: numpy turns the numbers of joined entries around.
        content = np.concatenate(contents).reshape(-1, ENTRY_SIZE_BYTES).take(order, axis=0)
        is_new = np.diff(number) != 1
        is_new |= (target[1:] != target[:-1]) | (piece[1:] != piece[:-1])
        names = list(self._targets)
        bounds = [0, *(np.flatnonzero(is_new) + 1).tolist(), len(number)]
        for first, after in itertools.pairwise(bounds):
            for start in range(first, after, _BLOCK_ROWS):
                stop = min(after, start + _BLOCK_ROWS)
                data = packed(content[start:stop])
                self._ordinal += 1
                yield (
                    names[int(target[start])], int(piece[start]), self._ordinal,
                    int(number[start]), stop - start, data, zlib.crc32(data),
                )  # fmt: skip
        self._held, self._batches, self.held_count = [], [], 0


def _target(queue: TaskQueue) -> bytes:
    """Return the target of a queue; nothing where no directory can have its name."""
    is_usable = is_directory_name(queue.name) and 0 <= queue.queue_id < 2**31
    return QUEUE_TARGET + f"{queue.name}/{queue.queue_id}".encode() if is_usable else b""


def packed(rows: ByteArray) -> bytes:
    """Return rows of 20 bytes in LZ4, all first bytes before all second: some 15 % of them."""
    content: bytes = pa.compress(rows.T.tobytes(), codec="lz4_raw", asbytes=True)
    return content


def unpacked(data: bytes, count: int, crc: int) -> ByteArray:
    """Return the bytes that `packed` was given; raise where they are not what was sent."""
    if zlib.crc32(data) != crc:
        raise StoreDamagedError(
            f"a block of {len(data)} bytes came out of Spark's shuffle with another checksum: "
            f"expected {crc:#010x}, found {zlib.crc32(data):#010x}",
            hint="nothing of this run counts; check the executors' disks, and run it again",
        )
    size = count * ENTRY_SIZE_BYTES
    plain = b""
    if count:
        plain = pa.decompress(data, decompressed_size=size, codec="lz4_raw", asbytes=True)
    return np.frombuffer(plain, np.uint8).reshape(ENTRY_SIZE_BYTES, -1).T.reshape(-1)
