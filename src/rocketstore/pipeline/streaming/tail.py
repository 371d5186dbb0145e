"""Walk along a log that is being written: as far as a limit, or to the end that can be believed.

Law: a stream never stands anywhere but behind a record that checks out, chain and CRC. What follows
the last such record, a torn one or nothing, is left to a later walk. No lock is taken, so:

- A break is believed only when a second look with fresh bytes finds it at the same place. The
  writer may be filling the page that was copied first while the one behind it is copied.
- Behind a break in the file that is being written, records may be what an earlier, longer log left
  behind a cut (decision 0004). They are taken for the log's only when the broken record's length
  leads to them, or when they are not older than the record in front of the break.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.stores import Segment, SegmentState
from rocketstore.pipeline.streaming.limits import Limits
from rocketstore.pipeline.streaming.offsets import Evidence
from rocketstore.pipeline.streaming.records import past_blank, record_at, segment_at
from rocketstore.scan.scanner import BATCH_RECORDS
from rocketstore.scan.window import scan_window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketstore.pipeline.files import OpenFile
    from rocketstore.pipeline.stores import StorePlace
    from rocketstore.scan.columns import RecordColumns
    from rocketstore.scan.scanner import ScanBatch

LOOKBACK_BYTES: Final = 4096
"""A walk begins at a record that was checked, so it need not look far for one before it."""


class Walked(NamedTuple):
    """How far a walk came.

    Attributes
    ----------
    stop
        Physical offset of what comes next.
    last
        Physical offset of the last record; None when there was none.
    """

    stop: int
    last: int | None
    rows: int
    size_bytes: int


class Walk:
    """One walk along one log.

    Parameters
    ----------
    segments
        Of the store, as they were listed just before.
    start
        A record's first byte, or the log's end.
    limits
        Where to stop early.
    before_ms
        Store time of the record in front of `start`, if known.
    """

    def __init__(
        self,
        store: StorePlace,
        segments: Sequence[Segment],
        start: int,
        limits: Limits,
        before_ms: int | None = None,
    ) -> None:
        self.store = store
        self.segments = segments
        self.position = start
        self.limits = limits
        self.last: int | None = None
        self.last_time_ms = before_ms
        self.rows = 0
        self.size_bytes = 0
        self.seen_breaks: set[int] = set()

    def run(self, *, stop: int | None = None) -> Walked:
        """Walk, not beyond the physical offset `stop` if there is one."""
        while stop is None or self.position < stop:
            segment = segment_at(self.segments, self.position)
            if segment is None:
                break
            if segment.state is SegmentState.MISSING:
                # Whether that is a loss is decided where the batch is planned.
                self.position = segment.base + segment.size
            elif not self._walk_file(segment, stop):
                break
        return Walked(self.position, self.last, self.rows, self.size_bytes)

    def _walk_file(self, segment: Segment, stop: int | None) -> bool:
        """Walk through a file and say whether the next one may follow."""
        files, _ = files_at(self.store.location)
        with opened(files, segment.path) as file:
            while True:
                again = self._walk_run(file, segment, stop)
                if again is not None:
                    return again

    def _walk_run(self, file: OpenFile, segment: Segment, stop: int | None) -> bool | None:
        """Walk until the file ends (True), the walk ends (False) or a look must be repeated."""
        end = segment.base + segment.file_size
        batches = scan_window(
            file,
            base=segment.base,
            size=segment.size,
            start=self.position - segment.base,
            stop=min(segment.size, segment.size if stop is None else stop - segment.base),
            file_size=segment.file_size,
            data_stop=file.data_stop(segment.size) if segment.is_last else None,
            batch_records=self._batch_records(),
            lookback_bytes=LOOKBACK_BYTES,
            whole_damage=True,
        )
        for batch in batches:
            if len(batch.columns) and batch.run_starts and segment.is_last:
                first = int(batch.columns.physical_offset[0])
                if self.position not in self.seen_breaks:
                    self.seen_breaks.add(self.position)
                    return None
                if not self._goes_on(segment, batch, first):
                    return False
            if self._take(batch.columns):
                self.position = past_blank(self.store, segment, self.position)
                return False
            if batch.blanks:
                self.position = end
        if stop is not None and stop < end:
            return False
        if not segment.is_last:
            # Whatever the rest of this file is, the log went on in the next one.
            self.position = end
        return self.position == end

    def _batch_records(self) -> int:
        left = self.limits.max_rows
        return BATCH_RECORDS if left is None else max(1, min(BATCH_RECORDS, left - self.rows))

    def _take(self, columns: RecordColumns) -> bool:
        """Count records as far as the limits allow, and say whether they are reached."""
        if not len(columns):
            return False
        left = self.limits.less(self.rows, self.size_bytes)
        count = len(columns)
        if left.max_rows is not None:
            count = min(count, left.max_rows)
        if left.max_bytes is not None:
            totals = np.cumsum(columns.size)
            count = min(count, int(totals.searchsorted(left.max_bytes, side="right")))
        if left.is_untouched:
            # A record that is heavier than the limit is a batch by itself.
            count = max(count, 1)
        if count > 0:
            self.rows += count
            self.size_bytes += int(columns.size[:count].sum())
            self.last = int(columns.physical_offset[count - 1])
            self.last_time_ms = int(columns.store_timestamp[count - 1])
            self.position = self.last + int(columns.size[count - 1])
        return count < len(columns) or self.limits.less(self.rows, self.size_bytes).is_used_up

    def _goes_on(self, segment: Segment, batch: ScanBatch, first: int) -> bool:
        """Whether records found behind a break belong to the log as it is now."""
        files, _ = files_at(self.store.location)
        with opened(files, segment.path) as file:
            head = file.read(self.position - segment.base, 4)
        if self.position + int.from_bytes(head, "big", signed=True) == first:
            return True
        before = self.last_time_ms
        return before is None or int(batch.columns.store_timestamp[0]) >= before


def walk_log(
    store: StorePlace,
    segments: Sequence[Segment],
    start: int,
    limits: Limits,
    *,
    before: Evidence | None = None,
    stop: int | None = None,
) -> Walked:
    """Walk from a record, or from the log's end, as far as the limits and the log go.

    Without limits, files that another one follows are not read: the log's end is in the last one.

    Parameters
    ----------
    start
        A record's first byte, or the log's end.
    before
        The record in front of `start`, if known.
    stop
        Physical offset not to walk beyond, if given.
    """
    tail = next((one for one in segments if one.is_last), None)
    is_jump = limits.is_unlimited and stop is None
    if not is_jump or tail is None or start >= tail.base:
        before_ms = None
        if before is not None:
            seen = record_at(store, segments, before.record)
            before_ms = int(seen.columns.store_timestamp[0]) if seen.is_record else None
        return Walk(store, segments, start, limits, before_ms).run(stop=stop)
    walked = Walk(store, segments, tail.base, Limits()).run()
    if walked.last is not None:
        return walked
    return walked._replace(last=last_record(store, segments, tail.base, floor=start))


def last_record(
    store: StorePlace, segments: Sequence[Segment], stop: int, *, floor: int
) -> int | None:
    """Return where the last record before `stop` starts that does not start before `floor`."""
    for segment in reversed(segments):
        if segment.base >= stop or segment.state is SegmentState.MISSING:
            continue
        if segment.base + segment.size <= floor:
            return None
        start = max(segment.base, floor)
        found = Walk(store, segments, start, Limits()).run(stop=min(stop, _end(segment))).last
        if found is not None:
            return found
    return None


def _end(segment: Segment) -> int:
    return segment.base + segment.file_size


def evidence_at(
    store: StorePlace, segments: Sequence[Segment], offset: int | None
) -> Evidence | None:
    """Return the evidence of a record that a walk has just checked."""
    if offset is None:
        return None
    seen = record_at(store, segments, offset)
    return Evidence(offset, seen.crc) if seen.is_record else None


def first_record(
    store: StorePlace, segments: Sequence[Segment], offset: int, *, since_ms: int | None = None
) -> int | None:
    """Return where the first record at or behind `offset` starts; None when there is none.

    Parameters
    ----------
    offset
        Any byte.
    since_ms
        Store time that the record must have reached, if given.
    """
    files, _ = files_at(store.location)
    for segment in segments:
        if segment.base + segment.size <= offset or segment.state is SegmentState.MISSING:
            continue
        with opened(files, segment.path) as file:
            batches = scan_window(
                file,
                base=segment.base,
                size=segment.size,
                start=max(0, offset - segment.base),
                stop=segment.size,
                file_size=segment.file_size,
                data_stop=file.data_stop(segment.size) if segment.is_last else None,
                whole_damage=True,
            )
            for batch in batches:
                times = batch.columns.store_timestamp
                rows = np.flatnonzero(times >= since_ms) if since_ms is not None else times
                if len(rows):
                    row = int(rows[0]) if since_ms is not None else 0
                    return int(batch.columns.physical_offset[row])
    return None
