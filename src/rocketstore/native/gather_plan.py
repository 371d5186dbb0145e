"""What the gather kernel is told: whose records, how many, with which tags.

The numbers that stay the same from call to call are packed once per (topic, queue, tags) into a
*plan*, an int64 array, and their texts into *names*, a byte array, because each argument of a
kernel call costs time and a call for 32 small messages must not take more than 5 microseconds.

Law: this module names the places in those arrays and nothing else reads or writes them by number.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt


class PlanColumn(IntEnum):
    """Places in a plan; behind them three numbers per wanted tag: code, start, size."""

    QUEUE_ID = 0
    TOPIC_SIZE = 1
    """The topic stands at the start of the names."""
    MEMORY_BYTES = 2
    MEMORY_COUNT = 3
    DISK_BYTES = 4
    DISK_COUNT = 5
    TAG_COUNT = 6
    """0 wants every message."""
    TAGS = 7


NUMBERS_PER_TAG: Final = 3


class GatherStop(IntEnum):
    """Why a gather ended where it did."""

    END = 0
    """All entries were looked at."""
    FULL = 1
    """The page can take no more."""
    ELSEWHERE = 2
    """The next entry's record is not in this file."""
    DOUBTFUL = 3
    """The next entry's record is intact but of another topic or queue; multi-dispatch may explain
    it, and only its properties tell."""
    NO_ROOM = 4
    """The next record does not fit into the output."""


class GatherView(IntEnum):
    """What the entries that gave nothing were, while nothing has been found."""

    NONE = 0
    """No such entry."""
    LOST = 1
    """The last one's record cannot be read, or it is a filler."""
    UNWANTED = 2
    """The last one's tags do not match."""


class GatherPlan(NamedTuple):
    """Plan and names."""

    numbers: npt.NDArray[np.int64]
    names: npt.NDArray[np.uint8]


def gather_plan(
    topic: str, queue_id: int, limits: tuple[int, int, int, int], tags: Iterable[tuple[int, str]]
) -> GatherPlan:
    """Pack a plan.

    Parameters
    ----------
    limits
        Bytes and count of a page in memory, bytes and count of a page on disk.
    tags
        Code (low 32 bits) and text of each wanted tag; none wants everything.
    """
    texts = [topic.encode("utf-8", "surrogatepass")]
    numbers = [queue_id, len(texts[0]), *limits, 0]
    at = len(texts[0])
    for code, tag in tags:
        text = tag.encode("utf-8", "surrogatepass")
        numbers += [code, at, len(text)]
        numbers[PlanColumn.TAG_COUNT] += 1
        texts.append(text)
        at += len(text)
    return GatherPlan(
        np.array(numbers, dtype=np.int64), np.frombuffer(b"".join(texts) or b"\0", np.uint8)
    )
