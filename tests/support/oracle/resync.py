"""Find the next believable record behind damage; see ``rocketstore.scan.scanner``."""

import re
import zlib
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from rocketstore.scan.columns import StopReason
from support.oracle.checksum import (
    CRC_BUDGET_BYTES,
    CRC_MASK,
    SUM_BLOCK_BYTES,
    block_shifts,
    multiplied,
)
from support.oracle.walk import check_record

_MAGIC: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]|\xcb\xd4\x31\x94")
_LEADS: Final = (b"\xda\xa3\x20", b"\xcb\xd4\x31\x94")
_CHUNK_SIZE_BYTES: Final = 1 << 16
_SHIFTS: Final = block_shifts()


def _magic_places(view: memoryview, begin: int, stop: int, limit: int) -> Iterator[int]:
    """Yield where a magic number starts in ``[begin, stop)``; it ends before `limit`.

    Chunks are copied, since only bytes have the quick search that rules most chunks out.
    """
    for at in range(begin, stop, _CHUNK_SIZE_BYTES):
        chunk = bytes(view[at : min(at + _CHUNK_SIZE_BYTES, stop, limit) + 3])
        if any(lead in chunk for lead in _LEADS):
            yield from (at + found.start() for found in _MAGIC.finditer(chunk))


class _BodyChecks:
    """Checksums of bodies: plain up to a budget, then from those of prefixes, block by block."""

    def __init__(self, view: memoryview, budget: int) -> None:
        self.spent = 0
        self._view = view
        self._budget = budget
        self._origin: int | None = None
        self._sums = [0]

    def crc(self, record_at: int, start: int, stop: int) -> int:
        """Return the CRC-32 of a range, the body of a record."""
        if self._origin is None:
            if self.spent + stop - start <= self._budget:
                return self._continued(start, stop, 0)
            self._origin = record_at
        origin = self._origin
        first, last = -((origin - start) // SUM_BLOCK_BYTES), (stop - origin) // SUM_BLOCK_BYTES
        if first >= last:
            return self._continued(start, stop, 0)
        while len(self._sums) <= last:
            at = origin + (len(self._sums) - 1) * SUM_BLOCK_BYTES
            self._sums.append(self._continued(at, at + SUM_BLOCK_BYTES, self._sums[-1]))
        head = self._continued(start, origin + first * SUM_BLOCK_BYTES, 0)
        middle = _shifted(head ^ self._sums[first], last - first) ^ self._sums[last]
        return self._continued(origin + last * SUM_BLOCK_BYTES, stop, middle)

    def _continued(self, start: int, stop: int, crc: int) -> int:
        self.spent += stop - start
        return zlib.crc32(self._view[start:stop], crc)


def _shifted(crc: int, blocks: int) -> int:
    for number in range(blocks.bit_length()):
        if blocks >> number & 1:
            crc = multiplied(crc, int(_SHIFTS[number]))
    return crc


def _is_believable(
    view: memoryview, position: int, base: int, file_size: int, checks: _BodyChecks
) -> bool:
    verdict = check_record(view, position, base, file_size, check_crc=False)
    if isinstance(verdict, StopReason):
        return verdict is StopReason.BLANK
    stored = int.from_bytes(view[position + 8 : position + 12], "big", signed=True)
    if not verdict.body_size or stored < 0:
        return not verdict.body_size
    crc = checks.crc(position, verdict.body_at, verdict.body_at + verdict.body_size)
    return stored == crc & CRC_MASK


def resync_within(
    buffer: npt.NDArray[np.uint8],
    position: int,
    stop: int,
    base: int,
    file_size: int,
    budget: int,
) -> tuple[int, int]:
    """Do as `resync`; also return of how many bytes a checksum was computed."""
    view = buffer.data
    checks = _BodyChecks(view, budget)
    limit = min(file_size, len(buffer))
    magic_stop = min(stop, limit - 7) + 4
    for magic_at in _magic_places(view, max(position, 0) + 4, magic_stop, limit):
        if _is_believable(view, magic_at - 4, base, file_size, checks):
            return magic_at - 4, checks.spent
    return -1, checks.spent


def resync(
    buffer: npt.NDArray[np.uint8], position: int, stop: int, base: int, file_size: int
) -> int:
    """Return where the first believable record or BLANK in ``[position, stop)`` starts, else -1."""
    return resync_within(buffer, position, stop, base, file_size, CRC_BUDGET_BYTES)[0]


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
