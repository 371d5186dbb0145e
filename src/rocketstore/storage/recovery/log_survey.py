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
from rocketstore.verification.leftovers import (
    CLOCK_TOLERANCE_MS,
    Headers,
    KeyColumns,
    find_bridge,
    left_chains,
    normal_mask,
)
from rocketstore.verification.log_rules import LogView, Stretch, log_view
from rocketstore.verification.queue_numbers import QueueNumbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from rocketstore.scan.columns import RecordColumns
    from rocketstore.scan.scanner import ByteSource, ScanBatch
    from rocketstore.verification.log_rules import Chain

    ByteArray: TypeAlias = npt.NDArray[np.uint8]

_CHAIN_BATCH_RECORDS: Final = 65_536


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
    spread: Callable[..., Iterable[Stretch]] = map,
) -> LogView:
    """Scan `files` with checksums, judge what stands after breaks, and find the end.

    Parameters
    ----------
    files
        In order, of one length; gaps between them are holes.
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

    def survey(file: LogBytes) -> Stretch:
        begin = max(file.base, start) - file.base
        stop = file.size if data_stop is None else data_stop(file)
        stretch = Stretch(file.base, file.base + begin)
        for batch in _scan(
            file,
            begin,
            file.size,
            data_stop=max(begin, stop),
            check_crc=True,
            batch_records=BATCH_RECORDS,
        ):
            stretch.take(batch, now_ms + CLOCK_TOLERANCE_MS)
        return stretch

    stretches = []
    for stretch in spread(survey, asked):
        stretches.append(stretch)
        if advance is not None:
            advance(asked[0].size)
    bases = [file.base for file in asked]
    found = _Chains(asked)
    return log_view(
        stretches,
        bases,
        asked[0].size,
        lambda chains: left_chains(chains, found, now_ms),
        start=start,
    )


def _read_at(file: LogBytes) -> Callable[[int, memoryview], int] | None:
    """Return how a file is read that is not mapped: such a one is never held as a whole."""
    return getattr(file, "read_into", None)


def _scan(
    file: LogBytes, start: int, stop: int, *, data_stop: int, check_crc: bool, batch_records: int
) -> Iterator[ScanBatch]:
    """Scan positions of a file, which holds zeros from `data_stop` on."""
    return scan_window(
        file.array if _read_at(file) is None else cast("ByteSource", file),
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


def chain_records(file: LogBytes, start: int, stop: int) -> Iterator[RecordColumns]:
    """Yield the records of a chain that a survey found, without checking bodies again."""
    for batch in _scan(
        file,
        start - file.base,
        stop - file.base,
        data_stop=file.size,
        check_crc=False,
        batch_records=_CHAIN_BATCH_RECORDS,
    ):
        if len(batch.columns):
            yield batch.columns


class _Chains:
    """The chains of a log, read again where the judge of leftovers asks for them."""

    def __init__(self, files: Sequence[LogBytes]) -> None:
        self._files = files
        self._numbers = QueueNumbers()
        self._last: tuple[int, KeyColumns] | None = None

    def _file_at(self, offset: int) -> LogBytes:
        return next(file for file in reversed(self._files) if file.base <= offset)

    def load(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Do nothing: a chain is read when it is asked for."""

    def whole(self, chain: Chain) -> KeyColumns:
        """Return all records of a chain."""
        if self._last is None or self._last[0] != chain.start:
            self._last = None  # one chain at a time in memory
            parts = [
                KeyColumns(
                    self._numbers.of(columns),
                    columns.queue_offset.copy(),
                    columns.store_timestamp.copy(),
                    normal_mask(columns.sys_flag),
                )
                for columns in chain_records(self._file_at(chain.start), chain.start, chain.stop)
            ]
            self._last = chain.start, KeyColumns.joined(parts)
        return self._last[1]

    head = tail = whole

    def is_bridged(self, start: int, stop: int) -> bool:
        """Whether a break is one inside a file, over which a broken record's header leads."""
        file = self._file_at(stop)
        if start < file.base:
            return False
        read_into = _read_at(file)
        if read_into is None:
            return find_bridge(file.array.data, base=file.base, start=start, stop=stop)

        def read(position: int, size: int) -> bytes:
            content = bytearray(size)
            read_into(position, memoryview(content))
            return bytes(content)

        return Headers(read, file.size).lead(file.base, start, stop)
