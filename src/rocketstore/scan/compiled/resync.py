"""Find the next believable record behind damage; see ``rocketstore.scan.resync``.

Cost: words of zeros are skipped 64 bytes at a time, other words 8 at a time unless they hold a byte
that a magic number starts with. Bodies of candidates are checked as they are up to a budget; then
checksums of the buffer's prefixes are kept, from which that of any range follows, so that a body
costs two blocks at most, however long it says it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocketstore.scan.columns import StopReason
from rocketstore.scan.compiled import BYTES, NUMBERS, inner, kernel, types
from rocketstore.scan.compiled.crc import crc_continued
from rocketstore.scan.compiled.memory import (
    load_i32,
    load_u8,
    load_u32,
    load_word,
    trailing_zeros,
)
from rocketstore.scan.compiled.walk import check_record, v6_extra_bytes
from rocketstore.scan.crc import (
    CRC_BUDGET_BYTES,
    CRC_MASK,
    POLYNOMIAL,
    SUM_BLOCK_BYTES,
    block_shifts,
    reflected,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    ByteArray = npt.NDArray[np.uint8]

_MAGIC_V1: Final = 0xDAA320A7
_MAGIC_V2: Final = 0xDAA320AB
_MAGIC_BLANK: Final = 0xCBD43194

_ZERO: Final = np.uint64(0)
_ONE: Final = np.uint64(1)
_EACH_BYTE: Final = np.uint64(0x0101010101010101)
_EACH_TOP_BIT: Final = np.uint64(0x8080808080808080)
_EACH_MESSAGE_LEAD: Final = np.uint64(0xDADADADADADADADA)
_EACH_BLANK_LEAD: Final = np.uint64(0xCBCBCBCBCBCBCBCB)

_END: Final = int(StopReason.END)
_BLANK: Final = int(StopReason.BLANK)
_NOTHING: Final = -1
_NO_SUMS: Final = np.zeros(0, np.int64)


@inner
def _is_zero_block(buffer: Any, at: Any) -> Any:
    """Whether 64 bytes are all zero."""
    together = _ZERO
    for word in range(8):
        together |= load_word(buffer, at + 8 * word)
    return together == _ZERO


@inner
def _lead_bytes(word: Any) -> Any:
    """Return a word whose top bits mark the bytes that a magic number can start with.

    A byte above a marked one may be marked wrongly; the magic number is compared anyway.
    """
    message = word ^ _EACH_MESSAGE_LEAD
    blank = word ^ _EACH_BLANK_LEAD
    found = ((message - _EACH_BYTE) & ~message) | ((blank - _EACH_BYTE) & ~blank)
    return found & _EACH_TOP_BIT


_SUM_BLOCK: Final = SUM_BLOCK_BYTES
_SHIFTS: Final = block_shifts()
_POLYNOMIAL: Final = reflected(POLYNOMIAL & 0xFFFFFFFF, 32)
_OVER_BUDGET: Final = -2

SPENT: Final = 0
"""Bytes of bodies and blocks whose checksum was computed."""
_BUDGET: Final = 1
_ORIGIN: Final = 2
_KNOWN: Final = 3
_AT: Final = 4
_WORK_SIZE: Final = 5


@inner
def _shifted(crc: Any, blocks: Any) -> Any:
    """Return what `crc` contributes when so many blocks follow: a product mod P, reflected."""
    number = 0
    while blocks:
        if blocks & 1:
            factor = _SHIFTS[number]
            product = 0
            for bit in range(31, -1, -1):
                if (crc >> bit) & 1:
                    product ^= factor
                factor = (factor >> 1) ^ (_POLYNOMIAL if factor & 1 else 0)
            crc = product
        blocks >>= 1
        number += 1
    return crc


@inner
def _crc_of_range(buffer: Any, start: Any, stop: Any, work: Any, sums: Any) -> Any:
    """Return the CRC-32 of a range, from the prefixes' where it spans whole blocks."""
    origin = work[_ORIGIN]
    first = -((origin - start) // _SUM_BLOCK)
    last = (stop - origin) // _SUM_BLOCK
    if first >= last:
        work[SPENT] += stop - start
        return crc_continued(buffer, start, stop, 0)
    while work[_KNOWN] < last:
        known = work[_KNOWN]
        at = origin + known * _SUM_BLOCK
        sums[known + 1] = crc_continued(buffer, at, at + _SUM_BLOCK, sums[known])
        work[_KNOWN] = known + 1
        work[SPENT] += _SUM_BLOCK
    whole_at, rest_at = origin + first * _SUM_BLOCK, origin + last * _SUM_BLOCK
    work[SPENT] += whole_at - start + stop - rest_at
    head = crc_continued(buffer, start, whole_at, 0)
    middle = _shifted(head ^ sums[first], last - first) ^ sums[last]
    return crc_continued(buffer, rest_at, stop, middle)


@inner
def _believe(buffer: Any, magic_at: Any, base: Any, file_size: Any, work: Any, sums: Any) -> Any:
    """Return END or BLANK for what can be believed; _OVER_BUDGET when a checksum costs too much."""
    magic = load_u32(buffer, magic_at)
    if magic not in (_MAGIC_V1, _MAGIC_V2, _MAGIC_BLANK):
        return _NOTHING
    position = magic_at - 4
    verdict = check_record(buffer, position, base, file_size, check_crc=False)
    if verdict == _BLANK:
        return _BLANK
    if verdict != _END:
        return _NOTHING
    born_extra, store_extra = v6_extra_bytes(load_u32(buffer, position + 36))
    body_at = position + 88 + born_extra + store_extra
    size = load_i32(buffer, body_at - 4)
    stored = load_i32(buffer, position + 8)
    if size == 0 or stored < 0:
        return _END if size == 0 else _NOTHING
    if len(sums) == 0:
        if work[SPENT] + size > work[_BUDGET]:
            return _OVER_BUDGET
        work[SPENT] += size
        crc = crc_continued(buffer, body_at, body_at + size, 0)
    else:
        crc = _crc_of_range(buffer, body_at, body_at + size, work, sums)
    return _END if stored == crc & CRC_MASK else _NOTHING


@kernel(types.int64(BYTES, types.int64, types.int64, types.int64, types.int64, NUMBERS, NUMBERS))
def _resync(
    buffer: Any, position: Any, stop: Any, base: Any, file_size: Any, work: Any, sums: Any
) -> Any:
    """Return where the first believable thing starts, else -1, or _OVER_BUDGET with its place."""
    limit = min(file_size, len(buffer))
    at = max(position, 0) + 4
    # `at` runs over the places of magic numbers, four behind those of records.
    magic_stop = min(stop, limit - 7) + 4
    while at < magic_stop:
        if at + 64 <= limit and _is_zero_block(buffer, at):
            at += 64
            continue
        if at + 8 > limit:
            found = _believe(buffer, at, base, file_size, work, sums)
            if found == _OVER_BUDGET:
                work[_AT] = at - 4
                return found
            if found != _NOTHING:
                return at - 4
            at += 1
            continue
        leads = _lead_bytes(load_word(buffer, at))
        while leads != _ZERO:
            magic_at = at + (trailing_zeros(leads) >> 3)
            if magic_at >= magic_stop:
                return -1
            found = _believe(buffer, magic_at, base, file_size, work, sums)
            if found == _OVER_BUDGET:
                work[_AT] = magic_at - 4
                return found
            if found != _NOTHING:
                return magic_at - 4
            leads &= leads - _ONE
        at += 8
    return -1


def resync_within(
    buffer: ByteArray, position: int, stop: int, base: int, file_size: int, budget: int
) -> tuple[int, int]:
    """Do as `resync`; also return of how many bytes a checksum was computed.

    Parameters are those of ``walk``, and how many bytes may be spent before prefixes are kept.
    """
    work = np.zeros(_WORK_SIZE, np.int64)
    work[_BUDGET] = budget
    found = int(_resync(buffer, position, stop, base, file_size, work, _NO_SUMS))
    if found == _OVER_BUDGET:
        start = int(work[_AT])
        work[_ORIGIN] = start
        blocks = max(min(file_size, len(buffer)) - start, 0) // _SUM_BLOCK
        sums = np.zeros(blocks + 1, np.int64)
        found = int(_resync(buffer, start, stop, base, file_size, work, sums))
    return found, int(work[SPENT])


def resync(buffer: ByteArray, position: int, stop: int, base: int, file_size: int) -> int:
    """Return where the first believable record or BLANK in ``[position, stop)`` starts, else -1.

    Parameters are those of ``walk``. The record may end behind `stop`.
    """
    return resync_within(buffer, position, stop, base, file_size, CRC_BUDGET_BYTES)[0]


@kernel(types.int64(BYTES, types.int64, types.int64))
def last_nonzero(buffer: Any, position: Any, stop: Any) -> Any:
    """Return the position of the last byte in ``[position, stop)`` that is not zero, else -1."""
    position = max(position, 0)
    at = min(stop, len(buffer))
    while at - 64 >= position and _is_zero_block(buffer, at - 64):
        at -= 64
    while at > position:
        at -= 1
        if load_u8(buffer, at) != 0:
            return at
    return -1
