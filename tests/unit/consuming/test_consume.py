"""Consuming in process: what is delivered, to whom, and where a group goes on (spec B4, B24.4)."""

import logging
import shutil
import threading
from contextlib import ExitStack

import pytest

from rocketstore import (
    ArgumentError,
    ConfigError,
    InvalidNameError,
    Message,
    MessageStore,
    StoreClosedError,
)
from rocketstore.consuming.group import Group
from rocketstore.format.metadata_json import ConsumerOffsets, decode_table
from support.configured_store import open_small, small_config
from support.golden_stores import golden_root
from support.held_things import held_by
from support.patience import PATIENCE_S, wait_until

TOPIC = "orders"
GROUP = "billing"


@pytest.fixture
def store(root):
    with MessageStore.open(root, small_config(), threads=False) as opened:
        yield opened


def put(store, count, *, queues=1, topic=TOPIC, first=0, tags=None):
    for number in range(first, first + count):
        message = Message(topic=topic, body=b"%d" % number, tags=tags)
        store.put(message, number % queues).raise_for_status()


def consume(store, **settings):
    return store.consume(TOPIC, GROUP, **settings)


def bodies(messages):
    return [int(message.body) for message in messages]


def offset(store, queue_id=0, topic=TOPIC):
    return store.consumer_offsets.get(topic, GROUP, queue_id)


def test_a_group_goes_on_after_what_it_acknowledged(root):
    with MessageStore.open(root, small_config(), threads=False) as store:
        put(store, 5)
        with consume(store) as consumer:
            first, second, third = (next(consumer) for _ in range(3))
            assert bodies([first, second, third]) == [0, 1, 2]
            assert second.ack()
            assert offset(store) == 0  # the first one is missing yet
            assert first.ack()
            assert offset(store) == 2
            assert third.queue == (TOPIC, 0)
    with MessageStore.open(root, small_config(), threads=False) as store:
        assert bodies(consume(store)) == [2, 3, 4]


def test_all_queues_are_read_and_later_ones_are_noticed(store):
    put(store, 6, queues=3)
    consumer = consume(store)
    assert sorted(bodies(consumer)) == [0, 1, 2, 3, 4, 5]
    store.put(Message(topic=TOPIC, body=b"6"), 7)
    assert bodies(consumer) == [6]
    assert [key.queue_id for key in consumer.queues] == [0, 1, 2, 7]


def test_a_consumer_waits_for_messages_and_ends_when_it_is_closed(root):
    with open_small(root, threads=True) as store:
        consumer = consume(store)
        seen, has_one = [], threading.Event()

        def work():
            for message in consumer:
                seen.append(int(message.body))
                message.ack()
                has_one.set()

        thread = threading.Thread(target=work)
        thread.start()
        put(store, 1)
        assert has_one.wait(PATIENCE_S)
        consumer.close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert seen == [0]
        with pytest.raises(StoreClosedError):
            consumer.poll()


def test_closing_the_store_ends_a_waiting_consumer_and_saves_its_offsets(root):
    store = open_small(root, threads=True)
    put(store, 1)
    acknowledged = threading.Event()

    def work():
        for message in consume(store):
            message.ack()
            acknowledged.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert acknowledged.wait(PATIENCE_S)
    store.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    text = (root / "config" / "consumerOffset.json").read_bytes()
    assert decode_table(text, ConsumerOffsets).offset_table["orders@billing"] == {0: 1}


def test_iterating_ends_when_no_message_came_for_so_long(root):
    with open_small(root, threads=True) as store:
        put(store, 2)
        assert store.wait_dispatched()  # else nothing may have come in that time
        assert bodies(consume(store, idle_timeout_s=0.05)) == [0, 1]


def test_tags_choose_and_what_they_leave_out_is_passed(store):
    put(store, 3, tags="paid")
    put(store, 3, first=3, tags="created")
    put(store, 3, first=6, tags="paid")
    taken = list(consume(store, tags="paid"))
    assert bodies(taken) == [0, 1, 2, 6, 7, 8]
    for message in taken:
        message.ack()
    assert offset(store) == 9


def test_a_loop_that_raises_leaves_the_message_to_the_next_consumer(store):
    put(store, 3)

    def work():
        with consume(store) as consumer:
            for message in consumer:
                1 // int(message.body)
                message.ack()

    with pytest.raises(ZeroDivisionError):
        work()
    assert offset(store) == 0
    assert bodies(consume(store)) == [0, 1, 2]


def test_a_consumer_that_nobody_holds_leaves_its_group(store):
    put(store, 4, queues=2)
    other = consume(store)
    for message in consume(store):
        assert other.queues != [(TOPIC, 0), (TOPIC, 1)]
        del message
        break
    assert sorted(bodies(other)) == [0, 1, 2, 3]
    assert other.queues == [(TOPIC, 0), (TOPIC, 1)]


def test_consumers_share_the_queues_and_hand_over_what_they_did_not_acknowledge(store):
    put(store, 8, queues=4)
    first = consume(store)
    held = [next(first) for _ in range(3)]
    second = consume(store)
    assert [key.queue_id for key in first.queues] == [0, 1]
    assert [key.queue_id for key in second.queues] == [2, 3]
    # What the first one holds stays with it, whoever reads the queue now.
    others = list(second)
    assert not set(bodies(held)) & set(bodies(others))
    assert held[2].queue.queue_id == 2
    assert held[2].ack()
    assert held[0].ack()
    first.close()
    assert not held[1].ack()
    assert set(bodies(others)) | set(bodies(second)) | {0, 2} == set(range(8))
    assert [key.queue_id for key in second.queues] == [0, 1, 2, 3]


def test_threads_of_a_group_take_every_message_once(root):
    with open_small(root, threads=True) as store, ExitStack() as group:
        taken = []

        def work(consumer):
            for message in consumer:
                message.ack()
                taken.append((message.queue, message.queue_offset))

        consumers = [group.enter_context(consume(store)) for _ in range(3)]
        threads = [threading.Thread(target=work, args=(one,)) for one in consumers]
        for thread in threads:
            thread.start()
        put(store, 600, queues=5)
        wait_until(lambda: len(taken) >= 600)
        group.close()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(taken) == len(set(taken)) == 600
        assert [offset(store, number) for number in range(5)] == [120] * 5


def test_a_group_without_acknowledgements_reads_no_more_than_its_limit(store, caplog):
    put(store, 300)
    consumer, total = consume(store, max_unacknowledged=64), 0
    with caplog.at_level(logging.WARNING, "rocketstore"):
        for times in (1, 2):
            taken = list(consumer)
            assert 64 <= len(taken) < 96
            assert caplog.text.count("consume.full") == times
            total += sum(message.ack() for message in taken)
    assert bodies(consumer)[0] == total


@pytest.mark.parametrize(
    ("start", "expected"),
    [("last", [0, 1, 2, 3]), ("first", [0, 1, 2, 3]), (5_000, [2, 3]), (6_000, [2, 3])],
)
def test_a_group_without_an_offset_begins_where_it_is_asked_to(root, start, expected):
    now = [1_000]
    config = small_config()
    with MessageStore.open(root, config, threads=False, clock=lambda: now[0]) as store:
        put(store, 2)
        now[0] = 6_000
        put(store, 2, first=2)
        store.wait_dispatched()
        assert bodies(consume(store, start=start)) == expected


def test_last_is_the_end_of_a_queue_that_is_too_old_for_memory(root):
    config = small_config(access_message_in_memory_max_ratio=0)
    with MessageStore.open(root, config, threads=False) as store:
        put(store, 2)
        store.wait_dispatched()
        assert bodies(consume(store)) == []
        put(store, 1, first=2)
    # The place where it began is kept, although it had consumed nothing.
    with MessageStore.open(root, config, threads=False) as store:
        assert bodies(consume(store)) == [2]


def test_the_retry_topic_of_a_group_without_an_offset_begins_at_its_first_message(root):
    config = small_config(access_message_in_memory_max_ratio=0)
    with MessageStore.open(root, config, threads=False) as store:
        put(store, 2)
        put(store, 2, topic=f"%RETRY%{GROUP}", first=2)
        store.wait_dispatched()
        assert bodies(consume(store, start="last")) == [2, 3]


def test_a_group_goes_on_at_the_minimum_that_retention_left_and_says_so(root, caplog):
    golden = golden_root("expired/deleted_by_store")
    shutil.copytree(golden, root, dirs_exist_ok=True)
    with MessageStore.open(root, threads=False) as store:
        key = next(key for key in store.queues() if store.min_offset(*key) > 0)
        store.consumer_offsets.set(key.topic, GROUP, key.queue_id, 0)
        with caplog.at_level(logging.WARNING, "rocketstore"):
            taken = [one for one in store.consume(key.topic, GROUP) if one.queue == key]
        assert [one.queue_offset for one in taken] == list(
            range(store.min_offset(*key), store.max_offset(*key))
        )
        assert "consume.offset_moved" in caplog.text
        assert "OFFSET_TOO_SMALL" in caplog.text


def test_a_group_that_is_ahead_of_a_queue_that_lost_messages_misses_no_new_one(store, caplog):
    put(store, 4)
    store.wait_dispatched()
    store.consumer_offsets.set(TOPIC, GROUP, 0, 9)
    consumer = consume(store)
    with caplog.at_level(logging.WARNING, "rocketstore"):
        assert bodies(consumer) == []
    assert "consume.offset_moved" in caplog.text
    put(store, 2, first=4)
    messages = list(consumer)
    assert bodies(messages) == [4, 5]
    assert all(message.ack() for message in messages)
    assert offset(store) == 6


def test_a_group_goes_on_where_a_broker_s_consumers_stopped(root):
    golden = golden_root("broker")
    shutil.copytree(golden, root, dirs_exist_ok=True)
    with MessageStore.open(root, threads=False) as store:
        ends = [store.max_offset("GoldenTopic", number) for number in range(4)]
        assert [
            store.consumer_offsets.get("GoldenTopic", "golden_group", number) for number in range(4)
        ] == ends
        with store.consume("GoldenTopic", "golden_group") as consumer:
            assert consumer.poll() is None
            store.put(Message(topic="GoldenTopic", body=b"of ours"), 2)
            message = next(consumer)
            assert (message.body, message.queue_offset) == (b"of ours", ends[2])
            message.ack()
    text = (root / "config" / "consumerOffset.json").read_bytes()
    expected = (golden / "config" / "consumerOffset.json").read_bytes()
    assert text == expected.replace(b"2:95,", b"2:96,")


def test_names_and_settings_that_cannot_be_are_refused(store):
    with pytest.raises(InvalidNameError):
        store.consume("or/ders", GROUP)
    with pytest.raises(InvalidNameError):
        store.consume(TOPIC, "")
    with pytest.raises(InvalidNameError, match="consumer group 'a@b'"):
        store.consume(TOPIC, "a@b")
    with pytest.raises(ArgumentError, match="'first', 'last'"):
        consume(store, start="middle")
    with pytest.raises(ConfigError):
        consume(store, max_unacknowledged=0)
    with pytest.raises(ConfigError, match="without a topic would wait for ever"):
        store.consume([], "g")
    kept = consume(store)
    with pytest.raises(ConfigError, match="at the moment"):
        store.consume("payments", GROUP)
    with pytest.raises(ConfigError, match="at the moment"):
        consume(store, tags="paid")
    kept.close()
    store.consume("payments", GROUP).close()


def test_a_group_without_consumers_holds_no_message(store):
    put(store, 5)
    consumer = store.consume(TOPIC, GROUP)
    consumer.poll()
    assert held_by(store)["QueueWindow._open"] == 5
    consumer.close()
    assert held_by(store)["QueueWindow._open"] == 0
    assert next(store.consume(TOPIC, GROUP, idle_timeout_s=0)).body == b"0"


def test_a_group_that_comes_does_not_look_at_all_that_are_there(store, monkeypatch):
    looks = []
    has_members = Group.has_members.fget
    counted = property(lambda group: looks.append(group) or has_members(group))
    monkeypatch.setattr(Group, "has_members", counted)
    kept = [store.consume(TOPIC, f"group-{number}") for number in range(200)]
    assert len(looks) < 3 * len(kept)
    for consumer in kept:
        consumer.close()
    for number in range(200):
        store.consume(TOPIC, f"later-{number}").close()
    assert len(store.attached["consuming"]._groups) < 3  # those that ended are let go of
