"""A genuine broker of 4.9.7 takes a directory over after ours, and ours after it, amid traffic.

The clients, genuine too, know a name server, which stays; each broker has the port and the name of
the one before.
"""

import json
import threading
from collections import Counter
from typing import Any

import pytest

from rocketstore import verify_store
from rocketstore.broker.testing import Broker
from rocketstore.format.host import decode_message_id
from rocketstore.message import TRANSACTION_COMMIT
from support.both_sides import small_config
from support.broker_desk import SEND
from support.broker_wire import Wire
from support.genuine_broker import GenuineBroker, genuine_class_path
from support.java_client import JavaClient, jars
from support.java_store import require_java
from support.line_process import CommandFailedError
from support.name_server import name_server
from support.patience import wait_until
from support.ports import free_port

pytestmark = [pytest.mark.java]

LEVELS = {"messageDelayLevel": "4s 1s"}
LATE, SOON = 1, 2
"""Levels of delay; a client has what it could not consume come again at the first."""

TOPIC = {"topic": "orders", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
GROUP = b'{"groupName":"stays","retryMaxTimes":5}'


class Traffic:
    """One message after the other is sent, and groups consume them, while brokers come and go.

    `sent` are the bodies of those that were acknowledged, `got` what each group was given.
    """

    def __init__(self, client: JavaClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent: list[str] = []
        self.failed_sends = 0
        self.got: dict[str, list[dict[str, Any]]] = {}
        self.consume("stays")
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(0.02):
            body = str(len(self.sent))
            try:
                self.send({"body": body})
            except CommandFailedError:
                self.failed_sends += 1
            else:
                self.sent.append(body)

    def send(self, *messages: dict[str, Any]) -> None:
        with self._lock:
            self._client.send("orders", *messages)

    def consume(self, group: str) -> None:
        self.got.setdefault(group, [])
        with self._lock:
            self._client.consume("orders", group)

    def leave(self, group: str) -> None:
        with self._lock:
            self._client.close_consumer(group)
        self.taken(group)

    def taken(self, group: str) -> Counter[str]:
        """Return how often a group was given each body."""
        with self._lock:
            self.got[group] += self._client.received(group, 10**6, timeout_s=0)
        return Counter(str(one["body"]) for one in self.got[group])

    def wait_for(self, group: str, *bodies: str, times: int = 1) -> None:
        """Wait until a group was given bodies so often."""
        wanted = Counter(dict.fromkeys(bodies, times))
        wait_until(lambda: wanted <= self.taken(group), f"{group} is given {bodies[:9]}")

    def end(self) -> None:
        """Send no more."""
        self._ends.set()
        self._thread.join()


def settled(address: str) -> tuple[int, int]:
    """Return what a broker knows: queues of the topic, tries of the group."""
    with Wire(address) as wire:
        topics = json.loads(wire.ask(21).body)["topicConfigTable"]
        groups = json.loads(wire.ask(201).body)["subscriptionGroupTable"]
    return topics["orders"]["readQueueNums"], groups["stays"]["retryMaxTimes"]


def come_and_go(traffic: Traffic) -> None:
    """Have a group consume what is there, and leave."""
    sent = list(traffic.sent)
    traffic.consume("returns")
    traffic.wait_for("returns", *sent)
    traffic.leave("returns")


def before(traffic: Traffic, name: str) -> None:
    """Leave a broker with a retry and a delayed message that its successor has to deliver."""
    traffic.send({"body": f"soon {name}", "delayLevel": SOON})
    traffic.wait_for("stays", f"soon {name}")
    come_and_go(traffic)
    traffic.send({"body": f"fail {name}"}, {"body": f"late {name}", "delayLevel": LATE})
    traffic.wait_for("stays", f"fail {name}")


def after(traffic: Traffic, name: str) -> None:
    traffic.wait_for("stays", f"late {name}")
    traffic.wait_for("stays", f"fail {name}", times=2)


def begin(address: str, body: str) -> dict[str, object]:
    """Begin a transaction; return what commits it."""
    properties = f"TRAN_MSG\1true\2PGROUP\1T\2UNIQ_KEY\1{body}"
    with Wire(address) as wire:
        half = wire.ask(310, {**SEND, "a": "T", "i": properties}, body.encode())
    assert half.code == 0
    assert half.fields
    return {
        "producerGroup": "T", "tranStateTableOffset": half.fields["queueOffset"],
        "commitLogOffset": decode_message_id(half.fields["msgId"])[1],
        "commitOrRollback": TRANSACTION_COMMIT, "msgId": body,
    }  # fmt: skip


def commit(address: str, end: dict[str, object]) -> None:
    with Wire(address) as wire:
        assert wire.ask(37, end).code == 0


def test_brokers_take_over_from_each_other(tmp_path):
    require_java(genuine_class_path)
    require_java(jars)
    root, port = tmp_path / "store", free_port()
    address = f"127.0.0.1:{port}"

    def ours(names: str) -> Broker:
        return Broker(root, small_config(**LEVELS), listen_port=port, namesrv_addr=names)

    with name_server() as names, GenuineBroker() as genuine, JavaClient(names) as client:
        with ours(names), Wire(address) as wire:
            assert [wire.ask(17, TOPIC).code, wire.ask(200, None, GROUP).code] == [0, 0]
            traffic = Traffic(client)
            before(traffic, "1")
            half = begin(address, "half 1")
        genuine.start_broker(names, root, port, brokerName="broker-a", **LEVELS)
        assert settled(address) == (3, 5)
        after(traffic, "1")
        commit(address, half)
        traffic.wait_for("stays", "half 1")
        before(traffic, "2")
        half = begin(address, "half 2")
        traffic.leave("stays")  # a genuine broker leaves it waiting for 30 s for what was held
        genuine.stop_broker()
        with ours(names):
            assert settled(address) == (3, 5)
            traffic.consume("stays")
            after(traffic, "2")
            commit(address, half)
            traffic.wait_for("stays", "half 2")
            traffic.end()
            traffic.wait_for("stays", *traffic.sent)
            come_and_go(traffic)

    assert traffic.failed_sends
    for messages in traffic.got.values():
        first = [one for one in messages if not one["reconsumeTimes"]]
        places = Counter((one["queueId"], one["queueOffset"]) for one in first)
        assert [place for place, count in places.items() if count > 1] == []
    times = Counter(one["body"] for one in traffic.got["stays"])
    once = [f"{kind} {number}" for kind in ("soon", "late", "half") for number in (1, 2)]
    assert {body: times[body] for body in once} == dict.fromkeys(once, 1)
    assert verify_store(root, small_config()).findings == []
