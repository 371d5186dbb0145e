"""Who is connected: producers and consumers by group, and what each group subscribes to.

Law: a pure table; times are passed in, and nothing is sent from here. A client is known by its
connection, as in 4.9: it goes with that, and from a group that it did not name for `SILENT_MS`.

How derived: ProducerManager, ConsumerManager and ConsumerGroupInfo of 4.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocketstore.remoting.codes import Language
    from rocketstore.remoting.requests import Peer

SILENT_MS: Final = 120_000
"""After which a client without a heartbeat is dropped (CHANNEL_EXPIRED_TIMEOUT)."""

TAG: Final = "TAG"
"""The type of an expression that lists tags; unset or empty means it too."""

NO_FILTER: Final = "The broker does not support consumer to filter message by"


class Client(msgspec.Struct):
    """One client on one connection."""

    client_id: str
    peer: Peer
    language: Language | None
    version: int
    heard_ms: int


class Subscription(msgspec.Struct, frozen=True, rename="camel"):
    """What a group wants of a topic (SubscriptionData).

    The last three are told to administrators as clients say them: tags and their hashes are in
    `sub_string`.
    """

    topic: str
    sub_string: str = "*"
    sub_version: int = 0
    expression_type: str | None = TAG
    class_filter_mode: Any = False
    tags_set: Any = []
    code_set: Any = []

    @property
    def is_by_tags(self) -> bool:
        """Whether the expression lists tags (ExpressionType.isTagType)."""
        return self.expression_type in (None, "", TAG)


class ConsumerGroup:
    """A group of consumers that are connected; how they consume, the last heartbeat said.

    `told_ids` is the reply to each client that asks who else there is; empty once one came or went.
    """

    def __init__(self) -> None:
        self.clients: dict[Peer, Client] = {}
        self.consume_type = self.message_model = self.consume_from = ""
        self.subscriptions: dict[str, Subscription] = {}
        self._speakers: dict[str, Peer] = {}
        self.told_ids = b""

    @property
    def is_broadcast(self) -> bool:
        """Whether each consumer of it gets every message."""
        return self.message_model == "BROADCASTING"

    @property
    def client_ids(self) -> list[str]:
        """The clients, in the order in which they came, each once."""
        return [*dict.fromkeys(client.client_id for client in self.clients.values())]

    def subscribe(self, wanted: Iterable[Subscription], peer: Peer) -> bool:
        """Take what a client's heartbeat says; whether a topic came or went.

        What another member said of a topic stays unless this is newer, by the clocks of clients.
        """
        new = {one.topic: one for one in wanted}
        changed = new.keys() != self.subscriptions.keys()
        for topic, one in new.items():
            known, speaker = self.subscriptions.get(topic, one), self._speakers.get(topic, peer)
            is_free = speaker is peer or speaker not in self.clients
            if is_free or one.sub_version > known.sub_version:
                version = max(one.sub_version, known.sub_version)  # which pulls go by
                self.subscriptions[topic] = msgspec.structs.replace(one, sub_version=version)
                self._speakers[topic] = peer
        for topic in self.subscriptions.keys() - new.keys():
            del self.subscriptions[topic], self._speakers[topic]
        return changed


class Clients:
    """All producers and consumers of a broker; `named` are the producers by their ids."""

    def __init__(self) -> None:
        self.producers: dict[str, dict[Peer, Client]] = {}
        self.named: dict[str, Client] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[Peer, set[str]] = {}

    # --- producers ------------------------------------------------------------------------------

    def add_producer(self, group: str, client: Client) -> None:
        """Take note of a producer's heartbeat."""
        known = self.producers.setdefault(group, {})
        self._unname(known.get(client.peer))
        known[client.peer] = self.named[client.client_id] = client
        self._groups_of.setdefault(client.peer, set()).add(group)

    def remove_producer(self, group: str, peer: Peer) -> None:
        """Let a producer go."""
        known = self.producers.get(group, {})
        self._unname(known.pop(peer, None))  # Compatible: though it may be in another group
        if not known:
            self.producers.pop(group, None)

    def _unname(self, client: Client | None) -> None:
        if client is not None and self.named.get(client.client_id) is client:
            del self.named[client.client_id]

    def next_producer(self, group: str) -> Client | None:
        """Return the producer whose turn it is to be asked, None where there is none."""
        if not (known := self.producers.get(group)):
            return None
        peer = next(iter(known))
        known[peer] = client = known.pop(peer)  # its next turn comes after all others'
        return client

    # --- consumers ------------------------------------------------------------------------------

    def add_consumer(self, name: str, client: Client) -> tuple[ConsumerGroup, bool]:
        """Take note of a consumer's heartbeat; return its group, and whether it is new there."""
        group = self.consumers.setdefault(name, ConsumerGroup())
        known = group.clients.get(client.peer)
        is_new = known is None or known.client_id != client.client_id
        group.clients[client.peer] = client
        self._groups_of.setdefault(client.peer, set()).add(name)
        if is_new:
            group.told_ids = b""
        return group, is_new

    def remove_consumer(self, name: str, peer: Peer) -> bool:
        """Let a consumer go; whether it was one."""
        group = self.consumers.get(name)
        if group is None or group.clients.pop(peer, None) is None:
            return False
        group.told_ids = b""
        if not group.clients:
            del self.consumers[name]
        return True

    # --- those who left -------------------------------------------------------------------------

    def disconnect(self, peer: Peer) -> list[str]:
        """Let go of a connection; return the groups that lost a consumer by it."""
        names = sorted(self._groups_of.pop(peer, ()))
        for name in names:
            self.remove_producer(name, peer)
        return [name for name in names if self.remove_consumer(name, peer)]

    def expire(self, now_ms: int) -> list[str]:
        """Let go of those whose group no heartbeat named for too long; return consumers' groups."""

        def silent(clients: dict[Peer, Client]) -> list[Peer]:
            return [peer for peer, one in clients.items() if now_ms - one.heard_ms > SILENT_MS]

        for name, clients in list(self.producers.items()):
            for peer in silent(clients):
                self.remove_producer(name, peer)
        groups = self.consumers.items()
        gone = [(name, peer) for name, group in groups for peer in silent(group.clients)]
        return [name for name, peer in gone if self.remove_consumer(name, peer)]
