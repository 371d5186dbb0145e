"""Ctrl-C at every line of a put for several queues: no number is lost and none is given twice."""

import itertools

from rocketstore import Message
from support.configured_store import open_small
from support.interrupts import InterruptAt
from support.reading import all_messages

ON = {"enable_multi_dispatch": True, "enable_lmq": True}
NAMES, NUMBERS = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"
LISTED = Message(topic="orders", body=bytes(900), properties={NAMES: "%LMQ%a,copies"})


def read(store, topic, queue_id):
    return [*all_messages(store, topic, queue_id)]


def test_after_an_interrupt_the_numbers_go_on_without_a_gap(tmp_path):
    interrupted = 0
    with open_small(tmp_path, **ON) as store:
        store.put(LISTED, 1)
        for line in itertools.count(1):
            if not InterruptAt().run(line, lambda: store.put(LISTED, 1)):
                break
            interrupted += 1
            store.put(LISTED, 1).raise_for_status()
            store.put(Message(topic="copies"), 1).raise_for_status()
        store.wait_dispatched()
        listed = read(store, "orders", 1)
        given = [tuple(map(int, one.properties[NUMBERS].split(","))) for one in listed]
        assert [light for light, _ in given] == list(range(len(listed)))
        copies = read(store, "copies", 1)
        direct = [one.queue_offset for one in copies if one.topic == "copies"]
        assert len(direct) == interrupted > 50
        assert sorted([copy for _, copy in given] + direct) == list(range(len(copies)))
        assert store.next_queue_offset("copies", 1) == len(copies)
        assert store.next_queue_offset("%LMQ%a", 0) == store.max_offset("%LMQ%a", 0) == len(listed)
