"""The HTTP endpoint for Prometheus: ``metricsPort``, off unless set, on loopback by default.

Law: a request changes nothing. Closing the store frees the port; a forked child does so at once.
The modules for serving are imported when a port is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rocketstore.errors import RocketStoreError, SystemRefusedError, UnsupportedEnvironmentError
from rocketstore.events import get_logger
from rocketstore.storage.attached import Service
from rocketstore.storage.threads import ServiceThread

if TYPE_CHECKING:
    from rocketstore.config import StoreConfig
    from rocketstore.metrics.http_server import MetricsServer
    from rocketstore.storage.store import BaseStore

PATHS: Final = ("/metrics", "/metrics/exporter")

_log: Final = get_logger(__name__)


class MetricsService(Service):
    """Serves the numbers of a store over HTTP while it is open."""

    name = "metrics"

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._server: MetricsServer | None = None
        self._thread: ServiceThread | None = None

    @property
    def port(self) -> int | None:
        """The port it listens on, None while it does not."""
        return None if self._server is None else int(self._server.listener.getsockname()[1])

    def start(self) -> None:
        """Listen, if ``metricsPort`` says where; raises what `metrics_server` raises."""
        if not self._store.config.metrics_port:
            return
        from rocketstore.metrics.exporter import exporter_metrics  # noqa: PLC0415 - when served

        exported = partial(exporter_metrics, self._store)
        told = {PATHS[0]: self._store.observation.metrics, PATHS[1]: exported}
        server = self._server = metrics_server(self._store.config, told)
        self._thread = ServiceThread("rocketstore-metrics", server.serve, server.wake)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; answers that are on their way are cut."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None
        if self._server is not None:
            self._server.close()
            self._server = None

    def forget(self, _error: RocketStoreError) -> None:
        """Close a forked child's copy of the port: no thread there would answer."""
        if self._server is not None:
            self._server.listener.close()


def metrics_server(config: StoreConfig, told: Mapping[str, Any]) -> MetricsServer:
    """Return a server that listens, and has the numbers that are told at each path.

    `UnsupportedEnvironmentError` says that prometheus-client is not installed, `SystemRefusedError`
    that the port is in use, or the address not one of this machine.
    """
    host, port = config.metrics_host, config.metrics_port
    application = _application(told, port)
    from rocketstore.metrics.http_server import MetricsServer  # noqa: PLC0415 - slow to import

    try:
        return MetricsServer((host, port), application)
    except OSError as error:
        raise SystemRefusedError(
            f"cannot serve metrics on {host}:{port}: {error.strerror or error}",
            code=error.errno,
            hint="set another metricsPort or metricsHost; metricsPort=0 serves none",
        ) from error


def _application(told: Mapping[str, Any], port: int) -> Callable[..., Iterable[bytes]]:
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app  # noqa: PLC0415

        from rocketstore.metrics.families import Families  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UnsupportedEnvironmentError.not_installed(
            "prometheus_client", "metrics", f", or set metricsPort=0 (it is {port})"
        ) from error
    pages = {}
    for path, metrics in told.items():
        registry = CollectorRegistry()
        registry.register(Families(metrics))
        pages[path] = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if (page := pages.get(environ["PATH_INFO"].rstrip("/"))) is None:
            return _plain(start_response, "404 Not Found", f"ask for {' or '.join(PATHS)}")
        try:
            body: Iterable[bytes] = page(environ, start_response)
        except RocketStoreError as error:  # it is being closed, say
            return _plain(start_response, "503 Service Unavailable", str(error))
        except Exception:  # noqa: BLE001 - one bad answer does not end the service
            _log.exception("metrics.failed", path=environ["PATH_INFO"])
            return _plain(start_response, "500 Internal Server Error", "see the store's log")
        return body

    return answer


def _plain(start_response: Any, status: str, text: str) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]
