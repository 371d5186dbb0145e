"""Reading beside another writer: the same questions, another type."""

from typing import assert_type

from rocketstore import MessageStore, ReadOnlyStore, StoredMessage

with MessageStore.open("data/store", read_only=True) as reader:
    assert_type(reader, ReadOnlyStore)
    assert_type(reader.get("orders", 0, 0).messages, list[StoredMessage])
    assert_type(reader.find("orders", key="o-17"), list[StoredMessage])
    assert_type(reader.wait_for("orders", 0, 3), bool)
    assert_type(reader.max_physical_offset, int)


def opened(*, read_only: bool) -> None:
    assert_type(MessageStore.open("data/store", read_only=read_only), MessageStore | ReadOnlyStore)


def either(store: MessageStore | ReadOnlyStore) -> int:
    """A function that only reads takes both."""
    return sum(len(store.get(topic, 0, 0).messages) for topic in store.topics())
