"""Find the next believable record behind damage; see ``rocketstore.scan.resync``.

Cost: words of zeros are skipped 64 bytes at a time, other words 8 at a time unless they hold a byte
that a magic number starts with.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rocketstore.scan.columns import StopReason
from rocketstore.scan.compiled import BYTES, inner, kernel, types
from rocketstore.scan.compiled.memory import load_u8, load_u32, load_word, trailing_zeros
from rocketstore.scan.compiled.walk import check_record

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


@inner
def _is_believable(buffer: Any, magic_at: Any, base: Any, file_size: Any) -> Any:
    magic = load_u32(buffer, magic_at)
    if magic not in (_MAGIC_V1, _MAGIC_V2, _MAGIC_BLANK):
        return False
    verdict = check_record(buffer, magic_at - 4, base, file_size, check_crc=True)
    return verdict in (_END, _BLANK)


@kernel(types.int64(BYTES, types.int64, types.int64, types.int64, types.int64))
def resync(buffer: Any, position: Any, stop: Any, base: Any, file_size: Any) -> Any:
    """Return where the first believable record or BLANK in ``[position, stop)`` starts, else -1.

    Parameters are those of ``walk``. The record may end behind `stop`.
    """
    limit = min(file_size, len(buffer))
    at = max(position, 0) + 4
    # `at` runs over the places of magic numbers, four behind those of records.
    magic_stop = min(stop, limit - 7) + 4
    while at < magic_stop:
        if at + 64 <= limit and _is_zero_block(buffer, at):
            at += 64
            continue
        if at + 8 > limit:
            if _is_believable(buffer, at, base, file_size):
                return at - 4
            at += 1
            continue
        leads = _lead_bytes(load_word(buffer, at))
        while leads != _ZERO:
            magic_at = at + (trailing_zeros(leads) >> 3)
            if magic_at >= magic_stop:
                return -1
            if _is_believable(buffer, magic_at, base, file_size):
                return magic_at - 4
            leads &= leads - _ONE
        at += 8
    return -1


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
