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
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocketstore.format.blank import BLANK_MAGIC
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.planning import in_time
from rocketstore.pipeline.stores import SegmentState, list_segments
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

    @property
    def stop(self) -> int:
        """Physical offset after the record."""
        return int(self.columns.physical_offset[0] + self.columns.size[0])

    @property
    def evidence(self) -> Evidence:
        """What proves later that the record was there."""
        return Evidence(int(self.columns.physical_offset[0]), self.crc)

    def problem(self, evidence: Evidence) -> str | None:
        """Return what was expected and found unless the record is the one of some evidence."""
        if self.is_record and self.crc == evidence.crc:
            return None
        return (
            f"expected before it, at physical offset {evidence.record}, a record with CRC "
            f"{evidence.crc:08x}, found {self.what}: the log was cut and written again, or damaged"
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

    kind = LOG
    unit = "physical offset"
    queue = WHOLE_LOG

    def __init__(
        self, store: StorePlace, begin: Place | None = None, ended: Place | None = None
    ) -> None:
        self.store = store
        self.key = (store.broker_name,)
        self.segments = list_segments(store)
        self.start = self.segments[0].base if self.segments else 0
        tail = next((one.base for one in self.segments if one.is_last), self.start)
        is_behind = begin is not None and begin.offset < tail
        self._near = ended if is_behind else begin
        self._sure_end = tail if is_behind and ended is not None else None

    @classmethod
    def found(
        cls, options: StreamOptions, begins: Mapping[Key, Place], ends: Mapping[Key, Place]
    ) -> dict[Key, LiveLog]:
        """Return the logs there are; both mappings are of what is known of them."""
        stores = {(name,): store for name, store in named_stores(options).items()}
        return {key: cls(it, begins.get(key), ends.get(key)) for key, it in stores.items()}

    @staticmethod
    def is_kept(options: StreamOptions, key: Key, place: Place) -> bool:  # noqa: ARG004 - as a queue
        """Whether nothing is lost although a log has no file: never."""
        return False

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
        """Look at a physical offset."""
        segment, data = self.segment_at(offset), self.read(offset, _HEAD_BYTES)
        left = 0 if segment is None else segment.base + segment.file_size - offset
        total = int.from_bytes(data[:4], "big", signed=True)
        if len(data) < total <= left:
            data = self.read(offset, total)
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

    def _after(self, seen: Seen) -> Place:
        """Return the place after a record: in the next file if only filler follows it."""
        segment = self.segment_at(seen.stop - 1)
        stop = seen.stop if segment is None else segment.base + segment.file_size
        filler = (stop - seen.stop).to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big")
        is_last = self.read(seen.stop, len(filler)) == filler
        return Place(stop if is_last else seen.stop, seen.evidence)

    # --- the end --------------------------------------------------------------------------------

    @cached_property
    def end(self) -> Place:
        """What comes after the last record that can be believed."""
        position = self.start
        for segment in self.segments:
            if not segment.is_last:
                continue
            last, position = self._end_in(segment)
            seen = self._last_before(segment.base) if last is None else self.record(last)
            if position < segment.base + segment.file_size:
                break
        if position == self.start or seen is None or not seen.is_record:
            return Place(position)
        place = self._after(seen)
        return place if place.offset == position else Place(position)

    def _end_in(self, segment: Segment) -> tuple[int | None, int]:
        """Return the last record of a file being written, and where the next one begins.

        Lengths lead near the end, from where the log ended lately if that is true still; checksums
        lead to it.
        """
        files, _ = files_at(self.store.location)
        begin, near = segment.base, self._near
        starts = {begin: None}
        if near and near.evidence and begin <= near.evidence.record and self.problem(near) is None:
            starts = {max(begin, near.evidence.record - CHECKED_BYTES): None, begin: None}
        with opened(files, segment.path) as file:
            for start in starts:
                found = _lengths(file, segment, start)
                if len(found):
                    at = int(found.searchsorted(int(found[-1]) - CHECKED_BYTES))
                    last, position = _checked_end(file, segment, int(found[at]))
                    if last is not None:
                        return last, position
            return _checked_end(file, segment, begin)

    def _last_before(self, stop: int) -> Seen | None:
        """Return what is the last record of the files before one that has none yet."""
        for near in (stop - CHECKED_BYTES, self.start):
            found = [batch.columns.physical_offset[-1:] for batch in self._scan(near, stop)]
            last = np.concatenate([np.empty(0, dtype=np.int64), *found])
            if len(last):
                return self.record(int(last[-1]))
        return None

    # --- places ---------------------------------------------------------------------------------

    def place(self, offset: int) -> Place:
        """Return a place, for which there is no evidence."""
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
        problem = seen.problem(evidence)
        if problem is not None or offset in (seen.stop, self._after(seen).offset):
            return problem
        return f"expected it to be {seen.stop}, where the record before it ends, found {offset}"

    def resume(self, place: Place) -> int:
        """Return the first record at a place that does not hold or after it, else the end."""
        end = self.end.offset
        if place.offset <= self.start:
            return self.start
        return next(self._intact(place.offset, end), end)

    def first_since(self, since_ms: int) -> int | None:
        """Return the first record that was stored at a time or later."""
        begin = min((one.base for one in in_time(self.store, self.segments, since_ms, None)),
                    default=self.start)  # fmt: skip
        return next(self._intact(begin, self.end.offset, since_ms), None)

    def _intact(self, start: int, stop: int, since_ms: int = 0) -> Iterator[int]:
        for batch in self._scan(start, stop):
            is_late = batch.columns.store_timestamp >= since_ms
            for at in batch.columns.physical_offset[is_late].tolist():
                if self.record(at).is_record:
                    yield at

    # --- batches --------------------------------------------------------------------------------

    def _scan(self, start: int, stop: int) -> Iterator[ScanBatch]:
        """Yield what starts in a stretch, lengths followed and bodies not checked."""
        files, _ = files_at(self.store.location)
        for one in self.segments:
            is_wanted = start < stop and start < one.base + one.size and one.base < stop
            if is_wanted and one.state is not SegmentState.MISSING:
                with opened(files, one.path) as file:
                    yield from _batches(file, one, max(start, one.base), stop)

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
        """Return how far a log goes within limits."""
        return {log.key: log.cut_one(begin.offset, goal, limits) for log, begin, goal in moves}

    def cut_one(self, begin: int, goal: Place, limits: Limits) -> Place:
        """Return how far a batch goes: past what is sure only to an end that was found just now."""
        if self._sure_end is not None and self._sure_end < goal.offset:
            place = self._fitting(begin, Place(self._sure_end), limits)
            if place.offset < self._sure_end:
                return place
            goal = min(goal, LiveLog(self.store).end, key=lambda place: place.offset)
        return self._fitting(begin, goal, limits)

    def _fitting(self, begin: int, goal: Place, limits: Limits) -> Place:
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
            for at in (*last, *offsets[count:].tolist()) if is_due else ():
                seen = self.record(at)
                if seen.is_record:
                    return self._after(seen)
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


def _batches(
    file: OpenFile, segment: Segment, start: int, stop: int, *, check_crc: bool = False
) -> Iterator[ScanBatch]:
    """Yield what starts in a stretch of a file, given by physical offsets."""
    return scan_window(
        file,
        base=segment.base,
        size=segment.size,
        start=start - segment.base,
        stop=min(segment.size, stop - segment.base),
        file_size=segment.file_size,
        data_stop=file.data_stop(segment.size) if segment.is_last else None,
        check_crc=check_crc,
        lookback_bytes=_LOOKBACK_BYTES,
        whole_damage=True,
    )


def _lengths(file: OpenFile, segment: Segment, start: int) -> npt.NDArray[np.int64]:
    """Return where the last records start that lengths lead to, up to a break or the end."""
    recent = np.empty(0, dtype=np.int64)
    for batch in _batches(file, segment, start, segment.base + segment.size):
        if batch.run_starts:
            break
        recent = np.concatenate([recent, batch.columns.physical_offset])[-BATCH_RECORDS:]
        # What follows the last record is not looked for: it may be a gigabyte of zeros.
        if not file.read(batch.end_of_data - segment.base, 8).strip(b"\0"):
            break
    return recent


def _checked_end(file: OpenFile, segment: Segment, position: int) -> tuple[int | None, int]:
    """Walk with checksums from a record; return the last one, and where the next one begins."""
    last: int | None = None
    last_ms: int | None = None
    seen_breaks: set[int] = set()
    is_walked = False
    while not is_walked:
        is_walked = True
        stop = segment.base + segment.size
        for batch in _batches(file, segment, position, stop, check_crc=True):
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
