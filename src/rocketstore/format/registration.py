"""The packed form of a registration: what a broker tells name servers of its topics, in few bytes.

``version`` as JSON, how many topics, each as five words, and the filter servers; each part after
its length, all of it deflated. Orders and system flags of topics are not in it.

How derived: RegisterBrokerBody.encode of 4.9.8. `nameserver.bodies.unpack_registration` reads it.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from rocketstore.format.metadata_json import encode_body

if TYPE_CHECKING:
    from collections.abc import Collection

    from rocketstore.format.metadata_json import DataVersion, TopicConfig


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
