"""A model of a batch topic against the store: puts of all kinds, gets anywhere, crashes."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rocketstore import Message
from rocketstore.format.client_batch import encode_client_batch
from support.batch_stores import BATCHES, PLAIN, bodies, open_batches
from support.memory import memory_directory
from support.reading import pages_of

SIZES = st.integers(1, 6)


class BatchQueueMachine(RuleBasedStateMachine):
    """What was put is read, at its number, whatever happened between."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = memory_directory()
        self.root = self.memory.__enter__() / "store"
        self.model: list[str] = []
        self.records = 0
        self.store: Any = None

    @initialize()
    def begin(self) -> None:
        self.open()

    def open(self) -> None:
        self.store = open_batches(self.root, mapped_file_size_batch_queue=46 * 4)

    def named(self, count: int) -> list[str]:
        names = [f"{self.records}.{part}" for part in range(count)]
        self.records += 1
        return names

    def took(self, result: Any, names: list[str]) -> None:
        assert (result.queue_offset, result.message_count) == (len(self.model), len(names))
        self.model += names

    @rule(count=SIZES)
    def put_batch(self, count: int) -> None:
        names = self.named(count)
        messages = [Message(topic=BATCHES, body=name.encode()) for name in names]
        self.took(self.store.put_batch(messages), names)

    @rule(count=SIZES)
    def put_client_batch(self, count: int) -> None:
        names = self.named(count)
        batch = encode_client_batch((0, name.encode(), b"") for name in names)
        self.took(self.store.put_client_batch(BATCHES, 0, batch), names)

    @rule()
    def put_one(self) -> None:
        names = self.named(1)
        self.took(self.store.put(Message(topic=BATCHES, body=names[0].encode())), names)

    @rule()
    def put_elsewhere(self) -> None:
        self.store.put(Message(topic=PLAIN, body=b"p"))

    @rule(offset=st.integers(0, 40), most=st.integers(1, 9))
    def get(self, offset: int, most: int) -> None:
        self.store.wait_dispatched()
        page = self.store.get(BATCHES, 0, offset, most)
        expected = list(enumerate(self.model))[offset : offset + most]
        assert bodies(page) == expected
        if expected:
            assert page.next_offset == offset + len(expected)

    @rule(crashes=st.booleans())
    def open_again(self, crashes: bool) -> None:  # noqa: FBT001 - drawn
        self.store.abandon() if crashes else self.store.close()
        self.open()

    @invariant()
    def limits_are_those_of_the_model(self) -> None:
        if self.store is not None:
            assert self.store.next_queue_offset(BATCHES, 0) == len(self.model)

    def teardown(self) -> None:
        if self.store is not None:
            self.store.close()
            with open_batches(self.root) as store:
                found = [one for page in pages_of(store, BATCHES) for one in bodies(page)]
            assert found == list(enumerate(self.model))
        self.memory.__exit__(None, None, None)


TestBatchQueue = BatchQueueMachine.TestCase
TestBatchQueue.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
