"""Bodies of requests and replies: fastjson's JSON, and the packed form of a registration.

Fields stand in alphabetical order, which is fastjson's.

Law: what is inflated is bounded, and no length is used before it is compared with what remains.
How derived: RemotingSerializable and RegisterBrokerBody of 4.9.8.
"""

from __future__ import annotations

import io
import zlib
from typing import Final

import msgspec

from rocketstore.errors import FormatError
from rocketstore.format.metadata_json import DataVersion, TopicConfig, TopicTable, decode_body
from rocketstore.units import MiB

LARGEST_REGISTRATION: Final = 64 * MiB
"""What a packed registration may inflate to: some 600,000 topics."""


class Body(msgspec.Struct, rename="camel"):
    """A body that is JSON."""


class QueueData(Body):
    """How many queues a topic has on the brokers of a name, and what may be done with them."""

    broker_name: str
    perm: int
    read_queue_nums: int
    topic_sys_flag: int = 0
    write_queue_nums: int = 0


class BrokerData(Body):
    """The brokers of a name: their addresses by id, 0 is the master."""

    broker_addrs: dict[int, str]
    broker_name: str
    cluster: str


class TopicRoute(Body):
    """Where a topic is (TopicRouteData)."""

    broker_datas: list[BrokerData]
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = []


class ClusterInfo(Body):
    """All brokers, and which cluster has which."""

    broker_addr_table: dict[str, BrokerData]
    cluster_addr_table: dict[str, list[str]]


class TopicList(Body):
    """Names of topics."""

    broker_addr: str | None = None
    topic_list: list[str] = []


class ValueTable(Body):
    """The values of a namespace."""

    table: dict[str, str]


class SavedValues(Body):
    """``kvConfig.json``: values by namespace and key."""

    config_table: dict[str, dict[str, str]]


class RegisterBrokerBody(Body):
    """What a broker has: its filter servers and its topics."""

    filter_server_list: list[str] | None = None
    topic_config_serialize_wrapper: TopicTable | None = None


def unpack_registration(data: bytes) -> RegisterBrokerBody:
    """Return a registration of its packed form."""
    inflater = zlib.decompressobj()
    try:
        packed = inflater.decompress(data, LARGEST_REGISTRATION)
    except zlib.error as error:
        raise FormatError(f"registration: {error}") from error
    if not inflater.eof:
        raise FormatError(f"registration: no end within {LARGEST_REGISTRATION} inflated bytes")
    stream = io.BytesIO(packed)

    def take(size: int) -> bytes:
        start, found = stream.tell(), stream.read(size)
        if (left := len(found)) < size:
            raise FormatError("registration", offset=start, expected=f"{size} bytes", found=left)
        return found

    def number() -> int:
        return int.from_bytes(take(4), "big")

    version = decode_body(take(number()), DataVersion)
    topics = [_unpacked_topic(take(number())) for _ in range(number())]
    filters = decode_body(take(number()), list[str])
    return RegisterBrokerBody(filters, TopicTable(version, {one.topic_name: one for one in topics}))


def _unpacked_topic(text: bytes) -> TopicConfig:
    try:
        name, read, write, perm, filter_type = text.decode().split(" ")
        return TopicConfig(
            topic_name=name, read_queue_nums=int(read), write_queue_nums=int(write),
            perm=int(perm), topic_filter_type=filter_type,
        )  # fmt: skip
    except ValueError as error:  # UnicodeDecodeError is one
        raise FormatError(f"topic of a registration: {error}", found=text[:80]) from error
