"""Read a byte range of a CommitLog file: records in batches, and every damaged byte accounted for.

Records of a few queues are read one by one, by their entries, where that is much less than the
range; else it is scanned.

Law: damage is either an error or counted, never silently passed over. One exception is no damage: a
torn record at the very end of a store that is open, or was not closed in order, is the log's end.
Law: entries of a queue are relied upon all together or not at all: each is written, they ascend,
and each leads to a record that states the same topic, queue and offset. Otherwise `ScanNeeded` is
raised, and the range is scanned.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocketstore.errors import StoreDamagedError, StoreError
from rocketstore.events import get_logger
from rocketstore.format.record import FIXED_SIZE
from rocketstore.pipeline.planning import SplitTask, grouped
from rocketstore.pipeline.projection import wanted_records
from rocketstore.places.files import OpenFile, opened
from rocketstore.places.log_files import SegmentState
from rocketstore.places.queue_files import NEIGHBOURS, QueueFiles, ScanNeeded
from rocketstore.scan import kernels
from rocketstore.scan.arrow import to_arrow
from rocketstore.scan.columns import Column, RecordColumns, new_columns
from rocketstore.scan.scanner import Damage, DamageReason, ScanBatch
from rocketstore.units import ByteRange, KiB, MiB, QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rocketstore.native.row import Int64Array
    from rocketstore.pipeline.options import ReadOptions

    QueueOpener = Callable[[str, QueueKey], QueueFiles]

_log = get_logger(__name__)

WORTH_A_SCAN: Final = 4  # the part of their range from which on records are found by a scan
_GAP_BYTES: Final = 32 * KiB  # between records that are read at once: quicker than to ask again
_BLOCK_BYTES: Final = 8 * MiB


class Losses:
    """Losses that one stream or task accepted; each counts once."""

    def __init__(self, options: ReadOptions) -> None:
        self.is_error = options.fail_on_data_loss
        self.accepted: set[str] = set()

    def report(self, what: str, then: str) -> None:
        """Raise or count a loss: `what` says where, expected and found, `then` what follows."""
        if self.is_error:
            hint = 'to go on with what is there: option("failOnDataLoss", "false")'
            raise StoreError(f"data loss: {what}", hint=hint)
        if what not in self.accepted:
            self.accepted.add(what)
            _log.warning("stream.loss", count=len(self.accepted), what=what, then=then)


def read_split(
    task: SplitTask, seen: Counter[str] | None = None, *, or_torn: bool = False
) -> Iterator[tuple[RecordColumns, list[Damage]]]:
    """Yield records and damage that start in a task's range, in the order of the log.

    A record that is torn at the end of an open store's log may still be finished: it is damage only
    if so asked (`or_torn`). In `seen` it counts the scan, bytes read, and each search for a record:
    where a range begins inside of a file, and after damage.
    """
    segment, seen = task.segment, Counter() if seen is None else seen
    seen["scans"] += 1
    with opened(task.store.location, segment.path) as file:
        # A writer has reached a file that was made in advance when the read was planned. The file
        # before it may have been read before it was full: these records would come after a gap.
        is_ahead = segment.state is SegmentState.UNWRITTEN and task.store.is_open
        if is_ahead and file.read(0, 8).strip(b"\0"):
            return
        stop = file.data_stop(segment.size) if task.data_stop is None else task.data_stop
        # What begins in zeros that nothing follows begins before them.
        if task.start <= stop:
            seen["resyncs"] += task.start > 0
            for batch in task._replace(data_stop=stop).scanned(file):
                seen["resyncs"] += len(batch.run_starts)
                found = damage_of(task, batch)
                if segment.is_last and task.store.is_open and not or_torn:
                    found = [one for one in found if one.range.stop != batch.unwritten_at]
                yield batch.columns, found
        seen["bytesRead"] += file.read_count
    is_cut = segment.state is SegmentState.TRUNCATED and not segment.is_last
    if is_cut and task.stop == segment.size:
        extent = ByteRange(segment.base + segment.size, segment.base + segment.file_size)
        evidence = f"the file has {segment.size} of {segment.file_size} bytes"
        found = [Damage(extent, DamageReason.TRUNCATED, evidence)]
        yield RecordColumns(np.empty(0, dtype=np.uint8), new_columns(0), 0), found


def damage_of(task: SplitTask, batch: ScanBatch) -> list[Damage]:
    """Return the damage of a batch, zeros at the end of a file that is not the last among it."""
    segment = task.segment
    if segment.is_last:
        return batch.damage
    begin, stop = segment.base + task.start, segment.base + task.stop
    damage = batch.damage_up_to(segment.base + min(segment.size, segment.file_size))
    return [one for one in damage if begin <= one.range.start < stop]


def _intact_records(
    task: SplitTask, options: ReadOptions, queue_of: QueueOpener, seen: Counter[str]
) -> Iterator[RecordColumns]:
    yielded: list[Int64Array] = []
    if task.queues:
        stop = max(task.start, min(task.stop, task.dispatched - task.segment.base))
        try:
            for columns in _records_by_entries(task._replace(stop=stop), queue_of, seen):
                yielded.append(columns.physical_offset)
                yield columns
        except ScanNeeded:
            pass  # some are yielded already
        else:
            if stop == task.stop:
                return
            task = task._replace(start=stop)
    for columns in _scanned_records(task, options, seen):
        if yielded:
            is_new = np.isin(columns.physical_offset, np.concatenate(yielded), invert=True)
            columns = columns.taken(is_new)  # noqa: PLW2901 - those that are left of it
        if len(columns):
            yield columns


def chosen_records(
    task: SplitTask,
    options: ReadOptions,
    queue_of: QueueOpener = QueueFiles,
    seen: Counter[str] | None = None,
) -> Iterator[RecordColumns]:
    """Yield the records of a range that the query wants; deal with damage and loss as it asked.

    Whose task has many ranges lists queues once (`queue_of`).
    """
    seen = Counter() if seen is None else seen
    for columns in _intact_records(task, options, queue_of, seen):
        seen["records"] += len(columns)
        wanted = wanted_records(columns, options, task.store.broker_name, task.queue_ranges)
        if len(wanted):
            yield wanted


def _scanned_records(
    task: SplitTask, options: ReadOptions, seen: Counter[str]
) -> Iterator[RecordColumns]:
    damaged: list[int] = []
    try:
        for columns, found in read_split(task, seen):
            damaged += [passed_over(task, one, options) for one in found]
            if len(columns):
                yield columns
    except StoreError as error:
        if options.fail_on_data_loss or not isinstance(error.__cause__, FileNotFoundError):
            raise
        _log.warning("log.file_gone", path=task.segment.path)
    seen["damagedRanges"] += len(damaged)
    seen["damagedBytes"] += sum(damaged)
    report_skipped(task, damaged)


def passed_over(task: SplitTask, damage: Damage, options: ReadOptions) -> int:
    """Return how many bytes are damaged, unless the options refuse that."""
    described = (
        f"{damage.reason.value} in {task.segment.path} at position "
        f"{damage.range.start - task.segment.base} (physical offset {damage.range.start}), "
        f"{damage.range.size} bytes: {damage.evidence}"
    )
    if options.damage == "fail":
        raise StoreDamagedError(
            f"damage: {described}",
            hint='to read the intact rest: option("damage", "skip"); '
            'to list all damage: option("table", "damage")',
        )
    if options.damage == "report":
        _log.warning("log.damage", what=described)
    return damage.range.size


def report_skipped(task: SplitTask, damaged: Sequence[int]) -> None:
    """Log how many damaged ranges of a file were passed over, of so many bytes each."""
    if damaged:
        path, size = task.segment.path, sum(damaged)
        _log.warning("log.damage_skipped", ranges=len(damaged), bytes=size, path=path)


# --- by entries ---------------------------------------------------------------------------------

_WANTED: Final = ("physical_offset", "size", "queue_id", "queue_offset")
"""Columns of what entries name; the last one more is the number of the queue."""

_PLACES: Final = [column for column in Column if column.name.endswith("_AT")]


def _records_by_entries(
    task: SplitTask, queue_of: QueueOpener, seen: Counter[str]
) -> Iterator[RecordColumns]:
    """Yield at least the task's queues' records in its range; `ScanNeeded` where it has to scan."""
    begin, stop = task.segment.base + task.start, task.segment.base + task.stop
    queues = [queue_of(task.store.location, key) for key in task.queues]
    wanted = np.concatenate([_entries_in(*one, begin, stop) for one in enumerate(queues)])
    if not len(wanted):
        return
    wanted = wanted[np.argsort(wanted[:, 0], kind="stable")]
    places, sizes = wanted[:, 0], wanted[:, 1]
    if int(sizes.sum()) * WORTH_A_SCAN > task.byte_count:
        raise ScanNeeded("the queues have most of the range")
    is_far = places[1:] - (places + sizes)[:-1] > _GAP_BYTES
    is_other_block = np.diff((places - begin) // _BLOCK_BYTES) > 0
    runs = np.split(wanted, np.flatnonzero(is_far | is_other_block) + 1)
    with opened(task.store.location, task.segment.path) as file:
        for group in grouped(runs, _BLOCK_BYTES, _length):
            yield _gathered(task, file, group)
        seen["bytesRead"] += file.read_count


def _length(run: Int64Array) -> int:
    """Return the bytes from the first to the last record of a run."""
    return int((run[:, 0] + run[:, 1]).max() - run[0, 0])


def _gathered(task: SplitTask, file: OpenFile, runs: Sequence[Int64Array]) -> RecordColumns:
    """Return the records of some runs, all that entries name among them, from one buffer."""
    base = task.segment.base
    data = np.empty(sum(map(_length, runs)), dtype=np.uint8)
    cols = new_columns(len(data) // FIXED_SIZE + len(runs))
    at = count = 0
    check_crc = True
    for run in runs:
        length, position = _length(run), int(run[0, 0]) - base
        view = data[at : at + length]
        if file.read_into(position, view.data) < length:
            raise ScanNeeded("an entry leads beyond its file, or the file is shorter than it was")
        left = task.segment.file_size - position
        found, reached, _ = kernels.walk(
            view, 0, length, base + position, left, check_crc, cols[count:]
        )
        if reached < length:
            raise ScanNeeded("there is damage between records")
        cols[count : count + found, _PLACES] += at
        at, count = at + length, count + found
    # What is between the runs is not there, so nothing may be looked up by a physical offset.
    columns = RecordColumns(data, cols[:count], base)
    wanted = np.concatenate(runs)
    rows = np.minimum(columns.physical_offset.searchsorted(wanted[:, 0]), count - 1)
    stated = np.stack([getattr(columns, name)[rows] for name in _WANTED], axis=1)
    topics: Any = to_arrow(columns, ["topic"]).column(0).take(rows)
    if not np.array_equal(stated, wanted[:, :-1]) or topics.to_pylist() != [
        task.queues[number].topic for number in wanted[:, -1].tolist()
    ]:
        raise ScanNeeded("an entry leads to no record that says so")
    return columns


def _entries_in(number: int, queue: QueueFiles, begin: int, stop: int) -> Int64Array:
    """Return rows of the entries that point into a range of the log, of the queue of a number."""
    first, last = queue.pointing_into(begin, stop)
    low = max(queue.first_offset, first - NEIGHBOURS)
    high = min(queue.max_offset, last + NEIGHBOURS)
    entries = queue.rising(low, high)
    own = queue.key.queue_id, np.arange(low, high), number
    said = entries["physical_offset"], entries["record_size"], *own
    return np.column_stack(np.broadcast_arrays(*said))[first - low : last - low].astype(np.int64)
