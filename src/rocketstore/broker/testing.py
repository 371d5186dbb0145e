"""A broker in a test: a store of a few MB in a temporary directory, and a port that is free.

Page: docs/guide/testing.md.

>>> with Broker() as broker:  # doctest: +SKIP
...     client = SomeClient(broker.name_server)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from rocketstore.arguments import checked, nearest
from rocketstore.broker.service import BrokerService
from rocketstore.broker.settings import BrokerSettings
from rocketstore.config import StoreConfig
from rocketstore.errors import ConfigError, RemotingError
from rocketstore.message_store import MessageStore

TRIES: Final = 5
"""How often a port is chosen: another process may take the one that was free."""

SEND_WAIT_MS: Final = 5_000
"""How long a send may wait before it is refused, unless settings say so: 4.9's 200 ms are soon over
where tests keep all processors busy."""


class Broker:
    """A broker of its own, with a name server inside; a context manager.

    Parameters
    ----------
    path
        Directory of the store; unset, a temporary one, which goes at the end.
    config
        Settings of the store; unset, small files.
    settings
        Fields of `BrokerSettings`. Unset, ports are free ones, and sends may wait `SEND_WAIT_MS`.

    Attributes
    ----------
    store
        The open store: a test looks there at what clients sent.
    name_server, address
        ``host:port`` of the name server, to hand to a client, and of the broker.
    """

    store: MessageStore
    name_server: str
    address: str

    @checked
    def __init__(
        self, path: Path | str | None = None, config: StoreConfig | None = None, **settings: Any
    ) -> None:
        if unknown := [one for one in settings if one not in BrokerSettings.__struct_fields__]:
            near = nearest(unknown[0], BrokerSettings.__struct_fields__)
            hint = f"did you mean {near}?" if near else "see the fields of BrokerSettings"
            if unknown[0] in StoreConfig.__struct_fields__:
                hint = f"it is one of the store: config=StoreConfig.small({unknown[0]}=…)"
            raise ConfigError(f"{unknown[0]} is no setting of a broker", key=unknown[0], hint=hint)
        self._path = None if path is None else Path(path)
        self._config = StoreConfig.small() if config is None else StoreConfig.of(config)
        free = {"broker_name": "broker-a", "listen_port": 0, "namesrv_port": 0}
        self._wanted = {**free, "wait_time_mills_in_send_queue": SEND_WAIT_MS, **settings}
        self._temporary: Path | None = None
        self._service: BrokerService | None = None
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        if self._service is not None:
            raise RemotingError(
                f"this broker runs already, at {self.address}", hint="make another: Broker()"
            )
        if self._path is None:
            self._path = self._temporary = Path(tempfile.mkdtemp(prefix="rocketstore-broker-"))
        try:
            for _ in range(TRIES - 1):
                with contextlib.suppress(RemotingError):
                    return self._opened(self._path)
            return self._opened(self._path)
        except BaseException:
            self._remove()
            raise

    def _opened(self, path: Path) -> Self:
        settings = BrokerSettings(**self._wanted)
        config = msgspec.structs.replace(self._config, store_host=settings.store_host)
        make = BrokerService.with_settings(settings)
        self.store = MessageStore.open(path, config, services=[make])
        self._service = service = self.store.attached[BrokerService.name]
        self.address, self.name_server = settings.address, service.name_server
        return self

    def make_topic(self, topic: str, queue_count: int = 4) -> None:
        """Make a topic, which the next client that looks for it finds; see `BrokerService`."""
        if self._service is None:
            raise RemotingError("this broker does not run", hint="enter it: with Broker() as …")
        self._service.make_topic(topic, queue_count)

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the broker and its store; a second call does nothing, nor one before it began."""
        try:
            if self._service is not None:
                self.store.close()
                self._service = None
        finally:
            self._remove()

    def _remove(self) -> None:
        if self._temporary is not None and os.getpid() == self._pid:  # and not in a forked child
            shutil.rmtree(self._temporary, ignore_errors=True)
