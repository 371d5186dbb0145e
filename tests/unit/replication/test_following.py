"""A slave of ours follows a master of ours, over the loopback."""

import time

import pytest

from rocketstore import EndStatus, Message, MessageStore, PutMessageStatus, verify_store
from rocketstore.config import FlushDiskType
from rocketstore.errors import StoreError, StoreFullError
from support.inside import parts_of, workers_of
from support.patience import wait_until
from support.reading import all_messages
from support.replicas import (
    LOG_FILE_BYTES,
    address_of,
    log_bytes,
    open_master,
    open_slave,
    put_many,
    wait_for_slave,
)


def assert_equal_logs(root):
    ends = []
    for name in ("master", "slave"):
        with MessageStore.open(root / name, read_only=True) as store:
            ends.append(store.max_physical_offset)
    assert ends[0] == ends[1]
    assert log_bytes(root / "master", ends[0]) == log_bytes(root / "slave", ends[0])


def test_a_slave_gets_what_was_there_and_what_comes(tmp_path):
    with open_master(tmp_path / "master") as master:
        put_many(master, 300)
        with open_slave(tmp_path / "slave", address_of(master)) as slave:
            wait_for_slave(master, slave)
            put_many(master, 300, first=300)
            wait_for_slave(master, slave)
            assert master.max_physical_offset > 3 * LOG_FILE_BYTES
            slave.wait_dispatched()
            assert slave.queues() == master.queues()
            assert slave.max_offset("orders", 1) == 200
            assert slave.next_queue_offset("orders", 1) == 200
            [found] = slave.find("orders", key="k333")
            assert found.body == b"333-" * (333 * 37 % 400)
            refused = slave.put(Message(topic="orders", body=b"own"))
            assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert_equal_logs(tmp_path)


def test_both_may_end_and_come_back_anywhere(tmp_path):
    port = 0
    for turn in range(4):
        with open_master(tmp_path / "master", ha_listen_port=port) as master:
            address = address_of(master)
            port = int(address.rpartition(":")[2])
            put_many(master, 40, first=40 * turn)
            for _ in range(2):
                with open_slave(tmp_path / "slave", address) as slave:
                    wait_for_slave(master, slave)
                    put_many(master, 20, first=1000)
            with open_slave(tmp_path / "slave", address) as slave:
                wait_for_slave(master, slave)
    assert_equal_logs(tmp_path)


def test_a_slave_that_becomes_master_delivers_and_commits_what_its_master_did_not(tmp_path):
    """K-H9: no offsets of delays or transactions came with the log, and none are needed."""
    settings = {"message_delay_level": "1s 2s", "transaction_time_out": 0}
    with (
        open_master(tmp_path / "master", **settings) as master,
        open_slave(tmp_path / "slave", address_of(master)) as slave,
    ):
        for level in "12":
            master.put(Message(topic="T", body=level.encode(), properties={"DELAY": level}))
        ended, left = (master.begin(Message(topic="T", body=body)) for body in (b"a", b"b"))
        master.commit(ended)
        wait_until(lambda: master.max_offset("T", 0) >= 2, "the first one is delivered")
        wait_for_slave(master, slave)
    with open_master(tmp_path / "slave", **settings) as promoted:
        assert promoted.commit(ended).status is EndStatus.ENDED_ALREADY
        assert promoted.commit(left).status is EndStatus.COMMITTED
        wait_until(lambda: promoted.max_offset("T", 0) == 4, "the second one is delivered")
        promoted.wait_dispatched()
        bodies = [one.body for one in promoted.get("T", 0, 0).messages]
    assert sorted(bodies) == [b"1", b"2", b"a", b"b"]


def test_a_put_of_a_sync_master_is_on_the_slave_when_it_is_acknowledged(tmp_path):
    with (
        open_master(tmp_path / "master") as master,
        open_slave(tmp_path / "slave", address_of(master)) as slave,
    ):
        wait_until(lambda: master.replication.followers and slave.replication.is_following)
        wait_until(lambda: master.replication.followers[0].sent >= 0)
        for number in range(200):
            result = master.put(Message(topic="orders", body=b"x" * number * 7))
            assert result.status is PutMessageStatus.PUT_OK
            assert slave.max_physical_offset >= result.physical_offset + result.size


def test_without_a_slave_a_put_is_stored_and_says_so(tmp_path):
    with open_master(tmp_path / "master") as master:
        result = master.put(Message(topic="orders", body=b"alone"))
        assert result.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        assert master.max_physical_offset == result.physical_offset + result.size


def test_a_slave_that_was_lost_holds_no_close_up(tmp_path):
    with open_master(tmp_path / "master") as master:
        slave = open_slave(tmp_path / "slave", address_of(master))
        put_many(master, 10)
        wait_for_slave(master, slave)
    began = time.monotonic()
    slave.close()
    assert time.monotonic() - began < 5


def test_a_slave_with_sync_flush_acknowledges_what_is_on_its_disk(tmp_path):
    sync = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
    with (
        open_master(tmp_path / "master", **sync) as master,
        open_slave(tmp_path / "slave", address_of(master), **sync) as slave,
    ):
        wait_until(lambda: any(each.sent >= 0 for each in master.replication.followers))
        for number in range(20):
            result = master.put(Message(topic="orders", body=b"x" * number * 100))
            assert result.status is PutMessageStatus.PUT_OK
            assert slave.flushed_physical_offset >= result.physical_offset + result.size


def test_a_slave_whose_disk_hung_goes_on_where_it_was(tmp_path, monkeypatch):
    sync = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "sync_flush_timeout": 20}
    with open_master(tmp_path / "master") as master:
        put_many(master, 50)
        with open_slave(tmp_path / "slave", address_of(master), **sync) as slave:
            flusher = workers_of(slave).flusher
            hung = [True] * 3

            def wait_flushed(offset, timeout_s, really=flusher.wait_flushed):
                return not (hung and hung.pop()) and really(offset, timeout_s)

            monkeypatch.setattr(flusher, "wait_flushed", wait_flushed)
            while hung:
                put_many(master, 10)
                wait_for_slave(master, slave)
            put_many(master, 10)
            wait_for_slave(master, slave)


@pytest.mark.parametrize(
    ("what", "clean"),
    [("early", False), ("late", False), ("late", True), ("file", False), ("file", True)],
)
def test_a_slave_asks_again_for_what_its_log_lacks_and_all_after_it(tmp_path, what, clean):
    """A power cut may take any page that was not synced; a copy of what is cut is kept."""
    root = tmp_path / "slave"
    with open_master(tmp_path / "master") as master:
        put_many(master, 300)
        with open_slave(root, address_of(master)) as slave:
            wait_for_slave(master, slave)
        files, end = sorted((root / "commitlog").iterdir()), master.max_physical_offset
        if what == "file":
            files[1].unlink()
        else:
            at = 5000 if what == "early" else end - 20_000
            with files[at // LOG_FILE_BYTES].open("r+b") as file:
                file.seek(at % LOG_FILE_BYTES)
                file.write(bytes(4096))
        if not clean:
            (root / "abort").touch()
            if what == "early":  # else it promises that this was on the disk
                (root / "checkpoint").unlink()
        with open_slave(root, address_of(master)) as slave:
            assert slave.recovery.end < end
            assert (root / str(slave.recovery.evidence)).is_dir()
            wait_for_slave(master, slave)
            for store in (slave, master):
                store.wait_dispatched()
            for queue_id in range(3):
                found = [list(all_messages(one, "orders", queue_id)) for one in (slave, master)]
                assert found[0] == found[1]
                assert len(found[0]) == 100
    assert_equal_logs(tmp_path)
    assert verify_store(root).findings == []


@pytest.mark.parametrize(("settings", "seconds"), [({}, 5.0), ({"sync_flush_timeout": 20}, 0.02)])
def test_a_slave_waits_for_its_flush_as_long_as_the_setting_says(
    tmp_path, monkeypatch, settings, seconds
):
    sync = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, **settings}
    with open_slave(tmp_path, "127.0.0.1:1", **sync) as slave:
        waits = []

        def wait_flushed(_offset, timeout_s):
            waits.append(timeout_s)
            return False

        with monkeypatch.context() as patched:
            patched.setattr(workers_of(slave).flusher, "wait_flushed", wait_flushed)
            with pytest.raises(StoreError, match=f"after {seconds} s the log is flushed only up"):
                slave.replicated_log.wait_flushed()
        assert set(waits) == {seconds}


def test_a_slave_whose_disk_is_full_follows_when_there_is_room_again(tmp_path, monkeypatch):
    with open_master(tmp_path / "master") as master:
        put_many(master, 100)
        slave = open_slave(tmp_path / "slave", "127.0.0.1:1")
        full = [True] * 3
        take = parts_of(slave).preallocator.take

        def take_or_not(base, *, ahead=True):
            if full:
                full.pop()
                raise StoreFullError("no room")
            return take(base, ahead=ahead)

        monkeypatch.setattr(parts_of(slave).preallocator, "take", take_or_not)
        host, port = master.replication.address
        slave.replication._address = (host, port)
        with slave:
            wait_for_slave(master, slave)
            assert not full


@pytest.mark.parametrize("replicated", ["PUT_OK", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"])
def test_what_is_said_of_the_slaves_counts_for_more_than_the_flush(
    tmp_path, monkeypatch, replicated
):
    with open_master(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH) as master:
        monkeypatch.setattr(workers_of(master).flusher, "wait_flushed", lambda *_: False)
        master.replicated_log.set_replica(lambda *_: PutMessageStatus[replicated])
        status = master.put(Message(topic="orders", body=b"late")).status
    assert status.name == ("FLUSH_DISK_TIMEOUT" if replicated == "PUT_OK" else replicated)
