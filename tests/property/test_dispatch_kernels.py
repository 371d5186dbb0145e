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
from support.scan_strategies import CHOICES, damaged_logs, keyed_logs, properties_blocks
from support.synthetic_log import SyntheticLog

compiled_dispatch = pytest.importorskip("rocketstore.native.dispatch")
compiled_index = pytest.importorskip("rocketstore.native.index")


@settings(max_examples=150)
@given(keyed_logs(in_order=False) | damaged_logs(), st.booleans(), st.booleans())
def test_kernel_and_reference_enter_the_same_bytes(log, force, index_enabled):
    pictures = []
    for loop in (compiled_dispatch.RowDispatch, reference_dispatch.RowDispatch):
        run = MemoryDispatch(force=force, is_enabled=index_enabled)
        run.run(loop, bytes(log.data), log.base)
        # Twice: the second time everything is there.
        run.run(loop, bytes(log.data), log.base)
        pictures.append(run.picture())
    assert pictures[0] == pictures[1]


@given(keyed_logs(in_order=False))
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
