"""Find the next believable record after damage; see ``rocketstore.scan.scanner``.

Cost: words of zeros are skipped 64 bytes at a time, other words 8 at a time unless they hold a byte
that a magic number starts with. Bodies of candidates are checked as they are up to a budget; then
checksums of the buffer's prefixes are kept, from which that of any range follows, so that a body
costs two blocks at most, however long it says it is.
"""

from __future__ import annotations

import numpy as np

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

if not cython.compiled:
    from rocketstore.native.row import StopReason
    from rocketstore.native.view import (
        Bytes,
        Numbers,
        bytes_of,
        crc_continued,
        load_i32,
        load_u8,
        load_u32,
        load_word,
        numbers_of,
        trailing_zeros,
    )
    from rocketstore.native.walk import check_record, v6_extra_bytes

    _NOTHING = -1
    _OVER_BUDGET = -2
    _SPENT = 0
    _BUDGET = 1
    _ORIGIN = 2
    _KNOWN = 3
    _BLOCKS = 4
    _AT = 5
    _WORK_SIZE = 6

_MAGIC_V1 = 0xDAA320A7
_MAGIC_V2 = 0xDAA320AB
_MAGIC_BLANK = 0xCBD43194
_EACH_BYTE = 0x0101010101010101
_EACH_TOP_BIT = 0x8080808080808080
_EACH_MESSAGE_LEAD = 0xDADADADADADADADA
_EACH_BLANK_LEAD = 0xCBCBCBCBCBCBCBCB
_CRC_MASK = 0x7FFFFFFF
_POLYNOMIAL = 0xEDB88320
# Checksums of prefixes stand so far apart.
_SUM_BLOCK = 4096
# What one `resync` spends on bodies before it keeps such checksums: 4 ms of work.
_CRC_BUDGET = 16 << 20


def multiplied(a: int, b: int) -> int:
    """Return a times b modulo the polynomial of CRC-32; bit 31 is the lowest power of each."""
    product = 0
    for bit in range(31, -1, -1):
        if (a >> bit) & 1:
            product ^= b
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def block_shifts() -> Numbers:
    """Return by what a CRC is multiplied when 1, 2, 4, … blocks of other bytes follow."""
    squares = np.zeros(15 + 40, np.int64)
    squares[0] = 1 << 30  # x; the fifteenth square of it is one block of bits
    for number in range(1, squares.size):
        squares[number] = multiplied(squares[number - 1], squares[number - 1])
    return squares[15:]


_SHIFTS = block_shifts()


def is_zero_block(data: Bytes, at: int) -> bool:
    """Return whether 64 bytes are all zero."""
    together = load_word(data, at)
    for word in range(1, 8):
        together |= load_word(data, at + 8 * word)
    return together == 0


def lead_bytes(word: int) -> int:
    """Return a word whose top bits mark the bytes that a magic number can start with.

    A byte above a marked one may be marked wrongly; the magic number is compared anyway.
    """
    message = word ^ _EACH_MESSAGE_LEAD
    blank = word ^ _EACH_BLANK_LEAD
    found = ((message - _EACH_BYTE) & ~message) | ((blank - _EACH_BYTE) & ~blank)
    return found & _EACH_TOP_BIT


def has_no_lead(data: Bytes, at: int) -> bool:
    """Return whether no magic number starts in the next 32 bytes."""
    found = lead_bytes(load_word(data, at)) | lead_bytes(load_word(data, at + 8))
    found |= lead_bytes(load_word(data, at + 16)) | lead_bytes(load_word(data, at + 24))
    return found == 0


def shifted(crc: int, blocks: int) -> int:
    """Return what `crc` contributes when so many blocks follow: a product mod P, reflected."""
    number = 0
    while blocks:
        if blocks & 1:
            crc = multiplied(crc, _SHIFTS[number])
        blocks >>= 1
        number += 1
    return crc


def crc_of_range(data: Bytes, start: int, stop: int, work: Numbers, sums: Numbers) -> int:
    """Return the CRC-32 of a range, from the prefixes' where it spans whole blocks."""
    origin = work[_ORIGIN]
    first = (start - origin + _SUM_BLOCK - 1) // _SUM_BLOCK
    last = (stop - origin) // _SUM_BLOCK
    if first >= last:
        work[_SPENT] += stop - start
        return crc_continued(data, start, stop, 0)
    while work[_KNOWN] < last:
        known = work[_KNOWN]
        at = origin + known * _SUM_BLOCK
        sums[known + 1] = crc_continued(data, at, at + _SUM_BLOCK, sums[known])
        work[_KNOWN] = known + 1
        work[_SPENT] += _SUM_BLOCK
    whole_at = origin + first * _SUM_BLOCK
    rest_at = origin + last * _SUM_BLOCK
    work[_SPENT] += whole_at - start + stop - rest_at
    head = crc_continued(data, start, whole_at, 0)
    middle = shifted(head ^ sums[first], last - first) ^ sums[last]
    return crc_continued(data, rest_at, stop, middle)


def believe(
    data: Bytes, magic_at: int, base: int, file_size: int, work: Numbers, sums: Numbers
) -> int:
    """Return END or BLANK for what can be believed; _OVER_BUDGET when a checksum costs too much."""
    magic = load_u32(data, magic_at)
    if magic not in (_MAGIC_V1, _MAGIC_V2, _MAGIC_BLANK):
        return _NOTHING
    position = magic_at - 4
    verdict = check_record(data, position, base, file_size, False)
    if verdict == StopReason.BLANK:
        return verdict
    if verdict != StopReason.END:
        return _NOTHING
    born_extra, store_extra = v6_extra_bytes(load_u32(data, position + 36))
    body_at = position + 88 + born_extra + store_extra
    size = load_i32(data, body_at - 4)
    stored = load_i32(data, position + 8)
    if size == 0 or stored < 0:
        return StopReason.END if size == 0 else _NOTHING
    if work[_BLOCKS] == 0:
        if work[_SPENT] + size > work[_BUDGET]:
            return _OVER_BUDGET
        work[_SPENT] += size
        crc = crc_continued(data, body_at, body_at + size, 0)
    else:
        crc = crc_of_range(data, body_at, body_at + size, work, sums)
    return StopReason.END if stored == crc & _CRC_MASK else _NOTHING


def search(
    data: Bytes, position: int, stop: int, base: int, file_size: int, work: Numbers, sums: Numbers
) -> int:
    """Return where the first believable thing starts, else -1, or _OVER_BUDGET with its place."""
    limit = min(file_size, data.size)
    at = max(position, 0) + 4
    # `at` runs over the places of magic numbers, four after those of records.
    magic_stop = min(stop, limit - 7) + 4
    while at < magic_stop:
        if at + 8 > limit:
            found = believe(data, at, base, file_size, work, sums)
            if found == _OVER_BUDGET:
                work[_AT] = at - 4
                return _OVER_BUDGET
            if found != _NOTHING:
                return at - 4
            at += 1
            continue
        # A jump, not a sum: the processor reads on where it expects more zeros.
        while at + 64 <= limit and load_word(data, at) == 0 and is_zero_block(data, at):
            at += 64
        while at + 32 <= limit and has_no_lead(data, at):
            at += 32
        if at >= magic_stop or at + 8 > limit:
            continue
        leads = lead_bytes(load_word(data, at))
        while leads:
            magic_at = at + (trailing_zeros(leads) >> 3)
            if magic_at >= magic_stop:
                return -1
            found = believe(data, magic_at, base, file_size, work, sums)
            if found == _OVER_BUDGET:
                work[_AT] = magic_at - 4
                return _OVER_BUDGET
            if found != _NOTHING:
                return magic_at - 4
            leads &= leads - 1
        at += 8
    return -1


def resync_within(
    buffer: Bytes, position: int, stop: int, base: int, file_size: int, budget: int
) -> tuple[int, int]:
    """Do as `resync`; also return of how many bytes a checksum was computed.

    Parameters are those of ``walk``, and how many bytes may be spent before prefixes are kept.
    """
    work = np.zeros(_WORK_SIZE, np.int64)
    work[_BUDGET] = budget
    sums = np.zeros(1, np.int64)
    data = bytes_of(buffer)
    numbers = numbers_of(work)
    known = numbers_of(sums)
    with cython.nogil:
        found = search(data, position, stop, base, file_size, numbers, known)
    if found == _OVER_BUDGET:
        start = work[_AT]
        work[_ORIGIN] = start
        work[_BLOCKS] = 1 + max(min(file_size, data.size) - start, 0) // _SUM_BLOCK
        sums = np.zeros(work[_BLOCKS], np.int64)
        known = numbers_of(sums)
        with cython.nogil:
            found = search(data, start, stop, base, file_size, numbers, known)
    return int(found), int(work[_SPENT])


def resync(buffer: Bytes, position: int, stop: int, base: int, file_size: int) -> int:
    """Return where the first believable record or BLANK in ``[position, stop)`` starts, else -1.

    Parameters are those of ``walk``. The record may end after `stop`.
    """
    return resync_within(buffer, position, stop, base, file_size, _CRC_BUDGET)[0]


def last_written(data: Bytes, position: int, stop: int) -> int:
    """Return the position of the last byte in ``[position, stop)`` that is not zero, else -1."""
    position = max(position, 0)
    at = min(stop, data.size)
    while at - 64 >= position and is_zero_block(data, at - 64):
        at -= 64
    while at > position:
        at -= 1
        if load_u8(data, at) != 0:
            return at
    return -1


def last_nonzero(buffer: Bytes, position: int, stop: int) -> int:
    """Return the position of the last byte in ``[position, stop)`` that is not zero, else -1."""
    data = bytes_of(buffer)
    with cython.nogil:
        found = last_written(data, position, stop)
    return int(found)
