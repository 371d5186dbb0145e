"""One full pass over a store: log, queues and index against each other, beside a writer or not.

Verify reports what the pass found; repair plans from it, and runs it again to say what is left.

Law: nothing is written, mapped or locked; files are read with ``pread``, so that a writer may work
on. Only the log tells what is true: queues and index are compared with it, never the other way.
Cost: the log twice (once with checksums), a window of some megabytes in memory at a time.
"""

from __future__ import annotations

import contextlib
import functools
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
from rocketstore.storage.files.disk import Disk, system_errors
from rocketstore.storage.files.pread_files import PreadFiles
from rocketstore.storage.files.whole_file import data_stop
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.recovery.log_survey import chain_records, survey_log
from rocketstore.verification.expectation import delay_array, expected_entries, expected_items
from rocketstore.verification.findings import StoreCounts
from rocketstore.verification.leftovers import CLOCK_TOLERANCE_MS
from rocketstore.verification.log_rules import Chain, Stretch
from rocketstore.verification.queue_numbers import QueueNumbers
from rocketstore.verification.queue_rules import added

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from rocketstore.storage.audit.queue_audit import AuditedQueue
    from rocketstore.storage.files.pread_files import LogFile
    from rocketstore.units import QueueKey
    from rocketstore.verification.file_rules import FileFinding
    from rocketstore.verification.findings import Finding
    from rocketstore.verification.index_rules import Lacking
    from rocketstore.verification.log_rules import LogView
    from rocketstore.verification.queue_rules import QueuePart

    ByteArray: TypeAlias = npt.NDArray[np.uint8]
    _Parts: TypeAlias = dict[QueueKey, tuple[AuditedQueue, QueuePart]]


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
        """Fill `view` with the bytes from `position` on; return how many there were."""
        total = 0
        with (
            system_errors(f"cannot read {self.path} past offset {position}"),
            contextlib.suppress(FileNotFoundError),  # deleted by retention meanwhile
            Disk().opened(self.path, writable=False) as descriptor,
        ):
            while got := os.preadv(descriptor, [view[total:]], position + total):
                total += got
        view[total:] = bytes(len(view) - total)
        return len(view)

    @property
    def array(self) -> ByteArray:
        """All bytes of the file, read again each time."""
        array = np.empty(self.size, np.uint8)
        self.read_into(0, array.data)
        return array

    def data_stop(self) -> int:
        """Return the position after which the file holds no byte."""
        with Disk().opened(self.path, writable=False) as descriptor:
            return data_stop(descriptor, min(self.size, os.fstat(descriptor).st_size))


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
    """What a pass found; `log_findings` are files of the log that are not what they should be."""

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
        """The end that queues were compared with: the survey's, unless the caller chose another."""
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
    queues = (queue for topic in _entries(layout.consume_queue) for queue in _entries(topic))
    families = (
        [path for directory in directories.all for path in _files(directory, _is_offset)],
        [path for queue in queues for path in _files(queue, _is_offset)],
        _files(layout.index, is_index_file_name),
    )
    return StorePlaces(layout, resolve_sizes(config, observed_in(config, *map(_lengths, families))))


def _lengths(paths: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    return ((path, path.stat().st_size) for path in paths)


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _files(directory: Path, is_name: Callable[[str], object]) -> list[Path]:
    return [path for path in _entries(directory) if is_name(path.name) and path.is_file()]


def _is_offset(name: str) -> bool:
    return parse_file_name(name) is not None


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

    `is_live`: a writer works on the store, so what it has not dispatched yet is no fault. `end_of`
    chooses another end of the log than that of the last intact record. `advance` is called with how
    many bytes of the log were surveyed.
    """
    size = places.sizes.commit_log_file_bytes
    log = PreadFiles(places.log_directories, file_size=size)
    files = [ReadLogFile(file, size) for file in log.files]
    queues = QueueAudit(places.layout.consume_queue, places.sizes.consume_queue_file_bytes)
    index = IndexAudit(places.layout.index, places.sizes.index_layout, is_live=is_live)
    met = Chain(0, 0)
    lacking: list[Lacking] = []
    # Kernels and reads let other threads run meanwhile.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        survey = survey_log(
            files, now_ms=now_ms, data_stop=_data_stop, advance=advance, spread=pool.map
        )
        end = survey.end if end_of is None else end_of(files)
        spans = [(one.start, min(one.stop, end)) for one in survey.kept if one.record_count]
        held = [[span for span in spans if file.holds(span[0])] for file in files]
        compare = functools.partial(_compared, now_ms + CLOCK_TOLERANCE_MS, queues, index, config)
        for stretch, keys, parts in pool.map(compare, files, held):
            for chain in stretch.chains:
                met.extend(chain)
            lacking += keys
            for queue, part in parts.values():
                queue.take(part)
    audited = [queue for _, queue in sorted(queues.queues.items())]
    for queue in audited:
        queue.judge(survey.bounds()._replace(end=end))
    queues.close()
    return StoreAudit(
        places,
        files,
        survey._replace(end=end),
        audited,
        index.finish(lacking, log_min=survey.start, log_end=end)
        if config.message_index_enable
        else [],
        StoreCounts(
            message_count=met.record_count,
            message_bytes=met.record_bytes,
            unwitnessed_bytes=met.record_bytes - met.body_bytes,
            damaged_bytes=survey.damaged_bytes,
            leftover_count=sum(chain.record_count for chain in survey.leftovers),
            queue_count=len(audited),
            entry_count=sum(queue.entry_count for queue in audited),
            hole_count=sum(queue.hole_count for queue in audited),
            index_item_count=index.item_count,
            min_physical_offset=survey.start,
            max_physical_offset=end,
        ),
        log.findings,
        met.last_ms,
        met.latest_ms,
    )


def _data_stop(file: object) -> int:
    assert isinstance(file, ReadLogFile)
    return file.data_stop()


def _compared(
    latest_ms: int,
    queues: QueueAudit,
    index: IndexAudit,
    config: StoreConfig,
    file: ReadLogFile,
    spans: Sequence[tuple[int, int]],
) -> tuple[Stretch, list[Lacking], _Parts]:
    """Compare the records in some spans of one file with queues and index."""
    met, lacking = Stretch(file.base, file.base), []
    parts: _Parts = {}
    numbers, delays = QueueNumbers(), delay_array(parse_delay_levels(config.message_delay_level))
    for start, stop in spans:
        for columns in chain_records(file, start, stop) if start < stop else ():
            met.take_records(columns, latest_ms)
            expected = expected_entries(columns, numbers, delays)
            for queue, part in queues.compare(expected, numbers.keys()):
                _, known = parts.get(queue.key, (queue, None))
                parts[queue.key] = queue, part if known is None else added(known, part)
            if config.message_index_enable:
                first = int(columns.physical_offset[0])
                past = int(columns.physical_offset[-1] + columns.size[-1])
                lacking.append(index.compare(expected_items(columns), first, past))
    return met, lacking, parts
