"""The same messages for our store and for the genuine one, and the same view of what came out."""

import itertools
import zlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rocketstore.config import StoreConfig
from rocketstore.config.sources import from_properties
from rocketstore.format.stored_message import StoredMessage
from rocketstore.message import COMPRESSED_FLAG, Message
from support.java_store import SMALL_FILES, JavaStore, message_json
from support.reading import all_messages

Queues = dict[tuple[str, int], list[dict[str, Any]]]
"""Messages in JSON by topic and queue id."""

IPV4_HOST = "10.1.2.3:41234"
IPV6_HOST = "[2001:db8::17]:41234"
QUEUE_COUNT = 3

_ONLY_OURS = ("tags", "keys", "uniqKey")
"""Fields of our JSON that repeat properties; Java's decoder has no such fields."""


def small_config(**settings: Any) -> StoreConfig:
    """Return the configuration of small files for our store."""
    values = {**SMALL_FILES, **settings}
    return from_properties({key: str(value) for key, value in values.items()})


def sample_messages(
    count: int, *, first: int = 0, topic: str = "orders", born_host: str = IPV4_HOST
) -> list[Message]:
    """Return messages that differ in everything a record has.

    Bodies from empty to 3 KB, one in seven compressed; tags and keys that are missing, single and
    several, ASCII and not.
    """
    messages = []
    for number in range(first, first + count):
        body = (f"{number}-" * (number * 37 % 700)).encode()
        compressed = number % 7 == 3
        messages.append(
            Message(
                topic=topic,
                body=zlib.compress(body) if compressed else body,
                tags=(None, "created", "bezahlt-ß", "送達")[number % 4],
                keys=(f"o-{number}", f"customer-{number % 5}", "größe-𝄞")[: number % 4],
                properties={"region": "EU", "empty-after": f"x{number}"} if number % 2 else {},
                unique_key=f"7F00000100002A9F{number:016X}" if number % 3 else None,
                flag=number % 3 - 1,
                sys_flag=COMPRESSED_FLAG if compressed else 0,
                born_timestamp_ms=1_600_000_000_000 + number,
                born_host=born_host,
                reconsume_times=number % 2,
            )
        )
    return messages


def queue_of(number: int) -> int:
    """Return the queue that the n-th sample message goes to."""
    return number % QUEUE_COUNT


def for_java(message: Message, queue_id: int, store_host: str) -> dict[str, Any]:
    """Return a message as the genuine store's process takes it."""
    keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
    properties = list(message.properties.items())
    properties += [("KEYS", keys)] if keys else []
    properties += [("UNIQ_KEY", message.unique_key)] if message.unique_key else []
    properties += [("TAGS", message.tags)] if message.tags else []
    json = message_json(
        message.topic,
        message.body,
        queue_id=queue_id,
        properties=properties,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms or 0,
        born_host=message.born_host,
        store_host=store_host,
    )
    json["reconsumeTimes"] = message.reconsume_times
    return json


def put_ours(store: Any, messages: Sequence[Message]) -> None:
    """Put sample messages into our store, each into its queue."""
    for number, message in enumerate(messages):
        result = store.put(message, queue_id=queue_of(number))
        assert result.status.name == "PUT_OK", result


def put_java(
    store: JavaStore,
    messages: Sequence[Message],
    *,
    store_host: str = "127.0.0.1:10911",
    accepted: Collection[str] = ("PUT_OK",),
) -> None:
    """Put sample messages into the genuine store, each into its queue."""
    results = store.put(
        [for_java(message, queue_of(number), store_host) for number, message in enumerate(messages)]
    )
    assert {result["status"] for result in results} <= set(accepted), results


def as_java(message: StoredMessage) -> dict[str, Any]:
    """Return our decoded message with the fields that Java's decoder gives."""
    json = message.to_dict()
    return {name: value for name, value in json.items() if name not in _ONLY_OURS}


def all_of_ours(store: Any) -> Queues:
    """Return every message that a consumer of each of our queues gets."""
    found = {}
    for key in store.queues():
        found[tuple(key)] = [as_java(message) for message in all_messages(store, *key)]
    return found


def all_of_java(store: JavaStore) -> Queues:
    """Return every message that a consumer of each queue of the genuine store gets."""
    return {key: store.read_queue(*key) for key in store.queues()}


def entries_of_ours(store: Any) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    """Return the entries of each of our queues."""
    return {
        tuple(key): [tuple(entry) for _, entry in store.queue_entries(key.topic, key.queue_id)]
        for key in store.queues()
    }


def entries_of_java(store: JavaStore) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    """Return the entries of each queue of the genuine store."""
    return {key: store.entries(*key) for key in store.queues()}


def offsets(messages: Iterable[dict[str, Any]]) -> list[int]:
    """Return the physical offsets of messages in JSON."""
    return [message["physicalOffset"] for message in messages]


def keys_of(messages: Iterable[Message]) -> set[str]:
    """Return every key of some messages, unique keys included."""
    found: set[str] = set()
    for message in messages:
        found.update([message.keys] if isinstance(message.keys, str) else message.keys)
        if message.unique_key:
            found.add(message.unique_key)
    return found


def assert_same_store(ours: Any, java: JavaStore, expected_count: int) -> None:
    """Assert that both sides see the same messages and queue entries in one store directory."""
    seen_by_us = all_of_ours(ours)
    assert_equal_messages(seen_by_us, all_of_java(java))
    entries = entries_of_ours(ours), entries_of_java(java)
    assert entries[0] == entries[1], entries
    count = sum(len(messages) for messages in seen_by_us.values())
    assert count == expected_count, count


def assert_equal_messages(ours: Queues, java: Queues) -> None:
    """Assert that two views of a store hold the same messages; name the first that differs."""
    assert set(ours) == set(java), (set(ours), set(java))
    for key, messages in ours.items():
        for mine, theirs in itertools.zip_longest(messages, java[key]):
            assert mine == theirs, f"{key}: ours {mine}, Java's {theirs}"


def assert_same_answers(
    ours: Any, java: JavaStore, messages: Sequence[Message], topic: str
) -> None:
    """Assert that both sides answer the same to every key and every message id.

    Ours comes newest first. Java sorts by offset, and gives a message twice that stands in two
    index files.
    """
    for key in sorted(keys_of(messages)):
        mine = offsets(as_java(m) for m in ours.find(topic, key=key, max_messages=64))
        theirs = sorted(set(offsets(java.find(topic, key))), reverse=True)
        assert mine == theirs, (key, mine, theirs)
    for queue_id in range(QUEUE_COUNT):
        for message in java.read_queue(topic, queue_id):
            assert as_java(ours.by_id(message["msgId"])) == message
