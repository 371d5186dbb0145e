"""Every call that an open store's programs make, each as a function of the store."""

from collections.abc import Callable
from typing import Final

from rocketstore import Message, MessageStore
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.storage.threads import Bell
from support.patience import PATIENCE_S

MESSAGE: Final = Message(topic="t", body=b"child", keys="k")
LATER: Final = Message(topic="t", body=b"later", properties={"DELAY": "1"})

READS: Final[dict[str, Callable[[MessageStore], object]]] = {
    "get": lambda store: store.get("t", 0, 0),
    "get with tags": lambda store: store.get("t", 0, 0, 8, "a || b"),
    "get_raw": lambda store: store.get_raw("t", 0, 0),
    "get_views": lambda store: [bytes(one) for one in store.get_views("t", 0, 0).records],
    "find": lambda store: store.find("t", "k"),
    "at_physical_offset": lambda store: store.at_physical_offset(0),
    "by_id": lambda store: store.by_id("0" * 32),
    "min_offset": lambda store: store.min_offset("t", 0),
    "max_offset": lambda store: store.max_offset("t", 0),
    "message_count": lambda store: store.message_count("t", 0),
    "queues": lambda store: store.queues(),
    "topics": lambda store: store.topics(),
    "queue_entries": lambda store: list(store.queue_entries("t", 0)),
    "offset_at": lambda store: store.offset_at("t", 0, 1),
    "earliest_timestamp": lambda store: store.earliest_timestamp("t", 0),
    "earliest_log_timestamp": lambda store: store.earliest_log_timestamp(),
    "store_timestamp": lambda store: store.store_timestamp("t", 0, 0),
    "extension_unit": lambda store: store.extension_unit("t", 0, -1),
    "wait_dispatched": lambda store: store.wait_dispatched(),
    "wait_for": lambda store: store.wait_for("t", 0, 0),
    "min_physical_offset": lambda store: store.min_physical_offset,
    "max_physical_offset": lambda store: store.max_physical_offset,
    "appended_physical_offset": lambda store: store.appended_physical_offset,
    "flushed_physical_offset": lambda store: store.flushed_physical_offset,
    "dispatched_physical_offset": lambda store: store.dispatched_physical_offset,
    "last_store_timestamp_ms": lambda store: store.last_store_timestamp_ms,
    "dispatch_health": lambda store: store.dispatch_health,
    "next_queue_offset": lambda store: store.next_queue_offset("t", 0),
    "queue_count": lambda store: store.queue_count,
    "runtime_info": lambda store: store.runtime_info(),
    "statistics": lambda store: store.statistics.runtime_info(),
    "running_flags": lambda store: store.running_flags.bits,
}
"""What changes nothing."""

CHANGES: Final[dict[str, Callable[[MessageStore], object]]] = {
    "put": lambda store: store.put(MESSAGE),
    "put_prepared": lambda store: store.put_prepared(store.prepare(MESSAGE)),
    "put_encoded": lambda store: store.put_encoded("t", 0, b"x"),
    "put_batch": lambda store: store.put_batch([MESSAGE]),
    "put_client_batch": lambda store: store.put_client_batch(
        "t", 0, encode_client_batch([(0, b"x", b"")])
    ),
    "flush": lambda store: store.flush(),
    "settle": lambda store: store.settle(),
    "add_listener": lambda store: store.add_listener(lambda _arrival: None),
    "remove_listener": lambda store: store.remove_listener(lambda _arrival: None),
    "delete_expired_files": lambda store: store.delete_expired_files(),
}

USES: Final = CHANGES | READS
"""What a forked child is refused."""

SERVICES: Final[dict[str, Callable[[MessageStore], object]]] = {
    "put_async": lambda store: store.put_async(MESSAGE).result(PATIENCE_S),
    "put, delayed": lambda store: store.put(LATER),
    "begin": lambda store: store.begin(MESSAGE),
    "begin and commit": lambda store: store.commit(store.begin(MESSAGE)),
    "begin and roll back": lambda store: store.rollback(store.begin(MESSAGE)),
    "check_transactions": lambda store: store.check_transactions(lambda _half: None),
    "consume": lambda store: [
        message.ack() for message in store.consume("t", "g", idle_timeout_s=0)
    ],
    "give back": lambda store: [
        message.give_back() for message in store.consume("t", "h", idle_timeout_s=0)
    ],
    "consumer_offsets": lambda store: store.consumer_offsets.snapshot(),
    "scrub": lambda store: store.scrub.runtime_info(),
    "batch_topics": lambda store: store.batch_topics,
    "ring": lambda store: store.ring(Bell())(),
    "look_again": lambda store: store.look_again(),
}
"""What services do in a program's call."""
