"""Open a store for writing: its parts in the order in which each may trust the one before.

Lock, then sizes, log, queues, checkpoint and index as they lie on disk; then recovery, which brings
them into agreement; then what lets them be written. Nothing is read before the lock is held, and
``abort`` is there before the first byte of a put can be.

Law: an open that fails leaves no lock, no thread and no descriptor behind.

How derived: DefaultMessageStore.load and start of 4.9 (spec B1). The marker ``abort`` is made
before the services start, not after, so that no crash in between looks like an orderly end.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocketstore.config import (
    FileObservation,
    ObservedSizes,
    StoreSizes,
    commonest,
    parse_delay_levels,
    resolve_sizes,
)
from rocketstore.errors import NotAStoreError
from rocketstore.events import get_logger
from rocketstore.format.file_name import parse_file_name
from rocketstore.format.host import encode_host
from rocketstore.format.index_file import IndexLayout, is_index_file_name
from rocketstore.storage.checkpoint import StoreCheckpoint, mark_in_use, read_checkpoint
from rocketstore.storage.dispatch.dispatcher import Dispatcher
from rocketstore.storage.files.lock import StoreLock
from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
from rocketstore.storage.files.preallocate import Preallocator
from rocketstore.storage.files.touch_ahead import TouchAhead
from rocketstore.storage.files.warm_up import WarmUp
from rocketstore.storage.files.written import holds_data
from rocketstore.storage.index.index_service import IndexProblem, IndexService
from rocketstore.storage.known_ends import KnownEndsWriter, read_known_ends
from rocketstore.storage.layout import StoreLayout, log_file_placement
from rocketstore.storage.log.commit_log import CommitLog
from rocketstore.storage.queues.queue_table import ConsumeQueueTable
from rocketstore.storage.recovery.recover import RecoveryParts, RecoveryReport, recover
from rocketstore.storage.retention import Retention, StorePlaces
from rocketstore.storage.running_flags import RunningFlags
from rocketstore.storage.system_errors import system_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from rocketstore.config import RecoveryPolicy, StoreConfig
    from rocketstore.storage.files.disk import Disk
    from rocketstore.storage.files.mapped_file import MappedFile
    from rocketstore.storage.files.mapped_file_queue import FileProblem

_LOOKED_AT_QUEUES = 16
"""Queues whose files are looked at to learn the size of a queue file."""

_log = get_logger(__name__)


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
    touch_ahead: TouchAhead | None
    queues: ConsumeQueueTable
    index: IndexService
    checkpoint: StoreCheckpoint
    known_ends: KnownEndsWriter
    dispatcher: Dispatcher
    retention: Retention
    flags: RunningFlags
    problems: list[FileProblem | IndexProblem]
    recovery: RecoveryReport

    def drop(self) -> None:
        """Let go of files and lock."""
        # In any case: what one of them cannot do must not keep the others, or the lock.
        with ExitStack() as parts:
            parts.callback(self.lock.release)
            for part in (self.index, self.queues, self.log):
                parts.callback(part.drop)
            parts.callback(self.preallocator.close)


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
    with system_errors(f"cannot make {layout.root}"):
        if layout.root.is_file():
            raise NotAStoreError(f"{layout.root} is a file", hint="name a directory, or a new one")
        disk.make_directory(layout.root)
    lock = StoreLock.acquire(layout.lock)
    opening = None
    try:
        with system_errors(f"cannot open the store {layout.root}"):
            sizes = resolve_sizes(config, observed_sizes(layout, config))
            opening = _Opening(layout, sizes.fill_in(config), sizes, disk, clock)
            return opening.finish(lock, policy)
    except BaseException:
        with ExitStack() as rest:
            rest.callback(lock.release)
            if opening is not None:
                rest.callback(opening.drop)
        raise


class _Opening:
    """The parts of a store that is being opened, in the order in which they come to life."""

    def __init__(
        self,
        layout: StoreLayout,
        config: StoreConfig,
        sizes: StoreSizes,
        disk: Disk,
        clock: Callable[[], int],
    ) -> None:
        self.layout = layout
        self.config = config
        self.sizes = sizes
        self.disk = disk
        self.clock = clock
        self.retention: Retention | None = None
        self._loaded: list[MappedFileQueue | ConsumeQueueTable | IndexService] = []
        # With SYNC_FLUSH the thread that syncs touches pages; a warmed file has none to touch.
        touches = not (config.is_sync_flush or config.warm_mapped_file_enable)
        self.touch_ahead = TouchAhead() if touches else None
        self.place = log_file_placement(layout, sizes.commit_log_file_bytes, self._full_directories)
        self.preallocator = Preallocator(
            self.place, sizes.commit_log_file_bytes, disk=disk, warm_up=self._warm_up()
        )

    def drop(self) -> None:
        """Let go of the files that were loaded before something failed."""
        with ExitStack() as parts:
            for part in self._loaded:
                parts.callback(part.drop)
            parts.callback(self.preallocator.close)

    def _full_directories(self) -> frozenset[Path]:
        return frozenset() if self.retention is None else self.retention.full_directories

    def _warm_up(self) -> WarmUp | None:
        config = self.config
        if not config.warm_mapped_file_enable:
            return None
        return WarmUp(
            flush_every_pages=config.flush_least_pages_when_warm_mapped_file,
            flush=config.is_sync_flush,
        )

    def finish(self, lock: StoreLock, policy: RecoveryPolicy | None) -> StoreParts:
        """Load, recover, and mark the store as being written."""
        was_clean = not self.layout.abort.exists()
        files, queues, problems = self._load_files(after_crash=not was_clean)
        index, index_problems = self._load_index()
        for problem in [*problems, *index_problems]:
            _log.warning("file.problem", problem=str(problem))
        log = CommitLog(
            files,
            preallocator=self.preallocator,
            clock=self.clock,
            store_host=encode_host(self.config.store_host),
            sync_flush=self.config.is_sync_flush,
            touch_ahead=self.touch_ahead,
        )
        dispatcher = self._dispatcher(log, queues, index)
        report = recover(
            RecoveryParts(
                layout=self.layout, config=self.config, log=files, queues=queues, index=index,
                dispatcher=dispatcher, checkpoint=read_checkpoint(self.layout.checkpoint),
                disk=self.disk, known_ends=read_known_ends(self.layout.root),
            ),
            clean=was_clean,
            now_ms=self.clock(),
            policy=policy,
        )  # fmt: skip
        if not was_clean:
            if self.config.is_sync_flush:
                _sync_recovered(files, report)
            else:
                _leave_to_flush(files, report)
            _sync_names(self.layout, queues, self.disk)
        # Read after recovery, which may have withdrawn it.
        checkpoint = StoreCheckpoint(self.layout.checkpoint, disk=self.disk)
        log.seed(report.queue_offsets, last_store_timestamp_ms=report.last_store_timestamp_ms)
        flags = RunningFlags()
        self.retention = Retention(
            files,
            queues,
            index,
            config=self.config,
            places=StorePlaces(self.layout.commit_log_directories, self.layout.consume_queue),
            used_ratio=self.disk.used_ratio,
            flags=flags,
            dispatched_offset=lambda: min(dispatcher.dispatched_offset, log.flushed_offset),
            clock=self.clock,
        )
        # As 4.9 does, so that a store without a message is one all the same.
        for directory in self.layout.commit_log_directories:
            self.disk.make_directory(directory)
        known_ends = self._remember(queues, index, dispatcher)
        mark_in_use(self.layout.abort, self.disk)
        return StoreParts(
            layout=self.layout, config=self.config, sizes=self.sizes, disk=self.disk,
            clock=self.clock, lock=lock, log=log, preallocator=self.preallocator,
            touch_ahead=self.touch_ahead, queues=queues, index=index, checkpoint=checkpoint,
            known_ends=known_ends, dispatcher=dispatcher, retention=self.retention, flags=flags,
            problems=[*problems, *index_problems], recovery=report,
        )  # fmt: skip

    def _remember(
        self, queues: ConsumeQueueTable, index: IndexService, dispatcher: Dispatcher
    ) -> KnownEndsWriter:
        """Write down how far everything is now that it is recovered."""
        known_ends = KnownEndsWriter(
            self.layout.root,
            queues,
            index,
            dispatched_offset=lambda: dispatcher.dispatched_offset,
            disk=self.disk,
        )
        known_ends.write(known_ends.take())
        return known_ends

    def _load_files(
        self, *, after_crash: bool
    ) -> tuple[MappedFileQueue, ConsumeQueueTable, list[FileProblem]]:
        files = MappedFileQueue(
            self.layout.commit_log_directories,
            self.sizes.commit_log_file_bytes,
            disk=self.disk,
            read_only_directories=self.layout.read_only_directories,
            place=self.place,
        )
        self._loaded.append(files)
        problems = files.load()
        queues = ConsumeQueueTable(
            self.layout.consume_queue,
            self.sizes.consume_queue_file_bytes,
            disk=self.disk,
            log_min_offset=lambda: files.min_offset,
        )
        self._loaded.append(queues)
        return files, queues, problems + queues.load(after_crash=after_crash)

    def _load_index(self) -> tuple[IndexService, list[IndexProblem]]:
        index = IndexService(
            self.layout.index,
            self.sizes.index_layout,
            disk=self.disk,
            clock=self.clock,
            enabled=self.config.message_index_enable,
        )
        self._loaded.append(index)
        return index, index.load()

    def _dispatcher(
        self, log: CommitLog, queues: ConsumeQueueTable, index: IndexService
    ) -> Dispatcher:
        return Dispatcher(
            log.files,
            queues,
            index,
            readable_limit=lambda: log.readable_limit,
            delays_ms=parse_delay_levels(self.config.message_delay_level),
            multi_dispatch=self.config.enable_multi_dispatch,
            lmq=self.config.enable_lmq,
        )


def _sync_recovered(files: MappedFileQueue, report: RecoveryReport) -> None:
    """Make durable what the last writer left in the page cache before anybody reads it (K-D2)."""
    for file in _recovered_files(files, report):
        file.sync()


def _leave_to_flush(files: MappedFileQueue, report: RecoveryReport) -> None:
    """Let the first flush cover what the last writer left in the page cache.

    Readers of an ASYNC_FLUSH store see messages that are not on the disk anyway; the checkpoint
    passes them when they are. A sync of a gigabyte here would double the time to open.
    """
    for file in _recovered_files(files, report):
        file.flushed_position = max(report.start - file.base, 0)


def _recovered_files(files: MappedFileQueue, report: RecoveryReport) -> list[MappedFile]:
    """Return the files whose records recovery read, of which nobody knows what is on the disk."""
    return [
        file
        for file in files.files
        if file.base + file.size > report.start and file.base < report.end and file.writable
    ]


def _sync_names(layout: StoreLayout, queues: ConsumeQueueTable, disk: Disk) -> None:
    """Make names durable that the last writer may have made and not synced before it died.

    Those of queue files are synced with their entries.
    """
    topics = [layout.consume_queue / topic for topic in queues.topics()]
    own = (layout.root, layout.index, layout.consume_queue)
    for directory in (*own, *layout.commit_log_directories, *topics):
        if directory.is_dir():
            disk.fsync_directory(directory)


# --- sizes --------------------------------------------------------------------------------------


def observed_sizes(layout: StoreLayout, config: StoreConfig) -> ObservedSizes:
    """Return a file of the commonest length of each family that the store has."""
    directories = (*layout.commit_log_directories, *layout.read_only_directories)
    slots, items = config.max_hash_slot_num, config.max_index_num
    return ObservedSizes(
        commit_log=_commonest(
            (file for path in directories for file in _offset_files(path)),
            config.mapped_file_size_commit_log,
        ),
        consume_queue=_commonest(
            _some_queue_files(layout.consume_queue), config.mapped_file_size_consume_queue
        ),
        index_file=_commonest(
            (p for p in _entries(layout.index) if is_index_file_name(p.name) and p.is_file()),
            None if slots is None or items is None else IndexLayout(slots, items).size_bytes,
        ),
    )


def _commonest(paths: Iterable[Path], wanted: int | None) -> FileObservation | None:
    """Return a file of the commonest length, leaving out what tells nothing.

    A file of zeros that is shorter than what is set was being made when the power went.
    """
    lengths = ((path, path.stat().st_size) for path in paths)
    return commonest(
        (path, size) for path, size in lengths if size >= (wanted or 0) or holds_data(path)
    )


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
    return [
        path
        for path in _entries(directory)
        if parse_file_name(path.name) is not None and path.is_file()
    ]


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
