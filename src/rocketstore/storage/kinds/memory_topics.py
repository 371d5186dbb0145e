"""Memory topics: topics whose messages live in this process and in no file.

A topic is one if ``config/topics.json`` says ``"memory": true`` of it and ``memoryTopicEnable`` is
on; else it is a topic like any other. A store that is opened only for some puts would keep a
message for no reader, so it refuses such a topic by name, whatever its own setting says.

For `StoreWriter` and readers a `MemoryLog` takes the place of `CommitLog`, for records that are in
no file; its queues are read as those on the disk are.

Law: no file is made, written or read. Used memory never exceeds the limit: memory is freed before a
message is added, by deleting the oldest messages of its own topic, and, where that has none left,
the longest-stored one of all topics. A message is added as a whole or not at all, and so is a
batch; an interrupt leaves the count of bytes right and no lock held.

How derived: MemoryMessageStore, BrokerController.memoryTopicEnable, TopicConfig.memory and the
decisions of send and pull processor in seed 001 (spec B22), which is in no version of RocketMQ.
Questions that it leaves open are decided in docs/decisions/0024-memory-topics.md.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketstore.errors import RefusedMessageError
from rocketstore.events import get_logger
from rocketstore.format.host import encode_host
from rocketstore.format.java_hash import tags_code
from rocketstore.format.properties import TAGS, decode_properties
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, ENTRY_STRUCT, QueueEntry
from rocketstore.format.refusals import delay_level
from rocketstore.native.decode import LogAtHand
from rocketstore.native.log_end import LogEnd, QueueCounter, Record
from rocketstore.rules.extra_queues import EXTRA, named
from rocketstore.rules.topics import is_reserved
from rocketstore.scan.queue_search import QueueSearch
from rocketstore.storage.queues.topic_kinds import TopicKind
from rocketstore.storage.reading.pages import PageLimits, Pages, page_without_entry
from rocketstore.storage.results import (
    FIRST_IN_MEMORY,
    NotTakenError,
    PutMessageStatus,
    PutResult,
)
from rocketstore.units import QueueKey, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rocketstore.config import StoreConfig
    from rocketstore.native.page import QueuePages

ENTRY_OVERHEAD_BYTES: Final = 160
"""What a message takes besides its record: Python's bytes, entry and place in a table."""

_log: Final = get_logger(__name__)

_TRIMMED_BYTES: Final = 1024 * ENTRY_SIZE_BYTES
"""Entries of evicted messages that a queue keeps at most, or as many as there are others."""


class _Entries:
    """The entries of a queue, as `QueueSearch` reads files; those before `base` are forgotten."""

    files: tuple[()] = ()
    file_size = 1 << 62
    min_offset = 0

    def __init__(self, base: int = 0, content: bytes = b"") -> None:
        self.base = base
        self.content = bytearray(content)

    def read(self, offset: int, size: int) -> bytes:
        """Return a copy: a bytearray with views could not grow."""
        at = offset - self.base
        return bytes(self.content[at : at + size]) if at >= 0 else b""


class MemoryQueue(QueueSearch):
    """The entries of one queue; those below `min_offset` are of messages that were evicted."""

    min_offset = first_offset = max_offset = 0

    def __init__(self, log: MemoryLog) -> None:
        self.records = LogAtHand(log)
        self.files = _Entries()

    def oldest(self) -> QueueEntry | None:
        """Return the entry of the first message that is left."""
        return self.entry(self.min_offset) if self.min_offset < self.max_offset else None

    def add(self, entries: Sequence[QueueEntry]) -> None:
        """Append entries; no reader sees them before `max_offset` moves."""
        held = self.files.content
        # Of a put that was interrupted.
        del held[self.max_offset * ENTRY_SIZE_BYTES - self.files.base :]
        held += b"".join(ENTRY_STRUCT.pack(*entry) for entry in entries)

    def forget_oldest(self) -> None:
        """Let the queue begin one message later."""
        self.min_offset = self.first_offset = self.min_offset + 1
        start, held = self.min_offset * ENTRY_SIZE_BYTES, self.files
        gone = start - held.base
        if gone > _TRIMMED_BYTES and 2 * gone > len(held.content):
            self.files = _Entries(start, held.content[gone:])


class _Sheet:
    """What a `LogEnd` takes for the file that it writes into."""

    __slots__ = ("base", "write_position")

    def __init__(self, base: int) -> None:
        self.base = base
        self.write_position = 0


class MemoryLog:
    """Messages of memory topics, up to `limit_bytes`; any thread may call anything.

    Attributes
    ----------
    used_bytes
        What the messages take, `ENTRY_OVERHEAD_BYTES` of each included.
    evicted
        Messages deleted to free memory.
    max_offset
        Physical offset of the next message.
    """

    is_mapped = False

    def __init__(self, config: StoreConfig, *, limit_bytes: int, clock: Callable[[], int]) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = self.evicted = 0
        self.max_offset = FIRST_IN_MEMORY
        self.queues: dict[QueueKey, MemoryQueue] = {}
        self._clock = clock
        self._store_host = encode_host(config.store_host)
        self._records: dict[int, bytes] = {}
        self._of_topic: dict[str, list[MemoryQueue]] = {}
        self._last_ms = 0
        self._lock = threading.Lock()

    @property
    def message_count(self) -> int:
        """Messages that are kept now."""
        return len(self._records)

    def bytes_at(self, offset: int, size: int) -> Window | None:  # noqa: ARG002
        """Return the record that begins at an offset; see `native.decode.LogAtHand`."""
        record = self._records.get(offset)
        return None if record is None else Window(record, offset, len(record))

    def append(
        self, counter: QueueCounter, records: Sequence[Record], numbered: None = None
    ) -> PutResult:
        """Append records to a queue, all or none; memory is freed as the law says."""
        del numbered  # of several queues, and of batches
        now_ms = self._clock()
        with self._lock:
            try:
                return self._append(counter, records, now_ms)
            except BaseException:
                self._settle(counter)
                raise

    def _append(self, counter: QueueCounter, records: Sequence[Record], now_ms: int) -> PutResult:
        key = counter.key
        queue = self.queues.get(key) or MemoryQueue(self)
        first, address = queue.max_offset, self.max_offset
        counter.next_offset = first
        behind_ms = max(self._last_ms - now_ms, 0)
        now_ms = self._last_ms = now_ms + behind_ms
        made = self._encoded(counter, records, now_ms, behind_ms)
        sizes = [len(one) for one in made]
        needed = sum(sizes) + ENTRY_OVERHEAD_BYTES * len(made)
        if needed > self.limit_bytes:
            why = f"{needed} bytes exceed memoryTopicMaxBytes of {self.limit_bytes}"
            raise NotTakenError(PutMessageStatus.MESSAGE_ILLEGAL, why)
        self._make_room(key.topic, needed)
        self.used_bytes += needed
        entries = []
        for record, content in zip(records, made, strict=True):
            code = tags_code(decode_properties(record.properties).get(TAGS, ""))
            entries.append(QueueEntry(self.max_offset, len(content), code))
            self._records[self.max_offset] = content
            self.max_offset += len(content)
        queue.add(entries)
        if self.queues.setdefault(key, queue).max_offset == 0:
            self._of_topic.setdefault(key.topic, []).append(queue)
        counter.stored_bytes += sum(sizes)
        counter.next_offset = queue.max_offset = first + len(made)
        packed = b"".join(size.to_bytes(4, "big") for size in sizes)
        return PutResult(
            PutMessageStatus.PUT_OK, address, first, sum(sizes), now_ms, self._store_host,
            message_count=len(made), packed_sizes=packed,
        )  # fmt: skip

    def _encoded(
        self, counter: QueueCounter, records: Sequence[Record], now_ms: int, behind_ms: int
    ) -> list[bytes]:
        """Return the records as a log would hold them from here on."""
        end = LogEnd(self._store_host)
        sizes = [end.size_of(record, counter) for record in records]
        written = bytearray(sum(sizes))
        end.write_into(_Sheet(self.max_offset), written, 0, len(written))
        end.behind_ms = behind_ms
        end.write(counter, records, now_ms)
        stop, made = 0, []
        for size in sizes:
            made.append(bytes(written[stop : stop + size]))
            stop += size
        return made

    def _make_room(self, topic: str, needed: int) -> None:
        while self.used_bytes + needed > self.limit_bytes:
            own = self._of_topic.get(topic, [])
            queue = _longest_stored(own) or _longest_stored(list(self.queues.values()))
            oldest = None if queue is None else queue.oldest()
            if queue is None or oldest is None:
                return  # it is all gone
            record = self._records.pop(oldest.physical_offset)
            self.used_bytes -= len(record) + ENTRY_OVERHEAD_BYTES
            queue.forget_oldest()
            self.evicted += 1

    def _settle(self, counter: QueueCounter) -> None:
        """Take back what an interrupted put left, and count again."""
        for queue in self.queues.values():
            while (oldest := queue.oldest()) and oldest.physical_offset not in self._records:
                queue.forget_oldest()
        known = self.queues.get(counter.key)
        counter.next_offset = 0 if known is None else known.max_offset
        kept = [
            QueueEntry._make(values)
            for queue in self.queues.values()
            for _, values in queue.entries_from(queue.min_offset, queue.max_offset)
        ]
        self._records = {one[0]: self._records[one[0]] for one in kept}
        self.used_bytes = self.counted()

    def counted(self) -> int:
        """Return the bytes that the messages take, one by one."""
        return sum(len(record) + ENTRY_OVERHEAD_BYTES for record in list(self._records.values()))


def _longest_stored(queues: list[MemoryQueue]) -> MemoryQueue | None:
    """Return the queue with the oldest message."""
    ages = [(oldest[0], queue) for queue in queues if (oldest := queue.oldest()) is not None]
    return min(ages, key=lambda one: one[0], default=(0, None))[1]


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
