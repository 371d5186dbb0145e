"""Memory topics: topics whose messages live in this process and in no file.

A topic is one if ``config/topics.json`` says ``"memory": true`` of it and ``memoryTopicEnable`` is
on; else it is a topic like any other. A store that is opened only for some puts would keep a
message for no reader, so it refuses such a topic by name, whatever its own setting says. Where the
messages are, and which go first: `memory_log`.

How derived: BrokerController.memoryTopicEnable, TopicConfig.memory and the decisions of send and
pull processor in seed 001 (spec B22), which are in no version of RocketMQ. Questions that it leaves
open are decided in docs/decisions/0024-memory-topics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketstore.errors import RefusedMessageError
from rocketstore.events import get_logger
from rocketstore.format.properties import decode_properties
from rocketstore.format.refusals import delay_level
from rocketstore.native.decode import message_at
from rocketstore.rules.extra_queues import EXTRA, named
from rocketstore.rules.topics import is_reserved
from rocketstore.storage.kinds.memory_log import MemoryLog, MemoryQueue
from rocketstore.storage.queues.topic_kinds import TopicKind
from rocketstore.storage.reading.pages import PageLimits, Pages, page_without_entry

if TYPE_CHECKING:
    from rocketstore.config import StoreConfig
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.native.log_end import QueueCounter, Record
    from rocketstore.native.page import QueuePages
    from rocketstore.units import QueueKey

_log: Final = get_logger(__name__)

AVAILABLE_SHARE: Final = 0.75
"""Part of the memory available at the start that messages may take, unless a limit is set (B22)."""

_CGROUP: Final = Path("/proc/self/cgroup")
_CGROUPS: Final = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Return the memory that this process may still take: the machine's, or its control group's."""
    import psutil  # noqa: PLC0415 - where there may be memory topics only

    available = int(psutil.virtual_memory().available)
    try:
        group = _CGROUP.read_text().rpartition("::")[2].strip()
        directory = _CGROUPS / group.lstrip("/")
        limit = int((directory / "memory.max").read_text())
        used = int((directory / "memory.current").read_text())
    except (OSError, ValueError):  # no such group, or one without a limit
        return available
    return max(0, min(available, limit - used))


class MemoryTopics(TopicKind):
    """The memory topics of a store; `keeps` says whether this process keeps their messages."""

    name = "memory"
    mark = None
    is_on_disk = False

    def __init__(self, config: StoreConfig, *, clock: Callable[[], int], keeps: bool) -> None:
        super().__init__()
        limit = config.memory_topic_max_bytes
        if not limit and keeps:
            limit = int(available_bytes() * AVAILABLE_SHARE)
        self.log: MemoryLog = MemoryLog(config, limit_bytes=limit, clock=clock)
        self._keeps = keeps
        limits = PageLimits.from_config(config)._replace(memory_span_bytes=1 << 61)
        self._pages = Pages(self.log, limits, page_without_entry)

    def claims(self, topic: str, said: Mapping[str, Any]) -> bool:
        """Whether the table marks a topic; the store's own are never in memory."""
        is_marked = said.get("memory") is True
        if is_marked and is_reserved(topic):
            _log.warning("memory.topic_ignored", topic=topic, reason="the store itself puts there")
        return is_marked and not is_reserved(topic)

    def marks(self, said: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the mark."""
        return {"memory": True}

    def queue(self, key: QueueKey) -> MemoryQueue | None:
        """Return a queue that had a message, else None."""
        return self.log.queues.get(key)

    def queue_keys(self) -> list[QueueKey]:
        """Return every queue that had a message."""
        return list(self.log.queues)

    def pages(self, plain: Pages, question: tuple[str, int, str | None]) -> QueuePages:  # noqa: ARG002
        """Return what reads pages of a queue."""
        return self._pages[question]

    def message_at(self, physical_offset: int) -> StoredMessage | None:
        """Return the message at an offset, None where it was evicted."""
        return message_at(self._pages.log, physical_offset, 0)

    def refusal(self, topic: str) -> str | None:
        """Return why nothing is put here, if this process keeps no message."""
        if self._keeps:
            return None
        return f"{topic} is a memory topic: only the program that keeps it puts there"

    def numbering(self, counter: QueueCounter, record: Record, *, checks: bool) -> None:
        """Refuse a message that waits on the disk, or that queues there would point at."""
        topic, block = counter.key.topic, record.properties
        if checks and b"DELAY\x01" in block and delay_level(decode_properties(block)) > 0:
            raise RefusedMessageError(
                f"{topic} is a memory topic, which takes no delayed message",
                hint="what waits is kept on the disk: put it to another topic",
            )
        if checks and EXTRA in block and named(decode_properties(block)):
            raise RefusedMessageError(
                f"{topic} is a memory topic, which takes no message for several queues",
                hint="queues on the disk cannot point at it: put it to another topic",
            )

    def runtime_info(self, topic_count: int) -> dict[str, int]:
        """Return the memory topics' part of the runtime information."""
        log = self.log
        return {
            "memoryTopics": topic_count,
            "memoryTopicMessages": log.message_count,
            "memoryTopicBytes": log.used_bytes,
            "memoryTopicMaxBytes": log.limit_bytes,
            "memoryTopicEvicted": log.evicted,
        }
