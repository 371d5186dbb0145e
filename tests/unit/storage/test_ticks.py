"""What an open store does each second costs what changed since, not what there is."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.delay import DelayService
from rocketstore.format.index_file import IndexHeader, decode_header
from rocketstore.storage.checkpoint import read_known_ends
from rocketstore.storage.index import index_service
from rocketstore.storage.log.commit_log import CommitLog
from rocketstore.storage.queues.consume_queue import ConsumeQueue
from rocketstore.units import QueueKey
from support.clock import Clock
from support.inside import parts_of
from support.small_store import CONFIG, open_store

QUEUES = 40


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path, Clock()) as opened:
        for number in range(QUEUES):
            opened.put(Message(topic=f"topic-{number}", body=b"x"))
        opened.flush()
        yield opened


def test_a_flush_looks_at_no_queue_that_was_not_written_since(store, monkeypatch):
    looked_at: Counter[str] = Counter()
    flush = ConsumeQueue.flush

    def counted(queue: ConsumeQueue, *how: object) -> bool:
        looked_at[queue.key.topic] += 1
        return flush(queue, *how)  # type: ignore[arg-type]

    monkeypatch.setattr(ConsumeQueue, "flush", counted)
    store.flush()
    assert looked_at == {}
    store.put(Message(topic="topic-3", body=b"x"))
    store.put(Message(topic="another", body=b"x"))
    store.flush()
    store.flush()
    assert looked_at == {"topic-3": 1, "another": 1}


def test_a_flush_reads_the_end_of_no_queue_that_is_as_it_was(store, monkeypatch):
    """Consumers' offsets are saved every five seconds, which flushes everything."""
    looked_at: Counter[str] = Counter()
    given_stop = ConsumeQueue.given_stop.fget
    assert given_stop

    def counted(queue: ConsumeQueue) -> int:
        looked_at[queue.key.topic] += 1
        return int(given_stop(queue))

    monkeypatch.setattr(ConsumeQueue, "given_stop", property(counted))
    store.flush()
    store.put(Message(topic="topic-3", body=b"x"))
    store.put(Message(topic="another", body=b"x"))
    store.flush()
    store.flush()
    assert looked_at == {"topic-3": 1, "another": 1}
    ends = read_known_ends(store.layout.root)
    assert ends
    assert dict(ends.queues)[QueueKey("topic-3", 0)] == (0, 2)
    assert len(ends.queues) == QUEUES + 1

    queue = parts_of(store).queues.get(QueueKey("topic-3", 0))
    assert queue
    queue.files.files = tuple(queue.files.files)[:0]  # as retention leaves it, in the extreme
    store.flush()
    assert looked_at["topic-3"] == 2


def test_a_flush_reads_no_index_file_that_is_full_and_on_the_disk(tmp_path, monkeypatch):
    """It read the header of each, every second."""
    read: list[int] = []

    def counted(header: memoryview | bytes) -> IndexHeader:
        read.append(len(header))
        return decode_header(header)

    monkeypatch.setattr(index_service, "decode_header", counted)

    def costs(files: int) -> int:
        small = msgspec.structs.replace(CONFIG, max_hash_slot_num=5, max_index_num=8)
        clock = Clock()
        with MessageStore.open(tmp_path / str(files), small, clock=clock, threads=False) as opened:
            for number in range(files * 7):
                clock.now_ms += 1000
                opened.put(Message(topic="a", body=b"x", keys=f"k{number}"))
            for _ in range(2):
                opened.flush()
            assert len(parts_of(opened).index.files) == files
            read.clear()
            opened.flush()
            parts_of(opened).index.flush(full_only=True)
            return len(read)

    assert costs(10) == costs(3) < 5


class _Decoded(np.ndarray[Any, Any]):
    """Entries that note how many of them are made values."""

    count = 0

    def tolist(self) -> Any:
        _Decoded.count += len(self)
        return super().tolist()


def test_a_look_at_delayed_messages_reads_few_of_those_that_wait(tmp_path, monkeypatch):
    """3,276 of each level were made values each time one message was due: 6 ms of 18 levels."""
    chunks = ConsumeQueue.chunks

    def counted(queue: ConsumeQueue, start: int, stop: int) -> Iterator[tuple[int, Any]]:
        for first, entries in chunks(queue, start, stop):
            yield first, entries.view(_Decoded)

    def costs(waiting: int) -> int:
        clock, root = Clock(), tmp_path / str(waiting)
        config = msgspec.structs.replace(CONFIG, mapped_file_size_consume_queue=20_000)
        with MessageStore.open(root, config, clock=clock, threads=False) as opened:
            for number in range(waiting):
                properties = {"DELAY": str(number % 2 + 4)}
                opened.put(Message(topic="a", body=b"x", properties=properties))
            opened.wait_dispatched()
            delays: DelayService = opened.attached["delays"]
            delays.turn()
            monkeypatch.setattr(ConsumeQueue, "chunks", counted)
            _Decoded.count = 0
            for _ in range(5):
                clock.now_ms += 1
                delays.turn()
            monkeypatch.undo()
            return _Decoded.count

    assert 0 < costs(600) == costs(300)


def test_a_sample_of_the_statistics_looks_at_no_queue(store, monkeypatch):
    monkeypatch.setattr(CommitLog, "every_counter", lambda _: pytest.fail("a queue is looked at"))
    store.statistics.sample()
    assert store.statistics.total_put().messages == QUEUES


def test_the_total_is_what_the_counters_of_all_queues_add_up_to(tmp_path):
    config = StoreConfig(
        mapped_file_size_commit_log=CONFIG.mapped_file_size_commit_log,
        enable_lmq=True, enable_multi_dispatch=True,
    )  # fmt: skip
    light = {"INNER_MULTI_DISPATCH": "%LMQ%one,%LMQ%two"}
    for _ in range(2):  # those of an earlier opening do not count
        with MessageStore.open(tmp_path, config, clock=Clock(), threads=False) as store:
            prepared = store.prepare(Message(topic="a", body=b"x"))
            for _ in range(60):  # over several files
                store.put(Message(topic="a", body=bytes(500)))
                store.put_prepared(prepared)
            store.put(Message(topic="b", body=b"x", properties=light))
            store.put_batch([Message(topic="b", body=b"1"), Message(topic="b", body=b"2")])
            row = np.array([[0, 0, 1, 0, 0, -(2**63)]], np.int64)
            rows = store.put_rows([prepared], [0], row, b"x", b"")  # none where not compiled
            store.put(Message(topic="b", body=b"x"), queue_id=1)
            totals = store.statistics.put_by_topic().values()
            assert store.statistics.total_put() == tuple(map(sum, zip(*totals, strict=True)))
            assert store.statistics.total_put().messages == 126 + rows
