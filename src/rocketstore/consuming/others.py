"""Who is in a group besides the consumers of this process: clients of a broker.

Both share the queues of a group by one rule, which each member applies for itself: all members in
the order of their ids, all queues in their order. This works only while this process and the
clients know the same members and the same queues.

Law: every change here is reported to the callbacks of `watch`: a client learns of a consumer that
joined or left, and consumers share again when a client did.

How derived: RebalanceImpl.rebalanceByTopic of 4.9's client.
"""

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple


class GroupClients(NamedTuple):
    """The clients of a group by their ids, and how many queues they know of each topic."""

    ids: tuple[str, ...] = ()
    queue_counts: Mapping[str, int] = {}


NO_CLIENTS = GroupClients()


class GroupMembers:
    """The members of all groups of a store, by their ids, of this process and of others."""

    def __init__(self) -> None:
        self._clients: dict[str, GroupClients] = {}
        self._own: dict[str, tuple[str, ...]] = {}
        self._watchers: tuple[Callable[[str], object], ...] = ()
        self._count = 0

    def next_id(self) -> str:
        """Return an id for a consumer of this process, as clients have them."""
        self._count += 1
        return f"127.0.0.1@{os.getpid()}#{self._count}"

    def watch(self, note: Callable[[str], object]) -> None:
        """Call `note` with the name of a group whose consumers in this process changed."""
        self._watchers = (*self._watchers, note)

    def own(self, group: str) -> tuple[str, ...]:
        """Return the consumers of this process."""
        return self._own.get(group, ())

    def note_own(self, group: str, ids: tuple[str, ...]) -> None:
        """Take note of the consumers that a group has in this process."""
        if ids != self.own(group):
            if ids:
                self._own[group] = ids
            else:
                self._own.pop(group, None)
            for note in self._watchers:
                note(group)

    def clients(self, group: str) -> GroupClients:
        """Return the clients of a group."""
        return self._clients.get(group, NO_CLIENTS)

    def note_clients(self, group: str, clients: GroupClients) -> bool:
        """Take note of the clients of a group; whether they, or their queues, changed."""
        changed = clients != self.clients(group)
        if clients.ids:
            self._clients[group] = clients
        else:
            self._clients.pop(group, None)
        return changed
