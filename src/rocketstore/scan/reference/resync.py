"""Find the next believable record behind damage; see ``rocketstore.scan.resync``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from rocketstore.scan.columns import StopReason
from rocketstore.scan.reference.walk import check_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

_MAGIC: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]|\xcb\xd4\x31\x94")
_LEADS: Final = (b"\xda\xa3\x20", b"\xcb\xd4\x31\x94")
_CHUNK_SIZE_BYTES: Final = 1 << 16


def _magic_places(view: memoryview, begin: int, stop: int, limit: int) -> Iterator[int]:
    """Yield where a magic number starts in ``[begin, stop)``; it ends before `limit`.

    Chunks are copied, since only bytes have the quick search that rules most chunks out.
    """
    for at in range(begin, stop, _CHUNK_SIZE_BYTES):
        chunk = bytes(view[at : min(at + _CHUNK_SIZE_BYTES, stop, limit) + 3])
        if any(lead in chunk for lead in _LEADS):
            yield from (at + found.start() for found in _MAGIC.finditer(chunk))


def resync(
    buffer: npt.NDArray[np.uint8], position: int, stop: int, base: int, file_size: int
) -> int:
    """Return where the first believable record or BLANK in ``[position, stop)`` starts, else -1."""
    view = buffer.data
    limit = min(file_size, len(buffer))
    magic_stop = min(stop, limit - 7) + 4
    for magic_at in _magic_places(view, max(position, 0) + 4, magic_stop, limit):
        verdict = check_record(view, magic_at - 4, base, file_size, check_crc=True)
        if not isinstance(verdict, StopReason) or verdict is StopReason.BLANK:
            return magic_at - 4
    return -1


def last_nonzero(buffer: npt.NDArray[np.uint8], position: int, stop: int) -> int:
    """Return the position of the last byte in ``[position, stop)`` that is not zero, else -1."""
    position = max(position, 0)
    end = min(stop, len(buffer))
    while end > position:
        begin = max(position, end - _CHUNK_SIZE_BYTES)
        written = len(buffer[begin:end].tobytes().rstrip(b"\0"))
        if written:
            return begin + written - 1
        end = begin
    return -1
