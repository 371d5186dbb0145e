"""A slave gets the log and no table: what a batch topic is, it learns from the records."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rocketstore import Message, MessageStore, StoreConfig, verify_store
from rocketstore.config import BrokerRole
from support.patience import wait_until
from support.reading import all_messages
from support.replicas import SIZES, address_of, open_master, open_slave

TOPIC = "batches"


def put_batches(store: MessageStore, count: int, *, first: int = 0) -> list[bytes]:
    """Put batches of five into two queues, and return the bodies of queue 0."""
    own: list[bytes] = []
    for number in range(first, first + count):
        bodies = [b"%d.%d" % (number, part) for part in range(5)]
        messages = [Message(topic=TOPIC, body=body) for body in bodies]
        assert store.put_batch(messages, number % 2).is_stored
        own += bodies if number % 2 == 0 else []
    return own


def put_single(store: MessageStore, body: bytes) -> list[bytes]:
    assert store.put(Message(topic=TOPIC, body=body)).is_stored
    return [body]


def bodies(store: Any) -> list[bytes]:
    found = [*all_messages(store, TOPIC)]
    assert [one.queue_offset for one in found] == [*range(len(found))]
    return [one.body for one in found]


def follow(slave: MessageStore, master: MessageStore) -> None:
    wait_until(lambda: slave.max_physical_offset == master.max_physical_offset, "the slave follows")
    assert slave.wait_dispatched()


def check_promoted(root: Path, expected: list[bytes]) -> None:
    table = json.loads((root / "config" / "topics.json").read_text())["topicConfigTable"]
    assert table[TOPIC]["attributes"] == {"queue.type": "BatchCQ"}
    with MessageStore.open(root, StoreConfig.small(**SIZES), threads=False) as store:
        assert bodies(store) == expected
        assert store.put_batch([Message(topic=TOPIC, body=b"x")] * 2).queue_offset == len(expected)
        store.wait_dispatched()
        assert bodies(store) == [*expected, b"x", b"x"]
    with MessageStore.open(root, read_only=True) as store:
        assert bodies(store) == [*expected, b"x", b"x"]
    assert verify_store(root).findings == []


@pytest.mark.parametrize("first", ["batch", "single"])
def test_a_promoted_slave_shows_every_message_of_a_batch_topic(root, first):
    with open_master(root / "master") as master:
        master.batch_topics.create(TOPIC)
        expected = put_single(master, b"alone") if first == "single" else []
        with open_slave(root / "slave", address_of(master)) as slave:
            follow(slave, master)
            expected += put_batches(master, 25)
            follow(slave, master)
            expected += put_single(master, b"in between")
            expected += put_batches(master, 25, first=26)
            follow(slave, master)
            if first == "batch":
                assert bodies(slave) == expected
            master.wait_dispatched()
            assert bodies(master) == expected
    check_promoted(root / "slave", expected)


def slave_and_log(root: Path, first: str) -> tuple[MessageStore, list[bytes], int, memoryview, int]:
    """Return an empty slave, what it is to have, and its master's log: middle, bytes and time."""
    with open_master(root / "master", broker_role=BrokerRole.ASYNC_MASTER) as master:
        master.batch_topics.create(TOPIC)
        expected = put_single(master, b"alone") if first == "single" else []
        middle = master.replicated_log.end
        expected += put_batches(master, 10)
        content = memoryview(master.replicated_log.read(0, master.replicated_log.end))
        time_ms = master.last_store_timestamp_ms
    config = StoreConfig.small(**SIZES, broker_role=BrokerRole.SLAVE)
    slave = MessageStore.open(root / "slave", config, threads=False)
    return slave, expected, middle, content, time_ms


@pytest.mark.parametrize("first", ["batch", "single"])
@pytest.mark.parametrize("dispatched", [False, True])
def test_a_slave_that_is_killed_and_opened_as_a_master_shows_them_too(root, first, *, dispatched):
    """What recovery dispatches tells the kind as well."""
    slave, expected, _, content, time_ms = slave_and_log(root, first)
    slave.replicated_log.append(0, content, time_ms)
    if dispatched:
        slave.wait_dispatched()
    slave.abandon()
    with MessageStore.open(root / "slave", StoreConfig.small(**SIZES), threads=False) as store:
        assert bodies(store) == expected
    check_promoted(root / "slave", expected)


def test_a_slave_that_dispatched_a_message_by_itself_and_was_killed_before_the_next_record(root):
    slave, expected, middle, content, time_ms = slave_and_log(root, "single")
    slave.replicated_log.append(0, content[:middle], time_ms)
    slave.wait_dispatched()
    slave.replicated_log.append(middle, content[middle:], time_ms)
    slave.abandon()
    assert (root / "slave" / "consumequeue" / TOPIC).is_dir()
    with MessageStore.open(root / "slave", StoreConfig.small(**SIZES), threads=False) as store:
        assert bodies(store) == expected
    assert list((root / "slave" / "repair").rglob(TOPIC))  # what was there is kept
    check_promoted(root / "slave", expected)


def test_a_table_and_queues_that_are_lost_with_the_log_intact_are_learnt_again(root):
    config = StoreConfig.small(**SIZES)
    with MessageStore.open(root, config, threads=False) as store:
        store.batch_topics.create(TOPIC)
        expected = put_batches(store, 10)
    shutil.rmtree(root / "config")
    shutil.rmtree(root / "batchconsumequeue")
    (root / "checkpoint").unlink()
    (root / "abort").touch()
    with MessageStore.open(root, config, threads=False) as store:
        assert bodies(store) == expected
    check_promoted(root, expected)


@pytest.mark.parametrize(
    "properties", [{}, {"INNER_NUM": "2"}, {"INNER_NUM": "2", "INNER_BASE": "7"}]
)
def test_a_record_that_does_not_say_its_place_teaches_nothing(root, properties, monkeypatch):
    config = StoreConfig.small(**SIZES)
    with MessageStore.open(root, config, threads=False) as store:
        monkeypatch.setattr("rocketstore.storage.log.writer.INNER_BATCH", 0)
        message = Message(topic=TOPIC, body=b"1", sys_flag=0x80, properties=properties)
        store.put(message).raise_for_status()
        store.wait_dispatched()
        assert TOPIC not in store.kinds
        assert store.max_offset(TOPIC, 0) == 1
