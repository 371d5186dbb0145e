"""What is given back becomes the very records that a 4.9 broker makes of it (B4, S0-07, S0-12)."""

import pytest

from rocketstore import Message, MessageStore, PutFailedError
from rocketstore.config import parse_delay_levels
from rocketstore.consuming.giving_back import given_back
from rocketstore.format.properties import GIVE_BACK_ROOM, PROPERTIES_SIZE_MAX, encode_properties
from rocketstore.message import TRANSACTION_COMMIT
from rocketstore.storage.running_flags import RunningFlag
from support.clock_jumps import ahead
from support.configured_store import small_config
from support.golden_stores import golden_root
from support.memory import memory_directory

GROUP = "golden_group"
RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
DELAYED = {"REAL_TOPIC", "REAL_QID"}
"""Which the delay topic adds."""


def fields(message):
    """What a copy shares with the record that the broker stored."""
    sys_flag = message.sys_flag
    body = message.raw_body if hasattr(message, "raw_body") else message.body
    return (
        body, message.flag, sys_flag, message.born_timestamp_ms, message.born_host,
        message.reconsume_times,
    )  # fmt: skip


@pytest.fixture(scope="module")
def golden():
    root = golden_root("broker")
    with MessageStore.open(root, read_only=True) as reader:
        yield reader


def test_second_tries_are_those_of_the_genuine_broker(golden):
    tries = golden.get(RETRY, 0, 0).messages
    assert len(tries) == 3
    for stored in tries:
        first = golden.by_id(stored.properties["ORIGIN_MESSAGE_ID"])
        copy = given_back(first, GROUP, 1)  # the golden client asked for level 1
        assert copy.topic == RETRY
        assert fields(copy) == fields(stored)
        assert copy.properties == {
            name: value for name, value in stored.properties.items() if name not in DELAYED
        }


def test_dead_letters_are_those_of_the_genuine_broker(golden):
    dead = golden.get(DEAD, 0, 0).messages
    tries = {one.properties["UNIQ_KEY"]: one for one in golden.get(RETRY, 0, 0).messages}
    assert len(dead) == 3
    for stored in dead:
        copy = given_back(tries[stored.properties["UNIQ_KEY"]], GROUP, 1, 1)
        assert copy.topic == DEAD
        assert fields(copy) == fields(stored)
        assert copy.properties == stored.properties


@pytest.fixture
def moving():
    """Return a store, and a function that lets its clock go on and delivers what is due."""
    now = [1_600_000_000_000]
    with (
        memory_directory() as root,
        MessageStore.open(root, small_config(), threads=False, clock=lambda: now[0]) as store,
    ):

        def later(milliseconds):
            now[0] += milliseconds
            store.wait_dispatched()
            store.delays.turn()
            store.wait_dispatched()

        later(0)
        yield store, later


def test_a_message_is_tried_again_a_level_later_each_time_and_is_a_dead_letter_in_the_end(moving):
    store, later = moving
    store.put(Message(topic="orders", body=b"17", tags="paid", keys=("o-17",), flag=5))
    levels = parse_delay_levels(store.config.message_delay_level)
    with store.consume("orders", "billing", tags="paid") as consumer:
        message = next(consumer)
        first_id = message.message_id
        for count in range(16):
            assert message.reconsume_times == count
            assert message.give_back()
            assert not message.give_back()
            pause_ms = levels[min(3 + count, 18)]
            later(pause_ms - 1)
            assert consumer.poll() is None
            later(1)
            message = consumer.poll()
            assert message.topic == "orders"
            assert message.queue == ("%RETRY%billing", 0)
            assert message.properties["ORIGIN_MESSAGE_ID"] == first_id
            assert (message.body, message.tags, message.flag) == (b"17", "paid", 5)
        assert message.give_back()
        later(10 * levels[18])
        assert consumer.poll() is None
    [dead] = store.get("%DLQ%billing", 0, 0).messages
    assert dead.reconsume_times == 17
    assert dead.properties["RETRY_TOPIC"] == "orders"
    assert store.consumer_offsets.get("orders", "billing", 0) == 1
    assert store.consumer_offsets.get("%RETRY%billing", "billing", 0) == 16
    assert [one.body for one in store.consume("%DLQ%billing", "repair")] == [b"17"]


def test_a_level_below_zero_is_a_dead_letter_at_once_and_a_higher_one_the_longest(moving):
    store, later = moving
    for body in (b"0", b"1"):
        store.put(Message(topic="orders", body=body))
    consumer = store.consume("orders", "billing")
    assert next(consumer).give_back(-1)
    assert next(consumer).give_back(99)
    later(0)
    assert [one.body for one in store.get("%DLQ%billing", 0, 0).messages] == [b"0"]
    assert store.max_offset("SCHEDULE_TOPIC_XXXX", 17) == 1


def test_what_cannot_be_stored_stays_with_the_consumer(moving):
    store, _ = moving
    store.put(Message(topic="orders"))
    store.put(Message(topic="orders"))
    consumer = store.consume("orders", "billing")
    message, following = next(consumer), next(consumer)
    assert following.ack()
    store.running_flags.set(RunningFlag.DISK_FULL, "the disk is full")
    with pytest.raises(PutFailedError):
        message.give_back()
    assert store.consumer_offsets.get("orders", "billing", 0) == 0
    assert message.ack()
    assert store.consumer_offsets.get("orders", "billing", 0) == 2


def properties_of(size, **others):
    """Return properties whose block has so many bytes."""
    used = len(encode_properties(others)) + 1 if others else 0
    return {**others, "x": "v" * (size - used - len("x\x01"))}


SIZES = sorted({*range(PROPERTIES_SIZE_MAX - GIVE_BACK_ROOM, PROPERTIES_SIZE_MAX + 1, 37), 32_767})


@pytest.mark.parametrize("level", [0, -1])
def test_a_message_with_full_properties_is_given_back_without_the_longest(moving, level):
    store, later = moving
    group = "g" * 120
    for size in SIZES:
        properties = properties_of(size, KEYS="k", TAGS="paid", colour="red", long="w" * 400)
        store.put(Message(topic="orders", properties=properties)).raise_for_status()
    with store.consume("orders", group, start="first", idle_timeout_s=0) as consumer:
        messages = list(consumer)
        assert len(messages) == len(SIZES)
        assert all(message.give_back(level) for message in messages)
        later(60_000)
        copies = list(consumer)
    if level < 0:
        copies = store.consume(f"%DLQ%{group}", "repair", start="first", idle_timeout_s=0)
    copies = list(copies)
    assert len(copies) == len(SIZES)
    for message, copy in zip(messages, copies, strict=True):
        kept = copy.properties
        assert store.by_id(kept["ORIGIN_MESSAGE_ID"]).properties == message.properties
        assert (kept["KEYS"], kept["TAGS"], kept["colour"]) == ("k", "paid", "red")
        assert kept["long"] == "w" * 400  # one is enough
        assert ("x" in kept) is ("PROPERTIES_LEFT_OUT" not in kept)
        assert kept.get("PROPERTIES_LEFT_OUT", "1") == "1"
        assert "x" in kept or len(encode_properties(message.properties)) > 32_767 - GIVE_BACK_ROOM
    assert "x" in copies[0].properties
    assert "x" not in copies[-1].properties


@pytest.mark.parametrize(("before", "after"), [("old", "1"), ("4", "5")])
def test_a_copy_that_lacks_properties_counts_them_and_says_so(moving, caplog, before, after):
    store, later = moving
    properties = properties_of(32_767, PROPERTIES_LEFT_OUT=before)
    store.put(Message(topic="orders", properties=properties))
    with store.consume("orders", "billing", start="first") as consumer:
        for _ in range(2):
            message = consumer.poll()
            assert message.give_back()
            later(60_000)
        assert consumer.poll().properties["PROPERTIES_LEFT_OUT"] == after
    said = [one.fields for one in caplog.records if one.event == "consume.properties_left_out"]
    assert [(fields["group"], fields["count"]) for fields in said] == [("billing", after)] * 2


def test_a_committed_message_is_given_back_as_an_ordinary_one(golden):
    committed = next(
        message
        for queue in range(4)
        for message in golden.get("GoldenTx", queue, 0).messages
        if message.sys_flag & TRANSACTION_COMMIT
    )
    copy = given_back(committed, GROUP)
    assert copy.sys_flag == committed.sys_flag & ~TRANSACTION_COMMIT
    assert copy.prepared_transaction_offset == 0


def test_a_group_of_a_broker_has_the_tries_that_its_table_says(moving):
    store, _ = moving
    directory = store.layout.config
    directory.mkdir(exist_ok=True)
    (directory / "subscriptionGroup.json").write_text(
        '{"subscriptionGroupTable":{"billing":{"groupName":"billing","retryMaxTimes":0}}}'
    )
    store.put(Message(topic="orders"))
    assert next(store.consume("orders", "billing")).give_back()
    store.wait_dispatched()
    assert store.max_offset("%DLQ%billing", 0) == 1


@ahead
def test_second_tries_keep_their_pauses_after_the_clock_was_ahead(moving, jump_ms):
    """As each try is stored ahead of the clock, they would run through all at once."""
    store, later = moving
    later(jump_ms)
    store.put(Message(topic="other", body=b"ahead"))
    later(-jump_ms)
    store.put(Message(topic="orders", body=b"poison"))
    store.wait_dispatched()
    with store.consume("orders", "billing", start="first") as consumer:
        assert next(consumer).give_back()
        for pause_ms in (10_000, 30_000, 60_000):
            store.wait_dispatched()
            later(pause_ms - 1)
            assert consumer.poll() is None
            later(1)
            assert consumer.poll().give_back()
    assert store.max_offset("%DLQ%billing", 0) == 0
