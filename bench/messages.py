"""The messages of a scenario, the same as ``BenchMessages.java`` makes them.

Keys, unique keys and tags are strings made before the clock starts: the application has them. What
the clock sees is the way from those strings to the stored record.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from rocketstore import Message
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.format.properties import message_properties

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        self.cycle = min(POOL_SIZE, spec["messages"]) // self.queues * self.queues
        self.bodies = [_body(spec["bodySize"], i) for i in range(BODY_POOL_SIZE)]
        self._parts = [
            (
                self.bodies[i % BODY_POOL_SIZE],
                TAGS[i % 4],
                key(i),
                f"7F0000012A9F{i:020X}",
                i % self.queues,
            )
            for i in range(self.cycle)
        ]

    def parts(self, first: int = 0) -> Iterator[tuple[bytes, str, str, str, int]]:
        """Yield body, tag, key, unique key and queue of message `first` and all that follow."""
        start = first % self.cycle
        return itertools.chain(
            itertools.islice(self._parts, start, None), itertools.cycle(self._parts)
        )

    def singles(self, first: int = 0) -> Iterator[Message]:
        """Yield message `first` and all that follow, for ever."""
        for body, tag, key_text, unique_key, _ in self.parts(first):
            yield Message(
                topic=TOPIC,
                body=body,
                tags=tag,
                keys=key_text,
                unique_key=unique_key,
                born_host=HOST,
            )

    def prepared(self, store: MessageStore) -> list[Any]:
        """Return messages whose topic and properties are encoded."""
        count = min(PREPARED_POOL_SIZE, self.cycle)
        return [store.prepare(message) for message in itertools.islice(self.singles(), count)]

    def encoded_batches(self) -> list[bytes]:
        """Return batches as a client sends them."""
        count = max(1, min(BATCH_POOL_SIZE, self.cycle // self.batch))
        messages = self.singles()
        return [
            encode_client_batch(
                (0, message.body, message_properties(message))
                for message in itertools.islice(messages, self.batch)
            )
            for _ in range(count)
        ]


def _body(size: int, seed: int) -> bytes:
    """Return letters that differ from body to body; no body is all zeros."""
    alphabet = bytes(97 + (i + seed) % 26 for i in range(26))
    return (alphabet * (size // 26 + 1))[:size]
