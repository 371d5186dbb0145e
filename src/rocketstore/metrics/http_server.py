"""A small HTTP server for one WSGI application, which sleeps until somebody connects.

Law: an idle one never wakes up. A peer that sends nothing, or reads nothing, holds a thread of its
own for `REQUEST_TIMEOUT_S` and nothing else, and there are no more than `MAX_REQUESTS` of them.
"""

from __future__ import annotations

import selectors
import socket
import threading
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from rocketstore.events import get_logger

REQUEST_TIMEOUT_S: Final = 10.0
"""Longest silence of a peer: Prometheus gives a scrape up itself after 10 s."""

MAX_REQUESTS: Final = 16
"""Requests answered at once; more are refused, so that nobody makes threads without end."""

_log: Final = get_logger(__name__)


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Answers each request on a thread of its own; `wait_and_answer` is its loop's turn."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_REQUESTS
    timeout = 0

    def __init__(self, address: tuple[str, int]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._slots = threading.BoundedSemaphore(MAX_REQUESTS)
        self._ready = selectors.DefaultSelector()
        self._wakes, self._woken = socket.socketpair()
        self._ready.register(self._woken, selectors.EVENT_READ)
        super().__init__(address, _Handler)
        self._ready.register(self, selectors.EVENT_READ)

    def wake(self) -> None:
        """End the wait for a request."""
        self._wakes.send(b"\0")

    def wait_and_answer(self) -> None:
        """Wait for a request, or to be woken, and answer it on a thread of its own."""
        self._ready.select()
        self.handle_request()

    def server_close(self) -> None:
        """Free the port."""
        super().server_close()
        self._ready.close()
        self._wakes.close()
        self._woken.close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread, unless too many do."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log it: a peer that went away is no reason to write on somebody's stderr."""
        _log.warning("metrics.request_failed", peer=str(client_address), exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - its name there
        """Say nothing: a request every few seconds is no event."""
