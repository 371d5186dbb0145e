"""A store that this process does not own: read beside its writer, or from a read-only mount.

`ReadOnlyStore` answers everything that `Reader` answers. It takes no lock, starts no thread, maps
no file and changes no byte. The writer, ours or a Java broker, may add, roll and delete files
meanwhile; what it dispatched is seen at the next question.

Law: a reader's end is the end of the last record that stands in a queue, so that nobody sees what a
SYNC_FLUSH writer has not yet made durable. It is found from the queues' ends, without going through
the log. Only where there is no writer that could be ahead of its disk (no ``abort`` file), or no
queue to ask, the log is followed from there to the end of its records.

A broker recovers a store and then serves it instead; for that it has to own the files.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import msgspec

from rocketstore.config import (
    FileObservation,
    ObservedSizes,
    StoreConfig,
    commonest,
    resolve_sizes,
)
from rocketstore.errors import NotAStoreError, StoreClosedError, StoreReadOnlyError
from rocketstore.format.blank import END_FILE_MIN_BLANK_SIZE, encode_blank
from rocketstore.format.checkpoint import decode_checkpoint
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.native.decode import LogAtHand, is_intact_at, size_at
from rocketstore.storage.files.pread_files import OpenFiles, PreadFiles
from rocketstore.storage.index.pread_index import PreadIndex, listed_index_files
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.queues.pread_queue import PreadQueues
from rocketstore.storage.reading.pages import PageLimits
from rocketstore.storage.reading.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from rocketstore.format.checkpoint import Checkpoint
    from rocketstore.format.index_file import IndexHeader, IndexLayout
    from rocketstore.format.queue_entry import QueueEntry
    from rocketstore.storage.files.pread_files import LogFile
    from rocketstore.units import ByteRange
    from rocketstore.verification.file_rules import FileFinding

_QUEUES_LOOKED_AT: Final = 64
"""Queues whose files are looked at to learn the size of a queue file."""

POLL_INTERVAL_S: Final = 0.02
"""How often `ReadOnlyStore.wait_for` looks, because no writer tells a reader of another process."""


_READ_AHEAD_BYTES: Final = 4096
"""Least that is read of the log at once: short records stand one after the other."""


class PreadLog:
    """The CommitLog, read with ``pread``."""

    is_mapped = False

    def __init__(
        self, files: PreadFiles, find_end: Callable[[], int], dispatched_end: Callable[[], int]
    ) -> None:
        self.parts = files
        self._find_end = find_end
        self._dispatched_end = dispatched_end
        self._end_of: tuple[list[LogFile], int] = ([], 0)

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte that is still there; 0 without files."""
        return max(0, self.parts.min_offset)

    @property
    def max_offset(self) -> int:
        """End of the last dispatched record when the present files were first seen.

        At most one file too old: near enough to tell old records from new ones.
        """
        files = self.parts.files
        if self._end_of[0] is not files:
            self._end_of = (files, self._dispatched_end())
        return self._end_of[1]

    @property
    def readable_limit(self) -> int:
        """End of the last record that a reader may see; costs a look at every queue."""
        return self._find_end()

    def window(self, offset: int, size: int) -> tuple[bytes, int, int, None] | None:
        """Return bytes of one present file from `offset` on, `size` or more; None without."""
        file = self.parts.find(offset)
        if file is None or size > file.range.stop - offset:
            return None
        read = self.parts.read(offset, max(size, _READ_AHEAD_BYTES))
        return None if read is None else (read, offset, len(read), None)


class ReadOnlyStore(Reader):
    """Reads a store directory; see the module's head.

    Sizes set in `config` are held against the files, paths and page limits are taken from it;
    `sleep` and `monotonic` are how `wait_for` passes time.

    Raises
    ------
    NotAStoreError
        There is no CommitLog: no directory, or no file in it although queues have entries.
    ConfigError
        A size that is set differs from the files.
    """

    def __init__(
        self,
        path: str | Path,
        config: StoreConfig | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = StoreConfig() if config is None else config
        self.layout = StoreLayout.of(path, self.config)
        self._sleep, self._monotonic = sleep, monotonic
        self._end_lock = threading.Lock()
        _stores.add(self)
        self._followed_to = 0
        self._known_end = 0
        self._open_files = OpenFiles()
        directories = (*self.layout.commit_log_directories, *self.layout.read_only_directories)
        # A writer that has just begun makes its first file with its first message.
        if not self.has_abort_file and not any(path.is_dir() for path in directories):
            raise NotAStoreError(
                f"{self.layout.root} has no CommitLog: {directories[0]} is no directory",
                hint="give the directory that holds commitlog, consumequeue and index",
            )
        self._files = PreadFiles(directories, open_files=self._open_files)
        self._pread_queues = PreadQueues(
            self.layout.consume_queue,
            self._open_files,
            log_min_offset=lambda: max(0, self._files.min_offset),
            log_end_before=self._log_end_before,
        )
        self._check_files()
        self._pread_index = PreadIndex(
            self.layout.index, self._open_files, layout=self._index_layout()
        )
        log = PreadLog(self._files, self._find_end, lambda: self._dispatched_end()[0])
        limits = PageLimits.from_config(self.config, physical_memory_bytes=physical_memory_bytes())
        super().__init__(log, self._pread_queues, self._pread_index, limits)
        self.find_limit = self.config.max_msgs_num_batch

    @classmethod
    def open(cls, path: str | Path, config: StoreConfig | None = None, **options: Any) -> Self:
        """Open a store for reading; see the class."""
        return cls(path, config, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _go_on_in_child(self) -> None:
        """Get locks of its own in a forked child: a thread that had one is not there."""
        self._end_lock = threading.Lock()
        self._pread_queues.forget()

    def close(self) -> None:
        """Let go of all files; may be called twice."""
        gone: Any = Gone(StoreClosedError(f"{self.layout.root} was closed", hint="open it again"))
        self._log = self._queues = self._key_search = self._pages = gone
        self._records = LogAtHand(gone)
        self._open_files.close()

    # --- about the store ------------------------------------------------------------------------

    @property
    def is_read_only(self) -> bool:
        """True."""
        return True

    @property
    def min_physical_offset(self) -> int:
        """Physical offset of the first byte of the CommitLog."""
        return self._log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """End of the last record that a reader may see."""
        return self._log.readable_limit

    @property
    def findings(self) -> list[FileFinding[Path]]:
        """What is wrong with the files themselves: names, sizes, holes.

        Files of queues and of the index are looked at when they are first read.
        """
        queues, index = self._pread_queues, self._pread_index
        return [*self._files.findings, *queues.findings(), *index.findings]

    @property
    def log_files(self) -> list[LogFile]:
        """The files of the CommitLog, in order."""
        return self._files.files

    @property
    def holes(self) -> list[ByteRange]:
        """Ranges of the CommitLog whose files are missing or short."""
        return self._files.holes

    @property
    def has_abort_file(self) -> bool:
        """Whether a writer runs, or ended without an orderly stop."""
        return self.layout.abort.exists()

    def index_files(self) -> list[tuple[str, IndexHeader]]:
        """Return name and header of every index file, oldest first."""
        return self._pread_index.headers()

    def checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint, None where there is none."""
        try:
            return decode_checkpoint(self.layout.checkpoint.read_bytes())
        except FileNotFoundError:
            return None

    def wait_for(self, topic: str, queue_id: int, offset: int, timeout_s: float = 1.0) -> bool:
        """Wait until a queue offset can be read; False when the time is over.

        The writer is another process, so this looks again every 20 ms.
        """
        deadline = self._monotonic() + timeout_s
        while self.max_offset(topic, queue_id) <= offset:
            remaining = deadline - self._monotonic()
            if remaining <= 0:
                return False
            self._sleep(min(POLL_INTERVAL_S, remaining))
        return True

    # --- what a reader may not do ---------------------------------------------------------------

    def _refuse(self, *_arguments: object, **_options: object) -> NoReturn:
        raise StoreReadOnlyError(
            f"{self.layout.root} was opened read-only",
            hint="open it without read_only=True to write",
        )

    if not TYPE_CHECKING:  # a type checker finds these mistakes by itself
        put = put_batch = put_client_batch = put_prepared = prepare = flush = _refuse

    # --- the end --------------------------------------------------------------------------------

    def _find_end(self) -> int:
        """Return the end of the last record that a reader may see."""
        with self._end_lock:
            end, has_queues = self._dispatched_end()
            if has_queues and self.has_abort_file:
                return end
            # What was followed before is still there: a log only grows.
            end = max(end, self._followed_to)
            self._followed_to = self._follow(end)
            return self._followed_to

    def _dispatched_end(self) -> tuple[int, bool]:
        """Return the end of the last record that a queue knows, and whether there is any queue."""
        end, has_queues = max(0, self._files.min_offset), False
        log_stop: int | None = None

        def is_there(entry: QueueEntry) -> bool:
            # Behind the last file: the directory is listed again once, not for every entry.
            nonlocal log_stop
            if entry.physical_offset >= self._files.max_offset:
                if log_stop is None:
                    self._files.refresh()
                    log_stop = self._files.max_offset
                if entry.physical_offset >= log_stop:
                    return False
            return self._is_intact(entry)

        for key in self._pread_queues.keys():  # noqa: SIM118 - no dict
            queue = self._pread_queues.get(key)
            if queue is None or queue.written_end == queue.first_offset:
                continue
            has_queues = True
            stop = queue.last_record_stop(end, is_there)
            end = end if stop is None else stop
        return end, has_queues

    def _log_end_before(self, entry: QueueEntry) -> int | None:
        """Return the log's end where it lies before an entry's record; None of expired or lost."""
        if not entry.is_message or entry.physical_offset < self._files.min_offset:
            return None
        if self._is_intact(entry):
            return None
        with self._end_lock:
            end, _ = self._dispatched_end()
        return end if entry.physical_offset >= end else None

    def _is_intact(self, entry: QueueEntry) -> bool:
        return is_intact_at(self._records, entry.physical_offset, entry.record_size)

    def _is_visible(self, stop: int) -> bool:
        if stop > self._known_end:
            self._known_end = self._find_end()
        return stop <= self._known_end

    def _follow(self, start: int) -> int:
        """Return the end of the unbroken row of records and blanks that begins at `start`.

        A blank leads to the next file if there is one (CommitLog.recoverNormally).
        """
        at = start
        while True:
            size = size_at(self._records, at)
            if size > 0:
                at += size
                continue
            file = self._files.find(at)
            following = None if file is None else self._files.next_file(file.range.stop)
            if file is None or following is None or following.base != file.range.stop:
                return at
            head = self._files.slice(at, END_FILE_MIN_BLANK_SIZE)
            if head is None or head != encode_blank(file.range.stop - at):
                return at
            at = following.base

    # --- opening --------------------------------------------------------------------------------

    def _check_files(self) -> None:
        """Hold the files against what is set, and refuse a store that lost its log."""

        def observation(files: PreadFiles) -> FileObservation | None:
            found = (file for file in files.files if file.size == files.file_size)
            return next((FileObservation(file.path, file.size) for file in found), None)

        queues = [
            queue.files
            for key in self._pread_queues.keys()[:_QUEUES_LOOKED_AT]
            if (queue := self._pread_queues.get(key)) is not None
        ]
        if not self._files.files and any(files.files for files in queues):
            raise NotAStoreError(
                f"{self.layout.root} has queues but no CommitLog file",
                hint="put the CommitLog files back; their queues can be rebuilt, not the reverse",
            )
        entries = [found for files in queues if (found := observation(files))]
        index_files = listed_index_files(self.layout.index, [])
        is_set = self.config.max_hash_slot_num or self.config.max_index_num
        self._sizes = resolve_sizes(
            self.config,
            ObservedSizes(
                commit_log=observation(self._files),
                consume_queue=commonest(entries, ENTRY_SIZE_BYTES),
                index_file=commonest(index_files.items()) if is_set else None,
            ),
        )
        # Each index file tells its own layout where none is set, so none is filled in.
        self.config = msgspec.structs.replace(
            self.config,
            mapped_file_size_commit_log=self._sizes.commit_log_file_bytes,
            mapped_file_size_consume_queue=self._sizes.consume_queue_file_bytes,
        )

    def _index_layout(self) -> IndexLayout | None:
        """Return the layout that is set; where one number is, the files gave the other."""
        if not (self.config.max_hash_slot_num or self.config.max_index_num):
            return None
        return self._sizes.index_layout


class Gone:
    """Stands for a part of a store, or a method, that cannot be used any more."""

    def __init__(self, error: StoreClosedError) -> None:
        self.error = error

    def __getattr__(self, name: str) -> NoReturn:
        raise self.again()

    def __call__(self) -> NoReturn:
        """Raise the error."""
        raise self.again()

    def again(self) -> StoreClosedError:
        """Return the error, without the traceback of an earlier time."""
        return type(self.error)(self.error.message, hint=self.error.hint)


def physical_memory_bytes() -> int:
    """Return the machine's memory, from which "in memory" of a page is measured."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


_stores: Final[weakref.WeakSet[ReadOnlyStore]] = weakref.WeakSet()


def _go_on_in_child() -> None:
    for store in list(_stores):
        store._go_on_in_child()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_go_on_in_child)
