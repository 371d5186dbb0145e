"""A store with transactions that a test opens, kills at any put, and opens again."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rocketstore import MessageStore, PutMessageStatus, PutResult, StoreConfig, StoredMessage
from rocketstore.storage.reading.reader import messages_of
from rocketstore.transaction.records import HALF, OP
from rocketstore.units import QueueKey
from support.clock import Clock
from support.killed import Killed
from support.small_store import CONFIG

Put = Callable[..., PutResult]


class TransactionStores:
    """A store that is opened, killed and opened again."""

    def __init__(self, root: Path, config: StoreConfig = CONFIG) -> None:
        self.root, self.config = root, config
        self.clock = Clock()
        self.store = self._opened()

    def _opened(self) -> MessageStore:
        return MessageStore.open(self.root, self.config, clock=self.clock, threads=False)

    def reopen(self, *, killed: bool) -> MessageStore:
        """End the store, in order or not, and open it a second later."""
        if killed:
            self.store.abandon()
        else:
            self.store.close()
        self.clock.now_ms += 1000
        self.store = self._opened()
        return self.store

    @contextmanager
    def kill_at_put(self, number: int = 0, *, after: bool = True) -> Iterator[None]:
        """Let the put of a record of that number, from 0 on, be the last thing in a block."""
        left = [number]

        def put_record(real: Put, *place: Any, **named: Any) -> PutResult:
            left[0] -= 1
            if left[0] < 0 and not after:
                raise Killed
            result = real(*place, **named)
            if left[0] < 0:
                raise Killed
            return result

        with putting_by(self.store, put_record):
            yield

    @contextmanager
    def killed_at_put(self, number: int = 0, *, after: bool = True) -> Iterator[None]:
        """The same, where there must be such a put."""
        with pytest.raises(Killed), self.kill_at_put(number, after=after):
            yield


@contextmanager
def putting_by(store: MessageStore, put_record: Callable[..., PutResult]) -> Iterator[None]:
    """Put records in a block by a function that gets the method of the store besides."""
    real = store.put_record
    store.put_record = partial(put_record, real)  # type: ignore[method-assign]
    try:
        yield
    finally:
        store.put_record = real  # type: ignore[method-assign]


def refusing(store: MessageStore, topic: str) -> AbstractContextManager[None]:
    """Let puts into a topic be refused in a block."""

    def put_record(real: Put, name: str, *rest: Any, **named: Any) -> PutResult:
        if name == topic:
            return PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, detail="full")
        return real(name, *rest, **named)

    return putting_by(store, put_record)


def all_of(store: MessageStore, queue: QueueKey) -> list[StoredMessage]:
    """Return every message of a queue."""
    store.wait_dispatched()
    return list(messages_of(store, queue, 0))


def halves(store: MessageStore) -> list[StoredMessage]:
    """Return every half message, ended ones too."""
    return all_of(store, HALF)


def ended(store: MessageStore) -> list[bytes]:
    """Return the bodies of the op messages."""
    return [op.body for op in all_of(store, OP)]
