"""One store's log as a stream follows it while others write, cut and delete it.

Law: a stream never stands anywhere but after a record that checks out, chain and CRC. What follows
the last such record, a torn one or nothing, is left to a later look. No lock is taken, so:

- A break is believed only when a second look with fresh bytes finds it at the same place. The
  writer may be filling the page that was copied first while the one after it is copied.
- After a break in the file that is being written, records may be what an earlier, longer log left
  there (decision 0004). They are taken for the log's only when the broken record's length leads to
  them, or when they are not older than the record before the break.

Lengths alone are followed wherever that is enough, since tasks check all of it again.
"""

from __future__ import annotations

import zlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rocketstore.format.blank import BLANK_MAGIC
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.stores import SegmentState, first_store_timestamp_ms, list_segments
from rocketstore.pipeline.streaming.following import named_stores
from rocketstore.pipeline.streaming.stream_offsets import LOG, Evidence, Key, Place
from rocketstore.pipeline.streaming.stream_options import WHOLE_LOG
from rocketstore.pipeline.streaming.stream_read import StreamTask, pieces
from rocketstore.scan import kernels
from rocketstore.scan.columns import RecordColumns, StopReason, new_columns
from rocketstore.scan.scanner import BATCH_RECORDS, describe_break
from rocketstore.scan.window import scan_window
from rocketstore.units import ByteRange, MiB

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from rocketstore.pipeline.files import OpenFile
    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.stores import Segment, StorePlace
    from rocketstore.pipeline.streaming.following import Losses, Move
    from rocketstore.pipeline.streaming.stream_options import Limits, StreamOptions
    from rocketstore.scan.scanner import ScanBatch

CHECKED_BYTES: Final = MiB
"""Before the end of a log that is being written: so much is looked at with checksums."""

CLOCK_MARGIN_MS: Final = 600_000
"""How far a broker's clock may have been set back inside a file: ten minutes."""

_LOOKBACK_BYTES: Final = 4096
"""Looks begin at a record that was checked, so they need not go far to find one before it."""

_HEAD_BYTES: Final = 128
"""More than the fixed part of any record."""


class Seen(NamedTuple):
    """What stands at a physical offset: one row of an intact record, its CRC-32, else `what`."""

    columns: RecordColumns
    crc: int
    what: str

    @property
    def is_record(self) -> bool:
        """Whether an intact record stands there."""
        return len(self.columns) == 1

    @property
    def stop(self) -> int:
        """Physical offset after the record."""
        return int(self.columns.physical_offset[0] + self.columns.size[0])

    @property
    def evidence(self) -> Evidence:
        """What proves later that the record was there."""
        return Evidence(int(self.columns.physical_offset[0]), self.crc)


class LiveLog:
    """The log of one store; bounds are looked up once."""

    kind = LOG
    unit = "physical offset"
    queue = WHOLE_LOG

    @staticmethod
    def is_kept(options: StreamOptions, key: Key, place: Place) -> bool:  # noqa: ARG004 - as a queue
        """Whether nothing is lost although a log has no file: never."""
        return False

    def __init__(self, store: StorePlace, near: Place = Place(0)) -> None:  # noqa: B008 - immutable
        self.store = store
        self.key = (store.broker_name,)
        self.near = near
        self.segments = list_segments(store)

    @classmethod
    def found(cls, options: StreamOptions, near: Mapping[Key, Place]) -> dict[Key, LiveLog]:
        """Return the lines there are; `near` says where some of them ended lately."""
        stores = named_stores(options)
        return {(name,): cls(one, near.get((name,), Place(0))) for name, one in stores.items()}

    def __str__(self) -> str:
        return self.store.location

    # --- single records -------------------------------------------------------------------------

    def segment_at(self, offset: int) -> Segment | None:
        """Return the file, there or missing, that a physical offset lies in."""
        for one in self.segments:
            if one.base <= offset < one.base + max(one.size, one.file_size):
                return one
        return None

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of one file, fewer where it ends, none where it is missing."""
        segment = self.segment_at(offset)
        if segment is None or segment.state is SegmentState.MISSING:
            return b""
        files, _ = files_at(self.store.location)
        with opened(files, segment.path) as file:
            return file.read(offset - segment.base, size)

    def record(self, offset: int) -> Seen:
        """Look at a physical offset.

        Raises
        ------
        StoreError
            The file cannot be read.
        """
        segment = self.segment_at(offset)
        if segment is None or segment.state is SegmentState.MISSING:
            return _nothing("no file that holds it")
        left = segment.base + segment.file_size - offset
        data = self.read(offset, min(_HEAD_BYTES, left))
        total = int.from_bytes(data[:4], "big", signed=True)
        if len(data) < total <= left:
            data = self.read(offset, total)
        array, cols = np.frombuffer(data, dtype=np.uint8), new_columns(1)
        found, _, code = kernels.walk(array, 0, 1, offset, left, True, cols)  # noqa: FBT003
        if found:
            crc = zlib.crc32(data[: int(cols[0, 1])])
            return Seen(RecordColumns(array, cols, offset), crc, f"a record with CRC {crc:08x}")
        reason = StopReason(code)
        if not data:
            return _nothing("the end of the file")
        if reason is StopReason.UNWRITTEN:
            return _nothing("zeros")
        if reason is StopReason.BLANK:
            return _nothing("the filler of the file's end")
        return _nothing(f"no record ({describe_break(array, 0, reason, offset, left)})")

    def _past_blank(self, offset: int) -> int:
        """Return where the next file begins if only filler follows, else `offset`."""
        segment = self.segment_at(offset)
        if segment is None:
            return offset
        stop = segment.base + segment.file_size
        filler = (stop - offset).to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big")
        return stop if self.read(offset, 8) == filler else offset

    def _after(self, seen: Seen) -> Place:
        return Place(self._past_blank(seen.stop), seen.evidence)

    # --- stretches ------------------------------------------------------------------------------

    def _scan(self, start: int, stop: int | None = None) -> Iterator[ScanBatch]:
        """Yield what starts in a stretch, lengths followed and bodies not checked."""
        files, _ = files_at(self.store.location)
        for segment in self.segments:
            end = segment.base + segment.size
            is_wanted = start < end and (stop is None or segment.base < stop)
            if is_wanted and segment.state is not SegmentState.MISSING:
                with opened(files, segment.path) as file:
                    position = max(0, start - segment.base)
                    yield from _batches(file, segment, position, stop, check_crc=False)

    @cached_property
    def start(self) -> int:
        """First offset there is."""
        return self.segments[0].base if self.segments else 0

    @cached_property
    def end(self) -> Place:
        """What comes after the last record that can be believed."""
        place = Place(self.start)
        for segment in self.segments:
            if not segment.is_last:
                continue
            last, position, is_full = self._end_in(segment)
            place = Place(position)
            before = None if last is None else self.record(last)
            if before is None:
                before = self._last_before(segment.base)
            if before is not None and before.is_record and self._after(before).offset == position:
                place = self._after(before)
            if not is_full:
                break
        return place

    def _end_in(self, segment: Segment) -> tuple[int | None, int, bool]:
        """Return the last record of the file being written, its end, and whether the file is full.

        Lengths lead near the end, checksums to it.
        """
        files, _ = files_at(self.store.location)
        begin = segment.base
        with opened(files, segment.path) as file:
            for start in {max(begin, self._near(segment) - CHECKED_BYTES): 0, begin: 0}:
                found = _lengths(file, segment, start)
                if len(found):
                    at = int(found.searchsorted(int(found[-1]) - CHECKED_BYTES))
                    last, position, is_full = _Tail(file, segment, int(found[at])).walk()
                    if last is not None:
                        return last, position, is_full
            return _Tail(file, segment, begin).walk()

    def _near(self, segment: Segment) -> int:
        """Return where the log ended lately, if that was in this file and is true still."""
        near = self.near
        is_here = near.evidence is not None and segment.base <= near.evidence.record
        is_here = is_here and near.offset <= segment.base + segment.size
        return near.offset if is_here and self.problem(near) is None else segment.base

    def _last_before(self, stop: int) -> Seen | None:
        """Return the last record of the files before one that has none yet, intact or not."""
        for near in (stop - CHECKED_BYTES, self.start):
            found = [
                int(batch.columns.physical_offset[-1])
                for batch in self._scan(near, stop)
                if len(batch.columns)
            ]
            if found:
                return self.record(found[-1])
        return None

    # --- places ---------------------------------------------------------------------------------

    def place(self, offset: int) -> Place:
        """Return a place with what evidence there is for it."""
        return Place(offset)

    def problem(self, place: Place) -> str | None:
        """Return what was expected and found where a place does not hold."""
        offset, evidence = place.offset, place.evidence
        if offset < self.start:
            return (
                f"expected it in the log, found that the log begins at {self.start}: "
                f"{self.start - offset} bytes were deleted"
            )
        if evidence is None or evidence.record < self.start:
            seen = self.record(offset)
            if offset == self.start or seen.is_record or self.end.offset == offset:
                return None
            return f"expected a record's start or the log's end, found {seen.what}"
        seen = self.record(evidence.record)
        if not seen.is_record or seen.crc != evidence.crc:
            return not_the_evidence(evidence, seen)
        if offset in (seen.stop, self._past_blank(seen.stop)):
            return None
        return f"expected it to be {seen.stop}, where the record before it ends, found {offset}"

    def resume(self, place: Place) -> int:
        """Return where to go on when a place does not hold."""
        end = self.end.offset
        if not self.start < place.offset < end:
            return max(self.start, min(place.offset, end))
        for batch in self._scan(place.offset, end):
            for at in batch.columns.physical_offset.tolist():
                if self.record(at).is_record:
                    return int(at)
        return end

    def first_since(self, since_ms: int) -> int | None:
        """Return the first offset that was stored at a time or later."""
        start = self.start
        for segment in self.segments:
            first_ms = first_store_timestamp_ms(self.store.location, segment)
            if first_ms is not None and first_ms + CLOCK_MARGIN_MS < since_ms:
                start = segment.base
        for batch in self._scan(start, self.end.offset):
            (rows,) = np.nonzero(batch.columns.store_timestamp >= since_ms)
            for at in batch.columns.physical_offset[rows].tolist():
                if self.record(at).is_record:
                    return int(at)
        return None

    # --- batches --------------------------------------------------------------------------------

    def count(self, move: Move, most: int) -> int:
        """Return how many records a move has, `most` if there are more."""
        rows = 0
        for batch in self._scan(move.begin.offset, move.goal.offset):
            rows += len(batch.columns)
            if rows >= most:
                return most
        return rows

    @classmethod
    def cut(cls, moves: Sequence[Move], limits: Limits) -> dict[Key, Place]:
        """Return how far the lines of one store go within limits."""
        return {log.key: log.cut_one(begin.offset, goal, limits) for log, begin, goal in moves}

    def cut_one(self, begin: int, goal: Place, limits: Limits) -> Place:
        """Return the place after the last record that fits, or the next one that is intact."""
        rows = size_bytes = 0
        last: list[int] = []
        is_due = False
        for batch in self._scan(begin, goal.offset):
            offsets, sizes = batch.columns.physical_offset, batch.columns.size
            count = 0 if is_due else limits.fitting(sizes, rows, size_bytes)
            if count:
                rows += count
                size_bytes += int(sizes[:count].sum())
                last = [int(offsets[count - 1])]
            is_due = is_due or count < len(offsets)
            if is_due:
                for at in (*last, *offsets[count:].tolist()):
                    seen = self.record(at)
                    if seen.is_record:
                        return self._after(seen)
                last = []
        return goal

    @classmethod
    def tasks(
        cls, moves: Sequence[Move], options: ReadOptions, losses: Losses
    ) -> Iterator[StreamTask]:
        """Yield the byte ranges of one store that hold what its lines move over."""
        for line, begin, goal in moves:
            for one in line.segments:
                is_wanted = one.base < goal.offset and begin.offset < one.base + one.size
                if one.state is SegmentState.MISSING and is_wanted:
                    losses.report(
                        f"{one.path} is missing: expected {one.size} bytes of the log from "
                        f"physical offset {one.base} on, found none",
                        f"the stream goes on at {one.base + one.size}",
                    )
            wanted = ByteRange(begin.offset, goal.offset)
            for piece in pieces(line.store, line.segments, wanted, options):
                yield StreamTask(piece)


class _Tail:
    """A walk with checksums along the file that is being written, from a record to its end."""

    def __init__(self, file: OpenFile, segment: Segment, start: int) -> None:
        self.file = file
        self.segment = segment
        self.position = start
        self.last: int | None = None
        self.last_ms: int | None = None
        self.seen_breaks: set[int] = set()

    def walk(self) -> tuple[int | None, int, bool]:
        """Return the last record, where the next one begins, and whether that is the next file."""
        while not self._is_walked():
            pass
        stop = self.segment.base + self.segment.file_size
        return self.last, self.position, self.position == stop

    def _is_walked(self) -> bool:
        """Walk, and say whether no break is left to be looked at once more."""
        segment = self.segment
        start = self.position - segment.base
        for batch in _batches(self.file, segment, start, None, check_crc=True):
            columns = batch.columns
            if len(columns) and batch.run_starts:
                if self.position not in self.seen_breaks:
                    self.seen_breaks.add(self.position)
                    return False
                if not self._goes_on(columns):
                    return True
            if len(columns):
                self.last = int(columns.physical_offset[-1])
                self.last_ms = int(columns.store_timestamp[-1])
                self.position = self.last + int(columns.size[-1])
            if batch.blanks:
                self.position = segment.base + segment.file_size
        return True

    def _goes_on(self, columns: RecordColumns) -> bool:
        """Whether records found after a break belong to the log as it is now."""
        head = self.file.read(self.position - self.segment.base, 4)
        first = int(columns.physical_offset[0])
        if self.position + int.from_bytes(head, "big", signed=True) == first:
            return True
        return self.last_ms is None or int(columns.store_timestamp[0]) >= self.last_ms


def _lengths(file: OpenFile, segment: Segment, start: int) -> npt.NDArray[np.int64]:
    """Return where the last records start that lengths lead to, up to a break or the end."""
    recent = np.empty(0, dtype=np.int64)
    for batch in _batches(file, segment, start - segment.base, None, check_crc=False):
        if batch.run_starts:
            break
        recent = np.concatenate([recent, batch.columns.physical_offset])[-BATCH_RECORDS:]
        # What follows the last record is not looked for: it may be a gigabyte of zeros.
        if not file.read(batch.end_of_data - segment.base, 8).strip(b"\0"):
            break
    return recent


def _batches(
    file: OpenFile, segment: Segment, start: int, stop: int | None, *, check_crc: bool
) -> Iterator[ScanBatch]:
    return scan_window(
        file,
        base=segment.base,
        size=segment.size,
        start=start,
        stop=segment.size if stop is None else min(segment.size, stop - segment.base),
        file_size=segment.file_size,
        data_stop=file.data_stop(segment.size) if segment.is_last else None,
        check_crc=check_crc,
        lookback_bytes=_LOOKBACK_BYTES,
        whole_damage=True,
    )


def not_the_evidence(evidence: Evidence, seen: Any) -> str:
    """Say what was expected and found where the record before a place is another one."""
    return (
        f"expected before it, at physical offset {evidence.record}, a record with CRC "
        f"{evidence.crc:08x}, found {seen.what}: the log was cut and written anew, or damaged"
    )


def _nothing(what: str) -> Seen:
    return Seen(RecordColumns(np.empty(0, dtype=np.uint8), new_columns(0), 0), 0, what)
