"""How far consumer groups are behind the queues that they consume."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from rocketstore.errors import FormatError
from rocketstore.storage.metric import Metric

if TYPE_CHECKING:
    from rocketstore.storage.store import BaseStore
    from rocketstore.tables.consumer_offsets import ConsumerOffsetTable


class GroupPlace(NamedTuple):
    """Where a group is in a queue: `first` is the oldest message there that it has not consumed."""

    queue_id: int
    first: int
    end: int

    @property
    def lag(self) -> int:
        """How many messages it has not consumed."""
        return max(self.end - self.first, 0)


def places_of_groups(store: BaseStore) -> Iterator[tuple[tuple[str, str], list[GroupPlace]]]:
    """Yield topic, group and where the group is; nothing from a broken table.

    A broken table is reported to consumers; the other numbers are true all the same.
    """
    table: ConsumerOffsetTable = store.attached["consumer_offsets"]
    try:
        offsets = table.snapshot()
    except FormatError:
        return
    for name, queues in sorted(offsets.items()):
        topic, _, group = name.partition("@")
        places = [
            GroupPlace(queue_id, max(at, 0), store.max_offset(topic, queue_id))
            for queue_id, at in queues.items()
        ]
        yield (topic, group), places


def lag_metrics(store: BaseStore) -> Iterator[Metric]:
    """Yield how many messages the groups have not consumed, and how old the oldest of them is."""
    lags: dict[tuple[str, ...], float] = {}
    ages: dict[tuple[str, ...], float] = {}
    now_ms = store.clock()
    for (topic, group), places in places_of_groups(store):
        behind = [one for one in places if one.lag]
        lags[topic, group] = sum(one.lag for one in behind)
        times = [_begun_ms(store, topic, one, now_ms) for one in behind]
        oldest_ms = min((one for one in times if one is not None), default=now_ms)
        ages[topic, group] = max(now_ms - oldest_ms, 0)
    labels = "topic", "consumer_group"
    text = "Messages of a topic that a group has not consumed."
    yield Metric("gauge", "rocketmq_consumer_lag_messages", text, lags, labels)
    text = "Age in ms of the oldest message of a topic that a group has not consumed."
    yield Metric("gauge", "rocketmq_consumer_lag_latency", text, ages, labels)


def _begun_ms(store: BaseStore, topic: str, place: GroupPlace, now_ms: int) -> int | None:
    """Return since when a message waits: for one stored in the future, since its birth."""
    queue_id = place.queue_id
    offset = max(place.first, store.min_offset(topic, queue_id))
    stored_ms = store.store_timestamp(topic, queue_id, offset)
    if stored_ms is None or stored_ms <= now_ms:
        return stored_ms
    messages = store.get(topic, queue_id, offset, 1).messages
    return messages[0].born_timestamp_ms if messages else stored_ms
