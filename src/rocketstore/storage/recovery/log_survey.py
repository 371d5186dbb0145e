"""What stands in a CommitLog: unbroken chains of records, damage between them, and where it ends.

A survey scans files with their checksums and keeps no record, only the chains, the damage, and the
verdict on chains after a break (`LogView`). Recovery, repair and verify all start from it.

Law: the log's end is the end of the last chain that is kept; nothing after it is log, and no chain
is dropped for a bad byte in front of it. Nothing is written here.
Cost: one pass; a second one, without checksums, over what has to be judged (`leftovers`), which is
only where records stand after a break.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast

from rocketstore.scan.scanner import BATCH_RECORDS, scan_window
from rocketstore.verification import log_rules
from rocketstore.verification.leftovers import (
    CLOCK_TOLERANCE_MS,
    EVIDENCE_RECORD_LIMIT,
    KeyColumns,
    LeftoverJudge,
    Stretch,
    Verdict,
    find_bridge,
    normal_mask,
)
from rocketstore.verification.log_rules import Chain, LeftChain, LogView, links, log_view
from rocketstore.verification.queue_numbers import QueueNumbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from rocketstore.scan.columns import RecordColumns
    from rocketstore.scan.scanner import ByteSource, ScanBatch

    ByteArray: TypeAlias = npt.NDArray[np.uint8]

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


def survey_log(
    files: Sequence[LogBytes],
    *,
    now_ms: int,
    start: int = 0,
    data_stop: Callable[[LogBytes], int] | None = None,
    advance: Callable[[int], None] | None = None,
    spread: Callable[..., Iterable[log_rules.Stretch]] = map,
) -> LogView:
    """Scan `files` with checksums, judge what stands after breaks, and find the end.

    Parameters
    ----------
    files
        In order, of one length; gaps between them are holes.
    now_ms
        The present time (see `LeftoverJudge`).
    start
        Physical offset of a record, BLANK or break to begin at, if not the first file's.
    data_stop
        Tells after which position a file is zeros, so that they need not be read.
    advance
        Called with how many bytes were scanned, for progress.
    spread
        Applies a function to each file, in order: `map`, or that of a pool of threads.
    """
    asked = [file for file in files if file.base + file.size > start]
    if not asked:
        return LogView(0, 0, 0, [], [], [], [])

    def survey(file: LogBytes) -> log_rules.Stretch:
        begin = max(file.base, start) - file.base
        stop = file.size if data_stop is None else data_stop(file)
        stretch = log_rules.Stretch(file.base, file.base + begin)
        for batch in _scan(file, begin, file.size, data_stop=max(begin, stop), check_crc=True):
            stretch.take(batch, now_ms + CLOCK_TOLERANCE_MS)
        return stretch

    stretches = []
    for stretch in spread(survey, asked):
        stretches.append(stretch)
        if advance is not None:
            advance(asked[0].size)
    bases = [file.base for file in asked]
    return log_view(
        stretches, bases, asked[0].size, lambda chains: _judged(asked, chains, now_ms), start=start
    )


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


def _judged(files: Sequence[LogBytes], chains: Sequence[Chain], now_ms: int) -> list[LeftChain]:
    """Return the chains that an earlier log left, and those that are kept in doubt."""
    records, linked = links(chains)
    if all(linked):
        return []
    judge, numbers = LeftoverJudge(now_ms), QueueNumbers()
    by_base = {file.base: file for file in files}
    kept_stop: int | None = None
    left = []
    for chain, is_linked in zip(records, linked, strict=True):
        file = by_base[max(base for base in by_base if base <= chain.start)]
        keys = _chain_keys(file, chain, numbers)
        stretch = Stretch(
            chain.start,
            chain.stop,
            is_linked=is_linked,
            is_bridged=_is_bridged(file, kept_stop, chain.start),
            head=keys.rows(slice(EVIDENCE_RECORD_LIMIT)),
            tail=keys.rows(slice(-TAIL_RECORD_COUNT, None)),
        )
        verdict, why = judge.decide(stretch)
        if verdict.is_kept:
            judge.trust(keys)
            kept_stop = chain.stop
        if verdict is not Verdict.LOG:
            kind = f"log-{verdict.value}"
            left.append(LeftChain(chain.start, chain.stop, chain.record_count, why, kind))
    return left


def _is_bridged(file: LogBytes, kept_stop: int | None, start: int) -> bool:
    if kept_stop is None or not file.base <= kept_stop < start:
        return False
    return find_bridge(file.array.data, base=file.base, start=kept_stop, stop=start)


def _chain_keys(file: LogBytes, chain: Chain, numbers: QueueNumbers) -> KeyColumns:
    """Read again what the leftovers test needs of a chain's records."""
    return KeyColumns.joined(
        [
            KeyColumns(
                numbers.of(columns),
                columns.queue_offset.copy(),
                columns.store_timestamp.copy(),
                normal_mask(columns.sys_flag),
            )
            for columns in chain_records(file, chain.start, chain.stop)
        ]
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
