"""All ConsumeQueues of a store.

Law: asking for a queue never makes one (K-C5); only dispatch does, when a record needs it. Nothing
is mapped until an entry is read or written. After a failed sync no promise is made here any more
while the store is open; the next start rebuilds entries and items from the checkpoint on.

How derived: DefaultMessageStore.loadConsumeQueue, findConsumeQueue and recoverTopicQueueTable of
4.9 (spec B1, B12, B16.4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from rocketstore.at_once import at_once
from rocketstore.errors import FlushFailedError
from rocketstore.format.file_name import is_directory_name
from rocketstore.locks import Lock
from rocketstore.native.row import Int64Array, QueueColumn
from rocketstore.rules.files import FileFinding, FileProblem
from rocketstore.rules.queue_numbers import grown
from rocketstore.storage.files.mapped_file import MappedFile, sync_names
from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
from rocketstore.storage.queues.consume_queue import ConsumeQueue
from rocketstore.storage.queues.queue_listing import listed_queues
from rocketstore.storage.queues.queue_mappings import QueueMappings
from rocketstore.storage.queues.topic_kinds import TopicKinds

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.storage.files.disk import Disk
    from rocketstore.storage.queues.queue_extension import QueueExtensions
    from rocketstore.units import QueueKey


@dataclass(eq=False)
class ConsumeQueueTable:
    """The queues below one directory, which need not exist; `file_size` is a multiple of 20.

    `log_min_offset` returns the CommitLog's minimum offset, which a queue's minimum follows; for
    `writer_limit` see `QueueMappings`.

    Topics of a kind (`kinds`) have no ConsumeQueue but queues of that kind. `has_short_files`:
    promised entries may be gone, because a file was cut short; `is_flush_broken`: a sync failed;
    `make_extension` gives queues their extensions.
    """

    directory: Path
    file_size: int
    disk: Disk
    log_min_offset: Callable[[], int]
    writer_limit: int | None = None
    make_extension: QueueExtensions | None = None
    kinds: TopicKinds = field(default_factory=TopicKinds)

    def __post_init__(self) -> None:
        self.mappings = QueueMappings(writer_limit=self.writer_limit)
        self.rows = self.mappings.rows
        self.is_flush_broken = False
        self.has_short_files = False
        self.set_aside: set[QueueKey] = set()  # was a copy of another queue's directory
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self._by_row: dict[int, ConsumeQueue] = {}
        self._flushed_changes: Int64Array = np.zeros(0, np.int64)
        self._create_lock = Lock()
        self._new_names: list[MappedFile] = []  # also those that an interrupted flush has left

    def __len__(self) -> int:
        return len(self._queues)

    # --- finding --------------------------------------------------------------------------------

    def get(self, key: QueueKey) -> ConsumeQueue | None:
        """Return a queue that exists, else None."""
        return self._queues.get(key)

    def get_or_create(self, key: QueueKey) -> ConsumeQueue | None:
        """Return a queue, adding it when it is new; only for the dispatching thread.

        Nothing is made on disk before the first entry. None when the topic or the number cannot be
        the name of a directory: such a record has no queue.
        """
        queue = self._queues.get(key)
        is_name = is_directory_name(key.topic) and not self._is_of_kind(key.topic)
        if queue is None and is_name and 0 <= key.queue_id < 2**31:
            queue = self._add(key)
        return queue

    def _is_of_kind(self, topic: str) -> bool:
        """Whether a topic has queues of a special kind on the disk, and none here."""
        kind = self.kinds.get(topic)
        return kind is not None and kind.is_on_disk

    def readable(self, key: QueueKey) -> Any:
        """Return the queue that consumers read, of whichever kind, else None."""
        return self.kinds[key.topic].queue(key) if key.topic in self.kinds else self.get(key)

    def keys(self, topic: str | None = None) -> list[QueueKey]:
        """Return every queue, or every one of a topic, in order."""
        queues = self._queues.copy().items()
        wanted = ((key, it) for key, it in queues if topic in (None, key.topic))
        return sorted(key for key, it in wanted if it.given_stop or key not in self.set_aside)

    def all(self) -> list[ConsumeQueue]:
        """Return every queue, in no order."""
        return list(self._queues.values())

    def every(self) -> list[Any]:
        """Return every queue, those of kinds too: what is flushed, and follows the log.

        Extensions come first: an entry on the disk refers to a unit there.
        """
        return [*self._extensions(), *self._queues.values(), *self._special()]

    def _extensions(self) -> list[Any]:
        if self.make_extension is None:
            return []
        return [queue.extension for queue in self.all() if queue.extension is not None]

    def _special(self) -> Iterator[Any]:
        return chain.from_iterable(kind.files() for kind in self.kinds.on_disk())

    def topics(self) -> list[str]:
        """Return every topic, in order."""
        return sorted({key.topic for key in self.keys()})

    def next_offsets(self) -> dict[QueueKey, int]:
        """Return the queue offset of each queue's next message (recoverTopicQueueTable)."""
        own = {queue.key: queue.given_stop for queue in self.all()}
        special = ((kind, key) for kind in self.kinds.on_disk() for key in kind.queue_keys())
        return own | {key: kind.queue(key).max_offset for kind, key in special}

    @property
    def max_physical_offset(self) -> int:
        """End of the last record that has an entry in any queue; 0 without entries."""
        latest = self.latest()
        return 0 if latest is None else latest.max_physical_offset

    def latest(self) -> ConsumeQueue | None:
        """Return the queue that has the last record of those with an entry; None without queues."""
        return self._by_row.get(int(self.rows.queues[:, QueueColumn.MAX_PHYSICAL].argmax()))

    def _add(self, key: QueueKey) -> ConsumeQueue:
        with self._create_lock:
            row = self.rows.add(is_extended=self.make_extension is not None)
            directory = self.directory / str(key)
            files = MappedFileQueue(directory, self.file_size, disk=self.disk)
            queue = ConsumeQueue(key, files, row, self.mappings, self.log_min_offset)
            if self.make_extension is not None:
                queue.extension = self.make_extension(key, queue)
            # The kernels ask for a queue until they know its name, so that comes last.
            self._by_row[row] = queue
            self._queues[key] = queue
            self.rows.add_name(key.topic.encode(), key.queue_id, row)
        return queue

    # --- opening and closing --------------------------------------------------------------------

    def load(self, *, after_crash: bool = False) -> list[FileFinding[Path]]:
        """Load the queues on disk and find where each ends.

        Returns what was passed over or tolerated. After a crash any short file reaches its size;
        recovery writes its entries again. Raises `StoreDamagedError` where a queue file has a
        length with which no entry stays where it was.
        """
        problems: list[FileFinding[Path]] = []
        inodes: dict[int, Path] = {}
        for key in listed_queues(self.directory):
            if self._is_of_kind(key.topic):
                continue  # only a repair meets such a directory here, and leaves it alone
            queue = self._add(key)
            problems += queue.files.load(after_crash=after_crash, inodes=inodes)
            queue.find_end()
        self.has_short_files = any(
            one.problem is FileProblem.WRONG_SIZE
            # After a crash an empty last file is new: nothing promised was in it.
            or (one.problem is FileProblem.EMPTY and not after_crash)
            for one in problems
        )
        return problems

    def drop(self) -> None:
        """Let go of all files."""
        for queue in self.every():
            queue.drop()

    # --- durability -----------------------------------------------------------------------------

    def flush(self, least_pages: int = 0) -> bool:
        """Make entries durable; return whether all that were written before the call are.

        A queue that was not written since costs nothing: this is called each second. After all were
        tried, `FlushFailedError` of the first queue that failed is raised. From then on
        `is_flush_broken` is true: pages the system gave up are not written later, so nothing may
        count on them.
        """
        failures: list[FlushFailedError] = []

        def flushed(queue: Any) -> bool:
            try:
                return bool(queue.flush(least_pages, self._new_names))
            except FlushFailedError as error:
                failures.append(error)
                return False

        done = [flushed(queue) for queue in self._extensions()]
        changes = self.rows.queues[:, QueueColumn.CHANGES].copy()
        self._flushed_changes = grown(self._flushed_changes, len(changes))
        changed = np.flatnonzero(changes != self._flushed_changes[: len(changes)]).tolist()
        rows = [row for row in changed if row in self._by_row]
        whole = at_once(flushed, [self._by_row[row] for row in rows])
        flushed_rows = [row for row, is_whole in zip(rows, whole, strict=True) if is_whole]
        self._flushed_changes[flushed_rows] = changes[flushed_rows]
        done += whole
        done += [flushed(queue) for queue in self._special()]
        try:
            sync_names(self._new_names)
        except FlushFailedError as error:
            failures.append(error)
        if failures:
            self.is_flush_broken = True
            raise failures[0]
        return all(done) and not self.is_flush_broken
