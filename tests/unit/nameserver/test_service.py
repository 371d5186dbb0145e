"""A name server that listens: brokers that go, by silence or with their connection."""

import asyncio

import pytest

from rocketstore.errors import RemotingError
from rocketstore.format.metadata_json import TopicConfig, TopicTable, encode_body
from rocketstore.format.registration import RegisterBrokerBody
from rocketstore.nameserver import service
from rocketstore.nameserver.headers import RegisterBrokerHeader, TopicHeader
from rocketstore.remoting.client import RemotingClient
from rocketstore.remoting.codes import RequestCode
from rocketstore.remoting.requests import request

BODY = RegisterBrokerBody([], TopicTable(None, {"T": TopicConfig(topic_name="T")}))
HEADER = RegisterBrokerHeader(broker_name="a", broker_addr="h:1", cluster_name="c", broker_id=0)
ROUTE = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader("T"))


async def until_gone(client, address):
    while (await client.ask(address, ROUTE)).code == 0:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.001)


async def register(client, address):
    found = await client.ask(
        address, request(RequestCode.REGISTER_BROKER, HEADER, encode_body(BODY))
    )
    assert found.code == 0
    assert (await client.ask(address, ROUTE)).code == 0


async def test_a_broker_that_is_silent_for_120_s_has_no_routes(monkeypatch, caplog):
    monkeypatch.setattr(service, "SCAN_S", 0.001)
    now = [0]
    async with service.serving(port=0, clock=lambda: now[0]) as server, RemotingClient() as one:
        address = "{}:{}".format(*server.address)
        await register(one, address)
        now[0] = 60_000
        await one.ask(address, ROUTE)  # its connection is not idle
        now[0] = 120_001
        await until_gone(one, address)
        assert "broker.silent address=h:1" in caplog.text
        await register(one, address)


async def test_a_broker_whose_connection_ends_has_no_routes():
    async with service.serving(port=0) as server, RemotingClient() as client:
        address = "{}:{}".format(*server.address)
        async with RemotingClient() as broker:
            await register(broker, address)
            assert (await client.ask(address, ROUTE)).code == 0
        await until_gone(client, address)


async def test_an_address_that_is_taken_is_an_error():
    async with service.serving(port=0) as server:
        with pytest.raises(RemotingError, match="cannot listen"):
            async with service.serving(port=server.address[1]):
                pass
