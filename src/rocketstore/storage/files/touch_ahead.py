"""Fault in the pages that a fast writer is about to fill, in a separate thread.

The first write to a page of a mapping costs a page fault: half a microsecond, and twenty times that
where the machine has to fetch the memory from its host. A put of 4 KiB pays one each time. While a
writer gets through a window of the file in less than a second, this thread touches the windows in
front of it; a slow writer is left alone, because touched pages are dirty and are written to the
disk once more. The thread may wait 5 ms for the interpreter's lock before it begins, so a writer
that needs no more than that for a window is given a longer lead.

A writer that syncs every put gains from just that. The first sync of a page of a new file has to
write down that its block is used now, a second write after the first; where many pages are touched,
and so written, along with one sync, the next ones are spared it. The thread that syncs does it.

Law: only pages after the end of the log are touched, and nothing in them changes. What cannot be
touched is left to the writer.

How derived: 4.9 has the whole file touched before its first use, or nothing (spec B7, K-M5).
`WarmUp` is the former: MappedFile.warmMappedFile, mlock and munlock, by one system call
(``MADV_POPULATE_WRITE``) instead of a loop, and a file is unlocked as soon as it is full (K-M6).
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final

from rocketstore.events import get_logger
from rocketstore.storage.files.disk import MADV_POPULATE_WRITE, libc
from rocketstore.storage.threads import Bell, ServiceThread
from rocketstore.units import OS_PAGE_SIZE_BYTES, KiB, MiB

if TYPE_CHECKING:
    from rocketstore.storage.files.mapped_file import MappedFile

WINDOW_BYTES: Final = 4 * MiB
"""The writer is looked at whenever it enters a window."""

WINDOWS_AHEAD: Final = 2
"""How many windows in front of the writer are touched."""

FAST_WINDOW_MS: Final = 1000
"""A writer that needs longer for a window is not helped."""

LONG_LEAD_WINDOWS: Final = 8
"""How many are touched in front of the fastest writers."""

LONG_LEAD_WINDOW_MS: Final = 20
"""A writer that needs longer for a window is given the usual lead."""

SYNC_AHEAD_BYTES: Final = 512 * KiB
"""How far ahead of a writer that syncs pages are written, and again when half of it is used: what a
hundred threads fill in some milliseconds. The one sync that writes it takes a little longer."""

_MADV_WILLNEED: Final = 3

_log: Final = get_logger(__name__)


def windows_ahead(filled_ms: int) -> int:
    """Return how many windows to touch in front of a writer that filled one in `filled_ms`."""
    if filled_ms >= FAST_WINDOW_MS:
        return 0
    return LONG_LEAD_WINDOWS if filled_ms < LONG_LEAD_WINDOW_MS else WINDOWS_AHEAD


class TouchAhead:
    """Touches what it was asked for last; an older request that was not begun is forgotten.

    The pages of a request that were touched for the one before it are not touched again.
    """

    def __init__(self) -> None:
        self._bell = Bell()
        self._request: tuple[MappedFile, int, int] | None = None
        self.thread = ServiceThread("rocketstore-touch", self._run, wake=self._bell.ring)

    def request(self, file: MappedFile, start: int, stop: int) -> None:
        """Ask for the pages of `file` from position `start` to `stop`."""
        self._request = (file, start, stop)
        self._bell.ring()

    def _run(self) -> None:
        touched_base, touched_stop = -1, 0
        while True:
            self._bell.wait()
            if self.thread.stopping.is_set():
                return
            request, self._request = self._request, None
            if request is None:
                continue
            file, start, stop = request
            if file.base == touched_base and start < touched_stop:
                start = touched_stop
            try:
                is_touched = touch_pages(file, start, stop)
            except Exception:  # noqa: BLE001 - the writer touches its pages itself
                _log.exception("file.not_touched", path=str(file.path))
                continue
            if is_touched:
                touched_base, touched_stop = file.base, stop


def touch_pages(file: MappedFile, start: int, stop: int) -> bool:
    """Fault in the whole pages between two positions, outside the interpreter's lock.

    False where that cannot be done.
    """
    start += -start % OS_PAGE_SIZE_BYTES
    stop = min(stop, file.backed_position)
    if stop <= start:
        return False
    array = file.array  # keeps the mapping while the system looks at it
    address = int(array.ctypes.data) + start
    return bool(libc().madvise(address, stop - start, MADV_POPULATE_WRITE) == 0)


def touch_for_syncs(file: MappedFile, touched_offset: int) -> int:
    """Have the next sync of `file` write pages that the ones after it will need.

    Takes and returns the physical offset up to which pages were touched; 0 at first.
    """
    position = file.write_position
    start = max(touched_offset - file.base, position)
    if start - position >= SYNC_AHEAD_BYTES // 2:
        return touched_offset
    stop = min(position + SYNC_AHEAD_BYTES, file.size)
    touch_pages(file, start, stop)
    return file.base + stop


class WarmUp:
    """How the pages of a new file are made present before a put needs them.

    A failure to lock memory is a log line, never an error.
    """

    def __init__(self, *, flush_every_pages: int, flush: bool, lock: bool = True) -> None:
        self._piece_bytes = flush_every_pages * OS_PAGE_SIZE_BYTES
        self._flush = flush
        self._lock = lock

    def warm(self, file: MappedFile) -> None:
        """Touch every page of `file`, flush as configured, lock it and ask for read-ahead."""
        file.reserve(file.size)
        for start in range(0, file.size, self._piece_bytes):
            stop = min(start + self._piece_bytes, file.size)
            if not touch_pages(file, start, stop):
                file.array[start:stop:OS_PAGE_SIZE_BYTES] = 0
            if self._flush:
                file.sync()
        address = int(file.array.ctypes.data)
        if self._lock and libc().mlock(address, file.size) != 0:
            _log.warning(
                "file.not_locked", path=str(file.path), errno=ctypes.get_errno(), call="mlock"
            )
        libc().madvise(address, file.size, _MADV_WILLNEED)

    def release(self, file: MappedFile) -> None:
        """Let the pages of a file that is full be swapped again."""
        if self._lock and file.is_mapped:
            libc().munlock(int(file.array.ctypes.data), file.size)
