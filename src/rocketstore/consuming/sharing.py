"""Which consumer of a group reads which queues.

Source: AllocateMessageQueueAveragely of 4.9, the default of its clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


def share_of(queues: Sequence[T], index: int, member_count: int) -> Sequence[T]:
    """Return the queues of one member: a run of neighbours, the first members one more.

    >>> [list(share_of("abcde", index, 3)) for index in range(3)]
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    size, more = divmod(len(queues), member_count)
    start = index * size + min(index, more)
    return queues[start : start + size + (index < more)]
