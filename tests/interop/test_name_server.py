"""A genuine broker and client with our name server, and our client with a genuine one."""

import zlib
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from rocketstore.broker.settings import BrokerSettings
from rocketstore.broker.testing import Broker
from rocketstore.config.sources import BROKER_KEYS, KEYS_WITHOUT_EFFECT
from rocketstore.config.store_config import FIELD_OF_KEY
from rocketstore.errors import RemotingError
from rocketstore.format.metadata_json import (
    DataVersion,
    TopicConfig,
    TopicTable,
    decode_body,
    encode_body,
    loads,
)
from rocketstore.format.registration import RegisterBrokerBody
from rocketstore.nameserver.bodies import TopicRoute
from rocketstore.nameserver.headers import (
    BrokerHeader,
    BrokerNameHeader,
    ClusterHeader,
    DeleteTopicHeader,
    KeyHeader,
    KeyValueHeader,
    NamespaceHeader,
    RegisterBrokerHeader,
    RouteHeader,
    TopicHeader,
)
from rocketstore.nameserver.key_values import ORDER_TOPICS
from rocketstore.remoting.codes import RequestCode, ResponseCode
from rocketstore.remoting.command import Command, HeaderKind
from rocketstore.remoting.requests import request
from support.genuine_broker import GenuineBroker, genuine_class_path
from support.java_store import require_java
from support.name_server import ask, name_server
from support.patience import wait_until

pytestmark = [pytest.mark.java]

MASTER, SLAVE = "127.0.0.1:20911", "127.0.0.1:20921"


@pytest.fixture(scope="module")
def genuine():
    require_java(genuine_class_path)
    with GenuineBroker() as started:
        yield started


def route_of(name_server: str, topic: str) -> TopicRoute | None:
    found = ask(name_server, request(RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader(topic)))
    if found.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    return decode_body(found.body, TopicRoute)


@pytest.mark.parametrize("is_packed", ["false", "true"])
def test_a_genuine_broker_registers_with_ours_and_a_genuine_client_sends(genuine, is_packed):
    settings = {
        "brokerName": "genuine",
        "brokerClusterName": "ours",
        "compressedRegister": is_packed,
    }
    with name_server() as ours:
        address = genuine.start_broker(ours, **settings)
        route = route_of(ours, "TBW102")
        assert route is not None
        [broker] = route.broker_datas
        assert (broker.broker_name, broker.cluster) == ("genuine", "ours")
        assert broker.broker_addrs == {0: address}
        topic = f"orders-{is_packed}"
        assert genuine.send(ours, topic, "1", "2", "3") == ["SEND_OK genuine"] * 3
        # The broker tells of a topic that a message made without waiting for an answer.
        wait_until(lambda: route_of(ours, topic) is not None, "the topic is registered")
        route = route_of(ours, topic)
        assert route is not None
        [queues] = route.queue_datas
        assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (4, 4, 6)
        genuine.stop_broker()
        wait_until(lambda: route_of(ours, "TBW102") is None, "the broker unregisters")


@pytest.mark.parametrize("is_packed", [False, True])
def test_our_broker_registers_with_a_genuine_name_server(genuine, *, is_packed):
    theirs = genuine.start_name_server()
    with (
        Broker(namesrv_addr=theirs, broker_name="a", compressed_register=is_packed) as one,
        Broker(namesrv_addr=theirs, broker_name="b", compressed_register=is_packed) as other,
    ):
        one.make_topic("orders", 3)
        other.make_topic("orders", 5)
        # Neither waits for more than 2 s until it knows.
        wait_until(lambda: (found := route_of(theirs, "orders")) and len(found.queue_datas) == 2)
        route = route_of(theirs, "orders")
        assert route is not None
        addresses = {data.broker_name: data.broker_addrs for data in route.broker_datas}
        assert addresses == {"a": {0: one.address}, "b": {0: other.address}}
        queues = {data.broker_name: data.read_queue_nums for data in route.queue_datas}
        assert queues == {"a": 3, "b": 5}
        assert set(genuine.send(theirs, "orders", *map(str, range(16)))) == {
            "SEND_OK a", "SEND_OK b",
        }  # fmt: skip
    wait_until(lambda: route_of(theirs, "orders") is None, "they unregister")


def test_every_key_of_a_genuine_broker_is_known(genuine):
    keys = genuine.keys()
    assert len(keys) > 170
    known = FIELD_OF_KEY.keys() | BROKER_KEYS | KEYS_WITHOUT_EFFECT
    assert keys - known == set()
    assert set(BrokerSettings.__struct_encode_fields__) - keys == {"namesrvPort"}


def registration(address: str, broker_id: int, *, version: int, kind: HeaderKind) -> Command:
    topics = {
        "orders": TopicConfig(topic_name="orders", read_queue_nums=4, write_queue_nums=4, perm=7),
        "unit": TopicConfig(topic_name="unit", topic_sys_flag=1),
        "sub": TopicConfig(topic_name="sub", topic_sys_flag=2),
    }
    body = encode_body(RegisterBrokerBody([], TopicTable(DataVersion(version, 5), topics)))
    header = RegisterBrokerHeader(
        broker_name="python", broker_addr=address, cluster_name="c", broker_id=broker_id,
        ha_server_addr="127.0.0.1:20912", body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
    )  # fmt: skip
    command = request(RequestCode.REGISTER_BROKER, header, body)
    command.kind = kind
    return command


def script() -> Iterator[Command]:
    """Yield what a broker, clients and an administrator ask, one after the other."""
    code = RequestCode
    broker = BrokerHeader(broker_name="python", broker_addr=MASTER, cluster_name="c", broker_id=0)
    query = encode_body(DataVersion(1, 5)), encode_body(DataVersion(2, 5))
    lists = (
        code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        code.GET_BROKER_CLUSTER_INFO, code.GET_UNIT_TOPIC_LIST, code.GET_HAS_UNIT_SUB_TOPIC_LIST,
        code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    )  # fmt: skip
    route = request(code.GET_ROUTEINFO_BY_TOPIC, TopicHeader("orders"))
    yield request(code.QUERY_DATA_VERSION, broker, query[0])
    yield registration(MASTER, 0, version=1, kind=HeaderKind.JSON)
    yield registration(SLAVE, 1, version=1, kind=HeaderKind.ROCKETMQ)
    yield from (request(code.QUERY_DATA_VERSION, broker, one) for one in query)
    yield from (route, *(Command(one) for one in lists))
    yield request(
        code.GET_ROUTEINFO_BY_TOPIC, RouteHeader("orders", accept_standard_json_only=True)
    )
    yield replace(route, version=401)
    yield from (request(code.GET_TOPICS_BY_CLUSTER, ClusterHeader(name)) for name in "cd")
    yield request(code.WIPE_WRITE_PERM_OF_BROKER, BrokerNameHeader("python"))
    yield route
    yield request(code.ADD_WRITE_PERM_OF_BROKER, BrokerNameHeader("python"))
    yield route
    yield request(code.PUT_KV_CONFIG, KeyValueHeader(ORDER_TOPICS, "orders", "python:4"))
    yield request(code.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\n")
    yield registration(SLAVE, 1, version=1, kind=HeaderKind.JSON)
    yield route
    yield request(code.GET_KV_CONFIG, KeyHeader(ORDER_TOPICS, "orders"))
    yield request(code.GET_KV_CONFIG, KeyHeader(ORDER_TOPICS, "none"))
    yield request(code.GET_KVLIST_BY_NAMESPACE, NamespaceHeader(ORDER_TOPICS))
    yield request(code.GET_KVLIST_BY_NAMESPACE, NamespaceHeader("none"))
    yield request(code.DELETE_KV_CONFIG, KeyHeader(ORDER_TOPICS, "orders"))
    for cluster in ("none", "c"):
        yield request(code.DELETE_TOPIC_IN_NAMESRV, DeleteTopicHeader("orders", cluster))
        yield route
    yield request(code.DELETE_TOPIC_IN_NAMESRV, DeleteTopicHeader("unit"))
    yield Command(lists[0])
    yield registration(MASTER, 0, version=2, kind=HeaderKind.JSON)
    yield route
    yield request(code.UNREGISTER_BROKER, broker)
    yield route


def said(name_server: str, command: Command) -> tuple[object, ...]:
    """Return a reply as values; the order of names in a list is Java's."""
    found = ask(name_server, command)
    body = loads(found.body) if found.body else None
    if body and "topicList" in body:
        body["topicList"].sort()
    return found.code, found.remark, found.fields, body, b"{0:" in found.body


def test_a_genuine_name_server_and_ours_answer_our_client_alike(genuine):
    theirs = genuine.start_name_server()
    with name_server() as ours:
        for command in script():
            assert said(ours, command) == said(theirs, command), command
        for unknown in (9999, 34):
            for each in (ours, theirs):
                with pytest.raises(RemotingError, match="did not answer"):
                    ask(each, Command(unknown), timeout_s=0.3)
