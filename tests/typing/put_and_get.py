"""The public face as a user writes it; checked by mypy, never run."""

from pathlib import Path
from typing import assert_type

from rocketstore import (
    GetMessageStatus,
    GetResult,
    Message,
    MessageStore,
    PutMessageStatus,
    PutResult,
    QueueKey,
    StoreConfig,
    StoredMessage,
)

with MessageStore.open("data/store", StoreConfig()) as store:
    assert_type(store, MessageStore)
    result = store.put(
        Message(topic="orders", body=b"...", tags="created", keys=("o-17",)), queue_id=0
    )
    assert_type(result, PutResult)
    assert_type(result.status, PutMessageStatus)
    assert_type(result.physical_offset, int)
    assert_type(result.queue_offset, int)
    assert_type(result.message_id, str)
    assert_type(result.raise_for_status(), PutResult)
    if result.status is PutMessageStatus.PUT_OK:
        assert_type(result.store_timestamp_ms + result.size, int)

    batch = store.put_batch(
        [Message(topic="orders", body=b"1"), Message(topic="orders", body=b"")], queue_id=0
    )
    assert_type(batch.message_count, int)
    store.put_client_batch("orders", 0, b"as a client encodes it")

    prepared = store.prepare(Message(topic="orders", keys="one key", properties={"a": "b"}))
    store.put_prepared(prepared, b"another body", queue_id=1)

    assert_type(store.wait_dispatched(), bool)
    page = store.get("orders", queue_id=0, offset=0, max_messages=32, tags="created || paid")
    assert_type(page, GetResult)
    assert_type(page.status, GetMessageStatus)
    assert_type(page.next_offset, int)
    assert_type((page.min_offset, page.max_offset, page.skipped_entries), tuple[int, int, int])
    for message in page.messages:
        assert_type(message, StoredMessage)
        assert_type(message.body, bytes)
        assert_type(message.properties, dict[str, str])
        assert_type(message.queue_offset, int)
        assert_type(message.tags, str | None)
        assert_type(message.keys, tuple[str, ...])

    assert_type(store.find("orders", key="o-17"), list[StoredMessage])
    assert_type(store.find("orders", "o-17", begin_ms=0, end_ms=None, max_messages=5)[0].topic, str)
    assert_type(store.by_id(result.message_id), StoredMessage | None)
    assert_type(store.offset_at("orders", 0, timestamp_ms=1_700_000_000_000), int)
    assert_type(store.min_offset("orders", 0), int)
    assert_type(store.max_offset("orders", 0), int)
    assert_type(store.wait_for("orders", 0, offset=3, timeout_s=1.0), bool)
    assert_type(store.topics(), list[str])
    assert_type(store.queues(), list[QueueKey])
    store.flush()

MessageStore.open(Path("data") / "store").close()
