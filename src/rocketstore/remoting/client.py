"""A client: it asks servers, over one connection to each, and answers what they ask.

Law: a request is sent once. Whether it was done is not known where no reply came; who asks decides.
How derived: NettyRemotingClient of 4.9.8.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final

from rocketstore.addresses import looked_up
from rocketstore.errors import RemotingError
from rocketstore.remoting.channel import Channel, Turns
from rocketstore.remoting.connection import CloseReason
from rocketstore.remoting.requests import RequestTable

if TYPE_CHECKING:
    from rocketstore.remoting.command import Command

CONNECT_MS: Final = 3000
REQUEST_MS: Final = 3000
"""As connectTimeoutMillis and the time-out of a synchronous request in 4.9's clients."""


class RemotingClient(AbstractAsyncContextManager["RemotingClient"]):
    """Connections to servers, made when they are needed; used in one event loop.

    What servers ask is answered by `processor`, without one by code 3.
    """

    def __init__(self, processor: RequestTable | None = None) -> None:
        self._turns = Turns(processor or RequestTable(()))
        self.totals = self._turns.totals
        self._channels: dict[str, asyncio.Task[Channel]] = {}

    async def ask(self, address: str, request: Command, *, timeout_ms: int = REQUEST_MS) -> Command:
        """Send a request to ``host:port`` and return the reply, whatever it says.

        `RemotingError` where there is no connection, it ends, or no reply comes in time; it is
        closed then, as Java's client does, and the next request gets a new one.
        """
        channel = await self._channel(address)
        try:
            return await channel.ask(request, timeout_ms)
        except RemotingError:
            channel.close(CloseReason.TIMED_OUT)
            raise

    async def tell(self, address: str, request: Command) -> None:
        """Send a request that wants no reply; `RemotingError` where there is no connection."""
        (await self._channel(address)).tell(request)

    async def _channel(self, address: str) -> Channel:
        """Return the connection to a server; all who want it meanwhile wait for the same one."""
        task = self._channels.get(address)
        if task is None or (
            task.done() and (task.exception() or task.result().connection.is_closed)
        ):
            task = self._channels[address] = asyncio.create_task(self._connect(address))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            raise RemotingError(f"{address}: this client was closed") from None

    async def _connect(self, address: str) -> Channel:
        host, _, port = address.rpartition(":")
        error: Exception = OSError("no address")
        try:
            async with asyncio.timeout(CONNECT_MS / 1000):
                for _family, number in await asyncio.wrap_future(looked_up(host)):
                    try:
                        _, channel = await asyncio.get_running_loop().create_connection(
                            lambda: Channel(self._turns), number, int(port)
                        )
                    except OSError as refusal:
                        error = refusal
                    else:
                        return channel
        except (OSError, ValueError, OverflowError) as failure:
            error = failure
        raise RemotingError(
            f"cannot connect to {address}: {str(error) or 'no answer in time'}",
            hint="see that a server listens there; an address is host:port",
        ) from error

    def forget(self) -> None:
        """Let go of all connections in a forked child, which asks nothing."""
        self._turns.forget()

    async def close(self) -> None:
        """End all connections; what is still asked fails."""
        tasks, self._channels = self._channels.values(), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._turns.close(0)

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()
