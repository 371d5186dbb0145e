"""A store with transactions that a test opens, kills at any put, and opens again."""

from pathlib import Path

from rocketstore import MessageStore, PutResult, StoreConfig, StoredMessage
from rocketstore.native.log_end import Record
from rocketstore.storage.reading.messages import messages_of
from rocketstore.transaction.records import HALF, OP
from rocketstore.units import QueueKey
from support.clock import Clock
from support.killed import Killed
from support.small_store import CONFIG


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

    def kill_at_put(self, number: int, *, after: bool) -> None:
        """Let the put of a record of that number, from 0 on, be the last thing that happens."""
        real, left = self.store.put_record, [number]

        def put_record(
            topic: str, queue_id: int, record: Record, *, wait_flush: bool = True
        ) -> PutResult:
            left[0] -= 1
            if left[0] < 0 and not after:
                raise Killed
            result = real(topic, queue_id, record, wait_flush=wait_flush)
            if left[0] < 0:
                raise Killed
            return result

        self.store.put_record = put_record  # type: ignore[method-assign]


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
