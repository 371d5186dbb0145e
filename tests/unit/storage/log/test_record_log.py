"""Records that state their offsets are appended where they say, or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.config import BrokerRole
from rocketstore.errors import StoreError
from rocketstore.storage.log.commit_log import CommitLog
from rocketstore.units import QueueKey
from support.small_store import CONFIG, START_MS, Clock, messages, open_store, put_all

KEYS = [QueueKey("Topic0", 0), QueueKey("Topic1", 0)]


@pytest.fixture
def donor(tmp_path):
    """Bytes, starts and queues of records as puts write them from the beginning of a log."""
    with open_store(tmp_path / "donor", Clock()) as store:
        results = [store.put(message, 0) for message in messages(20)]
        size = store.max_physical_offset
        data = np.frombuffer(store.records.slice(0, size), np.uint8).copy()
    starts = np.array([result.physical_offset for result in results])
    return data, starts, dict.fromkeys(KEYS, (10, size // 2))


def test_what_was_appended_reads_as_if_it_had_been_put(tmp_path, donor):
    data, starts, queues = donor
    with open_store(tmp_path / "store", Clock()) as store:
        store.records.append(data.copy(), starts, 0, queues, START_MS)
        assert store.records.slice(0, len(data)) == data.tobytes()
        assert store.put(Message(topic="Topic0", body=b"")).queue_offset == 10
        store.wait_dispatched()
        assert [store.max_offset(*key) for key in KEYS] == [11, 10]
        assert [one.queue_offset for one in store.find("Topic1", key="key-3")] == [1]


def test_magics_are_written_after_everything_else_and_in_order(tmp_path, donor, monkeypatch):
    data, starts, queues = donor
    states = []

    class Watched(np.ndarray):
        def __setitem__(self, place, value):
            super().__setitem__(place, value)
            states.append(bytes(self[: len(data)]))

    use = CommitLog._use

    def watched_use(log, *arguments):
        use(log, *arguments)
        log._target = log._target.view(Watched)

    monkeypatch.setattr(CommitLog, "_use", watched_use)
    with open_store(tmp_path / "store", Clock()) as store:
        store.records.append(data.copy(), starts, 0, queues, START_MS)
    bare = data.copy()
    bare[starts[:, None] + np.arange(4, 8)] = 0
    assert states == [bytes(bare), bytes(data)]


@pytest.mark.parametrize(("offset", "time_ms"), [(8, START_MS), (0, START_MS - 1)])
def test_records_for_another_place_or_an_earlier_time_are_refused(tmp_path, donor, offset, time_ms):
    data, starts, queues = donor
    clock = Clock()
    with open_store(tmp_path / "store", clock) as store:
        put_all(store, messages(1), clock)
        end = store.max_physical_offset
        with pytest.raises(StoreError, match="cannot be appended at"):
            store.records.append(data, starts, offset or end, queues, time_ms)
        assert store.max_physical_offset == end
        assert store.put(Message(topic="Topic0", body=b"")).queue_offset == 1


def test_a_slave_takes_no_records(tmp_path, donor):
    data, starts, queues = donor
    config = StoreConfig(
        mapped_file_size_commit_log=CONFIG.mapped_file_size_commit_log, broker_role=BrokerRole.SLAVE
    )
    with (
        MessageStore.open(tmp_path / "store", config, threads=False) as store,
        pytest.raises(StoreError, match="takes no messages"),
    ):
        store.records.append(data, starts, 0, queues, START_MS)


def test_only_written_bytes_are_rewritten(tmp_path, donor):
    data, starts, queues = donor
    with open_store(tmp_path / "store", Clock()) as store:
        store.records.append(data, starts, 0, queues, START_MS)
        store.records.rewrite([(4, b"abcd")])
        assert bytes(store.records.slice(4, 4)) == b"abcd"
        with pytest.raises(StoreError, match="is not among the written bytes"):
            store.records.rewrite([(len(data), b"x")])


def test_a_store_that_was_abandoned_is_recovered_by_the_next_open(tmp_path):
    store = open_store(tmp_path / "store", Clock())
    put_all(store, messages(30), Clock())
    store.abandon()
    with open_store(tmp_path / "store", Clock()) as after:
        assert not after.recovery.was_clean
        assert after.max_offset("Topic0", 0) == 15
