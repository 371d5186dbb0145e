"""What a broker tells name servers of its topics: JSON, or a packed form of few bytes.

Packed it is ``version`` as JSON, how many topics, each as five words, and the filter servers; each
part after its length, all of it deflated. Orders and system flags of topics are not in it.

Law: what is inflated is bounded, and no length is used before it is compared with what remains.
How derived: RegisterBrokerBody of 4.9.8.
"""

import io
import zlib
from collections.abc import Collection
from typing import Final

import msgspec

from rocketstore.errors import FormatError
from rocketstore.format.metadata_json import (
    DataVersion,
    TopicConfig,
    TopicTable,
    decode_body,
    encode_body,
)
from rocketstore.units import MiB

LARGEST_REGISTRATION: Final = 64 * MiB
"""What a packed registration may inflate to: some 600,000 topics."""


class RegisterBrokerBody(msgspec.Struct, rename="camel"):
    """What a broker has: its filter servers and its topics."""

    filter_server_list: list[str] | None = None
    topic_config_serialize_wrapper: TopicTable | None = None


def pack_registration(version: DataVersion | None, topics: Collection[TopicConfig]) -> bytes:
    """Return the packed form of these topics."""
    texts = [
        f"{one.topic_name} {one.read_queue_nums} {one.write_queue_nums} {one.perm} "
        f"{one.topic_filter_type}".encode()
        for one in topics
    ]

    def sized(*parts: bytes) -> bytes:
        return b"".join(len(part).to_bytes(4, "big") + part for part in parts)

    count = len(texts).to_bytes(4, "big")
    return zlib.compress(sized(encode_body(version)) + count + sized(*texts, b"[]"), 9)


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
