"""What stands in a log as a whole: chains put together from stretches, damage, the end.

Law: the log's end is the end of the last chain that is kept; nothing after it is log. A chain after
a break that no queue entry vouches for, and whose places in the queues were given to other records
or whose store times go back, was left by an earlier, longer log (decision 0009).
"""

from __future__ import annotations

import bisect
import itertools
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from rocketstore.scan.scanner import DamageReason
from rocketstore.verification.findings import Finding, Severity, finding
from rocketstore.verification.unbacked import LogBounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rocketstore.scan.scanner import ScanBatch


class Chain(msgspec.Struct, array_like=True):
    """Records, and a BLANK, that follow one another without a break, inside one file.

    `last_ms` is the store time of the last record, `latest_ms` the latest of all.
    """

    start: int
    stop: int
    record_count: int = 0
    record_bytes: int = 0
    body_bytes: int = 0
    last_ms: int = 0
    latest_ms: int = 0

    def extend(self, more: Chain) -> None:
        """Add what follows."""
        self.stop = more.stop
        self.record_count += more.record_count
        self.record_bytes += more.record_bytes
        self.body_bytes += more.body_bytes
        self.last_ms = more.last_ms if more.record_count else self.last_ms
        self.latest_ms = max(self.latest_ms, more.latest_ms)


class Damaged(msgspec.Struct, array_like=True):
    """Bytes that are neither record nor blank nor the unwritten tail."""

    start: int
    stop: int
    reason: str
    evidence: str


class Stretch(msgspec.Struct, array_like=True):
    """What stands in a byte range of one file of the log; `base` is the file's.

    Attributes
    ----------
    is_gone
        The file was deleted before it could be read.
    """

    base: int
    start: int
    chains: list[Chain] = []
    damage: list[Damaged] = []
    is_gone: bool = False

    def take(self, batch: ScanBatch) -> None:
        """Add what a scan found."""
        self.damage += [
            Damaged(one.range.start, one.range.stop, one.reason.value, one.evidence)
            for one in batch.damage
        ]
        columns = batch.columns
        starts = columns.physical_offset
        stops = starts + columns.size
        breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
        for first, past in itertools.pairwise([0, *breaks.tolist(), len(starts)]):
            if first == past:
                continue
            rows = slice(first, past)
            self._add(
                Chain(
                    int(starts[first]),
                    int(stops[past - 1]),
                    past - first,
                    int(columns.size[rows].sum()),
                    int(columns.body_size[rows].sum()),
                    int(columns.store_timestamp[past - 1]),
                    int(columns.store_timestamp[rows].max()),
                )
            )
        for blank in batch.blanks:
            self._add(Chain(blank.physical_offset, blank.physical_offset + blank.size))

    def _add(self, chain: Chain) -> None:
        if self.chains and self.chains[-1].stop == chain.start:
            self.chains[-1].extend(chain)
        else:
            self.chains.append(chain)


class Evidence(NamedTuple):
    """What the queues say of a chain's records; see `queue_rules.QueuePart`."""

    record_count: int
    agreed_count: int
    contradicted_count: int


class LeftChain(NamedTuple):
    """Records after a break about which there is something to say."""

    start: int
    stop: int
    record_count: int
    why: str
    kind: str = "log-leftover"


class LogView(NamedTuple):
    """A log as its files show it.

    `start`, `end` and `files_stop` are physical offsets: of the first file, after the last kept
    record or BLANK, after the last file. `kept` are chains whose records are messages, `left` those
    that are not, or in doubt, `holes` ranges for which there is no file.
    """

    start: int
    end: int
    files_stop: int
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

    def bounds(self) -> LogBounds:
        """Return what queue entries are judged by."""
        lost = [(one.start, one.stop) for one in self.damage if one.start < self.end]
        lost += self.holes
        old = [(one.start, one.stop) for one in self.leftovers]
        lost += [one for one in old if one[0] < self.end]
        return LogBounds(self.start, self.end, self.files_stop, sorted(lost), old)


def joined_chains(stretches: Sequence[Stretch]) -> list[Chain]:
    """Return the chains of ordered stretches; parts of one file that meet are one chain."""
    chains: list[Chain] = []
    base = None
    for stretch in stretches:
        for chain in stretch.chains:
            if chains and base == stretch.base and chains[-1].stop == chain.start:
                chains[-1].extend(chain)
            else:
                chains.append(msgspec.structs.replace(chain))
            base = stretch.base
    return chains


def first_break(chains: Sequence[Chain]) -> int | None:
    """Return where the first records stand that do not go on from those before; None: nowhere."""
    reached: int | None = None
    for chain in chains:
        if reached is not None and chain.record_count and chain.start != reached:
            return chain.start
        if chain.record_count or reached is not None:
            reached = chain.stop
    return None


def log_view(
    stretches: Sequence[Stretch],
    bases: Sequence[int],
    file_bytes: int,
    evidence: Mapping[int, Evidence],
) -> LogView:
    """Put the parts of a log together: ordered stretches of the files that begin at `bases`.

    `evidence` is of the chains from the first break on, by the start of each part of them.
    """
    if not bases:
        return LogView(0, 0, 0, [], [], [], [])
    chains = joined_chains(stretches)
    kept, left = _judged(chains, evidence)
    end, old = bases[0], {chain.start for chain in left}
    for chain in chains:
        if chain.start not in old and (chain.record_count or chain.start == end):
            end = chain.stop
    damage = [one for stretch in stretches for one in stretch.damage]
    damage += _unwritten_ends(bases, file_bytes, chains, damage, end)
    holes = [
        (before + file_bytes, after)
        for before, after in itertools.pairwise(bases)
        if before + file_bytes < after
    ]
    damage.sort(key=lambda one: one.start)
    return LogView(bases[0], end, bases[-1] + file_bytes, kept, left, damage, holes)


def _judged(
    chains: Sequence[Chain], evidence: Mapping[int, Evidence]
) -> tuple[list[Chain], list[LeftChain]]:
    kept: list[Chain] = []
    left: list[LeftChain] = []
    starts = sorted(evidence)
    reached: int | None = None
    last_ms: int | None = None
    for chain in chains:
        why = ""
        if chain.record_count and last_ms is not None and reached != chain.start:
            low, high = np.searchsorted(starts, (chain.start, chain.stop)).tolist()
            parts = [evidence[start] for start in starts[low:high]]
            seen = Evidence._make(map(sum, zip((0, 0, 0), *parts, strict=True)))
            why = _why_left(seen, chain, last_ms)
        if why:
            left.append(LeftChain(chain.start, chain.stop, chain.record_count, why))
        else:
            kept.append(chain)
        # What goes on from records of an earlier log, in the next file, is of that log too.
        reached = None if why else chain.stop
        if chain.record_count and not why:
            last_ms = chain.last_ms
    return kept, left


def _why_left(seen: Evidence, chain: Chain, last_ms: int) -> str:
    if seen.agreed_count or not seen.record_count:
        return ""
    if seen.contradicted_count:
        return "no queue entry points at them, and other records have their queue offsets"
    if chain.last_ms < last_ms:
        return "no queue entry points at them, and the store time goes back after a break"
    return ""


def _unwritten_ends(
    bases: Sequence[int],
    file_bytes: int,
    chains: Sequence[Chain],
    damage: Sequence[Damaged],
    end: int,
) -> Iterator[Damaged]:
    """Call a file's unwritten end damage where the log goes on in a later file.

    Every full file ends in a BLANK, so what should be there was lost: records, or at least that.
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
            evidence = "zeros up to the file's end, where a BLANK should be; the log goes on in the"
            reason = DamageReason.UNWRITTEN_HOLE.value
            yield Damaged(start, stop, reason, f"{evidence} next file")


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
            kind,
            name,
            f"{one.reason}: {one.evidence}",
            offset=offset,
            size=one.stop - one.start,
            physical_offset=one.start,
            expected=expected,
            found=found,
        )
    for start, stop in log.holes:
        if start < log.end:
            reason = f"no file for physical offsets [{start}, {stop})"
            yield finding(
                "log-hole",
                "commitlog",
                reason,
                offset=start,
                size=stop - start,
                physical_offset=start,
            )
    for chain in log.left:
        name, offset = place(chain.start)
        yield finding(
            chain.kind,
            name,
            f"{chain.record_count} records: {chain.why}",
            offset=offset,
            size=chain.stop - chain.start,
            physical_offset=chain.start,
        )


def empty_log_finding(entry_count: int) -> Finding:
    """Say that there is no log file, beside so many queue entries."""
    severity = Severity.DAMAGE if entry_count else Severity.NOTE
    reason = f"no CommitLog file, {entry_count} entries in queues"
    return finding("log-empty", "commitlog", reason, severity=severity)


def _versus(evidence: str) -> tuple[str | None, str | None]:
    """Return expected and found where a scan's evidence names both."""
    _, has_expected, rest = evidence.partition("expected ")
    expected, has_found, found = rest.rpartition(", found ")
    return (expected, found) if has_expected and has_found else (None, None)
