"""Every setting of replication does what its text says."""

import shutil
import socket
import struct
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest import mock

import pytest

from rocketstore import (
    ConfigError,
    GetMessageStatus,
    Message,
    MessageStore,
    PutMessageStatus,
    StoreConfig,
)
from rocketstore.config import BrokerRole
from rocketstore.errors import StoreError, SystemRefusedError
from rocketstore.replication.link import limits_of
from rocketstore.replication.protocol import PeerError, Trouble
from rocketstore.replication.slave import SlaveService
from rocketstore.storage.replicated_log import ReplicatedLog
from support.configured_store import small_config
from support.patience import PATIENCE_S, wait_until
from support.replicas import (
    LOG_FILE_BYTES,
    address_of,
    log_bytes,
    open_master,
    open_slave,
    put_many,
    wait_for_slave,
)
from support.said import capture_logs

OK = PutMessageStatus.PUT_OK
TOO_LATE = PutMessageStatus.FLUSH_SLAVE_TIMEOUT
NONE_THERE = PutMessageStatus.SLAVE_NOT_AVAILABLE


class RawSlave:
    """A slave of 4.9 by hand: it asks once, and acknowledges when it is asked to."""

    def __init__(self, master, *, host="127.0.0.1", request=0):
        address = master.replication.address
        self.socket = socket.create_connection(address, source_address=(host, 0))
        before = len(master.replication.followers)
        self.say(request)
        wait_until(
            lambda: (
                len([f for f in master.replication.followers if f.sent >= 0]) > before - 1
                and any(
                    f.address == self.name and f.sent >= 0 for f in master.replication.followers
                )
            )
        )

    @property
    def name(self):
        host, port = self.socket.getsockname()
        return f"{host}:{port}"

    def say(self, number):
        self.socket.sendall(struct.pack(">q", number))

    def acknowledge(self, master, end):
        def known():
            return next(f for f in master.replication.followers if f.address == self.name)

        wait_until(lambda: known().sent >= end)  # before that it would be a lie
        self.say(end)
        wait_until(lambda: known().acknowledged >= end)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.socket.close()


def put(store):
    return store.put(Message(topic="T", body=b"x" * 100))


def test_times_and_sizes_of_a_connection():
    limits = limits_of(
        StoreConfig(
            ha_send_heartbeat_interval=1, ha_housekeeping_interval=2, ha_transfer_batch_size=3
        )
    )
    assert (limits.heartbeat_ms, limits.silence_ms, limits.transfer_bytes) == (1, 2, 3)
    assert limits.longest_record_bytes > 4 * 1024 * 1024
    longest = limits_of(StoreConfig(max_message_size=9_000_000)).longest_record_bytes
    assert 9_000_000 < longest < 9_200_000
    assert limits_of(StoreConfig(max_message_size=1000)) == limits_of(StoreConfig())


def test_a_master_listens_where_it_is_said(tmp_path):
    with socket.create_server(("127.0.0.2", 0)) as free:
        port = free.getsockname()[1]
    with open_master(tmp_path, ha_listen_address="127.0.0.2", ha_listen_port=port) as master:
        assert master.replication.address == ("127.0.0.2", port)
        with pytest.raises(
            SystemRefusedError, match=f"cannot listen for slaves at 127.0.0.2:{port}"
        ):
            open_master(tmp_path / "second", ha_listen_address="127.0.0.2", ha_listen_port=port)


def test_without_a_port_nobody_listens_and_without_a_master_nobody_follows(tmp_path):
    with MessageStore.open(tmp_path, StoreConfig.small()) as store:
        assert store.replication is None
    slave = StoreConfig.small(broker_role=BrokerRole.SLAVE, ha_listen_port=0)
    with MessageStore.open(tmp_path, slave) as store:
        assert store.replication is None


@pytest.mark.parametrize("ha_master_address", ["host", ":1", "host:x", "host:0", "host:65536"])
def test_an_invalid_address_is_refused(tmp_path, ha_master_address):
    with pytest.raises(ConfigError, match="haMasterAddress"):
        open_slave(tmp_path, ha_master_address)


def test_a_put_waits_for_its_slave_as_long_as_it_is_said(tmp_path):
    waits = []

    def wait(offset, timeout_s):
        waits.append((offset, timeout_s))
        return OK

    with open_master(tmp_path, slave_timeout=1234) as master:
        master.replicated_log.set_replica(wait)
        result = put(master)
        assert result.status is OK
        assert waits == [(result.physical_offset + result.size, 1.234)]
        assert master.put(Message(topic="T", wait_flush=False)).status is OK
        assert len(waits) == 1


@pytest.mark.parametrize("is_told", [False, True])
def test_a_slave_sends_a_reader_back_only_where_it_is_told_to(tmp_path, is_told):
    with open_master(tmp_path) as master:
        put_many(master, 150)
        master.wait_dispatched()
        end = master.max_offset("orders", 0)
        assert master.get("orders", 0, end + 9).next_offset == end
    first, *_ = sorted((tmp_path / "commitlog").iterdir())
    first.unlink()  # as retention does
    with open_slave(tmp_path, "127.0.0.1:1", offset_check_in_slave=is_told) as slave:
        ahead = slave.get("orders", 0, end + 9)
        assert ahead.status is GetMessageStatus.OFFSET_OVERFLOW_BADLY
        assert ahead.next_offset == (end if is_told else end + 9)
        assert slave.get("unknown", 0, 9).next_offset == (0 if is_told else 9)
        behind = slave.get("orders", 0, 0)
        assert behind.status is GetMessageStatus.OFFSET_TOO_SMALL
        assert behind.next_offset == slave.min_offset("orders", 0) > 0


def test_a_slave_that_does_not_answer_and_one_that_is_too_far_behind(tmp_path):
    with (
        open_master(tmp_path, slave_timeout=1, ha_slave_fallbehind_max=1000) as master,
        RawSlave(master) as slave,
    ):
        result = put(master)
        assert result.status is TOO_LATE
        slave.acknowledge(master, result.physical_offset + result.size)
        assert {put(master).status for _ in range(20)} == {TOO_LATE, NONE_THERE}
        assert put(master).status is NONE_THERE


def test_what_a_slave_has_is_counted_to_the_byte(tmp_path):
    with (
        open_master(tmp_path, slave_timeout=1, ha_slave_fallbehind_max=1000) as master,
        RawSlave(master) as slave,
        RawSlave(master),  # the furthest connection counts
    ):
        result = put(master)
        end, wait = result.physical_offset + result.size, master.replication.wait_replicated
        slave.acknowledge(master, end - 1)
        ends = {end - 1: OK, end: TOO_LATE, end + 998: TOO_LATE, end + 999: NONE_THERE}
        assert {one: wait(one, 0.001) for one in ends} == ends


def put_while_its_slave_leaves(master, pool):
    """Begin a put, and return it when the slave that it waits for has it and is gone."""
    with RawSlave(master):
        waiting = pool.submit(put, master)
        wait_until(lambda: master.replication.followers[0].sent > 0)
    wait_until(lambda: not master.replication.followers)
    return waiting


def test_a_put_whose_slave_leaves_is_stored_in_full_when_it_comes_back_in_time(tmp_path):
    with open_master(tmp_path, slave_timeout=60_000) as master, ThreadPoolExecutor(1) as pool:
        waiting = put_while_its_slave_leaves(master, pool)
        with RawSlave(master) as again:
            end = master.max_physical_offset
            wait_until(lambda: master.replication.followers[0].sent == end)
            assert not waiting.done()
            again.acknowledge(master, end)
            assert waiting.result(timeout=PATIENCE_S).status is OK


def test_a_put_whose_slave_stays_away_waits_no_longer_than_it_is_said(tmp_path):
    with open_master(tmp_path, slave_timeout=100) as master, ThreadPoolExecutor(1) as pool:
        waiting = put_while_its_slave_leaves(master, pool)
        assert waiting.result(timeout=PATIENCE_S).status is TOO_LATE
        assert put(master).status is NONE_THERE


def test_a_put_that_waits_for_a_slave_holds_no_close_up(tmp_path):
    with ThreadPoolExecutor(1) as pool:
        with open_master(tmp_path, slave_timeout=60_000) as master, RawSlave(master):
            waiting = pool.submit(put, master)
            wait_until(lambda: master.replication.followers[0].sent > 0)
        assert waiting.result(timeout=PATIENCE_S).status is TOO_LATE


def test_a_slave_that_connects_after_the_last_that_is_served_is_sent_away(tmp_path, monkeypatch):
    monkeypatch.setattr("rocketstore.replication.master.MOST_CONNECTIONS", 2)
    with open_master(tmp_path) as master, RawSlave(master) as one, RawSlave(master):
        # Much less than the time after which a silent slave is given up.
        with socket.create_connection(master.replication.address, timeout=PATIENCE_S) as third:
            assert third.recv(1) == b""
        one.socket.close()
        wait_until(lambda: len(master.replication.followers) == 1)
        with RawSlave(master):
            assert len(master.replication.followers) == 2


def test_a_slave_comes_back_later_each_time_and_soon_after_it_got_on():
    pauses = []
    log = SimpleNamespace(end=0)
    config = StoreConfig.small(broker_role=BrokerRole.SLAVE, ha_master_address="127.0.0.1:1")
    slave = SlaveService(SimpleNamespace(config=config, replicated_log=log))
    stopping = SimpleNamespace(is_set=lambda: len(pauses) == 10, wait=pauses.append)
    slave._thread = SimpleNamespace(stopping=stopping)

    def follow_once():
        log.end += 100 if len(pauses) == 8 else 0
        raise ConnectionResetError

    slave._follow_once = follow_once
    slave._follow()
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 0.1, 0.2]


@pytest.mark.parametrize(
    "error",
    [OSError("no route"), StoreError("full"), PeerError(Trouble.DAMAGED, "noise"),
     ValueError("no place"), MemoryError(), RuntimeError("cannot start new thread")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_whatever_ends_a_connection_the_slave_comes_back(error):
    tries, told = [], []
    log = SimpleNamespace(end=0)
    config = StoreConfig.small(broker_role=BrokerRole.SLAVE, ha_master_address="127.0.0.1:1")
    slave = SlaveService(SimpleNamespace(config=config, replicated_log=log))
    slave.trouble_listeners.append(told.append)
    stopping = SimpleNamespace(is_set=lambda: len(tries) == 3, wait=lambda _pause_s: None)
    slave._thread = SimpleNamespace(stopping=stopping)

    def follow_once():
        tries.append(1)
        if len(tries) < 3:
            raise error

    slave._follow_once = follow_once
    slave._follow()
    assert len(tries) == 3
    assert told == [error, error]


def test_a_put_with_a_future_is_acknowledged_by_the_slave_and_waited_for_by_nobody(tmp_path):
    with open_master(tmp_path, slave_timeout=60_000) as master, RawSlave(master) as slave:
        future = master.put_async(Message(topic="T", body=b"x" * 100))
        end = master.max_physical_offset
        wait_until(lambda: master.replication.followers[0].sent == end)
        assert not future.done()
        slave.acknowledge(master, end)
        assert future.result(timeout=PATIENCE_S).status is OK


def test_a_put_with_a_future_says_what_became_of_its_slave(tmp_path):
    with open_master(tmp_path, slave_timeout=1) as master:
        assert master.put_async(Message(topic="T")).result(timeout=PATIENCE_S).status is NONE_THERE
        with RawSlave(master):
            late = master.put_async(Message(topic="T")).result(timeout=PATIENCE_S)
            assert late.status is TOO_LATE


def test_several_connections_of_one_slave_count_once(tmp_path):
    with (
        open_master(tmp_path, in_sync_replicas=2, slave_timeout=1) as master,
        RawSlave(master) as one,
        RawSlave(master) as again,
    ):
        assert put(master).status is NONE_THERE
        with RawSlave(master, host="127.0.0.2") as other:
            end = master.max_physical_offset
            for slave in (one, again):
                slave.acknowledge(master, end)
            wait = master.replication.wait_replicated
            assert wait(end, 0.001) is TOO_LATE
            other.acknowledge(master, end)
            assert wait(end, 0.001) is OK


def test_an_empty_slave_takes_the_whole_log_or_the_last_file(tmp_path):
    with open_master(tmp_path / "master") as master:
        put_many(master, 200)
        last = master.max_physical_offset - master.max_physical_offset % LOG_FILE_BYTES
        assert last > 0
        with open_slave(tmp_path / "all", address_of(master)) as slave:
            wait_for_slave(master, slave)
            assert slave.min_physical_offset == 0
        with open_slave(tmp_path / "last", address_of(master), sync_from_last_file=True) as slave:
            wait_for_slave(master, slave)
            assert slave.min_physical_offset == last
            slave.wait_dispatched()
            assert slave.max_offset("orders", 0) == master.max_offset("orders", 0)


@pytest.mark.parametrize(
    ("base", "begin", "trouble"),
    [
        (0, 0, None), (LOG_FILE_BYTES, 0, None), (LOG_FILE_BYTES, LOG_FILE_BYTES, None),
        (0, LOG_FILE_BYTES, "no longer has"), (9 * LOG_FILE_BYTES, 0, "ends after"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("from_last_file", [False, True])
def test_a_slave_whose_log_lost_all_but_an_empty_file_goes_on_there(
    tmp_path, base, begin, trouble, from_last_file
):
    with open_master(tmp_path / "master") as master:
        put_many(master, 200)
    if begin:
        (tmp_path / "master" / "commitlog" / f"{0:020d}").unlink()
    path = tmp_path / "slave" / "commitlog" / f"{base:020d}"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(LOG_FILE_BYTES))
    settings = {"sync_from_last_file": from_last_file}
    with (
        open_master(tmp_path / "master") as master,
        open_slave(tmp_path / "slave", address_of(master), **settings) as slave,
    ):
        if trouble is None:
            wait_for_slave(master, slave)
            assert slave.min_physical_offset == base
        else:
            wait_until(lambda: trouble in str(slave.replication.trouble))
            assert {one.acknowledged for one in master.replication.followers} <= {-1}
    end = master.max_physical_offset if trouble is None else 0
    master, slave = (log_bytes(tmp_path / name, end, base) for name in ("master", "slave"))
    assert master == slave


def certificate(directory, name):
    """Make a certificate that vouches for itself; certificate and key in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on the PATH")
    path = directory / f"{name}.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", path, "-out", path),
        ],
        check=True,
        capture_output=True,
    )
    return path


def test_with_certificates_only_slaves_with_a_trusted_one_may_connect(tmp_path):
    mine, stranger = certificate(tmp_path, "mine"), certificate(tmp_path, "stranger")
    tls = {"ha_tls_certificate": str(mine), "ha_tls_authorities": str(mine)}
    other = {"ha_tls_certificate": str(stranger), "ha_tls_authorities": str(mine)}
    with open_master(tmp_path / "master", **tls) as master:
        put_many(master, 100)
        with open_slave(tmp_path / "slave", address_of(master), **tls) as slave:
            wait_for_slave(master, slave)
            wait_until(lambda: put(master).status is OK)
        with open_slave(tmp_path / "plain", address_of(master)) as plain:
            wait_until(lambda: plain.replication.trouble is not None)
            assert plain.max_physical_offset == 0
        with open_slave(tmp_path / "other", address_of(master), **other) as unknown:
            wait_until(lambda: unknown.replication.trouble is not None)
            assert unknown.max_physical_offset == 0


@pytest.mark.parametrize("name", ["ha_tls_certificate", "ha_tls_authorities"])
def test_half_of_what_tls_needs_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="haTlsCertificate and haTlsAuthorities"):
        open_master(tmp_path, **{name: "some.pem"})


def test_a_master_that_stays_away_is_told_of_seldom(tmp_path):
    config = small_config(broker_role=BrokerRole.SLAVE, ha_master_address="127.0.0.1:1")
    with MessageStore.open(tmp_path, config, threads=False) as store, capture_logs() as logs:
        for why in ("refused", "refused", "refused", "silent"):
            store.replication._note(OSError(why))
        assert str(store.replication.trouble) == "silent"
        for trouble in (Trouble.SILENT, Trouble.AHEAD):
            for number in range(3):  # of milliseconds, or the end of a master that goes on
                store.replication._note(PeerError(trouble, f"{number}", hint="wait"))
    said = [log["error"] for log in logs if log["event"] == "replication.lost_master"]
    seldom = [f"{one.value}: 0; wait" for one in (Trouble.SILENT, Trouble.AHEAD)]
    assert said == ["refused", "silent", *seldom]


def test_a_master_that_cannot_take_slaves_says_so_seldom(tmp_path, monkeypatch):
    monkeypatch.setattr("rocketstore.replication.master.PAUSE_AFTER_ERROR_S", 0.0)
    config = small_config(ha_listen_port=0)
    with MessageStore.open(tmp_path, config, threads=False) as store, capture_logs() as logs:
        service, tries = store.replication, iter(range(3))

        def accept():
            if next(tries, None) is None:
                service._accepting.stopping.set()
            raise OSError("too many open files")

        service._listener = mock.Mock(accept=accept)
        service._accept()
    said = [log["error"] for log in logs if log["event"] == "replication.accept_failed"]
    assert said == ["too many open files"]


def test_a_master_that_is_closed_lets_its_slaves_take_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr("rocketstore.replication.master.LAST_BYTES_S", PATIENCE_S)
    master = open_master(
        tmp_path / "m", broker_role=BrokerRole.ASYNC_MASTER, ha_transfer_batch_size=64
    )
    with master, open_slave(tmp_path / "s", address_of(master)) as slave:
        put_many(master, 1)
        wait_for_slave(master, slave)
        may_append = threading.Event()
        append = ReplicatedLog.append
        monkeypatch.setattr(
            ReplicatedLog, "append", lambda *given: may_append.wait() and append(*given)
        )
        for _ in range(300):  # more than sockets hold
            master.put(Message(topic="orders", body=bytes(60_000)))
        end = master.max_physical_offset
        closing = threading.Thread(target=master.close)
        closing.start()
        closing.join(0.5)
        may_append.set()
        closing.join(PATIENCE_S)
        assert slave.max_physical_offset == end


def test_a_master_that_is_closed_waits_for_no_slave_that_takes_nothing(tmp_path):
    with open_master(tmp_path, broker_role=BrokerRole.ASYNC_MASTER) as master:
        put(master)
        with RawSlave(master):
            began = time.monotonic()
            master.close()
            assert time.monotonic() - began < PATIENCE_S / 4
