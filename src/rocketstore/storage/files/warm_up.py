"""Make a new file's pages present before a put needs them.

Law: only a file that nobody writes yet is warmed, because warming writes a zero to every page; a
failure to lock memory is a log line, never an error.

How derived: MappedFile.warmMappedFile, mlock and munlock of 4.9 (spec B7). One system call
(``MADV_POPULATE_WRITE``, Linux 5.14) does what 4.9's loop over the pages does, without holding the
interpreter's lock; a file is unlocked as soon as it is full, while its mapping is known to live
(K-M6).
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Final

from rocketstore.events import get_logger
from rocketstore.storage.files.disk import MADV_POPULATE_WRITE, libc
from rocketstore.units import OS_PAGE_SIZE_BYTES

if TYPE_CHECKING:
    from rocketstore.storage.files.mapped_file import MappedFile

_MADV_WILLNEED: Final = 3
_YIELD_EVERY_PAGES: Final = 1000
"""Pages of the slow loop after which other threads get a turn (MappedFile.warmMappedFile)."""

_log: Final = get_logger(__name__)


class WarmUp:
    """How new files are warmed."""

    def __init__(self, *, flush_every_pages: int, flush: bool, lock: bool = True) -> None:
        self._piece_bytes = flush_every_pages * OS_PAGE_SIZE_BYTES
        self._flush = flush
        self._lock = lock

    def warm(self, file: MappedFile) -> None:
        """Touch every page of `file`, flush as configured, lock it and ask for read-ahead."""
        file.reserve(file.size)
        address = _address(file)
        for start in range(0, file.size, self._piece_bytes):
            size = min(self._piece_bytes, file.size - start)
            if libc().madvise(address + start, size, MADV_POPULATE_WRITE) != 0:
                _touch(file, start, start + size)
            if self._flush:
                file.sync()
        if self._lock and libc().mlock(address, file.size) != 0:
            _log.warning(
                "file.not_locked", path=str(file.path), errno=ctypes.get_errno(), call="mlock"
            )
        libc().madvise(address, file.size, _MADV_WILLNEED)

    def release(self, file: MappedFile) -> None:
        """Let the pages of a file that is full be swapped again."""
        if self._lock and file.is_mapped:
            libc().munlock(_address(file), file.size)


def _touch(file: MappedFile, start: int, stop: int) -> None:
    mapping = file.mapping
    for count, position in enumerate(range(start, stop, OS_PAGE_SIZE_BYTES), 1):
        mapping[position] = 0
        if count % _YIELD_EVERY_PAGES == 0:
            time.sleep(0)


def _address(file: MappedFile) -> int:
    return int(file.array.ctypes.data)
