"""Compare the queues and the index of a store with what its log calls for, and say why they differ.

A store may differ from what dispatch would write today without anything being wrong: entries of
records that were deleted, what Java's defects leave, settings that were others then. Each such
reason has a name; what has none is a finding.

Law: nothing is written into the store. Entries are compared file by file, and numpy looks at them;
Python sees only the records whose properties have to be asked.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rocketstore.errors import StoreError
from rocketstore.format.file_name import file_name, parse_file_name
from rocketstore.format.queue_entry import (
    ENTRY_DTYPE,
    ENTRY_SIZE_BYTES,
    FILLER_SIZE,
    MAX_EXT_ADDRESS,
)
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.jobs.rebuild.extraction import DELAY_TOPIC
from rocketstore.pipeline.stores import SegmentState, list_segments
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.pipeline.files import FileEntry
    from rocketstore.pipeline.jobs.rebuild.parts import Broken
    from rocketstore.pipeline.stores import StorePlace

    BoolArray = npt.NDArray[np.bool_]

PROOF_SCHEMA: Final = (
    "area STRING, place STRING, kind STRING, first LONG, row_count LONG, detail STRING"
)

REASONS: Final = {
    "expired": "records that were deleted with old log files",
    "extension": "the tags code stands in an extension file (enableConsumeQueueExt)",
    "multi-dispatch": "an extra queue of other records (enableMultiDispatch is off here)",
    "kept-place": "the place of a record that is lost, kept when the store was recovered",
    "delay-levels": "deliver times by other delay levels than the settings have",
    "K-S1": "Java dispatched it at recovery, before it knew the delay levels",
    "K-I5": "Java counts the time of a file's first item from the file before",
    "K-I8": "Java indexes the last record once more at recovery",
}
"""Kinds of differences that are no fault of the store, and what each means."""

PROOF_TASK_BYTES: Final = 256 * MiB
"""Queue files of one task."""

LOST: Final = "lost"
"""Kind of an entry or item whose record is damaged."""

_KEPT_PLACE_OFFSET: Final = 2**63 - 1
_HASH_MAX: Final = 2**31 - 1
_MULTI_DISPATCH: Final = b"INNER_MULTI_DISPATCH\x01"
_MOST_RECORD_BYTES: Final = 64 * MiB
"""An entry that tells of a longer record is not believed: sixteen times what a broker takes."""


class LogFacts(NamedTuple):
    """What is known of the log.

    Attributes
    ----------
    location
        Of the store.
    files
        Offset and path of each log file, in order.
    begin, end
        Physical offsets of the first file and behind the last record.
    damaged
        Ranges without records, in order.
    """

    location: str
    files: tuple[tuple[int, str], ...]
    begin: int
    end: int
    damaged: tuple[tuple[int, int], ...]

    def is_damaged(self, offsets: npt.NDArray[np.int64]) -> BoolArray:
        """Return which offsets lie in damage."""
        mask = np.zeros(len(offsets), np.bool_)
        for start, stop in self.damaged:
            mask |= (offsets >= start) & (offsets < stop)
        return mask

    def has_extra_queues(self, offsets: npt.NDArray[np.int64], sizes: Sequence[int]) -> BoolArray:
        """Return which of the records at some rising offsets are multi-dispatch records."""
        mask = np.zeros(len(offsets), np.bool_)
        files, _ = files_at(self.location)
        numbers = np.searchsorted([base for base, _ in self.files], offsets, side="right") - 1
        for number in np.unique(numbers[numbers >= 0]).tolist():
            base, path = self.files[number]
            rows = np.flatnonzero(numbers == number).tolist()
            # Opened once: what is read of neighbours comes in one block where requests cost.
            with contextlib.suppress(StoreError), opened(files, path) as file:  # deleted meanwhile
                for row in rows:
                    if sizes[row] <= _MOST_RECORD_BYTES:
                        record = file.read(int(offsets[row]) - base, sizes[row])
                        mask[row] = _MULTI_DISPATCH in record
        return mask


def log_facts(place: StorePlace, end: int, damage: Sequence[Broken]) -> LogFacts:
    """Return what is known of the log of a store."""
    segments = [one for one in list_segments(place) if one.state is not SegmentState.MISSING]
    return LogFacts(
        place.location,
        tuple((one.base, one.path) for one in segments),
        segments[0].base if segments else 0,
        end,
        tuple((one.start, one.stop) for one in damage),
    )


class Difference(NamedTuple):
    """Neighbouring entries, or items, that differ for one reason.

    Attributes
    ----------
    area
        ``queue`` or ``index``.
    kind
        A key of `REASONS`, else a finding.
    first
        Queue offset, or physical offset for the index.
    """

    area: str
    place: str
    kind: str
    first: int
    row_count: int
    detail: str

    @property
    def is_explained(self) -> bool:
        """Whether nothing is wrong."""
        return self.kind in REASONS

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "area": self.area,
            "place": self.place,
            "kind": self.kind,
            "first": self.first,
            "count": self.row_count,
            "detail": self.detail,
            "explanation": REASONS.get(self.kind),
        }


class QueueProofTask(NamedTuple):
    """Compare some queues.

    Attributes
    ----------
    old_root, new_root
        Two directories ``consumequeue``; paths or URIs.
    directories
        Of queues, below either of them.
    """

    old_root: str
    new_root: str
    file_bytes: int
    directories: tuple[str, ...]
    log: LogFacts


def grouped_queues(sizes: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    """Yield the queues of each task, of about `PROOF_TASK_BYTES`.

    Parameters
    ----------
    sizes
        Of the files of each queue.
    """
    group: list[str] = []
    for name in sorted(sizes):
        if group and sum(sizes[one] for one in group) + sizes[name] > PROOF_TASK_BYTES:
            yield tuple(group)
            group = []
        group.append(name)
    if group:
        yield tuple(group)


def compare_queues(task: QueueProofTask) -> Iterator[pa.RecordBatch]:
    """Yield the differences of a task's queues as rows."""
    for directory in task.directories:
        found = queue_differences(task, directory)
        if found:
            yield as_rows(found)


def as_rows(found: Sequence[Difference]) -> pa.RecordBatch:
    """Return differences as rows of `PROOF_SCHEMA`."""
    import pyarrow as pa  # noqa: PLC0415 - only where rows are made

    columns = list(zip(*found, strict=True))
    kinds = (pa.string(), pa.string(), pa.string(), pa.int64(), pa.int64(), pa.string())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(Difference._fields))


def queue_differences(task: QueueProofTask, directory: str) -> list[Difference]:
    """Return where a queue differs from what the log calls for."""
    old, new = (_files(root, directory) for root in (task.old_root, task.new_root))
    found: list[Difference] = []
    begins = min((base for base in new), default=None)
    for base in sorted(old.keys() | new.keys()):
        size = old[base].size if base in old else task.file_bytes
        if size != task.file_bytes:
            detail = f"expected {task.file_bytes} bytes, found {size}"
            place = (f"{directory}/{file_name(base)}", "file-size", base // ENTRY_SIZE_BYTES)
            found.append(Difference("queue", *place, 1, detail))
        there = _entries(task.old_root, old.get(base), task.file_bytes)
        wanted = _entries(task.new_root, new.get(base), task.file_bytes)
        rows = np.flatnonzero((_bytes(there) != _bytes(wanted)).any(axis=1))
        if rows.size:
            is_front = begins is None or base < begins
            kinds = _kinds(task, directory, there[rows], wanted[rows], is_front=is_front)
            first = base // ENTRY_SIZE_BYTES
            found += _runs(directory, rows + first, kinds, there[rows], wanted[rows])
    return _joined(found)


def _files(root: str, directory: str) -> dict[int, FileEntry]:
    if not root:
        return {}
    files, path = files_at(root)
    return {
        base: one
        for one in files.list(f"{path}/{directory}")
        if (base := parse_file_name(one.name)) is not None and not one.is_directory
    }


def _entries(root: str, entry: FileEntry | None, file_bytes: int) -> EntryArray:
    entries = np.zeros(file_bytes // ENTRY_SIZE_BYTES, ENTRY_DTYPE)
    if entry is not None:
        view = entries.view(np.uint8).data
        with opened(files_at(root)[0], entry.path) as file:
            read = file.read_into(0, view)
        # The rest of an entry that was cut off is none.
        view[read - read % ENTRY_SIZE_BYTES : read] = bytes(read % ENTRY_SIZE_BYTES)
    return entries


def _bytes(entries: EntryArray) -> npt.NDArray[np.uint8]:
    array: npt.NDArray[np.uint8] = entries.view(np.uint8).reshape(-1, ENTRY_SIZE_BYTES)
    return array


class _Columns:
    """Entries as numbers, and what kind each is."""

    def __init__(self, entries: EntryArray) -> None:
        self.offset = entries["physical_offset"].astype(np.int64)
        self.size = entries["record_size"].astype(np.int64)
        self.tags = entries["tags_code"].astype(np.int64)
        self.is_filler = (self.offset == 0) & (self.size == FILLER_SIZE) & (self.tags == 0)
        self.is_empty = (self.offset == 0) & (self.size == 0) & (self.tags == 0)
        self.is_kept_place = (self.offset == _KEPT_PLACE_OFFSET) & (self.size == 0)
        self.is_message = (self.offset >= 0) & (self.size > 0) & ~self.is_filler


def _kinds(
    task: QueueProofTask,
    directory: str,
    there: EntryArray,
    wanted: EntryArray,
    *,
    is_front: bool,
) -> npt.NDArray[np.object_]:
    """Say why each of some entries differs."""
    old, new = _Columns(there), _Columns(wanted)
    kinds = np.full(len(there), "unknown", dtype=object)
    kinds[new.is_message & ~old.is_message] = "missing"
    kinds[old.is_empty & new.is_filler] = "unwritten"
    without_record = old.is_message & ~new.is_message
    kinds[without_record] = "wrong"
    kinds[without_record & (old.offset >= task.log.end)] = "stale"
    kinds[without_record & task.log.is_damaged(old.offset)] = LOST
    kinds[old.is_kept_place & ~new.is_message] = "kept-place"
    kinds[without_record & (old.offset < task.log.begin)] = "expired"
    if is_front:
        # In front of the first record that is left, a place says nothing any more.
        kinds[old.is_filler & new.is_empty] = "expired"
    same_record = old.is_message & new.is_message
    same_record &= (old.offset == new.offset) & (old.size == new.size)
    if directory.partition("/")[0].encode() == DELAY_TOPIC:
        is_hash = (old.tags >= -_HASH_MAX - 1) & (old.tags <= _HASH_MAX)
        kinds[same_record] = np.where(is_hash, "K-S1", "delay-levels")[same_record]
    kinds[same_record & (old.tags <= MAX_EXT_ADDRESS)] = "extension"
    wrong = np.flatnonzero(kinds == "wrong")
    if wrong.size:
        is_extra = task.log.has_extra_queues(old.offset[wrong], old.size[wrong].tolist())
        kinds[wrong[is_extra]] = "multi-dispatch"
    return kinds


def _runs(
    directory: str,
    queue_offsets: npt.NDArray[np.int64],
    kinds: npt.NDArray[np.object_],
    there: EntryArray,
    wanted: EntryArray,
) -> list[Difference]:
    is_new = np.ones(len(kinds), np.bool_)
    is_new[1:] = (kinds[1:] != kinds[:-1]) | (np.diff(queue_offsets) != 1)
    starts = np.flatnonzero(is_new)
    stops = np.append(starts[1:], len(kinds))
    return [
        Difference(
            "queue",
            directory,
            kinds[start],
            int(queue_offsets[start]),
            stop - start,
            f"found {there[start].item()}, expected {wanted[start].item()}",
        )
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
    ]


def _joined(found: Sequence[Difference]) -> list[Difference]:
    """Join what goes on in the next file."""
    joined: list[Difference] = []
    for one in found:
        last = joined[-1] if joined else None
        goes_on = last is not None and (last.place, last.kind) == (one.place, one.kind)
        if last is not None and goes_on and last.first + last.row_count == one.first:
            joined[-1] = last._replace(row_count=last.row_count + one.row_count)
        else:
            joined.append(one)
    return joined
