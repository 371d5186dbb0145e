"""Which parts of a file hold bytes, as far as the file system knows; nothing is read."""

import errno
import os
from collections.abc import Iterator


def data_stop(descriptor: int, size: int) -> int:
    """Return the position from which on the file system knows that a file has only zeros."""
    return max((stop for _, stop in data_extents(descriptor, 0, size)), default=0)


def data_extents(descriptor: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range that the file system holds bytes for; the others are zeros."""
    position = start
    while position < stop:
        try:
            begin = os.lseek(descriptor, position, os.SEEK_DATA)
            end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: no data from here on; else: it cannot tell
                yield position, stop
            return
        if begin >= stop:
            return
        yield begin, min(end, stop)
        position = end
