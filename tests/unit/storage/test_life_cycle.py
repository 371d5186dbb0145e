"""A store from open to close: its threads, its markers, and what is left (spec B1, F12)."""

import threading
import time

import pytest

from rocketstore import Message, MessageStore, StoreLockedError
from rocketstore.storage.checkpoint import read_checkpoint
from support.configured_store import LOG_FILE_BYTES, QUEUE_FILE_BYTES, open_small, small_config
from support.inside import parts_of, workers_of
from support.patience import PATIENCE_S
from support.preallocation import wait_idle

TOPIC = "TopicTest"


def our_threads():
    return {
        thread.name for thread in threading.enumerate() if thread.name.startswith("rocketstore-")
    }


def put(store, count=1):
    for number in range(count):
        store.put(Message(topic=TOPIC, body=b"x", keys=f"k{number}"))


def test_open_starts_the_services_and_close_ends_them(tmp_path):
    with open_small(tmp_path / "store", threads=True, retention=True):
        assert our_threads() == {
            "rocketstore-preallocate",
            "rocketstore-touch",
            "rocketstore-flush",
            "rocketstore-dispatch",
            "rocketstore-queue-flush",
            "rocketstore-statistics",
            "rocketstore-disk-check",
            "rocketstore-retention",
            "rocketstore-delay",
            "rocketstore-consumer-offsets",
            "rocketstore-transaction-check",
        }
    assert our_threads() == set()


def test_without_retention_no_thread_deletes_or_looks_at_the_disk(tmp_path):
    with open_small(tmp_path / "store", threads=True, retention=False):
        assert not our_threads() & {"rocketstore-disk-check", "rocketstore-retention"}


def test_a_store_is_made_where_there_is_none(tmp_path):
    with open_small(tmp_path / "a" / "b" / "store") as store:
        put(store)
        store.wait_dispatched()
    names = {path.name for path in (tmp_path / "a" / "b" / "store").iterdir()}
    assert names == {"commitlog", "consumequeue", "index", "checkpoint", "known-ends", "lock"}


def test_abort_is_there_as_long_as_the_store_is_open(tmp_path):
    with open_small(tmp_path / "store") as store:
        assert store.layout.abort.read_bytes() == b""
    assert not store.layout.abort.exists()


def test_close_dispatches_what_is_left(tmp_path):
    with open_small(tmp_path / "store") as store:
        put(store, 5)
        assert store.dispatched_physical_offset == 0
    with MessageStore.open(tmp_path / "store", small_config(), read_only=True) as reader:
        assert reader.max_offset(TOPIC, 0) == 5
        assert len(reader.find(TOPIC, "k3")) == 1


def test_abort_stays_when_not_everything_could_be_dispatched(tmp_path, disk):
    store = open_small(tmp_path / "store", disk=disk)
    put(store)
    disk.is_full = True
    store.close()
    assert store.layout.abort.exists()
    with open_small(tmp_path / "store") as again:
        assert not again.recovery.was_clean
        assert len(again.get(TOPIC, 0, 0).messages) == 1


def test_files_made_ahead_are_gone_after_close(tmp_path):
    with open_small(tmp_path / "store", threads=True) as store:
        put(store)
        parts_of(store).preallocator.request(0)
        wait_idle(parts_of(store).preallocator, PATIENCE_S)
        assert len(list(store.layout.commit_log_directories[0].iterdir())) == 3
    assert len(list(store.layout.commit_log_directories[0].iterdir())) == 1


def test_the_next_files_are_made_once_the_last_one_is_half_full(tmp_path):
    def count(store):
        workers_of(store).make_ahead()
        assert wait_idle(parts_of(store).preallocator, PATIENCE_S)
        return len(list(store.layout.commit_log_directories[0].iterdir()))

    with open_small(tmp_path / "store", threads=True) as store:
        store.put(Message(topic=TOPIC, body=bytes(LOG_FILE_BYTES // 3)))
        assert count(store) == 1
    with open_small(tmp_path / "store", threads=True) as store:
        assert count(store) == 1
        store.put(Message(topic=TOPIC, body=bytes(LOG_FILE_BYTES // 2)))
        assert count(store) == 3
        store.put(Message(topic=TOPIC, body=bytes(LOG_FILE_BYTES // 3)))
        assert count(store) == 4, "a log that has rolled goes on as Java does"


def test_a_second_open_in_the_same_process_is_refused(tmp_path):
    with open_small(tmp_path / "store"), pytest.raises(StoreLockedError, match="this process"):
        open_small(tmp_path / "store")
    open_small(tmp_path / "store").close()


def test_an_error_inside_the_block_closes_the_store_and_is_what_is_seen(tmp_path):
    store = open_small(tmp_path / "store", threads=True)

    def fail():
        with store:
            put(store)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert store.is_closed
    assert our_threads() == set()


def test_mapped_files_and_their_bytes_are_counted(tmp_path):
    with open_small(tmp_path / "store", message_index_enable=False) as store:
        assert store.runtime_info()["totalMappedFiles"] == "0"
        put(store)
        store.wait_dispatched()
        info = store.runtime_info()
    assert info["totalMappedFiles"] == "2"
    assert info["totalMappedVirtualMemory"] == str(LOG_FILE_BYTES + QUEUE_FILE_BYTES)


def test_a_wait_ends_when_the_message_can_be_read_and_not_before_the_time_is_over(tmp_path):
    with open_small(tmp_path / "store", threads=True) as store:
        began_s = time.monotonic()
        assert not store.wait_for(TOPIC, 0, 0, timeout_s=0.01)
        assert time.monotonic() - began_s >= 0.01
        arrived, is_waiting = [], threading.Event()

        def is_there() -> bool:
            is_waiting.set()
            return store.max_offset(TOPIC, 0) > 0

        waiter = threading.Thread(
            target=lambda: arrived.append(store.wait_until(is_there, timeout_s=PATIENCE_S))
        )
        waiter.start()
        assert is_waiting.wait(PATIENCE_S)
        put(store)
        waiter.join(PATIENCE_S)
        assert arrived == [True]
        assert len(store.get(TOPIC, 0, 0).messages) == 1


def test_listeners_hear_of_messages_until_they_are_removed(tmp_path):
    heard = []
    with open_small(tmp_path / "store") as store:
        store.add_listener(heard.append)
        put(store, 2)
        store.wait_dispatched()
        store.remove_listener(heard.append)
        put(store)
        store.wait_dispatched()
    assert [(a.topic, a.queue_id, a.next_offset) for a in heard] == [(TOPIC, 0, 1), (TOPIC, 0, 2)]


@pytest.mark.parametrize("end", [MessageStore.flush, MessageStore.close])
def test_flush_and_close_put_log_queues_and_index_on_the_disk(tmp_path, end, disk):
    with open_small(tmp_path / "store", disk=disk) as store:
        put(store)
        store.wait_dispatched()
        (index_file,) = (path.name for path in store.layout.index.iterdir())
        disk.calls.clear()
        put(store)
        store.wait_dispatched()
        end(store)
        synced = disk.synced
    # The log's file and the queue's have the same name; the index is flushed long before full.
    assert sorted(set(synced)) == [f"{0:020d}", index_file, "checkpoint", "known-ends.tmp"]
    assert synced.count(f"{0:020d}") == 2
    assert synced[-1] == "checkpoint"


def test_the_checkpoint_does_not_move_when_the_index_could_not_be_synced(tmp_path, disk):
    store = open_small(tmp_path / "store", disk=disk)
    put(store)
    store.wait_dispatched()
    disk.fails_sync = {path.name for path in store.layout.index.iterdir()}
    store.close()
    assert read_checkpoint(store.layout.checkpoint).index_ms == 0
    assert store.layout.abort.exists()
