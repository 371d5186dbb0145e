"""A host name whose only address is of IPv6 is one like any other, wherever something listens."""

import socket
from collections.abc import Callable
from typing import Any

import pytest

from rocketstore import MessageStore, StoreConfig
from rocketstore.addresses import listening_host
from rocketstore.config.sources import store_host
from rocketstore.metrics.http_server import MetricsServer
from support.patience import wait_until
from support.replicas import open_slave

NAME = "six.example"


@pytest.fixture(autouse=True)
def _known(monkeypatch):
    asked: Callable[..., Any] = socket.getaddrinfo

    def answer(host: str, *rest: Any, **more: Any) -> Any:
        return asked("::1" if host == NAME else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", answer)


def test_a_broker_tells_the_name_and_records_have_its_number():
    assert (listening_host(NAME), store_host(NAME, 10911)) == (NAME, "[::1]:10911")


@pytest.mark.parametrize("host", [NAME, "[::1]"])
def test_slaves_and_scrapes_are_listened_for(tmp_path, host):
    config = StoreConfig.small(ha_listen_address=host, ha_listen_port=0)
    with MessageStore.open(tmp_path / "master", config) as store:
        assert store.replication.address[0] == "::1"
        with open_slave(tmp_path / "slave", f"{host}:{store.replication.address[1]}"):
            wait_until(lambda: store.replication.followers)
    server = MetricsServer((host, 0), lambda *_of_request: ())
    assert server.listener.getsockname()[0] == "::1"
    server.close()
