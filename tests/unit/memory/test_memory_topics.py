"""Memory topics: the face of any topic, no byte on the disk, room made by the seed's rule."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketstore import GetMessageStatus, Message, MessageStore, PutMessageStatus, StoreConfig
from rocketstore.config import BrokerRole, FlushDiskType
from rocketstore.errors import (
    ConfigError,
    FormatError,
    InvalidNameError,
    NotReadableError,
    RefusedMessageError,
    StoreClosedError,
    StoreError,
    StoreFullError,
)
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.storage.kinds import memory_topics
from rocketstore.storage.kinds.memory_log import ENTRY_OVERHEAD_BYTES, MemoryQueue
from rocketstore.storage.results import FIRST_IN_MEMORY
from rocketstore.storage.running_flags import RunningFlag
from support.clock import Clock
from support.failing_disk import FailingDisk
from support.memory import memory_directory
from support.patience import PATIENCE_S
from support.trees import tree_with_times

CACHE, OTHER, DISK = "cache", "other", "disk"
OK = PutMessageStatus.PUT_OK


def mark(root: Path, *topics: str) -> None:
    """Write ``topics.json`` as a broker would have it."""
    table = {name: {"topicName": name, "memory": True, "newer": 1} for name in topics}
    path = root / "config" / "topics.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"topicConfigTable": {**table, DISK: {"topicName": DISK}}}))


def open_memory(
    root: Path, *topics: str, clock: Any = None, threads: bool = False, **settings: Any
) -> MessageStore:
    mark(root, *(topics or (CACHE, OTHER)))
    config = StoreConfig.small(memory_topic_enable=True, store_host="10.0.0.7:10911", **settings)
    return MessageStore.open(root, config, clock=clock or Clock(), threads=threads)


def message(topic: str, number: int = 0, **more: Any) -> Message:
    return Message(topic=topic, body=b"%06d" % number, tags=f"T{number % 2}", **more)


def bodies(store: MessageStore, topic: str, queue_id: int = 0) -> list[int]:
    page = store.get(topic, queue_id, store.min_offset(topic, queue_id), 32)
    return [int(one.body) for one in page.messages]


def shown(value: Any) -> Any:
    """Return what a memory topic and one on the disk must agree in."""
    if hasattr(value, "messages"):
        seen = [
            (one.queue_id, one.queue_offset, one.size, one.body, one.properties, one.flag,
             one.store_timestamp_ms, one.born_timestamp_ms, one.born_host, one.store_host,
             one.reconsume_times, one.sys_flag, one.body_crc)
            for one in value.messages
        ]  # fmt: skip
        return (value.status, seen, *value[2:])
    if hasattr(value, "packed_sizes"):
        return (
            value.status, value.queue_offset, value.size, value.store_timestamp_ms,
            value.message_count, value.record_sizes, value.store_host, value.is_stored,
        )  # fmt: skip
    if hasattr(value, "records"):
        return (value.status, sum(map(len, value.records)) if isinstance(value.records, list)
                else len(value.records), *value[2:])  # fmt: skip
    return value


def test_it_answers_as_a_topic_on_the_disk_does(root):
    """The oracle is the store itself: one script for a topic of each kind."""

    def script(store: MessageStore, topic: str, clock: Clock) -> Iterator[Any]:
        yield store.get(topic, 0, 0)
        yield store.max_offset(topic, 0)
        for number in range(40):
            clock.now_ms += 10
            yield store.put(message(topic, number, keys=("k",), flag=3), number % 2)
        v6 = message(topic, 7, born_host="[2001:db8::1]:80", reconsume_times=2)
        yield store.put(v6, queue_id=1)
        yield store.put_batch([message(topic, n) for n in (1, 2, 3)], queue_id=0)
        prepared = store.prepare(message(topic, 5))
        yield store.put_prepared(prepared)
        yield store.put_prepared(prepared, b"another")
        batch = encode_client_batch([(1, b"8", b"K\x01v"), (2, b"9", b"")])
        yield store.put_client_batch(topic, 1, batch, properties={"A": "b"}, born_host="1.2.3.4:5")
        yield store.put(Message(topic=topic, body=bytes(store.config.max_message_size + 1)))
        yield store.put(Message(topic=topic, properties={"p": "x" * 32_767}))
        assert store.wait_dispatched()
        for queue_id in (0, 1, 2):
            yield store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            yield store.message_count(topic, queue_id), store.next_queue_offset(topic, queue_id)
            yield store.earliest_timestamp(topic, queue_id)
            for offset in (-1, 0, 5, 22, 24, 25, 26, 1000):
                yield store.get(topic, queue_id, offset)
                yield store.get(topic, queue_id, offset, 3, "T1")
                yield store.get(topic, queue_id, offset, 0, "none || other")
                yield store.get_raw(topic, queue_id, offset)
                yield store.get_views(topic, queue_id, offset, 5)
                yield store.store_timestamp(topic, queue_id, offset)
            for moment in (0, 1_700_000_000_000, 1_700_000_000_205, clock.now_ms, 1 << 60):
                yield store.offset_at(topic, queue_id, moment)
        entries = list(store.queue_entries(topic, 0)), list(store.queue_entries(topic, 0, 5, 3))
        yield [[(at, one.record_size, one.tags_code) for at, one in some] for some in entries]
        yield store.wait_for(topic, 0, 3, timeout_s=0)
        yield store.wait_for(topic, 0, 1000, timeout_s=0)

    answers = []
    for topic in (CACHE, "plain"):  # names, and so records, of one length
        clock = Clock()
        with memory_directory() as own, open_memory(own, clock=clock) as store:
            answers.append([shown(one) for one in script(store, topic, clock)])
    for number, (in_memory, on_disk) in enumerate(zip(*answers, strict=True)):
        assert in_memory == on_disk, number


def test_no_file_is_made_written_or_read(root):
    with open_memory(root, memory_topic_max_bytes=3000) as store:
        store.put(message(DISK))
        store.wait_dispatched()
        store.flush()
        before, end = tree_with_times(root), store.max_physical_offset
        for number in range(100):
            assert store.put(message(CACHE, number)).status is OK
            store.put_batch([message(OTHER, number)] * 2)
        store.get(CACHE, 0, 0)
        store.flush()
        assert store.memory_topics.kind.log.evicted > 200
        assert tree_with_times(root) == before
        assert store.max_physical_offset == end
        assert store.find(CACHE, "k") == []


def test_a_restart_begins_with_nothing(root):
    with open_memory(root) as store:
        store.put(message(CACHE, 1))
        store.put(message(DISK, 2))
    with open_memory(root) as store:
        store.wait_dispatched()
        assert store.get(CACHE, 0, 0).status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
        assert bodies(store, DISK) == [2]
        assert store.put(message(CACHE, 3)).queue_offset == 0
        assert bodies(store, CACHE) == [3]


def test_a_group_loses_nothing_that_comes_after_a_restart(root):
    """Its offset from before would lie beyond the end of the new queue."""

    def consumed(count: int) -> list[int]:
        with open_memory(root, threads=True) as store:
            for number in range(count):
                store.put(message(CACHE, number))
                store.put(message(DISK, number))
            assert store.wait_dispatched()  # else nothing may come in the time of the group
            numbers = []
            with store.consume([CACHE, DISK], "g", start="first", idle_timeout_s=0.05) as group:
                for one in group:
                    numbers += [int(one.body)] * (one.topic == CACHE)
                    one.ack()
            return numbers

    assert consumed(5) == [0, 1, 2, 3, 4]
    assert consumed(3) == [0, 1, 2]
    offsets = json.loads(
        (root / "config" / "consumerOffset.json").read_text().replace("0:", '"0":')
    )
    assert offsets["offsetTable"] == {f"{DISK}@g": {"0": 8}}


@pytest.mark.parametrize("content", ["[]", "{", '{"topicConfigTable": {"a": 7}}', '{"a": [1'])
def test_a_broken_table_of_topics_is_an_error(root, content):
    path = root / "config" / "topics.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(FormatError):
        MessageStore.open(root, StoreConfig.small(memory_topic_enable=True), threads=False)
    MessageStore.open(root, StoreConfig.small(), threads=False).close()


def test_a_topic_is_not_in_memory_before_the_table_says_so(root):
    disk = FailingDisk()
    mark(root, CACHE)
    config = StoreConfig.small(memory_topic_enable=True)
    with MessageStore.open(root, config, threads=False, disk=disk) as store:
        disk.is_full = True
        with pytest.raises(StoreFullError):
            store.memory_topics.create("fresh")
        disk.is_full = False
        assert store.memory_topics.names == {CACHE}
        store.memory_topics.create("other")
    table = json.loads((root / "config" / "topics.json").read_text())["topicConfigTable"]
    assert set(table) == {CACHE, DISK, "other"}


def test_a_transaction_puts_its_message_to_memory_when_it_is_committed(root):
    with open_memory(root, threads=True) as store:
        half = store.begin(message(CACHE, 1), producer_group="p")
        assert store.max_offset(CACHE, 0) == 0
        store.wait_dispatched()
        assert store.commit(half).put.physical_offset >= FIRST_IN_MEMORY
        assert bodies(store, CACHE) == [1]


# --- which topics -------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [False, None, 0, 1, "true", "false", [], {}])
def test_only_the_boolean_true_makes_a_memory_topic(root, said):
    path = root / "config" / "topics.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"topicConfigTable": {CACHE: {"topicName": CACHE, "memory": said}}}))
    with MessageStore.open(root, StoreConfig.small(memory_topic_enable=True)) as store:
        assert store.put(message(CACHE)).physical_offset == 0
        assert store.wait_dispatched()
        assert bodies(store, CACHE) == [0]
    assert b"000000" in (root / "commitlog" / f"{0:020d}").read_bytes()


def test_without_the_setting_a_marked_topic_is_on_the_disk(root):
    mark(root, CACHE)
    with MessageStore.open(root, StoreConfig.small(), threads=False) as store:
        with pytest.raises(ConfigError, match="memoryTopicEnable is off"):
            _ = store.memory_topics
        assert "put" not in vars(store)
        assert store.put(message(CACHE)).physical_offset == 0
        assert "memoryTopics" not in store.runtime_info()


def test_a_topic_that_is_made_a_memory_topic_stays_one(root):
    with open_memory(root) as store:
        store.memory_topics.create("fresh", 4)
        assert store.put(message("fresh")).physical_offset >= FIRST_IN_MEMORY
        store.put(message(DISK))
        store.wait_dispatched()
        with pytest.raises(StoreError, match="messages on the disk"):
            store.memory_topics.create(DISK)
        for name in ("SCHEDULE_TOPIC_XXXX", "%RETRY%g", "TBW102"):
            with pytest.raises(StoreError, match="a broker reserves its name"):
                store.memory_topics.create(name)
        with pytest.raises(InvalidNameError):
            store.memory_topics.create("a/b")
        topics = json.loads((root / "config" / "topics.json").read_text())
    table = topics["topicConfigTable"]
    assert table["fresh"]["memory"] is True
    assert table["fresh"]["readQueueNums"] == table["fresh"]["writeQueueNums"] == 4
    assert table[CACHE]["newer"] == 1
    assert "memory" not in table[DISK]
    assert topics["dataVersion"]["counter"] == 1
    config = StoreConfig.small(memory_topic_enable=True)
    with MessageStore.open(root, config, threads=False) as store:
        assert store.memory_topics.names == {CACHE, OTHER, "fresh"}


def test_topics_of_the_store_itself_are_never_in_memory(root):
    with open_memory(root, CACHE, "%RETRY%g", "SCHEDULE_TOPIC_XXXX") as store:
        assert store.memory_topics.names == {CACHE}


def test_queues_and_topics_have_those_in_memory_too(root):
    with open_memory(root) as store:
        store.put(message(CACHE), 3)
        store.put(message(DISK))
        store.wait_dispatched()
        assert [tuple(key) for key in store.queues()] == [(CACHE, 3), (DISK, 0)]
        assert store.topics() == [CACHE, DISK]


# --- room ---------------------------------------------------------------------------------------


def size_of(root: Path) -> int:
    with memory_directory() as own, open_memory(own) as store:
        return store.put(message(CACHE)).size + ENTRY_OVERHEAD_BYTES


def test_the_oldest_of_its_own_topic_goes_first(root):
    with open_memory(root, memory_topic_max_bytes=4 * size_of(root)) as store:
        store.put(message(OTHER, 0))
        for number in (1, 2):
            store.put(message(CACHE, number), queue_id=number)
        store.put(message(CACHE, 3), queue_id=1)
        store.put(message(CACHE, 4), queue_id=2)
        assert [bodies(store, CACHE, n) for n in (1, 2)] == [[3], [2, 4]]
        assert bodies(store, OTHER) == [0]
        assert (store.min_offset(CACHE, 1), store.max_offset(CACHE, 1)) == (1, 2)
        assert store.get(CACHE, 1, 0).status is GetMessageStatus.OFFSET_TOO_SMALL


def test_without_one_of_its_own_the_longest_stored_of_all_goes(root):
    with open_memory(
        root, CACHE, OTHER, "third", memory_topic_max_bytes=3 * size_of(root)
    ) as store:
        store.put(message(OTHER, 0))
        store.put(message(CACHE, 1))
        store.put(message(OTHER, 2))
        store.put(message("third", 3))
        assert [bodies(store, topic) for topic in (OTHER, CACHE, "third")] == [[2], [1], [3]]


def test_what_goes_is_found_without_a_look_at_other_queues(root, monkeypatch):
    looked: list[MemoryQueue] = []
    oldest = MemoryQueue.oldest
    monkeypatch.setattr(MemoryQueue, "oldest", lambda one: [looked.append(one), oldest(one)][1])
    with open_memory(root, memory_topic_max_bytes=60 * size_of(root)) as store:
        for number in range(180):
            store.put(message(CACHE, number), queue_id=number % 60)
        assert len(looked) == 120  # one for each that went
        assert [bodies(store, CACHE, n) for n in (0, 59)] == [[120], [179]]


def test_as_many_go_as_a_large_message_needs_and_none_for_one_that_is_too_large(root):
    with open_memory(root, memory_topic_max_bytes=10 * size_of(root)) as store:
        for number in range(10):
            store.put(message(CACHE, number))
        big = Message(topic=OTHER, body=bytes(5 * size_of(root)))
        assert store.put(big).status is OK
        messages = store.memory_topics.kind.log
        assert messages.used_bytes <= messages.limit_bytes
        assert 1 < len(bodies(store, CACHE)) < 6
        kept = bodies(store, CACHE)
        huge = store.put(Message(topic=CACHE, body=bytes(11 * size_of(root))))
        assert huge.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert "memoryTopicMaxBytes" in str(huge.detail)
        assert bodies(store, CACHE) == kept


@pytest.mark.parametrize("put", ["put", "put_batch"])
def test_the_longest_message_is_that_of_the_setting(root, put):
    with open_memory(root, max_message_size=1000) as store:

        def stored(size: int) -> Any:
            if put == "put":
                return store.put(Message(topic=CACHE, body=bytes(size)))
            halves = [Message(topic=CACHE, body=bytes(half)) for half in (size // 2, -(-size // 2))]
            return store.put_batch(halves)

        assert stored(1000 if put == "put" else 900).status is OK
        refused = stored(1001)
        assert refused.status is PutMessageStatus.MESSAGE_ILLEGAL
        what = "body of 1001" if put == "put" else "batch of 1045"
        assert refused.detail == f"{what} bytes exceeds maxMessageSize of 1000"


def test_the_limit_is_three_quarters_of_the_memory_that_is_available(root, monkeypatch, tmp_path):
    monkeypatch.setattr(memory_topics, "available_bytes", lambda: 1_000_000)
    with open_memory(root) as store:
        assert store.memory_topics.kind.log.limit_bytes == 750_000
        assert store.runtime_info()["memoryTopicMaxBytes"] == "750000"
    monkeypatch.undo()
    group = tmp_path / "own" / "group"
    group.mkdir(parents=True)
    (tmp_path / "cgroup").write_text("0::/own/group\n")
    monkeypatch.setattr(memory_topics, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(memory_topics, "_CGROUPS", tmp_path)
    (group / "memory.current").write_text("400\n")
    for limit, available in (("1000\n", 600), ("300\n", 0)):
        (group / "memory.max").write_text(limit)
        assert memory_topics.available_bytes() == available
    (group / "memory.max").write_text("max\n")
    assert memory_topics.available_bytes() > 1000


# --- what is refused ----------------------------------------------------------------------------


def test_a_delayed_message_and_what_no_topic_takes_are_refused(root):
    with open_memory(root) as store:
        with pytest.raises(RefusedMessageError, match="memory topic"):
            store.put(message(CACHE, properties={"DELAY": "3"}))
        with pytest.raises(RefusedMessageError, match="memory topic"):
            store.put_prepared(store.prepare(message(CACHE, properties={"DELAY": "3"})))
        with pytest.raises(RefusedMessageError):
            store.put(message(CACHE, sys_flag=4))
        with pytest.raises(RefusedMessageError):
            store.put_batch([message(CACHE), message(OTHER)])
        with pytest.raises(RefusedMessageError):
            store.put_batch([])
        with pytest.raises(InvalidNameError):
            store.put(message(CACHE), queue_id=-1)
        assert store.put(message(CACHE, properties={"DELAY": "0"})).status is OK


def test_a_closed_store_and_flags_are_respected(root):
    with open_memory(root) as store:
        store.put(message(CACHE))
        store.running_flags.set(RunningFlag.NOT_READABLE, "a test")
        with pytest.raises(NotReadableError):
            store.get(CACHE, 0, 0)
        store.running_flags.clear(RunningFlag.NOT_READABLE)
        store.running_flags.set(RunningFlag.DISK_FULL, "a test")
        assert store.put(message(CACHE)).status is OK
        assert store.put(message(DISK)).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert store.put(message(CACHE)).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    with pytest.raises(StoreClosedError):
        store.get(CACHE, 0, 0)
    with open_memory(root, broker_role=BrokerRole.SLAVE) as store:
        assert store.put(message(CACHE)).status is PutMessageStatus.SERVICE_NOT_AVAILABLE


# --- threads and interrupts ---------------------------------------------------------------------


def test_threads_lose_nothing_and_the_count_of_bytes_stays_right(root):
    writers, each = 4, 300
    with open_memory(root, threads=True, memory_topic_max_bytes=40 * size_of(root)) as store:
        offsets: list[int] = []
        seen: set[int] = set()
        stop = threading.Event()

        def write() -> None:
            for number in range(each):
                offsets.append(store.put(message(CACHE, number)).queue_offset)
                store.put(message(OTHER, number))

        def read() -> None:
            at = 0
            while not (stop.is_set() and seen):  # it may get no turn before the writers end
                page = store.get(CACHE, 0, at)
                numbers = [one.queue_offset for one in page.messages]
                assert numbers == sorted(numbers)
                seen.update(numbers)
                at = (
                    page.next_offset
                    if page.status is not GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
                    else 0
                )

        threads = [threading.Thread(target=write) for _ in range(writers)]
        reader = threading.Thread(target=read)
        for thread in (*threads, reader):
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        stop.set()
        reader.join(PATIENCE_S)
        assert sorted(offsets) == list(range(writers * each))
        messages = store.memory_topics.kind.log
        assert messages.used_bytes == messages.counted() <= messages.limit_bytes
        assert messages.message_count + messages.evicted == 2 * writers * each
        assert seen


def test_an_interrupted_put_is_there_or_not_and_holds_no_lock(root, monkeypatch):
    with open_memory(root) as store:
        messages = store.memory_topics.kind.log
        store.put(message(CACHE, 1))

        add = MemoryQueue.add

        def interrupted(queue: Any, entries: Any) -> None:
            """Let the interrupt come when the new records are there."""
            add(queue, entries)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(MemoryQueue, "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.put_batch([message(CACHE, 2), message(CACHE, 3)])
        assert bodies(store, CACHE) == [1]
        assert not messages._lock.locked()
        assert messages.used_bytes == messages.counted()
        assert store.put(message(CACHE, 4)).queue_offset == 1
        assert bodies(store, CACHE) == [1, 4]
        assert messages.message_count == 2
        assert messages.used_bytes == messages.counted()


def test_a_reader_that_waits_is_woken_by_a_put(root):
    with open_memory(root, threads=True) as store:
        came: list[bool] = []
        waiter = threading.Thread(target=lambda: came.append(store.wait_for(CACHE, 0, 0, 60)))
        waiter.start()
        store.put(message(CACHE))
        waiter.join(PATIENCE_S)
        assert came == [True]


def test_groups_consume_a_memory_topic_and_futures_are_resolved(root):
    with open_memory(root, threads=True, flush_disk_type=FlushDiskType.SYNC_FLUSH) as store:
        taken: list[bytes] = []

        def consume() -> None:
            with store.consume(CACHE, group="g", start="first", idle_timeout_s=60) as consumer:
                for one in consumer:
                    taken.append(one.body)
                    one.ack()
                    if len(taken) == 3:
                        return

        consumer = threading.Thread(target=consume)
        consumer.start()
        for number in range(3):
            result = store.put_async(message(CACHE, number)).result(timeout=PATIENCE_S)
            assert result.status is OK
        consumer.join(PATIENCE_S)
        assert taken == [b"000000", b"000001", b"000002"]


def test_a_topic_of_one_kind_is_made_beside_those_of_the_other(root):
    """Both kinds stand in one file: what one room wrote there stays when the other one writes."""
    config = StoreConfig.small(memory_topic_enable=True)
    with MessageStore.open(root, config) as store:
        store.memory_topics.create("quick")
        store.batch_topics.create("batches")
        store.memory_topics.create("quicker")
    with MessageStore.open(root, config) as store:
        assert store.memory_topics.names == {"quick", "quicker"}
        assert store.batch_topics.names == {"batches"}


def test_a_batch_topic_does_not_become_a_memory_topic(root):
    """Its batches could not be read any more."""
    with MessageStore.open(root, StoreConfig.small(memory_topic_enable=True)) as store:
        store.batch_topics.create("batches")
        store.put_batch([Message(topic="batches", body=b"one")])
        with pytest.raises(StoreError, match="is a batch topic"):
            store.memory_topics.create("batches")
        assert store.memory_topics.names == frozenset()
        store.wait_dispatched()
        assert [one.body for one in store.get("batches", 0, 0).messages] == [b"one"]
