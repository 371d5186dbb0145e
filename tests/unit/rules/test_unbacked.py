"""What entries without an intact record are, among as many damaged ranges as there may be."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from rocketstore.format.queue_entry import ENTRY_STRUCT, entry_array
from rocketstore.rules.unbacked import LogBounds, Unbacked, UnbackedKind, unbacked_runs

MANY = 50_000
STEP = 1000


def entries(*offsets: int) -> Any:
    return entry_array(b"".join(ENTRY_STRUCT.pack(one, 200, 7) for one in offsets))


def bounds(count: int, *, end: int) -> LogBounds:
    """Return a log that lost 200 bytes in each thousand, after which others were left."""
    starts = np.arange(count, dtype=np.int64) * STEP
    ranges = np.stack((starts, starts + 200), axis=1)
    return LogBounds(0, end, MANY * STEP * 2, 1 << 30, ranges[starts < end], ranges[starts >= end])


@pytest.mark.parametrize(
    ("offset", "kind"),
    [
        (0, UnbackedKind.LOST), (199, UnbackedKind.LOST), (200, UnbackedKind.WRONG),
        (7000, UnbackedKind.LOST), (9_999, UnbackedKind.WRONG), (10_199, UnbackedKind.WRONG),
        (10_200, UnbackedKind.STALE), (1 << 40, UnbackedKind.BEYOND),
    ],
)  # fmt: skip
def test_an_entry_is_judged_by_the_range_that_it_points_into(offset, kind):
    assert unbacked_runs(entries(offset), 5, bounds(40, end=10_000)) == [Unbacked(kind, 5, 6)]


def test_each_range_is_one_run():
    found = unbacked_runs(entries(0, 100, 500, 1000), 0, bounds(40, end=10_000))
    lost, wrong = UnbackedKind.LOST, UnbackedKind.WRONG
    assert found == [Unbacked(lost, 0, 2), Unbacked(wrong, 2, 3), Unbacked(lost, 3, 4)]


def test_a_judgement_copies_no_range():
    """There are as many judgements as damaged ranges: each that looks at all is their square."""
    log, few = bounds(MANY, end=MANY * STEP // 2), entries(0, 500, MANY * STEP - STEP)
    unbacked_runs(few, 0, log)
    tracemalloc.start()
    try:
        unbacked_runs(few, 0, log)
        assert tracemalloc.get_traced_memory()[1] < MANY
    finally:
        tracemalloc.stop()
