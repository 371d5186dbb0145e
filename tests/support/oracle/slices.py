"""Many slices of a buffer at once; see ``rocketstore.native.columns``."""

import numpy as np
import numpy.typing as npt

from rocketstore.format.record import body_crc


def copy_slices(
    buffer: npt.NDArray[np.uint8],
    at: npt.NDArray[np.int64],
    size: npt.NDArray[np.int64],
    target: npt.NDArray[np.uint8],
) -> int:
    """Copy ``buffer[at[i]:at[i] + size[i]]`` for each i to `target`, one after the other.

    Returns the bytes written; -1 when a slice is not inside the buffer or `target` is too small.
    """
    source, sink = buffer.data, target.data
    written = 0
    for begin, length in zip(at.tolist(), size.tolist(), strict=False):
        if begin < 0 or length < 0 or begin > len(buffer) - length:
            return -1
        if written > len(target) - length:
            return -1
        sink[written : written + length] = source[begin : begin + length]
        written += length
    return written


def slice_crcs(
    buffer: npt.NDArray[np.uint8],
    at: npt.NDArray[np.int64],
    size: npt.NDArray[np.int64],
    target: npt.NDArray[np.int64],
) -> int:
    """Put the CRC-32 of ``buffer[at[i]:at[i] + size[i]]``, 31 bits of it, into ``target[i]``.

    Returns how many; -1 when a slice is not inside the buffer or `target` is too small.
    """
    source = buffer.data
    count = min(len(at), len(size))
    if count > len(target):
        return -1
    for i, (begin, length) in enumerate(zip(at.tolist(), size.tolist(), strict=False)):
        if begin < 0 or length < 0 or begin > len(buffer) - length:
            return -1
        target[i] = body_crc(source[begin : begin + length])
    return count
