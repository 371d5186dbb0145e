"""Find the next believable record behind damage; see ``rocketstore.scan.resync``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from rocketstore.scan.columns import StopReason
from rocketstore.scan.reference.walk import check_record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_MAGIC: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]|\xcb\xd4\x31\x94")
_CHUNK_SIZE_BYTES: Final = 1 << 16


def resync(
    buffer: npt.NDArray[np.uint8], position: int, stop: int, base: int, file_size: int
) -> int:
    """Return where the first believable record or BLANK in ``[position, stop)`` starts, else -1."""
    view = buffer.data
    limit = min(file_size, len(buffer))
    magic_at = max(position, 0) + 4
    magic_stop = min(stop, limit - 7) + 4
    while magic_at < magic_stop:
        found = _MAGIC.search(view, magic_at, min(magic_stop + 3, limit))
        if found is None:
            return -1
        candidate = found.start() - 4
        verdict = check_record(view, candidate, base, file_size, check_crc=True)
        if not isinstance(verdict, StopReason) or verdict is StopReason.BLANK:
            return candidate
        magic_at = found.start() + 1
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
