"""``config/topics.json``: the settings of each topic, and how a program changes such a table.

Law: all other fields stay, whether a broker or another program wrote them; so the file is read
again before each change, and one thread of a process changes it at a time. A kind changes only
under the append lock too (`TopicsOfKind.create`).

How derived: TopicConfigManager.updateTopicConfig of 4.9 (spec F13).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    from pathlib import Path

    from rocketstore.storage.files.disk import Disk
    from rocketstore.storage.layout import StoreLayout

TOPIC_TABLE: Final = "topicConfigTable"

_CHANGING: Final = Lock()


class SettingsFile:
    """A file of an open store, whose member `table` has settings by name."""

    def __init__(
        self, path: Path, table: str, decode: Callable[[bytes], dict[str, Any]], *,
        clock: Callable[[], int], disk: Disk,
    ) -> None:  # fmt: skip
        self.path = path
        self._table, self._clock = table, clock
        self._known = KnownTable(path, decode, disk)
        self._texts = MemberTexts()

    def read(self) -> dict[str, Any] | None:
        """Return the whole content, None without a file; raises `FormatError`."""
        return self._known.read()

    def settle(self, said: Mapping[str, msgspec.Struct]) -> dict[str, Any]:
        """Write settings by their names, and keep what is known there besides; as `change`."""
        return self.change({name: partial(_settled, one) for name, one in said.items()})

    def change(
        self, changes: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]
    ) -> dict[str, Any]:
        """Change settings by one write, from what is known of each; return the whole content."""
        with _CHANGING:
            content = self.read() or {}
            known = content.get(self._table, {})
            changed = {
                name: dict(sorted(change(known.get(name) or {}).items()))
                for name, change in changes.items()
            }
            version = content.get("dataVersion") or {}
            counter, now_ms = version.get("counter", 0) + 1, self._clock()
            version = {**version, "counter": counter, "timestamp": now_ms}
            content = {**content, "dataVersion": version, self._table: known | changed}
            text = dumps({**content, self._table: self._texts.of(content[self._table])})
            self._known.write(text.encode(), content)
        return content


def _settled(said: msgspec.Struct, known: Mapping[str, Any]) -> dict[str, Any]:
    plain = msgspec.to_builtins(said)
    return {**known, **{name: one for name, one in plain.items() if one is not None}}


class TopicFile(SettingsFile):
    """The file of topics."""

    def __init__(self, layout: StoreLayout, *, clock: Callable[[], int], disk: Disk) -> None:
        path = layout.config / TOPICS_FILE
        super().__init__(path, TOPIC_TABLE, decoded_topics, clock=clock, disk=disk)

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


decoded_topics: Final = partial(decode_whole, table=TopicTable)
"""Returns the whole content of the file; raises `FormatError`."""
