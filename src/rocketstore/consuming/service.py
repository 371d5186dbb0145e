"""All consumers of an open store: one `Group` for each name."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal

from rocketstore.consuming.consumer import Consumer
from rocketstore.consuming.giving_back import RETRY_LIMIT
from rocketstore.consuming.group import UNACKNOWLEDGED_LIMIT, Group, Subscription
from rocketstore.errors import ConfigError, InvalidNameError
from rocketstore.format.metadata_json import (
    SUBSCRIPTION_GROUPS_FILE,
    SubscriptionGroupTable,
    decode_table,
)
from rocketstore.format.refusals import check_topic
from rocketstore.rules.topics import RETRY_PREFIX
from rocketstore.storage.files.whole_file import read_with_backup
from rocketstore.storage.reading.pages import parse_tags

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocketstore.storage.store import BaseStore
    from rocketstore.tables.consumer_offsets import ConsumerOffsetTable


class ConsumingService:
    """Makes consumers and, when the store closes, ends them; a package above storage."""

    def __init__(self, store: BaseStore, offsets: ConsumerOffsetTable) -> None:
        self._store = store
        self._offsets = offsets
        self._groups: dict[str, Group] = {}
        self._lock = threading.Lock()

    def consume(  # noqa: PLR0913 - settings by name, all but two with defaults
        self,
        topics: str | Iterable[str],
        group: str,
        *,
        tags: str | None = None,
        start: Literal["first", "last"] | int = "last",
        idle_timeout_s: float | None = None,
        max_reconsume_times: int | None = None,
        max_unacknowledged: int = UNACKNOWLEDGED_LIMIT,
    ) -> Consumer:
        """Make a consumer; see `MessageStore.consume`."""
        self._store.check_open()
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        for topic in names:
            check_topic(topic)
        if not isinstance(group, str) or not group:
            raise InvalidNameError(f"a consumer group is a name, not {group!r:.40}")
        check_topic(RETRY_PREFIX + group)
        parse_tags(tags)
        if start not in ("first", "last") and type(start) is not int:
            raise ConfigError(
                f"start={start!r:.40}: a group begins first, last, or at a time in ms",
                key="start",
                value=start,
            )
        if max_unacknowledged < 1:
            raise ConfigError(
                f"max_unacknowledged={max_unacknowledged} lets no message be delivered",
                key="max_unacknowledged",
                value=max_unacknowledged,
            )
        limit = self._retry_limit(group) if max_reconsume_times is None else max_reconsume_times
        wanted = Subscription(tuple(sorted(names)), tags, start, limit, max_unacknowledged)
        with self._lock:
            return Consumer(self._joinable(group, wanted), self._offsets, idle_timeout_s)

    def _joinable(self, name: str, wanted: Subscription) -> Group:
        group = self._groups.get(name)
        if group is None or not group.has_members:
            group = self._groups[name] = Group(name, wanted, self._store, self._offsets)
        elif group.subscription != wanted:
            # 4.9 takes it, and messages are lost (its clients' "subscription inconsistency").
            raise ConfigError(
                f"group {name} consumes {group.subscription} at the moment, not {wanted}",
                key="group",
                value=name,
                hint="give all consumers of a group the same topics, tags and limits",
            )
        return group

    def _retry_limit(self, group: str) -> int:
        """Return how often a group may try, which a broker's table says."""
        path = self._store.layout.config / SUBSCRIPTION_GROUPS_FILE
        table = read_with_backup(path, lambda text: decode_table(text, SubscriptionGroupTable))
        known = None if table is None else table.subscription_group_table.get(group)
        return RETRY_LIMIT if known is None else known.retry_max_times

    def start(self) -> None:
        """Do nothing: what has to be done is done by those who consume."""

    def stop(self) -> None:
        """End all consumers; the offsets save themselves."""
        for group in list(self._groups.values()):
            group.end()
