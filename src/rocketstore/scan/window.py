"""Scan a range of a CommitLog file that is read piece by piece, in bounded memory.

``scan_split`` wants the bytes of the whole file; a task of a cluster has a file of a gigabyte
somewhere else and a share of the machine's memory. Here a window of the file is held at a time. The
kernels do not notice: they compare everything with `base` and `file_size`, which move along.

Law: what is yielded is what ``scan_split`` yields for the whole file. A verdict that only the
window's edge caused is never believed: the window is moved there, and made longer for a record that
states its own place and is longer than the window. Memory: the window, or one such record.
Law: bytes are read with reads, never mapped, so a file that is cut short meanwhile is no crash.

How derived: the window is moved to a break before it is called one, so every break is looked at
twice with fresh bytes; a writer that was in the middle of a record has finished it by then.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from rocketstore.scan import kernels
from rocketstore.scan.columns import RecordColumns, StopReason, new_columns
from rocketstore.scan.scanner import (
    BATCH_RECORDS,
    Blank,
    Damage,
    DamageReason,
    ScanBatch,
    describe_break,
)
from rocketstore.scan.split import LOOKBACK_BYTES
from rocketstore.units import ByteRange, KiB, MiB

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

WINDOW_BYTES: Final = 8 * MiB
"""Default length of the window: some thousand records, and one request to an object store."""

WINDOW_MIN_BYTES: Final = 256
"""A window holds at least the fixed part of a record, which ends before byte 128."""

_FIXED_PART_BYTES: Final = 128
_LAST_RECORD_BYTES: Final = 64 * KiB
_RECORD_MAGIC: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]")


class ByteSource(Protocol):
    """A file that can be read at any position."""

    def read_into(self, position: int, view: memoryview) -> int:
        """Fill `view` with the bytes from `position` on; return how many there were."""
        ...


def scan_window(  # noqa: PLR0913 - keywords, each a fact of the range
    source: ByteSource,
    *,
    base: int,
    size: int,
    start: int,
    stop: int,
    file_size: int | None = None,
    data_stop: int | None = None,
    check_crc: bool = True,
    batch_records: int = BATCH_RECORDS,
    lookback_bytes: int = LOOKBACK_BYTES,
    window_bytes: int = WINDOW_BYTES,
    whole_damage: bool = False,
) -> Iterator[ScanBatch]:
    """Yield what belongs to the positions ``[start, stop)`` of a CommitLog file.

    Parameters
    ----------
    source
        The file; opened and closed by the caller.
    base
        Physical offset of its first byte.
    size
        Bytes it has.
    start, stop
        Any positions.
    file_size
        Nominal size, default `size`; see ``scan_segment``.
    data_stop
        Behind this position the file is known to be zeros, which then need not be read.
    check_crc, batch_records, lookback_bytes
        See ``scan_split``.
    window_bytes
        Bytes held at a time, at least ``WINDOW_MIN_BYTES``.
    whole_damage
        False cuts damage and the unwritten tail off at the range's edges, as ``scan_split`` does.
        True gives damage, whole, to the range that its first byte is in, and to no other, and tells
        where the tail really begins, which is where the file ends when no zeros follow the damage.

    Yields
    ------
    ScanBatch
        At least one. Its columns borrow the window: they are valid until the next batch.
    """
    scan = _WindowScan(source, base, size, size if file_size is None else file_size)
    scan.check_crc = check_crc
    scan.window_bytes = max(window_bytes, WINDOW_MIN_BYTES)
    scan.data_stop = scan.limit if data_stop is None else min(data_stop, scan.limit)
    scan.first = start
    scan.stop = min(stop, scan.limit)
    scan.whole_damage = whole_damage
    scan.begin_at(scan.anchor(start, max(lookback_bytes, 1)))
    while True:
        yield scan.next_batch(batch_records)
        if scan.position >= scan.stop:
            return


class _WindowScan:
    """Where a scan stands, and the piece of the file it has in memory."""

    def __init__(self, source: ByteSource, base: int, size: int, file_size: int) -> None:
        self.source = source
        self.base = base
        self.size = size
        self.file_size = file_size
        self.limit = min(size, file_size)
        self.data_stop = self.limit
        self.check_crc = True
        self.window_bytes = WINDOW_BYTES
        self.whole_damage = False
        self.first = 0
        self.stop = 0
        self.position = 0
        self.end_of_data = base
        self.is_run_start = False
        self._memory = np.empty(0, dtype=np.uint8)
        self.at = 0
        self.array = self._memory

    # --- the window -----------------------------------------------------------------------------

    @property
    def window_stop(self) -> int:
        return self.at + len(self.array)

    def load(self, position: int, size: int | None = None) -> None:
        """Move the window so that it begins at `position`."""
        wanted = size
        if wanted is None:
            # Of the zeros after the data the walk has to see one record's head; of what follows the
            # range the rest of its last record, which is seldom longer.
            last = self.data_stop
            if position < self.stop:
                last = min(last, self.stop + _LAST_RECORD_BYTES)
            unread = last - position + WINDOW_MIN_BYTES
            wanted = min(self.window_bytes, max(unread, WINDOW_MIN_BYTES))
        wanted = max(0, min(wanted, self.size - position))
        if len(self._memory) < wanted:
            # No longer than needed: a file shorter than the window is read as a whole.
            self._memory = np.empty(wanted, dtype=np.uint8)
        array = self._memory[:wanted]
        got = self.source.read_into(position, array.data)
        if got < wanted:
            # Cut short since its size was asked for: what is gone reads as never written.
            array[got:] = 0
        self.at = position
        self.array = array

    def has_all(self, position: int, size: int) -> bool:
        """Whether the window holds so many bytes from `position` on, or all that the file has."""
        return self.at <= position and self.window_stop >= min(position + size, self.size)

    def seek(self, position: int, size: int = _FIXED_PART_BYTES) -> None:
        if not self.has_all(position, size):
            self.load(position)

    def walk(
        self, position: int, stop: int, cols: npt.NDArray[np.int64]
    ) -> tuple[int, int, StopReason]:
        """Walk from `position` as far as the window goes."""
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

    # --- the scan -------------------------------------------------------------------------------

    def begin_at(self, anchor: int) -> None:
        self.position = anchor
        self.end_of_data = self.base + anchor

    def next_batch(self, record_count: int) -> ScanBatch:
        cols = new_columns(record_count)
        blanks: list[Blank] = []
        damage: list[Damage] = []
        run_starts: list[int] = []
        unwritten_at: int | None = None
        count = 0
        while self.position < self.stop:
            self.seek(self.position)
            count, self.position, code = self.walk(self.position, self.stop, cols)
            if count:
                self.end_of_data = self.base + self.position
                if self.is_run_start:
                    run_starts.append(0)
                    self.is_run_start = False
                # What comes next may move the window that these rows borrow.
                break
            if code == StopReason.END:
                continue
            if code == StopReason.BLANK:
                blanks.append(self._take_blank())
                continue
            code = self._confirm(code, cols)
            if code not in (StopReason.END, StopReason.BLANK):
                unwritten_at = self._take_break(code, damage)
        columns = RecordColumns(self.array, cols[:count], self.base + self.at)
        batch = ScanBatch(columns, blanks, damage, run_starts, self.end_of_data, unwritten_at)
        return self._from_first(batch)

    def _confirm(self, code: StopReason, cols: npt.NDArray[np.int64]) -> StopReason:
        """Look again at a break, with the window moved there and as long as the record claims.

        Returns the verdict that the whole file would have given, END when there is no break.
        """
        if self.at != self.position:
            self.load(self.position)
            _, _, code = self.walk(self.position, self.position + 1, cols[:1])
        if code == StopReason.TRUNCATED and self.window_stop < self.size:
            claimed = self._claimed_size(self.position)
            if isinstance(claimed, StopReason):
                return claimed
            self.load(self.position, claimed)
            _, _, code = self.walk(self.position, self.position + 1, cols[:1])
        return code

    def _claimed_size(self, position: int) -> int | StopReason:
        """Return the length of a record that the window cuts off, or why it can be none.

        A length that nobody vouches for must not decide how much is read: the record has to state
        its own place and inner lengths that fit.
        """
        head = self.array[position - self.at :][:_FIXED_PART_BYTES].tobytes()
        total = int.from_bytes(head[0:4], "big", signed=True)
        if position + total > self.size:
            return StopReason.TRUNCATED
        if int.from_bytes(head[28:36], "big", signed=True) != self.base + position:
            return StopReason.BAD_ADDRESS
        sys_flag = int.from_bytes(head[36:40], "big")
        extra = (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
        fixed = 91 + extra + (head[7] == 0xAB)
        body_size = int.from_bytes(head[84 + extra : 88 + extra], "big", signed=True)
        if total < fixed or not 0 <= body_size <= total - fixed:
            return StopReason.BAD_FIELDS
        return total

    def _take_blank(self) -> Blank:
        blank = Blank(self.base + self.position, self.limit - self.position)
        self.position = self.limit
        self.end_of_data = self.base + self.limit
        self.is_run_start = False
        return blank

    def _take_break(self, reason: StopReason, damage: list[Damage]) -> int | None:
        """Step over a break, note its damage, and return where the unwritten tail begins."""
        position = self.position
        evidence = self._describe(reason)
        damage_stop, is_tail = self._step_over(reason)
        tail_at = self.base + damage_stop if is_tail else None
        clipped_stop = min(damage_stop, self.stop)
        if damage_stop > position:
            stop = damage_stop if self.whole_damage else clipped_stop
            name = "UNWRITTEN_HOLE" if reason is StopReason.UNWRITTEN else reason.name
            extent = ByteRange(self.base + position, self.base + stop)
            damage.append(Damage(extent, DamageReason[name], evidence))
        if self.whole_damage or clipped_stop < self.stop:
            return tail_at
        return None

    def _describe(self, reason: StopReason) -> str:
        at = self.position - self.at
        if reason is StopReason.TRUNCATED and self.window_stop < self.size:
            total = int.from_bytes(self.array[at : at + 4].tobytes(), "big")
            return f"length: {total} bytes, but the file ends after {self.size - self.position}"
        base, file_size = self.base + self.at, self.file_size - self.at
        return describe_break(self.array, at, reason, base, file_size)

    def _step_over(self, reason: StopReason) -> tuple[int, bool]:
        """Go to the next believable record, else to the end of the file.

        Returns where the damage ends, and whether nothing but zeros follows it.
        """
        position = self.position
        begin = position + (reason != StopReason.UNWRITTEN)
        found = self.find(begin, self.limit)
        if found is not None:
            self.position = found
            self.is_run_start = True
            return found, False
        self.position = self.limit
        return max(self._last_nonzero(position) + 1, position), True

    def _from_first(self, batch: ScanBatch) -> ScanBatch:
        """Return the batch without what lies before the range."""
        first = self.base + self.first
        columns = batch.columns
        dropped = int(columns.physical_offset.searchsorted(first))
        if self.whole_damage:
            damage = [one for one in batch.damage if one.range.start >= first]
        else:
            damage = [
                one._replace(range=ByteRange(max(one.range.start, first), one.range.stop))
                for one in batch.damage
                if one.range.stop > first
            ]
        return batch._replace(
            columns=RecordColumns(columns.buffer, columns.cols[dropped:], columns.base),
            blanks=[blank for blank in batch.blanks if blank.physical_offset >= first],
            damage=damage,
            run_starts=[row - dropped for row in batch.run_starts if row >= dropped],
            unwritten_at=self._tail_from_first(batch.unwritten_at, first),
        )

    def _tail_from_first(self, unwritten_at: int | None, first: int) -> int | None:
        if unwritten_at is None or self.whole_damage:
            return unwritten_at
        return max(unwritten_at, first)

    # --- searches -------------------------------------------------------------------------------

    def anchor(self, start: int, lookback_bytes: int) -> int:
        """Return the position to follow the chain from: a believable record, or the first one."""
        # Only zeros stand behind the data, so what reaches into the range begins before them.
        start = min(start, self.data_stop)
        while lookback_bytes < start:
            found = self.find(start - lookback_bytes, start)
            if found is not None:
                return found
            lookback_bytes *= 4
        return 0

    def find(self, position: int, stop: int) -> int | None:
        """Return where the first believable record or BLANK in ``[position, stop)`` starts."""
        # A record cannot begin behind the data; a BLANK neither, for it is not zeros.
        stop = min(stop, self.data_stop, self.limit)
        while position < stop:
            self.seek(position)
            reaches_end = self.window_stop >= self.size
            # What stands too near the window's edge to be judged waits for the next window.
            edge = self.window_stop - (0 if reaches_end else _FIXED_PART_BYTES)
            piece_stop = min(stop, max(edge, position + 1))
            at = self.at
            found = kernels.resync(
                self.array,
                position - at,
                piece_stop - at,
                self.base + at,
                self.file_size - at,
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
        head = self.array[position - self.at : stop - self.at + 8]
        candidates = [
            position + match.start() - 4
            for match in _RECORD_MAGIC.finditer(head.data)
            if 4 <= match.start() < stop - position + 4
        ]
        for candidate in candidates:
            if not self.has_all(candidate, _FIXED_PART_BYTES):
                continue
            claimed = self._claimed_size(candidate)
            if isinstance(claimed, StopReason) or candidate + claimed <= self.window_stop:
                continue
            kept = self.at, self.array, self._memory
            self._memory = np.empty(0, dtype=np.uint8)
            self.load(candidate, claimed)
            is_record = self._is_believable(candidate)
            self.at, self.array, self._memory = kept
            if is_record:
                return candidate
        return None

    def _is_believable(self, position: int) -> bool:
        checked, self.check_crc = self.check_crc, True
        found, _, _ = self.walk(position, position + 1, new_columns(1))
        self.check_crc = checked
        return found == 1

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
