"""A store that this process does not own: read beside its writer, or from a read-only mount.

`ReadOnlyStore` has all the calls of `Reader`. It takes no lock, starts no thread, maps
no file and changes no byte. The writer, ours or a Java broker, may add, roll and delete files
meanwhile; what it dispatched is seen at the next call (`storage.reading.pread_log`).

A broker recovers a store and then serves it instead; for that it has to own the files.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import msgspec

from rocketstore.arguments import checked
from rocketstore.config import StoreConfig, resolve_sizes
from rocketstore.config.files import LOOKED_AT_QUEUES, FileObservation, ObservedSizes, commonest
from rocketstore.errors import StoreError, StoreReadOnlyError, SystemRefusedError
from rocketstore.events import get_logger
from rocketstore.format.checkpoint import Checkpoint, decode_checkpoint
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.rules.files import FileFinding, FileProblem
from rocketstore.storage.checkpoint import read_known_ends
from rocketstore.storage.files.disk import read_whole
from rocketstore.storage.files.lock import may_have_writer
from rocketstore.storage.files.log_directories import refuse_dledger
from rocketstore.storage.files.pread_files import LogFile, OpenFiles, PreadFiles
from rocketstore.storage.index.pread_index import PreadIndex, listed_index_files
from rocketstore.storage.kinds.resolution import kinds_of_reader
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.queues.pread_queue import newer_in
from rocketstore.storage.reading.pread_log import PreadLog
from rocketstore.storage.reading.reader import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.format.index_file import IndexHeader
    from rocketstore.units import ByteRange, QueueKey

_log: Final = get_logger(__name__)

POLL_INTERVAL_S: Final = 0.02
"""How often `ReadOnlyStore.wait_for` looks, because a writer does not notify other processes."""


class ReadOnlyStore(Reader):
    """Reads a store directory; see the module's head.

    Sizes set in `config` are held against the files, paths and page limits are taken from it;
    `sleep` and `monotonic` are how `wait_for` passes time.

    Attributes
    ----------
    newer_parts
        Parts of the store that only a broker of 5.x supports, in words; with one the store does not
        open for writing.

    Raises
    ------
    NotAStoreError
        There is no CommitLog: no directory, or no file in it although queues have entries.
    ConfigError
        A size that is set differs from the files.
    """

    is_read_only: Final = True

    @checked
    def __init__(
        self,
        path: str | Path,
        config: StoreConfig | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        config = StoreConfig() if config is None else config
        layout = StoreLayout.of(path, config)
        self._sleep, self._monotonic = sleep, monotonic
        refuse_dledger(layout)
        self._open_files = OpenFiles()
        self._pread_log = log = PreadLog(layout, self._open_files)
        log.refuse_no_log()
        sizes = resolve_sizes(config, _observed_sizes(layout, config, log))
        # Each index file tells its own layout where none is set; where one number is, the files
        # gave the other.
        is_set = config.max_hash_slot_num or config.max_index_num
        index_layout = sizes.index_layout if is_set else None
        self._pread_index = PreadIndex(layout.index, self._open_files, layout=index_layout)
        config = msgspec.structs.replace(
            config,
            mapped_file_size_commit_log=sizes.commit_log_file_bytes,
            mapped_file_size_consume_queue=sizes.consume_queue_file_bytes,
        )
        kinds = kinds_of_reader(layout, log)
        super().__init__(layout, config, log, log.queues, self._pread_index, kinds)
        self.newer_parts = [f"{one.file}: {one.reason}" for one in newer_in(layout)]
        for part in self.newer_parts:
            _log.warning("store.newer_part", root=str(layout.root), part=part)

    @classmethod
    def open(cls, path: str | Path, config: StoreConfig | None = None, **options: Any) -> Self:
        """Open a store for reading; see the class."""
        return cls(path, config, **options)

    def _go_on_in_child(self) -> None:
        self._pread_log.go_on_in_child()

    def close(self) -> None:
        """Let go of all files; may be called twice."""
        super().close()
        self._open_files.close()

    # --- about the store ------------------------------------------------------------------------

    @property
    def max_physical_offset(self) -> int:
        """End of the last record that a reader may see."""
        return self._log.readable_limit

    @property
    def findings(self) -> list[FileFinding[Path]]:
        """Faults of the files themselves: names, sizes, holes, entries that queues have lost.

        Files of queues and of the index are looked at when they are first read.
        """
        log = self._pread_log
        queues = [
            *log.queues.findings(),
            *log.batch_queues.findings(),
            *starmap(self._lost, self.cut_short()),
        ]
        return [*log.files.findings, *queues, *self._pread_index.findings]

    def _lost(
        self, key: QueueKey, found: tuple[int, int], known: tuple[int, int]
    ) -> FileFinding[Path]:
        directory = self.layout.consume_queue / str(key)
        says = [f"entries from {first} up to {stop}" for first, stop in (known, found)]
        return FileFinding(directory, FileProblem.MISSING, *says)

    @checked
    def cut_short(
        self, topic: str | None = None
    ) -> Iterator[tuple[QueueKey, tuple[int, int], tuple[int, int]]]:
        """Yield the queues, of a topic or of all, that have lost entries at an end of theirs.

        Each with the first queue offset of its entries and the one after the last, as they are and
        as they once were.

        Their messages are in the log, and no reader sees them before the entries are made again.
        ``known-ends`` tells (decision 0021), if no process may be writing and the log is still the
        one of which it speaks.
        """
        known = None
        with contextlib.suppress(StoreError):  # to read messages it is not needed
            known = read_known_ends(self.layout.root)
        log, read = self._pread_log, self._pread_log.files.read
        is_meant = known and known.ties and known.tied_up_to(read) == known.last_tie
        if known is None or not is_meant or may_have_writer(self.layout.lock):
            return
        ended = not self.has_abort_file
        by_others = known.is_by_others(read, log.files.files, ended=ended)
        is_as_long = known.ties[0][0] == log.min_offset  # no file has expired since
        for key, ends in known.queues:
            if topic in {None, key.topic}:
                queue = log.queues.get(key)
                first, stop = (0, 0) if queue is None else (queue.first_offset, queue.written_end)
                is_short = stop < ends.next or (is_as_long and first > ends.first)
                if is_short and not known.is_deleted(ends, queue, by_others=by_others):
                    yield key, (first, stop), (ends.first, ends.next)

    @property
    def log_files(self) -> list[LogFile]:
        """The files of the CommitLog, in order."""
        return self._pread_log.files.files

    @property
    def holes(self) -> list[ByteRange]:
        """Ranges of the CommitLog whose files are missing or short."""
        return self._pread_log.files.holes

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
            return decode_checkpoint(read_whole(self.layout.checkpoint))
        except FileNotFoundError:
            return None

    @checked
    def wait_for(
        self, topic: str, queue_id: int, offset: int, timeout_s: float | None = 1.0
    ) -> bool:
        """Wait until a queue offset can be read; False when the time is over.

        The writer is another process, so this looks again every 20 ms.
        """
        deadline = self._monotonic() + (math.inf if timeout_s is None else timeout_s)
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
        put = put_batch = put_client_batch = put_prepared = put_encoded = prepare = flush = _refuse


def _observed_sizes(layout: StoreLayout, config: StoreConfig, log: PreadLog) -> ObservedSizes:
    """Return the sizes that the files show."""
    keys, queues = log.queues.keys()[:LOOKED_AT_QUEUES], list[PreadFiles]()
    for key in keys:
        with contextlib.suppress(SystemRefusedError):  # a get of another one does not need it
            queue = log.queues.get(key)
            if queue is not None and not queue.files.file_size % ENTRY_SIZE_BYTES:
                queues.append(queue.files)
    is_set = config.max_hash_slot_num or config.max_index_num
    return ObservedSizes(
        _usual_file(log.files),
        commonest(filter(None, map(_usual_file, queues))),
        commonest(listed_index_files(layout.index, []).items()) if is_set else None,
    )


def _usual_file(files: PreadFiles) -> FileObservation | None:
    usual = (file for file in files.files if file.size == files.file_size)
    return next((FileObservation(file.path, file.size) for file in usual), None)
