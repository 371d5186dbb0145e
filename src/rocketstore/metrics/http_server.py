"""The HTTP server of the metrics: an event loop on one thread, asleep until a peer connects.

Law: no peer keeps another one from its answer. A request has `REQUEST_TIMEOUT_S` as a whole. With
more than `MOST_PEERS` peers the oldest is closed. None is given a thread, which the system might
refuse. Where there is no descriptor left, accepting pauses for a second.

asyncio accepts, sends and pauses; wsgiref reads the request and writes the answer. The limits are
ours: no maintained server has them (docs/decisions/0038-services-start-with-the-store.md).
"""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any, Final, cast
from wsgiref.simple_server import WSGIRequestHandler

from rocketstore.addresses import listener, resolved
from rocketstore.events import get_logger

REQUEST_TIMEOUT_S: Final = 10.0
"""Longest time for a request and its answer: Prometheus itself gives up after 10 s."""

MOST_PEERS: Final = 64
"""Connections at once; each costs a descriptor."""

_BACKLOG: Final = 16
_TURNS_TO_ACCEPT: Final = 8  # of the loop; asyncio takes three or four

_log: Final = get_logger(__name__)


class MetricsServer:
    """Answers on the thread that calls `serve`, until `wake`; listens as soon as it is made."""

    def __init__(
        self, address: tuple[str, int], application: Callable[..., Iterable[bytes]]
    ) -> None:
        self.get_app = lambda: application
        self.base_environ = {"SERVER_NAME": address[0], "SERVER_PORT": str(address[1])}
        self._peers: list[asyncio.WriteTransport] = []
        self._is_over, self._over = False, asyncio.Event()
        self._said = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.listener = listener(*resolved(address[0]), address[1], _BACKLOG)

    def serve(self) -> None:
        """Answer requests; after an error it can be called again, and has another loop then."""
        self._peers.clear()
        if self._loop is not None:  # it failed: a peer that it was accepting waits until this
            gc.collect()
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            self._loop = runner.get_loop()
            runner.run(self._serve())

    def wake(self) -> None:
        """End `serve`; answers that are on their way are cut."""
        self._is_over = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._over.set)

    def close(self) -> None:
        """Free the port, after `serve`."""
        self.listener.close()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._note)
        self._over = asyncio.Event()
        if self._is_over:
            return
        try:  # a peer may be there, and an error come, before this has started
            await asyncio.start_server(self._talk, sock=self.listener, backlog=_BACKLOG)
            await self._over.wait()
        finally:
            loop.remove_reader(self.listener)
            for _ in range(_TURNS_TO_ACCEPT):  # those being accepted are peers by then
                await asyncio.sleep(0)
            for transport in self._peers:
                transport.abort()
            for _ in range(_TURNS_TO_ACCEPT):
                await asyncio.sleep(0)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers, transport = self._peers, writer.transport
        if len(peers) >= MOST_PEERS:
            peers.pop(0).abort()
        peers.append(transport)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request: Any = await reader.readuntil(b"\r\n\r\n")
                writer.write(_Request(request, ("", 0), cast("Any", self)).wfile.getvalue())
                writer.close()
                await writer.wait_closed()
                self._said = ""
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass  # it went away, was too slow, or sends something else
        finally:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                transport.abort()
            if transport in peers:
                peers.remove(transport)

    def _note(self, _loop: object, context: dict[str, Any]) -> None:
        """Log what asyncio reports, once until the next answer goes out."""
        said = f"{context['message']}: {context.get('exception')}"
        if said != self._said:
            self._said = said
            _log.warning("metrics.failed", error=said)


class _Request(WSGIRequestHandler):
    """A request that has come in, and, once this is made, its answer in `wfile`."""

    wfile: BytesIO

    def setup(self) -> None:
        """Take the bytes in place of a socket."""
        self.rfile, self.wfile = BytesIO(self.request), BytesIO()

    def finish(self) -> None:
        """Leave the answer where it is."""

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - its name there
        """Log nothing: a request every few seconds is no event."""
