"""Java's ``String.hashCode`` of UTF-8 bytes; see ``rocketstore.native.java_hash``."""

import functools

import numpy as np
import numpy.typing as npt

from rocketstore.format.java_hash import string_hash


@functools.lru_cache(maxsize=4096)
def hash_of_bytes(text: bytes) -> int:
    """Hash of UTF-8 bytes; topics and tags repeat, so the last few thousand are kept."""
    return string_hash(text.decode("utf-8", "replace"))


def java_hash(buffer: npt.NDArray[np.uint8], position: int, size: int, seed: int) -> int:
    """Hash of the text in ``buffer[position:position + size]``, a signed 32-bit number.

    `seed` is the hash of what stands before it, 0 for nothing.
    """
    if position < 0 or size < 0 or position > len(buffer) - size:
        raise ValueError("the range is not inside the buffer")
    text = buffer[position : position + size].tobytes().decode("utf-8", "replace")
    unit_count = len(text.encode("utf-16-le", "surrogatepass")) // 2
    value = (seed * pow(31, unit_count, 1 << 32) + string_hash(text)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
