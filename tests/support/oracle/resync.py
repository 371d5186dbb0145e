"""Find the next believable record behind damage; see ``rocketstore.scan.scanner``."""

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from rocketstore.scan.columns import StopReason
from support.oracle.walk import check_record

_MAGIC: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]|\xcb\xd4\x31\x94")


def resync(
    buffer: npt.NDArray[np.uint8], position: int, stop: int, base: int, file_size: int
) -> int:
    """Return where the first believable record or BLANK in ``[position, stop)`` starts, else -1."""
    view = buffer.data
    end = min(stop, file_size - 7, len(buffer) - 7)
    for found in _MAGIC.finditer(view, max(position, 0) + 4, max(end, 0) + 7):
        at = found.start() - 4
        verdict = check_record(view, at, base, file_size, check_crc=True)
        if verdict is StopReason.BLANK or not isinstance(verdict, StopReason):
            return at
    return -1
