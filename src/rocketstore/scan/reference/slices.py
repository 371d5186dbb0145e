"""Copy many slices of a buffer back to back; see ``rocketstore.scan.compiled.slices``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


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
