"""The leftovers test, on columns alone: who is kept, who is an old log's record."""

from typing import Any

import numpy as np
import pytest

from rocketstore.rules.bridges import Headers
from rocketstore.rules.leftovers import KeyColumns, LeftoverJudge, Verdict, present_life
from support.synthetic_log import record_bytes

NOW_MS = 1_800_000_000_000


def keys(*rows: tuple[int, int, int], normal: bool = True, messages: int = 1) -> KeyColumns:
    """Build columns of (queue, queue offset, store time)."""
    queues, offsets, times = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    is_normal = np.full(len(queues), normal, dtype=np.bool_)
    return KeyColumns(queues, offsets, offsets + messages, times, is_normal)


def run(queue: int, first: int, count: int, time_ms: int) -> KeyColumns:
    return keys(*((queue, first + i, time_ms + i) for i in range(count)))


def flip(records: KeyColumns, row: int, queue_offset: int) -> None:
    records.queue_offset[row], records.queue_stop[row] = queue_offset, queue_offset + 1


def stretch(records: KeyColumns, *, linked: bool = False, bridged: bool = False) -> dict[str, Any]:
    return {"head": records, "tail": records, "is_linked": linked, "is_bridged": bridged}


def judge_behind(trusted: KeyColumns) -> LeftoverJudge:
    judge = LeftoverJudge(NOW_MS)
    assert judge.decide(**stretch(trusted)).verdict is Verdict.LOG
    judge.trust(trusted)
    return judge


@pytest.fixture
def judge():
    return judge_behind(run(0, 0, 60, 5000))


def test_records_after_a_damaged_record_are_log():
    judge = judge_behind(run(0, 0, 50, 1000))
    assert judge.decide(**stretch(run(0, 51, 50, 1060))).verdict is Verdict.LOG


def test_repeated_queue_offsets_with_older_times_are_leftovers(judge):
    assert judge.decide(**stretch(run(0, 55, 20, 2000))).verdict is Verdict.LEFTOVER


@pytest.mark.parametrize("first", [50, 55, 58])
def test_batches_that_begin_inside_one_of_the_log_are_leftovers(first):
    batches = keys(*((0, i, 5000) for i in range(0, 60, 10)), messages=10)
    judge = judge_behind(batches)
    old = keys(*((0, i, 5000) for i in range(first, 90, 5)), messages=5)
    assert judge.decide(**stretch(old)).verdict is Verdict.LEFTOVER
    on = keys(*((0, i, 5000) for i in range(60, 90, 5)), messages=5)
    assert judge_behind(batches).decide(**stretch(on)).verdict is Verdict.LOG


def test_batches_that_go_on_from_leftovers_in_the_next_file_are_leftovers():
    judge = judge_behind(keys(*((0, i, 5000) for i in range(0, 60, 10)), messages=10))
    old = keys(*((0, i, 5000) for i in range(50, 90, 5)), messages=5)
    assert judge.decide(**stretch(old)).verdict is Verdict.LEFTOVER
    later = keys(*((0, i, 6000) for i in range(90, 120, 5)), messages=5)
    assert judge.decide(**stretch(later, linked=True)).verdict is Verdict.LEFTOVER


def test_repeats_alone_are_leftovers_when_the_clock_stood_still():
    trusted = keys(*((0, i, 5000) for i in range(60)))
    judge = judge_behind(trusted)
    old = keys(*((0, i, 5000) for i in range(59, 80)))
    assert judge.decide(**stretch(old)).verdict is Verdict.LEFTOVER


def test_older_times_alone_are_leftovers_after_an_unbridged_break(judge):
    assert judge.decide(**stretch(run(0, 70, 20, 2000))).verdict is Verdict.LEFTOVER


def test_older_times_after_a_bridged_break_are_kept_and_doubtful(judge):
    judgement = judge.decide(**stretch(run(0, 61, 20, 2000), bridged=True))
    assert judgement.verdict is Verdict.DOUBTFUL
    assert judgement.verdict.is_kept


def test_a_clock_that_catches_up_again_convicts_nobody(judge):
    assert judge.decide(**stretch(run(0, 61, 4000, 2000))).verdict is Verdict.LOG


def test_an_unbroken_chain_is_never_tested(judge):
    assert judge.decide(**stretch(run(0, 0, 60, 1000), linked=True)).verdict is Verdict.LOG


def test_a_topic_created_again_before_the_break_goes_on_after_it():
    trusted = KeyColumns.joined([run(0, 0, 60, 5000), run(0, 0, 10, 6000)])
    judge = judge_behind(trusted)
    assert judge.decide(**stretch(run(0, 11, 30, 6100))).verdict is Verdict.LOG


@pytest.mark.parametrize("flipped", [164, 37, 2**40])
def test_a_flipped_queue_offset_in_a_trusted_record_convicts_nobody(flipped):
    trusted = run(0, 0, 120, 5000)
    flip(trusted, 100, flipped)
    judge = judge_behind(trusted)
    assert judge.decide(**stretch(run(0, 121, 200, 6000))).verdict is Verdict.LOG


def test_a_flipped_queue_offset_after_the_break_convicts_no_record():
    judge = judge_behind(run(0, 0, 120, 5000))
    later = run(0, 121, 200, 6000)
    flip(later, 0, 17)
    flip(later, 50, 23)
    assert judge.decide(**stretch(later)).verdict is Verdict.LOG


def test_a_flipped_store_time_convicts_nobody():
    trusted = run(0, 0, 120, 5000)
    trusted.store_timestamp_ms[-1] = 2**60
    judge = judge_behind(trusted)
    later = run(0, 121, 200, 6000)
    later.store_timestamp_ms[-1] = 3
    assert judge.decide(**stretch(later)).verdict is Verdict.LOG


def test_prepared_records_neither_testify_nor_are_judged():
    prepared = keys(*((0, 0, 5000 + i) for i in range(10)), normal=False)
    judge = judge_behind(KeyColumns.joined([run(0, 0, 3, 4000), prepared]))
    behind = keys(*((0, 0, 6000 + i) for i in range(10)), normal=False)
    assert judge.decide(**stretch(behind)).verdict is Verdict.LOG
    older = keys(*((0, 0, 100 + i) for i in range(10)), normal=False)
    assert judge.decide(**stretch(older)).verdict is Verdict.DOUBTFUL


def test_an_earlier_log_over_several_files_is_a_leftover_in_each(judge):
    assert judge.decide(**stretch(run(0, 58, 40, 2000))).verdict is Verdict.LEFTOVER
    later_file = stretch(run(0, 98, 40, 2040), linked=True)
    assert judge.decide(**later_file).verdict is Verdict.LEFTOVER


def test_a_leftover_that_goes_on_in_the_next_file_is_a_leftover_without_any_clock():
    judge = judge_behind(keys(*((0, i, 5000) for i in range(60))))
    first = keys(*((0, i, 5000) for i in range(58, 98)))
    second = keys(*((0, i, 5000) for i in range(98, 140)))
    assert judge.decide(**stretch(first)).verdict is Verdict.LEFTOVER
    assert judge.decide(**stretch(second, linked=True)).verdict is Verdict.LEFTOVER


def test_newer_records_after_a_leftover_are_log(judge):
    # A power cut kept later pages and lost earlier ones, where old records still stand.
    assert judge.decide(**stretch(run(0, 58, 40, 2000))).verdict is Verdict.LEFTOVER
    assert judge.decide(**stretch(run(0, 90, 40, 5100))).verdict is Verdict.LOG


def test_many_files_after_damage_in_the_middle_are_log(judge):
    for number in range(5):
        records = run(0, 100 + 50 * number, 50, 5100 + 50 * number)
        linked = number > 0
        assert judge.decide(**stretch(records, linked=linked)).verdict is Verdict.LOG
        judge.trust(records)


def test_the_present_life_of_a_queue_begins_at_its_last_restart():
    def life(*offsets: int, messages: int = 1) -> list[int]:
        pairs = np.array([(one, one + messages) for one in offsets], dtype=np.int64)
        return [int(first) for first, _ in present_life(pairs)]

    assert life(0, 1, 2, 3, 0, 1, 2) == [0, 1, 2]
    assert life(0, 1, 0, 3, 4) == [0, 1, 3, 4]
    assert life(0, 5, 10, 0, 5, messages=5) == [0, 5]


def record(offset: int, body: bytes = b"body", topic: bytes = b"t") -> bytearray:
    return bytearray(record_bytes(offset, body=body, topic=topic, queue_offset=7))


def leads(file: bytearray | memoryview, stop: int) -> bool:
    headers = Headers(lambda at, size: bytes(file[at : at + size]), 0, len(file))
    return headers.lead(0, stop)


def test_a_broken_body_is_bridged_by_its_header():
    view = memoryview(record(0) + record(96))
    view[86] ^= 0xFF
    assert leads(view, 96)


def test_a_broken_length_is_bridged_by_the_lengths_inside():
    view = memoryview(record(0) + record(96))
    view[3] = 17
    assert leads(view, 96)


def test_two_broken_records_bridge_hand_over_hand():
    view = memoryview(record(0) + record(96) + record(192))
    view[86] ^= 0xFF
    view[96 + 86] ^= 0xFF
    assert leads(view, 192)


def test_a_torn_record_over_an_old_one_is_no_bridge():
    old = record(0, body=b"o" * 300) + record(396)
    old[:90] = record(0, body=b"new" * 50)[:90]
    assert not leads(old, 396)


def test_zeros_are_no_bridge():
    view = memoryview(bytearray(96) + record(96))
    assert not leads(view, 96)
