"""Bodies of requests and replies: fastjson's JSON, and the packed form of a registration.

Written as 4.9 writes them: fields in alphabetical order, without what is null, numbers as bare
keys. Read leniently, in either form of keys.

Law: bytes in, values out, or a `FormatError`. What is inflated is bounded, and no length of the
packed form is used before it is compared with what remains.
How derived: RemotingSerializable and RegisterBrokerBody of 4.9.8 (specification of requests,
section 3).
"""

from __future__ import annotations

import zlib
from typing import Final, TypeVar

import msgspec

from rocketstore.errors import FieldRangeError, FormatError
from rocketstore.format.metadata_json import DataVersion, TopicConfig, TopicTable, dumps, loads
from rocketstore.units import MiB

LARGEST_REGISTRATION: Final = 64 * MiB
"""What a packed registration may inflate to: some 600,000 topics."""


class Body(msgspec.Struct, rename="camel"):
    """A body that is JSON."""


AnyBody = TypeVar("AnyBody")


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


class Registration(Body):
    """What a broker has: its filter servers and its topics (RegisterBrokerBody)."""

    filter_server_list: list[str] | None = None
    topic_config_serialize_wrapper: TopicTable | None = None


def encode_body(body: msgspec.Struct) -> bytes:
    """Return the JSON of a body."""
    return dumps(msgspec.to_builtins(body), in_lines=False).encode()


def decode_body(data: bytes, kind: type[AnyBody]) -> AnyBody:
    """Return a body of its JSON; `FormatError` where it is none, or of another kind."""
    try:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return msgspec.convert(loads(data), kind, str_keys=True)  # its keys may be bare numbers
    except msgspec.ValidationError as error:
        raise FieldRangeError(f"{kind}: {error}") from error


def unpack_registration(data: bytes) -> Registration:
    """Return a registration of its packed form."""
    inflater = zlib.decompressobj()
    try:
        packed = inflater.decompress(data, LARGEST_REGISTRATION)
    except zlib.error as error:
        raise FormatError(f"registration: {error}") from error
    if not inflater.eof:
        raise FormatError(
            "registration", expected=f"a whole zlib stream of at most {LARGEST_REGISTRATION} bytes",
            found=f"{len(packed)} bytes without its end",
        )  # fmt: skip
    reader = _Reader(packed)
    version = decode_body(reader.sized(), DataVersion)
    topics = [_unpacked_topic(reader.sized()) for _ in range(reader.number())]
    filters = decode_body(reader.sized(), list[str])
    return Registration(filters, TopicTable(version, {one.topic_name: one for one in topics}))


class _Reader:
    """Reads a packed form to its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self) -> int:
        return int.from_bytes(self._take(4), "big")

    def sized(self) -> bytes:
        return self._take(self.number())

    def _take(self, size: int) -> bytes:
        start, left = self._position, len(self._data) - self._position
        if size > left:
            raise FormatError("registration", offset=start, expected=f"{size} bytes", found=left)
        self._position += size
        return self._data[start : self._position]


def _unpacked_topic(text: bytes) -> TopicConfig:
    try:
        name, read, write, perm, filter_type = text.decode().split(" ")
        return TopicConfig(
            topic_name=name, read_queue_nums=int(read), write_queue_nums=int(write),
            perm=int(perm), topic_filter_type=filter_type,
        )  # fmt: skip
    except ValueError as error:  # UnicodeDecodeError is one
        raise FormatError(
            "registration", field="topic", expected="name, 3 numbers and a type", found=text[:80]
        ) from error
