"""A name server that listens: its requests over sockets, and the clock for silent brokers.

How derived: NamesrvController of 4.9.7.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

from rocketstore.events import get_logger
from rocketstore.nameserver.requests import NameServer
from rocketstore.remoting.limits import DEFAULT_LIMITS
from rocketstore.remoting.server import RemotingServer
from rocketstore.units import monotonic_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.nameserver.key_values import KeyValues

PORT: Final = 9876

SCAN_S: Final = 10.0
"""How often silent brokers are looked for (RouteInfoManager.scanNotActiveBroker)."""

_log: Final = get_logger(__name__)


class NameServerService:
    """Listens while it is open: ``async with await NameServerService.open() as service``."""

    def __init__(
        self, name_server: NameServer, server: RemotingServer, clock: Callable[[], int]
    ) -> None:
        self.name_server = name_server
        self.server = server
        self._clock = clock
        self._timer = asyncio.get_running_loop().call_later(SCAN_S, self._scan_again)

    @classmethod
    async def open(
        cls,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        values: KeyValues | None = None,
        order_messages: bool = False,
        clock: Callable[[], int] = monotonic_ms,
    ) -> Self:
        """Listen at an address; `RemotingError` where that cannot be."""
        settings: dict[str, str] = {
            "serverChannelMaxIdleTimeSeconds": str(DEFAULT_LIMITS.idle_ms // 1000)
        }
        name_server = NameServer(values, settings, order_messages=order_messages, clock=clock)
        server = await RemotingServer.open(name_server.requests, host=host, port=port, clock=clock)
        settings["listenPort"] = str(server.address[1])
        return cls(name_server, server, clock)

    def scan(self) -> None:
        """Forget the brokers that were silent for too long."""
        for address in self.name_server.routes.expire(self._clock()):
            _log.warning("broker.silent", address=address)

    def _scan_again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SCAN_S, self._scan_again)
        self.scan()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._timer.cancel()
        await self.server.close()
