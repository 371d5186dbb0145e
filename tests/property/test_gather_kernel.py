"""The compiled gather kernel selects and copies what its plain-Python reference does.

So does what makes whole pages in C, or it leaves the page to the kernel.
"""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstore.format.java_hash import string_hash
from rocketstore.format.queue_entry import FILLER, encode_entries
from rocketstore.native.gather_plan import GatherStop, gather_plan
from rocketstore.storage.reading import raw_page
from rocketstore.storage.results import GetMessageStatus, GetRawResult
from support.guarded_memory import guarded
from support.oracle.gather import gather as reference
from support.scan_strategies import damaged_logs
from support.synthetic_log import MAGIC_V2, SyntheticLog

compiled = pytest.importorskip("rocketstore.native.page").gather

needs_gatherer = pytest.mark.skipif(
    raw_page._Gatherer is None,
    reason="pages in C are optional: switched off, or built without a C compiler",
)

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


# --- pages in C -----------------------------------------------------------------------------------


def gatherer_of(topic: str, queue_id: int, limits: tuple[int, int, int, int]):
    made = raw_page._Gatherer
    return made(topic.encode(), queue_id, limits, GetRawResult, GetMessageStatus.FOUND)


@needs_gatherer
@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_page_in_c_is_the_page_of_the_reference_or_none(data: st.DataObject) -> None:
    log = data.draw(healthy_logs() | damaged_logs())
    entries = guarded(entries_for(log, data.draw), at_end=data.draw(st.booleans()))
    buffer = guarded(bytes(log.data), at_end=data.draw(st.booleans()))
    topic = data.draw(st.sampled_from([*TOPICS, "TopicTest"]))
    queue_id = data.draw(st.integers(0, 1))
    limits = data.draw(
        st.tuples(st.integers(0, 2000), st.integers(0, 10), st.integers(0, 500), st.integers(0, 4))
    )
    readable = data.draw(st.just(len(buffer)) | st.integers(-5, len(buffer) + 5))
    first, stop = data.draw(st.integers(-1, 5)), data.draw(st.integers(0, 40))
    most = data.draw(st.integers(-1, 12))
    in_disk_below = data.draw(st.sampled_from([0, log.base + 300, 2**62]))
    queue_base = data.draw(st.sampled_from([0, 100]))
    page = gatherer_of(topic, queue_id, limits).page(
        buffer, log.base, readable, entries, queue_base, queue_base + first, queue_base + stop,
        most, in_disk_below, 7, 9,
    )  # fmt: skip
    if page is None:
        return
    out = np.zeros(8000, dtype=np.uint8)
    plan, names = gather_plan(topic, queue_id, limits, [])
    reason, entry, count, written, skipped, view = reference(
        buffer, log.base, readable, 0, entries, first, stop, plan, names, most, in_disk_below,
        out, 0, 0,
    )  # fmt: skip
    assert reason <= GatherStop.FULL
    assert (skipped, view) == (0, 0)
    records = bytes(out[:written])
    assert type(page) is GetRawResult
    assert page == (GetMessageStatus.FOUND, records, count, queue_base + entry, 7, 9, 0)


def plain_log(count: int) -> tuple[np.ndarray, np.ndarray, SyntheticLog]:
    log = SyntheticLog()
    for number in range(count):
        log.add(topic=b"TopicA", queue_id=0, body=b"%d" % number * 10, properties=b"K\x01v")
    entries = encode_entries([(at, size, 0) for at, size in log.records])
    return guarded(bytes(log.data)), guarded(entries), log


@needs_gatherer
@pytest.mark.parametrize("count", [1, 2, 9, 32, 128])
def test_plain_records_become_a_page_in_c(count: int) -> None:
    buffer, entries, _ = plain_log(count)
    gatherer = gatherer_of("TopicA", 0, (1 << 20, 1000, 1 << 20, 1000))
    page = gatherer.page(buffer, 0, len(buffer), entries, 0, 0, count, 1000, 0, 0, count)
    assert page == (GetMessageStatus.FOUND, bytes(buffer), count, count, 0, count, 0)


@needs_gatherer
def test_one_changed_byte_of_what_a_page_is_judged_by_leaves_it_to_the_kernel() -> None:
    buffer, entries, log = plain_log(3)
    gatherer = gatherer_of("TopicA", 0, (1 << 20, 1000, 1 << 20, 1000))
    at, size = log.records[1]
    body_size = size - 91 - len("TopicA") - 3
    judged = [
        *range(8), *range(12, 16), *range(28, 36), 39, *range(84, 88),
        *range(88 + body_size, 88 + body_size + 1 + len("TopicA") + 2),
    ]  # fmt: skip
    for place in judged:
        buffer[at + place] ^= 0x30
        assert gatherer.page(buffer, 0, len(buffer), entries, 0, 0, 3, 32, 0, 0, 3) is None, place
        buffer[at + place] ^= 0x30
    assert gatherer.page(buffer, 0, len(buffer), entries, 0, 0, 3, 32, 0, 0, 3).message_count == 3


@needs_gatherer
def test_odd_calls_are_errors_of_python() -> None:
    buffer, entries, _ = plain_log(2)
    gatherer = gatherer_of("TopicA", 0, (1 << 20, 1000, 1 << 20, 1000))
    good = [buffer, 0, len(buffer), entries, 0, 0, 2, 32, 0, 0, 2]
    for position in range(9):
        for odd in (None, "x", 2**80, object(), 1.5):
            with pytest.raises((TypeError, OverflowError, BufferError)):
                gatherer.page(*good[:position], odd, *good[position + 1 :])
    for position in (1, 2, 4, 5, 6, 7, 8):
        for number in (-(2**63), -1, 2**62, 2**63 - 1):
            arguments = [*good[:position], number, *good[position + 1 :]]
            page = gatherer.page(*arguments)
            assert page is None or page.records in {
                bytes(buffer),
                bytes(buffer[: len(buffer) // 2]),
            }
    for arguments in ((), good[:-1], [*good, 1]):
        with pytest.raises(TypeError):
            gatherer.page(*arguments)
    for unfit in (("t", 0), (b"t", 2**31), (b"t", None)):
        with pytest.raises((TypeError, OverflowError)):
            raw_page._Gatherer(*unfit, (1, 1, 1, 1), GetRawResult, None)
    with pytest.raises(TypeError):
        raw_page._Gatherer(b"t", 0, (1, 1, 1, 1), dict, None)
    with pytest.raises(TypeError):
        gatherer.__init__(b"t", 0, (1, 1, 1, 1), GetRawResult, None)
    with pytest.raises(TypeError):
        raw_page._Gatherer.__new__(raw_page._Gatherer).page(*good)


@needs_gatherer
def test_pages_leave_nothing_behind() -> None:
    buffer, entries, _ = plain_log(5)
    gatherer = gatherer_of("TopicA", 0, (1 << 20, 1000, 1 << 20, 1000))

    def read() -> None:
        for stop in (5, 3, 0):
            gatherer.page(buffer, 0, len(buffer), entries, 0, 0, stop, 32, 0, 0, 5)
        gatherer.page(buffer, 0, len(buffer) - 1, entries, 0, 0, 5, 32, 0, 0, 5)

    read()
    gc.collect()
    found, blocks = sys.getrefcount(GetMessageStatus.FOUND), sys.getallocatedblocks()
    counts = sys.getrefcount(buffer), sys.getrefcount(entries), sys.getrefcount(GetRawResult)
    for _ in range(1000):
        read()
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 50
    assert sys.getrefcount(GetMessageStatus.FOUND) - found < 10
    after = sys.getrefcount(buffer), sys.getrefcount(entries), sys.getrefcount(GetRawResult)
    assert all(now - before < 10 for now, before in zip(after, counts, strict=True))
