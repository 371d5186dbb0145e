"""A client of the remoting protocol whose every byte a test chooses; it knows no broker's rules."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Self

from rocketstore.remoting.client import RemotingClient
from rocketstore.remoting.command import Command
from rocketstore.remoting.requests import Call, RequestTable
from support.broker_desk import text_of
from support.patience import PATIENCE_MS


class Wire:
    """One connection to a broker, at `address`; `told` is what the broker asked of it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._runner = asyncio.Runner()
        self.told: list[Command] = []

    def __enter__(self) -> Self:
        async def made() -> RemotingClient:
            return RemotingClient(RequestTable((), unknown=self._take))

        self._client = self._runner.run(made())
        return self

    def __exit__(self, *_exception: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def _take(self, call: Call) -> None:
        self.told.append(call.command)

    def ask(
        self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b""
    ) -> Command:
        """Send a request and return its reply."""
        return self._runner.run(self._asked(code, fields, body))

    def ask_all(self, *requests: tuple[int, Mapping[str, object], bytes]) -> list[Command]:
        """Send requests at once, and return their replies in the order of the requests."""

        async def replies() -> list[Command]:
            return await asyncio.gather(*(self._asked(*one) for one in requests))

        return self._runner.run(replies())

    def _asked(
        self, code: int, fields: Mapping[str, object] | None, body: bytes
    ) -> Awaitable[Command]:
        texts = None if fields is None else {name: text_of(one) for name, one in fields.items()}
        request = Command(code, fields=texts, body=body)
        return self._client.ask(self._address, request, timeout_ms=PATIENCE_MS)

    def ask_while(
        self, request: tuple[int, Mapping[str, object], bytes], do: Callable[[], object]
    ) -> Command:
        """Send a request, do something once it was taken, and return its reply."""

        async def reply() -> Command:
            # Requests of a connection are handled in their order, also those that wait for a new
            # group: this pull, of the same group and no topic, is refused once the first was taken.
            requests = (request, (11, {**request[1], "topic": "-"}, b""))
            waiting, second = [asyncio.ensure_future(self._asked(*one)) for one in requests]
            await second
            await asyncio.get_running_loop().run_in_executor(None, do)
            return await waiting

        return self._runner.run(reply())
