"""Open a store for writing: its parts in the order in which each may trust the one before.

Lock, then sizes, log, queues, checkpoint and index as they are on disk; then recovery, which makes
them agree; then the parts that write them. Nothing is read before the lock is held, and
``abort`` is there before the first byte of a put can be.

Law: an open that fails leaves no lock, no thread and no descriptor behind.

How derived: DefaultMessageStore.load and start of 4.9 (spec B1). The marker ``abort`` is made
before the services start, not after, so that no crash in between looks like an orderly end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from rocketstore.at_once import at_once
from rocketstore.config import RecoveryPolicy, StoreConfig, resolve_sizes
from rocketstore.config.files import LOOKED_AT_QUEUES, ObservedSizes, commonest, usual_log_file
from rocketstore.errors import ConfigError, NotAStoreError, StoreError
from rocketstore.events import get_logger
from rocketstore.format.host import encode_host
from rocketstore.format.index_file import IndexLayout
from rocketstore.format.known_ends import OF_NO_LOG
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.storage.checkpoint import (
    KnownEndsWriter,
    StoreCheckpoint,
    mark_in_use,
    read_checkpoint,
    read_known_ends,
)
from rocketstore.storage.files.ahead import Preallocator, TouchAhead, WarmUp
from rocketstore.storage.files.disk import Disk, system_errors
from rocketstore.storage.files.lock import StoreLock
from rocketstore.storage.files.log_directories import claim, refuse_foreign, refuse_part
from rocketstore.storage.files.mapped_file import MappedFile
from rocketstore.storage.files.pread_files import OpenFiles, file_lengths, made_files
from rocketstore.storage.index.pread_index import listed_index_files
from rocketstore.storage.kinds.resolution import kinds_of
from rocketstore.storage.log.commit_log import CommitLog
from rocketstore.storage.queues.pread_queue import newer_in
from rocketstore.storage.queues.queue_listing import listed_queues
from rocketstore.storage.reading.pread_log import PreadLog
from rocketstore.storage.recovery.evidence import Evidence
from rocketstore.storage.recovery.recover import LoadedStore, recover
from rocketstore.storage.recovery.replacement import finish_interrupted
from rocketstore.storage.retention import Retention
from rocketstore.storage.running_flags import RunningFlags

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from rocketstore.storage.layout import StoreLayout
    from rocketstore.storage.queues.topic_kinds import TopicKind, TopicKinds
    from rocketstore.storage.transient_pool import Committer, TransientStorePool

_log: Final = get_logger(__name__)

LONGEST_ROOT: Final = 3840
"""Bytes of a path: 4,095 less what a queue's file, or its copy of a repair, has below the root."""


class StoreParts(LoadedStore):
    """What an open store consists of, locked, loaded, recovered; `to_drop` lets go of all of it."""

    def __init__(  # noqa: PLR0913 - by name, most with what a store is made of
        self, layout: StoreLayout, config: StoreConfig, *, disk: Disk, clock: Callable[[], int],
        to_drop: ExitStack, policy: RecoveryPolicy | None = None, keeps_memory: bool = False,
        kinds: Iterable[Callable[[], TopicKind]] = (),
    ) -> None:  # fmt: skip
        self.layout, self.disk, self.clock = layout, disk, clock
        self.flags = RunningFlags()
        if (size := len(os.fsencode(layout.root))) > LONGEST_ROOT:
            raise ConfigError(
                f"the path of the store has {size:,} bytes: the files of its queues may have none, "
                f"as a path ends at 4,095 ({layout.root!s:.60}…)",
                hint=f"choose one of at most {LONGEST_ROOT:,} bytes",
            )
        with system_errors(f"cannot make {layout.root}"):
            if layout.root.is_file():
                raise NotAStoreError(
                    f"{layout.root} is a file", hint="name a directory, or a new one"
                )
            refuse_part(layout)
            disk.hold()
            disk.make_directory(layout.root)
        self.lock, self._to_drop = StoreLock(layout.lock, layout.written_directories), to_drop
        to_drop.callback(self.lock.release)  # before it is held, as an interrupt may come
        self.lock.acquire()
        with system_errors(f"cannot open the store {layout.root}"):
            refuse_foreign(layout, takes_over=True)
            finish_interrupted(layout.root)  # where names cannot be exchanged, one may be missing
            PreadLog(layout, OpenFiles()).refuse_absent(writes=True)
            self.sizes = resolve_sizes(config, observed_sizes(layout, config))
            for part in newer_in(layout):
                raise StoreError(f"{layout.root}/{part.file}: {part.reason}", hint=part.action)
            self.config = self.sizes.fill_in(config)
            self.kinds = self._find_kinds(kinds, keeps_memory=keeps_memory)
            self.was_clean = not layout.abort.exists()
            super().__init__(
                layout, self.sizes, self.config, disk=disk, clock=clock, kinds=self.kinds,
                drop_later=to_drop.callback, after_crash=not self.was_clean,
            )  # fmt: skip
            for problem in self.problems:
                _log.warning("file.problem", problem=str(problem), hint="rocketstore store verify")
            self._make_log()
            self._recover(policy)
            self._make_writable()

    def drop(self) -> None:
        """Release the loaded files and the lock, even if one of them fails."""
        self._to_drop.close()
        self.lock.release()  # again, if an interrupt came into that

    def readable_limit(self) -> int:
        """Return the physical offset before which records may be dispatched, and read."""
        return self.log.readable_limit

    def newest_time_ms(self) -> int:
        """Return the time now, or the newest store time where that is later."""
        return max(self.clock(), self.log.last_store_timestamp_ms)

    def _make_log(self) -> None:
        """Make the parts that append to the log's files, prepare the next and delete old ones."""
        config, layout, disk, files = self.config, self.layout, self.disk, self.log_files
        self.retention = Retention(
            files, self.queues, self.index, config=config, layout=layout,
            used_ratio=disk.used_ratio, flags=self.flags, clock=self.clock,
            dispatched_offset=lambda: min(
                self.dispatcher.dispatched_offset, self.log.flushed_offset
            ),
        )  # fmt: skip
        file_size, warm_up = self.sizes.commit_log_file_bytes, None
        if config.warm_mapped_file_enable:
            warm_up = WarmUp(
                flush_every_pages=config.flush_least_pages_when_warm_mapped_file,
                flush=config.is_sync_flush,
            )
        self.pool: TransientStorePool | None = None
        if config.has_transient_pool:
            from rocketstore.storage.transient_pool import TransientStorePool  # noqa: PLC0415

            self.pool = TransientStorePool(
                config.transient_store_pool_size, file_size, lock=config.transient_store_pool_lock,
                fails_fast=config.fast_fail_if_no_buffer_in_store_pool,
            )  # fmt: skip
        self.preallocator = Preallocator(
            lambda base: layout.directories_for(base // file_size, self.retention.full_directories),
            file_size, disk=disk, warm_up=warm_up, on_death=self.flags.note_death,
            make_file=self._make_file,
            is_in_use=lambda base: files.find(base) is not None,
        )  # fmt: skip
        # With SYNC_FLUSH the thread that syncs touches pages; a warmed file has none to touch.
        touches = warm_up is None and not config.is_sync_flush
        self.touch_ahead = TouchAhead(self.flags.note_death) if touches else None
        self.log = CommitLog(
            files, preallocator=self.preallocator, clock=self.clock,
            store_host=encode_host(config.store_host), sync_flush=config.is_sync_flush,
            touch_ahead=self.touch_ahead, has_buffers=self.pool is not None, kinds=self.kinds,
        )  # fmt: skip
        self._to_drop.callback(self.log.drop)
        self._to_drop.callback(self.preallocator.close)

    def _make_file(self, path: Path, **more: Any) -> MappedFile:
        file = self.pool.make_file(path, **more) if self.pool else MappedFile.create(path, **more)
        self.lock.hold(path)
        return file

    def _find_kinds(
        self, more: Iterable[Callable[[], TopicKind]], *, keeps_memory: bool
    ) -> TopicKinds:
        """Find the kinds of topics; set aside all queues of a topic that has both kinds.

        The plain ones were made by a broker of 4.9, which knows no kinds, or by a slave before a
        record showed it the kind. The right ones are built from the log.
        """
        kinds = kinds_of(
            self.layout, self.config, self.sizes, disk=self.disk, clock=self.clock,
            keeps_memory=keeps_memory, more=more, learns=True,
        ).read(self.layout)  # fmt: skip
        now_ms = self.clock()
        if not isinstance(now_ms, int):
            raise ConfigError(
                f"clock returns whole milliseconds, not {now_ms!r:.40}",
                hint="give for example lambda: int(time.time() * 1000)",
            )
        layout, evidence = self.layout, Evidence(self.layout, self.disk, now_ms)
        batch = kinds.of("batch")
        queues = listed_queues(layout.consume_queue) if batch else []
        for topic in batch.intersection(key.topic for key in queues):
            _log.warning("queue.kind", topic=topic, next="its batch queues are built again")
            evidence.take_tree(layout.batch_consume_queue / topic)
            evidence.take_tree(layout.consume_queue / topic)
        return kinds

    def _recover(self, policy: RecoveryPolicy | None) -> None:
        """Make the files agree, and make durable what the last writer left."""
        report = self.recovery = recover(
            self, clean=self.was_clean, now_ms=self.clock(), policy=policy,
            checkpoint=read_checkpoint(self.layout.checkpoint),
            known_ends=read_known_ends(self.layout.root, OF_NO_LOG),
        )  # fmt: skip
        if not self.was_clean:
            for file in self.log.files.files:
                # The bytes that recovery read may or may not be on the disk.
                is_read = file.base + file.size > report.start and file.base < report.end
                if is_read and file.writable and self.config.is_sync_flush:
                    file.sync()  # before a reader sees it (K-D2)
                elif is_read and file.writable:
                    # The first flush covers it: readers of an ASYNC_FLUSH store see messages that
                    # are not on the disk anyway, and the checkpoint passes them when they are. A
                    # sync of a gigabyte here would double the time to open.
                    file.flushed_position = max(report.start - file.base, 0)
            # Names that the last writer may have made and not synced before it died; those of queue
            # files are synced with their entries.
            layout = self.layout
            topics = [layout.consume_queue / topic for topic in self.queues.topics()]
            own = (layout.root, layout.index, layout.consume_queue)
            directories = (*own, *layout.commit_log_directories, *topics)
            at_once(self.disk.fsync_directory, [one for one in directories if one.is_dir()])
        # A put to a memory topic must not use the counter of a queue on the disk, which is hidden.
        offsets, in_memory = report.queue_offsets, self.kinds.is_in_memory
        given = {key: one for key, one in offsets.items() if not in_memory(key.topic)}
        self.log.seed(given, last_store_timestamp_ms=report.last_store_timestamp_ms)

    def _make_writable(self) -> None:
        """Make the parts of a writer, and mark the store as being written."""
        # Read after recovery, which may have removed it.
        self.checkpoint = StoreCheckpoint(self.layout.checkpoint, disk=self.disk)
        self.committer: Committer | None = None
        if self.pool is not None:
            from rocketstore.storage.transient_pool import Committer  # noqa: PLC0415

            self.committer = Committer(
                self.log, self.pool, config=self.config, flags=self.flags, clock=self.clock,
                wake_flush=self.log.put_group.ask,
            )  # fmt: skip
        # As 4.9 does, so that a store without a message is one all the same.
        for directory in self.layout.commit_log_directories:
            self.disk.make_directory(directory)
        self.lock.extend(self.layout.written_directories)
        self._to_drop.callback(self.disk.hold)
        self.disk.hold(self.layout.root, *self.layout.commit_log_directories)
        claim(self.layout, self.disk)
        self.known_ends = KnownEndsWriter(
            self.layout.root, self.log_files, self.queues, self.index, disk=self.disk,
            dispatched_offset=lambda: self.dispatcher.dispatched_offset,
        )  # fmt: skip
        self.known_ends.write(self.known_ends.take())
        mark_in_use(self.layout.abort, self.disk)


def open_parts(
    layout: StoreLayout, config: StoreConfig, *, to_drop: ExitStack, **more: Any
) -> StoreParts:
    """Make the parts of a store; again, if recovery learnt the kind of a topic with plain queues.

    The table has the kind by now, so the second time those queues are set aside.
    """
    parts = StoreParts(layout, config, to_drop=to_drop, **more)
    if parts.kinds.of("batch").intersection(parts.queues.topics()):
        to_drop.close()
        parts = StoreParts(layout, config, to_drop=to_drop, **more)
    return parts


def observed_sizes(layout: StoreLayout, config: StoreConfig) -> ObservedSizes:
    """Return a file of the commonest length of each family that the store has."""
    root, slots, items = layout.consume_queue, config.max_hash_slot_num, config.max_index_num
    queues = (file_lengths([root / str(key)]) for key in listed_queues(root))
    log, some = file_lengths(layout.log_directories), islice(filter(None, queues), LOOKED_AT_QUEUES)
    lengths = made_files(chain.from_iterable(some), config.mapped_file_size_consume_queue)
    index_size = None if slots is None or items is None else IndexLayout(slots, items).size_bytes
    return ObservedSizes(
        usual_log_file(made_files(log, config.mapped_file_size_commit_log)),
        commonest(lengths, ENTRY_SIZE_BYTES),
        commonest(made_files(listed_index_files(layout.index, []).items(), index_size)),
    )
