"""Offsets of consumer groups between us and a genuine broker's ConsumerOffsetManager."""

import pytest

from rocketstore import Message, MessageStore
from support.both_sides import small_config
from support.java_store import SMALL_FILES, JavaStore

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("java_store")]

GROUP = "billing"


def consume(store: MessageStore, count: int) -> list[bytes]:
    """Acknowledge so many messages of the group, which begins at the first one."""
    with store.consume("orders", GROUP, start="first") as consumer:
        taken = [next(consumer) for _ in range(count)]
        assert all(message.ack() for message in taken)
    return [message.body for message in taken]


def test_either_goes_on_where_the_other_one_stopped(tmp_path):
    bodies = [b"%d" % number for number in range(9)]
    with MessageStore.open(tmp_path, small_config()) as ours:
        for body in bodies:
            ours.put(Message(topic="orders", body=body), 2)
        ours.wait_dispatched()
        assert consume(ours, 3) == bodies[:3]
        ours.consumer_offsets.set("%RETRY%billing", GROUP, 0, 2**40)
    with JavaStore(tmp_path, SMALL_FILES) as java:
        assert java.consumer_offset("orders", GROUP, 2) == 3
        assert java.consumer_offset("%RETRY%billing", GROUP, 0) == 2**40
        assert java.consumer_offset("orders", GROUP, 1) == -1
        assert java.consumer_offset("orders", "audit", 2) == -1
        java.commit_offset("orders", GROUP, 2, 7)
        java.commit_offset("orders", "audit", 2, 0)
    with MessageStore.open(tmp_path, small_config()) as ours:
        assert ours.consumer_offsets.get("orders", "audit", 2) == 0
        # A table that a broker wrote does not say which log it counts: what is past the end of a
        # queue becomes its end (decision 0035).
        assert ours.consumer_offsets.get("%RETRY%billing", GROUP, 0) == 0
        assert consume(ours, 2) == bodies[7:]
    with JavaStore(tmp_path, SMALL_FILES) as java:
        assert java.consumer_offset("orders", GROUP, 2) == 9
        assert java.consumer_offset("orders", "audit", 2) == 0
