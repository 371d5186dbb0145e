"""One full pass over a store: log, queues and index against each other, beside a writer or not.

Verify reports what the pass found; repair plans from it, and runs it again to say what is left.

Law: nothing is written, mapped or locked; files are read with ``pread``, so that a writer may work
on. Only the log tells what is true: queues and index are compared with it, never the other way.
Cost: the log twice (once with checksums), a window of some megabytes in memory at a time.
"""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from rocketstore.config import (
    StoreConfig,
    StoreSizes,
    commit_log_directories,
    observed_in,
    parse_delay_levels,
    resolve_sizes,
)
from rocketstore.errors import NotAStoreError
from rocketstore.format.file_name import parse_file_name
from rocketstore.format.index_file import is_index_file_name
from rocketstore.storage.audit.index_audit import IndexAudit
from rocketstore.storage.audit.queue_audit import QueueAudit
from rocketstore.storage.files.pread_files import PreadFiles
from rocketstore.storage.files.written import data_extents
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.recovery.log_survey import chain_records, survey_log
from rocketstore.storage.system_errors import system_errors
from rocketstore.verification import queue_rules
from rocketstore.verification.expectation import delay_array, expected_entries, expected_items
from rocketstore.verification.findings import StoreCounts
from rocketstore.verification.index_rules import Lacking
from rocketstore.verification.queue_numbers import QueueNumbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from rocketstore.storage.audit.queue_audit import AuditedQueue
    from rocketstore.storage.files.pread_files import LogFile
    from rocketstore.units import QueueKey
    from rocketstore.verification.file_rules import FileFinding
    from rocketstore.verification.findings import Finding
    from rocketstore.verification.log_rules import Chain, LogView
    from rocketstore.verification.queue_rules import QueuePart

    ByteArray: TypeAlias = npt.NDArray[np.uint8]
    Int64Array: TypeAlias = npt.NDArray[np.int64]


class ReadLogFile:
    """One CommitLog file, read piece by piece; a file cut short ends in zeros."""

    def __init__(self, file: LogFile, size: int) -> None:
        self.base = file.base
        self.size = size
        self.path = file.path

    def holds(self, physical_offset: int) -> bool:
        """Whether a physical offset is in this file."""
        return self.base <= physical_offset < self.base + self.size

    def read_into(self, position: int, view: memoryview) -> int:
        """Fill `view` with the bytes from `position` on; return how many there were.

        Only what the file system holds bytes for is read.
        """
        with system_errors(f"cannot read {self.path} past offset {position}"):
            return self._read_into(position, view)

    def _read_into(self, position: int, view: memoryview) -> int:
        view[:] = bytes(len(view))
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # deleted by retention meanwhile
            return len(view)
        try:
            stop = min(position + len(view), _size_of(descriptor))
            for begin, end in data_extents(descriptor, position, stop):
                _read_extent(descriptor, begin, end, view[begin - position : end - position])
        finally:
            os.close(descriptor)
        return len(view)

    @property
    def array(self) -> ByteArray:
        """All bytes of the file, read again each time."""
        array = np.zeros(self.size, np.uint8)
        self.read_into(0, array.data)
        return array

    def data_stop(self) -> int:
        """Return the position after which the file holds no byte."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            extents = list(data_extents(descriptor, 0, min(self.size, _size_of(descriptor))))
        finally:
            os.close(descriptor)
        return extents[-1][1] if extents else 0


def _read_extent(descriptor: int, position: int, stop: int, view: memoryview) -> None:
    at = 0
    while position < stop:
        count = os.preadv(descriptor, [view[at:]], position)
        if not count:
            return
        at += count
        position += count


def _size_of(descriptor: int) -> int:
    return os.fstat(descriptor).st_size


@dataclass(frozen=True, slots=True)
class StorePlaces:
    """Where a store's parts are, and how long its files should be."""

    layout: StoreLayout
    sizes: StoreSizes

    @property
    def log_directories(self) -> tuple[Path, ...]:
        """Every directory with CommitLog files."""
        return self.layout.commit_log_directories + self.layout.read_only_directories


@dataclass(slots=True)
class StoreAudit:
    """What a pass found.

    Attributes
    ----------
    log_end
        The end that queues were compared with: the survey's, unless the caller chose another.
    log_findings
        Files of the log that are not what they should be.
    """

    places: StorePlaces
    log_files: list[ReadLogFile]
    log: LogView
    queues: list[AuditedQueue]
    index_findings: list[Finding]
    counts: StoreCounts
    log_findings: list[FileFinding[Path]]
    last_store_timestamp_ms: int
    latest_store_timestamp_ms: int

    @property
    def log_end(self) -> int:
        """The end that queues were compared with."""
        return self.log.end

    @property
    def entry_count(self) -> int:
        """Places of all queues that are in use."""
        return sum(queue.end - queue.first_offset for queue in self.queues)

    def place_in_log(self, physical_offset: int) -> tuple[str, int]:
        """Return file and position of a physical offset, ("", offset) where no file is."""
        for file in self.log_files:
            if file.holds(physical_offset):
                return self.below_root(file.path), physical_offset - file.base
        return "", physical_offset

    def below_root(self, path: object) -> str:
        """Return a path relative to the store's root where it lies there."""
        return str(path).removeprefix(f"{self.places.layout.root}/")


def find_places(root: Path, config: StoreConfig) -> StorePlaces:
    """Find a store's directories and learn the sizes of its files: set, or the commonest.

    Raises
    ------
    NotAStoreError
        There is no CommitLog directory.
    ConfigError
        Slots and items of the index cannot be learnt.
    """
    directories = commit_log_directories(config, root)
    layout = StoreLayout(root, directories.writable, directories.read_only)
    if not any(path.is_dir() for path in directories.all):
        raise NotAStoreError(
            f"{root} is no store: it has no commitlog directory",
            hint="give the directory that holds commitlog, consumequeue and index",
        )
    log = [path for directory in directories.all for path in _offset_files(directory)]
    queues = [
        path
        for topic in _directories(layout.consume_queue)
        for queue in _directories(topic)
        for path in _offset_files(queue)
    ]
    index = [path for path in _files(layout.index) if is_index_file_name(path.name)]
    observed = observed_in(config, *map(_lengths, (log, queues, index)))
    return StorePlaces(layout, resolve_sizes(config, observed))


def _lengths(paths: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    return ((path, path.stat().st_size) for path in paths)


def _files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if path.is_file())


def _offset_files(directory: Path) -> list[Path]:
    return [path for path in _files(directory) if parse_file_name(path.name) is not None]


def _directories(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if path.is_dir())


def audit_store(
    places: StorePlaces,
    config: StoreConfig,
    *,
    now_ms: int,
    is_live: bool = False,
    end_of: Callable[[Sequence[ReadLogFile]], int] | None = None,
    advance: Callable[[int], None] | None = None,
) -> StoreAudit:
    """Survey the log, then compare queues and index with its records.

    Parameters
    ----------
    places
        As `find_places` found them.
    config
        For the delay levels and whether there is an index.
    now_ms
        The time.
    is_live
        Whether a writer works on the store: what it has not dispatched yet is no fault.
    end_of
        Chooses another end of the log than the end of the last intact record.
    advance
        Called with how many bytes of the log were surveyed.
    """
    log = PreadFiles(places.log_directories, file_size=places.sizes.commit_log_file_bytes)
    size = places.sizes.commit_log_file_bytes
    files = [ReadLogFile(file, size) for file in log.files]
    queues = QueueAudit(places.layout.consume_queue, places.sizes.consume_queue_file_bytes)
    index = IndexAudit(places.layout.index, places.sizes.index_layout, is_live=is_live)
    # Kernels and reads let other threads run meanwhile.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        survey = survey_log(
            files, now_ms=now_ms, data_stop=_data_stop, advance=advance, spread=pool.map
        )
        end = survey.end if end_of is None else end_of(files)
        tally = _Tally()
        compare = functools.partial(_compared, end, queues, index, config)
        held = [[one for one in survey.kept if file.holds(one.start)] for file in files]
        for one in pool.map(compare, files, held):
            tally.add(one)
    view = survey._replace(end=end)
    audited = [queue for _, queue in sorted(queues.queues.items())]
    for queue in audited:
        queue.judge(survey.bounds()._replace(end=end))
    has_index = config.message_index_enable
    queues.close()
    return StoreAudit(
        places,
        files,
        view,
        audited,
        index.finish(tally.lacking, log_min=view.start, log_end=end) if has_index else [],
        StoreCounts(
            message_count=tally.record_count,
            message_bytes=tally.record_bytes,
            unwitnessed_bytes=tally.record_bytes - tally.body_bytes,
            damaged_bytes=survey.damaged_bytes,
            leftover_count=sum(chain.record_count for chain in survey.leftovers),
            queue_count=len(audited),
            entry_count=sum(queue.entry_count for queue in audited),
            hole_count=sum(queue.hole_count for queue in audited),
            index_item_count=index.item_count,
            min_physical_offset=view.start,
            max_physical_offset=view.end,
        ),
        log.findings,
        tally.last_ms,
        tally.latest_ms,
    )


def _data_stop(file: object) -> int:
    assert isinstance(file, ReadLogFile)
    return file.data_stop()


@dataclass(slots=True)
class _Tally:
    """What some records of the log, in order, come to."""

    record_count: int = 0
    record_bytes: int = 0
    body_bytes: int = 0
    last_ms: int = 0
    latest_ms: int = 0
    lacking: Lacking = field(default_factory=Lacking)
    parts: dict[QueueKey, tuple[AuditedQueue, QueuePart]] = field(default_factory=dict)

    def add(self, more: _Tally) -> None:
        """Go on with what follows, and let the queues know of it."""
        self.record_count += more.record_count
        self.record_bytes += more.record_bytes
        self.body_bytes += more.body_bytes
        self.last_ms = more.last_ms if more.record_count else self.last_ms
        self.latest_ms = max(self.latest_ms, more.latest_ms)
        self.lack(more.lacking)
        for queue, part in more.parts.values():
            queue.take(part)

    def lack(self, more: Lacking) -> None:
        """Count keys that have no item."""
        if more.key_count:
            count, first = self.lacking
            self.lacking = Lacking(count + more.key_count, first if count else more.first)


def _compared(
    end: int,
    queues: QueueAudit,
    index: IndexAudit,
    config: StoreConfig,
    file: ReadLogFile,
    chains: Sequence[Chain],
) -> _Tally:
    """Compare the kept records of one file, before the log's end, with queues and index."""
    tally, numbers = _Tally(), QueueNumbers()
    delays = delay_array(parse_delay_levels(config.message_delay_level))
    for chain in chains:
        if not chain.record_count or chain.start >= end:
            continue
        for columns in chain_records(file, chain.start, min(chain.stop, end)):
            tally.record_count += len(columns)
            tally.record_bytes += int(columns.size.sum())
            tally.body_bytes += int(columns.body_size.sum())
            tally.last_ms = int(columns.store_timestamp[-1])
            tally.latest_ms = max(tally.latest_ms, int(columns.store_timestamp.max()))
            expected = expected_entries(columns, numbers, delays)
            for queue, part in queues.compare(expected, numbers.keys()):
                _, known = tally.parts.get(queue.key, (queue, None))
                whole = part if known is None else queue_rules.added(known, part)
                tally.parts[queue.key] = queue, whole
            if config.message_index_enable:
                start = int(columns.physical_offset[0])
                stop = int(columns.physical_offset[-1] + columns.size[-1])
                items = expected_items(columns)
                tally.lack(index.compare(items, start, stop))
    return tally
