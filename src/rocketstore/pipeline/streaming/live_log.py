"""A log as a stream follows it while others write, cut and delete it.

Law: a stream only stands after a record that is valid by chain and CRC. Bytes after the last such
record, such as a torn one, are left to a later look. No lock is taken, so:

- A break is believed only when a second look with fresh bytes finds it at the same place: the
  writer may be filling a page that was copied before the one after it.
- After a break in the file that is being written, records may be what an earlier, longer log left
  there (decision 0004). They are taken for the log's only when the broken record's length leads to
  them, or when they are not older than the record before the break.
"""

from __future__ import annotations

import itertools
import time
import zlib
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from rocketstore.errors import StoreError
from rocketstore.format.record import BLANK_MAGIC
from rocketstore.native.decode import decode
from rocketstore.pipeline.planning import SplitTask, in_time
from rocketstore.pipeline.streaming.stream_options import BatchLimits, Place, ranges_of
from rocketstore.places.files import opened, read_part, stored_stop
from rocketstore.places.location import is_remote
from rocketstore.places.log_files import (
    directories_of_log,
    list_segments,
    log_bytes,
    segment_at,
    segments_of_job,
)
from rocketstore.units import ByteRange, MiB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.native.row import Int64Array
    from rocketstore.pipeline.log_read import Losses
    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.places.log_files import Segment
    from rocketstore.places.stores import StorePlace
    from rocketstore.scan.columns import RecordColumns
    from rocketstore.scan.scanner import ScanBatch

NEAR_BYTES: Final = MiB  # before where a log ended lately: there a look for its end begins
LOOK_BYTES: Final = 8 * MiB
"""Without a record are the end of a file that is being written, however long it is: its zeros may
be there already, and to read a gigabyte of them for each batch costs more than the batch."""

FILLER: Final = "filler"  # up to a file's end, which may have come after a place was saved
SETTLED_NS: Final = 2_000_000_000
"""A directory that changed less than this ago may change again without another time."""


class LogListing:
    """The files of a log that is looked at again and again.

    A log of 10 TB has 10,000 files, whose listing is most of what a look costs. They are listed
    again when a name came or went in a directory of theirs, and when a file that no written one
    follows has another length or is followed by bytes now. A log on an object store always is.
    """

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._seen: list[tuple[int, ...]] | None = None

    def segments(self, store: StorePlace) -> list[Segment]:
        """Return the files as `list_segments` does."""
        seen = None if is_remote(store.location) else _names_seen(store)
        if seen is None or seen != self._seen or not self._is_tail_as_it_was(store):
            self._segments = list_segments(store)
        self._seen = seen
        return self._segments

    def _is_tail_as_it_was(self, store: StorePlace) -> bool:
        tail = tail_of(self._segments)
        try:
            is_as_long = all(Path(one.path).stat().st_size == one.size for one in tail)
            after = (read_part(store.location, one.path, 0, 8) for one in tail[1:])
            return bool(tail) and is_as_long and not any(map(any, after))
        except (OSError, StoreError):  # gone: what is there now, a new listing says
            return False


def tail_of(segments: Sequence[Segment]) -> list[Segment]:
    """Return the files that no written one follows, in the order of the log."""
    return [*itertools.takewhile(lambda one: one.is_last, reversed(segments))][::-1]


def _is_filler(head: bytes, left: int) -> bool:
    """Whether eight bytes begin a BLANK that fills the last `left` bytes of a file."""
    return head == left.to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big")


def _names_seen(store: StorePlace) -> list[tuple[int, ...]] | None:
    """Return which directories a log lies in, and when a name changed there; None if just now."""
    try:
        found = [Path(one).stat() for one in directories_of_log(store)]
    except OSError:
        return None
    is_settled = all(time.time_ns() - one.st_mtime_ns > SETTLED_NS for one in found)
    return [(one.st_dev, one.st_ino, one.st_mtime_ns) for one in found] if is_settled else None


class Move(NamedTuple):
    """The part of a log in a batch: from `begin` to the place `goal`."""

    log: LiveLog
    begin: Place
    goal: Place

    def is_worth_it(self) -> bool:
        """Whether there is something that makes a batch worth its while, or leads to `then`."""
        return self.begin.then is not None or self.log.has_some(self.begin, self.goal)


Found: TypeAlias = "tuple[Int64Array, Int64Array]"
"""Where some records start, and their sizes."""


class LiveLog:
    """The log of one store; bounds are looked up once.

    `begin` is where the next batch begins. Where that is far from the end, the end is found from
    `ended`, where it was lately: a longer log may have ended there that was cut meanwhile, so what
    comes after `sure_stop` is no part of a batch before it was looked for again.
    """

    def __init__(
        self,
        store: StorePlace,
        options: ReadOptions,
        begin: Place | None = None,
        ended: Place | None = None,
        listing: LogListing | None = None,
    ) -> None:
        self.store, self.options = store, options
        listed = (listing or LogListing()).segments
        fails = options.fail_on_data_loss
        self.segments = segments_of_job(store, listed) if fails else listed(store)
        self.start = self.segments[0].base if self.segments else 0
        self._tail = tail_of(self.segments)
        tail = self._tail[0].base if self._tail else self.start
        is_far = begin is not None and begin.offset < tail
        self.sure_stop = tail if is_far and ended is not None else None
        self._near = ended if is_far else begin

    def __str__(self) -> str:
        return self.store.location

    def record(self, offset: int) -> tuple[StoredMessage | None, int, str]:
        """Return the intact record at a physical offset, its CRC-32, and a description of it."""
        segment = segment_at(self.segments, offset)
        if segment is None or segment.is_missing:
            return None, 0, "nothing"
        position, left = offset - segment.base, segment.base + segment.file_size - offset
        with opened(self.store.location, segment.path) as file:
            data = file.read(position, min(128, left))
            if _is_filler(data[:8], left):
                return None, 0, FILLER  # the rest of the file, up to a gigabyte, is not read
            total = int.from_bytes(data[:4], "big", signed=True)
            if len(data) < total <= left:
                data = file.read(position, total)
        if not data.strip(b"\0"):
            return None, 0, "zeros" if data else "nothing"
        found = decode(data, 0, offset, check_crc=True)
        if found is None:
            return None, 0, "no intact record"
        crc = zlib.crc32(data[: found.size])
        return found, crc, f"a record with CRC {crc:08x}"

    def after(self, offset: int) -> Place:
        """Return the place after a record: in the next file if only filler follows it."""
        (record, crc, _), segment = self.record(offset), segment_at(self.segments, offset)
        if record is None or segment is None:
            return Place(offset)
        stop, file_stop = offset + record.size, segment.base + segment.file_size
        is_closed = _is_filler(log_bytes(self.store, self.segments, stop, 8), file_stop - stop)
        return Place(file_stop if is_closed else stop, offset, crc)

    @cached_property
    def end(self) -> Place:
        """What comes after the last record that can be believed."""
        position, last, near = self.start, None, self._near
        for segment in self._tail:
            start = segment.base
            if near and near.record and near.record > start and self.problem(near) is None:
                start = max(start, near.record - NEAR_BYTES)
            found, position = self._checked_end(segment, start)
            if found is None:
                found, position = self._checked_end(segment, segment.base)
            last = last if found is None else found
            if position < segment.base + segment.file_size:
                break
        # What closed the file after that look is no part of this batch.
        return (Place(position) if last is None else self.after(last))._replace(offset=position)

    def _checked_end(self, segment: Segment, position: int) -> tuple[int | None, int]:
        """Return the last record of a file being written, and where the next one begins."""
        last = last_ms = None
        seen_breaks: set[int] = set()
        stop, is_again = segment.base + segment.size, True
        while is_again and position < stop:
            begin, is_again, look_stop = position, False, min(position + LOOK_BYTES, stop)
            for batch in self._batches(segment, position, look_stop):
                columns = batch.columns
                if len(columns) and batch.run_starts:
                    is_again = position not in seen_breaks
                    seen_breaks.add(position)
                    head = log_bytes(self.store, self.segments, position, 4)
                    leads_on = position + int.from_bytes(head, "big") == columns.physical_offset[0]
                    is_newer = last_ms is None or columns.store_timestamp[0] >= last_ms
                    if is_again or not (leads_on or is_newer):
                        break
                if len(columns):
                    last = int(columns.physical_offset[-1])
                    last_ms = int(columns.store_timestamp[-1])
                    position = last + int(columns.size[-1])
                if [one.physical_offset for one in batch.blanks] == [position]:
                    position = segment.base + segment.file_size
            is_again = is_again or (begin < position and look_stop < stop)
        return last, position

    def problem(self, place: Place) -> str | None:
        """Return what was expected and found where a place does not hold."""
        if place.offset < self.start:
            gone = self.gone(place.offset, self.start)
            begins = f"expected it in the log, found that the log begins at {self.start}"
            return None if gone is None else f"{begins}: {gone}"
        if place.record is not None and place.record >= self.start:
            record, crc, what = self.record(place.record)
            if record is not None and crc == place.crc:
                return None
            return (
                f"expected before it, at physical offset {place.record}, a record with CRC "
                f"{place.crc:08x}, found {what}: the log was cut and written again, or damaged"
            )
        record, _, what = self.record(place.offset)
        if record is not None or what == FILLER or place.offset in (self.start, self.end.offset):
            return None
        return f"expected a record's start or the log's end, found {what}"

    def resume(self, place: Place) -> int:
        """Return the first record at a place that does not hold or after it, else the end."""
        if place.offset <= self.start:
            return self.start
        return next(self.records(place.offset, self.end.offset), self.end.offset)

    def first_since(self, since_ms: int) -> int | None:
        """Return the first record that was stored at a time or later."""
        files = in_time(self.store, self.segments, since_ms, None)
        begin = files[0].base if files else self.start
        return next(self.records(begin, self.end.offset, since_ms), None)

    def over(self, start: int, stop: int) -> list[Segment]:
        """Return the files, there or missing, that have some of a range."""
        return [
            one for one in self.segments if max(start, one.base) < min(stop, one.base + one.size)
        ]

    def _batches(self, segment: Segment, start: int, stop: int) -> Iterator[ScanBatch]:
        """Yield what starts in a stretch of a file, given by physical offsets."""
        end = min(segment.size, stop - segment.base)
        split = SplitTask(self.store, segment, start - segment.base, end, data_stop=end)
        with opened(self.store.location, segment.path) as file:
            # Looks begin at a record that was checked.
            yield from split.scanned(file, lookback_bytes=4096)

    def scan(self, start: int, stop: int) -> Iterator[RecordColumns]:
        """Yield the intact records that start in a stretch of the log."""
        for one in self.over(start, stop):
            if not one.is_missing:
                for batch in self._batches(one, max(start, one.base), stop):
                    yield batch.columns

    def records(self, start: int, stop: int, since_ms: int = 0) -> Iterator[int]:
        """Yield where records of a stretch of the log start that were stored at a time or later."""
        for columns in self.scan(start, stop):
            yield from columns.physical_offset[columns.store_timestamp >= since_ms].tolist()

    def gone(self, start: int, stop: int) -> str | None:
        """Return what the stream lacks because a stretch of the log is not there any more."""
        return f"{stop - start} bytes were deleted"

    def has_some(self, begin: Place, goal: Place) -> bool:
        """Whether there is something between two places that makes a batch worth its while."""
        return goal.offset > begin.offset

    def cut(self, begin: Place, goal: Place, limits: BatchLimits) -> tuple[Place, int, int]:
        """Return the place after the last record that fits, and records and bytes before it."""
        scanned = self.scan(begin.offset, goal.offset)
        return self._cut(((one.physical_offset, one.size) for one in scanned), goal, limits)

    def _cut(
        self, wanted: Iterable[Found], goal: Place, limits: BatchLimits
    ) -> tuple[Place, int, int]:
        """As `cut`, of the records that are `wanted`, in the order of the log."""
        stop, rows, size_bytes, last = goal, 0, 0, 0
        for places, sizes in wanted:
            count = limits.fitting(sizes, rows, size_bytes)
            if count:
                rows += count
                size_bytes += int(sizes[:count].sum())
                last = int(places[count - 1])
            if count < len(sizes):
                stop = self.after(last)
                if stop.offset == last:  # an entry led to a damaged record
                    stop = Place(self.resume(stop))
                break
        if self.sure_stop is not None and self.sure_stop < stop.offset:
            stop = min(stop, LiveLog(self.store, self.options).end, key=lambda one: one.offset)
        return stop, rows, size_bytes

    def ranges(self, begin: Place, goal: Place) -> Iterable[ByteRange]:
        """Return the stretches between two places that tasks read."""
        return [ByteRange(begin.offset, goal.offset)]

    def tasks(self, begin: Place, goal: Place, losses: Losses) -> Iterator[SplitTask]:
        """Yield the byte ranges of a batch, each inside one file, however long."""
        for one in self.over(begin.offset, goal.offset):
            if one.is_missing and (gone := self.gone(one.base, one.base + one.size)):
                what = f"{one.path} is missing: expected {one.size} bytes of the log from physical "
                what += f"offset {one.base} on, found none: {gone}"
                losses.report(what, f"the stream goes on at {one.base + one.size}")
        stop_of = cache(stored_stop)  # a file may have many ranges
        ranges, until = ranges_of(goal), goal.until or 0  # as many as the user named: for few tasks
        for start, stop in self.ranges(begin, goal):
            for one in (one for one in self.over(start, stop) if not one.is_missing):
                first, last = max(0, start - one.base), min(one.size, stop - one.base)
                stored = stop_of(self.store.location, one.path, one.size)
                data_stop = min(stored, last + LOOK_BYTES)
                own = ranges if max(start, one.base) < until else {}
                yield SplitTask(self.store, one, first, last, own, data_stop, choices=goal.choices)
