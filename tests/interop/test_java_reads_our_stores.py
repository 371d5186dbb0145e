"""Stores that we wrote, opened, read, appended to and recovered by the genuine store."""

import pytest

from rocketstore import MessageStore, verify_store
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.format.host import encode_host
from rocketstore.format.properties import message_properties
from rocketstore.native.log_end import Record
from rocketstore.storage.read_only import ReadOnlyStore
from support.both_sides import (
    IPV6_HOST,
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
from support.killed_writer import kill_a_writer

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("java_store")]

MESSAGES = sample_messages(400)
"""Enough for several CommitLog, queue and index files of the small sizes."""

LINES = 250
"""What a writer acknowledges before it is killed."""


def test_java_reads_every_message_of_a_store_we_closed(tmp_path):
    with MessageStore.open(tmp_path, small_config()) as ours:
        put_ours(ours, MESSAGES)
    with JavaStore(tmp_path, SMALL_FILES) as java, ReadOnlyStore.open(tmp_path) as reader:
        assert_same_store(reader, java, len(MESSAGES))
        assert_same_answers(reader, java, MESSAGES, "orders")


def test_java_finds_nothing_to_repair_in_a_store_we_closed(tmp_path):
    with MessageStore.open(tmp_path, small_config()) as ours:
        put_ours(ours, MESSAGES)
        limits = ours.min_physical_offset, ours.max_physical_offset
    assert not (tmp_path / "abort").exists()
    with JavaStore(tmp_path, SMALL_FILES) as java:
        assert java.positions() == limits


def test_java_appends_where_we_stopped_and_we_where_java_stopped(tmp_path):
    with MessageStore.open(tmp_path, small_config()) as ours:
        put_ours(ours, MESSAGES[:150])
    with JavaStore(tmp_path, SMALL_FILES) as java:
        put_java(java, MESSAGES[150:300])
        java.wait_dispatched()
    with MessageStore.open(tmp_path, small_config()) as ours:
        put_ours(ours, MESSAGES[300:])
        ours.wait_dispatched()
        expected = all_of_ours(ours)
    assert [message["queueOffset"] for message in expected["orders", 0]] == list(range(134))
    with JavaStore(tmp_path, SMALL_FILES) as java, ReadOnlyStore.open(tmp_path) as reader:
        assert_equal_messages(expected, all_of_java(java))
        assert_same_store(reader, java, len(MESSAGES))
        assert_same_answers(reader, java, MESSAGES[::9], "orders")


def test_a_start_of_java_that_stores_nothing_costs_no_key(tmp_path):
    """Java dispatches again what stands after the last queue entry, here a prepared message."""
    slots = {"maxHashSlotNum": 5}
    config = small_config(**slots)
    prepared = Record(b"half", b"KEYS\x01half", encode_host(IPV6_HOST), sys_flag=4)
    with MessageStore.open(tmp_path, config) as ours:
        put_ours(ours, MESSAGES[:150])
        ours.put_record("orders", 0, prepared)
    JavaStore(tmp_path, SMALL_FILES | slots).close()
    with MessageStore.open(tmp_path, config) as ours:
        put_ours(ours, MESSAGES[150:])
    assert verify_store(tmp_path, config).findings == []
    with (
        JavaStore(tmp_path, SMALL_FILES | slots) as java,
        ReadOnlyStore.open(tmp_path, config) as reader,
    ):
        assert_same_answers(reader, java, MESSAGES, "orders")


def test_java_reads_our_ipv6_hosts(tmp_path):
    config = small_config(storeHost="[::1]:10911")
    messages = sample_messages(60, born_host=IPV6_HOST)
    with MessageStore.open(tmp_path, config) as ours:
        put_ours(ours, messages)
    with JavaStore(tmp_path, SMALL_FILES) as java, ReadOnlyStore.open(tmp_path) as reader:
        assert_same_store(reader, java, len(messages))
        assert all_of_java(java)["orders", 0][0]["bornHost"] == IPV6_HOST


def test_java_reads_our_batches_of_messages(tmp_path):
    with MessageStore.open(tmp_path, small_config()) as ours:
        for number in range(12):
            batch = [
                message
                for message in sample_messages(28, first=28 * number)
                if not message.sys_flag
            ]
            assert ours.put_batch(batch, queue_id=number % 2).status.name == "PUT_OK"
    with JavaStore(tmp_path, SMALL_FILES) as java, ReadOnlyStore.open(tmp_path) as reader:
        assert_same_store(reader, java, 12 * 24)


def test_java_reads_our_client_encoded_batches(tmp_path):
    with MessageStore.open(tmp_path, small_config()) as ours:
        for number in range(12):
            batch = encode_client_batch(
                (message.flag, message.body, message_properties(message))
                for message in sample_messages(20, first=20 * number)
            )
            result = ours.put_client_batch("orders", number % 2, batch)
            assert result.status.name == "PUT_OK"
    with JavaStore(tmp_path, SMALL_FILES) as java, ReadOnlyStore.open(tmp_path) as reader:
        assert_same_store(reader, java, 240)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_java_recovers_a_store_whose_writer_was_killed(tmp_path, flush):
    acknowledged = kill_a_writer(tmp_path, flush, lines=LINES)
    assert (tmp_path / "abort").exists()
    with JavaStore(tmp_path, SMALL_FILES) as java:
        with ReadOnlyStore.open(tmp_path) as reader:
            java.wait_dispatched()
            found = all_of_java(java)
            assert_equal_messages(all_of_ours(reader), found)
        # The writer may have stored one more before it could say so.
        assert sum(map(len, found.values())) - acknowledged in (0, 1)
        put_java(java, sample_messages(30, first=1000))
        java.wait_dispatched()
        expected = all_of_java(java)
    with MessageStore.open(tmp_path, small_config()) as ours:  # and it is ours again
        assert_equal_messages(all_of_ours(ours), expected)
    assert sum(map(len, expected.values())) - acknowledged in (30, 31)


def test_java_takes_over_what_a_transient_store_pool_committed(tmp_path):
    with MessageStore.open(tmp_path, small_config(transientStorePoolEnable=True)) as ours:
        put_ours(ours, MESSAGES)
        end = ours.appended_physical_offset
    with JavaStore(tmp_path, SMALL_FILES) as java, ReadOnlyStore.open(tmp_path) as reader:
        assert java.positions() == (0, end)
        assert_same_store(reader, java, len(MESSAGES))
    acknowledged = kill_a_writer(tmp_path, "ASYNC_FLUSH", "true", lines=LINES)
    with JavaStore(tmp_path, SMALL_FILES) as java, ReadOnlyStore.open(tmp_path) as reader:
        java.wait_dispatched()
        found = all_of_java(java)
        assert_equal_messages(all_of_ours(reader), found)
        assert sum(map(len, found.values())) <= len(MESSAGES) + acknowledged + 1
        put_java(java, sample_messages(30, first=1000))
