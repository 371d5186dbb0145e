"""A server: it listens, and hands to its processor what comes.

Law: it listens at the given addresses and nowhere else; the default is the loopback.
How derived: NettyRemotingServer of 4.9.8.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Final

from rocketstore.addresses import listeners
from rocketstore.remoting.channel import Channel, Turns, let_go

BACKLOG: Final = 1024  # as serverSocketBacklog of 4.9
_TURNS_TO_ACCEPT: Final = 8  # of the loop; asyncio takes three or four

DRAIN_MS: Final = 1000
"""How long `RemotingServer.close` waits for what is owed: SIGTERM has 5 s in all."""


class RemotingServer(AbstractAsyncContextManager["RemotingServer"]):
    """Listens, after `listen`, until ``async with RemotingServer(Turns(…)) as server`` ends.

    Its limits and totals are those of all connections, of whatever address; `address` is the first.
    """

    address: tuple[str, int]

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._listeners: list[asyncio.Server] = []
        self.totals = turns.totals

    async def listen(self, host: str = "127.0.0.1", port: int = 0, port_key: str = "port") -> None:
        """Listen at an address; a `RemotingError`, where that cannot be, names the port's key."""
        loop = asyncio.get_running_loop()
        for one in listeners(host, port, port_key, BACKLOG):
            made = await loop.create_server(lambda: Channel(self._turns), sock=one, backlog=BACKLOG)
            self._listeners.append(made)
        self.address = self._listeners[0].sockets[0].getsockname()[:2]

    def forget(self) -> None:
        """Free the port and let go of all connections in a forked child, which answers nothing."""
        let_go(one.fileno() for each in self._listeners for one in each.sockets)
        self._turns.forget()

    async def close(self, drain_ms: int = DRAIN_MS) -> None:
        """Listen no more, answer what is owed within `drain_ms`, and end all connections."""
        for listening in [each for one in self._listeners for each in one.sockets]:
            asyncio.get_running_loop().remove_reader(listening)
        for _ in range(_TURNS_TO_ACCEPT):  # asyncio loses a client half accepted at `close`
            await asyncio.sleep(0)
        for one in self._listeners:
            one.close()
        await self._turns.close(drain_ms)
        await asyncio.gather(*(one.wait_closed() for one in self._listeners))

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()
