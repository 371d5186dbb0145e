"""What the numbers of an open store are taken from, when somebody asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rocketstore.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rocketstore.storage.store import BaseStore
    from rocketstore.tables.consumer_offsets import ConsumerOffsetTable
    from rocketstore.verification.damage_map import DamageMap


class GroupPlace(NamedTuple):
    """Where a group is in a queue: `first` is the oldest message there that it has not consumed."""

    queue_id: int
    first: int
    end: int

    @property
    def lag(self) -> int:
        """How many messages it has not consumed."""
        return max(self.end - self.first, 0)


@dataclass(frozen=True)
class Sources:
    """A store, and what its services know: damage, offsets of the groups, the time."""

    store: BaseStore

    @property
    def now_ms(self) -> Callable[[], int]:
        """The store's clock."""
        return self.store.clock

    def damage_map(self) -> DamageMap:
        """Return what the check of old files knows."""
        known: DamageMap = self.store.attached["scrub"].known
        return known

    def places_of_groups(self) -> Iterator[tuple[tuple[str, str], list[GroupPlace]]]:
        """Yield topic and group, and where that is; nothing from a table that is broken.

        Consumers are told of that one; the other numbers are no less true.
        """
        try:
            table: ConsumerOffsetTable = self.store.attached["consumer_offsets"]
            offsets = table.snapshot()
        except FormatError:
            return
        for name, queues in sorted(offsets.items()):
            topic, _, group = name.partition("@")
            yield (
                (topic, group),
                [
                    GroupPlace(queue_id, at, self.store.max_offset(topic, queue_id))
                    for queue_id, at in queues.items()
                ],
            )
