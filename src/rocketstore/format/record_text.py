"""The rule for the text of a record, topic and properties, which no checksum covers.

Law: what 4.9 writes is whole. What a cut, an unwritten sector or foreign bytes leave there is not:

- a topic or properties whose last byte is zero were cut off;
- properties that are not UTF-8, or hold no 0x01 and so no name, were never properties;
- a whole sector of zeros inside the text was never written.

Every judge of a record asks this rule: `record.decode_record` and its compiled twin, the walk and
its reference, and the readers that hand out records as bytes. Limits: docs/format/properties.md.
"""

from __future__ import annotations

import itertools
from typing import Final

from rocketstore.errors import FieldRangeError, RefusedMessageError

SECTOR_SIZE_BYTES: Final = 512
"""The least that a disk writes as a whole."""

NAME_END: Final = b"\x01"


def are_properties(block: bytes) -> bool:
    r"""Return whether bytes can be the properties of a stored message; none at all can.

    >>> are_properties(b"TAGS\x01paid"), are_properties(b"TAGS\x01pa\0\0")
    (True, False)
    """
    return not block or (block[-1] != 0 and hold_names(block))


def hold_names(block: bytes) -> bool:
    """Return whether bytes are UTF-8 with a 0x01 in it, as a block with any name is."""
    if NAME_END not in block:
        return False
    if block.isascii():
        return True
    try:
        block.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def storable_properties(block: bytes) -> bytes:
    """Return a block that came encoded as it may be stored: so that no reader calls it damage.

    A zero at the end gets a separator after it; without, the block would look cut off.
    """
    if not block:
        return block
    if not hold_names(block):
        raise RefusedMessageError(
            f"properties are not UTF-8, or name nothing: {block[:40]!r}",
            hint="send them as name 0x01 value 0x02 …; encode binary values, for example as base64",
        )
    return block if block[-1] else block + b"\x02"


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


def check_text(text: bytes, topic_size: int, physical_offset: int) -> None:
    """Raise `FieldRangeError` unless `is_text_whole`."""
    if not is_text_whole(text, topic_size, physical_offset):
        raise FieldRangeError(
            f"topic or properties, from physical offset {physical_offset}, were cut off or "
            "overwritten",
            field="topic, properties",
            expected="properties in UTF-8 with 0x01 after a name, no zero at the end of either",
            found=text[topic_size + 2 :][:40] or text[:topic_size],
        )
