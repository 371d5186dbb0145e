"""The compiled kernels of the audit find what their plain-Python references do."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstore.native import index as compiled_index
from support.guarded_memory import guarded
from support.oracle import audit as reference

ITEMS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 5, 2**31 - 1, -1, -(2**31)]),
        st.integers(-1, 40) | st.just(2**62),
        st.integers(0, 12) | st.just(-1),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(ITEMS, st.integers(0, 4), st.integers(0, 12))
def test_links_are_judged_as_by_the_reference(rows, slots, cut):
    items = np.array([(h, o, 0, p) for h, o, p in rows], dtype=reference.ITEM_DTYPE)
    content = items.tobytes()
    answers = []
    for follow in (compiled_index.follow_items, reference.follow_items):
        newest, found = np.zeros(slots, np.int64), np.zeros(5, np.int64)
        follow(guarded(content[: cut * 20]), 1, newest, found)
        follow(guarded(content[cut * 20 :]), 1 + min(cut, len(rows)), newest, found)
        answers.append((newest.tolist(), found.tolist()))
    assert answers[0] == answers[1]
