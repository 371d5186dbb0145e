"""Find names and values in many property blocks; see ``rocketstore.native.columns``.

And tell whether topic and properties of a record are whole; see ``rocketstore.native.walk``.
"""

import itertools
from typing import Final

from rocketstore.format.properties import hold_names

SECTOR_SIZE_BYTES: Final = 512
"""The least that a disk writes as a whole."""


def pairs(block: bytes, begin: int) -> list[list[int]]:
    """Return place and size of each name and value of a block that starts at `begin`."""
    found = []
    for part in block.split(b"\x02"):
        name, _, value = part.partition(b"\x01")
        if name and value:
            found.append([begin, len(name), begin + len(name) + 1, len(value)])
        begin += len(part) + 1
    return found


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
