"""What stands in a log as a whole: chains put together from the tasks' parts, damage, the end.

Law: the log's end is the end of the last chain that is kept; nothing behind it is log. A chain
behind a break that no queue entry vouches for, and whose places in the queues were given to other
records or whose store times go back, was left behind by an earlier, longer log (decision 0009).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rocketstore.pipeline.jobs.audit import runs
from rocketstore.pipeline.jobs.audit.facts import NO_PLACE, ChainFacts, DamageFacts, QueueFacts
from rocketstore.scan.scanner import DamageReason
from rocketstore.units import ByteRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rocketstore.pipeline.jobs.audit.facts import SplitFacts
    from rocketstore.pipeline.jobs.audit.store_files import StoreFile


class Chain(NamedTuple):
    """Records, and a BLANK, that follow one another without a break, inside one file."""

    facts: ChainFacts
    is_kept: bool
    why: str = ""
    """Why it is not kept."""


@dataclass
class LogShape:
    """What a log holds.

    Attributes
    ----------
    start
        Physical offset of the first file's first byte.
    end
        Physical offset behind the last kept record or BLANK.
    files_stop
        Physical offset behind the last file.
    holes
        Ranges between files for which there is no file.
    """

    start: int
    files_stop: int
    chains: list[Chain] = field(default_factory=list)
    damage: list[DamageFacts] = field(default_factory=list)
    holes: list[ByteRange] = field(default_factory=list)
    end: int = 0

    @property
    def kept(self) -> list[ChainFacts]:
        """Chains whose records are messages."""
        return [chain.facts for chain in self.chains if chain.is_kept]

    @property
    def leftovers(self) -> list[Chain]:
        """Chains that an earlier log left."""
        return [chain for chain in self.chains if not chain.is_kept]

    def lost_ranges(self) -> list[ByteRange]:
        """Return every range inside the log that holds no kept record, in order."""
        lost = [ByteRange(d.start, d.stop) for d in self.damage if d.start < self.end]
        lost += self.holes
        for chain in self.leftovers:
            if chain.facts.start < self.end:
                lost.append(ByteRange(chain.facts.start, chain.facts.stop))
        return sorted(lost)

    @property
    def damaged_bytes(self) -> int:
        """Bytes before the end that are neither record nor BLANK, holes included."""
        damaged = sum(d.stop - d.start for d in self.damage if d.start < self.end)
        return damaged + sum(hole.size for hole in self.holes if hole.start < self.end)


def shape_of(splits: Iterable[SplitFacts], files: Sequence[StoreFile], file_bytes: int) -> LogShape:
    """Put the parts of a log together.

    Parameters
    ----------
    splits
        Facts of all ranges, in any order; files that are gone are left out of `files`.
    files
        In order.
    file_bytes
        What each file should have.
    """
    if not files:
        return LogShape(0, 0)
    shape = LogShape(files[0].base, files[-1].base + file_bytes)
    bases = {file.base for file in files}
    ordered = sorted((one for one in splits if one.base in bases), key=lambda one: one.start)
    joined = _joined(ordered)
    shape.chains = _judged(joined)
    shape.end = _end(shape)
    damage = [one for split in ordered for one in split.damage]
    for file in files:
        damage += _unwritten_end(file, file_bytes, joined, damage, shape.end)
    shape.damage = sorted(damage, key=lambda one: one.start)
    shape.holes = [
        ByteRange(before.base + file_bytes, after.base)
        for before, after in itertools.pairwise(files)
        if before.base + file_bytes < after.base
    ]
    return shape


def _joined(splits: Sequence[SplitFacts]) -> list[ChainFacts]:
    """Return the chains of a log; parts of one file that meet are one chain."""
    chains: list[ChainFacts] = []
    base = None
    for split in splits:
        for chain in split.chains:
            if chains and base == split.base and chains[-1].stop == chain.start:
                _extend(chains[-1], chain)
            else:
                chains.append(chain)
            base = split.base
    return chains


def _extend(chain: ChainFacts, more: ChainFacts) -> None:
    chain.stop = more.stop
    chain.has_blank = more.has_blank
    for name in (
        "record_count",
        "record_bytes",
        "body_bytes",
        "placed_count",
        "agreed_count",
        "contradicted_count",
        "lacking_count",
    ):
        setattr(chain, name, getattr(chain, name) + getattr(more, name))
    if more.record_count:
        chain.last_ms = more.last_ms
    chain.latest_ms = max(chain.latest_ms, more.latest_ms)
    chain.first_lacking = min(chain.first_lacking, more.first_lacking)
    chain.queues += more.queues


def _judged(chains: Sequence[ChainFacts]) -> list[Chain]:
    judged: list[Chain] = []
    reached: int | None = None
    last_ms: int | None = None
    for chain in chains:
        why = ""
        if chain.record_count and last_ms is not None and reached != chain.start:
            why = _why_left_behind(chain, last_ms)
        judged.append(Chain(chain, is_kept=not why, why=why))
        # What goes on from records of an earlier log, in the next file, is of that log too.
        reached = None if why else chain.stop
        if chain.record_count and not why:
            last_ms = chain.last_ms
    return judged


def _why_left_behind(chain: ChainFacts, last_ms: int) -> str:
    if chain.agreed_count or not chain.placed_count:
        return ""
    if chain.contradicted_count:
        return "no queue entry points at them, and other records have their queue offsets"
    if chain.last_ms < last_ms:
        return "no queue entry points at them, and the store time goes back behind a break"
    return ""


def _end(shape: LogShape) -> int:
    end = shape.start
    for chain in shape.chains:
        facts = chain.facts
        if (chain.is_kept and facts.record_count) or (
            not facts.record_count and facts.start == end
        ):
            end = facts.stop
    return end


def _unwritten_end(
    file: StoreFile,
    file_bytes: int,
    chains: Sequence[ChainFacts],
    damage: Sequence[DamageFacts],
    end: int,
) -> list[DamageFacts]:
    """Call a file's unwritten end damage where the log goes on in a later file.

    Every full file ends in a BLANK, so what should be there was lost: records, or at least that.
    """
    stop = file.base + file_bytes
    extents = [(one.start, one.stop) for one in chains]
    extents += [(one.start, one.stop) for one in damage]
    covered = max((behind for at, behind in extents if file.base <= at < stop), default=file.base)
    if covered >= stop or end <= stop:
        return []
    evidence = "zeros up to the file's end, where a BLANK should be; the log goes on in the next"
    return [
        DamageFacts(covered, stop, DamageReason.UNWRITTEN_HOLE.value, f"{evidence} file"),
    ]


# --- queues -------------------------------------------------------------------------------------


@dataclass
class QueueSummary:
    """What all kept records say about one queue.

    Attributes
    ----------
    record_count, first, last
        Records with a place in it, the smallest and the largest queue offset that they state.
    backed, missing
        Runs of queue offsets; see ``QueueFacts``. One may be in both: two records may claim it.
    """

    topic: str
    queue_id: int
    record_count: int = 0
    first: int = NO_PLACE
    last: int = -1
    backed: runs.Runs = field(default_factory=runs.no_runs)
    missing: runs.Runs = field(default_factory=runs.no_runs)
    is_extra: bool = True

    @property
    def truly_missing(self) -> runs.Runs:
        """Queue offsets that need an entry and have none that agrees."""
        return runs.without(self.missing, self.backed)

    @property
    def shadowed_count(self) -> int:
        """Queue offsets that a record states although another record has the entry."""
        return runs.count(self.missing) - runs.count(self.truly_missing)

    @property
    def skipped(self) -> runs.Runs:
        """Queue offsets between the first and the last that no record states."""
        stated = runs.joined([self.backed, self.missing])
        return runs.gaps(stated, self.first, self.last + 1)


def summaries(chains: Iterable[ChainFacts]) -> dict[tuple[str, int], QueueSummary]:
    """Put together what chains say about each queue."""
    parts: dict[tuple[str, int], list[QueueFacts]] = {}
    for chain in chains:
        for queue in chain.queues:
            # Topics that are no UTF-8 are one where Java makes them one.
            key = (queue.topic.decode("utf-8", "replace"), queue.queue_id)
            parts.setdefault(key, []).append(queue)
    return {key: _summary(key, facts) for key, facts in sorted(parts.items())}


def _summary(key: tuple[str, int], facts: list[QueueFacts]) -> QueueSummary:
    return QueueSummary(
        *key,
        record_count=sum(one.record_count for one in facts),
        first=min(one.first for one in facts),
        last=max(one.last for one in facts),
        backed=runs.joined([one.backed for one in facts]),
        missing=runs.joined([one.missing for one in facts]),
        is_extra=all(one.is_extra for one in facts),
    )
