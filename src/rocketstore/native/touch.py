"""Fault in the pages of a mapping that a writer is about to fill, or a reader to read.

A thread does it, without the interpreter's lock for as long as one file is written: a busy writer
gives that lock up only every few milliseconds, in which it fills more than was touched.

How derived: MappedFile.warmMappedFile of 4.9 touches a whole file before its first use (K-M5).
"""

from __future__ import annotations

from typing import Any

from rocketstore.units import OS_PAGE_SIZE_BYTES

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

if not cython.compiled:
    from rocketstore.native import view
    from rocketstore.native.group import free_lock, new_lock, open_lock, take_lock
    from rocketstore.native.view import Bytes

    def fault_in(_data: Bytes, _start: int, _stop: int) -> bool:
        """Fault pages in, False where that fails: an interpreted writer does so itself."""
        return False

    def read_in(_data: Bytes, _start: int, _stop: int) -> None:
        """Read pages of a file that are not in memory: an interpreted reader does so itself."""

    def is_resident(_data: Bytes, _start: int, _stop: int) -> bool:
        """Return whether pages are in memory; interpreted code cannot ask, and says yes."""
        return True

    _PAGES = 64


_READ = 22
"""MADV_POPULATE_READ: reads pages in and waits for them; Linux 5.14."""

MADV_POPULATE_WRITE = _ADVICE = 23
"""Faults pages in for writing, by one call instead of a loop; Linux 5.14."""

_PIECE_BYTES = 256 * 1024
"""Faulted in at once: some 50 us, in which no other thread may map a file."""

_PAGE_BYTES = OS_PAGE_SIZE_BYTES


class PagesAhead:
    """The pages of one mapping that are wanted soon."""

    def __init__(self, mapping: Any) -> None:
        self.size = len(mapping)
        self.view = mapping
        self.lock = new_lock()
        self.start = self.stop = 0
        self.is_ended = False

    def __dealloc__(self) -> None:
        free_lock(self.lock)

    def want(self, start: int, stop: int) -> None:
        """Have whole pages between two positions touched next, and none that waits for its turn."""
        self.start = max(0, start + -start % _PAGE_BYTES)
        self.stop = min(stop, self.size)
        open_lock(self.lock)

    def end(self) -> None:
        """Let `touch` return."""
        self.is_ended = True
        open_lock(self.lock)

    def touch(self) -> None:
        """Touch what is wanted, each page once, until the end; what cannot be touched is left."""
        data = view.bytes_of(self.view)
        at = 0
        with cython.nogil:
            while not self.is_ended:
                at = max(at, self.start)
                stop = min(at + _PIECE_BYTES, self.stop)
                if at >= stop:
                    take_lock(self.lock, -1)
                else:
                    at = stop if fault_in(data, at, stop) else self.stop
