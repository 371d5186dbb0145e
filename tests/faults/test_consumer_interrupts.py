"""Ctrl-C at every place of consuming: nothing is acknowledged that was not, the rest comes again.

The group goes on in the same process: no lock stays held, and nobody is left in it who reads
nothing.
"""

import itertools

import pytest

from rocketstore import Consumer, Message, MessageStore
from support.configured_store import small_config
from support.interrupts import InterruptAt
from support.memory import memory_directory

pytestmark = [pytest.mark.usefixtures("watchdog")]

COUNT = 6
QUEUES = 2


@pytest.fixture
def store():
    with (
        memory_directory() as root,
        MessageStore.open(root / "store", small_config(), threads=False) as opened,
    ):
        for number in range(COUNT):
            opened.put(Message(topic="T", body=b"%d" % number), number % QUEUES)
        opened.wait_dispatched()
        yield opened


class Work:
    """Consumes all there is: acknowledges most messages, and makes a dead letter of one."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.begun: set[int] = set()

    def __call__(self) -> None:
        with self.store.consume("T", "g") as consumer:
            for message in consumer:
                number = int(message.body)
                self.begun.add(number)
                if number == COUNT - 1:
                    message.give_back(-1)
                else:
                    message.ack()

    def offsets(self) -> list[int]:
        return [self.store.consumer_offsets.get("T", "g", n) or 0 for n in range(QUEUES)]

    def check(self, where: str, beside: Consumer | None) -> None:
        """Compare what the group has consumed with what it was asked to, and consume the rest."""
        for queue_id, offset in enumerate(self.offsets()):
            passed = {queue_id + QUEUES * place for place in range(offset)}
            assert passed <= self.begun, where
        consumer = self.store.consume("T", "g") if beside is None else beside
        assert len(consumer.queues) >= QUEUES or beside is not None, where
        rest = set()
        for message in consumer:
            rest.add(int(message.body))
            message.ack()
        consumer.close()
        assert rest >= set(range(COUNT)) - self.begun, where
        assert self.offsets() == [COUNT // QUEUES] * QUEUES, where


@pytest.mark.parametrize("other", [False, True], ids=["alone", "with another"])
def test_an_interrupt_anywhere_leaves_the_rest_to_the_next_consumer(store, *, other):
    interrupts = InterruptAt("consuming")
    for line in itertools.count(1):
        for queue_id in range(QUEUES):
            store.consumer_offsets.set("T", "g", queue_id, 0)
        beside = store.consume("T", "g") if other else None
        work = Work(store)
        if beside is not None:
            first = beside.poll()
            assert first is not None
            work.begun.add(int(first.body))
            first.ack()
        hit = interrupts.run(line, work)
        work.check(f"line {line}, {interrupts.where}", beside)
        if not hit:
            break
    assert line > 100
    store.wait_dispatched()
    assert store.max_offset("%DLQ%g", 0) > 0


def test_an_interrupt_while_a_consumer_is_closed_lets_it_be_closed_again(store):
    interrupts = InterruptAt("consuming")
    for line in itertools.count(1):
        consumer = store.consume("T", "c")
        first = next(consumer)
        hit = interrupts.run(line, consumer.close)
        consumer.close()
        assert not first.ack()
        with store.consume("T", "c") as following:
            assert len(list(following)) == COUNT, interrupts.where
        if not hit:
            break
    assert line > 5
