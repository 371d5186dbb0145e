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
    from typing import Any

    from rocketstore.native import view
    from rocketstore.native.row import StopReason
    from rocketstore.native.view import Bytes
    from rocketstore.native.walk import body_position, check_record, crc_agrees

    _SUM_BLOCK = 4096

_CRC_BUDGET = 16 << 20
"""What one search spends on bodies before it keeps checksums of prefixes: 4 ms of work."""

_EACH_BYTE = 0x0101010101010101
_EACH_TOP_BIT = 0x8080808080808080
_EACH_MESSAGE_LEAD = 0xDADADADADADADADA
_EACH_BLANK_LEAD = 0xCBCBCBCBCBCBCBCB
_POLYNOMIAL = 0xEDB88320


def multiplied(a: int, b: int) -> int:
    """Return a times b mod the CRC's polynomial, all three with the lowest power in bit 31."""
    product = 0
    for bit in range(31, -1, -1):
        if (a >> bit) & 1:
            product ^= b
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def shifted(crc: int, blocks: int) -> int:
    """Return what `crc` contributes when so many blocks of other bytes follow."""
    factor = 1 << 30  # x
    for _ in range(15):  # to the power of the bits in a block
        factor = multiplied(factor, factor)
    while blocks:
        if blocks & 1:
            crc = multiplied(crc, factor)
        factor = multiplied(factor, factor)
        blocks >>= 1
    return crc


def is_zero_block(data: Bytes, at: int) -> bool:
    """Return whether 64 bytes are all zero."""
    together = view.load_word(data, at)
    for word in range(1, 8):
        together |= view.load_word(data, at + 8 * word)
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
    found = lead_bytes(view.load_word(data, at)) | lead_bytes(view.load_word(data, at + 8))
    found |= lead_bytes(view.load_word(data, at + 16)) | lead_bytes(view.load_word(data, at + 24))
    return found == 0


class Search:
    """One search: its bytes, what it spent, and the checksums of prefixes that it keeps.

    The prefixes begin at `origin`, -1 while none are kept; so many of their sums are `known`.
    """

    def begin(self, data: Bytes, base: int, file_size: int, budget: int) -> None:
        """Take the bytes to search."""
        self.data = data
        self.base, self.file_size, self.budget = base, file_size, budget
        self.origin, self.spent, self.known = -1, 0, 0

    def keep_sums(self, origin: int) -> None:
        """Keep checksums from now on."""
        stop = min(self.file_size, self.data.size)
        self.held: Any = np.zeros(1 + (stop - origin) // _SUM_BLOCK, np.int64)
        self.sums, self.origin = view.numbers_of(self.held), origin

    def body_crc(self, record_at: int, start: int, stop: int) -> int:
        """Return the CRC-32 of the body of a record, from the prefixes' where they are kept."""
        if self.origin < 0 and self.spent + stop - start > self.budget:
            with cython.gil:
                self.keep_sums(record_at)
        first = (start - self.origin + _SUM_BLOCK - 1) // _SUM_BLOCK
        last = (stop - self.origin) // _SUM_BLOCK
        if self.origin < 0 or first >= last:
            self.spent += stop - start
            return view.crc_continued(self.data, start, stop, 0)
        while self.known < last:
            at = self.origin + self.known * _SUM_BLOCK
            self.sums[self.known + 1] = view.crc_continued(
                self.data, at, at + _SUM_BLOCK, self.sums[self.known]
            )
            self.known += 1
            self.spent += _SUM_BLOCK
        whole_at = self.origin + first * _SUM_BLOCK
        rest_at = self.origin + last * _SUM_BLOCK
        self.spent += whole_at - start + stop - rest_at
        head = view.crc_continued(self.data, start, whole_at, 0)
        middle = shifted(head ^ self.sums[first], last - first) ^ self.sums[last]
        return view.crc_continued(self.data, rest_at, stop, middle)

    def believes(self, position: int) -> bool:
        """Return whether a believable record or BLANK starts at a position."""
        verdict = check_record(self.data, position, self.base, self.file_size, False)
        if verdict != StopReason.END:
            return verdict == StopReason.BLANK
        body_at = body_position(self.data, position)
        size = view.load_i32(self.data, body_at - 4)
        crc = self.body_crc(position, body_at, body_at + size) & view.CRC_MASK
        return crc_agrees(self.data, position, size, crc)

    def find(self, position: int, stop: int) -> int:
        """Return where the first believable record or BLANK starts, else -1."""
        data = self.data
        limit = min(self.file_size, data.size)
        at = max(position, 0) + 4
        # `at` runs over the positions of magic numbers, four after those of records.
        magic_stop = min(stop, limit - 7) + 4
        edge = min(limit, magic_stop + 3)  # the next page may have to be fetched
        while at < magic_stop:
            step = 8
            if at + 8 > edge:
                leads, step = 0x80, 1  # any byte may be one
            else:
                # A jump, not a sum: the processor reads on where it expects more zeros.
                while at + 64 <= edge and view.load_word(data, at) == 0 and is_zero_block(data, at):
                    at += 64
                while at + 32 <= edge and has_no_lead(data, at):
                    at += 32
                if at >= magic_stop or at + 8 > edge:
                    continue
                leads = lead_bytes(view.load_word(data, at))
            while leads:
                magic_at = at + (view.trailing_zeros(leads) >> 3)
                if magic_at >= magic_stop:
                    return -1
                if self.believes(magic_at - 4):
                    return magic_at - 4
                leads &= leads - 1
            at += step
        return -1


def resync_within(
    buffer: Bytes, position: int, stop: int, base: int, file_size: int, budget: int
) -> tuple[int, int]:
    """Do as `resync`; also return of how many bytes a checksum was computed.

    Parameters are those of ``walk``, and how many bytes may be spent before prefixes are kept.
    """
    one = Search.__new__(Search)
    one.begin(view.bytes_of(buffer), base, file_size, budget)
    with cython.nogil:
        found = one.find(position, stop)
    return int(found), int(one.spent)


def resync(buffer: Bytes, position: int, stop: int, base: int, file_size: int) -> int:
    """Return where the first believable record or BLANK in ``[position, stop)`` starts, else -1.

    Parameters are those of ``walk``. The record may end after `stop`.
    """
    return resync_within(buffer, position, stop, base, file_size, _CRC_BUDGET)[0]


def last_nonzero(buffer: Bytes, position: int, stop: int) -> int:
    """Return the position of the last byte in ``[position, stop)`` that is not zero, else -1."""
    data = view.bytes_of(buffer)
    start = max(position, 0)
    at = min(stop, data.size)
    with cython.nogil:
        while at - 64 >= start and is_zero_block(data, at - 64):
            at -= 64
        while at > start and view.load_u8(data, at - 1) == 0:
            at -= 1
    return int(at) - 1 if at > start else -1
