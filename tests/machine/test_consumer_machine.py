"""Consumers of a group through every order of calls, closings and crashes, against a plain model.

The model knows what was put, who holds what, and what was acknowledged. No message is with two
consumers, none is delivered after it was acknowledged while the process lives, no offset passes
what was not acknowledged, and in the end everything else comes again.
"""

import shutil

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rocketstore import ConsumedMessage, Consumer, Message, MessageStore
from rocketstore.tables.consumer_offsets import read_offsets
from support.configured_store import small_config
from support.memory import made_in_memory

TOPIC, GROUP = "orders", "billing"
DEAD = f"%DLQ%{GROUP}"
QUEUES = 4
MEMBERS = 3
some = st.integers(0, 1000)


class ConsumerMachine(RuleBasedStateMachine):
    """Three consumers at most, of a store without threads."""

    @initialize()
    def begin(self) -> None:
        self.root = made_in_memory()
        self.consumers: list[Consumer] = []
        self.held: dict[tuple[str, int], ConsumedMessage] = {}
        self.done: set[tuple[str, int]] = set()
        self.saved: set[tuple[str, int]] = set()
        self.put_count = 0
        self.ends = [0] * QUEUES
        self.dead_count = 0
        self.open()

    def open(self) -> None:
        self.store = MessageStore.open(self.root / "store", small_config(), threads=False)

    @rule(queue=st.integers(0, QUEUES - 1), count=st.integers(1, 40))
    def put(self, queue: int, count: int) -> None:
        for _ in range(count):
            self.store.put(Message(topic=TOPIC, body=b"%d" % self.put_count), queue)
            self.put_count += 1
            self.ends[queue] += 1

    @precondition(lambda self: len(self.consumers) < MEMBERS)
    @rule()
    def join(self) -> None:
        self.consumers.append(self.store.consume(TOPIC, GROUP, start="first"))

    @precondition(lambda self: self.consumers)
    @rule(index=some, count=st.integers(1, 10))
    def take(self, index: int, count: int) -> None:
        consumer = self.consumers[index % len(self.consumers)]
        for _ in range(count):
            message = consumer.poll()
            if message is None:
                return
            key = (str(message.queue), message.queue_offset)
            assert key not in self.held
            assert key not in self.done
            assert message.queue in consumer.queues
            self.held[key] = message

    @precondition(lambda self: self.held)
    @rule(index=some)
    def acknowledge(self, index: int) -> None:
        key = list(self.held)[index % len(self.held)]
        message = self.held.pop(key)
        assert message.ack()
        assert not message.ack()
        self.done.add(key)

    @precondition(lambda self: self.held)
    @rule(index=some)
    def give_up(self, index: int) -> None:
        key = list(self.held)[index % len(self.held)]
        assert self.held.pop(key).give_back(-1)
        self.done.add(key)
        self.dead_count += 1

    @precondition(lambda self: self.consumers)
    @rule(index=some)
    def close_consumer(self, index: int) -> None:
        consumer = self.consumers.pop(index % len(self.consumers))
        consumer.close()
        for key, message in list(self.held.items()):
            if message.consumer is consumer:
                assert not message.ack()
                del self.held[key]
        if not self.consumers:
            self.forget_what_no_offset_counts()

    def forget_what_no_offset_counts(self) -> None:
        """Without members a group is what its offsets say: what has gaps before it comes again."""
        get = self.store.consumer_offsets.get
        for queue in range(QUEUES):
            offset = get(TOPIC, GROUP, queue) or 0
            self.done = {
                (name, at) for name, at in self.done if name != f"{TOPIC}/{queue}" or at < offset
            }

    @rule(crash=st.booleans())
    def reopen(self, *, crash: bool) -> None:
        if crash:
            self.store.consumer_offsets.save()
            self.store.abandon()
        else:
            self.store.close()
        self.consumers.clear()
        self.held.clear()
        self.open()
        self.forget_what_no_offset_counts()

    @invariant()
    def offsets_pass_what_is_done_alone(self) -> None:
        for _, key, offset in read_offsets(self.store.layout).rows():
            for at in range(offset):
                assert (str(key), at) in self.done
        for queue in range(QUEUES):
            offset = self.store.consumer_offsets.get(TOPIC, GROUP, queue) or 0
            for at in range(offset):
                assert (f"{TOPIC}/{queue}", at) in self.done

    @invariant()
    def queues_have_one_reader(self) -> None:
        read = [queue for consumer in self.consumers for queue in consumer.queues]
        assert len(read) == len(set(read))

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        everything = {(f"{TOPIC}/{queue}", at) for queue in range(QUEUES)
                      for at in range(self.ends[queue])}  # fmt: skip
        self.join()
        while len(self.consumers) > 1:
            self.close_consumer(0)
        self.take(0, self.put_count + 1)
        assert set(self.held) == everything - self.done
        self.reopen(crash=False)
        rest = {
            (str(message.queue), message.queue_offset)
            for message in self.store.consume(
                TOPIC, GROUP, start="first", max_unacknowledged=self.put_count + 1
            )
        }
        assert rest == everything - self.done
        self.store.wait_dispatched()
        assert self.store.max_offset(DEAD, 0) == self.dead_count
        self.store.close()
        shutil.rmtree(self.root)


TestConsumers = ConsumerMachine.TestCase
TestConsumers.settings = settings(
    max_examples=30,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
