"""Which records of a log are messages, and where it ends: decided from what tasks have met of it.

Records after damage may have been left by an earlier, longer log (decision 0004). Recovery judges
stretch by stretch with the records at hand; here the same judge gets the queue offsets of the
blocks and the store times of the pieces. Of the log itself only headers inside damage are read.

Law: a log without a break is not judged, and costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, cast

import msgspec
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
from rocketstore.verification import runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from rocketstore.pipeline.files import OpenFile
    from rocketstore.pipeline.jobs.rebuild.log_scan import Piece, ScanFacts
    from rocketstore.pipeline.stores import Segment
    from rocketstore.verification.log_rules import Damaged

    Ranges = Sequence[tuple[int, int]]
    AskRuns = Callable[[Ranges], pa.Table]

CLOCK_MARGIN_MS: Final = CLOCK_TOLERANCE_MS
"""A store time later than now by more than this is a damaged header."""


class Verdict(NamedTuple):
    """What a log holds: pieces whose records are messages, ranges that an earlier log left.

    `end` is the physical offset after the last message, `damage` lies before it.
    """

    kept: list[Piece]
    leftovers: list[tuple[int, int]]
    end: int
    damage: list[Damaged]


class _Chain(NamedTuple):
    """Pieces of one file that meet, and their sum; nothing is lost before one that is linked."""

    whole: Piece
    is_linked: bool
    pieces: list[Piece]


def judge(
    location: str,
    segments: Sequence[Segment],
    facts: Sequence[ScanFacts],
    ask: AskRuns,
    *,
    now_ms: int,
) -> Verdict:
    """Return what is log, from what each task has met and the log's files, missing ones too.

    `ask` returns the blocks of entries of the pieces that begin in some ranges: target, piece,
    first, count.
    """
    pieces = sorted((one for some in facts for one in some.pieces), key=lambda one: one.start)
    damage = sorted((one for some in facts for one in some.damage), key=lambda one: one.start)
    missing = [(s.base, s.base + s.size) for s in segments if s.state is SegmentState.MISSING]
    lost = runs.joined([[(one.start, one.stop) for one in damage], missing])
    chains: list[_Chain] = []
    for piece in pieces:
        last = chains[-1].whole if chains else None
        if last is not None and (last.base, last.stop) == (piece.base, piece.start):
            last.extend(piece)
            chains[-1].pieces.append(piece)
            continue
        # What is neither record nor damaged is the BLANK at a file's end.
        at = int(np.searchsorted(lost[:, 0], piece.start)) - 1
        is_linked = last is None or at < 0 or int(lost[at, 1]) <= last.stop
        chains.append(_Chain(msgspec.structs.replace(piece), is_linked, [piece]))
    left: set[int] = set()
    if not all(one.is_linked for one in chains):
        left = set(_leftovers(chains, location, segments, _Evidence(ask), now_ms))
    kept = [
        one for number, chain in enumerate(chains) if number not in left for one in chain.pieces
    ]
    leftovers = [(chains[number].whole.start, chains[number].whole.stop) for number in sorted(left)]
    end = kept[-1].stop if kept else 0
    return Verdict(kept, leftovers, end, [one for one in damage if one.start < end])


def _leftovers(
    chains: Sequence[_Chain],
    location: str,
    segments: Sequence[Segment],
    evidence: _Evidence,
    now_ms: int,
) -> Iterator[int]:
    """Ask the judge of recovery about one chain after the other; yield those that are not log."""
    judge_of_chains = LeftoverJudge(now_ms)
    # Of each chain the first one whose records testify about it.
    counts = np.cumsum([0, *(one.whole.record_count for one in chains)])
    witnesses = np.searchsorted(counts, counts[:-1] - TRUSTED_RECORD_LIMIT, side="right") - 1
    witnesses = np.maximum(witnesses, 0).tolist()
    evidence.load(
        [
            (chains[witnesses[number]].whole.start, one.whole.stop)
            for number, one in enumerate(chains)
            if not one.is_linked
        ]
    )
    files = {one.base: one for one in segments}
    trusted: list[int] = []
    kept_stop: int | None = None
    is_after_leftover = False
    for number, (chain, is_linked, _) in enumerate(chains):
        head = tail = KeyColumns.empty()
        is_bridged = False
        if not is_linked or is_after_leftover:
            for before in trusted:
                if before >= witnesses[number]:
                    times = [chains[before].whole.last_ms] if chains[before].whole.last_ms else []
                    judge_of_chains.trust(
                        evidence.keys(chains[before].whole, [times, times], at_end=True)
                    )
            trusted = []
            head = evidence.keys(chain, chain.head, at_end=False)
            tail = evidence.keys(chain, chain.tail, at_end=True)
            if kept_stop is not None and chain.base <= kept_stop < chain.start:
                is_bridged = _is_bridged(location, files[chain.base], kept_stop, chain.start)
        stretch = Stretch(
            chain.start, chain.stop, is_linked=is_linked, is_bridged=is_bridged,
            is_same_file=False, head=head, tail=tail,
        )  # fmt: skip
        is_after_leftover = not judge_of_chains.decide(stretch).verdict.is_kept
        if is_after_leftover:
            yield number
        else:
            trusted.append(number)
            kept_stop = chain.stop


class _Evidence:
    """Queue offsets of records, from the blocks that they are in."""

    def __init__(self, ask: AskRuns) -> None:
        self._ask = ask
        self._loaded: list[tuple[int, int]] = []
        self._numbers: dict[bytes, int] = {}
        self._blocks = np.empty((0, 4), np.int64)

    def load(self, ranges: Ranges) -> None:
        """Fetch what begins in some ranges of the log."""
        wanted = [(int(start), int(stop)) for start, stop in runs.joined([ranges])]
        table = self._ask(wanted)
        queues = [
            self._numbers.setdefault(target, len(self._numbers))
            for target in table.column("target").to_pylist()
        ]
        columns = [table.column(name).to_numpy() for name in ("piece", "first", "count")]
        self._blocks = np.concatenate((self._blocks, np.array([queues, *columns], np.int64).T))
        self._loaded += wanted

    def keys(self, chain: Piece, times: list[list[int]], *, at_end: bool) -> KeyColumns:
        """Return what the judge needs of a chain, with store times at one end of the rows.

        `times` are those of any records, which count where none has an entry, and of normal ones.
        """
        if not any(start <= chain.start and chain.stop <= stop for start, stop in self._loaded):
            self.load([(chain.start, chain.stop)])
        inside = (self._blocks[:, 1] >= chain.start) & (self._blocks[:, 1] < chain.stop)
        queues, _, firsts, counts = self._blocks[inside].T
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


def _is_bridged(location: str, segment: Segment, start: int, stop: int) -> bool:
    """Whether the damaged record's own header leads to what stands after it."""
    with opened(files_at(location)[0], segment.path) as file:
        # `find_bridge` looks at a header here and there.
        view = cast("memoryview", _Headers(file, segment.file_size))
        return find_bridge(view, base=segment.base, start=start, stop=stop, magics=RECORD_MAGICS)


class _Headers:
    """A file's bytes, read where they are asked for; zeros after its end."""

    def __init__(self, file: OpenFile, size: int) -> None:
        self._file, self._size = file, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, key: int | slice) -> int | bytes:
        start, stop, _ = key.indices(self._size) if isinstance(key, slice) else (key, key + 1, 1)
        content = self._file.read(start, stop - start).ljust(stop - start, b"\0")
        return content if isinstance(key, slice) else content[0]
