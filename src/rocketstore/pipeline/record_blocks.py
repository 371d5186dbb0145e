"""Records of a few queues in a byte range of the log, read one by one where that is much less.

Law: what the entries say is believed only as a whole: each is written, they ascend, and each leads
to a record that states the same topic, queue and offset. Else it is `Doubt`, and the range is
scanned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rocketstore.format.queue_entry import ENTRY_DTYPE, filler_mask, written_mask
from rocketstore.pipeline.queue_range import Doubt
from rocketstore.pipeline.queues import queue_files
from rocketstore.scan.scanner import scan_segment
from rocketstore.units import KiB, MiB

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from rocketstore.pipeline.files import OpenFile
    from rocketstore.pipeline.planning import SplitTask
    from rocketstore.pipeline.queues import QueueFiles
    from rocketstore.scan.columns import RecordColumns

    Numbers = npt.NDArray[np.int64]

WORTH_A_SCAN: Final = 4
"""Records that have a larger part of their range are found by a scan, which asks less often."""

_GAP_BYTES: Final = 32 * KiB
"""Between records that are read at once: as quick to read as to ask for again."""

_BLOCK_BYTES: Final = 8 * MiB

_NEIGHBOURS: Final = 512
"""More entries than a page of memory holds, which is what a disk or a kernel loses."""


class _Wanted(NamedTuple):
    """Records in the order of the log."""

    places: Numbers
    sizes: Numbers
    queue_ids: Numbers
    queue_offsets: Numbers
    topics: npt.NDArray[np.object_]


def records_by_entries(task: SplitTask, file: OpenFile) -> Iterator[RecordColumns]:
    """Yield at least the records of the task's queues that start in its range.

    Raises
    ------
    Doubt
        A scan is the better way, or an entry lies.
    """
    begin, stop = task.segment.base + task.start, task.segment.base + task.stop
    parts = [_entries_in(queue_files(task.store.location, key), begin, stop) for key in task.queues]
    found = [part for part in parts if len(part.places)]
    if not found:
        return
    joined: list[Any] = [np.concatenate(columns) for columns in zip(*found, strict=True)]
    wanted = _rows(_Wanted(*joined), np.argsort(joined[0], kind="stable"))
    if int(wanted.sizes.sum()) * WORTH_A_SCAN > task.byte_count:
        raise Doubt("the queues have most of the range")
    ends = wanted.places + wanted.sizes
    edges = np.flatnonzero(wanted.places[1:] - ends[:-1] > _GAP_BYTES) + 1
    for run in np.split(np.arange(len(ends)), edges):
        begins = wanted.places[run]
        cuts = np.flatnonzero(np.diff((begins - begins[0]) // _BLOCK_BYTES)) + 1
        for rows in np.split(run, cuts):
            yield _block(task, file, _rows(wanted, rows))


def _rows(wanted: _Wanted, rows: Numbers) -> _Wanted:
    columns: list[Any] = [column[rows] for column in wanted]
    return _Wanted(*columns)


def _block(task: SplitTask, file: OpenFile, wanted: _Wanted) -> RecordColumns:
    """Return the records of one stretch, all of `wanted` among them."""
    segment = task.segment
    position = int(wanted.places[0]) - segment.base
    size = int((wanted.places + wanted.sizes).max()) - segment.base - position
    if position + size > segment.size:
        raise Doubt("an entry leads beyond its file")
    data = np.empty(size, dtype=np.uint8)
    if file.read_into(position, data.data) < size:
        raise Doubt("the file is shorter than it was")
    batches = list(
        scan_segment(
            data,
            base=segment.base + position,
            file_size=segment.file_size - position,
            batch_records=size // 88 + 1,
        )
    )
    if len(batches) > 1:
        raise Doubt("there is damage between records")
    columns = batches[0].columns
    offsets = columns.physical_offset
    rows = np.minimum(offsets.searchsorted(wanted.places), max(len(offsets) - 1, 0))
    topics: Any = columns.to_arrow(["topic"]).column(0)
    if not len(offsets) or not (
        np.array_equal(offsets[rows], wanted.places)
        and np.array_equal(columns.queue_id[rows], wanted.queue_ids)
        and np.array_equal(columns.queue_offset[rows], wanted.queue_offsets)
        and topics.take(rows).to_pylist() == wanted.topics.tolist()
    ):
        raise Doubt("an entry leads to no record that says so")
    return columns


def _entries_in(queue: QueueFiles, begin: int, stop: int) -> _Wanted:
    """Return the entries that point into a range of the log."""
    end = queue.written_stop()
    first = _first_from(queue, begin, queue.first_offset, end)
    last = _first_from(queue, stop, first, end)
    # An entry that lies leads a search beside it: its neighbours show that.
    low, high = max(queue.first_offset, first - _NEIGHBOURS), min(end, last + _NEIGHBOURS)
    chunks = [entries for _, entries in queue.entries(low, high)]
    entries = np.concatenate(chunks) if chunks else np.empty(0, dtype=ENTRY_DTYPE)
    places = entries["physical_offset"].astype(np.int64)
    is_right = (
        len(entries) == high - low
        and bool((written_mask(entries) & ~filler_mask(entries)).all())
        and bool((np.diff(places) > 0).all())
    )
    if not is_right:
        raise Doubt(f"entries {low} to {high} of queue {queue.key} are not in order")
    places, entries = places[first - low : last - low], entries[first - low : last - low]
    return _Wanted(
        places,
        entries["record_size"].astype(np.int64),
        np.full(len(places), queue.key.queue_id, dtype=np.int64),
        np.arange(first, last, dtype=np.int64),
        np.full(len(places), queue.key.topic, dtype=object),
    )


def _first_from(queue: QueueFiles, place: int, low: int, high: int) -> int:
    """Return the first entry that points at `place` or after it, by a binary search."""
    while low < high:
        middle = (low + high) // 2
        entry = queue.entry(middle)
        if entry is None or entry.is_filler:
            raise Doubt(f"entry {middle} of queue {queue.key} leads to no record")
        low, high = (low, middle) if entry.physical_offset >= place else (middle + 1, high)
    return low
