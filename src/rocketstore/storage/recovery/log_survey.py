"""The content of a CommitLog: records, unbroken chains of them, damage between, and the end.

A survey scans files with their checksums and keeps no record, only the chains, the damage, and the
verdict on chains after a break (`LogView`). Recovery, repair and verify all start from it.

Law: the log's end is the end of the last chain that is kept; nothing after it is log, and no chain
is dropped because of a bad byte in front of it. Nothing is written here.
Cost: one pass; a second one, without checksums, over what has to be judged (`leftovers`), which is
only where records stand after a break.

How derived: for where recovery begins, CommitLog.recoverAbnormally and isMappedFileMatchedRecover
of 4.9 (spec B16.3, F11) without K-R6 and K-R8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rocketstore.rules.batch_entries import queue_stops
from rocketstore.rules.bridges import Headers
from rocketstore.rules.expectation import expected_items
from rocketstore.rules.leftovers import CLOCK_TOLERANCE_MS, KeyColumns, left_chains
from rocketstore.rules.log_rules import Chain, LogView, Stretch, log_view
from rocketstore.rules.queue_numbers import QueueNumbers
from rocketstore.scan import kernels
from rocketstore.scan.columns import CallsFor, RecordColumns, new_columns
from rocketstore.scan.scanner import ScanBatch, scan_window
from rocketstore.storage.dispatch.entry_decisions import record_at
from rocketstore.storage.files.pread_files import ReadLogFile

if TYPE_CHECKING:
    from rocketstore.format.checkpoint import Checkpoint
    from rocketstore.storage.files.mapped_file import MappedFile
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue

_CHAIN_BATCH_RECORDS: Final = 65_536
_KEYS_PROBE_RECORDS: Final = 8192


LogBytes: TypeAlias = "MappedFile | ReadLogFile"
"""One file of a log: mapped, or read and then never held as a whole."""


def read_bytes(file: LogBytes, position: int, size: int) -> bytes:
    """Return a few bytes of a file."""
    if not isinstance(file, ReadLogFile):
        return file.array[position : position + size].tobytes()
    content = bytearray(size)
    file.read_into(position, memoryview(content))
    return bytes(content)


def survey_log(
    files: Sequence[LogBytes],
    *,
    now_ms: int,
    start: int = 0,
    data_stop: Callable[[Any], int] = attrgetter("size"),
    advance: Callable[[int], None] | None = None,
    spread: Callable[..., Iterable[Stretch]] = map,
) -> LogView:
    """Scan `files` with checksums, judge the records after breaks, and find the end.

    They are in order, of one length; gaps between them are holes. `start` is the physical offset of
    a record, BLANK or break to begin at, if not the first file's. `data_stop` returns the position
    after which a file is zeros, so that they need not be read; `advance` is called with how many
    bytes were scanned; `spread` is `map`, or does so in several threads.
    """
    asked = [file for file in files if file.base + file.size > start]

    def survey(file: LogBytes) -> Stretch:
        begin = max(file.base, start) - file.base
        stretch = Stretch(file.base, file.base + begin)
        for batch in _scan(file, begin, file.size, data_stop=max(begin, data_stop(file))):
            stretch.take(batch, now_ms + CLOCK_TOLERANCE_MS)
        return stretch

    stretches = []
    for file, stretch in zip(asked, spread(survey, asked), strict=True):
        stretches.append(stretch)
        if advance is not None:
            advance(file.size)
    return log_view(
        stretches,
        [file.base for file in asked],
        asked[0].size if asked else 0,
        lambda chains: left_chains(chains, _Chains(asked), now_ms),
        start=start,
    )


def _scan(file: LogBytes, start: int, stop: int, **options: Any) -> Iterator[ScanBatch]:
    return scan_window(
        file if isinstance(file, ReadLogFile) else file.array, base=file.base, size=file.size,
        start=start, stop=stop, lookback_bytes=0, **options,
    )  # fmt: skip


def chain_records(file: LogBytes, start: int, stop: int) -> Iterator[RecordColumns]:
    """Yield the records of a chain that a survey found, without checking bodies again."""
    options = {"check_crc": False, "batch_records": _CHAIN_BATCH_RECORDS}
    for batch in _scan(file, start - file.base, stop - file.base, **options):
        if len(batch.columns):
            yield batch.columns


class _Chains:
    """A `ChainSource` of a log, which is read again where the judge of leftovers asks for it."""

    def __init__(self, files: Sequence[LogBytes]) -> None:
        self._files = files
        self._numbers = QueueNumbers()
        self._last: tuple[int, KeyColumns] | None = None

    def _file_at(self, offset: int) -> LogBytes:
        return next(file for file in reversed(self._files) if file.base <= offset)

    def whole(self, chain: Chain) -> KeyColumns:
        if self._last is None or self._last[0] != chain.start:
            self._last = None  # one chain at a time in memory
            parts = [
                KeyColumns(
                    self._numbers.of(columns),
                    columns.queue_offset.copy(),
                    queue_stops(columns),
                    columns.store_timestamp.copy(),
                    columns.call_for(CallsFor.ENTRY),
                )
                for columns in chain_records(self._file_at(chain.start), chain.start, chain.stop)
            ]
            self._last = chain.start, KeyColumns.joined(parts)
        return self._last[1]

    head = tail = whole

    def is_bridged(self, start: int, stop: int) -> bool:
        file = self._file_at(stop)
        headers = Headers(partial(read_bytes, file), file.base, file.size)
        return start >= file.base and headers.lead(start, stop)


# --- single records, and where recovery begins --------------------------------------------------


def store_time_in(file: MappedFile, position: int) -> int | None:
    """Return the store time of the intact record at a position of a file, None without one."""
    record = record_at(file, position)
    return None if record is None else int(record.store_timestamp[0])


def store_time_of(log: MappedFileQueue, physical_offset: int) -> int | None:
    """Return the store time of the intact record at a physical offset, None without one."""
    file = log.find(physical_offset)
    return None if file is None else store_time_in(file, physical_offset - file.base)


def crash_start(
    files: Sequence[MappedFile],
    checkpoint: Checkpoint,
    *,
    index_enabled: bool,
    has_index: bool,
    now_ms: int,
) -> int:
    """Return the physical offset of the newest file before which everything is durable."""
    latest_ms = now_ms + CLOCK_TOLERANCE_MS
    number = checkpoint.safe_file(
        len(files), lambda at: store_time_in(files[at], 0), latest_ms, has_index=index_enabled
    )
    is_index_lost = number and index_enabled and not has_index and _has_keys(files[number - 1])
    return files[0 if is_index_lost else number].base


def _has_keys(file: MappedFile) -> bool:
    """Whether records at the beginning of a file have keys, so that there must be an index."""
    cols, check_crc = new_columns(_KEYS_PROBE_RECORDS), False
    count, _, _ = kernels.walk(file.array, 0, file.size, file.base, file.size, check_crc, cols)
    return len(expected_items(RecordColumns(file.array, cols[:count], file.base)).key_hash) > 0
