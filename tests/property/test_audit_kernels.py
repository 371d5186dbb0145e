"""The compiled kernels of the audit find what their plain-Python references do."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstore.native import columns as compiled
from rocketstore.native import index as compiled_index
from rocketstore.scan.columns import new_columns
from rocketstore.scan.scanner import scan_window
from support.guarded_memory import guarded
from support.oracle import audit as reference
from support.synthetic_log import SyntheticLog

NAME = "INNER_MULTI_DISPATCH"
PROPERTIES = st.lists(
    st.sampled_from(
        [f"{NAME}\x01%LMQ%a", NAME, f"X{NAME}\x01a", f"{NAME}X\x01a", "TAGS\x01a", "", "I" * 40,
         f"KEYS\x01{NAME}\x01b", NAME[:-3] + f"{NAME}\x01a"]
    ),
    max_size=5,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(PROPERTIES, min_size=1, max_size=8))
def test_records_with_extra_queues_are_those_of_the_reference(lists: list[list[str]]) -> None:
    log = SyntheticLog()
    for parts in lists:
        log.add(properties="\x02".join(["a\x01b", *parts]).encode())
    buffer = guarded(bytes(log.data))
    cols = next(scan_window(buffer, base=0)).columns.cols
    found = []
    for kernel in (compiled.list_extra_queues, reference.list_extra_queues):
        rows = np.zeros(len(cols), np.int64)
        found.append(rows[: kernel(buffer, cols, rows)].tolist())
    assert found[0] == found[1]
    wanted = [any(one.startswith(f"{NAME}\x01") for one in parts) for parts in lists]
    assert found[0] == [row for row, has in enumerate(wanted) if has]


def test_no_record_has_no_extra_queue() -> None:
    rows = np.zeros(0, np.int64)
    assert compiled.list_extra_queues(np.zeros(0, np.uint8), new_columns(0), rows) == 0


ITEMS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 5, 2**31 - 1, -1, -(2**31)]),
        st.integers(-1, 40) | st.just(2**62),
        st.integers(0, 12) | st.just(-1),
    ),
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(ITEMS, st.integers(0, 4), st.integers(0, 12))
def test_links_are_judged_as_by_the_reference(rows: list, slots: int, cut: int) -> None:
    items = np.array([(h, o, 0, p) for h, o, p in rows], dtype=reference.ITEM_DTYPE)
    content = items.tobytes()
    answers = []
    for follow in (compiled_index.follow_items, reference.follow_items):
        newest, found = np.zeros(slots, np.int64), np.zeros(5, np.int64)
        follow(guarded(content[: cut * 20]), 1, newest, found)
        follow(guarded(content[cut * 20 :]), 1 + min(cut, len(rows)), newest, found)
        answers.append((newest.tolist(), found.tolist()))
    assert answers[0] == answers[1]
