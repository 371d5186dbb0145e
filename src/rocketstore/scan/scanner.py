"""Scan a CommitLog file, healthy or not, and account for every byte of it.

Law: scanning never writes and never raises for what it reads; every byte ends in exactly one
record, Blank, Damage, or the unwritten tail of zeros. Zeros with something written behind them are
no tail but Damage.

How derived: the walk follows the chain of lengths as CommitLog.recoverNormally does, and checks
more (the own address, the rest of the file). Where the chain breaks, 4.9 gives up; here the next
believable record is looked for (``resync``) and the bytes in between are reported.
Cost: one pass, plus one pass of the search over each damaged range.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from rocketstore.scan import kernels
from rocketstore.scan.columns import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    RecordColumns,
    StopReason,
    new_columns,
)
from rocketstore.units import ByteRange

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator

    import numpy.typing as npt

Buffer: TypeAlias = "npt.NDArray[np.uint8] | bytes | bytearray | memoryview | mmap.mmap"

BATCH_RECORDS: Final = 8192
"""Default records per batch: 1.8 MB of columns, which stay in the processor's cache."""


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
    """Bytes that belong to no record that can be believed.

    Attributes
    ----------
    range
        Physical offsets.
    evidence
        What was found at the first byte, for people.
    """

    range: ByteRange
    reason: DamageReason
    evidence: str


class ScanBatch(NamedTuple):
    """Records in physical order, and what stood between them.

    Attributes
    ----------
    columns
        The records of this batch.
    blanks, damage
        What was met before, between and behind these records, in physical order.
    run_starts
        Rows of records that were found by resynchronising: each begins a run of records that follow
        each other without a break. The first record of a scan is not among them unless it stands
        behind damage.
    end_of_data
        Physical offset behind the last record or Blank met so far; the scan's start when none was.
    unwritten_at
        Physical offset where the tail of zeros begins that nothing written follows; None when this
        batch did not reach such a tail.
    """

    columns: RecordColumns
    blanks: list[Blank]
    damage: list[Damage]
    run_starts: list[int]
    end_of_data: int
    unwritten_at: int | None


def as_bytes_array(buffer: Buffer) -> npt.NDArray[np.uint8]:
    """Return the bytes as a numpy array without copying them.

    Raises
    ------
    TypeError
        An array that is not one contiguous row of bytes.
    """
    if not isinstance(buffer, np.ndarray):
        return np.frombuffer(buffer, dtype=np.uint8)
    if buffer.dtype != np.uint8 or buffer.ndim != 1 or not buffer.flags.c_contiguous:
        raise TypeError(f"expected contiguous bytes, found {buffer.dtype} of shape {buffer.shape}")
    return buffer


def scan_segment(  # noqa: PLR0913 - keywords, each with a default
    buffer: Buffer,
    *,
    base: int,
    start: int = 0,
    stop: int | None = None,
    data_stop: int | None = None,
    file_size: int | None = None,
    check_crc: bool = True,
    batch_records: int = BATCH_RECORDS,
) -> Iterator[ScanBatch]:
    """Yield the records of one CommitLog file in batches, with blanks and damage.

    Parameters
    ----------
    buffer
        The bytes of one CommitLog file from its first byte; borrowed, and must outlive the batches'
        use. May be shorter than the file should be.
    base
        Physical offset of ``buffer[0]``, the number in the file's name.
    start
        Position of a record's first byte; what stands there is taken as it is.
    stop
        Records that start before this position are yielded, damage is cut off there; default: the
        end of the buffer.
    data_stop
        From here on the file is known to be zeros, so that nothing there is read: through a map,
        each page of a hole would become one of memory.
    file_size
        Nominal size of the file, default: the size of the buffer. A record must end inside it, and
        a BLANK must say exactly what remains of it.
    check_crc
        Whether bodies are compared with their CRC.
    batch_records
        Most records of a batch.

    Yields
    ------
    ScanBatch
        At least one, even when there is no record.
    """
    array = as_bytes_array(buffer)
    nominal_size = len(array) if file_size is None else file_size
    limit = min(len(array), nominal_size)
    end = limit if stop is None else min(stop, limit)
    scan = _Scan(array, base, nominal_size, check_crc=check_crc)
    if data_stop is not None:
        scan.data_stop = min(data_stop, limit)
        end = min(end, scan.data_stop)
    scan.position = start
    scan.end_of_data = base + start
    while True:
        yield scan.next_batch(end, batch_records)
        if scan.position >= end:
            return


class _Scan:
    """Where a scan stands between two batches."""

    def __init__(
        self, array: npt.NDArray[np.uint8], base: int, file_size: int, *, check_crc: bool
    ) -> None:
        self.array = array
        self.base = base
        self.file_size = file_size
        self.limit = min(len(array), file_size)
        self.data_stop = self.limit
        self.check_crc = check_crc
        self.position = 0
        self.end_of_data = base
        self.is_run_start = False

    def next_batch(self, stop: int, record_count: int) -> ScanBatch:
        cols = new_columns(record_count)
        count = 0
        unwritten_at = None
        blanks: list[Blank] = []
        damage: list[Damage] = []
        run_starts: list[int] = []
        while self.position < stop and count < record_count:
            found, position, code = kernels.walk(
                self.array,
                self.position,
                stop,
                self.base,
                self.file_size,
                self.check_crc,
                cols[count:],
            )
            self.position = position
            if found:
                self.end_of_data = self.base + position
                if self.is_run_start:
                    run_starts.append(count)
                    self.is_run_start = False
                count += found
            if code == StopReason.BLANK:
                blanks.append(self._take_blank())
            elif code != StopReason.END:
                reason = StopReason(code)
                damage_end, is_tail = self._step_over(reason)
                damage_end = min(damage_end, stop)
                if damage_end > position:
                    damage.append(self._damage(position, damage_end, reason))
                if is_tail and damage_end < stop:
                    unwritten_at = self.base + damage_end
        columns = RecordColumns(self.array, cols[:count], self.base)
        return ScanBatch(columns, blanks, damage, run_starts, self.end_of_data, unwritten_at)

    def _take_blank(self) -> Blank:
        blank = Blank(self.base + self.position, self.limit - self.position)
        self.position = self.limit
        self.end_of_data = self.base + self.limit
        self.is_run_start = False
        return blank

    def _step_over(self, reason: StopReason) -> tuple[int, bool]:
        """Go to the next believable record, else to the end of the file.

        Returns where the damage ends, and whether nothing but zeros follows it.
        """
        # Nothing believable stands at the break itself; zeros alone need no such care.
        begin = self.position + (reason != StopReason.UNWRITTEN)
        found = kernels.resync(self.array, begin, self.data_stop, self.base, self.file_size)
        if found >= 0:
            self.position = found
            self.is_run_start = True
            return found, False
        last_written = kernels.last_nonzero(self.array, self.position, self.data_stop)
        zeros_at = max(last_written + 1, self.position)
        self.position = self.limit
        return zeros_at, True

    def _damage(self, start: int, stop: int, reason: StopReason) -> Damage:
        extent = ByteRange(self.base + start, self.base + stop)
        name = "UNWRITTEN_HOLE" if reason is StopReason.UNWRITTEN else reason.name
        evidence = describe_break(self.array, start, reason, self.base, self.file_size)
        return Damage(extent, DamageReason[name], evidence)


def describe_break(  # noqa: PLR0911 - one sentence per reason
    array: npt.NDArray[np.uint8], position: int, reason: StopReason, base: int, file_size: int
) -> str:
    """Say what stands where a walk broke off, found against expected.

    Parameters are those of ``walk``; `reason` is what it returned for `position`.
    """
    head = array[position : position + 88].tobytes().ljust(88, b"\0")

    def number(at: int, size: int) -> int:
        return int.from_bytes(head[at : at + size], "big", signed=True)

    total, available = number(0, 4), len(array) - position
    if reason is StopReason.UNWRITTEN:
        return "zeros with written bytes behind them"
    if reason is StopReason.BAD_LENGTH:
        remaining = file_size - position
        return f"length: expected 91 to {remaining} or a blank of {remaining}, found {total}"
    if reason is StopReason.BAD_MAGIC:
        return f"magic: expected daa320a7, found {head[4:8].hex()}"
    if reason is StopReason.BAD_ADDRESS:
        return f"physical offset: expected {base + position}, found {number(28, 8)}"
    if reason is StopReason.BAD_CRC:
        sys_flag = number(36, 4)
        born, store = (12 * bool(sys_flag & bit) for bit in (BORN_HOST_V6, STORE_HOST_V6))
        body_at = position + 88 + born + store
        body_size = int.from_bytes(array[body_at - 4 : body_at].tobytes(), "big")
        computed = kernels.body_crc(array, body_at, body_size)
        return f"body CRC: expected {number(8, 4) & 0xFFFFFFFF:08x}, found {computed:08x}"
    if reason is StopReason.TRUNCATED:
        return f"length: {total} bytes, but the file ends after {available}"
    return (
        f"inner lengths do not add up to the record's {total} bytes, or its topic or properties "
        "were cut off or overwritten"
    )
