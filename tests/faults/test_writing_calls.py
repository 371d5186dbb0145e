"""Every public call that writes, on a store that was closed, that a parent has, that is only read.

The list below is held against what the store and its parts offer: a new method has to be put into
one of the two.
"""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocketstore import Message, MessageStore, ReadOnlyStore, StoreConfig
from rocketstore.errors import RocketStoreError, StoreReadOnlyError
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.native.log_end import Record
from support.clock import START_MS
from support.forked import in_child
from support.patience import PATIENCE_S
from support.trees import tree

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

T, MEMORY, BATCH = "t", "memory", "batch"
CLIENT_BATCH = encode_client_batch([(0, b"x", b"")])


ONE_ROW = np.array([[0, 0, 1, 0, 0, START_MS]])


def message(topic: str = T, **properties: str) -> Message:
    return Message(topic=topic, body=b"x", properties=properties)


def record() -> Record:
    return Record(b"x", b"", bytes(8))


WRITES: dict[str, Callable[[dict[str, Any]], object]] = {
    "store.put": lambda s: s["store"].put(message()),
    "store.put memory": lambda s: s["store"].put(message(MEMORY)),
    "store.put batch": lambda s: s["store"].put(message(BATCH)),
    "store.put delayed": lambda s: s["store"].put(message(DELAY="1")),
    "store.put_batch": lambda s: s["store"].put_batch([message(BATCH)] * 2),
    "store.put_client_batch": lambda s: s["store"].put_client_batch(BATCH, 0, CLIENT_BATCH),
    "store.put_encoded": lambda s: s["store"].put_encoded(T, 0, b"x"),
    "store.put_prepared": lambda s: s["store"].put_prepared(s["store"].prepare(message())),
    "store.put_record": lambda s: s["store"].put_record(T, 0, record()),
    "store.put_async": lambda s: s["store"].put_async(message()),
    "store.begin": lambda s: s["store"].begin(message()),
    "store.commit": lambda s: s["store"].commit(s["half"]),
    "store.rollback": lambda s: s["store"].rollback(s["half"]),
    "store.end_transaction": lambda s: s["store"].end_transaction("g", 0, 0, commits=True),
    "store.flush": lambda s: s["store"].flush(),
    "store.settle": lambda s: s["store"].settle(),
    "store.consume": lambda s: next(s["store"].consume(T, "g", idle_timeout_s=0.01)),
    "memory_topics.create": lambda s: s["memory_topics"].create("new"),
    "store.put_record memory": lambda s: s["store"].put_record(MEMORY, 0, record()),
    "store.put_prepared memory": lambda s: s["store"].put_prepared(s["prepared"]),
    "batch_topics.create": lambda s: s["batch_topics"].create("new"),
    "store.put_record batch": lambda s: s["store"].put_record(BATCH, 0, record()),
    "consumer_offsets.set": lambda s: s["consumer_offsets"].set(T, "g", 0, 7),
    "replicated_log.append": lambda s: s["replicated_log"].append(s["end"], memoryview(b"x"), 0),
}
"""What has to be refused: by an error of the store, or with the status of a put."""

QUIET: dict[str, Callable[[dict[str, Any]], object]] = {
    "consumer_offsets.save": lambda s: s["consumer_offsets"].save(),
    "delays.turn": lambda s: s["delays"].turn(),
    "transaction_checks.turn": lambda s: s["transaction_checks"].turn(START_MS),
    "scrub.turn": lambda s: s["scrub"].turn(),
    "message.ack": lambda s: s["message"].ack(),
    "message.give_back": lambda s: s["message"].give_back(),
    "consumer.close": lambda s: s["consumer"].close(),
    "store.delete_expired_files": lambda s: s["store"].delete_expired_files(),
    "store.put_rows": lambda s: s["store"].put_rows([s["prepared"]], [0], ONE_ROW, b"x", b""),
}
"""What may do nothing, but leaves every file as it is."""

READS = {
    "store": """abandon acknowledged add_listener at_physical_offset by_id check_held
        check_open check_transactions close earliest_log_timestamp earliest_timestamp end_within
        extension_unit find get get_raw get_views is_in_memory look_again max_offset
        message_count min_offset next_queue_offset offset_at open prepare queue_entries queues
        remove_listener ring runtime_info store_timestamp topics topics_of wait_dispatched
        wait_for wait_until""",
    "memory_topics": "",
    "batch_topics": "",
    "consumer_offsets": """
        finish forget get groups_of metrics runtime_info snapshot start stop topics_of""",
    "consumer_filters": "bit_map may_match register unregister",  # in memory only
    "delays": "finish forget metrics runtime_info start stop",
    "scrub": "finish forget metrics runtime_info start stop",
    "transaction_checks": "finish forget metrics runtime_info start stop watch",
    "replicated_log": "read ring_at_progress set_replica wait_flushed",
}
"""What reads, waits, or is how a store starts and stops its services."""


def open_all(root: Path) -> MessageStore:
    config = StoreConfig.small(memory_topic_enable=True, enable_consume_queue_ext=True)
    return MessageStore.open(root, config, threads=False)


def taken_from(store: MessageStore) -> dict[str, Any]:
    """Return the store and its parts, in use."""
    store.memory_topics.create(MEMORY)
    store.batch_topics.create(BATCH)
    taken: dict[str, Any] = {"store": store, "result": store.put(message())}
    taken["half"] = store.begin(message())
    store.put(message(DELAY="1"))
    store.wait_dispatched()
    taken |= {name: getattr(store, name) for name in READS if name != "store"}
    taken["prepared"] = store.prepare(message(MEMORY))
    taken["consumer"] = store.consume(T, "h", start="first", idle_timeout_s=0.01)
    taken["message"] = next(taken["consumer"])
    store.consumer_offsets.set(T, "i", 0, 1)
    store.flush()
    taken["end"] = store.max_physical_offset
    return taken


def is_refused(call: Callable[[], Any]) -> bool:
    try:
        result = call()
        if isinstance(result, Future):
            result = result.result(PATIENCE_S)
    except (RocketStoreError, StopIteration):
        return True
    return not getattr(getattr(result, "put", result), "is_stored", True)


def test_every_public_call_of_the_store_and_its_parts_is_listed(root):
    with open_all(root) as store:
        parts = {name: store if name == "store" else getattr(store, name) for name in READS}
        for name, part in parts.items():
            known = {call.partition(" ")[0] for call in (*WRITES, *QUIET)}
            known |= {f"{name}.{one}" for one in READS[name].split()}
            offered = {one for one in dir(type(part)) if not one.startswith("_")}
            calls = {f"{name}.{one}" for one in offered if callable(getattr(type(part), one))}
            assert not calls - known, "is it refused where nothing may be written?"


@pytest.mark.parametrize("end", ["closed", "forked"])
def test_a_store_that_is_closed_or_a_parent_s_is_not_written(root, end):
    store = open_all(root)
    taken = taken_from(store)

    def use() -> None:
        before = tree(root)
        for name, call in WRITES.items():
            assert is_refused(lambda call=call: call(taken)), name
        for call in QUIET.values():
            is_refused(lambda call=call: call(taken))
        assert tree(root) == before

    if end == "closed":
        store.close()
        use()
    else:
        in_child(use)
        store.put(message(BATCH)).raise_for_status()
        store.close()
    with open_all(root) as store:
        assert store.kinds.of("batch") == {BATCH}
        assert store.kinds.of("memory") == {MEMORY}
        assert store.consumer_offsets.get(T, "g", 0) is None


def test_a_store_that_is_only_read_has_no_call_that_writes(root):
    open_all(root).close()
    before = tree(root)
    with MessageStore.open(root, read_only=True) as store:
        assert isinstance(store, ReadOnlyStore)
        assert store.is_read_only
        for name in (call.partition(" ")[0].split(".") for call in (*WRITES, "store.prepare")):
            part = store if name[0] == "store" else getattr(store, name[0], None)
            method = getattr(part, name[1], None)
            if method is not None:
                with pytest.raises(StoreReadOnlyError, match="without read_only=True"):
                    method()
    assert tree(root) == before
