"""One store's log as a stream follows it while others write, cut and delete it.

Law: a stream never stands anywhere but after a record that checks out, chain and CRC. What follows
the last such record, a torn one or nothing, is left to a later look. No lock is taken, so:

- A break is believed only when a second look with fresh bytes finds it at the same place. The
  writer may be filling the page that was copied first while the one after it is copied.
- After a break in the file that is being written, records may be what an earlier, longer log left
  there (decision 0004). They are taken for the log's only when the broken record's length leads to
  them, or when they are not older than the record before the break.
"""

from __future__ import annotations

import zlib
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocketstore.format.blank import BLANK_MAGIC
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.planning import in_time
from rocketstore.pipeline.stores import SegmentState, list_segments
from rocketstore.pipeline.streaming.stream_options import WHOLE_LOG, Place
from rocketstore.pipeline.streaming.stream_reader import StreamTask, pieces
from rocketstore.scan import kernels
from rocketstore.scan.columns import RecordColumns, StopReason, new_columns
from rocketstore.scan.scanner import describe_break
from rocketstore.scan.window import scan_window
from rocketstore.units import ByteRange, MiB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rocketstore.pipeline.files import OpenFile
    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.stores import Segment, StorePlace
    from rocketstore.pipeline.streaming.following import Move
    from rocketstore.pipeline.streaming.stream_options import Key, Limits
    from rocketstore.pipeline.streaming.stream_reader import Losses
    from rocketstore.scan.scanner import ScanBatch

NEAR_BYTES: Final = MiB
"""How far before the place where a log ended lately a look for its end begins."""

_LOOKBACK_BYTES: Final = 4096
"""Looks begin at a record that was checked, so they need not go far to find one before it."""

_HEAD_BYTES: Final = 128
"""More than the fixed part of any record."""


class Seen(NamedTuple):
    """What stands at a physical offset: one row of an intact record and its CRC-32, or none."""

    columns: RecordColumns
    crc: int
    what: str

    @property
    def is_record(self) -> bool:
        """Whether an intact record stands there."""
        return len(self.columns) == 1

    def problem(self, place: Place) -> str | None:
        """Return what was expected and found unless the record is a place's evidence."""
        if self.is_record and self.crc == place.crc:
            return None
        return (
            f"expected before it, at physical offset {place.record}, a record with CRC "
            f"{place.crc:08x}, found {self.what}: the log was cut and written again, or damaged"
        )


class LiveLog:
    """The log of one store; bounds are looked up once.

    Parameters
    ----------
    begin
        Where its next batch begins, if known.
    ended
        Where it ended when it was last looked at. A longer log may have ended there that was cut
        meanwhile, so no batch goes into the file being written because of it.
    """

    unit = "physical offset"
    queue = WHOLE_LOG

    def __init__(
        self, store: StorePlace, begin: Place | None = None, ended: Place | None = None
    ) -> None:
        self.store = store
        self.key: Key = (store.broker_name,)
        self.segments = list_segments(store)
        self.start = self.segments[0].base if self.segments else 0
        tail = next((one.base for one in self.segments if one.is_last), self.start)
        is_far = begin is not None and begin.offset < tail
        self._near = ended if is_far else begin
        self._sure_end = tail if is_far and ended is not None else None

    def __str__(self) -> str:
        return self.store.location

    # --- single records -------------------------------------------------------------------------

    def segment_at(self, offset: int) -> Segment | None:
        """Return the file, there or missing, that a physical offset lies in."""
        for one in self.segments:
            if one.base <= offset < one.base + max(one.size, one.file_size):
                return one
        return None

    def _read(self, offset: int, size: int) -> bytes:
        segment = self.segment_at(offset)
        if segment is None or segment.state is SegmentState.MISSING:
            return b""
        with opened(files_at(self.store.location)[0], segment.path) as file:
            return file.read(offset - segment.base, size)

    def record(self, offset: int) -> Seen:
        """Look at a physical offset."""
        segment, data = self.segment_at(offset), self._read(offset, _HEAD_BYTES)
        left = 0 if segment is None else segment.base + segment.file_size - offset
        total = int.from_bytes(data[:4], "big", signed=True)
        if len(data) < total <= left:
            data = self._read(offset, total)
        array, cols = np.frombuffer(data[:left], dtype=np.uint8), new_columns(1)
        found, _, code = kernels.walk(array, 0, 1, offset, left, True, cols)  # noqa: FBT003
        columns = RecordColumns(array, cols[:found], offset)
        if found:
            crc = zlib.crc32(data[: int(cols[0, 1])])
            return Seen(columns, crc, f"a record with CRC {crc:08x}")
        if not data.strip(b"\0"):
            return Seen(columns, 0, "zeros" if data else "nothing")
        why = describe_break(array, 0, StopReason(code), offset, left)
        return Seen(columns, 0, f"no record ({why})")

    def after(self, offset: int) -> Place:
        """Return the place after a record: in the next file if only filler follows it."""
        seen, segment = self.record(offset), self.segment_at(offset)
        if not seen.is_record or segment is None:
            return Place(offset)
        stop, file_stop = offset + int(seen.columns.size[0]), segment.base + segment.file_size
        filler = (file_stop - stop).to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big")
        if self._read(stop, len(filler)) == filler:
            stop = file_stop
        return Place(stop, offset, seen.crc)

    # --- places ---------------------------------------------------------------------------------

    @cached_property
    def end(self) -> Place:
        """What comes after the last record that can be believed."""
        position, last = self.start, None
        for segment in self.segments:
            if not segment.is_last:
                continue
            found, position = self._end_in(segment)
            last = last if found is None else found
            if position < segment.base + segment.file_size:
                break
        place = Place(position) if last is None else self.after(last)
        return place if place.offset == position else Place(position)

    def _end_in(self, segment: Segment) -> tuple[int | None, int]:
        near, start = self._near, segment.base
        if near and near.record and near.record > start and self.problem(near) is None:
            start = max(start, near.record - NEAR_BYTES)
        with opened(files_at(self.store.location)[0], segment.path) as file:
            last, position = _checked_end(file, segment, start)
            return _checked_end(file, segment, segment.base) if last is None else (last, position)

    def place(self, offset: int) -> Place:
        """Return a place, for which there is no evidence."""
        return Place(offset)

    def problem(self, place: Place) -> str | None:
        """Return what was expected and found where a place does not hold."""
        offset = place.offset
        if offset < self.start:
            return (
                f"expected it in the log, found that the log begins at {self.start}: "
                f"{self.start - offset} bytes were deleted"
            )
        if place.record is None or place.record < self.start:
            seen = self.record(offset)
            if offset == self.start or seen.is_record or self.end.offset == offset:
                return None
            return f"expected a record's start or the log's end, found {seen.what}"
        seen = self.record(place.record)
        problem = seen.problem(place)
        if problem is not None:
            return problem
        stop = place.record + int(seen.columns.size[0])
        if offset in (stop, self.after(place.record).offset):
            return None
        return f"expected it to be {stop}, where the record before it ends, found {offset}"

    def resume(self, place: Place) -> int:
        """Return the first record at a place that does not hold or after it, else the end."""
        if place.offset <= self.start:
            return self.start
        return next(self._records(place.offset, self.end.offset), self.end.offset)

    def first_since(self, since_ms: int) -> int | None:
        """Return the first record that was stored at a time or later."""
        files = in_time(self.store, self.segments, since_ms, None)
        begin = files[0].base if files else self.start
        return next(self._records(begin, self.end.offset, since_ms), None)

    # --- batches --------------------------------------------------------------------------------

    def _scan(self, start: int, stop: int) -> Iterator[RecordColumns]:
        """Yield the intact records that start in a stretch of the log."""
        for one in self.segments:
            is_wanted = start < stop and start < one.base + one.size and one.base < stop
            if is_wanted and one.state is not SegmentState.MISSING:
                with opened(files_at(self.store.location)[0], one.path) as file:
                    for batch in _batches(file, one, max(start, one.base), stop):
                        yield batch.columns

    def _records(self, start: int, stop: int, since_ms: int = 0) -> Iterator[int]:
        for columns in self._scan(start, stop):
            yield from columns.physical_offset[columns.store_timestamp >= since_ms].tolist()

    def count(self, move: Move, most: int) -> int:
        """Return how many records a move has, `most` if there are more."""
        rows = 0
        for columns in self._scan(move.begin.offset, move.goal.offset):
            rows += len(columns)
            if rows >= most:
                return most
        return rows

    @classmethod
    def cut(cls, moves: Sequence[Move], limits: Limits) -> dict[Key, Place]:
        """Return how far a log goes within limits: past what is sure only to an end found now."""
        stops: dict[Key, Place] = {}
        for log, begin, goal in moves:
            stop = log.fitting(begin.offset, goal, limits)
            if log.is_unsure(stop):
                sure_goal = min(goal, LiveLog(log.store).end, key=lambda place: place.offset)
                stop = log.fitting(begin.offset, sure_goal, limits)
            stops[log.key] = stop
        return stops

    def is_unsure(self, place: Place) -> bool:
        """Whether a place may be one of a longer log that was cut meanwhile."""
        return self._sure_end is not None and self._sure_end < place.offset

    def fitting(self, begin: int, goal: Place, limits: Limits) -> Place:
        """Return the place after the last record that fits."""
        rows = size_bytes = last = 0
        for columns in self._scan(begin, goal.offset):
            count = limits.fitting(columns.size, rows, size_bytes)
            if count:
                rows += count
                size_bytes += int(columns.size[:count].sum())
                last = int(columns.physical_offset[count - 1])
            if count < len(columns):
                return self.after(last)
        return goal

    @classmethod
    def tasks(
        cls, moves: Sequence[Move], options: ReadOptions, losses: Losses
    ) -> Iterator[StreamTask]:
        """Yield the byte ranges of one store's log."""
        for log, begin, goal in moves:
            for one in log.segments:
                is_wanted = one.base < goal.offset and begin.offset < one.base + one.size
                if one.state is SegmentState.MISSING and is_wanted:
                    losses.report(
                        f"{one.path} is missing: expected {one.size} bytes of the log from "
                        f"physical offset {one.base} on, found none",
                        f"the stream goes on at {one.base + one.size}",
                    )
            wanted = ByteRange(begin.offset, goal.offset)
            yield from map(StreamTask, pieces(log.store, log.segments, wanted, options))


def _batches(file: OpenFile, segment: Segment, start: int, stop: int) -> Iterator[ScanBatch]:
    """Yield what starts in a stretch of a file, given by physical offsets."""
    return scan_window(
        file,
        base=segment.base,
        size=segment.size,
        start=start - segment.base,
        stop=min(segment.size, stop - segment.base),
        file_size=segment.file_size,
        data_stop=file.data_stop(segment.size) if segment.is_last else None,
        lookback_bytes=_LOOKBACK_BYTES,
        whole_damage=True,
    )


def _checked_end(file: OpenFile, segment: Segment, position: int) -> tuple[int | None, int]:
    """Return the last record of a file being written, and where the next one begins."""
    last: int | None = None
    last_ms: int | None = None
    seen_breaks: set[int] = set()
    is_walked = False
    while not is_walked:
        is_walked = True
        for batch in _batches(file, segment, position, segment.base + segment.size):
            columns = batch.columns
            if len(columns) and batch.run_starts:
                is_walked = position in seen_breaks
                seen_breaks.add(position)
                head = file.read(position - segment.base, 4)
                leads_on = position + int.from_bytes(head, "big") == columns.physical_offset[0]
                is_newer = last_ms is None or columns.store_timestamp[0] >= last_ms
                if not is_walked or not (leads_on or is_newer):
                    break
            if len(columns):
                last = int(columns.physical_offset[-1])
                last_ms = int(columns.store_timestamp[-1])
                position = last + int(columns.size[-1])
            if batch.blanks:
                position = segment.base + segment.file_size
    return last, position
