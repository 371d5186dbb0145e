"""Open a store for writing: its parts in the order in which each may trust the one before.

Lock, then sizes, log, queues, checkpoint and index as they lie on disk; then recovery, which brings
them into agreement; then what lets them be written. Nothing is read before the lock is held, and
``abort`` is there before the first byte of a put can be.

Law: an open that fails leaves no lock, no thread and no descriptor behind.

How derived: DefaultMessageStore.load and start of 4.9 (spec B1). The marker ``abort`` is made
before the services start, not after, so that no crash in between looks like an orderly end.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from rocketstore.config import (
    FileObservation,
    ObservedSizes,
    StoreSizes,
    parse_delay_levels,
    resolve_sizes,
)
from rocketstore.errors import StoreError
from rocketstore.format.file_name import parse_file_name
from rocketstore.format.host import encode_host
from rocketstore.format.index_file import IndexLayout, is_index_file_name
from rocketstore.storage.checkpoint import StoreCheckpoint
from rocketstore.storage.commit_log import CommitLog
from rocketstore.storage.dispatch import Dispatcher
from rocketstore.storage.index import IndexService
from rocketstore.storage.layout import StoreLayout, log_file_placement
from rocketstore.storage.lock import StoreLock
from rocketstore.storage.mapped_file_queue import MappedFileQueue
from rocketstore.storage.preallocate import Preallocator
from rocketstore.storage.queue_table import ConsumeQueueTable
from rocketstore.storage.recovery import RecoveryParts, RecoveryReport, recover
from rocketstore.storage.retention import Retention, StorePlaces
from rocketstore.storage.running_flags import RunningFlags
from rocketstore.storage.warm_up import WarmUp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from rocketstore.config import RecoveryPolicy, StoreConfig
    from rocketstore.storage.disk import Disk
    from rocketstore.storage.mapped_file_queue import FileProblem

_LOOKED_AT_QUEUES = 16
"""Queues whose files are looked at to learn the size of a queue file."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class StoreParts:
    """What an open store consists of."""

    layout: StoreLayout
    config: StoreConfig
    sizes: StoreSizes
    disk: Disk
    clock: Callable[[], int]
    lock: StoreLock
    log: CommitLog
    preallocator: Preallocator
    queues: ConsumeQueueTable
    index: IndexService
    checkpoint: StoreCheckpoint
    dispatcher: Dispatcher
    retention: Retention
    flags: RunningFlags
    problems: list[FileProblem]
    recovery: RecoveryReport

    def drop(self) -> None:
        """Let go of files and lock."""
        self.preallocator.close()
        self.log.files.drop()
        self.queues.drop()
        self.index.drop()
        self.lock.release()


def open_parts(
    layout: StoreLayout,
    config: StoreConfig,
    *,
    disk: Disk,
    clock: Callable[[], int],
    policy: RecoveryPolicy | None = None,
) -> StoreParts:
    """Lock, load and recover the store; make it where there is none.

    Raises
    ------
    StoreLockedError
        It is being written to.
    ConfigError
        A size that is set differs from the files.
    StoreDamagedError, NotAStoreError, StoreFullError
        It cannot be opened as it is.
    """
    try:
        disk.make_directory(layout.root)
    except OSError as error:
        raise StoreError(f"cannot make {layout.root}: {error.strerror}") from error
    lock = StoreLock.acquire(layout.lock)
    preallocator = None
    try:
        sizes = resolve_sizes(config, observed_sizes(layout, config))
        retention_holder: list[Retention] = []
        place = log_file_placement(
            layout,
            sizes.commit_log_file_bytes,
            lambda: retention_holder[0].full_directories if retention_holder else (),
        )
        preallocator = _preallocator(config, sizes, place, disk)
        parts = _load(layout, config, sizes, lock, preallocator, place, disk, clock, policy)
        retention_holder.append(parts.retention)
    except BaseException:
        if preallocator is not None:
            preallocator.close()
        lock.release()
        raise
    return parts


def _preallocator(
    config: StoreConfig, sizes: StoreSizes, place: Callable[[int], Path], disk: Disk
) -> Preallocator:
    warm_up = None
    if config.warm_mapped_file_enable:
        warm_up = WarmUp(
            flush_every_pages=config.flush_least_pages_when_warm_mapped_file,
            flush=config.is_sync_flush,
        )
    return Preallocator(place, sizes.commit_log_file_bytes, disk=disk, warm_up=warm_up)


def _load(  # noqa: PLR0913, PLR0917 - everything a store is made of
    layout: StoreLayout,
    config: StoreConfig,
    sizes: StoreSizes,
    lock: StoreLock,
    preallocator: Preallocator,
    place: Callable[[int], Path],
    disk: Disk,
    clock: Callable[[], int],
    policy: RecoveryPolicy | None,
) -> StoreParts:
    clean = not layout.abort.exists()
    files = MappedFileQueue(
        layout.commit_log_directories,
        sizes.commit_log_file_bytes,
        disk=disk,
        read_only_directories=layout.read_only_directories,
        place=place,
    )
    problems = files.load()
    queues = ConsumeQueueTable(
        layout.consume_queue,
        sizes.consume_queue_file_bytes,
        disk=disk,
        log_min_offset=lambda: files.min_offset,
    )
    problems += queues.load()
    checkpoint = StoreCheckpoint(layout.checkpoint, disk=disk)
    index = IndexService(
        layout.index,
        IndexLayout(sizes.hash_slot_count, sizes.index_item_count),
        disk=disk,
        clock=clock,
        enabled=config.message_index_enable,
    )
    for problem in [*problems, *index.load()]:
        _log.warning("file.problem", problem=str(problem))
    log = CommitLog(
        files,
        preallocator=preallocator,
        clock=clock,
        store_host=encode_host(config.store_host),
        sync_flush=config.is_sync_flush,
    )
    dispatcher = Dispatcher(
        files,
        queues,
        index,
        readable_limit=lambda: log.readable_limit,
        delays_ms=parse_delay_levels(config.message_delay_level),
        multi_dispatch=config.enable_multi_dispatch,
        lmq=config.enable_lmq,
    )
    report = recover(
        RecoveryParts(
            layout=layout,
            config=config,
            log=files,
            queues=queues,
            index=index,
            dispatcher=dispatcher,
            checkpoint=checkpoint.times,
            disk=disk,
        ),
        clean=clean,
        now_ms=clock(),
        policy=policy,
    )
    if not clean:
        _sync_recovered(files, report)
    log.seed(report.queue_offsets, last_store_timestamp_ms=report.last_store_timestamp_ms)
    flags = RunningFlags()
    retention = Retention(
        files,
        queues,
        index,
        config=config,
        places=StorePlaces(layout.commit_log_directories, layout.consume_queue),
        used_ratio=disk.used_ratio,
        flags=flags,
        dispatched_offset=lambda: min(dispatcher.dispatched_offset, log.flushed_offset),
        clock=clock,
    )
    _mark_in_use(layout.abort, disk)
    return StoreParts(
        layout=layout, config=config, sizes=sizes, disk=disk, clock=clock, lock=lock, log=log,
        preallocator=preallocator, queues=queues, index=index, checkpoint=checkpoint,
        dispatcher=dispatcher, retention=retention, flags=flags, problems=problems,
        recovery=report,
    )  # fmt: skip


def _sync_recovered(files: MappedFileQueue, report: RecoveryReport) -> None:
    """Make durable what the last writer left in the page cache before anybody reads it (K-D2)."""
    for file in files.files:
        if file.base + file.size > report.start and file.base < report.end and file.writable:
            file.sync()


def _mark_in_use(abort: Path, disk: Disk) -> None:
    """Make ``abort``, which only an orderly end deletes (spec F12)."""
    if not abort.exists():
        os.close(disk.create_file(abort))
    disk.fsync_directory(abort.parent)


# --- sizes --------------------------------------------------------------------------------------


def observed_sizes(layout: StoreLayout, config: StoreConfig) -> ObservedSizes:
    """Return a file of the commonest length of each family that the store has."""
    directories = (*layout.commit_log_directories, *layout.read_only_directories)
    return ObservedSizes(
        commit_log=_commonest(file for path in directories for file in _offset_files(path)),
        consume_queue=_commonest(_some_queue_files(layout.consume_queue)),
        consume_queue_ext=_commonest(_some_queue_files(layout.consume_queue_ext))
        if config.enable_consume_queue_ext
        else None,
        index_file=_commonest(
            path for path in _entries(layout.index) if is_index_file_name(path.name)
        ),
    )


def _commonest(paths: Iterable[Path]) -> FileObservation | None:
    """Return a file of the length that most have; a crash may have left one short or empty."""
    sizes = {path: path.stat().st_size for path in paths}
    counted = Counter(size for size in sizes.values() if size)
    if not counted:
        return None
    size = max(counted, key=lambda size: (counted[size], size))
    return FileObservation(next(path for path, found in sizes.items() if found == size), size)


def _some_queue_files(directory: Path) -> Iterator[Path]:
    """Yield the files of a few queues."""
    seen = 0
    for topic in _entries(directory):
        for queue in _entries(topic):
            files = _offset_files(queue)
            yield from files
            seen += bool(files)
            if seen >= _LOOKED_AT_QUEUES:
                return


def _offset_files(directory: Path) -> list[Path]:
    return [path for path in _entries(directory) if parse_file_name(path.name) is not None]


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
