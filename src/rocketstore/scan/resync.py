"""Resynchronise with a damaged CommitLog: find the next record that can be believed.

A record names its own position, so a candidate is believed when independent witnesses agree: the
magic number, a length that fits what remains, the self-address, inner lengths that add up, text
that is whole, and the CRC of the body (an empty one has none, as in 4.9). A BLANK is believed when
it says exactly how much of the file remains. A whole record carried inside another message's body
has the right magic and CRC but the wrong address, and is passed over.

Law: what is believed here is what ``walk`` accepts with `check_crc`, so a scan that begins in the
middle finds the records that one from the beginning finds.
Limit: who writes a body that holds a record with the very address it will have cannot be told from
an honest record by that record alone; a scan from an earlier record steps over it (``split``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.scan import kernels

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def find_record(
    buffer: npt.NDArray[np.uint8],
    position: int,
    *,
    base: int,
    stop: int | None = None,
    file_size: int | None = None,
) -> int | None:
    """Return where the first believable record or BLANK at or behind `position` starts.

    Parameters
    ----------
    buffer
        Bytes of one CommitLog file from its beginning.
    position
        Where to begin; any byte.
    base
        Physical offset of ``buffer[0]``, the number in the file's name.
    stop
        The record must start before this position; default: the end of the buffer.
    file_size
        Nominal size of the file; default: the size of the buffer.

    Returns
    -------
    int or None
        A position in the buffer; None when nothing there can be believed.
    """
    size = len(buffer)
    found = kernels.resync(
        buffer,
        position,
        size if stop is None else stop,
        base,
        size if file_size is None else file_size,
    )
    return None if found < 0 else int(found)
