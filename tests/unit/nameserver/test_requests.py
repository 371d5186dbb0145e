"""Requests to a name server: the recorded ones field by field, and what else can be asked."""

import json
import zlib

import pytest

from rocketstore.errors import FormatError
from rocketstore.format import registration
from rocketstore.format.metadata_json import (
    DataVersion,
    TopicConfig,
    TopicTable,
    decode_body,
    encode_body,
    loads,
)
from rocketstore.format.registration import (
    LARGEST_REGISTRATION,
    RegisterBrokerBody,
    unpack_registration,
)
from rocketstore.nameserver.bodies import SavedValues, TopicRoute, ValueTable
from rocketstore.nameserver.headers import (
    AddedReply,
    BrokerHeader,
    BrokerNameHeader,
    DataVersionReply,
    DeleteTopicHeader,
    KeyHeader,
    KeyValueHeader,
    NamespaceHeader,
    RegisterBrokerHeader,
    RegisterBrokerReply,
    RouteHeader,
    TopicHeader,
    ValueReply,
    WipedReply,
)
from rocketstore.nameserver.key_values import ORDER_TOPICS, KeyValues
from rocketstore.nameserver.requests import NameServer
from rocketstore.remoting import json_header
from rocketstore.remoting.codes import RequestCode, ResponseCode
from rocketstore.remoting.command import Command
from rocketstore.remoting.requests import Call, reply_header, request
from support.said import capture_logs
from support.wire import recorded

SYSTEM_TOPICS = {  # of a fresh broker: queues, permission
    "SCHEDULE_TOPIC_XXXX": (18, 6), "DefaultCluster_REPLY_TOPIC": (1, 6),
    "BenchmarkTest": (1024, 6), "OFFSET_MOVED_EVENT": (1, 6), "broker-a": (1, 7),
    "TBW102": (8, 7), "SELF_TEST_TOPIC": (1, 6), "DefaultCluster": (16, 7),
}  # fmt: skip
LATER_TOPICS = {"G1": (4, 6), "AutoT": (4, 6), "%RETRY%GG2": (1, 6), "%DLQ%GG2": (1, 6)}
ADDRESS = "127.0.0.1:10911"


class Client:
    address = "127.0.0.1:5"

    def __init__(self):
        self.reply = None

    def answer(self, request, size, reply):
        self.reply = reply


def asked(server, command, client=None):
    """Return the reply to a command, None if there is none."""
    client = client or Client()
    client.reply = None
    server.requests.process([Call(command, 1, client, 0)])
    return client.reply


def broker(name="broker-a", address=ADDRESS, broker_id=0, kind=RegisterBrokerHeader, **more):
    return kind(
        broker_name=name, broker_addr=address, cluster_name="DefaultCluster",
        broker_id=broker_id, **more,
    )  # fmt: skip


def table_of(topics, version=1):
    configs = {
        name: TopicConfig(
            topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm
        )
        for name, (queues, perm) in topics.items()
    }
    return TopicTable(DataVersion(version, 0), configs)


def register(server, topics, version=1, client=None, body=None, **more):
    data = encode_body(RegisterBrokerBody([], table_of(topics, version))) if body is None else body
    command = request(RequestCode.REGISTER_BROKER, broker(**more), data)
    return asked(server, command, client)


@pytest.fixture
def server():
    name_server = NameServer(clock=lambda: 0)
    assert register(name_server, SYSTEM_TOPICS).code == 0
    return name_server


def values_of(body, *, sorts):
    """Return a body as values; the order of a list of names is Java's, and means nothing."""
    found = loads(body) if body else None
    if sorts and found and "topicList" in found:
        found["topicList"].sort()
    return found


def test_recorded_requests_are_answered_as_the_genuine_name_server_did(server):
    pairs = recorded("name-server")
    assert len(pairs) == 13
    for pair in pairs:
        if pair["name"] == "route T1":
            register(server, SYSTEM_TOPICS | LATER_TOPICS, version=2)
        if pair["name"] == "topics by cluster":
            # These two came after this request.
            for topic in ("%RETRY%GG2", "%DLQ%GG2"):
                server.routes.delete_topic(DeleteTopicHeader(topic))
        if pair["name"] == "route retry":
            register(server, LATER_TOPICS, version=3)
        command = json_header.decode(json.dumps(pair["request_header"]).encode())
        command.body = bytes.fromhex(pair["request_body_hex"])
        found = asked(server, command)
        if pair.get("result") == "TIMEOUT":
            assert found is None, pair["name"]
            continue
        found.opaque = command.opaque
        assert json.loads(json_header.encode(found)) == pair["response_header"], pair["name"]
        genuine = pair["response_body_text"]
        if pair["name"] == "ns cfg":
            lines = set(found.body.decode().splitlines())
            assert {line.split("=")[0] for line in lines} <= {
                line.split("=")[0] for line in genuine.splitlines()
            }
            assert lines >= {"orderMessageEnable=false"}
            continue
        assert values_of(found.body, sorts=True) == values_of(genuine, sorts=True), pair["name"]


def test_bodies_are_written_with_bare_numbers_as_keys_and_read_either_way(server):
    found = asked(server, request(RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader("TBW102")))
    genuine = next(pair for pair in recorded("name-server") if pair["name"] == "route TBW102")
    assert found.body.decode() == genuine["response_body_text"]
    route = decode_body(found.body, TopicRoute)
    assert route.broker_datas[0].broker_addrs == {0: ADDRESS}
    assert decode_body(found.body.replace(b"{0:", b'{"0":'), TopicRoute) == route


@pytest.mark.parametrize(("version", "asks"), [(400, False), (400, True), (401, False)])
def test_a_route_is_strict_json_for_clients_of_4_9_4_and_those_that_ask_for_it(
    version, asks, server
):
    route = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader("TBW102", asks))
    route.version = version
    body = asked(server, route).body
    assert (b'{"brokerAddrs":{"0":' in body) is (asks or version > 400)
    assert decode_body(body, TopicRoute) == server.routes.route("TBW102")


def test_a_registration_is_answered_with_the_master_and_the_order_topics(server):
    found = register(server, {}, address="127.0.0.2:10911", broker_id=1)
    assert reply_header(found, RegisterBrokerReply) == RegisterBrokerReply(None, ADDRESS)
    assert found.body == b""
    register(server, SYSTEM_TOPICS, ha_server_addr="127.0.0.1:10912")
    values = KeyValueHeader(ORDER_TOPICS, "T", "broker-a:4")
    assert asked(server, request(RequestCode.PUT_KV_CONFIG, values)).code == 0
    found = register(server, {}, address="127.0.0.2:10911", broker_id=1)
    assert reply_header(found, RegisterBrokerReply).ha_server_addr == "127.0.0.1:10912"
    assert decode_body(found.body, ValueTable).table == {"T": "broker-a:4"}
    assert reply_header(register(server, SYSTEM_TOPICS), RegisterBrokerReply).master_addr is None


@pytest.mark.parametrize("change", [0, 1])
def test_the_checksum_of_a_registration_is_compared_if_there_is_one(server, change):
    bodies = (
        encode_body(RegisterBrokerBody([], table_of({"T": (1, 6)}, one))) for one in range(99)
    )
    body = next(one for one in bodies if zlib.crc32(one) > 0x7FFFFFFF)
    crc = (zlib.crc32(body) & 0x7FFFFFFF) + change
    found = register(server, {}, body=body, body_crc32=crc)
    assert (found.code, found.remark) == ((1, "crc32 not match") if change else (0, None))
    assert ("T" in server.routes.topics()) is not change


def packed(*parts):
    return zlib.compress(b"".join(parts))


def sized(data):
    return len(data).to_bytes(4, "big") + data


VERSION = sized(b'{"counter":7,"timestamp":1}')
TOPICS = (2).to_bytes(4, "big") + sized(b"T 8 4 6 SINGLE_TAG") + sized(b"U 1 1 2 MULTI_TAG")
FILTERS = sized(b'["f:1"]')


def test_a_packed_registration_is_unpacked(server):
    found = register(server, {}, body=packed(VERSION, TOPICS, FILTERS), compressed=True)
    assert found.code == 0
    route = server.routes.route("T")
    [queue] = route.queue_datas
    assert (queue.read_queue_nums, queue.write_queue_nums, queue.perm) == (8, 4, 6)
    assert route.filter_server_table == {ADDRESS: ["f:1"]}
    assert server.routes.version_of(ADDRESS) == DataVersion(7, 1)
    table = unpack_registration(packed(VERSION, TOPICS, FILTERS)).topic_config_serialize_wrapper
    assert table.topic_config_table["U"].topic_filter_type == "MULTI_TAG"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"no zlib", packed(VERSION, TOPICS, FILTERS)[:-3], packed(b""), packed(VERSION),
        packed(VERSION, TOPICS), packed(VERSION, TOPICS, FILTERS[:-1]),
        packed(VERSION, b"\xff\xff\xff\xff", FILTERS), packed(b"\x7f\xff\xff\xff", VERSION),
        packed(VERSION, (1).to_bytes(4, "big"), sized(b"T 8 4 6"), FILTERS),
        packed(VERSION, (1).to_bytes(4, "big"), sized(b"T x 4 6 S"), FILTERS),
        packed(VERSION, (1).to_bytes(4, "big"), sized(b"\xff 8 4 6 S"), FILTERS),
        packed(VERSION, TOPICS, sized(b"{}")), packed(sized(b"[]"), TOPICS, FILTERS),
    ],
)  # fmt: skip
def test_a_packed_registration_that_lies_is_refused_and_changes_nothing(server, body):
    with pytest.raises(FormatError):
        unpack_registration(body)
    if body:
        before = server.routes.topics()
        assert register(server, {}, body=body, compressed=True).code == 1
        assert server.routes.topics() == before


def test_what_a_registration_inflates_to_is_bounded(monkeypatch):
    assert LARGEST_REGISTRATION == 64 * 1024 * 1024
    monkeypatch.setattr(registration, "LARGEST_REGISTRATION", 1000)
    with pytest.raises(FormatError, match="no end within 1000 inflated bytes"):
        unpack_registration(packed(sized(b"x" * 1_000_000)))


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"\xff", b'{"topicConfigSerializeWrapper":7}', b'{"filterServerList":{}}',
     b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"x"}}}}',
     b'{"a":' + b"[" * 100_000],
    ids=lambda body: str(body[:40]),
)  # fmt: skip
def test_a_registration_that_is_no_json_of_its_kind_is_answered_with_code_1(server, body):
    found = register(server, {}, body=body)
    assert found.code == ResponseCode.SYSTEM_ERROR
    assert server.routes.topics() == list(SYSTEM_TOPICS)


def test_a_broker_of_long_ago_sends_its_topics_alone():
    server = NameServer()
    command = request(RequestCode.REGISTER_BROKER, broker(), encode_body(table_of({"T": (4, 6)})))
    command.version = 36
    assert asked(server, command).code == 0
    assert server.routes.topics() == ["T"]


def test_a_registration_without_a_body_has_no_topics():
    server = NameServer()
    assert register(server, {}, body=b"").code == 0
    assert server.routes.version_of(ADDRESS) == DataVersion(0, 0)


def test_a_broker_asks_whether_it_should_register():
    now = [0]
    server = NameServer(clock=lambda: now[0])

    def query(version):
        header = broker(kind=BrokerHeader)
        body = encode_body(DataVersion(version, 0))
        found = asked(server, request(RequestCode.QUERY_DATA_VERSION, header, body))
        return reply_header(found, DataVersionReply).changed, found.body

    assert query(1) == (True, b"")
    register(server, SYSTEM_TOPICS)
    now[0] = 120_000
    assert query(2) == (True, b'{"counter":1,"timestamp":0}')
    assert query(1) == (False, b'{"counter":1,"timestamp":0}')
    assert server.routes.expire(240_000) == []
    assert server.routes.expire(240_001) == [ADDRESS]


def test_a_broker_unregisters_or_its_connection_ends(server):
    found = asked(server, request(RequestCode.UNREGISTER_BROKER, broker(kind=BrokerHeader)))
    assert found.code == 0
    assert server.routes.topics() == []
    client = Client()
    register(server, SYSTEM_TOPICS, client=client)
    server.requests.disconnected(client)
    assert server.routes.topics() == []


def test_the_write_permission_of_a_broker_is_taken_and_given(server):
    header = BrokerNameHeader("broker-a")
    found = asked(server, request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header))
    assert reply_header(found, WipedReply) == WipedReply(8)
    assert server.routes.route("TBW102").queue_datas[0].perm == 5
    found = asked(server, request(RequestCode.ADD_WRITE_PERM_OF_BROKER, header))
    assert reply_header(found, AddedReply) == AddedReply(8)
    assert server.routes.route("TBW102").queue_datas[0].perm == 6


def test_values_are_kept_asked_and_deleted():
    kept = []
    server = NameServer(KeyValues(keep=kept.append))
    for key, value in {"x": "x1", "y": ""}.items():
        asked(server, request(RequestCode.PUT_KV_CONFIG, KeyValueHeader("ns", key, value)))
        found = asked(server, request(RequestCode.GET_KV_CONFIG, KeyHeader("ns", key)))
        assert (found.code, reply_header(found, ValueReply).value) == (0, value)
    found = asked(server, request(RequestCode.GET_KVLIST_BY_NAMESPACE, NamespaceHeader("ns")))
    assert loads(found.body) == {"table": {"x": "x1", "y": ""}}
    asked(server, request(RequestCode.DELETE_KV_CONFIG, KeyHeader("ns", "x")))
    asked(server, request(RequestCode.DELETE_KV_CONFIG, KeyHeader("ns", "x")))
    assert len(kept) == 3
    again = NameServer(KeyValues(decode_body(kept[-1].encode(), SavedValues)))
    assert again.values.namespace("ns") == {"y": ""}
    found = asked(again, request(RequestCode.GET_KVLIST_BY_NAMESPACE, NamespaceHeader("none")))
    assert (found.code, found.remark) == (22, "No config item, Namespace: none")


def test_a_value_that_cannot_be_kept_is_not_set(caplog):
    def fail(text):
        raise OSError(28, "no room")

    server = NameServer(KeyValues(keep=fail))
    found = asked(server, request(RequestCode.PUT_KV_CONFIG, KeyValueHeader("ns", "x", "1")))
    assert (found.code, found.remark) == (1, "OSError: [Errno 28] no room")
    assert server.values.namespace("ns") is None


def test_order_topics_are_sent_with_their_route_if_that_is_on(server):
    values = KeyValueHeader(ORDER_TOPICS, "TBW102", "broker-a:8")
    asked(server, request(RequestCode.PUT_KV_CONFIG, values))
    ask = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader("TBW102"))
    assert b"orderTopicConf" not in asked(server, ask).body
    change = request(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\n")
    assert asked(server, change).code == 0
    assert loads(asked(server, ask).body)["orderTopicConf"] == "broker-a:8"
    assert b"orderMessageEnable=true\n" in asked(server, Command(319)).body


def test_what_cannot_change_while_it_runs_is_refused():
    server = NameServer(settings={"listenPort": "9876"})
    wanted = b"listenPort=1\nkvConfigPath=x\norderMessageEnable=true\n"
    found = asked(server, request(RequestCode.UPDATE_NAMESRV_CONFIG, body=wanted))
    assert (found.code, found.remark) == (
        16, "Can not update config in black list: kvConfigPath, listenPort",
    )  # fmt: skip
    assert asked(server, Command(RequestCode.GET_NAMESRV_CONFIG)).body == (
        b"listenPort=9876\norderMessageEnable=false\n"
    )


def test_units_and_topics_are_listed_and_deleted(server):
    register(server, {}, body=encode_body(RegisterBrokerBody([], TopicTable(DataVersion(5, 0), {
        "unit": TopicConfig(topic_name="unit", topic_sys_flag=1),
        "sub": TopicConfig(topic_name="sub", topic_sys_flag=2),
    }))))  # fmt: skip
    lists = {
        code: loads(asked(server, Command(code)).body)["topicList"] for code in range(311, 314)
    }
    assert lists == {311: ["unit"], 312: ["sub"], 313: ["sub"]}
    asked(server, request(RequestCode.DELETE_TOPIC_IN_NAMESRV, TopicHeader("unit")))
    assert loads(asked(server, Command(311)).body) == {"topicList": []}


@pytest.mark.parametrize("code", [9999, -1, 10, 34, 0])
def test_a_code_that_no_name_server_knows_is_logged_and_gets_no_reply(server, code):
    with capture_logs() as logs:
        assert asked(server, Command(code)) is None
    assert [(one["event"], one["code"]) for one in logs] == [("request.refused", code)]


@pytest.mark.parametrize("code", sorted(NameServer().requests.rows))
def test_a_request_without_its_fields_is_answered_and_not_believed(server, code):
    found = asked(server, Command(code))
    header = server.requests.rows[code].header
    needs = header.__struct_encode_fields__ or code == RequestCode.QUERY_DATA_VERSION
    assert found.code == (1 if needs else 0)
    if header.__struct_encode_fields__:
        assert "the custom field <" in found.remark
