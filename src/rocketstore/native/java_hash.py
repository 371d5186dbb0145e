"""Java's ``String.hashCode`` of UTF-8 bytes.

The hash runs over UTF-16 units: ``h = 31 * h + unit``, wrapping at 32 bits. Here the sum has 64,
of which the upper ones are taken away before they are multiplied.

Law: malformed UTF-8 counts as U+FFFD per maximal ill-formed part, what Java's decoder puts there
and ``bytes.decode("utf-8", "replace")`` too.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

if not cython.compiled:
    from rocketstore.native.view import Bytes, bytes_of, load_u8, load_u32

_NOT_ASCII = 0x80808080
_LOW_32 = 0xFFFFFFFF


def continuation_bounds(lead: int) -> tuple[int, int, int]:
    """Return how many bytes follow a lead byte (-1: no lead), and the bounds of the first."""
    if 0xC2 <= lead <= 0xDF:
        return 1, 0x80, 0xBF
    if 0xE0 <= lead <= 0xEF:
        return 2, 0xA0 if lead == 0xE0 else 0x80, 0x9F if lead == 0xED else 0xBF
    if 0xF0 <= lead <= 0xF4:
        return 3, 0x90 if lead == 0xF0 else 0x80, 0x8F if lead == 0xF4 else 0xBF
    return -1, 0, 0


def hash_other(data: Bytes, at: int, end: int, value: int) -> tuple[int, int]:
    """Add the character at `at`, which is not ASCII; return the hash and the next position."""
    lead = load_u8(data, at)
    following, low, high = continuation_bounds(lead)
    at += 1
    if following < 0:
        return value * 31 + 0xFFFD, at
    point = lead & (0x3F >> following)
    for _ in range(following):
        if at >= end:
            return value * 31 + 0xFFFD, at
        byte = load_u8(data, at)
        if byte < low or byte > high:
            return value * 31 + 0xFFFD, at
        point = point << 6 | (byte & 0x3F)
        at += 1
        low, high = 0x80, 0xBF
    if point < 0x10000:
        return value * 31 + point, at
    point -= 0x10000
    value = value * 31 + (0xD800 + (point >> 10))
    return value * 31 + (0xDC00 + (point & 0x3FF)), at


def hash_of(data: Bytes, at: int, size: int, seed: int) -> int:
    """``java_hash`` for a range that the caller has already checked."""
    value = seed
    end = at + size
    while at < end:
        if end - at >= 4:
            four = load_u32(data, at)
            if four & _NOT_ASCII == 0:
                value = (
                    (value & _LOW_32) * 923521
                    + (four >> 24) * 29791
                    + (four >> 16 & 0xFF) * 961
                    + (four >> 8 & 0xFF) * 31
                    + (four & 0xFF)
                )
                at += 4
                continue
        byte = load_u8(data, at)
        if byte < 0x80:
            value = (value & _LOW_32) * 31 + byte
            at += 1
        else:
            value, at = hash_other(data, at, end, value & _LOW_32)
    value &= _LOW_32
    return value - ((value >> 31) << 32)


def java_hash(buffer: Bytes, at: int, size: int, seed: int) -> int:
    """Hash of the text in ``buffer[at:at + size]``, a signed 32-bit number.

    `seed` is the hash of what stands before it, 0 for nothing: the hash of "topic#key" continues
    that of "topic".
    """
    data = bytes_of(buffer)
    if at < 0 or size < 0 or at > data.size - size:
        raise ValueError("the range is not inside the buffer")
    return int(hash_of(data, at, size, seed))
