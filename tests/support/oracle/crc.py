"""CRC-32 of a body, by the C library at hand; see ``rocketstore.native.columns``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.format.record import body_crc as crc_of_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def body_crc(buffer: npt.NDArray[np.uint8], position: int, size: int) -> int:
    """CRC-32 of ``buffer[position:position + size]`` as a record keeps it, masked to 31 bits."""
    if position < 0 or size < 0 or position > len(buffer) - size:
        raise ValueError("the range is not inside the buffer")
    return crc_of_bytes(buffer.data[position : position + size])
