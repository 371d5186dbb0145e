"""Where servers listen, and how names are looked up, whatever the machine has and answers."""

import errno
import os
import socket
import subprocess
import sys
import threading

import pytest

from rocketstore import MessageStore, StoreConfig
from rocketstore.addresses import cannot_listen, listeners, listening_host, looked_up, resolved
from rocketstore.broker.service import BrokerService
from rocketstore.broker.settings import BrokerSettings
from rocketstore.config import BrokerRole
from rocketstore.errors import RemotingError
from rocketstore.replication.slave import ask_master
from support.patience import PATIENCE_S, wait_until
from support.python_process import printed

SILENT = "silent.example"
"""A name for which no server of names has an answer, for long."""

LOOKUP = "rocketstore-lookup"


@pytest.fixture
def silence(monkeypatch):
    over, asked_on = threading.Event(), []
    asked = socket.getaddrinfo

    def answer(host, *rest, **more):
        if host == SILENT and not more.get("flags"):
            asked_on.append(threading.current_thread().name)
            if asked_on[-1] == LOOKUP and not over.wait(PATIENCE_S):  # else its caller would wait
                asked_on.append("nobody: what was to end waited for it")
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return asked(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    yield
    wait_until(lambda: asked_on, "it was asked for")
    assert set(asked_on) == {LOOKUP}
    over.set()
    for one in threading.enumerate():
        if one.name == LOOKUP:
            one.join(PATIENCE_S)


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("role", [BrokerRole.ASYNC_MASTER, BrokerRole.SLAVE])
def test_no_end_waits_for_a_name_that_nobody_answers(tmp_path, role):
    """A broker whose name server has it, a slave whose master has it."""
    settings = BrokerSettings(listen_port=0, namesrv_addr=f"{SILENT}:9876")
    services = [BrokerService.with_settings(settings)] if role is BrokerRole.ASYNC_MASTER else []
    config = StoreConfig.small(broker_role=role, ha_master_address=f"{SILENT}:10912")
    with MessageStore.open(tmp_path, config, services=services):
        pass


@pytest.mark.usefixtures("silence")
def test_who_asks_a_master_whose_name_nobody_answers_says_so(monkeypatch):
    monkeypatch.setattr("rocketstore.replication.slave.CONNECT_TIMEOUT_MS", 10)
    with pytest.raises(OSError, match="no answer in time"):
        ask_master(StoreConfig.small(ha_master_address=f"{SILENT}:10912"))


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "::1"])
def test_a_number_is_known_at_once(host):
    assert looked_up(host).done()
    assert looked_up(host).result() == [resolved(host)]


def test_without_a_thread_for_it_a_name_is_not_known(monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="can't start new thread"):
        looked_up(SILENT).result()


def test_a_server_of_clients_uses_no_threads_that_are_not_python_s():
    """Those of libuv, which look names up, end the process where the system grants none."""
    program = """
import os, threading, time
from rocketstore.broker.testing import Broker
with Broker(namesrv_addr="localhost:1"):
    until = time.monotonic() + 20
    while others := len(os.listdir("/proc/self/task")) - threading.active_count():
        if time.monotonic() > until:
            break
        time.sleep(0.01)  # a thread that has ended is the system's for a moment longer
    print(others)
"""
    assert printed(program) == "0\n"


@pytest.mark.parametrize("count", range(5, 16))
def test_a_name_server_that_has_too_few_descriptors_says_so(count):
    command = ["prlimit", f"--nofile={count}", sys.executable, "-m", "rocketstore"]
    with subprocess.Popen(
        [*command, "serve", "namesrv", "--port", "0"], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stderr is not None
        said = server.stderr.readline()
        if said == "ready\n":
            server.terminate()
        rest = server.communicate(timeout=PATIENCE_S)[1]
    assert "Traceback" not in said + rest
    if server.returncode:
        assert (server.returncode, "(ulimit -n)" in said) == (3, True)
    else:
        assert said == "ready\n"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.EMFILE, "refused"), "ulimit -n"),
        (OSError(errno.ENFILE, "refused"), "ulimit -n"),
        (socket.gaierror(socket.EAI_NONAME, "refused"), "a name that stands for one"),
        (UnicodeError("refused"), "a name that stands for one"),
        (OSError(errno.EADDRINUSE, "refused"), "set listenPort to another port"),
    ],
)
def test_what_is_advised_goes_by_why_nobody_can_listen(error, advice):
    said = cannot_listen("a.example", 1, "listenPort", error)
    assert said.message == "cannot listen at a.example:1: refused"
    assert advice in str(said.hint)


class Machine:
    """A machine that lacks some addresses."""

    def __init__(self, monkeypatch, *lacking, code=errno.EADDRNOTAVAIL):
        bind = socket.socket.bind

        def refused(one, address):
            if address[0] in lacking:
                raise OSError(code, os.strerror(code))
            bind(one, address)

        monkeypatch.setattr("socket.socket.bind", refused)


@pytest.mark.parametrize("code", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT])
def test_everywhere_is_one_port_of_each_kind_of_address_that_there_is(monkeypatch, code):
    both = listeners("", 0, 1)
    assert {one.family for one in both} == {socket.AF_INET, socket.AF_INET6}
    assert len({one.getsockname()[1] for one in both}) == 1
    Machine(monkeypatch, "::", code=code)
    [left] = listeners("", 0, 1)
    assert left.family == socket.AF_INET
    for one in (*both, left):
        one.close()


@pytest.mark.parametrize("own", ["127.0.0.1", "::1"])
def test_a_loopback_that_is_not_there_is_refused_and_never_stands_for_every_address(
    monkeypatch, tmp_path, own
):
    Machine(monkeypatch, own)
    assert listening_host(own) == own
    settings = BrokerSettings(broker_ip1=own, listen_port=0, namesrv_port=0)
    services = [BrokerService.with_settings(settings)]
    with (
        pytest.raises(RemotingError, match=r"cannot listen at .*give an address of this machine"),
        MessageStore.open(tmp_path, StoreConfig.small(), services=services),
    ):
        pass
