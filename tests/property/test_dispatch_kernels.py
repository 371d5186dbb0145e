"""The compiled dispatch and index kernels leave the same bytes as their plain-Python references."""

import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstore.format.index_file import IndexLayout
from rocketstore.format.java_hash import key_hash
from support.memory_dispatch import MemoryDispatch
from support.oracle import dispatch as reference_dispatch
from support.oracle import index as reference_index
from support.scan_strategies import CHOICES, damaged_logs, properties_blocks
from support.synthetic_log import SyntheticLog

compiled_dispatch = pytest.importorskip("rocketstore.native.dispatch")
compiled_index = pytest.importorskip("rocketstore.native.index")

TOPICS = (b"TopicA", b"AaTopic", b"BBTopic", "Thema-ä".encode(), b"SCHEDULE_TOPIC_XXXX")
KEYS = (b"k1", b"k2", b"Aa", b"BB", "schlüssel".encode(), "😀".encode(), b"")
PARTS = (
    b"UNIQ_KEY\x01u1", b"TAGS\x01t", b"DELAY\x012", b"DELAY\x019", b"INNER_MULTI_DISPATCH\x01x"
)  # fmt: skip


@st.composite
def healthy_logs(draw: st.DrawFn) -> SyntheticLog:
    """Records of a few queues whose queue offsets rise, repeat, jump and collide."""
    log = SyntheticLog(base=draw(st.sampled_from([0, 65536])))
    chosen = draw(CHOICES)
    for _ in range(draw(st.integers(0, 30))):
        parts = [b"KEYS\x01" + b" ".join(chosen.choices(KEYS, k=chosen.randint(0, 4)))]
        parts += chosen.choices(PARTS, k=chosen.randint(0, 3))
        chosen.shuffle(parts)
        log.add(
            topic=chosen.choice(TOPICS),
            queue_id=chosen.randint(0, 1),
            queue_offset=chosen.choice([*range(13), *range(13), -1, 10**6, 2**62]),
            properties=b"\x02".join(parts),
            sys_flag=chosen.choice([0, 0, 0, 0x4, 0x8, 0xC, 0x10]),
            store_timestamp_ms=chosen.choice([0, 999, 10_000, 20_500, 2**40]),
            body=b"",
        )
    return log


@settings(max_examples=150)
@given(healthy_logs() | damaged_logs(), st.booleans(), st.booleans())
def test_kernel_and_reference_enter_the_same_bytes(log, force, index_enabled):
    pictures = []
    for loop in (compiled_dispatch.RowDispatch, reference_dispatch.RowDispatch):
        run = MemoryDispatch(force=force, is_enabled=index_enabled)
        run.run(loop, bytes(log.data), log.base)
        # Twice: the second time everything is there.
        run.run(loop, bytes(log.data), log.base)
        pictures.append(run.picture())
    assert pictures[0] == pictures[1]


@given(healthy_logs())
def test_dispatching_twice_changes_no_byte(log):
    run = MemoryDispatch(layout=IndexLayout(7, 1000))
    run.run(compiled_dispatch.RowDispatch, bytes(log.data), log.base)
    before = run.picture()
    run.run(compiled_dispatch.RowDispatch, bytes(log.data), log.base)
    after = run.picture()
    assert (after["files"], after["index"]) == (before["files"], before["index"])


@given(st.lists(properties_blocks(is_whole=True), max_size=8))
def test_malformed_properties_are_indexed_alike(blocks):
    log = SyntheticLog()
    for number, block in enumerate(blocks):
        log.add(properties=block, queue_offset=number)
    pictures = []
    for loop in (compiled_dispatch.RowDispatch, reference_dispatch.RowDispatch):
        run = MemoryDispatch()
        run.run(loop, bytes(log.data), 0)
        pictures.append(run.picture())
    assert pictures[0] == pictures[1]


SLOTS, ITEMS = 3, 8
SIZE = 40 + 4 * SLOTS + 20 * ITEMS


def index_bytes(chosen: random.Random) -> bytes:
    """An index file, some of whose numbers are true."""

    def small() -> int:
        return chosen.randint(-2, ITEMS + 2)

    def large(usual: int) -> int:
        return chosen.choice((usual, usual, -(2**63), 2**63 - 1, -1, 2**60))

    times = (large(chosen.randint(0, 5000)) for _ in range(4))
    header = struct.pack(">qqqqii", *times, small(), small())
    slots = struct.pack(f">{SLOTS}i", *(small() for _ in range(SLOTS)))
    items = b"".join(
        struct.pack(
            ">iqii",
            chosen.randint(-1, 7),
            large(chosen.randint(0, 9)),
            chosen.choice((*range(-1, 5), 2**31 - 1)),
            small(),
        )
        if chosen.randrange(5)
        else bytes(20)
        for _ in range(ITEMS)
    )
    return header + slots + items


@given(CHOICES.map(index_bytes), st.integers(0, 12))
def test_slots_are_rebuilt_alike_whatever_the_bytes(data, limit):
    rebuilt = []
    for rebuild_slots in (compiled_index.rebuild_slots, reference_index.rebuild_slots):
        array = np.frombuffer(bytearray(data), np.uint8)
        kept = rebuild_slots(array, SLOTS, ITEMS, limit)
        rebuilt.append((int(kept), bytes(array)))
    assert rebuilt[0] == rebuilt[1]


@given(st.lists(st.sampled_from(["k1", "k2", "Aa", "BB", "x"]), min_size=1, max_size=7))
def test_rebuilding_the_slots_of_a_whole_file_changes_nothing(keys):
    data = np.zeros(SIZE, np.uint8)
    for number, key in enumerate(keys):
        reference_index.put_item(data, SLOTS, ITEMS, key_hash("T", key), number + 1, 5000 + number)
    before = bytes(data)
    assert compiled_index.rebuild_slots(data, SLOTS, ITEMS, 100) == len(keys) + 1
    assert bytes(data) == before


def test_a_hash_of_min_value_becomes_zero():
    assert reference_index.positive_hash(-(2**31)) == 0
    assert reference_index.positive_hash(-5) == 5
    assert reference_index.positive_hash(2598919) == 2598919
