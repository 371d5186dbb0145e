"""registrations, packed or as JSON: any bytes are topics of a broker, or a FormatError."""

import zlib

from hypothesis import strategies as st

from rocketstore.errors import FormatError
from rocketstore.format.metadata_json import TopicTable, decode_body, encode_body
from rocketstore.format.registration import RegisterBrokerBody, unpack_registration
from rocketstore.nameserver.headers import RegisterBrokerHeader
from rocketstore.nameserver.routes import RouteTable

JSON = (
    b'{"filterServerList":["f:1"],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,'
    b'"timestamp":5},"topicConfigTable":{"T":{"order":false,"perm":6,"readQueueNums":4,'
    b'"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":4}}}}'
)
PACKED = (
    b'\0\0\0\x1b{"counter":7,"timestamp":1}\0\0\0\x02\0\0\0\x12T 8 4 6 SINGLE_TAG'
    b"\0\0\0\x12U 1 1 2 MULTI_TAGS\0\0\0\x02[]"
)
GOLDEN = (JSON, PACKED, zlib.compress(PACKED))
HEADER = RegisterBrokerHeader(broker_name="b", broker_addr="h:1", cluster_name="c", broker_id=0)
ANY = st.binary(max_size=100)


def check(data: bytes) -> None:
    """Read as JSON, as a packed form, and as what a packed form inflates to; believe it."""
    for read in (
        lambda: decode_body(data, RegisterBrokerBody),
        lambda: unpack_registration(data),
        lambda: unpack_registration(zlib.compress(data)),
    ):
        try:
            found = read()
        except FormatError as error:
            str(error)
            continue
        check_believed(found)


def check_believed(found: RegisterBrokerBody) -> None:
    table = found.topic_config_serialize_wrapper or TopicTable()
    routes = RouteTable()
    routes.register(HEADER, found, "channel", 0)
    names = {one.topic_name for one in table.topic_config_table.values()}
    assert set(routes.topics()) == names
    for name in names:
        route = routes.route(name)
        assert route is not None
        encode_body(route)
    assert routes.expire(200_000) == ["h:1"]
    assert routes.topics() == []


def test_packed_registrations_are_topics():
    table = unpack_registration(GOLDEN[-1]).topic_config_serialize_wrapper
    assert table is not None
    assert table.topic_config_table.keys() == {"T", "U"}
