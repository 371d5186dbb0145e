"""The compiled key search finds what its plain-Python reference does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstore.format.java_hash import string_hash
from support.guarded_memory import guarded
from support.oracle import hits as reference
from support.oracle.index import positive_hash, put_item
from support.scan_strategies import damaged_logs
from support.synthetic_log import SyntheticLog

compiled = pytest.importorskip("rocketstore.native.lookup")

SLOTS, ITEMS = 4, 40
TOPICS = ("AaTopic", "BBTopic", "T")
KEYS = ("Aa", "BB", "k1", "k2", "ß")


@st.composite
def keyed_logs(draw: st.DrawFn) -> SyntheticLog:
    log = SyntheticLog(base=draw(st.sampled_from([0, 4096])))
    words = st.lists(st.sampled_from([*KEYS, ""]), max_size=3).map(" ".join)
    for _ in range(draw(st.integers(1, 12))):
        parts = draw(
            st.lists(
                st.one_of(
                    words.map(lambda text: f"KEYS\x01{text}"),
                    st.sampled_from(KEYS).map(lambda text: f"UNIQ_KEY\x01{text}"),
                    st.sampled_from(["TAGS\x01k1", "XKEYS\x01k1", "KEYS", "UNIQ_KEZ\x01k2", ""]),
                ),
                max_size=4,
            )
        )
        log.add(
            topic=draw(st.sampled_from(TOPICS)).encode(),
            properties="\x02".join(parts).encode(),
            sys_flag=draw(st.sampled_from([0, 0, 0x10, 0x30])),
            store_timestamp=draw(st.sampled_from([1_000, 1_999, 2_000, 5_500])),
        )
    return log


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_key_search_kernel_equals_its_reference(data: st.DataObject) -> None:
    log = data.draw(keyed_logs() | damaged_logs())
    topic, key = data.draw(st.sampled_from(TOPICS)), data.draw(st.sampled_from(KEYS))
    hashed = positive_hash(string_hash(f"{topic}#{key}"))
    index = np.zeros(40 + 4 * SLOTS + 20 * ITEMS, np.uint8)
    places = [log.base + at for at, _ in log.records] or [log.base]
    offsets = st.sampled_from(places) | st.integers(-100, 9000) | st.sampled_from([2**62, -(2**63)])
    for offset in data.draw(st.lists(offsets, max_size=20)):
        item_hash = data.draw(st.sampled_from([hashed, hashed, hashed + SLOTS, 7]))
        put_item(index, SLOTS, ITEMS, item_hash, offset, data.draw(st.sampled_from([1_000, 3_000])))
    name = np.frombuffer(f"{topic}#{key}".encode(), np.uint8)
    buffer = guarded(bytes(log.data))
    begin = data.draw(st.sampled_from([0, 1_000, 1_500, 6_000]))
    end = data.draw(st.sampled_from([2**62, 1_999, 500]))
    readable = data.draw(st.just(len(buffer)) | st.integers(-5, len(buffer) + 5))
    answers = []
    for find_hits in (compiled.find_hits, reference.find_hits):
        found, number = [], 0
        while True:
            hits = np.zeros(2 * 3 + 1, np.int64)
            number, count = find_hits(
                index, SLOTS, ITEMS, name, len(topic.encode()), begin, end, number,
                buffer, log.base, readable, hits,
            )  # fmt: skip
            found.append((number, [(hits[n], hits[4 + n]) for n in range(count)]))
            if number == 0:
                break
        answers.append(found)
    assert answers[0] == answers[1]
