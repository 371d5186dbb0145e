"""The entries of a queue against those that the records of the log call for.

A stretch of records is compared with the entries at the places that it states. The results add up,
so however a log is cut into parts, the sum for a queue is the same. Entries that no record called
for are judged at the end: places of lost records, entries that point past the log or at something
else.

Law: a queue offset is never moved; the question is always which entry stands at this place.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from rocketstore.format.queue_entry import (
    ENTRY_DTYPE,
    ENTRY_SIZE_BYTES,
    MAX_EXT_ADDRESS,
    MAX_QUEUE_OFFSET,
    is_due_time,
)
from rocketstore.rules import runs
from rocketstore.rules.queue_numbers import is_continued, is_likely_beginning, may_follow
from rocketstore.rules.unbacked import TAIL_KINDS, Unbacked, UnbackedKind, merged, unbacked_runs
from rocketstore.scan import kernels
from rocketstore.scan.queue_search import Files, padded

if TYPE_CHECKING:
    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.native.row import BoolArray, Int64Array
    from rocketstore.rules.expectation import ExpectedEntries
    from rocketstore.rules.runs import Runs
    from rocketstore.rules.unbacked import LogBounds
    from rocketstore.units import QueueKey

    ReadEntries: TypeAlias = Callable[[int, int], EntryArray]

CHUNK_ENTRIES: Final = 65_536
"""Entries that are read at once."""

MISSING_COLUMNS: Final = 5
"""Of a run of missing entries: first queue offset, one past the last, physical offsets of the first
and the last record, and of the agreeing record before it in its part (else -1)."""


EXPLAINED: Final = {
    "extension": "the tags code stands in an extension file (enableConsumeQueueExt)",
    "delay-levels": "deliver times by other delay levels, or by a clock behind the store time",
    "multi-dispatch": "entries in extra queues of other records (enableMultiDispatch)",
}
"""Reasons why an entry of a record differs from the one that dispatch would write today."""


class QueuePart(NamedTuple):
    """What some records of one queue, in log order from `start` on, say about it.

    The queue offsets of agreeing records are from `first` to `last`, (0, -1) without one, and
    `dispatched_to` is the physical offset of the last of them, else -1. `explained` counts entries
    that are not what dispatch would write today, for each reason of `EXPLAINED`. Runs of queue
    offsets are `backed` by an entry that agrees, extra queues included; `missing` are those of
    records without their entry (`MISSING_COLUMNS`), `stated` those of all records, extra queues
    excepted, both in log order.
    """

    start: int
    first: int
    last: int
    dispatched_to: int
    explained: tuple[int, ...]
    backed: Runs
    missing: Int64Array
    stated: Runs

    @property
    def record_count(self) -> int:
        """Records, extra queues excepted."""
        return runs.count(self.stated)


def compare(
    expected: ExpectedEntries, found: EntryArray, tags_codes: Callable[[Int64Array], Int64Array]
) -> QueuePart:
    """Compare the entries that records of one queue call for with those at their queue offsets.

    `tags_codes` returns the tags codes that entries mean where they have an address in the queue's
    extension (spec F7), and leaves it where there is no unit.
    """
    physical = expected.entries["physical_offset"].astype(np.int64)
    agrees, explained = _agreement(expected, found, tags_codes)
    own = np.flatnonzero(~expected.is_extra)
    offsets, own_agrees = expected.queue_offset[own], agrees[own]
    stated = offsets[own_agrees]
    first, last = (int(stated.min()), int(stated.max())) if stated.size else (0, -1)
    dispatched_to = int(physical[agrees].max()) if agrees.any() else -1
    return QueuePart(
        int(physical[0]), first, last, dispatched_to, explained,
        runs.runs_of(expected.queue_offset[agrees]),
        _missing_runs(offsets, physical[own], own_agrees), runs.in_order(offsets),
    )  # fmt: skip


def _agreement(
    expected: ExpectedEntries, found: EntryArray, tags_codes: Callable[[Int64Array], Int64Array]
) -> tuple[BoolArray, tuple[int, ...]]:
    """Return which entries agree, and how many of them for each reason of `EXPLAINED`."""
    entries, tags_code = expected.entries, found["tags_code"]
    if found.tobytes() == entries.tobytes():  # nearly always, and quickly known
        return np.ones(len(found), np.bool_), (0, 0, int(expected.is_extra.sum()))
    agrees = (found["physical_offset"] == entries["physical_offset"]) & (
        found["record_size"] == entries["record_size"]
    )
    is_extended = agrees & (tags_code <= MAX_EXT_ADDRESS)
    if is_extended.any():
        tags_code = np.where(is_extended, tags_codes(tags_code.astype(np.int64)), tags_code)
    # A deliver time follows the levels, and a clock behind the store time, of when it was
    # dispatched.
    is_equal = tags_code == entries["tags_code"]
    is_due = is_due_time(tags_code, expected.deliver_from_ms) & (expected.deliver_from_ms >= 0)
    agrees &= is_equal | is_due
    differs = (is_extended & agrees, agrees & is_due & ~is_equal, agrees & expected.is_extra)
    return agrees, tuple(int(one.sum()) for one in differs)


def _missing_runs(offsets: Int64Array, physical: Int64Array, agrees: BoolArray) -> Int64Array:
    rows = np.flatnonzero(~agrees)
    if not rows.size:
        return np.empty((0, MISSING_COLUMNS), dtype=np.int64)
    begins = np.ones(rows.size, dtype=np.bool_)
    begins[1:] = (np.diff(rows) != 1) | (np.diff(offsets[rows]) != 1)
    firsts = rows[begins]
    lasts = rows[np.append(begins[1:], True)]
    has_before = (firsts > 0) & agrees[np.maximum(firsts - 1, 0)]
    before = np.where(has_before, physical[np.maximum(firsts - 1, 0)], -1)
    columns = (offsets[firsts], offsets[lasts] + 1, physical[firsts], physical[lasts], before)
    return np.stack(columns, axis=1)


def added(part: QueuePart | None, more: QueuePart) -> QueuePart:
    """Return the sum of a part, if there is one, and the one after it."""
    if part is None:
        return more
    both = [one for one in (part, more) if one.first <= one.last]
    return QueuePart(
        part.start if len(part.stated) else more.start,
        min((one.first for one in both), default=0), max((one.last for one in both), default=-1),
        max(part.dispatched_to, more.dispatched_to),
        tuple(map(sum, zip(part.explained, more.explained, strict=True))),
        runs.joined([part.backed, more.backed]), np.concatenate((part.missing, more.missing)),
        _followed(part.stated, more.stated),
    )  # fmt: skip


def _followed(stated: Runs, more: Runs) -> Runs:
    """Return runs in log order and those after them; two that meet are one."""
    if len(stated) and len(more) and stated[-1, 1] == more[0, 0]:
        stated, more = stated.copy(), more.copy()
        more[0, 0], stated = stated[-1, 0], stated[:-1]
    return np.concatenate((stated, more))


def entries_at(offsets: Int64Array, read: ReadEntries) -> EntryArray:
    """Return the entries at some queue offsets, neighbours read at once."""
    if not offsets.size or (offsets[1:] == offsets[:-1] + 1).all():
        return read(int(offsets[0]) if offsets.size else 0, offsets.size)
    order = np.argsort(offsets, kind="stable")
    ordered = offsets[order]
    found, at = np.empty(offsets.size, ENTRY_DTYPE), 0
    while at < ordered.size:
        first = int(ordered[at])
        # One flipped offset must not make this read a disk full of zeros.
        stop = int(np.searchsorted(ordered, first + CHUNK_ENTRIES))
        entries = read(first, int(ordered[stop - 1]) + 1 - first)
        found[order[at:stop]] = entries[ordered[at:stop] - first]
        at = stop
    return found


class QueueView:
    """A queue as its files and the records of the log show it.

    Its `files` should have `file_size` bytes each; where no file or byte is, entries are zeros.
    `data_stop` returns the position after which one of them is known to have only zeros. On disk it
    is from the queue offset `first_offset` to `end`, after the last entry that is not zeros.

    `backed` are queue offsets whose entry agrees with an intact record, `missing` those of records
    whose entry is absent or says something else, `backed` ones included: two records may claim one
    place. `replaced_count` more lie before the queue's last record and state numbers past its end:
    those of a topic that was deleted and made again. `missing_at` is the physical offset of the
    first record of each run of these, `dispatched_to` that of the last record whose entry agrees,
    else -1. `impossible` are records whose number cannot be, with their physical offsets,
    `unbacked` entries without an intact record. Records name a queue that `is_own` as their own,
    not only as an extra one.
    """

    def __init__(
        self, key: QueueKey, files: Files, file_size: int, data_stop: Callable[[Any], int]
    ) -> None:
        self.key = key
        self.topic, self.queue_id = key
        self.file_entries = max(1, file_size // ENTRY_SIZE_BYTES)
        self._read: ReadEntries = functools.partial(padded, files)
        # The queue offsets that each file has space for.
        self._held = held = [
            (file.base // ENTRY_SIZE_BYTES, -(-(file.base + file.size) // ENTRY_SIZE_BYTES))
            for file in files.files
        ]
        self.has_files = bool(held)
        self.first_offset = held[0][0] if held else 0
        self.end = self._end(files.files[-1].base + data_stop(files.files[-1]) if held else 0)
        self.record_count = 0
        self.first, self.last = 0, -1
        self.backed = self.missing = runs.no_runs()
        self.missing_at: dict[int, int] = {}
        self.dispatched_to = -1
        self.replaced_count = 0
        self.impossible: list[tuple[int, int]] = []
        self.unbacked: list[Unbacked] = []
        self.is_own = False

    def _end(self, data_stop: int) -> int:
        stop = -(-data_stop // ENTRY_SIZE_BYTES)
        while stop > self.first_offset:
            start = max(self.first_offset, stop - CHUNK_ENTRIES)
            content = self._read(start, stop - start).view(np.uint8)
            last = int(kernels.last_nonzero(content, 0, content.size))
            if last >= 0:
                return start + last // ENTRY_SIZE_BYTES + 1
            stop = start
        return stop

    @property
    def directory(self) -> str:
        """Path below the store."""
        return f"consumequeue/{self.key}"

    @property
    def truly_missing(self) -> Runs:
        """Queue offsets that need an entry and have none that agrees."""
        return runs.without(self.missing, self.backed)

    @property
    def shadowed_count(self) -> int:
        """Queue offsets that a record states although another record has the entry."""
        return runs.count(self.missing) - runs.count(self.truly_missing)

    @property
    def skipped(self) -> Runs:
        """Queue offsets between the first and the last that no record states."""
        stated = runs.joined([self.backed, self.missing])
        return runs.gaps(stated, self.first, self.last + 1)

    @property
    def entry_count(self) -> int:
        """Entries that point at an intact record."""
        return runs.count(self.backed)

    @property
    def hole_count(self) -> int:
        """Entries that keep the place of a lost record, fillers included."""
        return sum(run.stop - run.start for run in self.unbacked if run.kind.is_hole)

    @property
    def last_used(self) -> int:
        """One past the last place that has an entry that is not zeros, or that a record backs."""
        return max(self.end, runs.stop_of(self.backed))

    @property
    def stop(self) -> int:
        """One past the last queue offset that a record or an entry has."""
        return max(self.last_used, self.last + 1)

    @property
    def first_record(self) -> int:
        """Queue offset of the first record that is left."""
        return int(self.backed[0, 0]) if len(self.backed) else self.first_offset

    def conclude(self, parts: Iterable[QueuePart], log: LogBounds) -> None:
        """Put together what all kept records say, and judge the entries that none of them backs."""
        ordered = sorted(parts, key=lambda part: part.start)
        self.backed = runs.joined([part.backed for part in ordered])
        self.record_count = sum(part.record_count for part in ordered)
        self.is_own = self.record_count > 0
        self.dispatched_to = max((part.dispatched_to for part in ordered), default=-1)
        missing = _believed(self, ordered)
        self.missing = runs.joined([missing[:, :2]])
        self.missing_at = dict(missing[:, (0, 2)].tolist())
        agreeing = [part for part in ordered if part.first <= part.last]
        first = [part.first for part in agreeing] + missing[:, 0].tolist()
        last = [part.last for part in agreeing] + (missing[:, 1] - 1).tolist()
        self.first, self.last = min(first, default=0), max(last, default=-1)
        self._judge(log)

    def _judge(self, log: LogBounds) -> None:
        gaps = runs.gaps(self.backed, self.first_offset, self.last_used)
        held = runs.joined([self._held])
        # However far away a stray file lies, gaps between files are not read.
        found = [
            Unbacked(UnbackedKind.UNWRITTEN, start, stop)
            for start, stop in runs.pairs(runs.without(gaps, held))
        ]
        for begin, end in runs.pairs(runs.without(gaps, runs.without(gaps, held))):
            for start in range(begin, end, CHUNK_ENTRIES):
                entries = self._read(start, min(end - start, CHUNK_ENTRIES))
                found += unbacked_runs(entries, start, log)
        self.unbacked = merged(sorted(found, key=lambda run: run.start))
        self._mark_tail()

    def _mark_tail(self) -> None:
        missing_stop = runs.stop_of(self.truly_missing)
        end = max(self.last_used, runs.stop_of(self.missing))
        for at in range(len(self.unbacked) - 1, -1, -1):
            run = self.unbacked[at]
            if run.stop != end or run.start < missing_stop or run.kind not in TAIL_KINDS:
                break
            self.unbacked[at] = run._replace(is_tail=True)
            end = run.start


def _believed(queue: QueueView, parts: Sequence[QueuePart]) -> Int64Array:
    """Return the runs of missing entries whose numbers can be, and note the others.

    A record's header has no checksum. A number is not believed if so many messages do not fit into
    the log before the record: the places before it would fill the disk. The rule is
    that of dispatch (`may_follow`).
    """
    parts = [part for part in parts if len(part.stated)]
    rows = np.concatenate(
        [np.empty((0, MISSING_COLUMNS), np.int64), *(part.missing for part in parts)]
    )
    stop, last, believed = queue.end, parts[0].start if parts else 0, []
    backed_stop = runs.stop_of(queue.backed)
    if len(rows) and not queue.has_files and not stop:
        stop = _beginning(rows, queue.file_entries)
    for row in rows.tolist():
        first, past, at, last_at, before = row
        last = max(last, before)
        if not may_follow(first, stop, at - last, queue.file_entries):
            queue.impossible += [(first + step, at) for step in range(past - first)]
        elif at < queue.dispatched_to and past > backed_stop:
            # What lies before the last record does not come after it: dispatch passes over it, too.
            queue.replaced_count += past - max(first, backed_stop)
            believed += [[first, backed_stop, *row[2:]]] if first < backed_stop else []
        else:
            stop, last = max(stop, past), last_at
            believed.append(row)
    return np.array(believed, dtype=np.int64).reshape(-1, MISSING_COLUMNS)


def _beginning(rows: Int64Array, file_entries: int) -> int:
    """Return the number that a queue without files begins with.

    It may be any number, because old files of log and queue may be gone. It is forged if so many
    messages do not fit into the log before its record, and the next record does not continue there.
    """
    # A number that no file can have says nothing about the others.
    rows = rows[(rows[:, 0] >= 0) & (rows[:, 0] <= MAX_QUEUE_OFFSET)]
    for row, after in itertools.zip_longest(rows.tolist(), rows[1:, 0].tolist()):
        first, past, at = row[:3]
        following = first + 1 if past - first > 1 else after
        if is_likely_beginning(first, at) or is_continued(first, following, file_entries):
            return int(first)
    return 0
