"""The BLANK record: what fills a CommitLog file after its last message.

Law: every complete CommitLog file ends in exactly one BLANK of at least 8 bytes. Its size is all
that remains of the file; only its first 8 bytes mean anything, the rest may be anything.

How derived: CommitLog.DefaultAppendMessageCallback.doAppend of 4.9 (spec F3.1).
"""

from __future__ import annotations

import struct
from typing import Final

from rocketstore.errors import FieldRangeError

BLANK_MAGIC: Final = 0xCBD43194
"""CommitLog.BLANK_MAGIC_CODE, -875286124 as Java prints it."""

END_FILE_MIN_BLANK_SIZE: Final = 8
"""Bytes that always stay free after a record (CommitLog.END_FILE_MIN_BLANK_LENGTH): a record of
size L goes into a file only if ``L + 8`` bytes are left."""

_BLANK: Final = struct.Struct(">iI")

_SIZE_MAX: Final = 0x7FFFFFFF


def encode_blank(remaining: int) -> bytes:
    """Return the 8 bytes that close a file of which `remaining` bytes are left.

    Raises `FieldRangeError` where that is below 8 or does not fit a signed 32-bit number.

    >>> encode_blank(100).hex()
    '00000064cbd43194'
    """
    if not END_FILE_MIN_BLANK_SIZE <= remaining <= _SIZE_MAX:
        raise FieldRangeError(
            "a blank cannot have this size",
            field="total_size",
            expected=f"{END_FILE_MIN_BLANK_SIZE} to {_SIZE_MAX}",
            found=remaining,
        )
    return _BLANK.pack(remaining, BLANK_MAGIC)
