"""Which records of a log are messages, and where it ends: decided from what tasks have met of it.

Records after damage may have been left by an earlier, longer log (decision 0004). Recovery judges
stretch by stretch with the records at hand; here the same judge gets the queue offsets of the
blocks and the store times of the pieces. Of the log itself only headers inside damage are read.

Law: a log without a break is not judged, and costs nothing.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import numpy as np

from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.stores import SegmentState
from rocketstore.storage.recovery.leftovers import (
    CLOCK_TOLERANCE_MS,
    TRUSTED_RECORD_LIMIT,
    KeyColumns,
    LeftoverJudge,
    Stretch,
    find_bridge,
)
from rocketstore.storage.recovery.log_survey import RECORD_MAGICS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from rocketstore.pipeline.files import OpenFile
    from rocketstore.pipeline.jobs.rebuild.log_scan import Broken, Piece, ScanFacts
    from rocketstore.pipeline.stores import Segment

    Ranges = Sequence[tuple[int, int]]
    AskRuns = Callable[[Ranges], pa.Table]

CLOCK_MARGIN_MS: Final = CLOCK_TOLERANCE_MS
"""A store time later than now by more than this is a damaged header."""


class Verdict(NamedTuple):
    """What a log holds.

    Attributes
    ----------
    kept
        Pieces whose records are messages, in order.
    leftovers
        Ranges whose records an earlier log left behind.
    end
        Physical offset after the last message.
    damage
        Damaged ranges in front of it; what was never finished does not count.
    """

    kept: list[Piece]
    leftovers: list[tuple[int, int]]
    end: int
    damage: list[Broken]


class _Chain(NamedTuple):
    """Pieces of one file that meet; `whole` has their sums."""

    whole: Piece
    is_linked: bool


def judge(
    location: str,
    segments: Sequence[Segment],
    facts: Sequence[ScanFacts],
    ask: AskRuns,
    *,
    now_ms: int,
) -> Verdict:
    """Return what is log.

    Parameters
    ----------
    location
        Of the store.
    segments
        Files of its log, missing ones too.
    facts
        What each task has met.
    ask
        Returns the blocks of entries that begin in some ranges: target, at, first, count.
    """
    pieces = sorted((one for some in facts for one in some.pieces), key=lambda one: one.start)
    broken = [one for some in facts for one in some.broken]
    breaks = sorted(
        [(one.start, one.stop) for one in broken]
        + [(s.base, s.base + s.size) for s in segments if s.state is SegmentState.MISSING]
    )
    chains = _chains(pieces, breaks)
    leftovers: list[tuple[int, int]] = []
    if not all(one.is_linked for one in chains):
        judging = _Judging(location, segments, chains, ask, now_ms)
        leftovers = [
            (one.whole.start, one.whole.stop)
            for number, one in enumerate(chains)
            if not judging.is_kept(number)
        ]
    starts = [start for start, _ in leftovers]
    kept = []
    for piece in pieces:
        at = bisect_left(starts, piece.start + 1) - 1
        if at < 0 or piece.start >= leftovers[at][1]:
            kept.append(piece)
    end = kept[-1].stop if kept else 0
    damage = [one for one in broken if one.start < end and not one.is_torn_tail]
    return Verdict(kept, leftovers, end, sorted(damage, key=lambda one: one.start))


def _chains(pieces: Sequence[Piece], breaks: Ranges) -> list[_Chain]:
    stops = list(itertools.accumulate((stop for _, stop in breaks), max))
    chains: list[_Chain] = []
    for piece in pieces:
        last = chains[-1].whole if chains else None
        if last is not None and (last.base, last.stop) == (piece.base, piece.start):
            last.add(piece)
            continue
        is_linked = True
        if last is not None:
            # What is neither record nor damaged is the BLANK at a file's end.
            at = bisect_left(breaks, (piece.start,)) - 1
            is_linked = at < 0 or stops[at] <= last.stop
        chains.append(_Chain(_copy(piece), is_linked))
    return chains


def _copy(piece: Piece) -> Piece:
    return type(piece)(*(getattr(piece, name) for name in piece.__struct_fields__))


class _Judging:
    """Asks the judge of recovery about one chain after the other."""

    def __init__(
        self,
        location: str,
        segments: Sequence[Segment],
        chains: Sequence[_Chain],
        ask: AskRuns,
        now_ms: int,
    ) -> None:
        self._location = location
        self._segments = {one.base: one for one in segments}
        self._chains = chains
        self._evidence = _Evidence(ask)
        self._judge = LeftoverJudge(now_ms)
        self._trusted: list[int] = []
        self._kept_stop: int | None = None
        self._is_behind_leftover = False
        tested = [number for number, one in enumerate(chains) if not one.is_linked]
        self._evidence.load(
            [self._range(first, number) for number in tested for first in (self._since(number),)]
        )

    def is_kept(self, number: int) -> bool:
        """Decide about the next chain."""
        chain, is_linked = self._chains[number]
        is_tested = not is_linked or self._is_behind_leftover
        head = tail = KeyColumns.empty()
        if is_tested:
            since = self._since(number)
            for before in self._trusted:
                if before >= since:
                    trusted = self._chains[before].whole
                    last = [trusted.last_ms] if trusted.last_ms else []
                    self._judge.trust(self._evidence.keys(trusted, last, last, at_end=True))
            self._trusted = []
            head = self._evidence.keys(chain, chain.normal_head, chain.head, at_end=False)
            tail = self._evidence.keys(chain, chain.normal_tail, chain.tail, at_end=True)
        stretch = Stretch(
            chain.start, chain.stop, is_linked=is_linked,
            is_bridged=is_tested and self._is_bridged(chain), is_same_file=False,
            head=head, tail=tail,
        )  # fmt: skip
        is_kept = self._judge.decide(stretch).verdict.is_kept
        self._is_behind_leftover = not is_kept
        if is_kept:
            self._trusted.append(number)
            self._kept_stop = chain.stop
        return is_kept

    def _since(self, number: int) -> int:
        """Return the first chain whose records testify about a chain."""
        count = 0
        while number > 0 and count < TRUSTED_RECORD_LIMIT:
            number -= 1
            count += self._chains[number].whole.record_count
        return number

    def _range(self, first: int, last: int) -> tuple[int, int]:
        return self._chains[first].whole.start, self._chains[last].whole.stop

    def _is_bridged(self, chain: Piece) -> bool:
        """Whether the damaged record's own header leads to the chain."""
        if self._kept_stop is None or not chain.base <= self._kept_stop < chain.start:
            return False
        segment = self._segments[chain.base]
        with opened(files_at(self._location)[0], segment.path) as file:
            # `find_bridge` looks at a header here and there.
            view = cast("memoryview", _Headers(file, segment.file_size))
            return find_bridge(
                view, base=chain.base, start=self._kept_stop, stop=chain.start, magics=RECORD_MAGICS
            )


class _Evidence:
    """Queue offsets of records, from the blocks that they are in."""

    def __init__(self, ask: AskRuns) -> None:
        self._ask = ask
        self._loaded: list[tuple[int, int]] = []
        self._numbers: dict[bytes, int] = {}
        self._runs = np.empty((0, 4), np.int64)

    def load(self, ranges: Ranges) -> None:
        """Fetch what begins in some ranges of the log."""
        wanted: list[tuple[int, int]] = []
        for start, stop in sorted(ranges):
            if wanted and start <= wanted[-1][1]:
                wanted[-1] = (wanted[-1][0], max(wanted[-1][1], stop))
            else:
                wanted.append((start, stop))
        table = self._ask(wanted)
        queues = [
            self._numbers.setdefault(target, len(self._numbers))
            for target in table.column("target").to_pylist()
        ]
        columns = [table.column(name).to_numpy() for name in ("at", "first", "count")]
        self._runs = np.concatenate((self._runs, np.array([queues, *columns], np.int64).T))
        self._loaded += wanted

    def keys(
        self, chain: Piece, normal_ms: list[int], any_ms: list[int], *, at_end: bool
    ) -> KeyColumns:
        """Return what the judge needs of a chain, with store times at one end of the rows.

        Parameters
        ----------
        normal_ms, any_ms
            Times of records that have entries, and of others where none has.
        """
        if not any(start <= chain.start and chain.stop <= stop for start, stop in self._loaded):
            self.load([(chain.start, chain.stop)])
        inside = (self._runs[:, 1] >= chain.start) & (self._runs[:, 1] < chain.stop)
        queues, _, firsts, counts = self._runs[inside].T
        total = int(counts.sum())
        if not total:
            none = np.zeros(len(any_ms), np.int64)
            return KeyColumns(none, none, np.array(any_ms, np.int64), none.astype(np.bool_))
        before = np.cumsum(counts) - counts
        offsets = np.repeat(firsts - before, counts) + np.arange(total)
        times = np.zeros(total, np.int64)
        few = normal_ms[-total:] if at_end else normal_ms[:total]
        times[total - len(few) if at_end else 0 :][: len(few)] = few
        return KeyColumns(np.repeat(queues, counts), offsets, times, np.ones(total, np.bool_))


class _Headers:
    """A file's bytes, read where they are asked for; zeros after its end."""

    def __init__(self, file: OpenFile, size: int) -> None:
        self._file = file
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, key: int | slice) -> int | bytes:
        if isinstance(key, int):
            return self._file.read(key, 1).ljust(1, b"\0")[0]
        start, stop, _ = key.indices(self._size)
        return self._file.read(start, stop - start).ljust(stop - start, b"\0")
