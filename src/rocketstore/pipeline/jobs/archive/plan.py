"""Plan a run: where the log ends, which byte ranges are read, and by which task.

The driver finds the end first. What a writer appends meanwhile is left to the next run, and what a
writer has half appended lies behind the end: so whatever is no record in front of it is damage, in
a live store as well.

Law: the ranges of a plan cover the log from `begin` to `end` without gap or overlap.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from rocketstore.errors import ArchiveError
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.stores import SegmentState, list_segments
from rocketstore.scan.split import SegmentFile, plan_splits
from rocketstore.scan.window import scan_window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketstore.pipeline.jobs.archive.manifest import LastRecord, Manifest
    from rocketstore.pipeline.stores import Segment, StorePlace


class Piece(NamedTuple):
    """A range of one CommitLog file; `start` and `stop` are positions in the file."""

    segment: Segment
    start: int
    stop: int


class RawRange(NamedTuple):
    """Bytes that are kept as they are, because they are no part of the log.

    Attributes
    ----------
    kind
        ``tail`` behind the log's end, ``excess`` behind the size that a file should have.
    """

    segment: Segment
    start: int
    stop: int
    kind: str


class ArchiveTask(NamedTuple):
    """What one task archives.

    Attributes
    ----------
    staging
        Directory that the task writes to; empty on an object store.
    objects
        Location of the archive on an object store, else empty.
    run
        Number of the run.
    """

    number: int
    store: StorePlace
    pieces: tuple[Piece, ...]
    raw: tuple[RawRange, ...]
    staging: str
    objects: str = ""
    run: int = 0


class LogPlan(NamedTuple):
    """What a run reads.

    Attributes
    ----------
    gap
        Deleted before it was archived, in front of `begin`.
    is_compared
        Whether the last archived record was there to be compared.
    """

    begin: int
    end: int
    gap: tuple[int, int] | None
    is_compared: bool
    segments: tuple[Segment, ...]
    pieces: tuple[Piece, ...]
    raw: tuple[RawRange, ...]

    @property
    def expected_bytes(self) -> int:
        """Bytes that records and extents, tail and excess left out, have together."""
        return sum(piece.stop - piece.start for piece in self.pieces)


def plan_run(store: StorePlace, last: Manifest | None) -> LogPlan:
    """Return what a run behind `last` reads.

    Raises
    ------
    ArchiveError
        The log is not the one that was archived.
    StoreError
        The store cannot be read.
    """
    found = list_segments(store)
    segments = [one for one in found if one.state is not SegmentState.MISSING]
    begin, gap = _begin(segments, last)
    log_end = _log_end(store, segments)
    is_compared = _compare(store, segments, last, log_end)
    end = max(begin, log_end)
    pieces, raw = [], []
    for segment in segments:
        limit = min(segment.size, segment.file_size)
        start = min(max(0, begin - segment.base), limit)
        stop = min(max(start, end - segment.base), limit)
        if start < stop:
            pieces.append(Piece(segment, start, stop))
        if segment.base + segment.file_size <= begin:
            continue
        if stop < limit and segment.base + limit > end:
            raw.append(RawRange(segment, stop, _data_stop(store, segment), "tail"))
        if limit < segment.size:
            raw.append(RawRange(segment, limit, segment.size, "excess"))
    reaching = tuple(one for one in segments if one.base + one.file_size > begin)
    kept = tuple(one for one in raw if one.start < one.stop)
    return LogPlan(begin, end, gap, is_compared, reaching, tuple(pieces), kept)


def _begin(
    segments: Sequence[Segment], last: Manifest | None
) -> tuple[int, tuple[int, int] | None]:
    first = segments[0].base if segments else 0
    if last is None:
        return first, None
    if not segments or first <= last.end:
        return last.end, None
    return first, (last.end, first)


def _data_stop(store: StorePlace, segment: Segment) -> int:
    files, _ = files_at(store.location)
    with opened(files, segment.path) as file:
        return min(file.data_stop(segment.size), segment.size, segment.file_size)


def _log_end(store: StorePlace, segments: Sequence[Segment]) -> int:
    """Return the physical offset behind the last record or BLANK, else where the log begins."""
    for segment in reversed(segments):
        end = _end_in(store, segment)
        if end > segment.base:
            return end
    return segments[0].base if segments else 0


def _end_in(store: StorePlace, segment: Segment) -> int:
    files, _ = files_at(store.location)
    with opened(files, segment.path) as file:
        stop = min(file.data_stop(segment.size), segment.size, segment.file_size)
        end = segment.base
        if stop == 0:
            return end
        # From the last believable record before the zeros: some megabytes, not the file.
        for batch in scan_window(
            file,
            base=segment.base,
            size=segment.size,
            start=stop,
            stop=stop,
            file_size=segment.file_size,
            data_stop=stop,
        ):
            end = batch.end_of_data
    return end


# --- is it the same log? ------------------------------------------------------------------------


def _compare(
    store: StorePlace, segments: Sequence[Segment], last: Manifest | None, end: int
) -> bool:
    """Compare the last archived record with the log; return whether it was there.

    Raises
    ------
    ArchiveError
        Something else stands there, or the log ends before.
    """
    if last is None:
        return False
    if end < last.end:
        raise _other_log(last, f"the log ends at physical offset {end}, the archive at {last.end}")
    record = last.last_record
    if record is None or record.physical_offset < segments[0].base:
        return False
    found = _record_hash(store, segments, record)
    if found == record.sha256:
        return True
    raise _other_log(
        last,
        f"the record at physical offset {record.physical_offset}, {record.size} bytes: "
        f"expected SHA-256 {record.sha256}, found {found}",
    )


def _record_hash(store: StorePlace, segments: Sequence[Segment], record: LastRecord) -> str:
    files, _ = files_at(store.location)
    for segment in segments:
        position = record.physical_offset - segment.base
        if 0 <= position < segment.file_size:
            with opened(files, segment.path) as file:
                return record_hash(file.read(position, record.size))
    return "nothing, its file is missing"


def record_hash(content: bytes | memoryview) -> str:
    """Return how a record is told from any other."""
    return hashlib.sha256(content).hexdigest()


def _other_log(last: Manifest, difference: str) -> ArchiveError:
    return ArchiveError(
        f"the store is not the one that was archived, or its log was cut and rewritten since "
        f"(run {last.run}, broker {last.broker_name}): {difference}",
        hint="archive this store to a directory of its own",
    )


# --- tasks --------------------------------------------------------------------------------------


def plan_tasks(
    store: StorePlace, plan: LogPlan, max_split_bytes: int, staging: str
) -> list[ArchiveTask]:
    """Return the tasks of a run: ranges of at most `max_split_bytes`, small files together."""
    pieces = [part for piece in plan.pieces for part in _split(piece, max_split_bytes)]
    groups: list[list[Piece]] = []
    size = max_split_bytes
    for piece in pieces:
        length = piece.stop - piece.start
        if size + length > max_split_bytes:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += length
    tasks = [
        ArchiveTask(number, store, tuple(group), (), staging) for number, group in enumerate(groups)
    ]
    if plan.raw:
        tasks.append(ArchiveTask(len(tasks), store, (), plan.raw, staging))
    return tasks


def _split(piece: Piece, max_split_bytes: int) -> list[Piece]:
    # Cut where the whole file would be cut, so that cuts do not depend on where a run begins.
    file = SegmentFile(piece.segment.path, piece.segment.base, piece.segment.file_size)
    parts = []
    for split in plan_splits([file], max_split_bytes):
        start, stop = max(split.start, piece.start), min(split.stop, piece.stop)
        if start < stop:
            parts.append(Piece(piece.segment, start, stop))
    return parts
