"""What stands in a CommitLog: unbroken chains of records, damage between them, and where it ends.

A survey scans files with their checksums and keeps no record, only the chains (where each begins
and ends, how many records it has), the damage, and the verdict on chains behind a break. Recovery,
repair and verify all start from it.

Law: the log's end is the end of the last chain that is kept; nothing behind it is log, and no chain
is dropped for a bad byte in front of it. Nothing is written here.
Cost: one pass; a second one, without checksums, over what has to be judged (`leftovers`), which is
only where records stand behind a break.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, cast

import numpy as np

from rocketstore.scan.scanner import BATCH_RECORDS, Damage, DamageReason, scan_window
from rocketstore.storage.recovery.leftovers import (
    EVIDENCE_RECORD_LIMIT,
    Judgement,
    KeyColumns,
    LeftoverJudge,
    Stretch,
    Verdict,
    find_bridge,
    normal_mask,
)
from rocketstore.units import ByteRange
from rocketstore.verification.queue_numbers import QueueNumbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from rocketstore.scan.columns import RecordColumns
    from rocketstore.scan.scanner import ByteSource, ScanBatch

    ByteArray: TypeAlias = npt.NDArray[np.uint8]

RECORD_MAGICS: Final = frozenset({b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab"})
TAIL_RECORD_COUNT: Final = 4096
"""Records at the end of a chain that are kept as witnesses of its time."""


class LogBytes(Protocol):
    """One file of a log, mapped or read."""

    base: int
    size: int

    @property
    def array(self) -> ByteArray:
        """All bytes of the file."""
        ...


class Chain(NamedTuple):
    """Records (and a BLANK) that follow one another without a break, inside one file.

    Attributes
    ----------
    start, stop
        Physical offsets; `stop` is behind the BLANK when there is one.
    has_blank
        A BLANK ends the chain, and with it the file.
    judgement
        Filled in once the chain was judged.
    """

    start: int
    stop: int
    record_count: int
    has_blank: bool
    judgement: Judgement | None = None

    @property
    def is_kept(self) -> bool:
        """Whether its records are messages."""
        return self.judgement is None or self.judgement.verdict.is_kept


class FileSurvey(NamedTuple):
    """What one file holds."""

    base: int
    size: int
    chains: list[Chain]
    damage: list[Damage]
    data_stop: int
    """Behind it the file is zeros."""


class LogSurvey(NamedTuple):
    """What a row of files holds.

    Attributes
    ----------
    files
        In order.
    holes
        Ranges before the end for which there is no file.
    end
        Physical offset behind the last kept record or BLANK; the start of the first file when
        there is none.
    """

    files: list[FileSurvey]
    holes: list[ByteRange]
    end: int

    def chains(self) -> Iterator[Chain]:
        """Yield all chains in order."""
        for file in self.files:
            yield from file.chains

    @property
    def record_count(self) -> int:
        """Kept records."""
        return sum(chain.record_count for chain in self.chains() if chain.is_kept)

    @property
    def leftovers(self) -> list[Chain]:
        """Chains that an earlier log left."""
        return [chain for chain in self.chains() if not chain.is_kept]

    @property
    def doubtful(self) -> list[Chain]:
        """Chains that were kept in doubt."""
        return [
            chain
            for chain in self.chains()
            if chain.judgement is not None and chain.judgement.verdict is Verdict.DOUBTFUL
        ]

    def damage_before_end(self) -> list[Damage]:
        """Return the damaged ranges that lie inside the log."""
        return [
            damage for file in self.files for damage in file.damage if damage.range.start < self.end
        ]

    def lost_ranges(self) -> list[ByteRange]:
        """Return every range inside the log that holds no kept record, in order."""
        lost = [damage.range for damage in self.damage_before_end()]
        lost += self.holes
        lost += [ByteRange(c.start, c.stop) for c in self.leftovers if c.start < self.end]
        return sorted(lost)


def survey_log(
    files: Sequence[LogBytes],
    *,
    now_ms: int,
    start: int | None = None,
    data_stop: Callable[[LogBytes], int] | None = None,
    advance: Callable[[int], None] | None = None,
    spread: Callable[..., Iterable[FileSurvey]] = map,
) -> LogSurvey:
    """Scan `files` with checksums, judge what stands behind breaks, and find the end.

    Parameters
    ----------
    files
        In order; gaps between them are holes.
    now_ms
        The present time (see `LeftoverJudge`).
    start
        Physical offset of a record, BLANK or break to begin at; None is the first file's start.
    data_stop
        Tells behind which position a file is zeros, so that they need not be read.
    advance
        Called with how many bytes were scanned, for progress.
    spread
        Applies a function to each file, in order: `map`, or that of a pool of threads.
    """
    first = start or 0
    asked = [file for file in files if start is None or file.base + file.size > start]

    def survey(file: LogBytes) -> FileSurvey:
        begin = max(file.base, first) - file.base
        stop = file.size if data_stop is None else data_stop(file)
        return _survey_file(file, begin, max(begin, stop))

    surveys = []
    for found in spread(survey, asked):
        surveys.append(found)
        if advance is not None:
            advance(found.size)
    if needs_judgement(surveys):
        surveys = _judge(files, surveys, now_ms)
    end = _end(surveys)
    surveys = [_with_unwritten_end(survey, start or 0, end) for survey in surveys]
    return LogSurvey(surveys, _holes(surveys), end)


def _survey_file(file: LogBytes, start: int, stop: int) -> FileSurvey:
    chains: list[Chain] = []
    damage: list[Damage] = []
    for batch in _scan(file, start, file.size, data_stop=stop, check_crc=True):
        _extend_chains(chains, batch)
        damage += batch.damage
    return FileSurvey(file.base, file.size, chains, damage, file.base + stop)


def _scan(
    file: LogBytes,
    start: int,
    stop: int,
    *,
    data_stop: int,
    check_crc: bool,
    batch_records: int = BATCH_RECORDS,
) -> Iterator[ScanBatch]:
    """Scan positions of a file, which holds zeros from `data_stop` on."""
    # A file that is read, not mapped, is never held as a whole.
    is_read = hasattr(type(file), "read_into")
    return scan_window(
        cast("ByteSource", file) if is_read else file.array,
        base=file.base,
        size=file.size,
        start=start,
        stop=stop,
        file_size=file.size,
        data_stop=data_stop,
        check_crc=check_crc,
        batch_records=batch_records,
        lookback_bytes=0,
        whole_damage=True,
    )


def _extend_chains(chains: list[Chain], batch: ScanBatch) -> None:
    """Add a batch's records and blanks to the last chain, or begin new ones at breaks."""
    starts = batch.columns.physical_offset
    stops = starts + batch.columns.size
    if len(starts):
        breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
        bounds = [0, *breaks.tolist(), len(starts)]
        for first, behind in itertools.pairwise(bounds):
            begin, end, count = int(starts[first]), int(stops[behind - 1]), behind - first
            if chains and chains[-1].stop == begin and not chains[-1].has_blank:
                last = chains[-1]
                chains[-1] = last._replace(stop=end, record_count=last.record_count + count)
            else:
                chains.append(Chain(begin, end, count, has_blank=False))
    for blank in batch.blanks:
        end = blank.physical_offset + blank.size
        if chains and chains[-1].stop == blank.physical_offset:
            chains[-1] = chains[-1]._replace(stop=end, has_blank=True)
        else:
            chains.append(Chain(blank.physical_offset, end, 0, has_blank=True))


# --- judging ------------------------------------------------------------------------------------


def needs_judgement(surveys: Sequence[FileSurvey]) -> bool:
    """Whether some chain with records stands behind a break."""
    expected: int | None = None
    seen = False
    for chain in (chain for file in surveys for chain in file.chains):
        if seen and chain.record_count and chain.start != expected:
            return True
        seen = seen or chain.record_count > 0
        expected = chain.stop
    return False


def _judge(
    files: Sequence[LogBytes], surveys: Sequence[FileSurvey], now_ms: int
) -> list[FileSurvey]:
    judge = LeftoverJudge(now_ms)
    numbers = QueueNumbers()
    by_base = {file.base: file for file in files}
    expected: int | None = None
    judged: list[FileSurvey] = []
    kept_stop: int | None = None
    for survey in surveys:
        file = by_base[survey.base]
        chains = []
        for chain in survey.chains:
            if not chain.record_count:
                # A BLANK alone is nobody's evidence; it counts where the chain before it counts.
                chains.append(chain)
                expected = chain.stop if chain.start == expected else None
                continue
            keys = chain_keys(file, chain, numbers)
            stretch = Stretch(
                chain.start,
                chain.stop,
                is_linked=chain.start == expected,
                is_bridged=_is_bridged(file, kept_stop, chain.start),
                is_same_file=bool(chains),
                head=keys.rows(slice(EVIDENCE_RECORD_LIMIT)),
                tail=keys.rows(slice(-TAIL_RECORD_COUNT, None)),
            )
            judgement = judge.decide(stretch)
            if judgement.verdict.is_kept:
                judge.trust(keys)
                kept_stop = chain.stop
            chains.append(chain._replace(judgement=judgement))
            expected = chain.stop
        judged.append(survey._replace(chains=chains))
    return judged


def _is_bridged(file: LogBytes, kept_stop: int | None, start: int) -> bool:
    if kept_stop is None or not file.base <= kept_stop < start:
        return False
    return find_bridge(
        file.array.data, base=file.base, start=kept_stop, stop=start, magics=RECORD_MAGICS
    )


def chain_keys(file: LogBytes, chain: Chain, numbers: QueueNumbers) -> KeyColumns:
    """Read again what the leftovers test needs of a chain's records."""
    parts = [
        key_columns(columns, numbers) for columns in chain_records(file, chain.start, chain.stop)
    ]
    return KeyColumns.joined(parts)


def key_columns(columns: RecordColumns, numbers: QueueNumbers) -> KeyColumns:
    """Return what the leftovers test needs of scanned records."""
    return KeyColumns(
        numbers.of(columns),
        columns.queue_offset.copy(),
        columns.store_timestamp.copy(),
        normal_mask(columns.sys_flag),
    )


def chain_records(
    file: LogBytes, start: int, stop: int, *, batch_records: int = 65_536
) -> Iterator[RecordColumns]:
    """Yield the records of a chain that a survey found, without checking bodies again."""
    for batch in _scan(
        file,
        start - file.base,
        stop - file.base,
        data_stop=file.size,
        check_crc=False,
        batch_records=batch_records,
    ):
        if len(batch.columns):
            yield batch.columns


# --- the end ------------------------------------------------------------------------------------


def _end(surveys: Sequence[FileSurvey]) -> int:
    if not surveys:
        return 0
    end = surveys[0].base
    for file in surveys:
        # A survey that begins inside its file begins where the log does.
        for chain in file.chains:
            if (chain.is_kept and chain.record_count) or (
                not chain.record_count and chain.start == end
            ):
                end = chain.stop
    return end


def _with_unwritten_end(survey: FileSurvey, start: int, end: int) -> FileSurvey:
    """Call a file's unwritten end damage where the log goes on in a later file.

    Every full file ends in a BLANK, so what should be there was lost: records, or at least that.
    """
    stop = survey.base + survey.size
    stops = [chain.stop for chain in survey.chains]
    stops += [damage.range.stop for damage in survey.damage]
    covered = max(survey.base, start, *stops)
    if covered >= stop or end <= stop:
        return survey
    lost = Damage(
        ByteRange(covered, stop),
        DamageReason.UNWRITTEN_HOLE,
        "zeros up to the file's end, where a BLANK should be; the log goes on in the next file",
    )
    return survey._replace(damage=[*survey.damage, lost])


def _holes(surveys: Sequence[FileSurvey]) -> list[ByteRange]:
    return [
        ByteRange(before.base + before.size, after.base)
        for before, after in itertools.pairwise(surveys)
        if before.base + before.size < after.base
    ]
