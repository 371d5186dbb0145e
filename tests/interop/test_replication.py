"""A genuine 4.9.8 slave follows our master, and our slave a genuine master, byte for byte."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rocketstore import Message, MessageStore, PutMessageStatus
from support.both_sides import put_java, sample_messages
from support.java_store import JavaStore
from support.patience import wait_until
from support.ports import free_port
from support.replicas import (
    LOG_FILE_BYTES,
    address_of,
    log_bytes,
    open_master,
    open_slave,
    put_many,
)

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("java_store")]

JAVA_SIZES = {
    "mappedFileSizeCommitLog": LOG_FILE_BYTES,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 2500,
    "maxIndexNum": 10000,
}

PATIENT = {"slave_timeout": 60_000, "ha_send_heartbeat_interval": 500}
"""Of our master: on a busy machine a slave may be late, and one that hears nothing for 2 s goes."""

STORED = ("PUT_OK", "SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT")
"""What a synchronous master says of a message that it has; the slave may be away."""


def java_slave(root: Path, master: str) -> JavaStore:
    # It notices late that a connection is gone; 20 s unless set.
    settings: dict[str, Any] = {"haHousekeepingInterval": 2000, "haSendHeartbeatInterval": 500}
    settings |= {"brokerRole": "SLAVE", "haMasterAddress": master}
    return JavaStore(root, {**JAVA_SIZES, **settings})


def java_master(root: Path, port: int, **more: Any) -> JavaStore:
    settings: dict[str, Any] = {"brokerRole": "SYNC_MASTER", "haListenPort": port}
    return JavaStore(root, {**JAVA_SIZES, **settings, **more})


def end_of(java: JavaStore) -> int:
    return java.positions()[1]


def test_a_genuine_slave_follows_our_master_over_file_ends_and_restarts(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    with ExitStack() as stack:
        master = stack.enter_context(open_master(ours, **PATIENT))
        put_many(master, 20)  # all in the last file: an empty slave of 4.9 gets no more (K-H4)
        address = address_of(master)
        port = int(address.rpartition(":")[2])
        with java_slave(theirs, address) as slave:
            wait_until(lambda: end_of(slave) == master.max_physical_offset, "the first records")
            put_many(master, 200, first=20)
            wait_until(lambda: end_of(slave) == master.max_physical_offset, "three files")
            assert master.max_physical_offset > 2 * LOG_FILE_BYTES
            result = master.put(Message(topic="orders", body=b"synchronous"))
            assert result.status is PutMessageStatus.PUT_OK
            assert end_of(slave) == master.max_physical_offset
            [follower] = master.replication.followers
            slave.wait_dispatched()
            master.wait_dispatched()
            assert len(slave.read_queue("orders", 1)) == master.max_offset("orders", 1)
            assert follower.sent == follower.acknowledged
            slave.halt()
        wait_until(lambda: not master.replication.followers, "it is gone")
        put_many(master, 50, first=300)
        with java_slave(theirs, address) as slave:
            wait_until(lambda: end_of(slave) == master.max_physical_offset, "after its kill")
            master.close()
            master = stack.enter_context(open_master(ours, ha_listen_port=port, **PATIENT))
            put_many(master, 50, first=400)
            wait_until(lambda: end_of(slave) == master.max_physical_offset, "after ours came back")
        end = master.max_physical_offset
    assert log_bytes(ours, end) == log_bytes(theirs, end)
    with MessageStore.open(theirs, read_only=True) as copy:
        assert copy.max_physical_offset == end


def test_our_slave_follows_a_genuine_master_over_file_ends_and_restarts(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    port = free_port()
    address = f"127.0.0.1:{port}"
    with ExitStack() as stack:
        master = stack.enter_context(java_master(theirs, port))
        put_java(master, sample_messages(10), accepted=STORED)
        with open_slave(ours, address) as slave:
            wait_until(lambda: slave.max_physical_offset == end_of(master), "the first records")
            put_java(master, sample_messages(150, first=10))  # PUT_OK: our slave acknowledges
            wait_until(lambda: slave.max_physical_offset == end_of(master), "several files")
            assert end_of(master) > 2 * LOG_FILE_BYTES
        put_java(master, sample_messages(50, first=200), accepted=STORED)
        with open_slave(ours, address) as slave:
            wait_until(lambda: slave.max_physical_offset == end_of(master), "after ours came back")
            master.close()
            master = stack.enter_context(java_master(theirs, port))
            wait_until(lambda: slave.replication.is_following, "connected again")
            put_java(master, sample_messages(50, first=300), accepted=STORED)
            wait_until(lambda: slave.max_physical_offset == end_of(master), "after its return")
            slave.wait_dispatched()
            key = sample_messages(1, first=303)[0].keys[0]
            assert len(slave.find("orders", key=key)) == 1
        end = end_of(master)
    assert log_bytes(ours, end) == log_bytes(theirs, end)


def test_an_empty_slave_begins_with_the_last_file_of_a_genuine_master(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    port = free_port()
    with java_master(theirs, port) as master:
        put_java(master, sample_messages(150), accepted=STORED)
        end = end_of(master)
        begin = end - end % LOG_FILE_BYTES
        assert begin > 0
        with open_slave(ours, f"127.0.0.1:{port}") as slave:
            wait_until(lambda: slave.max_physical_offset == end, "the last file")
            assert slave.min_physical_offset == begin
            slave.wait_dispatched()
            assert slave.dispatch_health.is_well
            assert slave.max_offset("orders", 0) == 50
    assert log_bytes(ours, end, begin) == log_bytes(theirs, end, begin)


@pytest.mark.parametrize(
    ("count", "trouble"), [(30, "both logs differ"), (150, "ends after the master's")]
)
def test_our_slave_notices_a_genuine_master_that_has_another_log(tmp_path, count, trouble):
    port = free_port()
    with open_master(tmp_path / "ours") as old:
        put_many(old, count)
    with java_master(tmp_path / "theirs", port, haSendHeartbeatInterval=500) as master:
        put_java(master, sample_messages(60), accepted=STORED)
        often = {"ha_send_heartbeat_interval": 100}
        with open_slave(tmp_path / "ours", f"127.0.0.1:{port}", **often) as slave:
            end = slave.max_physical_offset
            wait_until(lambda: trouble in str(slave.replication.trouble), "it notices")
            assert slave.max_physical_offset == end
