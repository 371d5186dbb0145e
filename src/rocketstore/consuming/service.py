"""All consumers of an open store: one `Group` for each name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from rocketstore.consuming.consumer import Consumer
from rocketstore.consuming.group import Group, GroupSubscription
from rocketstore.consuming.others import GroupClients, GroupMembers
from rocketstore.errors import ConfigError, InvalidNameError
from rocketstore.format.refusals import check_topic
from rocketstore.locks import Lock
from rocketstore.rules.topics import RETRY_PREFIX
from rocketstore.storage.attached import Service
from rocketstore.storage.reading.pages import parse_tags
from rocketstore.tables.groups import SubscriptionGroups
from rocketstore.tables.lags import lag_metrics

if TYPE_CHECKING:
    from rocketstore.storage.metric import Metric
    from rocketstore.storage.store import BaseStore
    from rocketstore.tables.consumer_offsets import ConsumerOffsetTable


class ConsumingService(Service):
    """Makes consumers and, when the store closes, ends them.

    It has the `settings` and the `members` of every group.
    """

    name = "consuming"

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._offsets: ConsumerOffsetTable = store.attached["consumer_offsets"]
        self.settings = SubscriptionGroups(
            store.layout, clock=store.clock, disk=store.disk, has_light=store.config.enable_lmq
        )
        self.members = GroupMembers()
        self._groups: dict[str, Group] = {}
        self._looked_at_from = 0
        self._lock = Lock()

    def consume(
        self, group: str, wanted: GroupSubscription, limit: int | None, idle_timeout_s: float | None
    ) -> Consumer:
        """Make a consumer; see `MessageStore.consume`."""
        self._store.check_open()
        if not wanted.topics:
            raise ConfigError("a consumer without a topic would wait for ever", key="topics")
        for topic in wanted.topics:
            check_topic(topic)
        if not group:
            raise InvalidNameError("a consumer group is a name, not ''")
        try:
            check_topic(RETRY_PREFIX + group)
        except InvalidNameError as error:
            what = f"consumer group {group!r:.40} has a retry topic: {error.message}"
            raise InvalidNameError(what, hint=error.hint) from error
        parse_tags(wanted.tags)
        most = wanted.max_unacknowledged
        if most < 1:
            raise ConfigError(
                f"max_unacknowledged={most}: expected at least 1",
                key="max_unacknowledged",
                value=most,
            )
        limit = self.settings.get(group).retry_max_times if limit is None else limit
        topics = tuple(sorted(wanted.topics))
        wanted = msgspec.structs.replace(wanted, topics=topics, max_reconsume_times=limit)
        with self._lock:
            return Consumer(self._joinable(group, wanted), self._offsets, idle_timeout_s)

    def _joinable(self, name: str, wanted: GroupSubscription) -> Group:
        group = self._groups.get(name)
        if group is None or not group.has_members:
            # Groups without a consumer are let go of here: the collector may end the last one.
            if len(self._groups) >= self._looked_at_from:  # not all for each that comes
                self._groups = {key: one for key, one in self._groups.items() if one.has_members}
                self._looked_at_from = 2 * len(self._groups)
            group = self._groups[name] = Group(
                name, wanted, self._store, self._offsets, self.members
            )
        elif group.subscription != wanted:
            # 4.9 takes it, and messages are lost (its clients' "subscription inconsistency").
            raise ConfigError(
                f"group {name} consumes {group.subscription} at the moment, not {wanted}",
                key="group",
                value=name,
                hint="give all consumers of a group the same topics, tags and limits",
            )
        return group

    def metrics(self) -> Iterator[Metric]:
        """Yield how far the groups are behind, including those that other processes consume for."""
        return lag_metrics(self._store)

    def note_clients(self, group: str, clients: GroupClients) -> None:
        """Take note of the clients of a group, with whom its consumers here share the queues."""
        if self.members.note_clients(group, clients) and (known := self._groups.get(group)):
            known.share_again()

    def stop(self) -> None:
        """Do nothing: consumers end as their store is closed, and the offsets save themselves."""
