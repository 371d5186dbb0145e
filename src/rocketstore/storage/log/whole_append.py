"""An append happens as a whole or not at all, wherever an exception ends it.

A signal handler may raise an exception between any two lines, and the program that catches it puts
again.

Law: the write position of the last file is the one end of the log, and its one store the moment in
which an append is done. What else that append changes stands in a note before its first byte is
written, as values, not as differences; the next holder of the lock brings it into agreement with
the position, as often as it takes. Bytes of an append that was not done are zero again before
anything is written after them. The compiled append does nothing while there may be a note.

Why: docs/decisions/0020-whole-or-not-at-all.md.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from rocketstore.storage.log.append_state import AppendState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from rocketstore.storage.files.mapped_file import MappedFile
    from rocketstore.storage.log.append_state import QueueCell

    QueueChanges: TypeAlias = Sequence[tuple[QueueCell, int, int]]
    """Of each queue that an append changes: its next offset and its stored bytes after it."""

    UnderWay: TypeAlias = tuple[MappedFile, int, int, int, int, QueueChanges]
    """File, position there, end, where bytes end that may have been written, store time in ms. The
    append is done when the file's write position is that end; -1 while that is not known."""


class WholeAppends(AppendState):
    """The end of a CommitLog, and the note of the append that is under way; parameters as there.

    Attributes
    ----------
    clock_steps_back
        How often the clock showed an earlier time than the last record's, which then was repeated.
    lock
        Held while something is appended.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        is_system_clock: bool,  # noqa: FBT001 - positional like its compiled twin
        crc32: Callable[[bytes], int],
        store_host: bytes,
    ) -> None:
        super().__init__(clock, is_system_clock, crc32, store_host)
        self.clock_steps_back = 0
        self.lock = threading.Lock()
        self._under_way: UnderWay | None = None

    def settle(self) -> None:
        """End an append that an exception ended; none is under way when this returns."""
        with self.lock:
            if self._busy:
                self._settle()
                self._limit = -1
                self._busy = self.locked_since_ms = 0

    # --- the lock is held -----------------------------------------------------------------------

    def _enter(self) -> int:
        """Begin an append, once the last one is settled; return its store time in ms."""
        # The compiled append does nothing until this is 0 again, which no error makes it.
        self._busy = 1
        if self._under_way is not None:
            self._settle()
        now = self._clock()
        self.locked_since_ms = now
        return self._clamped() if now < self.last_store_timestamp_ms else now

    def _clamped(self) -> int:
        """Count a clock that went back, and return the last store time once more."""
        self.clock_steps_back += 1
        return self.last_store_timestamp_ms

    def _begin(self, most_bytes: int, now_ms: int) -> None:
        """Take note that up to so many bytes behind the end will be written."""
        file, position = self._file, self._position
        self._under_way = (
            file, position, -1, min(position + most_bytes, file.size), now_ms, (),
        )  # fmt: skip

    def _commit(self, size: int, now_ms: int, queues: QueueChanges) -> None:
        """Move the end of the log behind `size` bytes that were written."""
        file, position = self._file, self._position
        end = position + size
        self._under_way = (file, position, end, end, now_ms, queues)
        file.write_position = end
        self._settle()

    def _settle(self) -> None:
        """Bring everything into agreement with the end of the file that an append went to."""
        note = self._under_way
        if note is None:
            return
        file, position, end, dirty_end, now_ms, queues = note
        if file.write_position == end:
            for cell, next_offset, stored_bytes in queues:
                cell.next_offset = next_offset
                cell.stored_bytes = stored_bytes
            self.last_store_timestamp_ms = now_ms
            self._position = end
            self.max_offset = file.base + end
        else:
            file.array[position:dirty_end] = 0
        self._under_way = None
