"""Small stores with a batch topic, and what is read of it."""

import json
from pathlib import Path
from typing import Any

from rocketstore import GetResult, Message, MessageStore, PutResult, StoreConfig
from support.clock import Clock

BATCHES, PLAIN = "batches", "plain"


def mark(root: Path, *topics: str) -> None:
    """Write ``topics.json`` as a broker of 5.x has it."""
    attributes = {"queue.type": "BatchCQ"}
    table = {name: {"attributes": attributes, "topicName": name, "newer": 1} for name in topics}
    path = root / "config" / "topics.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"topicConfigTable": {**table, PLAIN: {"topicName": PLAIN}}}))


def open_batches(
    root: Path, *, clock: Any = None, threads: bool = False, **settings: Any
) -> MessageStore:
    if not (root / "config").exists():
        mark(root, BATCHES)
    config = StoreConfig.small(**settings)
    return MessageStore.open(root, config, clock=clock or Clock(), threads=threads)


def put(store: MessageStore, *bodies: str, topic: str = BATCHES, **fields: Any) -> PutResult:
    """Put messages as one batch, and let them be dispatched."""
    messages = [Message(topic=topic, body=body.encode(), **fields) for body in bodies]
    result = store.put_batch(messages)
    store.wait_dispatched()
    return result


def bodies(page: GetResult) -> list[tuple[int, str]]:
    return [(message.queue_offset, message.body.decode()) for message in page.messages]


def numbered(*texts: str, first: int = 0) -> list[tuple[int, str]]:
    return list(enumerate(texts, first))
