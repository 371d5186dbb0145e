"""The topics of a broker: how many queues each has and who may use it, by ``topics.json``.

Law: a change is on the disk, with a newer `DataVersion`, before the call returns. Topics that the
broker has from its start (`system`) are not in the file before a broker of 4.9 writes them there.

How derived: TopicConfigManager and LmqTopicConfigManager of 4.9 (spec F13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rocketstore.format.metadata_json import DataVersion, TopicConfig, TopicTable, table_of
from rocketstore.format.queue_entry import LMQ_PREFIX
from rocketstore.rules.limits import MOST_QUEUES, with_queues_limited
from rocketstore.storage.files.disk import Disk, system_errors
from rocketstore.storage.queues.topic_file import TopicFile

if TYPE_CHECKING:
    from rocketstore.storage.layout import StoreLayout

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4
"""Bits of `TopicConfig.perm` (PermName)."""


def perm_text(perm: int) -> str:
    """Return permissions as 4.9 writes them (PermName.perm2String)."""
    letters = ((PERM_READ, "R"), (PERM_WRITE, "W"), (PERM_INHERIT, "X"))
    return "".join(letter if perm & bit else "-" for bit, letter in letters)


class TopicSettings:
    """The topics of one open store; `system` are those that it has without a file.

    Where it `has_light` queues, each is a topic of one queue, which no table names.

    `content` has every topic by its name, and of which version they are; it is another object after
    each change. `made_ms` is when this was made.
    """

    def __init__(
        self, layout: StoreLayout, *, clock: Callable[[], int], disk: Disk,
        system: Iterable[TopicConfig] = (), has_light: bool = False,
    ) -> None:  # fmt: skip
        self._light = (LMQ_PREFIX,) if has_light else ()  # what their names begin with
        self._file = TopicFile(layout, clock=clock, disk=disk)
        self._system = {topic.topic_name: topic for topic in system}
        self.made_ms = clock()
        self._changed_ns = -1
        self.content = TopicTable(DataVersion(timestamp=self.made_ms))
        self._load()

    def get(self, name: str) -> TopicConfig | None:
        """Return a topic, or None; a topic that another program added since is found."""
        if name.startswith(self._light):
            return TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1)
        topic = self.content.topic_config_table.get(name)
        if topic is None and self._file_time() != self._changed_ns:
            self._load()
            topic = self.content.topic_config_table.get(name)
        return topic

    @system_errors("cannot save the settings of topics")
    def settle(self, *topics: TopicConfig) -> None:
        """Make topics, or change them, by one write.

        Raises `StoreError` where the file cannot be written, `FormatError` where it and its backup
        are broken; nothing changed then.
        """
        made = {one.topic_name: one for one in topics}
        self._file.settle({one: made[one] for one in made if not one.startswith(self._light)})
        self._load()

    def _load(self) -> None:
        self._changed_ns = self._file_time()
        content = self._file.read()
        read = TopicTable() if content is None else table_of(content, TopicTable)
        topics = self._system | read.topic_config_table
        for name, one in read.topic_config_table.items():
            if one.read_queue_nums > MOST_QUEUES or one.write_queue_nums > MOST_QUEUES:
                topics[name] = with_queues_limited(one)
        self.content = TopicTable(read.data_version or self.content.data_version, topics)

    def _file_time(self) -> int:
        try:
            return self._file.path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0
