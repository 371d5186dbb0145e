"""Java's ``String.hashCode`` of UTF-8 bytes inside a kernel.

The hash runs over UTF-16 units: ``h = 31 * h + unit``, wrapping at 32 bits. Here the sum is kept in
64 bits, which wrap to the same lower 32.

Law: malformed UTF-8 counts as U+FFFD per maximal ill-formed part, what Java's decoder puts there
and ``bytes.decode("utf-8", "replace")`` too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rocketstore.scan.compiled import BYTES, inner, kernel, types
from rocketstore.scan.compiled.memory import load_u8, load_u32

_REPLACEMENT = 0xFFFD
_P1 = 31
_P2 = 31**2
_P3 = 31**3
_P4 = 31**4


@inner
def continuation_bounds(lead: Any) -> Any:
    """Return how many bytes follow a lead byte (-1: no lead), and the bounds of the first."""
    if 0xC2 <= lead <= 0xDF:
        return 1, 0x80, 0xBF
    if 0xE0 <= lead <= 0xEF:
        return 2, 0xA0 if lead == 0xE0 else 0x80, 0x9F if lead == 0xED else 0xBF
    if 0xF0 <= lead <= 0xF4:
        return 3, 0x90 if lead == 0xF0 else 0x80, 0x8F if lead == 0xF4 else 0xBF
    return -1, 0, 0


@inner
def _hash_other(buffer: Any, position: Any, end: Any, value: Any) -> Any:
    """Add the character at `position`, which is not ASCII; return the hash and the next position.

    The well-formed byte sequences are those of table 3-7 of the Unicode standard.
    """
    lead = load_u8(buffer, position)
    following, low, high = continuation_bounds(lead)
    position += 1
    if following < 0:
        return value * _P1 + _REPLACEMENT, position
    point = lead & (0x3F >> following)
    for _ in range(following):
        if position >= end:
            return value * _P1 + _REPLACEMENT, position
        byte = load_u8(buffer, position)
        if byte < low or byte > high:
            return value * _P1 + _REPLACEMENT, position
        point = point << 6 | (byte & 0x3F)
        position += 1
        low, high = 0x80, 0xBF
    if point < 0x10000:
        return value * _P1 + point, position
    point -= 0x10000
    value = value * _P1 + (0xD800 + (point >> 10))
    return value * _P1 + (0xDC00 + (point & 0x3FF)), position


@inner
def java_hash_unchecked(buffer: Any, position: Any, size: Any, seed: Any) -> Any:
    """``java_hash`` for a range that the calling kernel has already checked."""
    value = np.int64(seed)
    end = position + size
    while position < end:
        if end - position >= 4:
            four = load_u32(buffer, position)
            if four & 0x80808080 == 0:
                value = (
                    value * _P4
                    + (four >> 24) * _P3
                    + (four >> 16 & 0xFF) * _P2
                    + (four >> 8 & 0xFF) * _P1
                    + (four & 0xFF)
                )
                position += 4
                continue
        byte = load_u8(buffer, position)
        if byte < 0x80:
            value = value * _P1 + byte
            position += 1
        else:
            value, position = _hash_other(buffer, position, end, value)
    return np.int64(np.int32(value & 0xFFFFFFFF))


@kernel(types.int64(BYTES, types.int64, types.int64, types.int64))
def java_hash(buffer: Any, position: Any, size: Any, seed: Any) -> Any:
    """Hash of the text in ``buffer[position:position + size]``, a signed 32-bit number.

    `seed` is the hash of what stands before it, 0 for nothing: the hash of "topic#key" continues
    that of "topic".
    """
    if position < 0 or size < 0 or position > len(buffer) - size:
        raise ValueError("the range is not inside the buffer")
    return java_hash_unchecked(buffer, position, size, seed)
