"""Where a file holds bytes that are not zero; holes are passed over without reading."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PIECE_BYTES: Final = MiB
_ZEROS: Final = bytes(PIECE_BYTES)


def has_data(descriptor: int, start: int, stop: int) -> bool:
    """Whether a byte of a range is not zero."""
    return any(True for _ in _nonzero_pieces(descriptor, start, stop))


def holds_data(path: Path) -> bool:
    """Whether a file holds any byte that is not zero."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return has_data(descriptor, 0, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def nonzero_extent(descriptor: int, start: int, stop: int) -> tuple[int, int] | None:
    """Return the first byte of a range that is not zero, and one past the last; None without."""
    first = past = None
    for position, piece in _nonzero_pieces(descriptor, start, stop):
        if first is None:
            first = position + len(piece) - len(piece.lstrip(b"\0"))
        past = position + len(piece.rstrip(b"\0"))
    return None if first is None or past is None else (first, past)


def _nonzero_pieces(descriptor: int, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    for begin, end in data_extents(descriptor, start, stop):
        position = begin
        while position < end:
            piece = os.pread(descriptor, min(PIECE_BYTES, end - position), position)
            if not piece:
                return
            if piece != _ZEROS[: len(piece)]:  # one memcmp, where counting would take tenfold
                yield position, piece
            position += len(piece)


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


def data_stop(descriptor: int, size: int) -> int:
    """Return the position from which on the file system knows that a file has only zeros."""
    return max((stop for _, stop in data_extents(descriptor, 0, size)), default=0)
