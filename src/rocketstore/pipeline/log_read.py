"""Read a byte range of a CommitLog file: records in batches, and every damaged byte accounted for.

Law: damage is either an error or counted, never silently passed over. One exception is no damage: a
torn record at the very end of a store that is open, or was not closed in order, is the log's end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocketstore.errors import StoreDamagedError, StoreError
from rocketstore.events import get_logger
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.queue_range import Doubt
from rocketstore.pipeline.record_blocks import records_by_entries
from rocketstore.pipeline.stores import SegmentState
from rocketstore.scan.columns import RecordColumns, new_columns
from rocketstore.scan.scanner import Damage, DamageReason, ScanBatch
from rocketstore.scan.window import scan_window
from rocketstore.units import ByteRange

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from rocketstore.pipeline.files import OpenFile
    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.planning import SplitTask

_log = get_logger(__name__)


class FoundDamage(NamedTuple):
    """Damage, and whether it may be a record that was never finished."""

    damage: Damage
    is_torn_tail: bool


def read_split(task: SplitTask) -> Iterator[tuple[RecordColumns, list[FoundDamage]]]:
    """Yield records and damage that start in a task's range, in the order of the log.

    Raises
    ------
    StoreError
        The file cannot be read.
    """
    segment = task.segment
    files, _ = files_at(task.store.location)
    with opened(files, segment.path) as file:
        if _was_begun_since(task, file):
            return
        # What begins in zeros that nothing follows begins before them.
        if task.start == 0 or not file.is_hole(task.start - 1):
            for batch in scanned(task, file):
                yield batch.columns, damage_of(task, batch)
    if _has_missing_end(task):
        yield RecordColumns(np.empty(0, dtype=np.uint8), new_columns(0), 0), [_missing_end(task)]


def scanned(task: SplitTask, file: OpenFile, *, whole_damage: bool = True) -> Iterator[ScanBatch]:
    """Yield what starts in a task's range; see ``scan_window`` for `whole_damage`."""
    segment = task.segment
    return scan_window(
        file,
        base=segment.base,
        size=segment.size,
        start=task.start,
        stop=task.stop,
        file_size=segment.file_size,
        data_stop=file.data_stop(segment.size) if task.data_stop is None else task.data_stop,
        whole_damage=whole_damage,
    )


def _was_begun_since(task: SplitTask, file: OpenFile) -> bool:
    """Whether a writer has reached a file that was made in advance after the read was planned.

    The file before it may have been read before it was full, so this one's records would be rows
    behind a gap.
    """
    is_ahead = task.segment.state is SegmentState.UNWRITTEN and task.store.is_open
    return is_ahead and file.read(0, 8).strip(b"\0") != b""


def damage_of(task: SplitTask, batch: ScanBatch) -> list[FoundDamage]:
    """Return the damage of a batch, zeros at the end of a file that is not the last among it."""
    segment, tail_at = task.segment, batch.unwritten_at
    found = [
        FoundDamage(one, segment.is_last and one.range.stop == tail_at) for one in batch.damage
    ]
    if tail_at is None or segment.is_last:
        return found
    # Another file follows, so the log did not end in this one: what is empty here was lost.
    end = segment.base + min(segment.size, segment.file_size)
    position = tail_at - segment.base
    if task.start <= position < task.stop and tail_at < end:
        evidence = "zeros up to the end of a file that another one follows"
        hole = Damage(ByteRange(tail_at, end), DamageReason.UNWRITTEN_HOLE, evidence)
        found.append(FoundDamage(hole, is_torn_tail=False))
    return found


def _has_missing_end(task: SplitTask) -> bool:
    segment = task.segment
    is_cut = segment.state is SegmentState.TRUNCATED and not segment.is_last
    return is_cut and task.stop == segment.size


def _missing_end(task: SplitTask) -> FoundDamage:
    segment = task.segment
    extent = ByteRange(segment.base + segment.size, segment.base + segment.file_size)
    evidence = f"the file has {segment.size} of {segment.file_size} bytes"
    return FoundDamage(Damage(extent, DamageReason.TRUNCATED, evidence), is_torn_tail=False)


def intact_records(task: SplitTask, options: ReadOptions) -> Iterator[RecordColumns]:
    """Yield the records of a task's range and deal with damage as the query asked.

    Raises
    ------
    StoreDamagedError
        The range is damaged, and the policy is ``fail``.
    StoreError
        The file cannot be read; one that is gone only when `failOnDataLoss` is set.
    """
    yielded: list[npt.NDArray[np.int64]] = []
    if task.queues:
        stop = min(task.stop, task.dispatched - task.segment.base)
        try:
            for columns in _by_entries(task._replace(stop=stop)):
                yielded.append(columns.physical_offset)
                yield columns
        except Doubt:
            pass  # some are yielded already
        else:
            if stop >= task.stop:
                return
            task = task._replace(start=max(stop, task.start))
    for columns in _scanned_records(task, options):
        mask = np.isin(columns.physical_offset, np.concatenate([_NONE, *yielded]), invert=True)
        if mask.any():
            yield RecordColumns(columns.buffer, columns.cols[mask], columns.base)


_NONE: Final = np.empty(0, dtype=np.int64)


def _by_entries(task: SplitTask) -> Iterator[RecordColumns]:
    if task.start < task.stop:
        files, _ = files_at(task.store.location)
        with opened(files, task.segment.path) as file:
            yield from records_by_entries(task, file)


def _scanned_records(task: SplitTask, options: ReadOptions) -> Iterator[RecordColumns]:
    ranges = damaged_bytes = 0
    try:
        for columns, found in read_split(task):
            for one in found:
                if one.is_torn_tail and task.store.is_open:
                    continue
                if options.damage == "fail":
                    raise refused(task, one.damage)
                ranges += 1
                damaged_bytes += one.damage.range.size
                if options.damage == "report":
                    _log.warning("skipped damage: %s", described(task, one.damage))
            if len(columns):
                yield columns
    except StoreError as error:
        if options.fail_on_data_loss or not isinstance(error.__cause__, FileNotFoundError):
            raise
        _log.warning("skipped a file that is gone: %s", task.segment.path)
    if ranges:
        _log.warning(
            "skipped %d damaged ranges of %d bytes in %s", ranges, damaged_bytes, task.segment.path
        )


def described(task: SplitTask, damage: Damage) -> str:
    """Say what is damaged, where, and how that shows."""
    return (
        f"{damage.reason.value} in {task.segment.path} at position "
        f"{damage.range.start - task.segment.base} (physical offset {damage.range.start}), "
        f"{damage.range.size} bytes: {damage.evidence}"
    )


def refused(task: SplitTask, damage: Damage) -> StoreDamagedError:
    """Return the error of a read that takes no damage."""
    return StoreDamagedError(
        f"damage: {described(task, damage)}",
        hint='to read the intact rest: option("damage", "skip"); '
        'to list all damage: option("table", "damage")',
    )
