"""Clients of a whole broker that lie, drip, flood, never read, and vanish while they are held.

``ROCKETSTORE_ODD_ROUNDS`` is how many rounds of four of them there are.
"""

import asyncio
import contextlib
import gc
import json
import logging
import random
import socket
from collections.abc import Mapping
from pathlib import Path

from faults.test_hostile_clients import RESET
from rocketstore.broker.table import BrokerTable
from rocketstore.broker.testing import Broker
from rocketstore.remoting.command import ONEWAY, Command, HeaderKind
from rocketstore.remoting.server import RemotingServer
from rocketstore.units import MiB
from support.broker_desk import SEND
from support.broker_wire import Wire
from support.descriptors import open_sockets
from support.fault_settings import base_seed, odd_round_count
from support.leaks import assert_keeps_nothing
from support.patience import wait_until
from support.wire import frame, framed
from unit.broker.test_pulling import PULL

PAGE_MESSAGES = 16
TASKS = 4
"""Of a broker: that which serves, the one that registers and its round of one name server, and the
one that looks for silent brokers."""

BODY = bytes(8_000)
HEARTBEAT = json.dumps({
    "clientID": "c", "producerDataSet": [{"groupName": "P"}],
    "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [{"topic": "orders"}]}],
}).encode()  # fmt: skip
LOCK = b'{"clientId":"c","consumerGroup":"G","mqSet":[{"brokerName":"b","queueId":0,"topic":"t"}]}'


def asked(
    code: int, fields: Mapping[str, object] | None = None, body: bytes = b"", **more: int
) -> bytes:
    texts = fields and {name: str(value) for name, value in fields.items()}
    return framed(Command(code, 1, fields=texts, body=body, **more))  # type: ignore[arg-type]


QUEUE = {"topic": "orders", "queueId": 0}
COMMIT = {**QUEUE, "consumerGroup": "G", "commitOffset": 1}
FINDS = asked(11, PULL)
HELD = asked(11, {**PULL, "queueOffset": 10**9, "queueId": 1})
AT_THE_END = asked(11, {**PULL, "queueId": 1})
REPLY = {**SEND, "i": "REPLY_TO_CLIENT\1c"}
HALF = {**SEND, "e": 1, "i": "TRAN_MSG\1true\2PGROUP\1P\2UNIQ_KEY\1k"}
ODD = (
    FINDS * 40, AT_THE_END * 30, HELD, asked(34, None, HEARTBEAT) + AT_THE_END,
    asked(34, None, HEARTBEAT[:-9]), asked(34, None, HEARTBEAT, flag=ONEWAY) * 50,
    asked(9999, flag=ONEWAY) * 200, asked(9999) * 20, asked(15, COMMIT, flag=ONEWAY) * 100,
    asked(310, {**SEND, "b": "SELF_TEST_TOPIC"}, b"x"), asked(310, SEND)[:-3],
    asked(310, {"a": "P"}),
    asked(34, None, HEARTBEAT) + asked(325, REPLY, b"reply") * 9, asked(325, REPLY, b"reply"),
    asked(310, HALF, b"half"), asked(320, {**SEND, "m": "true"}, b"no batch"),
    asked(41, None, LOCK) + asked(42, None, LOCK), asked(21) * 5, asked(28) * 5,
    asked(12, {"topic": "orders", "key": "k", "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 1}),
    asked(36, {"offset": 0, "group": "G", "delayLevel": -1}), asked(33, {"offset": 1}) * 9,
    asked(37, {"producerGroup": "P", "tranStateTableOffset": 0, "commitLogOffset": 9,
               "commitOrRollback": 8}), asked(35, {"clientID": "c", "consumerGroup": "G"}),
    asked(30, QUEUE, kind=HeaderKind.ROCKETMQ) * 9, asked(0, flag=1) * 9,
    frame(b"{}", length=-1), frame(b"{}", length=2**31 - 1), frame(b"{}", kind=7),
    frame(b"{}", header_size=2**24 - 1), frame(b'{"x":' + b"[" * 9999), b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00", frame(b'{"code":11,"extFields":{"topic":"\xff"}}'), b"",
)  # fmt: skip


async def one_client(address: tuple[str, int], chance: random.Random) -> None:
    """Connect, send at once or byte by byte, read some or nothing, and go in one way or another."""
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.settimeout(0)
    with contextlib.suppress(ConnectionError), client:
        await loop.sock_connect(client, address)
        data = chance.choice(ODD)
        if chance.random() < 0.2:  # a slow one, that never ends its frame
            for at in range(min(len(data) - 1, 20)):
                await loop.sock_sendall(client, data[at : at + 1])
                await asyncio.sleep(0)
        else:
            await loop.sock_sendall(client, data)
        if chance.random() < 0.6:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(chance.choice((0.001, 0.01))):
                    while chance.random() < 0.8 and await loop.sock_recv(client, 4096):
                        pass
        if chance.random() < 0.3:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def test_hostile_clients_of_a_broker_leave_nothing_behind(caplog):
    caplog.set_level(logging.CRITICAL, "rocketstore")  # what is logged is kept by pytest
    chance = random.Random(base_seed())
    with Broker() as broker, asyncio.Runner() as runner:
        host, port = broker.address.split(":")
        with Wire(broker.address) as wire:
            for _ in range(PAGE_MESSAGES):
                assert wire.ask(310, SEND, BODY).code == 0
        running = broker._service._running
        assert running is not None
        server = broker._service._kept[-1]
        assert isinstance(server, RemotingServer)
        table = server._turns._processor
        assert isinstance(table, BrokerTable)
        wait_until(lambda: len(asyncio.all_tasks(running.loop)) == TASKS)
        runner.run(asyncio.sleep(0))
        gc.collect()  # sockets of earlier tests
        sockets = len(open_sockets())

        async def four() -> None:
            await asyncio.gather(*(one_client((host, int(port)), chance) for _ in range(4)))

        def one_round() -> None:
            runner.run(four())
            wait_until(lambda: len(open_sockets()) <= sockets)

        rounds = odd_round_count()
        for _ in range(rounds // 2):  # until caches are full
            one_round()
        before = resident_bytes()
        assert_keeps_nothing(one_round, rounds // 10, most=1 if rounds >= 1000 else 8)
        assert resident_bytes() < before + 32 * MiB  # the files of the store are mapped
        # The last ones may have gone before the server took them: it takes this one after them.
        with Wire(broker.address) as wire:
            assert wire.ask(310, SEND, b"x").code == 0
        wait_until(lambda: len(asyncio.all_tasks(running.loop)) == TASKS)
        wait_until(lambda: server.totals.held_bytes == len(table.pulling.held) == 0)
        wait_until(lambda: table.clients.consumers == table.clients.producers == {})
        assert len(server.totals.closed) >= 6


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
