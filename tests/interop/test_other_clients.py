"""Unchanged clients of PyPI (over C++) and npm against a broker of ours."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

from rocketstore.broker.testing import Broker
from support.broker_wire import Wire
from support.other_clients import INTEROP, node_client, python_client, required
from support.patience import START_S

if TYPE_CHECKING:
    from pathlib import Path

RECEIVED = [["fail", 0, "a"], ["fail", 1, "a"], ["one", 0, "a"], ["two", 0, "a"]]


def lines(broker: Broker, command: list[str], script: str, *more: object) -> list[object]:
    """Run a script with the broker's name server; return the JSON lines that it printed."""
    words = [*command, str(INTEROP / script), broker.name_server, *map(str, more)]
    done = subprocess.run(words, check=False, timeout=START_S, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def bodies(broker: Broker, topic: str) -> list[bytes]:
    queues = [key for key in broker.store.queues() if key.topic == topic]
    return sorted(one.body for key in queues for one in broker.store.get(*key, 0).messages)


def test_python_client_sends_and_consumes_and_tries_again(tmp_path: Path) -> None:
    command = required(python_client)
    with Broker() as broker:
        sent, received = lines(broker, command, "pyclient/client.py", tmp_path)
        assert (sent, received) == ([0, 0, 0], RECEIVED)
        assert bodies(broker, "python") == [b"fail", b"one", b"two"]


def test_node_client_sends_and_consumes_and_tries_again() -> None:
    command = required(node_client)
    with Broker() as broker:
        with Wire(broker.address) as wire:  # it makes no topics
            fields = {"topic": "node", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
            assert wire.ask(17, fields).code == 0
        sent, received = lines(broker, command, "nodeclient/client.js")
        assert (sent, received) == (["SEND_OK"] * 3, RECEIVED)
        assert bodies(broker, "node") == [b"fail", b"one", b"two"]
