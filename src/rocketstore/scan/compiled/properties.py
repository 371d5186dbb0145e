"""Find names and values in many property blocks at once, as a column of maps wants them."""

from __future__ import annotations

from typing import Any, Final

from rocketstore.scan.compiled import BYTES, COLUMNS, NUMBERS, inner, kernel, types
from rocketstore.scan.compiled.memory import load_u8

_STRIDED = types.Array(types.int64, 1, "A", readonly=True)

_NAME_END: Final = 1
_VALUE_END: Final = 2
_COMPARED_NAMES: Final = 64
"""Names of a block that are compared with each other; of a block with more, nothing is known."""


@inner
def _has_name_before(buffer: Any, parts: Any, first: Any, part: Any) -> Any:
    """Whether a part of the same block, from row `first` on, has the name of row `part`."""
    if part - first > _COMPARED_NAMES:
        return True
    at, size = parts[part, 0], parts[part, 1]
    for other in range(first, part):
        if parts[other, 1] != size:
            continue
        same = 0
        while same < size and load_u8(buffer, at + same) == load_u8(buffer, parts[other, 0] + same):
            same += 1
        if same == size:
            return True
    return False


@kernel(types.UniTuple(types.int64, 2)(BYTES, _STRIDED, _STRIDED, NUMBERS, COLUMNS))
def split_properties(buffer: Any, at: Any, size: Any, ends: Any, parts: Any) -> Any:
    """Fill `parts` with place and size of each name and value of ``buffer[at[i]:at[i] + size[i]]``.

    A part counts when something stands before its first name separator and behind it (4.9.3,
    MessageDecoder.string2messageProperties).

    Parameters
    ----------
    ends
        Filled with the number of parts up to and including each block's.
    parts
        Shape ``(n, 4)``: name's place, name's size, value's place, value's size.

    Returns
    -------
    count, doubtful
        Rows filled, -1 when a block is not inside the buffer or an array is too short; and 1 when
        some block may hold a name twice, else 0.
    """
    if len(size) < len(at) or len(ends) < len(at) or parts.shape[1] != 4:
        return -1, 0
    count = 0
    doubtful = 0
    for block in range(len(at)):
        position, length = at[block], size[block]
        if position < 0 or length < 0 or position > len(buffer) - length:
            return -1, 0
        stop = position + length
        first = count
        while position < stop:
            name_stop = -1
            end = position
            while end < stop:
                byte = load_u8(buffer, end)
                if byte == _VALUE_END:
                    break
                if byte == _NAME_END and name_stop < 0:
                    name_stop = end
                end += 1
            if name_stop > position and name_stop + 1 < end:
                if count >= parts.shape[0]:
                    return -1, 0
                parts[count, 0] = position
                parts[count, 1] = name_stop - position
                parts[count, 2] = name_stop + 1
                parts[count, 3] = end - name_stop - 1
                if _has_name_before(buffer, parts, first, count):
                    doubtful = 1
                count += 1
            position = end + 1
        ends[block] = count
    return count, doubtful
