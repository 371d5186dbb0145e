"""``rocketstore serve`` and ``rocketstore replica``."""

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rocketstore import MessageStore, StoreConfig, StoreError
from rocketstore.cli.application import run
from rocketstore.cli.serve import stop_on_signal
from support.broker_desk import SEND
from support.broker_wire import Wire
from support.patience import PATIENCE_S, wait_until
from support.ports import free_port
from support.replicas import log_bytes, open_master, put_many


@contextlib.contextmanager
def serving(
    *arguments: str,
    ends_by: signal.Signals = signal.SIGTERM,
    starts_by: Sequence[str] = (),
    thread: int = 0,
) -> Iterator[str]:
    """Run a command until the block ends; the value is its first line.

    The signal that ends it is given to one of its threads, of which the first is the main one.
    """
    command = [*starts_by, sys.executable, "-m", "rocketstore", "serve", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline()
            threads = sorted(int(one.name) for one in Path(f"/proc/{process.pid}/task").iterdir())
            assert ctypes.CDLL(None).tgkill(process.pid, threads[thread], ends_by) == 0
            _, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, errors
        finally:
            process.kill()


def end_of(root: Path) -> int:
    with MessageStore.open(root, read_only=True) as store:
        end: int = store.max_physical_offset
        return end


def filled(root: Path, *, first: int = 0) -> Path:
    with open_master(root) as store:
        put_many(store, 150, first=first)
    return root


@pytest.fixture
def opened_with(monkeypatch):
    """The settings that a store would have been opened with."""
    configs: list[StoreConfig] = []

    def opening(_root: Path, config: StoreConfig, **_services: object) -> None:
        configs.append(config)
        raise StoreError("enough")

    monkeypatch.setattr(MessageStore, "open", opening)
    return configs


def test_a_master_without_a_port_listens_at_the_loopback_and_that_of_4_9(tmp_path, opened_with):
    assert run(["serve", "master", str(tmp_path / "store")]) == StoreError.exit_code
    (config,) = opened_with
    assert (config.ha_listen_address, config.ha_listen_port) == ("127.0.0.1", 10912)


def test_a_slave_follows_begins_again_where_it_must_and_says_how_far_it_is(tmp_path, capsys):
    master = filled(tmp_path / "master")
    slave = filled(tmp_path / "slave", first=1000)  # another log
    other = log_bytes(slave, end_of(slave))
    port = ("--set", "haListenPort=0")
    with serving("master", str(master), *port, ends_by=signal.SIGINT) as said:
        assert said.startswith(f"slaves follow {master} at 127.0.0.1:")
        address = said.split()[-1]
        with serving("slave", str(slave), "--master", address) as follows:
            assert follows == f"{slave} follows {address}\n"
            kept = tmp_path / "slave" / "commitlog.replaced"
            wait_until(kept.exists, "the other log is set aside")
            wait_until(lambda: (slave / "commitlog").exists() and end_of(slave) == end_of(master))
        command = ["replica", "status", str(slave), "--master", address, "--output", "json"]
        assert run(command) == 0
        [row] = json.loads(capsys.readouterr().out)
        assert row["maxOffset"] == row["masterMaxOffset"] == end_of(master)
        assert row["behindBytes"] == 0
    end = end_of(master)
    assert log_bytes(slave, end) == log_bytes(master, end)
    assert b"".join(path.read_bytes() for path in sorted(kept.iterdir())).startswith(other)
    assert not (slave / "abort").exists()


def test_a_log_is_set_aside_once(tmp_path):
    slave = filled(tmp_path / "slave", first=1000)
    (slave / "commitlog.replaced").mkdir()
    with open_master(tmp_path / "master") as master:
        put_many(master, 100)
        host, port = master.replication.address
        result = subprocess.run(
            [
                *(sys.executable, "-m", "rocketstore", "serve", "slave", str(slave)),
                *("--master", f"{host}:{port}"),
            ],
            check=False, capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
    assert result.returncode == 3
    assert "commitlog.replaced is still there from the last time" in result.stderr
    assert end_of(slave) > 0


@pytest.mark.parametrize("command", [["serve", "slave"], ["replica", "status"]])
def test_without_a_master_there_is_nothing_to_follow(tmp_path, command, capsys):
    root = filled(tmp_path / "store")
    assert run([*command, str(root)]) == 2
    assert "--master" in capsys.readouterr().err


def test_a_master_that_is_not_there_is_not_reached(tmp_path, capsys):
    root = filled(tmp_path / "store")
    assert run(["replica", "status", str(root), "--master", "127.0.0.1:1"]) == 3
    said = "127.0.0.1:1: connection refused; check the address and the port"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("was_empty", [False, True])
def test_a_slave_that_was_there_first_takes_the_files_of_its_master(tmp_path, *, was_empty):
    master, slave = filled(tmp_path / "master"), tmp_path / "slave"
    if was_empty:  # made by an earlier start, with the usual size
        MessageStore.open(slave).close()
    port = free_port()
    address = f"127.0.0.1:{port}"
    with serving("slave", str(slave), "--master", address) as follows:
        assert follows == f"{slave} follows {address}\n"  # and the master is away
        with serving("master", str(master), "--set", f"haListenPort={port}"):
            wait_until(lambda: any((slave / "commitlog").glob("0*")), "it follows")
            wait_until(lambda: end_of(slave) == end_of(master), "it has all")
    end = end_of(master)
    assert log_bytes(slave, end) == log_bytes(master, end)


BROKER = (
    "broker", "--set=listenPort=0", "--set=namesrvPort=0", "--set=mappedFileSizeCommitLog=65536",
    "--set=mappedFileSizeConsumeQueue=2000", "--set=waitTimeMillsInSendQueue=5000",
)  # fmt: skip
NAME_SERVER = ("namesrv", "--port=0")
MASTER = ("master", "--set=haListenPort=0")
SLAVE = ("slave", "--master=127.0.0.1:1")


@pytest.mark.parametrize("command", [BROKER, MASTER, SLAVE])
def test_old_files_of_a_store_that_is_served_are_deleted_unless_they_are_to_stay(
    tmp_path, opened_with, command
):
    for chosen in ([], ["--set=retention=false"]):
        given = ["serve", *command, str(tmp_path / "store"), *chosen]
        assert run(given) == StoreError.exit_code
    assert [one.retention for one in opened_with] == [True, False]


def files(soft: int, hard: int) -> list[str]:
    """Return what starts a command with such limits of open files."""
    return ["sh", "-c", f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$@"', "sh"]


def connected(clients: contextlib.ExitStack, said: str, count: int) -> str:
    """Connect so many clients that say nothing; return where."""
    address: str = re.findall(r" at ([^ ,]+)", said)[0]
    host, port = address.split(":")
    for _ in range(count):
        clients.enter_context(socket.create_connection((host, int(port))))
    return address


@pytest.mark.parametrize(("command", "question"), [("broker", 28), ("namesrv", 106)])
def test_more_clients_are_served_than_a_login_has_files(tmp_path, command, question):
    asked = (*BROKER, str(tmp_path)) if command == "broker" else (command, "--port=0")
    with serving(*asked, starts_by=files(64, 512)) as said, contextlib.ExitStack() as clients:
        address = connected(clients, said, 128)
        with Wire(address) as wire:
            assert wire.ask(question).code == 0


def test_a_store_has_files_left_however_many_clients_come(tmp_path):
    asked = (*BROKER, str(tmp_path))
    with serving(*asked, starts_by=files(160, 160)) as said, contextlib.ExitStack() as clients:
        first = clients.enter_context(Wire(connected(clients, said, 0)))
        assert first.ask(28).code == 0
        connected(clients, said, 200)
        for number in range(20):
            sent = first.ask(310, {**SEND, "b": f"topic-{number}"}, bytes(5000))
            assert (sent.code, sent.remark) == (0, None)


INSIDE_A_PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.INFO)
from rocketstore.broker.testing import Broker
with Broker() as broker:
    print(f"broker at {broker.address}", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(("hard", "said"), [(512, "descriptors.raised"), (64, "too many conn")])
def test_a_broker_inside_a_program_serves_as_many_clients_and_says_it(hard, said):
    """A program's limit is left alone until there are too few, and then the log says so."""
    pipe = subprocess.PIPE
    command = [*files(64, hard), sys.executable, "-c", INSIDE_A_PROGRAM]
    with (
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as program,
        contextlib.ExitStack() as clients,
    ):
        try:
            assert program.stdout is not None
            address = connected(clients, program.stdout.readline(), 0)
            with Wire(address) as first:
                assert first.ask(28).code == 0
                connected(clients, f"broker at {address}", 96)
                if hard > 64:
                    with Wire(address) as last:
                        assert last.ask(28).code == 0
                assert first.ask(28).code == 0
            clients.close()
            _, log = program.communicate(timeout=PATIENCE_S)
            assert program.returncode == 0
            assert said in log
        finally:
            program.kill()


@pytest.mark.parametrize("asked", [BROKER, MASTER, NAME_SERVER])
def test_kill_3_shows_where_each_thread_is_and_ends_nothing(tmp_path, asked):
    store = [] if asked is NAME_SERVER else [str(tmp_path / "store")]
    run_by = [sys.executable, "-m", "rocketstore", "serve", *asked, *store]
    pipe = subprocess.PIPE
    with subprocess.Popen(run_by, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline()
            process.send_signal(signal.SIGQUIT)
            while "most recent call first" not in process.stderr.readline():
                assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0
        finally:
            process.kill()


@pytest.mark.parametrize("asked", [BROKER, SLAVE, NAME_SERVER])
def test_a_signal_that_another_thread_is_given_ends_it_too(tmp_path, asked):
    """Of a process that was stopped meanwhile, as by Ctrl-Z, any thread may be given it."""
    with serving(*asked, *([] if asked is NAME_SERVER else [str(tmp_path)]), thread=-1) as said:
        assert said


def test_all_signals_are_handled_as_before_once_it_stopped():
    def handlers() -> list[object]:
        return [signal.getsignal(number) for number in sorted(signal.valid_signals())]

    before = handlers()
    with stop_on_signal() as stop:
        assert handlers() != before
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set
    assert handlers() == before


def test_the_end_of_a_terminal_asks_to_stop_unless_it_is_ignored():
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup has it
        with stop_on_signal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.is_set
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with stop_on_signal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGHUP)  # of the shell, after the kernel's
            assert stop.is_set
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("ends_by", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("what", ["broker", "master", "slave"])
def test_it_ends_while_its_store_still_recovers_and_nothing_is_lost(tmp_path, what, ends_by):
    """Whoever asks waits for ten seconds, or ninety; a recovery may take longer."""
    root = filled(tmp_path / "store")
    end = end_of(root)
    (root / "abort").touch()
    code = f"""
import sys, time
import rocketstore.storage.opening as opening
from rocketstore.cli import main

def recover(*_arguments, **_options):
    print("recovers", flush=True)
    while True:
        time.sleep(0.01)  # Python heeds no signal that comes just before it sleeps


opening.recover = recover
ports = "listenPort=0 namesrvPort=0" if {what!r} == "broker" else "haListenPort=0"
settings = [f"--set={{one}}" for one in [*ports.split(), "haMasterAddress=127.0.0.1:1"]]
main(["serve", {what!r}, {str(root)!r}, *settings])
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "recovers\n"
            process.send_signal(ends_by)
            _, said = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0
            assert "told to end while the store opened" in said
            assert "Traceback" not in said
        finally:
            process.kill()
    assert end_of(root) == end
    assert (root / "abort").exists()  # the next opening recovers it
