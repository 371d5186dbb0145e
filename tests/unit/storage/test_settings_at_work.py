"""Settings reach the part that they are about."""

from __future__ import annotations

import pytest

from rocketstore import ConfigError, Message, MessageStore, StoreConfig
from rocketstore.config import load_config
from support.configured_store import LOG_FILE_BYTES, open_small

TOPIC = "TopicTest"


def test_find_returns_as_many_messages_as_the_setting_says_unless_told_otherwise(tmp_path):
    with open_small(tmp_path / "store", max_msgs_num_batch=3) as store:
        for _ in range(5):
            store.put(Message(topic=TOPIC, body=b"x", keys="k"))
        store.wait_dispatched()
        assert len(store.find(TOPIC, "k")) == 3
        assert len(store.find(TOPIC, "k", max_messages=5)) == 5
    with MessageStore.open(
        tmp_path / "store", StoreConfig(max_msgs_num_batch=2), read_only=True
    ) as reader:
        assert len(reader.find(TOPIC, "k")) == 2


def test_find_returns_64_messages_by_default(tmp_path):
    with open_small(tmp_path / "store") as store:
        for _ in range(70):
            store.put(Message(topic=TOPIC, body=b"x", keys="k"))
        store.wait_dispatched()
        assert len(store.find(TOPIC, "k")) == 64


def test_a_store_without_index_finds_nothing_and_makes_no_file(tmp_path):
    with open_small(tmp_path / "store", message_index_enable=False) as store:
        store.put(Message(topic=TOPIC, body=b"x", keys="k"))
        store.wait_dispatched()
        assert store.find(TOPIC, "k") == []
        assert not store.layout.index.exists()


def test_the_limits_of_a_page_are_settings(tmp_path):
    with open_small(tmp_path / "store", max_transfer_count_on_message_in_memory=4) as store:
        store.put_batch([Message(topic=TOPIC, body=b"x")] * 10)
        store.wait_dispatched()
        assert len(store.get(TOPIC, 0, 0, 32).messages) == 4


def test_the_next_file_of_a_warmed_log_has_all_its_pages(tmp_path):
    with open_small(tmp_path / "store", warm_mapped_file_enable=True, threads=True) as store:
        store.put(Message(topic=TOPIC, body=bytes(LOG_FILE_BYTES - 4000)))
        store._services.make_ahead()
        assert store._parts.preallocator.wait_idle(30)
        ahead = next(iter(store._parts.preallocator._ready.values()))
        assert ahead.is_mapped


def test_sizes_of_an_existing_store_are_learnt_and_others_refused(tmp_path):
    with open_small(tmp_path / "store") as store:
        store.put(Message(topic=TOPIC, body=b"x", keys="k"))
        store.wait_dispatched()
    with MessageStore.open(tmp_path / "store", StoreConfig(retention=False)) as again:
        assert again.put(Message(topic=TOPIC, body=b"y")).queue_offset == 1
    with pytest.raises(ConfigError, match=f"{LOG_FILE_BYTES}"):
        MessageStore.open(tmp_path / "store", StoreConfig(mapped_file_size_commit_log=1024 * 1024))


def test_a_pool_option_is_accepted_and_messages_are_in_the_page_cache_all_the_same(tmp_path):
    with open_small(tmp_path / "store", transient_store_pool_enable=True) as store:
        result = store.put(Message(topic=TOPIC, body=b"in the file"))
        path = store.layout.commit_log_directories[0] / f"{0:020d}"
        assert b"in the file" in path.read_bytes()[: result.size]


def test_raft_logs_are_refused():
    with pytest.raises(ConfigError, match="enableDLegerCommitLog"):
        StoreConfig(enable_d_ledger_commit_log=True)


def test_with_several_queues_on_a_message_without_properties_is_dispatched_like_any_other(tmp_path):
    with open_small(tmp_path / "store", enable_multi_dispatch=True, enable_lmq=True) as store:
        store.put(Message(topic=TOPIC, body=b"without"))
        store.put(Message(topic=TOPIC, body=b"with", keys="k"))
        store.wait_dispatched()
        assert [m.body for m in store.get(TOPIC, 0, 0).messages] == [b"without", b"with"]
    assert not store.layout.abort.exists()


def test_a_spelling_of_older_versions_is_answered_with_the_present_one():
    with pytest.raises(ConfigError, match=r"mapedFileSizeCommitLog.*mappedFileSizeCommitLog"):
        load_config(overrides=["mapedFileSizeCommitLog=1048576"])
