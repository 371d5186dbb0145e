"""Stores that the genuine store wrote, opened for writing by us: appended to and recovered."""

import shutil

import pytest

from rocketstore import MessageStore, verify_store
from rocketstore.storage.read_only import ReadOnlyStore
from support.both_sides import (
    all_of_java,
    all_of_ours,
    assert_equal_messages,
    assert_same_answers,
    assert_same_store,
    put_java,
    put_ours,
    sample_messages,
    small_config,
)
from support.java_store import SMALL_FILES, JavaStore

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("java_store")]

MESSAGES = sample_messages(400)


def test_we_append_to_a_java_store_and_java_reads_on(tmp_path):
    with JavaStore(tmp_path, SMALL_FILES) as java:
        put_java(java, MESSAGES[:200])
        java.wait_dispatched()
        expected, limits = all_of_java(java), java.positions()
    with MessageStore.open(tmp_path) as ours:  # which learns the sizes of its files
        assert_equal_messages(all_of_ours(ours), expected)
        assert (ours.min_physical_offset, ours.max_physical_offset) == limits
        put_ours(ours, MESSAGES[200:])
    with JavaStore(tmp_path, SMALL_FILES) as java, ReadOnlyStore.open(tmp_path) as reader:
        assert_same_store(reader, java, len(MESSAGES))
        assert_same_answers(reader, java, MESSAGES[::9], "orders")


@pytest.mark.parametrize("policy", ["salvage", "compatible"])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_halted_java_store_is_recovered_whole(tmp_path, flush, policy):
    java = JavaStore(tmp_path, {**SMALL_FILES, "flushDiskType": flush})
    put_java(java, MESSAGES)
    java.wait_dispatched()
    expected = all_of_java(java)
    java.halt()
    assert (tmp_path / "abort").exists()
    with MessageStore.open(tmp_path, small_config(recoveryPolicy=policy)) as ours:
        assert_equal_messages(all_of_ours(ours), expected)
        put_ours(ours, sample_messages(50, first=1000))
    with JavaStore(tmp_path, SMALL_FILES) as again, ReadOnlyStore.open(tmp_path) as reader:
        assert_same_store(reader, again, len(MESSAGES) + 50)
        assert_same_answers(reader, again, MESSAGES[::9], "orders")


def test_a_java_store_with_a_transient_pool_is_continued_after_a_halt(tmp_path):
    java = JavaStore(tmp_path, {**SMALL_FILES, "transientStorePoolEnable": True})
    put_java(java, MESSAGES[:200])
    java.wait_dispatched()
    expected = all_of_java(java)
    put_java(java, MESSAGES[200:210])
    java.halt()
    with MessageStore.open(tmp_path, small_config(transientStorePoolEnable=True)) as ours:
        kept = all_of_ours(ours)
        for queue, messages in expected.items():
            assert_equal_messages({queue: kept[queue][: len(messages)]}, {queue: messages})
        put_ours(ours, MESSAGES)
        ours.wait_dispatched()
        count = sum(map(len, all_of_ours(ours).values()))
        assert count == sum(map(len, kept.values())) + len(MESSAGES)
    assert verify_store(tmp_path).findings == []


def test_a_java_store_halted_before_its_dispatch_is_recovered_whole(tmp_path):
    java = JavaStore(tmp_path, SMALL_FILES)
    put_java(java, MESSAGES)
    java.halt()
    with MessageStore.open(tmp_path, small_config()) as ours:
        ours.wait_dispatched()
        assert sum(map(len, all_of_ours(ours).values())) == len(MESSAGES)


@pytest.mark.parametrize("is_halted", [False, True])
def test_what_java_put_under_numbers_that_it_gave_again_stays_in_its_queue(tmp_path, is_halted):
    with JavaStore(tmp_path, SMALL_FILES) as java:
        put_java(java, [*MESSAGES[:60], *sample_messages(3, topic="other")])
        java.wait_dispatched()
    shutil.rmtree(tmp_path / "consumequeue" / "orders")  # the topic was deleted
    java = JavaStore(tmp_path, SMALL_FILES)
    put_java(java, MESSAGES[60:90])
    java.wait_dispatched()
    expected = all_of_java(java)
    assert [one["queueOffset"] for one in expected["orders", 0]] == [*range(10)]
    java.halt() if is_halted else java.close()
    with MessageStore.open(tmp_path, small_config()) as ours:
        found = all_of_ours(ours)
    assert_equal_messages(found, expected)
