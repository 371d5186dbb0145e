"""MessageStore: the store with the services that work on it while it is open.

`storage.store.BaseStore` puts, reads, flushes and recovers. What RocketMQ's broker does on top of
its store, each a room of its own (delays, transactions, replication, …), is joined to it here: a
service that is on is attached, started after the store's own threads and stopped before them.

How derived: DefaultMessageStore.start and BrokerController of 4.9 (spec B1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.consumer_offsets import ConsumerOffsetTable
from rocketstore.storage.store import BaseStore

if TYPE_CHECKING:
    from rocketstore.storage.opening import StoreParts


class MessageStore(BaseStore):
    """A store that this process writes, with its services; made by `MessageStore.open`.

    Attributes
    ----------
    consumer_offsets
        Where each group goes on in each queue.
    """

    def __init__(self, parts: StoreParts, *wrong: object, threads: bool = True) -> None:
        super().__init__(parts, *wrong, threads=threads)
        self.consumer_offsets = ConsumerOffsetTable(self.layout, flush=self.flush, disk=parts.disk)
        # First, so that it is stopped last: the other services may set offsets until they end.
        self.attached.append(self.consumer_offsets)
