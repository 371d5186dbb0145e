"""``config/topics.json``: the settings of each topic, and how a program changes them.

Law: all other fields stay, whether a broker or another program wrote them; so the file is read
again before each change, and one thread of a process changes it at a time. A kind changes only
under the append lock too (`TopicsOfKind.create`).

How derived: TopicConfigManager.updateTopicConfig of 4.9 (spec F13).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rocketstore.format.metadata_json import (
    TOPICS_FILE,
    MemberTexts,
    TopicConfig,
    TopicTable,
    decode_whole,
    dumps,
)
from rocketstore.locks import Lock
from rocketstore.storage.files.whole_file import KnownTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rocketstore.storage.files.disk import Disk
    from rocketstore.storage.layout import StoreLayout

TOPIC_TABLE: Final = "topicConfigTable"

_CHANGING: Final = Lock()


class TopicFile:
    """The file of an open store."""

    def __init__(self, layout: StoreLayout, *, clock: Callable[[], int], disk: Disk) -> None:
        self.path = layout.config / TOPICS_FILE
        self._clock = clock
        self._known = KnownTable(self.path, decoded_topics, disk)
        self._texts = MemberTexts()

    def read(self) -> dict[str, Any] | None:
        """Return the whole content, None without a file; raises `FormatError`."""
        return self._known.read()

    def mark(
        self, topic: str, queue_count: int, marks: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> None:
        """Change the settings of a topic; a new topic is made with this number of queues.

        `marks` gets its settings, empty for a new topic, and returns the new ones.
        """
        fresh = TopicConfig(
            topic_name=topic, read_queue_nums=queue_count, write_queue_nums=queue_count
        )
        made = msgspec.to_builtins(fresh)
        self.change({topic: lambda known: {**(known or made), **marks(known)}})

    def change(
        self, changes: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]
    ) -> None:
        """Change the settings of some topics by one write, from what is known of each, if any."""
        with _CHANGING:
            table = self.read() or {}
            topics = table.get(TOPIC_TABLE, {})
            changed = {
                topic: dict(sorted(change(topics.get(topic) or {}).items()))
                for topic, change in changes.items()
            }
            version = table.get("dataVersion") or {}
            counter, now_ms = version.get("counter", 0) + 1, self._clock()
            version = {**version, "counter": counter, "timestamp": now_ms}
            table = {**table, "dataVersion": version, TOPIC_TABLE: topics | changed}
            text = dumps({**table, TOPIC_TABLE: self._texts.of(table[TOPIC_TABLE])})
            self._known.write(text.encode(), table)


decoded_topics: Final = partial(decode_whole, table=TopicTable)
"""Returns the whole content of the file; raises `FormatError`."""
