"""Plan a run: where the log ends, which byte ranges are read, and by which task.

The driver finds the end first. What a writer appends meanwhile is left to the next run, and what a
writer has half appended lies after the end: so whatever is no record before it is damage, in a live
store as well.

Law: the ranges of a plan cover the log from `begin` to `end` without gap or overlap.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rocketstore.errors import ArchiveError
from rocketstore.format.markers import CONFIG_DIRECTORY
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.jobs.archive.archive_table import EXTENT_BYTES
from rocketstore.pipeline.planning import grouped, stored_weight
from rocketstore.pipeline.stores import SegmentState, list_segments
from rocketstore.scan.split import SegmentFile, plan_splits
from rocketstore.scan.window import scan_window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rocketstore.pipeline.jobs.archive.archive_table import Run
    from rocketstore.pipeline.stores import Segment, StorePlace


class Stretch(NamedTuple):
    """A range of one CommitLog file; `start` and `stop` are positions in the file.

    Attributes
    ----------
    kind
        Empty for a part of the log; ``tail`` or ``excess`` for bytes that are kept as they are.
    """

    segment: Segment
    start: int
    stop: int
    kind: str = ""


class ArchiveTask(NamedTuple):
    """What one task archives, to files below the archive's location `target`."""

    number: int
    store: StorePlace
    stretches: tuple[Stretch, ...]
    target: str
    run: int


class LogPlan(NamedTuple):
    """What a run reads.

    Attributes
    ----------
    gap
        Deleted before it was archived, before `begin`.
    is_compared
        Whether the last archived record was there to be compared.
    segments
        The CommitLog files that reach beyond `begin`.
    log, kept
        What is read: parts of the log, and what is kept as it is.
    config
        Content of the files of the directory ``config``, by name.
    beside
        What tells whether anything but the log has changed.
    """

    begin: int
    end: int
    gap: tuple[int, int] | None
    is_compared: bool
    segments: tuple[Segment, ...]
    log: tuple[Stretch, ...]
    kept: tuple[Stretch, ...]
    config: dict[str, bytes]
    beside: str


def plan_run(store: StorePlace, last: Run | None) -> LogPlan:
    """Return what a run after `last` reads.

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
    is_compared = last is not None and _compare(store, segments, last, log_end)
    end = max(begin, log_end)
    log, kept = [], []
    reaching = tuple(one for one in segments if one.base + one.file_size > begin)
    for segment in reaching:
        limit = min(segment.size, segment.file_size)
        start = min(max(0, begin - segment.base), limit)
        stop = min(max(start, end - segment.base), limit)
        log.append(Stretch(segment, start, stop))
        if segment.base + limit > end:
            kept.append(Stretch(segment, stop, _data_stop(store, segment), "tail"))
        kept.append(Stretch(segment, limit, segment.size, "excess"))
    config = _config_tables(store)
    return LogPlan(
        begin=begin,
        end=end,
        gap=gap,
        is_compared=is_compared,
        segments=reaching,
        log=tuple(one for one in log if one.start < one.stop),
        kept=tuple(one for one in kept if one.start < one.stop),
        config=config,
        beside=_beside(
            store, [one for one in kept if one.segment.base + one.segment.file_size > end], config
        ),
    )


def _beside(store: StorePlace, kept: Sequence[Stretch], config: Mapping[str, bytes]) -> str:
    """Return a hash of what lies beside the log; every file after its end has a part in `kept`.

    The tables of a running broker change all the time, so they are not looked at.
    """
    files, _ = files_at(store.location)
    found = []
    for one in kept:
        # A record that is half written has less.
        size = max(0, min(one.stop - one.start, EXTENT_BYTES))
        with opened(files, one.segment.path) as file:
            content = zlib.crc32(file.read(one.start, size).rstrip(b"\0"))
        found.append((one.segment.base, one.segment.size, one.segment.file_size, *one[1:], content))
    tables = {} if store.is_open else {name: zlib.crc32(one) for name, one in config.items()}
    return hashlib.sha256(msgspec.json.encode((found, tables))).hexdigest()


def _begin(segments: Sequence[Segment], last: Run | None) -> tuple[int, tuple[int, int] | None]:
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
    """Return the physical offset after the last record or BLANK, else where the log begins."""
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


def _config_tables(store: StorePlace) -> dict[str, bytes]:
    files, root = files_at(store.location)
    tables = {}
    for entry in files.list(f"{root}/{CONFIG_DIRECTORY}"):
        if not entry.is_directory:
            with opened(files, entry.path) as file:
                tables[entry.name] = file.read(0, entry.size)
    return tables


def _compare(store: StorePlace, segments: Sequence[Segment], last: Run, end: int) -> bool:
    """Compare the last archived record with the log; return whether it was there.

    Raises
    ------
    ArchiveError
        Something else stands there, or the log ends before.
    """
    if end < last.end:
        raise _other_log(store, f"the log ends at physical offset {end}, the archive at {last.end}")
    facts = last.facts
    if not facts.last_size or facts.last_offset < segments[0].base:
        return False
    found = _record_hash(store, segments, facts.last_offset, facts.last_size)
    if found == facts.last_sha256:
        return True
    raise _other_log(
        store,
        f"the record at physical offset {facts.last_offset}, {facts.last_size} bytes: "
        f"expected SHA-256 {facts.last_sha256}, found {found}",
    )


def _record_hash(store: StorePlace, segments: Sequence[Segment], offset: int, size: int) -> str:
    files, _ = files_at(store.location)
    for segment in segments:
        if 0 <= offset - segment.base < segment.file_size:
            with opened(files, segment.path) as file:
                return record_hash(file.read(offset - segment.base, size))
    return "nothing, its file is missing"


def record_hash(content: bytes | memoryview) -> str:
    """Return what tells a record from any other."""
    return hashlib.sha256(content).hexdigest()


def _other_log(store: StorePlace, difference: str) -> ArchiveError:
    return ArchiveError(
        f"{store.location} is not the store that was archived as broker {store.broker_name}, or "
        f"its log was cut and rewritten since: {difference}",
        hint="archive this store to a directory of its own",
    )


def plan_tasks(
    store: StorePlace, plan: LogPlan, max_split_bytes: int, target: str, run: int
) -> list[ArchiveTask]:
    """Return the tasks of a run: neighbouring ranges, together at most `max_split_bytes`."""
    parts = [part for one in plan.log for part in _split(one, max_split_bytes)]
    weight = stored_weight(max_split_bytes)
    groups = grouped(
        parts,
        max_split_bytes,
        lambda part: weight(store.location, part.segment, part.start, part.stop),
    )
    groups += [plan.kept] if plan.kept else []
    return [ArchiveTask(number, store, group, target, run) for number, group in enumerate(groups)]


def _split(stretch: Stretch, max_split_bytes: int) -> list[Stretch]:
    # Cut where the whole file would be cut, so that cuts do not depend on where a run begins.
    segment = stretch.segment
    file = SegmentFile(segment.path, segment.base, segment.file_size)
    parts = []
    for split in plan_splits([file], max_split_bytes):
        start, stop = max(split.start, stretch.start), min(split.stop, stretch.stop)
        if start < stop:
            parts.append(Stretch(segment, start, stop))
    return parts
