"""MessageStore: the store with the services that work on it while it is open.

`storage.store.BaseStore` puts, reads, flushes and recovers. What RocketMQ's broker does on top of
its store, each a room of its own (delays, transactions, replication, …), is joined to it here: a
service that is on is attached, started after the store's own threads and stopped before them.

How derived: DefaultMessageStore.start and BrokerController of 4.9 (spec B1).
"""

from __future__ import annotations

from rocketstore.storage.store import BaseStore


class MessageStore(BaseStore):
    """A store that this process writes, with its services; made by `MessageStore.open`."""
