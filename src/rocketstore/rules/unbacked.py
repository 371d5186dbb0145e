"""The kinds of queue entries that no intact record of the log backs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rocketstore.format.queue_entry import EMPTY, FILLER, KEPT_PLACE, equal_mask
from rocketstore.format.record import FIXED_SIZE
from rocketstore.rules.runs import no_runs

if TYPE_CHECKING:
    import numpy.typing as npt

    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.native.row import BoolArray, Int64Array
    from rocketstore.rules.runs import Runs
    from rocketstore.units import ByteRange


class UnbackedKind(Enum):
    """What entries without an intact record are; the value ends the kind of their finding."""

    EXPIRED = "expired"
    """Their records were deleted with old log files."""
    FILLER = "filler"
    """Fillers before the first message, or kept places."""
    LOST = "hole"
    """They point into damage: the places of lost records."""
    UNWRITTEN = "unwritten"
    """Zeros between entries; 4.9 takes them for the queue's end."""
    KEPT = "kept"
    """Kept places: given out to records that were lost with the log's end."""
    STALE = "stale"
    """They point at or past the log's end."""
    BEYOND = "beyond-log"
    """They point past the last log file: a file is gone, or was never seen again."""
    WRONG = "wrong"
    """They point at another queue's record, or not at the start of a record, or are garbage."""

    @property
    def is_hole(self) -> bool:
        """Whether such an entry may stay: it keeps a place."""
        return self in {UnbackedKind.FILLER, UnbackedKind.LOST, UnbackedKind.KEPT}


TAIL_KINDS: Final = frozenset(UnbackedKind).difference(
    (UnbackedKind.EXPIRED, UnbackedKind.FILLER, UnbackedKind.LOST)
)
"""What may stand at a queue's end without a record of this log; before the end it gets fillers."""

GIVEN_KINDS: Final = frozenset(
    {UnbackedKind.LOST, UnbackedKind.KEPT, UnbackedKind.STALE, UnbackedKind.BEYOND}
)
"""Entries whose numbers were given out to records that are lost."""

_KINDS: Final = list(UnbackedKind)

_FARTHEST_BYTES: Final = 1 << 44
"""How far past the log's end an entry may point: to lost files of the log. Further is garbage."""


def may_be_record(at: Any, size: Any, log_stop: int, file_bytes: int) -> Any:
    """Whether an entry, or each of an array, may be that of a record of a log up to `log_stop`."""
    is_size = (size >= FIXED_SIZE) & (size <= file_bytes)
    return is_size & (at >= 0) & (at < log_stop + _FARTHEST_BYTES)


def given_count(
    entries: EntryArray, log_stop: int, file_bytes: int, old: Iterable[ByteRange] = ()
) -> int:
    """Return how many places, from the first on, were given out to records of a log.

    Entries of records that an earlier log left (`old`) gave out none.
    """
    offsets = entries["physical_offset"]
    given = may_be_record(offsets, entries["record_size"], log_stop, file_bytes)
    given |= equal_mask(entries, KEPT_PLACE)
    for gone in old:
        given &= (offsets < gone.start) | (offsets >= gone.stop)
    return int(np.flatnonzero(given).max(initial=-1)) + 1


class LogBounds(NamedTuple):
    """Physical offsets by which entries are judged; ranges as `runs`, of which there may be many.

    `min` is the first file's start, `files_stop` the last file's stop, `file_bytes` the length of
    each; `lost` are ranges inside the log without a kept record, `old` what an earlier log left.
    """

    min: int
    end: int
    files_stop: int
    file_bytes: int
    lost: Runs = no_runs()
    old: Runs = no_runs()


class Unbacked(NamedTuple):
    """Neighbouring entries without an intact record; no entry after a tail stays."""

    kind: UnbackedKind
    start: int
    stop: int
    is_tail: bool = False


def unbacked_runs(entries: EntryArray, first: int, log: LogBounds) -> list[Unbacked]:
    """Classify neighbouring entries that no record backs; `first` is their queue offset."""
    if not len(entries):
        return []
    kinds = _kinds(entries, log)
    breaks = np.flatnonzero(np.diff(kinds)) + 1
    return [
        Unbacked(_KINDS[kinds[begin]], first + begin, first + past)
        for begin, past in itertools.pairwise([0, *breaks.tolist(), kinds.size])
    ]


def _kinds(entries: EntryArray, log: LogBounds) -> npt.NDArray[np.int8]:
    offsets = entries["physical_offset"].astype(np.int64)
    kinds = np.full(len(entries), _KINDS.index(UnbackedKind.WRONG), dtype=np.int8)

    def put(kind: UnbackedKind, where: BoolArray) -> None:
        kinds[where] = _KINDS.index(kind)

    put(UnbackedKind.LOST, _are_in(offsets, log.lost))
    put(UnbackedKind.STALE, offsets >= log.end)
    put(UnbackedKind.BEYOND, offsets >= log.files_stop)
    put(UnbackedKind.WRONG, (offsets >= log.end) & _are_in(offsets, log.old))
    put(UnbackedKind.EXPIRED, offsets < log.min)
    is_record = may_be_record(offsets, entries["record_size"], log.files_stop, log.file_bytes)
    put(UnbackedKind.WRONG, ~is_record)
    put(UnbackedKind.KEPT, equal_mask(entries, KEPT_PLACE))
    put(UnbackedKind.FILLER, equal_mask(entries, FILLER))
    put(UnbackedKind.UNWRITTEN, equal_mask(entries, EMPTY))
    return kinds


def _are_in(offsets: Int64Array, ranges: Runs) -> BoolArray:
    at = np.searchsorted(ranges[:, 0], offsets, side="right") - 1
    stops = ranges[np.maximum(at, 0), 1] if len(ranges) else 0
    is_in: BoolArray = (at >= 0) & (offsets < stops)
    return is_in


def merged(found: Iterable[Unbacked]) -> list[Unbacked]:
    """Put neighbouring runs of one kind together."""
    joined: list[Unbacked] = []
    for run in found:
        if joined and joined[-1].stop == run.start and joined[-1].kind is run.kind:
            joined[-1] = joined[-1]._replace(stop=run.stop)
        else:
            joined.append(run)
    return joined
