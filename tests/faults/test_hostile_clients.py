"""Clients that lie, drip, flood, vanish and never read: nothing of them stays in a server."""

import asyncio
import contextlib
import logging
import random
import socket
import struct

from rocketstore.remoting.codes import RequestCode
from rocketstore.remoting.command import ONEWAY, Command, HeaderKind, reply
from rocketstore.remoting.fields import Header
from rocketstore.remoting.requests import LATER, RequestTable, Row
from support.descriptors import open_sockets
from support.leaks import assert_keeps_nothing
from support.patience import PATIENCE_S
from support.wire import frame, framed, opened

ECHO, HOLD = RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_KV_CONFIG
ROUNDS = 1000
RESET = struct.pack("ii", 1, 0)


class Holder(RequestTable):
    """Echoes, and keeps what it is asked to keep until its client is gone."""

    def __init__(self):
        self.held = []
        rows = [
            Row(ECHO, Header, None, lambda _, call: reply(body=call.command.body)),
            Row(HOLD, Header, None, lambda _, call: self.held.append(call) or LATER),
        ]
        super().__init__(rows, disconnected=[self.forget])

    def forget(self, peer):
        for call in [call for call in self.held if call.peer is peer]:
            self.held.remove(call)
            call.answer(reply())


def sent_by(chance):
    """Return what one client sends: some of it fine, some of it not."""
    echo = framed(Command(ECHO, 1, body=chance.randbytes(chance.randrange(3000))))
    binary = framed(Command(ECHO, 2, fields={"k": "v"}, kind=HeaderKind.ROCKETMQ))
    at = chance.randrange(1, len(echo))
    return chance.choice([
        echo, echo[:at], echo + echo[:at], binary, binary[:9] + b"\xff" + binary[10:],
        framed(Command(HOLD, 3)) * 3 + echo, framed(Command(9999, 4)), frame(b"{}", length=-1),
        framed(Command(9999, 5, flag=ONEWAY)) * 50, frame(b"{}", length=2**31 - 1),
        frame(b"{}", kind=7), frame(b"{}", header_size=2**24 - 1), frame(b'{"x":' + b"[" * 9999),
        frame(b'{"code":105,"extFields":{"a":"\xff"}}'), chance.randbytes(64), b"",
        framed(Command(0, 6, flag=1)), echo * 40,
    ])  # fmt: skip


async def one_client(address, chance):
    """Connect, send in pieces, read some or none, and go in one way or another."""
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.settimeout(0)
    with contextlib.suppress(ConnectionError), client:
        await loop.sock_connect(client, address)
        data = sent_by(chance)
        cut = chance.randrange(len(data) + 1)
        for piece in (data[:cut], data[cut:]):
            await loop.sock_sendall(client, piece)
            await asyncio.sleep(0)
        if chance.random() < 0.3:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.001):
                    await loop.sock_recv(client, 4096)
        if chance.random() < 0.3:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def test_a_thousand_hostile_clients_leave_nothing_behind(caplog):
    caplog.set_level(logging.CRITICAL, "rocketstore")  # what is logged is kept by pytest
    chance = random.Random(20261127)
    holder = Holder()
    # Of one loop, which is kept; a client of each round, and then what it left.
    with asyncio.Runner() as runner:
        server = runner.run(opened(holder))

        async def one_round():
            await asyncio.gather(*(one_client(server.address, chance) for _ in range(4)))
            # Their ends are on their way, or even their beginnings.
            async with asyncio.timeout(PATIENCE_S):
                while (  # noqa: ASYNC110 - what is waited for tells nobody
                    server._turns.channels or holder.held or server.totals.held_bytes
                    or len(asyncio.all_tasks()) > 1
                ):  # fmt: skip
                    await asyncio.sleep(0)

        for _ in range(ROUNDS // 2):  # until the caches of asyncio are full
            runner.run(one_round())
        before = open_sockets()
        assert_keeps_nothing(lambda: runner.run(one_round()), ROUNDS // 10)
        assert open_sockets() <= before
        assert sum(server.totals.closed.values()) >= ROUNDS
        assert len(server.totals.closed) >= 6
        runner.run(server.close())
