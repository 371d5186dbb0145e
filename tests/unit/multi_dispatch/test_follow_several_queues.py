"""Streams over a store with extra queues: a message is a row of its own queue; none is missed."""

import pytest

from rocketstore import Message
from support.configured_store import open_small
from support.stream_run import Checkpoint, StreamRun, flat

FIRST = {"startingOffsets": "earliest"}
ON = {"enable_multi_dispatch": True, "enable_lmq": True}


def put(store, count, names="", topic="orders"):
    properties = {"INNER_MULTI_DISPATCH": names} if names else {}
    for _ in range(count):
        assert store.put(Message(topic=topic, properties=properties), 1).is_stored
    store.wait_dispatched()


def rows(batches):
    return [(row["topic"], row["queueOffset"]) for row in flat(batches)]


@pytest.mark.parametrize("rate", [{}, {"maxOffsetsPerTrigger": 2}])
def test_a_topic_that_is_an_extra_queue_too_is_followed(tmp_path, rate):
    checkpoint = Checkpoint()
    with open_small(tmp_path, **ON) as store:
        found = []
        for names, count in (("copies,%LMQ%a", 3), ("", 2), ("copies", 3), ("%LMQ%a", 1)):
            put(store, count, names, "orders" if names else "copies")
            run = StreamRun(tmp_path, checkpoint, subscribe="copies", **FIRST, **rate)
            found += rows(run.drain(run.options.limits))
        assert found == [("copies", 3), ("copies", 4)]
        both = StreamRun(tmp_path, subscribePattern="copies|orders|%LMQ%a", **FIRST, **rate)
        assert sorted(rows(both.drain(both.options.limits))) == [
            ("copies", 3), ("copies", 4), *(("orders", number) for number in range(7))
        ]  # fmt: skip


def test_the_end_of_an_extra_queue_is_its_last_entry(tmp_path):
    with open_small(tmp_path, **ON) as store:
        put(store, 3, "copies")
        checkpoint = Checkpoint()
        assert rows(StreamRun(tmp_path, checkpoint, subscribe="copies", **FIRST).drain()) == []
        put(store, 1, topic="copies")
        run = StreamRun(tmp_path, checkpoint, subscribe="copies", **FIRST)
        assert rows(run.drain()) == [("copies", 3)]
