"""Which parts of a store the tasks of an audit or a rebuild read."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.config import StoreConfig, StoreSizes, parse_delay_levels
from rocketstore.errors import ArgumentError, FormatError
from rocketstore.format.index_file import (
    FIRST_ITEM,
    INDEX_HEADER_SIZE,
    IndexLayout,
    decode_header,
    is_index_file_name,
    used_item_count,
)
from rocketstore.pipeline.planning import SplitTask, split_bytes, tasks_of
from rocketstore.places.files import OpenFile, StoreFile, opened, passing_over_deleted
from rocketstore.places.log_files import Segment, SegmentState
from rocketstore.places.stores import StorePlace
from rocketstore.rules.expectation import delay_array
from rocketstore.rules.files import FileProblem
from rocketstore.rules.findings import Finding, finding
from rocketstore.rules.leftovers import CLOCK_TOLERANCE_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rocketstore.native.row import Int64Array
    from rocketstore.places.store_listing import StoreListing
    from rocketstore.scan.scanner import ScanBatch
    from rocketstore.units import QueueKey

_LAST: Final = 2**63 - 1
_LEAST_TASKS: Final = 1_000
"""Of a log that is cut by its queues; beside 100 cores, ten for each."""
_ROWS: Final = 1_000_000
"""Of queues, by which a log is cut: each task sends one for each of its queues at least."""


# --- ranges of the log --------------------------------------------------------------------------


def log_cuts(places: StoreListing, max_split_bytes: int) -> list[tuple[SplitTask, ...]]:
    """Return the ranges of the log that each task reads, without empty ones.

    There is at least one, for the index; it has no path where the log is empty.
    """
    if max_split_bytes < 1:
        raise ArgumentError("max_split_bytes", expected="at least 1", found=max_split_bytes)
    store = StorePlace(places.location, "", places.is_live)
    whole = places.sizes.commit_log_file_bytes
    files = list[SplitTask]()
    for base, size, path in places.log.files:
        with opened(places.location, path) as file:
            stop = min(file.data_stop(size), size)
        segment = Segment(path, base, size, whole, SegmentState.WHOLE, is_last=False)
        known = None if places.is_live else stop
        files.append(SplitTask(store, segment, 0, stop, data_stop=known))
    step = split_bytes(sum(one.byte_count for one in files), max_split_bytes)
    first = places.log.files[0].base if places.log.files else 0
    nothing = Segment("", first, 0, whole, SegmentState.MISSING, is_last=True)
    return tasks_of(files, step) or [(SplitTask(store, nothing, 0, 0),)]


def scanned(part: SplitTask) -> Iterator[ScanBatch]:
    """Yield what starts in a range of the log; a file cut short ends in zeros, as after repair."""
    segment, stop = part.segment, part.data_stop
    if segment.is_missing:
        return
    with opened(part.store.location, segment.path) as file:
        stop = min(segment.size, file.data_stop(segment.size)) if stop is None else stop
        whole = part._replace(segment=segment._replace(size=segment.file_size), data_stop=stop)
        yield from whole.scanned(file)


# --- tasks --------------------------------------------------------------------------------------


class AuditIndexFile(NamedTuple):
    """An index file: the number after its last item, records of the first and the last one."""

    path: str
    name: str
    stop: int
    first: int
    last: int


class AuditTask(NamedTuple):
    """Ranges of the log and the index files that name their records; or an index file by itself.

    Of records from `items_end` on, items may be missing. A store time later than `latest_ms` is a
    damaged header. `irregular_queues` has the files of those queues in which not every file is the
    one that its name says. In each of the `cuts`, items are compared up to the next of the `edges`.
    """

    location: str
    sizes: StoreSizes
    has_index: bool
    is_live: bool
    items_end: int
    delays_ms: Int64Array
    latest_ms: int
    irregular_queues: Mapping[QueueKey, Sequence[StoreFile]]
    batch_topics: frozenset[str]
    cuts: tuple[SplitTask, ...] = ()
    edges: tuple[int, ...] = ()
    index_files: tuple[AuditIndexFile, ...] = ()


def plan_tasks(
    places: StoreListing,
    config: StoreConfig,
    batch_topics: frozenset[str],
    max_split_bytes: int,
    now_ms: int,
) -> tuple[AuditTask, list[AuditTask], list[Finding]]:
    """Return what all tasks share, the tasks, and the faults of index files as listed."""
    wrong, index = _index_files(places) if config.message_index_enable else ([], [])
    size = places.sizes.consume_queue_file_bytes
    common = AuditTask(
        places.location,
        places.sizes,
        config.message_index_enable,
        places.is_live,
        max((file.last for file in index), default=-1) if places.is_live else _LAST,
        delay_array(parse_delay_levels(config.message_delay_level)),
        now_ms + CLOCK_TOLERANCE_MS,
        {
            key: row.files
            for key, row in places.queues.items()
            if any(file.base % size for file in row.files)
            or any(one.problem is FileProblem.NOT_A_FILE for one in row.problems)
        },
        batch_topics,
    )
    stored = sum(file.size for file in places.log.files)
    fewest = max(_LEAST_TASKS, _ROWS // max(1, len(places.queues)))
    tasks, ranges = [], log_cuts(places, max(max_split_bytes, stored // fewest))
    begins = [[one.segment.base + one.start for one in cuts] for cuts in ranges]
    begins[0][0] = places.log.files[0].base if places.log.files else 0
    for cuts, starts, (stop, *_) in zip(ranges, begins, [*begins[1:], (_LAST,)], strict=True):
        named = tuple(file for file in index if file.last >= starts[0] and file.first < stop)
        tasks.append(common._replace(cuts=cuts, edges=(*starts, stop), index_files=named))
    tasks += [common._replace(index_files=(file,)) for file in index]
    return common, tasks, wrong


def _index_files(places: StoreListing) -> tuple[list[Finding], list[AuditIndexFile]]:
    """Return the faults of index files as they are listed, and the usable ones."""
    wrong, found = list[Finding](), list[AuditIndexFile]()
    layout = places.sizes.index_layout
    for entry in places.index_entries:
        name = places.below_root(entry.path)
        if not (entry.is_file and is_index_file_name(entry.name)):
            reason = "no index file's name; it is passed over"
            wrong.append(finding("index-extra", name, reason))
        elif entry.size != layout.size_bytes:
            reason = f"length: expected {layout.size_bytes} bytes, found {entry.size}"
            wrong.append(finding("index-length", name, reason))
        else:
            with passing_over_deleted(), opened(places.location, entry.path) as file:
                stop, edges = FIRST_ITEM, [-1, -1]
                with contextlib.suppress(FormatError):  # the task that reads its items reports it
                    stop = used_item_count(decode_header(file.read(0, INDEX_HEADER_SIZE)), layout)
                if stop > FIRST_ITEM:
                    edges = [item_offset(file, layout, one) for one in (FIRST_ITEM, stop - 1)]
                found.append(AuditIndexFile(entry.path, name, stop, *edges))
    return wrong, found


def item_offset(file: OpenFile, layout: IndexLayout, number: int) -> int:
    """Return the physical offset of the record that an item of an index file names."""
    content = file.read(layout.item_position(number) + 4, 8)
    return int.from_bytes(content, "big", signed=True)
