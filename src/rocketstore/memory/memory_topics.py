"""Which topics are memory topics, and how the calls of a store that name one go there.

A topic is one if ``config/topics.json`` says ``"memory": true`` of it and ``memoryTopicEnable`` is
on; else it is a topic like any other. A store without the setting pays nothing: its calls are wound
around only where there may be such a topic.

How derived: BrokerController.memoryTopicEnable, TopicConfig.memory and the decisions of send and
pull processor in seed 001 (spec B22).
"""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from rocketstore.errors import RefusedMessageError, StoreError
from rocketstore.format.java_hash import tags_code
from rocketstore.format.metadata_json import BATCH_QUEUES, QUEUE_TYPE
from rocketstore.format.queue_entry import QueueEntry
from rocketstore.format.refusals import (
    check_queue_id,
    check_topic,
    delay_level,
    encoded_born_host,
)
from rocketstore.memory.memory_store import FIRST_ADDRESS, MemoryStore
from rocketstore.native.log_end import Record
from rocketstore.native.page import RECORDS
from rocketstore.rules.extra_queues import named
from rocketstore.rules.properties import asked
from rocketstore.storage.log.prepared import (
    body_bytes,
    client_messages,
    record_of,
    storable_block,
)
from rocketstore.topic_routes import TopicRoutes
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rocketstore.message import Message
    from rocketstore.storage.log.prepared import PreparedMessage
    from rocketstore.storage.opening import StoreParts
    from rocketstore.storage.results import PutResult
    from rocketstore.storage.store import BaseStore
    from rocketstore.tables.topics import TopicFile

AVAILABLE_SHARE: Final = 0.75
"""Part of the memory available at the start that messages may take, unless a limit is set (B22)."""

_CGROUP: Final = Path("/proc/self/cgroup")
_CGROUPS: Final = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Return the memory that this process may still take: the machine's, or its control group's."""
    available = int(psutil.virtual_memory().available)
    try:
        group = _CGROUP.read_text().rpartition("::")[2].strip()
        directory = _CGROUPS / group.lstrip("/")
        limit = int((directory / "memory.max").read_text())
        used = int((directory / "memory.current").read_text())
    except (OSError, ValueError):  # no such group, or one without a limit
        return available
    return max(0, min(available, limit - used))


class MemoryTopics(TopicRoutes):
    """The memory topics of an open store, and their messages."""

    def __init__(self, store: BaseStore, parts: StoreParts, file: TopicFile) -> None:
        super().__init__(store)
        config = store.config
        limit = config.memory_topic_max_bytes or int(available_bytes() * AVAILABLE_SHARE)
        self.messages = MemoryStore(config, limit_bytes=limit, clock=parts.clock)
        self._store = store
        self._parts = parts
        self._file = file

    @property
    def names(self) -> frozenset[str]:
        """The memory topics at the moment."""
        return self._parts.kinds.memory

    def create(self, topic: str, queue_count: int = 1) -> None:
        """Make a topic a memory topic, also for later opens: ``topics.json`` says so.

        Raises
        ------
        StoreError
            The topic has messages on the disk, dispatched or not, is a batch topic, or one of the
            store's own.
        StoreClosedError
            The store was closed, or is that of the process that forked this one.
        """
        self._store.check_open()
        check_topic(topic)
        check_queue_id(queue_count)

        def marks(known: Mapping[str, Any]) -> Mapping[str, Any]:
            if (known.get("attributes") or {}).get(QUEUE_TYPE) == BATCH_QUEUES:
                raise StoreError(
                    f"{topic} cannot become a memory topic: {self._file.path} says that it is a "
                    "batch topic",
                    hint="choose another name; its batches could not be read any more",
                )
            return {"memory": True}

        kinds = self._parts.kinds
        with self._parts.becoming(topic, "memory"):
            kinds.memory |= {topic}
            self._file.mark(topic, queue_count, marks)

    def runtime_info(self) -> dict[str, int]:
        """Return the memory topics' part of the runtime information."""
        messages = self.messages
        return {
            "memoryTopics": len(self.names),
            "memoryTopicMessages": messages.message_count,
            "memoryTopicBytes": messages.used_bytes,
            "memoryTopicMaxBytes": messages.limit_bytes,
            "memoryTopicEvicted": messages.evicted,
        }

    # --- puts -----------------------------------------------------------------------------------

    def put(self, message: Message, queue_id: int = 0) -> PutResult:
        """Keep a message; as `BaseStore.put`."""
        return self._add(
            message.topic, queue_id, [record_of(message, encoded_born_host, alone=True)[0]]
        )

    def put_prepared(
        self, prepared: PreparedMessage, body: bytes | None = None, queue_id: int = 0
    ) -> PutResult:
        """Keep a prepared message; as `BaseStore.put_prepared`."""
        record = prepared.record
        if body is not None:
            record = record.with_body(body_bytes(body))
        return self._add(prepared.topic, queue_id, [record])

    def put_batch(self, messages: Sequence[Message], queue_id: int = 0) -> PutResult:
        """Keep messages of one topic, all or none; as `BaseStore.put_batch`."""
        records = [record_of(message, encoded_born_host)[0] for message in messages]
        return self._add(messages[0].topic, queue_id, records)

    def put_client_batch(
        self, topic: str, queue_id: int, batch: bytes | memoryview, **more: Any
    ) -> PutResult:
        """Keep a batch as a producer encodes it; as `BaseStore.put_client_batch`."""
        more.pop("wait_flush", None)
        block, _ = storable_block(more.pop("properties", b""))
        host = encoded_born_host(more.pop("born_host", "127.0.0.1:0"))
        records = [
            Record(body, properties, host, flag=flag, **more)
            for flag, body, properties in client_messages(body_bytes(batch), block)
        ]
        return self._add(topic, queue_id, records)

    def put_record(
        self, topic: str, queue_id: int, record: Record, *, wait_flush: bool = True
    ) -> PutResult:
        """Keep a record as it is; there is no flush to wait for."""
        del wait_flush
        result = self._append(topic, queue_id, [record])
        own = QueueKey(topic, queue_id)
        self._store.put_apart(own, record, result, is_own_in_memory=True)
        return result

    def _add(self, topic: str, queue_id: int, records: list[Record]) -> PutResult:
        for record in records:
            wanted = asked(record.properties)
            if delay_level(wanted) > 0:
                raise RefusedMessageError(
                    f"{topic} is a memory topic, which takes no delayed message",
                    hint="what waits is kept on the disk: put it to another topic",
                )
            if named(wanted):
                raise RefusedMessageError(
                    f"{topic} is a memory topic, which takes no message for several queues",
                    hint="queues on the disk cannot point at it: put it to another topic",
                )
        return self._append(topic, queue_id, records)

    def _append(self, topic: str, queue_id: int, records: list[Record]) -> PutResult:
        self._store.check_held()
        result = self.messages.append(topic, check_queue_id(queue_id), records)
        self._store.look_again()
        return result

    # --- reads ----------------------------------------------------------------------------------

    def _page(
        self,
        form: tuple[int, type[Any]],
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        tags: str | None = None,
    ) -> Any:
        self._store.running_flags.check_readable()
        kind, result = form
        page = self.messages.page(kind, QueueKey(topic, queue_id), offset, max_messages, tags)
        self._store.statistics.note_get(page[2] if kind == RECORDS else len(page[1]), 0)
        return result(*page)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset that can be read, 0 for an unknown queue."""
        queue = self.messages.queue(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return one past the last queue offset, 0 for an unknown queue."""
        queue = self.messages.queue(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    next_queue_offset = max_offset

    def queue_entries(
        self, topic: str, queue_id: int, offset: int | None = None, max_entries: int | None = None
    ) -> Iterator[tuple[int, QueueEntry]]:
        """Yield queue offset and what an entry on the disk would say."""
        start = max(offset or 0, self.min_offset(topic, queue_id))
        stop = self.max_offset(topic, queue_id)
        if max_entries is not None:
            stop = min(stop, start + max(max_entries, 0))
        for number in range(start, stop):
            message = self.messages.message(topic, queue_id, number)
            if message is not None:
                code = tags_code(message.tags)
                yield number, QueueEntry(message.physical_offset, message.size, code)

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the queue offset of the first message stored at or after a moment."""
        numbers = range(self.min_offset(topic, queue_id), self.max_offset(topic, queue_id))
        # One that is evicted meanwhile was older than all that are left.
        at = bisect_left(
            numbers, timestamp_ms, key=lambda n: self.store_timestamp(topic, queue_id, n) or -1
        )
        return numbers.start + at

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the store time of one queue offset, None when it has no message."""
        message = self.messages.message(topic, queue_id, offset)
        return None if message is None else message.store_timestamp_ms

    # --- routes ---------------------------------------------------------------------------------

    def attach(self) -> None:
        """Let the store's calls that name a memory topic come here; a closed store has none."""
        store: Any = self._store
        self.attach_puts()
        self.attach_reads(self.messages.keys)
        self._route("next_queue_offset")
        acknowledged = store.acknowledged
        store.acknowledged = lambda result, *waited: (
            result if result.physical_offset >= FIRST_ADDRESS else acknowledged(result, *waited)
        )
