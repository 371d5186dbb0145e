"""``rocketstore serve namesrv``: one command that starts, says when, and ends in time."""

import json
import signal
import socket
import subprocess
import sys

import pytest

from rocketstore.nameserver.headers import KeyHeader, KeyValueHeader, ValueReply
from rocketstore.nameserver.key_values import ORDER_TOPICS
from rocketstore.remoting.codes import RequestCode
from rocketstore.remoting.requests import reply_header, request
from support.name_server import ask, name_server
from support.patience import PATIENCE_S

VALUE = KeyValueHeader(ORDER_TOPICS, "orders", "broker-a:4")


@pytest.mark.parametrize("ends_by", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_answers_once_it_is_ready_and_ends_when_it_is_told(ends_by):
    with name_server(ends_by=ends_by) as address:
        assert address.startswith("127.0.0.1:")
        found = ask(address, request(RequestCode.GET_BROKER_CLUSTER_INFO))
        assert json.loads(found.body) == {"brokerAddrTable": {}, "clusterAddrTable": {}}
        host, port = address.split(":")
        # A client that is connected, and one that dies in the middle of a frame, hold nothing up.
        idle = socket.create_connection((host, int(port)))
        half = socket.create_connection((host, int(port)))
        half.sendall(b"\0\0\0")
    idle.close()
    half.close()


def test_values_outlive_it_where_they_are_kept(tmp_path):
    kept = tmp_path / "kvConfig.json"
    with name_server("--kv-config", str(kept)) as address:
        assert ask(address, request(RequestCode.PUT_KV_CONFIG, VALUE)).code == 0
    assert json.loads(kept.read_text()) == {"configTable": {ORDER_TOPICS: {"orders": "broker-a:4"}}}
    with name_server("--kv-config", str(kept)) as address:
        key = KeyHeader(ORDER_TOPICS, "orders")
        found = ask(address, request(RequestCode.GET_KV_CONFIG, key))
        assert reply_header(found, ValueReply).value == "broker-a:4"


def run(*options):
    command = [sys.executable, "-m", "rocketstore", "serve", "namesrv", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.returncode, done.stderr


def test_a_port_that_is_taken_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, said = run("--port", str(taken.getsockname()[1]))
    assert code == 3
    assert "Address already in use; set port to another port" in said
    assert "Traceback" not in said


def test_values_that_are_broken_are_an_error_and_stay(tmp_path):
    kept = tmp_path / "kvConfig.json"
    kept.write_text('{"configTable":')
    code, said = run("--port", "0", "--kv-config", str(kept))
    assert code == 4
    assert str(kept) in said
    assert kept.read_text() == '{"configTable":'


@pytest.mark.parametrize("closed", ["<&-", "<&- 2>&-"])
def test_it_ends_in_order_where_it_was_started_without_standard_input(closed):
    """A supervisor may do so; uvloop aborts a process that closes a socket of so low a number."""
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "rocketstore"]
    with subprocess.Popen(
        [*command, "serve", "namesrv", "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout.readline().startswith("name server at ")
        server.terminate()
        server.communicate(timeout=PATIENCE_S)
    assert server.returncode == 0
