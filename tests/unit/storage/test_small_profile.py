"""`StoreConfig.small`: little disk, every message that fits elsewhere, known by its files later.

And what an embedded store does not do unasked.
"""

import os
from pathlib import Path

import pytest

from rocketstore import ConfigError, Message, MessageStore, StoreConfig
from rocketstore.config import load_config
from rocketstore.config.files import SMALL
from rocketstore.units import MiB
from support.inside import parts_of

ONE = Message(topic="orders", body=b"one", keys="k")


def disk_bytes(root: Path) -> int:
    """Blocks that a directory and all below it take."""
    places = [root, *root.rglob("*")]
    return sum(os.lstat(place).st_blocks * 512 for place in places)


def test_a_small_store_with_a_message_takes_less_than_5_mb_open_and_closed(tmp_path):
    with MessageStore.open(tmp_path, StoreConfig.small()) as store:
        store.put(ONE)
        store.wait_dispatched()
        assert disk_bytes(tmp_path) < 5_000_000
        assert len(store.find("orders", "k")) == 1
    assert disk_bytes(tmp_path) < 5_000_000


def test_a_small_store_holds_the_longest_message_that_any_store_holds(tmp_path):
    longest = Message(topic="t" * 127, body=bytes(4 * MiB), properties={"p": "x" * 32_700})
    with MessageStore.open(tmp_path, StoreConfig.small(), threads=False) as store:
        assert store.put(longest).status.name == "PUT_OK"
        assert store.put(longest).status.name == "PUT_OK"
        store.wait_dispatched()
        assert [len(one.body) for one in store.get(longest.topic, 0, 0, 2).messages] == [4 * MiB]


def test_a_small_store_rolls_each_kind_of_file_and_finds_everything(tmp_path):
    count = 12_000
    with MessageStore.open(tmp_path, StoreConfig.small(), threads=False) as store:
        for first in range(0, count, 1000):
            batch = [
                Message(topic="orders", body=bytes(400), keys=f"k{number}")
                for number in range(first, first + 1000)
            ]
            assert store.put_batch(batch).status.name == "PUT_OK"
        store.wait_dispatched()
        for number in (0, 9_998, 9_999, count - 1):
            assert [one.queue_offset for one in store.find("orders", f"k{number}")] == [number]
    for directory in ("commitlog", "consumequeue/orders/0", "index"):
        assert len(list((tmp_path / directory).iterdir())) > 1


@pytest.mark.parametrize("first", [Message(topic="orders", body=b"no key"), ONE])
def test_later_opens_need_not_know_that_a_store_is_small(tmp_path, first):
    """Neither when a queue or the index has no file yet."""
    with MessageStore.open(tmp_path, StoreConfig.small()) as store:
        store.put(first)
    with MessageStore.open(tmp_path) as store:
        store.put(ONE, 7)
        store.wait_dispatched()
        sizes = parts_of(store).sizes
    assert sizes == SMALL
    assert disk_bytes(tmp_path) < 5_000_000
    with MessageStore.open(tmp_path, read_only=True) as store:
        assert len(store.find("orders", "k")) == 1 + (first is ONE)


def test_a_store_of_other_sizes_is_not_opened_as_a_small_one(tmp_path):
    with MessageStore.open(tmp_path, StoreConfig.small(mapped_file_size_commit_log=MiB)) as store:
        store.put(ONE)
        assert parts_of(store).sizes.commit_log_file_bytes == MiB
    with pytest.raises(ConfigError, match=r"mappedFileSizeCommitLog is 4263936, but .* 1048576"):
        MessageStore.open(tmp_path, StoreConfig.small())


# --- retention ------------------------------------------------------------------------------------


def test_a_program_s_store_deletes_nothing_unless_told(tmp_path):
    assert not StoreConfig().retention
    assert not StoreConfig.small().retention
    assert not load_config(environment={}).config.retention
    assert load_config(environment={}, overrides=["retention=true"]).config.retention
    year_ms = 366 * 24 * 3_600_000
    times = [1_600_000_000_000]
    config = StoreConfig.small(clean_resource_interval=1)
    with MessageStore.open(tmp_path, config, clock=lambda: times[0]) as store:
        store.put(Message(topic="orders", body=bytes(4 * MiB - 1000)))
        store.put(Message(topic="orders", body=bytes(4 * MiB - 1000)))
        times[0] += year_ms
        with pytest.raises(ConfigError, match="retention is off"):
            store.delete_expired_files()
        assert parts_of(store).retention.run_once() == []
        assert store.min_physical_offset == 0


def test_a_broker_conf_turns_retention_on_and_may_turn_it_off(tmp_path):
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=b\n")
    loaded = load_config(broker_conf=path, environment={})
    assert loaded.config.retention
    assert str(loaded.origins["retention"]) == f"file {path}"
    assert not load_config(
        broker_conf=path, environment={}, overrides=["retention=false"]
    ).config.retention
    path.write_text("retention=false\n")
    assert not load_config(broker_conf=path, environment={}).config.retention
