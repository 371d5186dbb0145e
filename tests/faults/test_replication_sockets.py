"""Replication between stores over sockets: cuts, kills, stuck and hostile peers."""

import contextlib
import errno
import functools
import importlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from rocketstore import Message, MessageStore, PutMessageStatus
from support.clock import Clock
from support.descriptors import open_sockets
from support.patience import PATIENCE_S, wait_until
from support.replicas import (
    address_of,
    log_bytes,
    open_master,
    open_slave,
    put_many,
    wait_for_slave,
)

SEEDS = 6
CUTS = 12


class CuttingProxy:
    """Passes bytes on between slaves and a master, and cuts each connection after some of them."""

    def __init__(self, target, seed):
        self.target, self.random, self.left = target, random.Random(seed), CUTS
        self.server = socket.create_server(("127.0.0.1", 0))
        self.threads = [threading.Thread(target=self.accept, daemon=True)]
        self.threads[0].start()

    @property
    def address(self):
        host, port = self.server.getsockname()
        return f"{host}:{port}"

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                inside, _ = self.server.accept()
                outside = socket.create_connection(self.target)
                self.left -= 1
                limit = self.random.choice((20, 100, 2000, 40_000)) if self.left > 0 else None
                budget = [limit]
                for source, sink in ((inside, outside), (outside, inside)):
                    thread = threading.Thread(
                        target=self.pump, args=(source, sink, budget), daemon=True
                    )
                    thread.start()
                    self.threads.append(thread)

    @staticmethod
    def pump(source, sink, budget):
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                if budget[0] is not None:
                    data = data[: budget[0]]
                    budget[0] -= len(data)
                sink.sendall(data)
                if budget[0] == 0:
                    break
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.left = 0
        with contextlib.suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        for thread in self.threads:
            thread.join(PATIENCE_S)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_link_that_is_cut_anywhere_delays_a_slave_and_nothing_else(root, seed, monkeypatch):
    monkeypatch.setattr("rocketstore.replication.slave.FIRST_PAUSE_S", 0.001)
    with (
        open_master(root / "master", slave_timeout=20) as master,
        CuttingProxy(master.replication.address, seed) as proxy,
    ):
        with open_slave(root / "slave", proxy.address) as slave:
            for turn in range(CUTS):
                acknowledged = []
                for number in range(5):
                    result = master.put(Message(topic="T", body=b"x" * (turn * 397 % 9000)))
                    if result.status is PutMessageStatus.PUT_OK:
                        acknowledged.append(result.physical_offset + result.size)
                    assert result.physical_offset >= 0, number
                assert slave.max_physical_offset >= max(acknowledged, default=0)
            wait_for_slave(master, slave)
        end = master.max_physical_offset
    assert log_bytes(root / "master", end) == log_bytes(root / "slave", end)


SLAVE = """
import sys, time
from support.replicas import open_slave
with open_slave(sys.argv[1], sys.argv[2]):
    print("up", flush=True)
    time.sleep(600)
"""


def test_what_was_acknowledged_is_on_a_slave_that_is_killed(root):
    with open_master(root / "master", slave_timeout=300) as master:
        acknowledged = 0
        for _ in range(3):
            command = [sys.executable, "-c", SLAVE, str(root / "slave"), address_of(master)]
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": "tests"}
            ) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == b"up\n"
                wait_until(lambda: any(each.sent >= 0 for each in master.replication.followers))
                wait_until(lambda: put(master) is PutMessageStatus.PUT_OK)
                for number in range(150):
                    result = master.put(Message(topic="T", body=b"k" * (number * 53 % 3000)))
                    if result.status is PutMessageStatus.PUT_OK:
                        acknowledged = result.physical_offset + result.size
                    if number == 140:
                        os.kill(process.pid, signal.SIGKILL)
            wait_until(lambda: not master.replication.followers)
            with MessageStore.open(root / "slave") as slave:
                assert slave.max_physical_offset >= acknowledged
                assert slave.recovery.evidence is None or acknowledged
        with open_slave(root / "slave", address_of(master)) as slave:
            wait_for_slave(master, slave)
        end = master.max_physical_offset
    assert log_bytes(root / "master", end) == log_bytes(root / "slave", end)


MASTER = """
import sys
from rocketstore import Message, PutMessageStatus
from support.replicas import open_master
with open_master(sys.argv[1], ha_listen_port=int(sys.argv[2]), slave_timeout=1000) as master:
    print(master.replication.address[1], flush=True)
    while True:
        result = master.put(Message(topic="T", body=b"m" * 700))
        if result.status is PutMessageStatus.PUT_OK:
            print(result.physical_offset + result.size, flush=True)
"""


def test_what_was_acknowledged_is_on_the_slave_of_a_master_that_is_killed(root):
    slave, port = None, 0
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            command = [sys.executable, "-c", MASTER, str(root / "master"), str(port)]
            with subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": "tests"},
            ) as process:
                assert process.stdout is not None
                port = int(process.stdout.readline())
                if slave is None:
                    slave = stack.enter_context(open_slave(root / "slave", f"127.0.0.1:{port}"))
                acknowledged = [int(process.stdout.readline()) for _ in range(120)]
                process.kill()
                acknowledged += [int(line) for line in process.stdout if line.endswith("\n")]
            assert slave.max_physical_offset >= max(acknowledged)
        with open_master(root / "master", ha_listen_port=port) as master:
            wait_for_slave(master, slave)
            end = master.max_physical_offset
    assert log_bytes(root / "master", end) == log_bytes(root / "slave", end)


def put(master):
    return master.put(Message(topic="T", body=b"p")).status


def test_a_slave_that_is_stuck_costs_a_put_its_time_and_is_given_up(root, monkeypatch):
    clock = Clock()  # which moves when it has cost a put its time: not before, on a busy machine
    monkeypatch.setattr("rocketstore.replication.master.monotonic_ms", clock)
    times = {"slave_timeout": 30, "ha_housekeeping_interval": 200}
    with open_master(root, **times) as master, socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect(master.replication.address)
        stuck.sendall(bytes(8))  # a request, and never another byte read or written
        wait_until(lambda: any(each.sent >= 0 for each in master.replication.followers))
        began = time.monotonic()
        assert put(master) is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        assert time.monotonic() - began >= 0.03
        put_many(master, 50)
        clock.now_ms += 200
        wait_until(lambda: not master.replication.followers, "it is given up")
        assert put(master) is PutMessageStatus.SLAVE_NOT_AVAILABLE


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x7f" * 8,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"",
    ],
)
def test_a_stranger_at_the_port_is_sent_away_and_slaves_are_served(root, said):
    with open_master(root / "master", ha_housekeeping_interval=300) as master:
        with socket.create_connection(master.replication.address) as stranger:
            stranger.settimeout(30)
            stranger.sendall(said)
            with open_slave(root / "slave", address_of(master)) as slave:
                put_many(master, 30)
                wait_for_slave(master, slave)
            with contextlib.suppress(ConnectionError):
                assert stranger.recv(100) == b""
        wait_until(lambda: not master.replication.followers)


def test_a_slave_of_4_9_that_was_ahead_is_refused_when_the_master_has_got_there(root):
    # It asks for the end of its log, whatever lies before that, and would go on there.
    with open_master(root) as master:
        put_many(master, 10)
        end = master.max_physical_offset + 1000

        def answers(number):
            with socket.create_connection(master.replication.address, PATIENCE_S) as slave:
                slave.sendall(number.to_bytes(8, "big"))
                return slave.recv(1)

        assert answers(end) == b""
        put_many(master, 50)
        assert master.max_physical_offset > end
        assert answers(end) == b""
        assert answers(end - 1) == b"\0"
        assert answers(0) == b"\0"  # with an empty log it is served


def test_more_connections_than_there_may_be_are_closed_at_once(root, monkeypatch):
    monkeypatch.setattr("rocketstore.replication.master.MOST_CONNECTIONS", 3)
    with open_master(root) as master, contextlib.ExitStack() as stack:
        address = master.replication.address
        for _ in range(3):
            stack.enter_context(socket.create_connection(address))
        wait_until(lambda: len(master.replication.followers) == 3)
        with socket.create_connection(address) as more:
            more.settimeout(30)
            with contextlib.suppress(ConnectionError):
                assert more.recv(1) == b""
        assert put(master) is PutMessageStatus.SLAVE_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("said", "trouble"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak this protocol"),
        ((0).to_bytes(8, "big") + (2**31 - 1).to_bytes(4, "big"), "does not speak this protocol"),
        ((0).to_bytes(8, "big") + (24).to_bytes(4, "big") + b"\xff" * 24, "no intact record"),
        (b"\0" * 5, "is silent"),
    ],
)
def test_a_slave_that_was_given_a_wrong_master_says_so_and_appends_nothing(root, said, trouble):
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        silence_ms = 200 if trouble == "is silent" else 20_000
        with open_slave(root, f"{host}:{port}", ha_housekeeping_interval=silence_ms) as slave:
            troubles = []  # it has none any more as soon as it is connected again
            slave.replication.trouble_listeners.append(troubles.append)
            connection, _ = server.accept()
            with connection:
                connection.sendall(said)
                wait_until(lambda: troubles)
                assert trouble in str(troubles[0])
            assert slave.max_physical_offset == 0
            server.settimeout(30)
            server.accept()[0].close()  # it tries again


# --- what the system refuses --------------------------------------------------------------------


def failing(call, times, error):
    """Return a call that raises the first `times` times."""
    left = [times]

    def instead(*arguments, **named):
        if left[0]:
            left[0] -= 1
            raise error
        return call(*arguments, **named)

    return instead, left


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("rocketstore.replication.link.socket", "socketpair"),
        ("rocketstore.replication.link.selectors", "DefaultSelector"),
        ("rocketstore.replication.link.selectors.DefaultSelector", "register"),
        ("rocketstore.replication.master", "MasterSession"),
        ("rocketstore.replication.master", "Link"),
        ("rocketstore.storage.threads.threading.Thread", "start"),
    ],
)
@pytest.mark.parametrize(
    "error",
    [OSError(errno.EMFILE, "no more"), MemoryError(), RuntimeError("no more threads")],
    ids=["EMFILE", "MemoryError", "RuntimeError"],
)
@pytest.mark.parametrize("times", [1, 3])
def test_a_master_takes_slaves_again_whatever_the_system_refused(
    root, monkeypatch, caplog, place, name, error, *, times
):
    monkeypatch.setattr("rocketstore.replication.master.PAUSE_AFTER_ERROR_S", 0.01)
    monkeypatch.setattr("rocketstore.storage.threads.PAUSE_AFTER_ERROR_S", 0.01)
    with open_master(root / "master") as master:
        host, port = master.replication.address
        owner = importlib.import_module(place) if place.count(".") == 2 else None
        owner = owner or functools.reduce(
            getattr, place.split(".")[3:], importlib.import_module(".".join(place.split(".")[:3]))
        )
        instead, left = failing(getattr(owner, name), times, error)
        monkeypatch.setattr(owner, name, instead)
        before_all = open_sockets()
        for _ in range(times):  # the loop knocks; the master lets go of each
            before = left[0]
            with socket.create_connection((host, port), timeout=PATIENCE_S) as knocking:
                wait_until(lambda before=before: left[0] < before, "it was refused")
                assert knocking.recv(1) == b""
        wait_until(lambda: open_sockets() <= before_all, "nothing is left of them")
        wait_until(lambda: not master.replication.followers)  # after its socket
        wait_until(lambda: "ERROR" in {line.levelname for line in caplog.records})
        with open_slave(root / "slave", address_of(master)) as slave:
            put_many(master, 30)
            wait_for_slave(master, slave)
            assert len(master.replication.followers) == 1


def test_a_slave_goes_on_following_after_an_error_of_a_listener_for_troubles(root, monkeypatch):
    monkeypatch.setattr("rocketstore.storage.threads.PAUSE_AFTER_ERROR_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with open_slave(root / "slave", f"127.0.0.1:{port}") as slave:
        told = []

        def note(error):
            told.append(error)
            raise RuntimeError("from the program")

        slave.replication.trouble_listeners.append(note)
        wait_until(lambda: len(told) > 2, "it tries again")
        with open_master(root / "master", ha_listen_port=port) as master:
            put_many(master, 30)
            wait_for_slave(master, slave)
