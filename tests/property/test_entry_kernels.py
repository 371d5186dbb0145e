"""The kernels that list queues and index items say what dispatch writes, compiled or in Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstore.format.index_file import IndexLayout
from rocketstore.format.properties import decode_properties
from rocketstore.format.queue_entry import FILLER, entry_array
from rocketstore.rules.expectation import expected_entries, expected_items
from rocketstore.rules.queue_numbers import QueueNumbers
from rocketstore.scan import kernels
from rocketstore.scan.columns import CallsFor, RecordColumns, new_columns
from support.memory_dispatch import MemoryDispatch
from support.oracle import dispatch as reference_dispatch
from support.oracle import entries as reference_entries
from support.oracle import index as reference_index
from support.oracle.walk import walk
from support.scan_strategies import damaged_logs, keyed_logs

compiled_dispatch = pytest.importorskip("rocketstore.native.dispatch")
compiled_entries = pytest.importorskip("rocketstore.native.columns")
compiled_index = pytest.importorskip("rocketstore.native.index")


def columns_of(log):
    buffer = np.frombuffer(bytes(log.data), np.uint8)
    cols = new_columns(64)
    count, _, _ = walk(buffer, 0, len(buffer), log.base, len(buffer), False, cols)  # noqa: FBT003
    return RecordColumns(buffer, np.ascontiguousarray(cols[:count]), log.base)


@settings(max_examples=200)
@given(keyed_logs(in_order=True) | damaged_logs())
def test_compiled_and_reference_list_the_same(log):
    columns = columns_of(log)
    numbers = QueueNumbers()
    numbers.of(columns)
    answers = []
    for module in (compiled_entries, reference_entries):
        found = np.full(len(columns), -7)
        rows, hashes = np.zeros(200, np.int64), np.zeros(200, np.int64)
        some = (columns.buffer, columns.cols)
        reached = module.number_queues(*some, 0, numbers.slots, numbers.topics, found)
        count = module.list_items(*some, rows, hashes)
        few = module.list_items(*some, rows[:1].copy(), hashes[:1].copy())
        answers.append(
            (reached, found.tolist(), count, rows[:count].tolist(), hashes[:count].tolist(), few)
        )
    assert answers[0] == answers[1]


@settings(max_examples=100)
@given(keyed_logs(in_order=True))
def test_a_number_is_one_queue_whatever_topics_share_a_hash(log):
    columns = columns_of(log)
    numbers = QueueNumbers()
    for row, number in enumerate(numbers.of(columns).tolist()):
        if int(columns.sys_flag[row]) & 0x4:
            assert number == -1
        else:
            queue = numbers.queues[number]
            assert queue.queue_id == int(columns.queue_id[row])
            assert queue.name == columns.topic(row)


@settings(max_examples=100)
@given(keyed_logs(in_order=True), st.sampled_from([(), (1000,), (1000, 2000, 5000)]))
def test_the_entries_that_are_expected_are_those_that_dispatch_makes(log, delays_ms):
    run = MemoryDispatch(file_size=20 * 40, delays_ms=delays_ms, layout=IndexLayout(7, 300))
    run.run(compiled_dispatch.RowDispatch, bytes(log.data), log.base)
    columns, numbers = columns_of(log), QueueNumbers()
    found = expected_entries(columns, numbers, np.array(delays_ms, np.int64))
    made = [
        (queue, number, entry)
        for (queue, _), content in run.files.items()
        for number, entry in enumerate(entry_array(content.tobytes()).tolist())
        if entry[1] and entry != FILLER
    ]
    columns_found = (found.queue_number, found.queue_offset, found.entries, found.is_extra)
    rows = zip(*(column.tolist() for column in columns_found), strict=True)
    assert sorted(made) == sorted(row[:3] for row in rows if not row[3])
    has_names = columns.call_for(CallsFor.EXTRA_ENTRIES).tolist()
    for row, has_entry in enumerate((columns.sys_flag & 0x4 == 0).tolist()):
        is_named = "INNER_MULTI_DISPATCH" in decode_properties(columns.properties(row))
        assert has_names[row] == (has_entry and is_named)


@settings(max_examples=100)
@given(keyed_logs(in_order=True))
def test_listed_items_make_the_index_file_that_dispatch_makes(log):
    run = MemoryDispatch(layout=IndexLayout(7, 300))
    run.run(reference_dispatch.RowDispatch, bytes(log.data), log.base)
    found = expected_items(columns_of(log))
    items = found.key_hash, found.physical_offset, found.store_timestamp_ms
    layout = IndexLayout(7, 300)
    made = [np.zeros(layout.size_bytes, np.uint8) for _ in range(2)]
    kernels.put_items(made[0], 7, 300, *items)
    reference_index.put_items(made[1], 7, 300, *items)
    assert made[0].tobytes() == made[1].tobytes()
    expected = run.index_files[0].tobytes() if run.index_files else bytes(layout.size_bytes)
    assert made[0].tobytes() == expected


@pytest.mark.parametrize("module", [compiled_index, reference_index])
def test_a_full_index_file_takes_no_more(module):
    made = np.zeros(IndexLayout(3, 4).size_bytes, np.uint8)
    numbers = np.arange(10)
    assert module.put_items(made, 3, 4, numbers, numbers, numbers) == 3
    assert module.put_items(made[:-1].copy(), 3, 4, numbers, numbers, numbers) == 0
    assert module.put_items(made, 3, 400, numbers, numbers, numbers) == 0
