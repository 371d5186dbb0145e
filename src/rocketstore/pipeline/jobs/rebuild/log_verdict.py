"""Which records after a break an earlier log left: decided from what tasks have met of the log.

Recovery judges stretch by stretch with the records at hand (decision 0004). Here the same judge
gets the queue offsets that tasks have found and the store times of chains, so that audit, rebuild
and ``store verify`` say the same. Of the log itself only headers inside damage are read.

Law: a log without a break is not judged, and costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from rocketstore.pipeline.files import opened
from rocketstore.verification import leftovers, runs
from rocketstore.verification.leftovers import (
    TRUSTED_RECORD_LIMIT,
    KeyColumns,
    LeftoverJudge,
    Verdict,
    find_bridge,
)
from rocketstore.verification.log_rules import LeftChain, links, log_view

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

    import pyarrow as pa

    from rocketstore.pipeline.files import OpenFile
    from rocketstore.pipeline.jobs.audit.audit_plan import StorePlaces
    from rocketstore.verification.log_rules import Chain, LogView, Stretch

    Ranges = Sequence[tuple[int, int]]


def judged_log(
    places: StorePlaces,
    stretches: Iterable[Stretch],
    ask: Callable[[Ranges], pa.Table],
    now_ms: int,
    gone: Container[int] = (),
) -> LogView:
    """Put together what tasks have met of a log; files that begin at `gone` are no longer there.

    `ask` returns the queue offsets of the records in some ranges, as runs in the order of the log:
    target, piece (a physical offset in the records' chain), first, count.
    """
    present = sorted((one for one in stretches if one.base not in gone), key=lambda one: one.start)
    bases = [file.base for file in places.log.files if file.base not in gone]
    judge = _ChainJudge(places, ask, now_ms)
    return log_view(present, bases, places.sizes.commit_log_file_bytes, judge.left)


class _ChainJudge(NamedTuple):
    """Judges the chains of a log."""

    places: StorePlaces
    ask: Callable[[Ranges], pa.Table]
    now_ms: int

    def left(self, chains: Sequence[Chain]) -> list[LeftChain]:
        """Return the chains that an earlier log left, and those that are kept in doubt."""
        records, is_linked = links(chains)
        return [] if all(is_linked) else list(self._judged(records, is_linked))

    def _judged(self, chains: Sequence[Chain], linked: Sequence[bool]) -> Iterator[LeftChain]:
        judge, evidence = LeftoverJudge(self.now_ms), _Evidence(self.ask)
        # Of each chain the first one whose records testify about it.
        counts = np.cumsum([0, *(one.record_count for one in chains)])
        witnesses = np.searchsorted(counts, counts[:-1] - TRUSTED_RECORD_LIMIT, side="right") - 1
        witnesses = np.maximum(witnesses, 0).tolist()
        evidence.load(
            [
                (chains[witnesses[number]].start, one.stop)
                for number, one in enumerate(chains)
                if not linked[number]
            ]
        )
        trusted: list[int] = []
        kept_stop: int | None = None
        is_after_leftover = False
        for number, (chain, is_linked) in enumerate(zip(chains, linked, strict=True)):
            head = tail = KeyColumns.empty()
            is_bridged = False
            if not is_linked or is_after_leftover:
                for before in (chains[one] for one in trusted if one >= witnesses[number]):
                    times = [before.last_ms] if before.last_ms else []
                    judge.trust(evidence.keys(before, [times, times], at_end=True))
                trusted = []
                head = evidence.keys(chain, chain.head, at_end=False)
                tail = evidence.keys(chain, chain.tail, at_end=True)
                is_bridged = kept_stop is not None and self._is_bridged(kept_stop, chain.start)
            stretch = leftovers.Stretch(
                chain.start, chain.stop, is_linked=is_linked, is_bridged=is_bridged,
                head=head, tail=tail,
            )  # fmt: skip
            verdict, reason = judge.decide(stretch)
            is_after_leftover = not verdict.is_kept
            if verdict.is_kept:
                trusted.append(number)
                kept_stop = chain.stop
            if verdict is not Verdict.LOG:
                kind = f"log-{verdict.value}"
                yield LeftChain(chain.start, chain.stop, chain.record_count, reason, kind)

    def _is_bridged(self, start: int, stop: int) -> bool:
        """Whether the damaged record's own header leads to what stands after it."""
        file = self.places.file_at(start)
        if file is None or file != self.places.file_at(stop):
            return False
        with opened(self.places.location, file.path) as source:
            # `find_bridge` looks at a header here and there.
            size = self.places.sizes.commit_log_file_bytes
            view = cast("memoryview", _Headers(source, size))
            return find_bridge(view, base=file.base, start=start, stop=stop)


class _Evidence:
    """Queue offsets of records, from the runs that tasks have found."""

    def __init__(self, ask: Callable[[Ranges], pa.Table]) -> None:
        self._ask = ask
        self._loaded: list[tuple[int, int]] = []
        self._numbers: dict[object, int] = {}
        self._runs = np.empty((0, 4), np.int64)

    def load(self, ranges: Ranges) -> None:
        """Fetch what begins in some ranges of the log."""
        wanted = runs.pairs(runs.joined([ranges]))
        table = self._ask(wanted)
        queues = [
            self._numbers.setdefault(target, len(self._numbers))
            for target in table.column("target").to_pylist()
        ]
        columns = [table.column(name).to_numpy() for name in ("piece", "first", "count")]
        self._runs = np.concatenate((self._runs, np.array([queues, *columns], np.int64).T))
        self._loaded += wanted

    def keys(self, chain: Chain, times: list[list[int]], *, at_end: bool) -> KeyColumns:
        """Return what the judge needs of a chain, with store times at one end of the rows.

        `times` are those of any records, which count where none has an entry, and of normal ones.
        """
        if not any(start <= chain.start and chain.stop <= stop for start, stop in self._loaded):
            self.load([(chain.start, chain.stop)])
        inside = (self._runs[:, 1] >= chain.start) & (self._runs[:, 1] < chain.stop)
        queues, _, firsts, counts = self._runs[inside].T
        total = int(counts.sum())
        if not total:
            none = np.zeros(len(times[0]), np.int64)
            return KeyColumns(none, none, np.array(times[0], np.int64), none.astype(np.bool_))
        before = np.cumsum(counts) - counts
        offsets = np.repeat(firsts - before, counts) + np.arange(total)
        stored = np.zeros(total, np.int64)
        few = times[1][-total:] if at_end else times[1][:total]
        stored[total - len(few) if at_end else 0 :][: len(few)] = few
        return KeyColumns(np.repeat(queues, counts), offsets, stored, np.ones(total, np.bool_))


class _Headers:
    """A file's bytes, read where they are asked for; zeros after its end."""

    def __init__(self, source: OpenFile, size: int) -> None:
        self._source, self._size = source, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, key: int | slice) -> int | bytes:
        start, stop, _ = key.indices(self._size) if isinstance(key, slice) else (key, key + 1, 1)
        content = self._source.read(start, stop - start).ljust(stop - start, b"\0")
        return content if isinstance(key, slice) else content[0]
