"""What a topic is comes from the store: by every door, at every moment, for every message."""

import errno
import json
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rocketstore import Message, MessageStore, PutMessageStatus, StoreConfig, StoreError
from rocketstore.cli.application import run
from rocketstore.config import BrokerRole
from rocketstore.errors import StoreClosedError
from rocketstore.storage.store import BaseStore
from support.clock import START_MS
from support.faulty_disk import FaultyDisk
from support.inside import parts_of
from support.reading import all_messages

KINDS = ("memory", "batch")
REFUSED = PutMessageStatus.SERVICE_NOT_AVAILABLE


def config_of(**settings: Any) -> StoreConfig:
    return StoreConfig.small(
        memory_topic_enable=True, enable_multi_dispatch=True, transaction_time_out=0, **settings
    )


def mark_memory(root: Path, topic: str) -> None:
    """Write the table as a broker with such topics would."""
    path = root / "config" / "topics.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"topicConfigTable": {topic: {"topicName": topic, "memory": True}}}))


class FailsOnce:
    """Has one call of a `FaultyDisk` fail, the one of the number `at`."""

    calls, at = 0, -1

    def __call__(self, *_call: object) -> int | None:
        self.calls += 1
        return errno.EIO if self.calls == self.at + 1 else None


def open_store(root: Path, *, threads: bool = False, **more: Any) -> MessageStore:
    return MessageStore.open(root, config_of(), threads=threads, **more)


def create(store: MessageStore, kind: str, topic: str = "t") -> None:
    (store.memory_topics if kind == "memory" else store.batch_topics).create(topic)


def bodies(store: Any, topic: str = "t", queue_id: int = 0) -> list[bytes]:
    store.wait_dispatched()
    return [one.body for one in all_messages(store, topic, queue_id)]


# --- becoming -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_with_a_message_that_is_not_dispatched_stays_as_it_is(root, kind):
    with open_store(root) as store:
        assert store.put(Message(topic="t", body=b"acknowledged")).is_stored
        further = {"INNER_MULTI_DISPATCH": "further"}
        assert store.put(Message(topic="u", body=b"also here", properties=further)).is_stored
        assert not store.queues()
        for topic in ("t", "further"):
            with pytest.raises(StoreError, match=f"{topic} cannot become a {kind} topic"):
                create(store, kind, topic)
        assert not (root / "config" / "topics.json").exists()
        assert (bodies(store), bodies(store, "further")) == ([b"acknowledged"], [b"also here"])
    with open_store(root) as store:
        with pytest.raises(StoreError, match="has messages on the disk"):
            create(store, kind)
        assert bodies(store) == [b"acknowledged"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_acknowledged_message_is_hidden_by_a_kind_that_its_topic_gets_meanwhile(root, kind):
    made: list[str] = []
    stored: dict[str, list[bytes]] = {}

    def put_all() -> None:
        for round_ in range(3):
            for topic in topics:
                body = b"%s-%d" % (topic.encode(), round_)
                if store.put(Message(topic=topic, body=body)).is_stored:
                    stored.setdefault(topic, []).append(body)

    topics = [f"t{number}" for number in range(60)]
    with open_store(root, threads=True) as store:
        putting = threading.Thread(target=put_all)
        putting.start()
        for topic in topics:
            with suppress(StoreError):
                create(store, kind, topic)
                made.append(topic)
        putting.join()
        for topic in topics:
            assert bodies(store, topic) == stored.get(topic, []), topic
    with open_store(root) as store:  # and it opens; what was in memory is gone
        for topic in set(topics).difference(made if kind == "memory" else ()):
            assert bodies(store, topic) == stored.get(topic, []), topic


def test_a_put_that_is_on_its_way_when_its_topic_becomes_one_in_memory_is_refused(
    root, monkeypatch
):
    with open_store(root) as store:
        queue_of = store._writer._queue_of

        def late(topic: object, queue_id: object) -> Any:
            queue = queue_of(topic, queue_id)
            monkeypatch.undo()
            store.memory_topics.create("t")
            return queue

        monkeypatch.setattr(store._writer, "_queue_of", late)
        result = store.put(Message(topic="t", body=b"late"))
        assert (result.status, store.max_physical_offset) == (REFUSED, 0)
        assert "t has just become a memory topic" in str(result.detail)
        store.put(Message(topic="t", body=b"in memory")).raise_for_status()
        store.put(Message(topic="other", body=b"on the disk")).raise_for_status()
        assert (bodies(store), bodies(store, "other")) == ([b"in memory"], [b"on the disk"])


def test_a_further_queue_whose_topic_becomes_of_another_kind_during_the_put_gets_nothing(
    root, monkeypatch
):
    properties = {"INNER_MULTI_DISPATCH": "further"}
    with open_store(root) as store:
        extra = store.extra_queues
        of = extra.of

        def late(*arguments: Any, **how: Any) -> Any:
            found = of(*arguments, **how)
            monkeypatch.undo()
            store.batch_topics.create("further")
            return found

        monkeypatch.setattr(extra, "of", late)
        result = store.put(Message(topic="t", body=b"1", properties=properties))
        assert (result.status, store.max_physical_offset) == (REFUSED, 0)
        store.put(Message(topic="t", body=b"2")).raise_for_status()
        assert (bodies(store), bodies(store, "further")) == ([b"2"], [])


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_fails_while_a_topic_becomes_one_the_store_opens_and_loses_nothing(root, kind):
    for number in count():
        fails = FailsOnce()
        own, disk = root / str(number), FaultyDisk(fails)
        with open_store(own, disk=disk) as store:
            fails.at = fails.calls + number
            with suppress(OSError, StoreError):
                create(store, kind)
            fails.at = -1
            store.put(Message(topic="t", body=b"1")).raise_for_status()
            assert bodies(store) == [b"1"]
            table = own / "config" / "topics.json"
            is_marked = table.exists() and "t" in json.loads(table.read_text())["topicConfigTable"]
            assert ("t" in store.kinds) == is_marked
        with open_store(own) as store:
            assert bodies(store) == ([] if store.kinds.is_in_memory("t") else [b"1"])
        if not disk.failures:
            assert number > 3
            return


def test_a_kind_is_not_changed_while_the_store_closes(root):
    store = open_store(root)
    topics = store.batch_topics
    parts_of(store).log.settle()  # a closing store got that far
    with pytest.raises(StoreClosedError):
        topics.create("t")
    store.close()
    assert not (root / "config").exists()


def test_a_slave_s_topics_are_its_master_s(root):
    config = StoreConfig.small(broker_role=BrokerRole.SLAVE)
    with (
        MessageStore.open(root, config, threads=False) as store,
        pytest.raises(StoreError, match="make it in the master"),
    ):
        store.batch_topics.create("t")


# --- doors --------------------------------------------------------------------------------------


def test_no_door_puts_what_the_topic_s_consumers_would_not_find(root, capsys):
    with open_store(root) as store:
        create(store, "memory")
        create(store, "batch", "lines")
        end = store.max_physical_offset
    lines = root / "lines.txt"
    lines.write_bytes(b"a\nb\n")
    with BaseStore.open(root, config_of(), threads=False) as store:
        message = Message(topic="t", body=b"1")
        results = [
            store.put(message),
            store.put(message),
            store.put_batch([message, message]),
            store.put_prepared(store.prepare(message)),
            store.put_client_batch("t", 0, b"\0" * 22),
            store.put(Message(topic="t", body=b"1", properties={"DELAY": "1"})),
        ]
        assert {one.status for one in results} == {REFUSED}
        assert all("t is a memory topic" in str(one.detail) for one in results)
        store.put(Message(topic="u", body=b"2")).raise_for_status()
        assert store.max_physical_offset > end
    command = ["store", "import", str(root), str(lines), "--topic"]
    assert run([*command, "t"]) == 1
    assert "t is a memory topic" in capsys.readouterr().err
    assert run([*command, "lines"]) == 0
    with open_store(root) as store:
        assert bodies(store) == []
        assert bodies(store, "lines") == [b"a", b"b"]
        store.put(Message(topic="t", body=b"3")).raise_for_status()
        assert bodies(store) == [b"3"]


def test_a_topic_with_messages_on_the_disk_that_the_table_calls_one_in_memory_takes_none_there(
    root,
):
    with open_store(root) as store:
        store.put(Message(topic="t", body=b"on the disk")).raise_for_status()
        store.put(Message(topic="u", body=b"1")).raise_for_status()
    mark_memory(root, "t")
    with BaseStore.open(root, config_of(), threads=False) as store:
        assert store.put(Message(topic="t", body=b"hidden")).status is REFUSED
    with open_store(root) as store:
        store.put(Message(topic="t", body=b"in memory")).raise_for_status()
        assert bodies(store) == [b"in memory"]
    with MessageStore.open(root, StoreConfig.small(), threads=False) as store:
        store.put(Message(topic="t", body=b"next")).raise_for_status()
        assert bodies(store) == [b"on the disk", b"next"]


# --- messages that wait -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("waits_for", ["time", "commit"])
def test_a_message_that_waited_reaches_a_further_topic_that_became_of_another_kind(
    root, kind, waits_for, clock
):
    with open_store(root, clock=clock) as store:
        asked = {"INNER_MULTI_DISPATCH": "%LMQ%light,further,plain", "colour": "red"}
        half = None
        if waits_for == "time":
            delayed = Message(topic="t", body=b"1", properties={**asked, "DELAY": "1"})
            store.put(delayed, 3).raise_for_status()
        else:
            half = store.begin(Message(topic="t", body=b"1", properties=asked), 3)
        create(store, kind, "further")
        store.wait_dispatched()
        if half is not None:
            store.commit(half)
        else:
            assert store.delays is not None
            store.delays.turn()
            clock.now_ms = START_MS + 5_000
            store.delays.turn()
        assert bodies(store, "t", 3) == bodies(store, "plain", 3) == [b"1"]
        assert bodies(store, "%LMQ%light", 3) == [b"1"]
        assert bodies(store, "further", 3) == [b"1"]
        copy = store.get("further", 3, 0).messages[0]
        assert copy.properties["colour"] == "red"
        assert "INNER_MULTI_DISPATCH" not in copy.properties


@pytest.mark.parametrize("light", [0, 3])
def test_a_message_that_waited_for_a_topic_in_memory_reaches_its_further_queues(root, clock, light):
    config = config_of(enable_lmq=not light)
    with MessageStore.open(root, config, threads=False, clock=clock) as store:
        asked = {"INNER_MULTI_DISPATCH": "plain,packed,quick,%LMQ%light", "DELAY": "1"}
        store.put(Message(topic="t", body=b"1", properties=asked), 3).raise_for_status()
        create(store, "memory")
        create(store, "memory", "quick")
        create(store, "batch", "packed")
        store.wait_dispatched()
        assert store.delays is not None
        store.delays.turn()
        clock.now_ms = START_MS + 5_000
        store.delays.turn()
        for name in ("t", "plain", "packed", "quick"):
            assert bodies(store, name, 3) == [b"1"]
        assert bodies(store, "%LMQ%light", light) == [b"1"]


def test_a_group_s_offsets_of_memory_are_not_applied_to_the_queue_on_the_disk(root):
    def consumed(store: MessageStore) -> int:
        store.wait_dispatched()
        with store.consume("t", "g", start="first", idle_timeout_s=0.05) as group:
            return sum(one.ack() for one in group)

    def put(store: MessageStore, count: int) -> None:
        for number in range(count):
            store.put(Message(topic="t", body=b"%d" % number)).raise_for_status()

    on_disk = StoreConfig.small()
    with MessageStore.open(root, on_disk) as store:
        put(store, 5)
        assert consumed(store) == 5
    mark_memory(root, "t")
    with open_store(root, threads=True) as store:
        put(store, 100)
        assert consumed(store) == 100
    with MessageStore.open(root, on_disk) as store:
        put(store, 50)
        assert consumed(store) == 50  # none passed over, and none of the five again
