"""``rocketstore serve broker``: it takes a broker.conf of 4.9, says when it is ready, and ends."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from rocketstore import MessageStore
from rocketstore.cli.application import run
from support.broker_desk import SEND
from support.broker_wire import Wire
from support.patience import PATIENCE_S
from support.python_process import run_python
from unit.broker.test_pulling import PULL

CONF = """\
brokerClusterName = DefaultCluster
brokerName = broker-c
brokerId = 1
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
sendMessageThreadPoolNums = 4
aclEnable = true
enableControllerMode = true
mappedFileSizeCommitLog = 1048576
"""
SETS = [
    f"--set={one}"
    for one in ("listenPort=0", "namesrvPort=0", "mappedFileSizeCommitLog=1048576",
                "waitTimeMillsInSendQueue=5000")
]  # fmt: skip
HEARTBEAT = b"""{"clientID": "c", "consumerDataSet": [
    {"groupName": "readers", "subscriptionDataSet": [{"topic": "orders", "subString": "*"}]}]}"""


@contextmanager
def served(
    *arguments: object, complaints: Sequence[str] = (), logged: Sequence[str] = (),
    ends_by: signal.Signals = signal.SIGTERM,
) -> Iterator[list[str]]:  # fmt: skip
    """Run the command; the value is the words of the line that says where it listens.

    `complaints` are the lines before its start, `logged` how those begin that come while it runs.
    """
    command = [sys.executable, "-m", "rocketstore", "serve", "broker", *map(str, arguments), *SETS]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            said = list(iter(process.stderr.readline, "ready\n"))
            *others, started = [line.rstrip() for line in said if "broker.no_vip_port" not in line]
            assert others == list(complaints)
            assert started.startswith("rocketstore: broker.started name=broker-c address=127")
            yield process.stdout.readline().split()
            began = time.monotonic()
            process.send_signal(ends_by)
            _, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0
            *wanted, stopped = errors.splitlines()
            assert stopped == "rocketstore: broker.stopped name=broker-c"
            found = [" ".join(line.split()[1:3]) for line in wanted if "slow took" not in line]
            assert list(dict.fromkeys(found)) == list(logged)
            assert time.monotonic() - began < 5
        finally:
            process.kill()


@pytest.mark.parametrize("ends_by", [signal.SIGTERM, signal.SIGHUP])
def test_file_of_4_9_is_served_and_what_was_sent_is_in_the_store(tmp_path, ends_by):
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text(f"{CONF}storePathRootDir = {root}\n")
    complaints = [
        f"rocketstore: {conf}: {what}"
        for what in (
            "enableControllerMode is not an option of 4.9's store or broker and is ignored",
            "keys of 4.9 that change nothing here: aclEnable sendMessageThreadPoolNums",
        )
    ] + [
        "rocketstore: aclEnable=true: no access control yet: every client may do everything",
        "rocketstore: brokerId=1: a master's is 0, as in 4.9; brokerRole says its role",
    ]
    logged = [f"request.refused code={code}" for code in (310, 25)]
    logged += ["group.shared_again group=readers"]
    run = served("-c", conf, complaints=complaints, logged=logged, ends_by=ends_by)
    with ExitStack() as longer, run as said:
        assert said[:2] == ["broker", "broker-c"]
        address, names = said[3].rstrip(","), said[-1]
        with Wire(address) as wire, Wire(names) as routes:
            sent = wire.ask(310, SEND, b"kept")
            assert wire.ask(310, {**SEND, "b": "a topic"}, b"refused").code == 1
            assert wire.ask(25, body=b"a code that nobody serves").code == 3
            assert wire.ask(34, body=HEARTBEAT).code == 0
            stays = longer.enter_context(Wire(address))  # its group is shared as the broker ends
            assert stays.ask(34, body=HEARTBEAT).code == 0
            assert f'0:"{address}"'.encode() in routes.ask(105, {"topic": "orders"}).body
    assert not (root / "abort").exists()
    with MessageStore.open(root) as store:
        assert sent.fields
        message = store.by_id(sent.fields["msgId"])
        assert message is not None
        assert (message.body, message.store_host) == (b"kept", address)


@pytest.mark.parametrize(
    ("is_kept", "refused"),
    [(False, (310, {**SEND, "b": "a topic"})), (True, (310, {**SEND, "b": "a topic"})),
     (True, (11, {**PULL, "consumerGroup": "€" * 3000}))],
    ids=["closed", "full", "full and longer lines than it takes"],
)  # fmt: skip
def test_broker_whose_log_nobody_reads_answers_all_the_same(tmp_path, is_kept, refused):
    """It logs what it refuses, and who joins a group, before it answers."""
    command = [sys.executable, "-m", "rocketstore", "serve", "broker", str(tmp_path / "store")]
    with subprocess.Popen(
        [*command, *SETS], bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pipesize=8192
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            said = process.stdout.readline().decode().split()
            while process.stderr.readline() != b"ready\n":  # it would stand among the lines below
                assert process.poll() is None
            if not is_kept:
                process.stderr.close()
            with Wire(said[3].rstrip(",")) as wire:
                for _ in range(70):  # more than the pipe takes
                    assert wire.ask(*refused).code in (1, 26)
                assert wire.ask(34, body=HEARTBEAT).code == 0
                assert wire.ask(310, SEND, b"kept").code == 0
                if is_kept:
                    process.stderr.read(8192)
                    assert wire.ask(310, {**SEND, "b": "a topic"}, b"refused").code == 1
                    assert b"lines of the log are lost" in process.stderr.read(8192)
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("line", "flag", "where", "what"),
    [
        ("autoCreateTopicEnabel = false", "", True, "did you mean autoCreateTopicEnable?"),
        ("listenPort = many", "", True, "listenPort=many: expected a whole number"),
        ("listenPort = 1", "listenPort=many", False, "listenPort=many: expected a whole number"),
    ],
)
def test_wrong_setting_of_the_broker_ends_the_start(tmp_path, line, flag, where, what):
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{line}\n")
    flags = ["--set", flag] if flag else []
    done = run_python("-m", "rocketstore", "serve", "broker", tmp_path, "-c", conf, *flags)
    assert done.returncode == 2
    assert what in done.stderr
    assert (f"{conf}: " in done.stderr) == where


def test_settings_are_read_once_so_that_a_pipe_gives_all_of_them(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:  # it would not start either way
        port = f"--set=listenPort={taken.getsockname()[1]}"
        command = "serve", "broker", tmp_path / "store", "--config", "-", port
        done = run_python("-m", "rocketstore", *command, given="brokerId = many")
    assert (done.returncode, "brokerId=many: expected a whole number" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("command", "key"),
    [("broker", "listenPort"), ("broker", "namesrvPort"), ("broker", "haListenPort"),
     ("broker", "metricsPort"), ("master", "haListenPort"), ("master", "metricsPort"),
     ("slave", "metricsPort")],
)  # fmt: skip
def test_port_that_is_in_use_leaves_no_new_store(tmp_path, command, key, capsys):
    store = str(tmp_path / "store")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]  # a slave does not listen at haListenPort
        more = {"broker": {"listenPort": 0, "namesrvPort": 0}, "master": {"haListenPort": 0},
                "slave": {"haMasterAddress": "127.0.0.1:1", "haListenPort": port}}  # fmt: skip
        ports = {**more[command], key: port}
        sets = [f"--set={name}={port}" for name, port in ports.items()]
        assert run(["serve", command, store, *sets]) == 3
    wanted = f"another {key}" if key == "metricsPort" else f"{key} to another port"
    assert f"Address already in use; set {wanted}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_broker_without_a_store_says_what_to_name():
    done = run_python("-m", "rocketstore", "serve", "broker")
    assert done.returncode == 2
    assert "storePathRootDir" in done.stderr
