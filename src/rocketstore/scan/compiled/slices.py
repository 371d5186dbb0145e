"""Many slices of a buffer at once: copied back to back as Arrow wants them, or their CRCs."""

from __future__ import annotations

from typing import Any

from rocketstore.scan.compiled import BYTES, NUMBERS, WRITABLE_BYTES, kernel, types
from rocketstore.scan.compiled.crc import body_crc_unchecked
from rocketstore.scan.compiled.memory import copy_bytes

_STRIDED = types.Array(types.int64, 1, "A", readonly=True)


@kernel(types.int64(BYTES, _STRIDED, _STRIDED, WRITABLE_BYTES))
def copy_slices(buffer: Any, at: Any, size: Any, target: Any) -> Any:
    """Copy ``buffer[at[i]:at[i] + size[i]]`` for each i to `target`, one after the other.

    Returns the bytes written; -1 when a slice is not inside the buffer or `target` is too small.
    """
    written = 0
    for i in range(min(len(at), len(size))):
        begin, length = at[i], size[i]
        if begin < 0 or length < 0 or begin > len(buffer) - length:
            return -1
        if written > len(target) - length:
            return -1
        copy_bytes(target, written, buffer, begin, length)
        written += length
    return written


@kernel(types.int64(BYTES, _STRIDED, _STRIDED, NUMBERS))
def slice_crcs(buffer: Any, at: Any, size: Any, target: Any) -> Any:
    """Put the CRC-32 of ``buffer[at[i]:at[i] + size[i]]``, 31 bits of it, into ``target[i]``.

    Returns how many; -1 when a slice is not inside the buffer or `target` is too small.
    """
    count = min(len(at), len(size))
    if count > len(target):
        return -1
    for i in range(count):
        begin, length = at[i], size[i]
        if begin < 0 or length < 0 or begin > len(buffer) - length:
            return -1
        target[i] = body_crc_unchecked(buffer, begin, length)
    return count
