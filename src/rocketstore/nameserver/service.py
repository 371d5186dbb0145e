"""A name server that listens: its requests over sockets, and the clock for silent brokers.

How derived: NamesrvController of 4.9.7.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from rocketstore.events import get_logger
from rocketstore.nameserver.requests import NameServer
from rocketstore.remoting.channel import Turns
from rocketstore.remoting.limits import DEFAULT_LIMITS
from rocketstore.remoting.server import RemotingServer
from rocketstore.units import awake_ms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from rocketstore.nameserver.key_values import KeyValues

PORT: Final = 9876
SCAN_S: Final = 10.0  # how often silent brokers are looked for, as in NamesrvController

_log: Final = get_logger(__name__)


@contextlib.asynccontextmanager
async def serving(
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    port_key: str = "port",
    values: KeyValues | None = None,
    order_messages: bool = False,
    clock: Callable[[], int] = awake_ms,
) -> AsyncIterator[RemotingServer]:
    """Listen for the length of an ``async with`` block; `RemotingError` where that cannot be."""
    settings = {"serverChannelMaxIdleTimeSeconds": str(DEFAULT_LIMITS.idle_ms // 1000)}
    name_server = NameServer(values, settings, order_messages=order_messages, clock=clock)
    async with RemotingServer(Turns(name_server.requests, clock=clock)) as server:
        await server.listen(host, port, port_key)
        settings["listenPort"] = str(server.address[1])
        scanner = asyncio.create_task(_scan(name_server, clock))
        try:
            yield server
        finally:
            scanner.cancel()


async def _scan(name_server: NameServer, clock: Callable[[], int]) -> None:
    while True:
        await asyncio.sleep(SCAN_S)
        for address in name_server.routes.expire(clock()):
            _log.warning("broker.silent", address=address)
