"""The content of a log as a whole: chains put together from stretches, damage, the end.

Law: the log's end is the end of the last chain that is kept; nothing after it is log. Which chains
after a break come from an earlier, longer log is decided as in recovery (decision 0004).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from rocketstore.rules.findings import Finding, LastWriter, StoreCounts, finding
from rocketstore.rules.unbacked import LogBounds
from rocketstore.scan.columns import CallsFor, RecordColumns
from rocketstore.scan.scanner import ScanBatch, lost_end
from rocketstore.units import counted

if TYPE_CHECKING:
    from rocketstore.format.checkpoint import Checkpoint
    from rocketstore.native.row import BoolArray, Int64Array


WITNESSES: Final = 3
"""Store times at each end of a chain, by which leftovers are recognised."""

_NEAR: Final = 64
"""This many rows at an end of a chain nearly always hold what is looked for."""


class Chain(msgspec.Struct, array_like=True):
    """Records, and a BLANK, that follow one another without a break, inside one file.

    `last_ms` is the newest believable store time at its end, 0 without one, `latest_ms` the latest
    of all; `head` and `tail` are store times of the first and last records: of all, and of those
    that are neither prepared nor rolled back.
    """

    start: int
    stop: int
    record_count: int = 0
    record_bytes: int = 0
    body_bytes: int = 0
    last_ms: int = 0
    latest_ms: int = 0
    head: list[list[int]] = msgspec.field(default_factory=lambda: [[], []])
    tail: list[list[int]] = msgspec.field(default_factory=lambda: [[], []])

    def extend(self, more: Chain) -> None:
        """Add what follows."""
        self.stop = more.stop
        self.record_count += more.record_count
        self.record_bytes += more.record_bytes
        self.body_bytes += more.body_bytes
        self.last_ms = more.last_ms or self.last_ms
        self.latest_ms = max(self.latest_ms, more.latest_ms)
        self.head = [(a + b)[:WITNESSES] for a, b in zip(self.head, more.head, strict=True)]
        self.tail = [(a + b)[-WITNESSES:] for a, b in zip(self.tail, more.tail, strict=True)]


def _witnesses(times: Int64Array, is_normal: BoolArray) -> list[list[int]]:
    """Return the first times of all, and of records that are neither prepared nor rolled back."""
    for count in (_NEAR, len(times)):
        normal = times[:count][is_normal[:count]]
        if normal.size >= WITNESSES:
            break
    return [times[:WITNESSES].tolist(), normal[:WITNESSES].tolist()]


def _newest(times: Int64Array, latest_ms: int) -> int:
    """Return the last time that can be true, 0 without one."""
    for count in (_NEAR, len(times)):
        some = times[-count:]
        believable = some[(some > 0) & (some <= latest_ms)]
        if believable.size:
            return int(believable[-1])
    return 0


class Damaged(msgspec.Struct, array_like=True):
    """Bytes that are neither record nor blank nor the unwritten tail."""

    start: int
    stop: int
    reason: str
    evidence: str


class Stretch(msgspec.Struct, array_like=True):
    """The content of a byte range of the file at `base`; `is_gone`: it was deleted unread."""

    base: int
    start: int
    chains: list[Chain] = []
    damage: list[Damaged] = []
    is_gone: bool = False

    def take(self, batch: ScanBatch, latest_ms: int) -> None:
        """Add what a scan found; a store time later than `latest_ms` is a damaged header."""
        self.damage += [
            Damaged(one.range.start, one.range.stop, one.reason.value, one.evidence)
            for one in batch.damage
        ]
        self.take_records(batch.columns, latest_ms)
        for blank in batch.blanks:
            self.add(Chain(blank.physical_offset, blank.physical_offset + blank.size))

    def take_records(self, columns: RecordColumns, latest_ms: int) -> None:
        """Add records."""
        starts, has_entry = columns.physical_offset, columns.call_for(CallsFor.ENTRY)
        stops = starts + columns.size
        breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
        for first, past in itertools.pairwise([0, *breaks.tolist(), len(starts)]):
            if first == past:
                continue
            begin, stop = int(starts[first]), int(stops[past - 1])
            times, is_normal = columns.store_timestamp[first:past], has_entry[first:past]
            head, tail = _witnesses(times, is_normal), _witnesses(times[::-1], is_normal[::-1])
            chain = Chain(begin, stop, past - first, stop - begin)
            chain.body_bytes = int(columns.body_size[first:past].sum())
            chain.last_ms, chain.latest_ms = _newest(times, latest_ms), int(times.max())
            chain.head, chain.tail = head, [one[::-1] for one in tail]
            self.add(chain)

    def add(self, chain: Chain) -> None:
        """Add a chain, or what follows the last one without a break."""
        if self.chains and self.chains[-1].stop == chain.start:
            self.chains[-1].extend(chain)
        else:
            self.chains.append(chain)


class LeftChain(NamedTuple):
    """Records after a break that are reported."""

    start: int
    stop: int
    record_count: int
    why: str
    kind: str = "log-leftover"


class LogView(NamedTuple):
    """A log as its files show it.

    `start`, `end` and `files_stop` are physical offsets: of the first file, after the last kept
    record or BLANK, after the last file. `kept` are chains whose records are messages, `left` those
    that are not, or in doubt, `holes` ranges for which there is no file of `file_bytes`.
    """

    start: int
    end: int
    files_stop: int
    file_bytes: int
    kept: Sequence[Chain]
    left: Sequence[LeftChain]
    damage: Sequence[Damaged]
    holes: Sequence[tuple[int, int]]

    @property
    def leftovers(self) -> list[LeftChain]:
        """Chains that an earlier log left."""
        return [chain for chain in self.left if chain.kind == "log-leftover"]

    @property
    def damaged_bytes(self) -> int:
        """Bytes before the end that are neither record nor BLANK, holes included."""
        damaged = sum(one.stop - one.start for one in self.damage if one.start < self.end)
        return damaged + sum(stop - start for start, stop in self.holes if start < self.end)

    def cut_at(self, limit: int) -> LogView:
        """Return the log as it is once all from an offset on is gone."""
        return self._replace(end=_end(self.start, self.kept, limit))

    def writer_killed(
        self, reached: int, files: Iterable[Any], checkpoint: Checkpoint, latest_ms: int,
        *, has_index: bool,
    ) -> LastWriter:  # fmt: skip
        """Return what is known of the last writer, which was killed, or lost its power.

        `reached` is the last record whose entry agrees: a killed one left out none before it. Power
        takes others, but an opening begins with a file that the `checkpoint` calls safe (B16).
        """
        bases = [file.base for file in files if file.base < self.end] or [0]
        times = {chain.start: chain.head[0][0] for chain in self.kept if chain.record_count}
        stored = [times.get(base) for base in bases].__getitem__
        start = bases[checkpoint.safe_file(len(bases), stored, latest_ms, has_index=has_index)]
        return LastWriter(dispatched_to=min(reached, start - 1), indexed_from=start)

    def counts(self, records: Sequence[Chain], **of_queues_and_index: int) -> StoreCounts:
        """Return what a pass counted, of the log where its messages are in these chains."""
        message_bytes = sum(chain.record_bytes for chain in records)
        return StoreCounts(
            message_count=sum(chain.record_count for chain in records), message_bytes=message_bytes,
            unwitnessed_bytes=message_bytes - sum(chain.body_bytes for chain in records),
            damaged_bytes=self.damaged_bytes,
            leftover_count=sum(chain.record_count for chain in self.leftovers),
            min_physical_offset=self.start, max_physical_offset=self.end, **of_queues_and_index,
        )  # fmt: skip

    def bounds(self) -> LogBounds:
        """Return what queue entries are judged by."""
        lost = [(one.start, one.stop) for one in self.damage if one.start < self.end]
        lost += self.holes
        old = [(one.start, one.stop) for one in self.leftovers]
        lost += [one for one in old if one[0] < self.end]
        ranges = (np.array(sorted(one), np.int64).reshape(-1, 2) for one in (lost, old))
        return LogBounds(self.start, self.end, self.files_stop, self.file_bytes, *ranges)


def joined_chains(stretches: Sequence[Stretch]) -> list[Chain]:
    """Return the chains of ordered stretches; parts of one file that meet are one chain."""
    files: dict[int, Stretch] = {}
    for stretch in stretches:
        file = files.setdefault(stretch.base, Stretch(stretch.base, stretch.start))
        for chain in stretch.chains:
            file.add(msgspec.structs.replace(chain))
    return [chain for file in files.values() for chain in file.chains]


def links(chains: Sequence[Chain]) -> tuple[list[Chain], list[bool]]:
    """Return the chains with records, and whether each continues where the one before it ended."""
    records: list[Chain] = []
    is_linked: list[bool] = []
    expected: int | None = None
    for chain in chains:
        # A BLANK alone counts where the chain before it counts.
        if chain.record_count:
            is_linked.append(not records or chain.start == expected)
            records.append(chain)
        goes_on = chain.record_count or chain.start == expected
        expected = chain.stop if goes_on else None
    return records, is_linked


def log_view(
    stretches: Sequence[Stretch],
    bases: Sequence[int],
    file_bytes: int,
    judge: Callable[[Sequence[Chain]], Sequence[LeftChain]],
    *,
    start: int = 0,
) -> LogView:
    """Put the parts of a log together: ordered stretches of the files that begin at `bases`.

    `judge` returns the chains that an earlier log left, or that are kept although unclear. Nothing
    before `start` was read.
    """
    if not bases:
        return LogView(0, 0, 0, 1 << 31, [], [], [], [])  # no file says how long a record may be
    chains = joined_chains(stretches)
    left = judge(chains)
    old = {chain.start for chain in left if chain.kind == "log-leftover"}
    kept = [chain for chain in chains if chain.start not in old]
    end = _end(bases[0], kept)
    damage = [one for stretch in stretches for one in stretch.damage]
    for one in _unwritten_ends(bases, file_bytes, chains, damage, end):
        one.start = max(one.start, start)
        damage.append(one)
    holes = [
        (before + file_bytes, after)
        for before, after in itertools.pairwise(bases)
        if before + file_bytes < after
    ]
    damage.sort(key=lambda one: one.start)
    return LogView(bases[0], end, bases[-1] + file_bytes, file_bytes, kept, left, damage, holes)


def _end(start: int, kept: Sequence[Chain], limit: int = 1 << 63) -> int:
    """Return where the last record or BLANK before `limit` ends."""
    end = start
    for chain in kept:
        if chain.start < limit and (chain.record_count or chain.start == end):
            end = min(chain.stop, limit)
    return end


def _unwritten_ends(
    bases: Sequence[int],
    file_bytes: int,
    chains: Sequence[Chain],
    damage: Sequence[Damaged],
    end: int,
) -> Iterator[Damaged]:
    """Call a file's unwritten end damage where the log goes on in a later file.

    Every full file ends in a BLANK, so records were lost there, or at least the BLANK.
    """
    covered = dict.fromkeys(bases, 0)
    extents = [(one.start, one.stop) for one in chains]
    extents += [(one.start, one.stop) for one in damage]
    for at, past in extents:
        base = bases[bisect.bisect_right(bases, at) - 1]
        covered[base] = max(covered[base], past)
    for base in bases:
        start, stop = max(covered[base], base), base + file_bytes
        if start < stop < end:
            _, reason, evidence = lost_end(start, stop)
            yield Damaged(start, stop, reason.value, evidence)


def log_findings(
    log: LogView, place: Callable[[int], tuple[str, int]], *, is_live: bool
) -> Iterator[Finding]:
    """Yield what is wrong inside the log; `place` returns file and position of an offset."""
    for one in log.damage:
        kind = "log-damage" if one.start < log.end else "log-tail"
        if kind == "log-tail" and is_live:
            continue
        name, offset = place(one.start)
        expected, found = _versus(one.evidence)
        yield finding(
            kind, name, f"{one.reason}: {one.evidence}", offset=offset, size=one.stop - one.start,
            physical_offset=one.start, expected=expected, found=found,
        )  # fmt: skip
    for start, stop in log.holes:
        if start < log.end:
            reason = f"no file for physical offsets [{start}, {stop})"
            size = stop - start
            yield finding(
                "log-hole", "commitlog", reason, offset=start, size=size, physical_offset=start
            )
    for chain in log.left:
        name, offset = place(chain.start)
        reason = f"{counted(chain.record_count, 'record')}: {chain.why}"
        at, size = chain.start, chain.stop - chain.start
        yield finding(chain.kind, name, reason, offset=offset, size=size, physical_offset=at)


def _versus(evidence: str) -> tuple[str | None, str | None]:
    """Return expected and found where a scan's evidence names both."""
    _, has_expected, rest = evidence.partition("expected ")
    expected, has_found, found = rest.rpartition(", found ")
    return (expected, found) if has_expected and has_found else (None, None)
