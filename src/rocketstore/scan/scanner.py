"""Scan a CommitLog file, or a range of it, healthy or not, and account for every byte.

Bytes in memory are seen whole; a file that has to be read is seen through a window that moves. A
scan that begins inside a file follows the chain from a believable record before: records in a body
are stepped over.

Law: scanning never writes and never raises because of the bytes; every byte ends in exactly
one record, Blank, Damage, or the unwritten tail of zeros that nothing follows. Records after damage
are those that ``walk`` accepts with checksums. Ranges, through windows of any length, give together
the scan of the whole: a verdict that only a window's edge caused never counts. How derived:
CommitLog.recoverNormally, which gives up where the chain of lengths breaks. Cost: one pass, and a
search over each damage; the window in memory, or one record that is longer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

import numpy as np

from rocketstore.format.record import FIXED_SIZE, RECORD_MAGICS, body_crc
from rocketstore.scan import kernels
from rocketstore.scan.columns import RecordColumns, StopReason, new_columns
from rocketstore.units import ByteRange, KiB, MiB

if TYPE_CHECKING:
    import mmap

    from rocketstore.native.row import ByteArray, Int64Array

Buffer: TypeAlias = "ByteArray | bytes | bytearray | memoryview | mmap.mmap"

BATCH_RECORDS: Final = 8192
"""Default records per batch: 1.8 MB of columns, which stay in the processor's cache."""

LOOKBACK_BYTES: Final = 4 * MiB + 64 * KiB
"""The longest record with 4.9's limits (a body of 4 MiB and 64 KiB around it). Where nothing is
found there, the search goes further back; it costs a few milliseconds."""

WINDOW_BYTES: Final = 8 * MiB
"""Default length of the window: some thousand records, and one request to an object store."""

WINDOW_MIN_BYTES: Final = 256
"""A window holds at least the fixed part of a record, which ends before byte 128."""

_FIXED_PART_BYTES: Final = 128
_LAST_RECORD_BYTES: Final = 64 * KiB
_RECORD_MAGIC: Final = re.compile(b"|".join(map(re.escape, RECORD_MAGICS)))


class ByteSource(Protocol):
    """A file that can be read at any position."""

    def read_into(self, position: int, view: memoryview) -> int:
        """Fill `view` with the bytes from `position` on; return how many there were."""
        ...


class DamageReason(Enum):
    """Why bytes are no record: what broke first where the damage begins."""

    UNWRITTEN_HOLE = "unwritten hole"
    BAD_LENGTH = "bad length"
    BAD_MAGIC = "bad magic"
    BAD_ADDRESS = "bad address"
    BAD_FIELDS = "bad fields"
    BAD_CRC = "bad crc"
    TRUNCATED = "truncated"


class Blank(NamedTuple):
    """The filler at the end of a file: everything from here to the file's end (spec F3.1)."""

    physical_offset: int
    size: int


class Damage(NamedTuple):
    """Physical offsets of bytes that belong to no record, and what was found at the first."""

    range: ByteRange
    reason: DamageReason
    evidence: str


class ScanBatch(NamedTuple):
    """Records in physical order, and the blanks and damage between them.

    `run_starts` are the rows of records that stand right after damage: each begins an unbroken run.
    `end_of_data` is the physical offset after the last record or Blank met so far, the scan's start
    when none was; `unwritten_at` where the tail of zeros begins that nothing written follows, also
    before the range, or at the file's end after damage; None when this batch reached no tail.
    """

    columns: RecordColumns
    blanks: list[Blank]
    damage: list[Damage]
    run_starts: list[int]
    end_of_data: int
    unwritten_at: int | None

    def damage_up_to(self, end: int) -> list[Damage]:
        """Return the damage of a file up to its `end`, where another one with records follows.

        The log did not end in this file, so its empty end was lost.
        """
        if self.unwritten_at is None or self.unwritten_at >= end:
            return self.damage
        return [*self.damage, lost_end(self.unwritten_at, end)]


def lost_end(start: int, end: int) -> Damage:
    """Return the damage of a file that is empty up to its `end`, where another one follows."""
    evidence = "zeros up to the file's end, where a BLANK should be; the log goes on in the next"
    return Damage(ByteRange(start, end), DamageReason.UNWRITTEN_HOLE, f"{evidence} file")


def as_bytes_array(buffer: Buffer) -> ByteArray:
    """Return the bytes as a numpy array without copying them; TypeError for other arrays."""
    if not isinstance(buffer, np.ndarray):
        return np.frombuffer(buffer, dtype=np.uint8)
    if buffer.dtype != np.uint8 or buffer.ndim != 1 or not buffer.flags.c_contiguous:
        raise TypeError(f"expected contiguous bytes, found {buffer.dtype} of shape {buffer.shape}")
    return buffer


def scan_window(  # noqa: PLR0913 - keywords, each a fact of the range
    source: ByteSource | Buffer,
    *,
    base: int,
    size: int | None = None,
    start: int = 0,
    stop: int | None = None,
    file_size: int | None = None,
    data_stop: int | None = None,
    check_crc: bool = True,
    batch_records: int = BATCH_RECORDS,
    lookback_bytes: int = LOOKBACK_BYTES,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[ScanBatch]:
    """Yield the records, blanks and damage of the positions ``[start, stop)`` of a CommitLog file.

    What starts there belongs there, as a whole.

    Parameters
    ----------
    source, base, size
        The file: its bytes from the first one on, borrowed, or what reads them, which needs the
        `size`; and the physical offset of the first.
    file_size
        Nominal size, default `size`: a record ends inside it, a BLANK says what remains of it.
    data_stop
        From here on the file is known to be zeros, and nothing is read: through a map, each page of
        a hole would become one of memory.
    lookback_bytes
        How far before `start` the chain of records is looked for that leads into the range. 0 takes
        what stands at `start` for the first byte of a record, BLANK or break.
    window_bytes
        Bytes held at a time where they are read, at least ``WINDOW_MIN_BYTES``.

    Yields
    ------
    ScanBatch
        At least one. Where bytes are read, its columns are valid until the next batch.
    """
    scan = _Scan(source, base, size, file_size)
    scan.check_crc = check_crc
    scan.window_bytes = max(window_bytes, WINDOW_MIN_BYTES)
    if data_stop is not None:
        scan.data_stop = min(data_stop, scan.limit)
    scan.first = start
    scan.stop = scan.limit if stop is None else min(stop, scan.limit)
    scan.position = scan.anchor(start, lookback_bytes) if lookback_bytes else start
    scan.end_of_data = base + scan.position
    while True:
        yield scan.next_batch(batch_records)
        if scan.position >= scan.stop:
            return


class _Scan:
    """Position of a scan, and the piece of the file in its window."""

    def __init__(
        self, source: ByteSource | Buffer, base: int, size: int | None, file_size: int | None
    ) -> None:
        self.at = 0
        if hasattr(source, "read_into"):
            assert size is not None, "how long a file is that has to be read"
            self.source: ByteSource | None = source
            self.array = self._memory = np.empty(0, dtype=np.uint8)
            self.size = size
        else:
            self.source = None
            self.array = as_bytes_array(source)
            self.size = len(self.array)
        self.base = base
        self.file_size = self.size if file_size is None else file_size
        self.limit = self.data_stop = min(self.size, self.file_size)
        self.check_crc = True
        self.window_bytes = WINDOW_BYTES
        self.first = self.stop = self.position = 0
        self.end_of_data = base
        self.is_run_start = False

    @property
    def window_stop(self) -> int:
        return self.at + len(self.array)

    def load(self, position: int, size: int | None = None) -> None:
        """Move the window so that it begins at `position`."""
        wanted = size
        if wanted is None:
            # The walk has to see zeros after the data as long as a record's head, and the rest of
            # the range's last record, which is seldom longer.
            last = self.data_stop
            if position < self.stop:
                last = min(last, self.stop + _LAST_RECORD_BYTES)
            unread = last - position + WINDOW_MIN_BYTES
            wanted = min(self.window_bytes, max(unread, WINDOW_MIN_BYTES))
        wanted = max(0, min(wanted, self.size - position))
        if len(self._memory) < wanted:
            # No longer than needed: a file shorter than the window is read as a whole.
            self._memory = np.empty(wanted, dtype=np.uint8)
        self.array = self._filled(self._memory[:wanted], position)
        self.at = position

    def _filled(self, array: ByteArray, position: int) -> ByteArray:
        assert self.source is not None, "the whole file is in sight"
        # Cut short since its size was read: missing bytes read as never written.
        array[self.source.read_into(position, array.data) :] = 0
        return array

    def has_all(self, position: int, size: int) -> bool:
        """Whether the window holds so many bytes from `position` on, or all that the file has."""
        return self.at <= position and self.window_stop >= min(position + size, self.size)

    def walk(self, position: int, stop: int, cols: Int64Array) -> tuple[int, int, StopReason]:
        """Walk from `position` as far as the window goes."""
        if not self.has_all(position, _FIXED_PART_BYTES):
            self.load(position)
        found, reached, code = kernels.walk(
            self.array,
            position - self.at,
            stop - self.at,
            self.base + self.at,
            self.file_size - self.at,
            self.check_crc,
            cols,
        )
        return found, reached + self.at, StopReason(code)

    def next_batch(self, record_count: int) -> ScanBatch:
        cols = new_columns(record_count)
        blanks: list[Blank] = []
        damage: list[Damage] = []
        run_starts: list[int] = []
        unwritten_at: int | None = None
        count = 0
        while self.position < self.stop and count < record_count:
            if self.position >= self.data_stop:
                unwritten_at, self.position = self.base + self.position, self.limit
                break
            stop = min(self.stop, self.data_stop)
            found, self.position, code = self.walk(self.position, stop, cols[count:])
            if found:
                self.end_of_data = self.base + self.position
                if self.is_run_start:
                    run_starts.append(count)
                    self.is_run_start = False
                count += found
                if self.source:
                    break  # what comes next may move the window that these rows borrow
            if code not in (StopReason.END, StopReason.BLANK) and self.source:
                code = self._confirm(code, cols)
            if code == StopReason.BLANK:
                blanks.append(Blank(self.base + self.position, self.limit - self.position))
                self.position = self.limit
                self.end_of_data = self.base + self.limit
                self.is_run_start = False
            elif code != StopReason.END:
                unwritten_at = self._take_break(code, damage)
        columns = RecordColumns(self.array, cols[:count], self.base + self.at)
        batch = ScanBatch(columns, blanks, damage, run_starts, self.end_of_data, unwritten_at)
        return self._from_first(batch)

    def _confirm(self, code: StopReason, cols: Int64Array) -> StopReason:
        """Look again at a break, with the window moved there and as long as the record claims.

        Returns the verdict that the whole file would have given, END when there is no break. The
        bytes are fresh: a writer that was in the middle of a record has finished it by then.
        """
        if self.at != self.position:
            self.load(self.position)
            _, _, code = self.walk(self.position, self.position + 1, cols[:1])
        if code == StopReason.TRUNCATED and self.window_stop < self.size:
            claimed = self._claimed_size(self.position)
            if claimed < 0:
                return StopReason(-claimed)
            self.load(self.position, claimed)
            _, _, code = self.walk(self.position, self.position + 1, cols[:1])
        return code

    def _claimed_size(self, position: int) -> int:
        """Return what ``claimed_size`` says of a record that the window cuts off."""
        at = self.at
        return kernels.claimed_size(self.array, position - at, self.base + at, self.size - at)

    def _take_break(self, reason: StopReason, damage: list[Damage]) -> int | None:
        """Step over a break to the next believable record, and note its damage.

        Returns where the unwritten tail begins, if one follows and is to be reported.
        """
        start = self.position
        base, file_size = self.base + self.at, self.file_size - self.at
        left = self.size - start
        evidence = describe_break(self.array, start - self.at, reason, base, file_size, left)
        # No believable record is at the break itself; zeros alone need no such care.
        found = self.find(start + (reason != StopReason.UNWRITTEN), self.limit)
        if found is None:
            stop = max(self._last_nonzero(start) + 1, start)
            self.position = self.limit
        else:
            stop = self.position = found
            self.is_run_start = True
        if stop > start:
            name = "UNWRITTEN_HOLE" if reason is StopReason.UNWRITTEN else reason.name
            extent = ByteRange(self.base + start, self.base + stop)
            damage.append(Damage(extent, DamageReason[name], evidence))
        return self.base + stop if found is None else None

    def _from_first(self, batch: ScanBatch) -> ScanBatch:
        """Return the batch without the records before the range."""
        first = self.base + self.first
        columns = batch.columns
        dropped = int(columns.physical_offset.searchsorted(first))
        return batch._replace(
            columns=columns.taken(slice(dropped, None)),
            blanks=[blank for blank in batch.blanks if blank.physical_offset >= first],
            damage=[one for one in batch.damage if one.range.start >= first],
            run_starts=[row - dropped for row in batch.run_starts if row >= dropped],
        )

    def anchor(self, start: int, lookback_bytes: int) -> int:
        """Return the position to follow the chain from: a believable record, or the first one."""
        # Only zeros stand after the data, so what reaches into the range begins before them.
        start = min(start, self.data_stop)
        while lookback_bytes < start:
            found = self.find(start - lookback_bytes, start)
            if found is not None:
                return found
            lookback_bytes *= 4
        return 0

    def find(self, position: int, stop: int) -> int | None:
        """Return where the first believable record or BLANK in ``[position, stop)`` starts."""
        # A record cannot begin after the data; a BLANK neither, for it is not zeros.
        stop = min(stop, self.data_stop, self.limit)
        while position < stop:
            if not self.has_all(position, _FIXED_PART_BYTES):
                self.load(position)
            reaches_end = self.window_stop >= self.size
            # A record too near the window's edge to be judged waits for the next window.
            edge = self.window_stop - (0 if reaches_end else _FIXED_PART_BYTES)
            piece_stop = min(stop, max(edge, position + 1))
            at = self.at
            found = kernels.resync(
                self.array, position - at, piece_stop - at, self.base + at, self.file_size - at
            )
            believed = piece_stop if found < 0 else at + int(found)
            if not reaches_end:
                earlier = self._find_longer(position, believed)
                if earlier is not None:
                    return earlier
            if found >= 0:
                return believed
            position = piece_stop
        return None

    def _find_longer(self, position: int, stop: int) -> int | None:
        """Return the first believable record in ``[position, stop)`` that the window cuts off."""
        # The last magic number in there is that of a record which starts right before `stop`.
        heads = self.array[position - self.at : stop - self.at + 7].data
        for match in _RECORD_MAGIC.finditer(heads, 4):
            candidate = position + match.start() - 4
            if not self.has_all(candidate, _FIXED_PART_BYTES):
                continue
            claimed = self._claimed_size(candidate)
            if claimed < 0 or candidate + claimed <= self.window_stop:
                continue
            array = self._filled(np.empty(claimed, dtype=np.uint8), candidate)
            base, file_size = self.base + candidate, self.file_size - candidate
            # With checksums: what is found after damage has to prove itself.
            if kernels.walk(array, 0, 1, base, file_size, True, new_columns(1))[0]:  # noqa: FBT003
                return candidate
        return None

    def _last_nonzero(self, position: int) -> int:
        """Return the position of the last byte from `position` on that is not zero, else -1."""
        stop = self.data_stop
        while stop > position:
            begin = max(position, stop - self.window_bytes)
            if not (self.at <= begin and self.window_stop >= stop):
                self.load(begin, stop - begin)
            last = kernels.last_nonzero(self.array, begin - self.at, stop - self.at)
            if last >= 0:
                return int(last) + self.at
            stop = begin
        return -1


def describe_break(  # noqa: PLR0911 - one sentence per reason
    array: ByteArray, position: int, reason: StopReason, base: int, file_size: int, left: int
) -> str:
    """Describe the bytes where a walk stopped, `left` of the file; parameters are of ``walk``."""
    head = array[position : position + 88].tobytes().ljust(88, b"\0")

    def number(at: int, size: int) -> int:
        return int.from_bytes(head[at : at + size], "big", signed=True)

    total = number(0, 4)
    if reason is StopReason.UNWRITTEN:
        return "zeros with written bytes after them"
    if reason is StopReason.BAD_LENGTH:
        remaining = file_size - position
        of_record = f"{FIXED_SIZE} to {remaining} or " if remaining >= FIXED_SIZE else ""
        return f"expected {of_record}a blank of {remaining}, found {total}"
    if reason is StopReason.BAD_MAGIC:
        return f"magic: expected daa320a7, found {head[4:8].hex()}"
    if reason is StopReason.BAD_ADDRESS:
        return f"physical offset: expected {base + position}, found {number(28, 8)}"
    if reason is StopReason.BAD_CRC:
        cols, check_crc = new_columns(1), False
        kernels.walk(array, position, position + 1, base, file_size, check_crc, cols)
        computed = body_crc(RecordColumns(array, cols, base).body(0))
        return f"body CRC: expected {number(8, 4) & 0xFFFFFFFF:08x}, found {computed:08x}"
    if reason is StopReason.TRUNCATED:
        return f"{total} bytes, but the file ends after {left}"
    return (
        f"inner lengths do not add up to the record's {total} bytes, or its topic or properties "
        "were cut off or overwritten"
    )
