"""Whether work that is done again and again keeps memory."""

import gc
import sys
from collections.abc import Callable

_STRETCHES = 5


def assert_keeps_nothing(
    work: Callable[[], object], times: int, *objects: object, most: int = 1
) -> None:
    """Run ``work`` often: Python's memory must not grow, nor the references to ``objects``.

    Each time ``most`` blocks are one too many.

    Caches and free lists grow in one stretch of runs or another, a leak by a block each time in
    all of them: of five stretches the one that grew least tells.
    """
    work()
    gc.collect()
    references = [sys.getrefcount(each) for each in objects]
    growths = []
    for _ in range(_STRETCHES):
        gc.collect()
        blocks = sys.getallocatedblocks()
        for _ in range(times):
            work()
        gc.collect()
        growths.append(sys.getallocatedblocks() - blocks)
    assert min(growths) < most * times, growths
    assert [sys.getrefcount(each) for each in objects] == references
