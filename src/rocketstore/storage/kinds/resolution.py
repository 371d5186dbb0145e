"""Which kinds of topics a store knows, by the way in which it is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rocketstore.config import BrokerRole, StoreConfig, StoreSizes
from rocketstore.storage.kinds.batch_topics import BatchQueues, BatchTopics
from rocketstore.storage.kinds.memory_topics import MemoryTopics
from rocketstore.storage.queues.topic_file import TopicFile
from rocketstore.storage.queues.topic_kinds import TopicKind, TopicKinds

if TYPE_CHECKING:
    from rocketstore.storage.files.disk import Disk
    from rocketstore.storage.layout import StoreLayout
    from rocketstore.storage.reading.pread_log import PreadLog


def kinds_of_reader(layout: StoreLayout, log: PreadLog) -> TopicKinds:
    """Return the kinds of a store that is only read: what is in memory is in another process."""
    return TopicKinds([BatchQueues(layout, log.batch_queues)]).read(layout)


def kinds_of(  # noqa: PLR0913 - what a store is made of, by name but for where it is
    layout: StoreLayout, config: StoreConfig, sizes: StoreSizes, *, disk: Disk,
    clock: Callable[[], int], keeps_memory: bool, more: Iterable[Callable[[], TopicKind]] = (),
    learns: bool = False,
) -> TopicKinds:  # fmt: skip
    """Return the kinds that a store knows that is written, before its table is read.

    One that `keeps_memory` has memory topics if its settings say so; any other refuses them. A
    slave has none. `more` make kinds from outside of the package; for `learns` see `TopicKinds`.
    """
    file = TopicFile(layout, clock=clock, disk=disk)
    known: list[TopicKind] = [BatchTopics(layout, config, sizes, file, disk=disk)]
    is_slave = config.broker_role is BrokerRole.SLAVE
    if not is_slave and (config.memory_topic_enable or not keeps_memory):
        known.append(MemoryTopics(config, clock=clock, keeps=keeps_memory))
    return TopicKinds([*known, *(make() for make in more)], learns=learns)
