"""Find names and values in many property blocks; see ``rocketstore.native.columns``.

And tell whether topic and properties of a record are whole; see ``rocketstore.native.walk``.
"""

import itertools
from typing import Final

import numpy as np
import numpy.typing as npt

from rocketstore.format.properties import hold_names

_COMPARED_NAMES: Final = 64

SECTOR_SIZE_BYTES: Final = 512
"""The least that a disk writes as a whole."""


def _pairs(block: bytes, begin: int) -> list[tuple[int, int, int, int]]:
    """Return place and size of each name and value."""
    found = []
    for part in block.split(b"\x02"):
        name, _, value = part.partition(b"\x01")
        if name and value:
            found.append((begin, len(name), begin + len(name) + 1, len(value)))
        begin += len(part) + 1
    return found


def _may_repeat(names: list[bytes]) -> bool:
    return len(names) > _COMPARED_NAMES + 1 or len(set(names)) < len(names)


def split_properties(
    buffer: npt.NDArray[np.uint8],
    at: npt.NDArray[np.int64],
    size: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    parts: npt.NDArray[np.int64],
) -> tuple[int, int]:
    """Fill `parts` with place and size of each name and value of ``buffer[at[i]:at[i] + size[i]]``.

    Returns the rows filled, -1 when a block is not inside the buffer or an array is too short; and
    1 when some block may hold a name twice, else 0.
    """
    if len(size) < len(at) or len(ends) < len(at) or parts.shape[1] != 4:
        return -1, 0
    view = buffer.data
    count = doubtful = 0
    for block, (begin, length) in enumerate(zip(at.tolist(), size.tolist(), strict=False)):
        if begin < 0 or length < 0 or begin > len(buffer) - length:
            return -1, 0
        pairs = _pairs(bytes(view[begin : begin + length]), begin)
        if count + len(pairs) > parts.shape[0]:
            return -1, 0
        if pairs:
            parts[count : count + len(pairs)] = pairs
        if _may_repeat([bytes(view[name : name + n]) for name, n, _, _ in pairs]):
            doubtful = 1
        count += len(pairs)
        ends[block] = count
    return count, doubtful


# --- whole or cut off ----------------------------------------------------------------------------


def are_properties(block: bytes) -> bool:
    """Return whether bytes can be the properties of a stored message; none at all can."""
    return not block or (block[-1] != 0 and hold_names(block))


def is_text_whole(text: bytes, topic_size: int, physical_offset: int) -> bool:
    """Return whether the text of a record was written as a whole.

    `text` goes from the topic's first byte, at `physical_offset`, to the record's last one; the
    length of the properties stands after the topic.
    """
    if topic_size and text[topic_size - 1] == 0:
        return False
    if not are_properties(text[topic_size + 2 :]):
        return False
    if b"\0" not in text:
        return True
    edges = range(-physical_offset % SECTOR_SIZE_BYTES, len(text) + 1, SECTOR_SIZE_BYTES)
    return not any(not any(text[edge:stop]) for edge, stop in itertools.pairwise(edges))
