"""The CommitLog of a store that another process may be writing, and its end for a reader.

Law: a reader's end is the end of the last record that has a queue entry, so that no reader sees
what a SYNC_FLUSH writer has not yet made durable. It is found from the queues' ends, without going
through the log. Only where there is no writer that could be ahead of its disk (no ``abort`` file),
or no queue to ask, the log is followed from there to the end of its records.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketstore.errors import StoreDamagedError, StoreError, SystemRefusedError
from rocketstore.format.record import END_FILE_MIN_BLANK_SIZE, encode_blank
from rocketstore.locks import Lock
from rocketstore.native.decode import LogAtHand, message_at, size_at
from rocketstore.rules.extra_queues import may_stand_in
from rocketstore.rules.files import lost_log, no_store
from rocketstore.scan.queue_search import first_from
from rocketstore.storage.checkpoint import known_log_end
from rocketstore.storage.files.lock import may_have_writer
from rocketstore.storage.files.log_directories import refuse_absent
from rocketstore.storage.files.pread_files import LogFile, OpenFiles, PreadFiles
from rocketstore.storage.index.pread_index import PreadIndex
from rocketstore.storage.queues.batch_queues import PreadBatchQueue
from rocketstore.storage.queues.pread_queue import PreadQueue, PreadQueues
from rocketstore.units import Window

if TYPE_CHECKING:
    from rocketstore.format.queue_entry import QueueEntry
    from rocketstore.storage.layout import StoreLayout

_READ_AHEAD_BYTES: Final = 4096
"""Least that is read of the log at once: short records stand one after the other."""


def refuse_no_store(layout: StoreLayout) -> None:
    """Raise where there is no directory of a log, nor a writer, which makes it after its lock."""
    if not any(map(Path.is_dir, layout.log_directories)) and not may_have_writer(layout.lock):
        raise no_store(layout.root, layout.log_directories[0])


class PreadLog:
    """The CommitLog, read with ``pread``, and the queues, which know where it ends."""

    is_mapped = False

    def __init__(self, layout: StoreLayout, open_files: OpenFiles) -> None:
        self.files = PreadFiles(layout.log_directories, open_files=open_files)
        shared: Any = {"open_files": open_files, "log_min_offset": lambda: self.min_offset}
        open_queue = partial(
            PreadQueue, log_end_before=self._end_before, is_other=self._is_other, **shared
        )
        self.queues = PreadQueues(layout.consume_queue, open_queue)
        open_batches = partial(PreadBatchQueue, **shared)
        self.batch_queues = PreadQueues(layout.batch_consume_queue, open_batches)
        self._layout, self._abort = layout, layout.abort
        self._records = LogAtHand(self)
        self._lock = Lock()
        self._followed_to = 0
        self._end_of: tuple[list[LogFile], int] = ([], 0)

    def go_on_in_child(self) -> None:
        """Make new locks in a forked child: a thread that held one does not exist there."""
        self._lock = Lock()
        self.queues.forget()
        self.batch_queues.forget()

    def refuse_absent(self, *, writes: bool = False) -> None:
        """Raise where a directory of the log seems not to be mounted; see there.

        Also, for a process that `writes`, where all files were emptied: it would begin a new log.
        """
        layout, files, size = self._layout, self.files.files, self.files.file_size
        refuse_absent(layout, files, size, self._known_stop, writes=writes)
        if writes and not files and self.files.findings and self._known_stop():
            raise lost_log(layout.root, StoreDamagedError)

    def refuse_no_log(self) -> None:
        """Raise where there is no log, or there was one and it has no file."""
        layout = self._layout
        refuse_no_store(layout)
        self.refuse_absent()
        # Or a writer has made the first file since the log was listed, and then a queue's.
        if (
            not self.files.files
            and (any(layout.consume_queue.glob("*/*/*")) or known_log_end(layout.root))
            and not self.files.refresh()
        ):
            raise lost_log(layout.root)

    def _known_stop(self) -> int:
        stops = [known_log_end(self._layout.root)]
        for queue in filter(None, map(self.queues.get, self.queues.keys())):
            last = queue.entry(queue.written_end - 1) if queue.written_end else None
            stops.append(0 if last is None else last.physical_offset + last.record_size)
        for _, header in PreadIndex(self._layout.index, OpenFiles()).files():
            stops.append(header.end_physical_offset)
        # A writer may have made a file since.
        return 0 if self.files.refresh() else max(stops)

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte that is still there; 0 without files."""
        return max(0, self.files.min_offset)

    @property
    def max_offset(self) -> int:
        """End of the last dispatched record when the present files were first seen.

        At most one file too old: near enough to tell old records from new ones.
        """
        files = self.files.files
        if self._end_of[0] is not files:
            self._end_of = (files, self._dispatched_end(SystemRefusedError)[0])
        return self._end_of[1]

    @property
    def readable_limit(self) -> int:
        """End of the last record that a reader may see; costs a look at every queue."""
        with self._lock:
            end, has_queues = self._dispatched_end()
            if has_queues and self._abort.exists():
                return end
            # The part followed before is still there: a log only grows.
            self._followed_to = self._follow(max(end, self._followed_to))
            return self._followed_to

    def bytes_at(self, offset: int, size: int) -> Window | None:
        """Return bytes of one present file from `offset` on, `size` or more; None without."""
        file = self.files.find(offset)
        if file is None or size > file.range.stop - offset:
            return None
        read = self.files.read(offset, max(size, _READ_AHEAD_BYTES))
        return None if read is None else Window(read, offset, len(read))

    def _dispatched_end(self, *spared: type[StoreError]) -> tuple[int, bool]:
        """Return the end of the last record that a queue knows, and whether there is any queue.

        Queues that cannot be read, for an error to be `spared`, are left out.
        """
        end, has_queues = self.min_offset, False
        log_stop: int | None = None

        def is_there(entry: QueueEntry) -> bool:
            # After the last file: the directory is listed again once, not for every entry.
            nonlocal log_stop
            if entry.physical_offset >= self.files.max_offset:
                if log_stop is None:
                    self.files.refresh()
                    log_stop = self.files.max_offset
                if entry.physical_offset >= log_stop:
                    return False
            return self._is_intact(entry)

        for key in self.queues.keys():  # noqa: SIM118 - no dict
            with suppress(*spared):
                queue = self.queues.get(key)
                if queue is None or queue.written_end == queue.first_offset:
                    continue
                has_queues = True
                stop = queue.last_record_stop(end, is_there)
                end = end if stop is None else stop
        for key in self.batch_queues.keys():  # noqa: SIM118 - as above
            with suppress(*spared):
                batches = self.batch_queues.get(key)
                if batches is not None and (last := batches.at(batches.stop_place - 1)) is not None:
                    end, has_queues = max(end, last.physical_offset + last.record_size), True
        return max(end, 0), has_queues

    def _end_before(self, entry: QueueEntry) -> int | None:
        """Return the log's end if it is before an entry's record; None if expired or lost."""
        if not entry.is_message or entry.physical_offset < self.files.min_offset:
            return None
        if self._is_intact(entry):
            return None
        with self._lock:
            end, _ = self._dispatched_end(SystemRefusedError)
        return end if entry.physical_offset >= end else None

    def _is_other(self, directory: Path, entry: QueueEntry) -> bool:
        message = message_at(self._records, entry.physical_offset, 0)
        if message is None:
            return False
        queue = directory.parent.name, int(directory.name)
        return not may_stand_in(message.topic, message.queue_id, message.properties, queue)

    def _is_intact(self, entry: QueueEntry) -> bool:
        return 0 < entry.record_size == size_at(self._records, entry.physical_offset)

    def _follow(self, at: int) -> int:
        """Return the end of the unbroken row of records and blanks that begins at `at`.

        A blank leads to the next file if there is one (CommitLog.recoverNormally).
        """
        while True:
            size = size_at(self._records, at)
            if size > 0:
                at += size
                continue
            file = self.files.find(at)
            if file is None:
                return at
            stop = file.range.stop
            following = first_from(self.files.files, stop)
            head = self.files.read(at, END_FILE_MIN_BLANK_SIZE) or b""
            if following is None or following.base != stop:
                return at
            if len(head) < END_FILE_MIN_BLANK_SIZE or head != encode_blank(stop - at):
                return at
            at = stop
