"""The compiled gather kernel selects and copies what its plain-Python reference does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstore.format.java_hash import string_hash
from rocketstore.format.queue_entry import FILLER, encode_entries
from rocketstore.scan.gather_plan import GatherStop, gather_plan
from rocketstore.scan.reference.gather import gather as reference
from support.guarded_memory import guarded
from support.scan_strategies import damaged_logs
from support.synthetic_log import MAGIC_V2, SyntheticLog

compiled = pytest.importorskip("rocketstore.scan.compiled.gather").gather

TOPICS = ("TopicA", "TopicB", "Thema-ä")
TAGS = ("TagA", "TagB", "Aa", "BB", "标签", "x")
"""``Aa`` and ``BB`` hash alike."""


def code_of(tag: str) -> int:
    return string_hash(tag) & 0xFFFFFFFF


@st.composite
def healthy_logs(draw: st.DrawFn) -> SyntheticLog:
    log = SyntheticLog(base=draw(st.sampled_from([0, 4096])))
    for _ in range(draw(st.integers(1, 20))):
        parts = draw(
            st.lists(
                st.sampled_from(
                    [*(f"TAGS\x01{tag}" for tag in TAGS), "KEYS\x01k", "TAGS\x01", "T"]
                ),
                max_size=4,
            )
        )
        log.add(
            topic=draw(st.sampled_from(TOPICS)).encode(),
            queue_id=draw(st.integers(0, 1)),
            properties="\x02".join(parts).encode(),
            body=draw(st.binary(max_size=60)),
            sys_flag=draw(st.sampled_from([0, 0, 0x10, 0x20, 0x30])),
            magic=draw(st.sampled_from([0xDAA320A7, 0xDAA320A7, MAGIC_V2])),
        )
    return log


def entries_for(log: SyntheticLog, draw: st.DrawFn) -> bytes:
    """Entries of the log's records, with every way of being wrong among them."""
    places = [(log.base + at, size) for at, size in log.records] or [(log.base, 100)]
    codes = st.sampled_from([string_hash(tag) for tag in TAGS] + [0, -(2**31) - 5, 2**40])
    right = st.tuples(st.sampled_from(places), codes).map(lambda drawn: (*drawn[0], drawn[1]))
    wrong = st.tuples(
        st.sampled_from(places).map(lambda place: place[0]) | st.integers(-50, 5000),
        st.integers(-5, 400) | st.sampled_from([0x7FFFFFFF, -(2**31)]),
        codes,
    )
    strange = st.sampled_from([tuple(FILLER), (0, 0, 0), (-(2**63), 5, 0), (2**63 - 1, 91, 0)])
    drawn = draw(st.lists(st.one_of(right, right, right, wrong, strange), max_size=30))
    return encode_entries(drawn)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_gather_kernel_equals_its_reference(data: st.DataObject) -> None:
    log = data.draw(healthy_logs() | damaged_logs())
    entries = guarded(entries_for(log, data.draw))
    buffer = guarded(bytes(log.data))
    tags = data.draw(st.lists(st.sampled_from(TAGS), max_size=3, unique=True))
    plan, names = gather_plan(
        data.draw(st.sampled_from([*TOPICS, "TopicTest"])),
        data.draw(st.integers(0, 1)),
        data.draw(
            st.tuples(
                st.integers(0, 2000), st.integers(0, 10), st.integers(0, 500), st.integers(0, 4)
            )
        ),
        [(code_of(tag), tag) for tag in tags],
    )
    arguments = (
        buffer,
        log.base,
        data.draw(st.just(len(buffer)) | st.integers(-5, len(buffer) + 5)),
        data.draw(st.sampled_from([0, log.base, log.base + 150])),
        entries,
        data.draw(st.integers(-1, 5)),
        data.draw(st.integers(0, 40)),
        plan,
        names,
        data.draw(st.integers(0, 12)),
        data.draw(st.sampled_from([0, log.base + 300, 2**62])),
    )
    room = data.draw(st.sampled_from([4000, 300, 0]))
    state = data.draw(st.sampled_from([(0, 0), (0, 0), (2, 150)]))
    state = state if state[1] <= room else (0, 0)
    outs = [np.zeros(room, dtype=np.uint8) for _ in range(2)]
    ours = compiled(*arguments, guarded(bytes(room)), *state)
    first = compiled(*arguments, outs[0], *state)
    second = reference(*arguments, outs[1], *state)
    assert ours == first == second
    assert bytes(outs[0]) == bytes(outs[1])


def test_a_record_of_another_queue_ends_the_call_instead_of_being_copied() -> None:
    log = SyntheticLog().add(topic=b"TopicA", queue_id=1)
    plan, names = gather_plan("TopicA", 0, (1000, 10, 1000, 10), [])
    entries = np.frombuffer(encode_entries([(0, log.records[0][1], 0)]), np.uint8)
    buffer = np.frombuffer(bytes(log.data), np.uint8)
    out = np.zeros(1000, np.uint8)
    for gather in (compiled, reference):
        reason, entry, count, *_ = gather(
            buffer, 0, buffer.size, 0, entries, 0, 1, plan, names, 32, 0, out, 0, 0
        )
        assert (reason, entry, count) == (GatherStop.DOUBTFUL, 0, 0)
    assert not out.any()
