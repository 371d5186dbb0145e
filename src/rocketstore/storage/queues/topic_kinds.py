"""Which topics of a store are not like others: resolved by every opening, whatever class it makes.

A batch topic (``"queue.type": "BatchCQ"`` in ``config/topics.json``) has queues of 5.x; a memory
topic (``"memory": true``, where ``memoryTopicEnable`` is on) has none on the disk.

Law: a put that no consumer would find is refused by name, whichever class opened the store. A kind
changes only under the append lock (`StoreParts.becoming`), so no message is put meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocketstore.config import BrokerRole
from rocketstore.events import get_logger
from rocketstore.format.metadata_json import TOPICS_FILE, TopicTable, decode_table, loads
from rocketstore.rules.topics import is_reserved
from rocketstore.storage.files.whole_file import read_with_backup
from rocketstore.storage.queues.queue_listing import batch_topics_in

if TYPE_CHECKING:
    from rocketstore.config import StoreConfig
    from rocketstore.storage.layout import StoreLayout

TOPIC_TABLE: Final = "topicConfigTable"

_log: Final = get_logger(__name__)


class TopicKinds:
    """The topics of each kind at the moment; `in` says whether a topic is of one.

    `enters_batches` is set by what enters batches into queues: without it nothing is put to a batch
    topic. A store that is opened `learns` from a record with a batch that its topic is one.
    """

    enters_batches = learns = False

    def __init__(
        self, batch: frozenset[str] = frozenset(), memory: frozenset[str] = frozenset()
    ) -> None:
        self.batch, self.memory = batch, memory

    def read(self, layout: StoreLayout, config: StoreConfig) -> TopicKinds:
        """Take what the table says; raises where it has lost batch topics, or cannot be read."""
        self.batch = batch_topics_in(layout)
        if config.memory_topic_enable and config.broker_role is not BrokerRole.SLAVE:
            self.memory = memory_topics_in(layout)
        return self

    def __contains__(self, topic: object) -> bool:
        return topic in self.batch or topic in self.memory

    def refusal(self, topic: str) -> str | None:
        """Return why no consumer of a topic would find what is put to the log; None: they would."""
        if topic in self.memory:
            return f"{topic} is a memory topic: only the program that keeps it puts there"
        if topic in self.batch and not self.enters_batches:
            return f"{topic} is a batch topic: only a MessageStore fills its queues"
        return None


def topic_table(layout: StoreLayout) -> dict[str, Any]:
    """Return everything that ``topics.json`` says, or raise `FormatError`."""
    return read_with_backup(layout.config / TOPICS_FILE, decoded_topics) or {}


def decoded_topics(content: bytes) -> dict[str, Any]:
    """Return everything that stands in the file; raises `FormatError`."""
    decode_table(content, TopicTable)  # judges the types
    loaded: dict[str, Any] = loads(content)
    return loaded


def memory_topics_in(layout: StoreLayout) -> frozenset[str]:
    """Return the topics that the table marks; raises `FormatError` where it is broken."""
    topics = topic_table(layout).get(TOPIC_TABLE, {}).items()
    marked = [name for name, one in topics if one.get("memory") is True]
    for name in filter(is_reserved, marked):
        _log.warning("memory.topic_ignored", topic=name, why="a broker reserves its name")
    return frozenset(name for name in marked if not is_reserved(name))
