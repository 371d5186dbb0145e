"""Queue entries that no intact record backs: what they are, and whether something follows them.

A healthy queue has none but those of deleted records and fillers in front. They are read only where
the records left a gap, in tasks when there are many (a queue that keeps the entries of deleted
records).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from rocketstore.format.queue_entry import filler_mask, kept_place_mask, written_mask
from rocketstore.pipeline.files import files_at
from rocketstore.pipeline.jobs.audit.entry_check import CHUNK_ENTRIES, QueueEntries
from rocketstore.pipeline.jobs.audit.facts import EntryRun, GapFacts

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from rocketstore.format.queue_entry import EntryArray

    BoolArray: TypeAlias = npt.NDArray[np.bool_]

EXPIRED: Final = "expired"
FILLER: Final = "filler"
LOST: Final = "lost"
UNWRITTEN: Final = "unwritten"
KEPT: Final = "kept"
STALE: Final = "stale"
BEYOND: Final = "beyond"
WRONG: Final = "wrong"

KINDS: Final = (WRONG, LOST, STALE, BEYOND, EXPIRED, KEPT, FILLER, UNWRITTEN)
"""What entries without a record may be: they point at something else; into damage; behind the
log's end; behind its last file; in front of its first; they keep a place that was given out; they
are fillers; they are zeros."""

TAIL_KINDS: Final = frozenset({KEPT, STALE, BEYOND, WRONG, UNWRITTEN})

TASK_ENTRIES: Final = 4_000_000
"""Entries of one task: 80 MB to read, some tenths of a second."""


class LogBounds(NamedTuple):
    """Physical offsets by which entries are judged; ranges as pairs, in order."""

    start: int
    end: int
    files_stop: int
    lost: tuple[tuple[int, int], ...]
    old: tuple[tuple[int, int], ...]


class Gap(NamedTuple):
    """Entries from `start` up to `stop` of the queue whose number is `queue`."""

    queue: int
    directory: str
    start: int
    stop: int


class GapTask(NamedTuple):
    """Gaps to be read by one task."""

    location: str
    queue_file_bytes: int
    bounds: LogBounds
    gaps: tuple[Gap, ...]


class Unbacked(NamedTuple):
    """Neighbouring entries without an intact record; queue offsets."""

    kind: str
    start: int
    stop: int
    is_tail: bool


def gap_tasks(
    location: str, queue_file_bytes: int, bounds: LogBounds, gaps: Iterable[Gap]
) -> list[GapTask]:
    """Return tasks of about `TASK_ENTRIES` entries each."""
    tasks: list[GapTask] = []
    group: list[Gap] = []
    room = TASK_ENTRIES
    for gap in gaps:
        for start in range(gap.start, gap.stop, TASK_ENTRIES):
            piece = gap._replace(start=start, stop=min(gap.stop, start + TASK_ENTRIES))
            if group and piece.stop - piece.start > room:
                tasks.append(GapTask(location, queue_file_bytes, bounds, tuple(group)))
                group, room = [], TASK_ENTRIES
            group.append(piece)
            room -= piece.stop - piece.start
    if group:
        tasks.append(GapTask(location, queue_file_bytes, bounds, tuple(group)))
    return tasks


def judge_gaps(task: GapTask) -> list[GapFacts]:
    """Say what stands in the entries of a task's gaps."""
    files, _ = files_at(task.location)
    found = []
    for gap in task.gaps:
        queue = QueueEntries.at(files, gap.directory, task.queue_file_bytes)
        seen: list[EntryRun] = []
        for start in range(gap.start, gap.stop, CHUNK_ENTRIES):
            stop = min(gap.stop, start + CHUNK_ENTRIES)
            seen += _runs_of_kinds(_kinds(queue.read(start, stop - start), task.bounds), start)
        found.append(GapFacts(gap.queue, _merged(seen)))
    return found


def _kinds(entries: EntryArray, bounds: LogBounds) -> npt.NDArray[np.int8]:
    offsets = entries["physical_offset"].astype(np.int64)
    kinds = np.full(len(entries), KINDS.index(WRONG), dtype=np.int8)

    def put(kind: str, where: BoolArray) -> None:
        kinds[where] = KINDS.index(kind)

    lost = np.array(bounds.lost, dtype=np.int64).reshape(-1, 2)
    if len(lost):
        at = np.searchsorted(lost[:, 0], offsets, side="right") - 1
        put(LOST, (at >= 0) & (offsets < lost[np.maximum(at, 0), 1]))
    put(STALE, offsets >= bounds.end)
    put(BEYOND, offsets >= bounds.files_stop)
    for start, stop in bounds.old:
        put(WRONG, (offsets >= max(start, bounds.end)) & (offsets < stop))
    put(EXPIRED, offsets < bounds.start)
    put(WRONG, ~written_mask(entries))
    put(KEPT, kept_place_mask(entries))
    put(FILLER, filler_mask(entries))
    put(UNWRITTEN, empty_mask(entries))
    return kinds


def empty_mask(entries: EntryArray) -> BoolArray:
    """Return which entries are zeros throughout."""
    mask: BoolArray = (
        (entries["physical_offset"] == 0)
        & (entries["record_size"] == 0)
        & (entries["tags_code"] == 0)
    )
    return mask


def _runs_of_kinds(kinds: npt.NDArray[np.int8], first: int) -> list[EntryRun]:
    breaks = np.flatnonzero(np.diff(kinds)) + 1
    bounds = [0, *breaks.tolist(), kinds.size]
    return [
        EntryRun(KINDS[kinds[begin]], first + begin, first + behind)
        for begin, behind in itertools.pairwise(bounds)
        if begin < behind
    ]


def _merged(found: Iterable[EntryRun]) -> list[EntryRun]:
    merged: list[EntryRun] = []
    for run in found:
        if merged and merged[-1].stop == run.start and merged[-1].kind == run.kind:
            merged[-1].stop = run.stop
        else:
            merged.append(run)
    return merged


def with_tails(found: Iterable[EntryRun], end: int, missing_stop: int) -> list[Unbacked]:
    """Put runs together and mark those that nothing follows.

    Parameters
    ----------
    found
        Runs of one queue, in any order.
    end
        One past the last place that is used or called for.
    missing_stop
        One past the last place that a record calls for in vain.
    """
    ordered = _merged(sorted(found, key=lambda run: run.start))
    marked = [Unbacked(run.kind, run.start, run.stop, is_tail=False) for run in ordered]
    for at in range(len(marked) - 1, -1, -1):
        run = marked[at]
        if run.stop != end or run.start < missing_stop or run.kind not in TAIL_KINDS:
            break
        marked[at] = run._replace(is_tail=True)
        end = run.start
    return marked
