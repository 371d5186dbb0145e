"""A server: it listens, and hands to its processor what comes.

Law: it listens where it is told to and nowhere else; the default is the loopback.
How derived: NettyRemotingServer of 4.9.8 (remoting specification, section 4).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

from rocketstore.errors import RemotingError
from rocketstore.remoting.channel import Channel, Turns, let_go
from rocketstore.remoting.limits import DEFAULT_LIMITS
from rocketstore.units import monotonic_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.remoting.limits import Limits
    from rocketstore.remoting.requests import RequestTable

BACKLOG: Final = 1024
"""As serverSocketBacklog of 4.9."""

DRAIN_MS: Final = 1000
"""How long `RemotingServer.close` waits for what is owed: SIGTERM has 5 s in all."""


class RemotingServer:
    """Listens at `address` while it is open: ``async with await RemotingServer.open(…)``.

    Its limits and totals are those of all connections, of whatever address.
    """

    address: tuple[str, int]

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._listeners: list[asyncio.Server] = []
        self.totals = turns.totals

    @classmethod
    async def open(
        cls,
        processor: RequestTable,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits = DEFAULT_LIMITS,
        clock: Callable[[], int] = monotonic_ms,
    ) -> Self:
        """Listen at an address; see `listen`."""
        server = cls(Turns(processor, limits, clock))
        try:
            server.address = await server.listen(host, port)
        except BaseException:
            await server.close(0)
            raise
        return server

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Listen at another address; `RemotingError` where it is in use, or not of this machine."""
        loop = asyncio.get_running_loop()
        try:
            listener = await loop.create_server(
                lambda: Channel(self._turns), host, port, backlog=BACKLOG, reuse_address=True
            )
            self._listeners.append(listener)
            return _address_of(listener)
        except (OSError, OverflowError) as error:
            raise RemotingError(
                f"cannot listen at {host}:{port}: {error}",
                hint="choose another port or host; port 0 takes any free one",
            ) from error

    @property
    def connection_count(self) -> int:
        """How many connections there are."""
        return len(self._turns.channels)

    def forget(self) -> None:
        """Free the port and let go of all connections in a forked child, which answers nothing."""
        let_go(one.fileno() for each in self._listeners for one in each.sockets)
        self._turns.forget()

    async def close(self, drain_ms: int = DRAIN_MS) -> None:
        """Listen no more, answer what is owed within `drain_ms`, and end all connections."""
        for one in self._listeners:
            one.close()
        await self._turns.close(drain_ms)
        for one in self._listeners:
            await one.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()


def _address_of(listener: asyncio.Server) -> tuple[str, int]:
    if not listener.sockets:  # asyncio takes a refusal for an address of another kind
        raise OSError("the system gave no socket")
    host, port = listener.sockets[0].getsockname()[:2]
    return host, port


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of a server process: uvloop's where it is installed, or Python's."""
    try:
        import uvloop  # noqa: PLC0415 - the extra "broker"
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
