"""The messages of a scenario, the same as ``BenchMessages.java`` makes them.

Keys, unique keys and tags are strings made before the clock starts: the application has them. What
the clock sees is the way from those strings to the stored record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocketstore import Message
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.format.properties import message_properties

if TYPE_CHECKING:
    from rocketstore import MessageStore

TOPIC = "BenchTopic"
HOST = "127.0.0.1:10911"
TAGS = ("created", "paid", "sent", "done")
POOL_SIZE = 262_144
PREPARED_POOL_SIZE = 1024
BODY_POOL_SIZE = 64
BATCH_POOL_SIZE = 256


def key(index: int) -> str:
    """Return the key of a message."""
    return f"order-{index}"


class BenchMessages:
    """Pools of strings and bodies, and of encoded properties or batches where asked for."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.queues: int = spec["queues"]
        self.batch: int = max(1, spec.get("batch", 1))
        pool = min(POOL_SIZE, spec["messages"])
        self.keys = [key(i) for i in range(pool)]
        self.unique_keys = [f"7F0000012A9F{i:020X}" for i in range(pool)]
        size = spec["bodySize"]
        self.bodies = [_body(size, i) for i in range(BODY_POOL_SIZE)]

    def single(self, i: int) -> Message:
        """Return message `i`."""
        pool = len(self.keys)
        return Message(
            topic=TOPIC,
            body=self.bodies[i % BODY_POOL_SIZE],
            tags=TAGS[i % 4],
            keys=self.keys[i % pool],
            unique_key=self.unique_keys[i % pool],
            born_host=HOST,
        )

    def many(self, first: int) -> list[Message]:
        """Return the messages of the batch that begins with message `first`."""
        return [self.single(i) for i in range(first, first + self.batch)]

    def prepared(self, store: MessageStore) -> list[Any]:
        """Return messages whose topic and properties are encoded."""
        return [
            store.prepare(self.single(i)) for i in range(min(PREPARED_POOL_SIZE, len(self.keys)))
        ]

    def encoded_batches(self) -> list[bytes]:
        """Return batches as a client sends them."""
        count = max(1, min(BATCH_POOL_SIZE, len(self.keys) // self.batch))
        return [
            encode_client_batch(
                (0, message.body, message_properties(message))
                for message in self.many(number * self.batch)
            )
            for number in range(count)
        ]


def _body(size: int, seed: int) -> bytes:
    """Return letters that differ from body to body; no body is all zeros."""
    alphabet = bytes(97 + (i + seed) % 26 for i in range(26))
    return (alphabet * (size // 26 + 1))[:size]
