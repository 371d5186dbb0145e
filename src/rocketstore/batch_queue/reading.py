"""Gets of batch topics: messages are found in their records and given one by one.

Any message of a batch may be the first of a page, or its last. What cannot be read (the record is
lost, or its body breaks off) is stepped over and counted, as a lost entry of a ConsumeQueue is.
Raw records are given whole, from the one that holds the offset on, as a broker of 5.x sends them.

How derived: DefaultMessageStore.getMessage of 5.3.1 over BatchConsumeQueue (spec B13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocketstore.batch_queue.inner_messages import unwrapped
from rocketstore.format.queue_entry import QueueEntry
from rocketstore.native.page import MESSAGES, RECORDS
from rocketstore.storage.reading.pages import PageLimits, parse_tags
from rocketstore.storage.results import GetMessageStatus
from rocketstore.topic_routes import TopicRoutes
from rocketstore.units import QueueKey
from rocketstore.verification.batch_entries import inner_place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rocketstore.batch_queue.entries import BatchEntries
    from rocketstore.format.batch_queue_entry import BatchEntry
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.storage.log.commit_log import CommitLog
    from rocketstore.storage.queues.topic_kinds import TopicKinds
    from rocketstore.storage.reading.pread_log import PreadLog
    from rocketstore.storage.reading.reader import Reader

LOOKED_AT: Final = 347
"""Most entries that one get looks at: 16,000 bytes of them, as in 5.x."""


class BatchReads(TopicRoutes):
    """The batch queues of a store that is read; `queues` may grow, and so may `kinds`."""

    def __init__(
        self,
        reader: Reader,
        log: CommitLog | PreadLog,
        queues: Mapping[QueueKey, BatchEntries],
        kinds: TopicKinds,
    ) -> None:
        super().__init__(reader)
        self._reader = reader
        self._log = log
        self.queues = queues
        self.kinds = kinds
        self._limits = PageLimits.from_config(reader.config)
        self._unwrapped: tuple[int, list[StoredMessage]] = (-1, [])

    @property
    def names(self) -> frozenset[str]:
        """The batch topics at the moment."""
        return self.kinds.batch

    # --- pages ----------------------------------------------------------------------------------

    def _page(
        self,
        form: tuple[int, type[Any]],
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        tags: str | None = None,
    ) -> Any:
        self._reader._check_readable()  # noqa: SLF001 - what every get asks first
        kind, result = form
        wanted = parse_tags(tags)
        queue = self.queues.get(QueueKey(topic, queue_id))
        minimum, maximum = self._bounds(queue)
        if queue is None or not minimum <= offset < maximum:
            # Only the limits are asked of the queue.
            known: Any = queue
            page = self._reader._without_entry  # noqa: SLF001 - as every topic answers
            return result(*page(kind, known, topic, offset, minimum, maximum))
        most = min(max(1, max_messages), self._limits.memory_count)
        taken: Any
        if kind == MESSAGES:
            taken, at, skipped = self._messages(queue, topic, queue_id, offset, most, wanted)
        else:
            taken, at, skipped = self._records(queue, offset, most)
        self._reader._note_get(len(taken), 0)  # noqa: SLF001
        status = GetMessageStatus.FOUND
        if not taken:
            is_lost = skipped >= at - offset
            status = GetMessageStatus.NO_MATCHED_MESSAGE
            status = GetMessageStatus.MESSAGE_WAS_REMOVING if is_lost else status
        items = (b"".join(taken), len(taken)) if kind == RECORDS else (taken,)
        return result(status, *items, at, minimum, maximum, skipped)

    def _entries(self, queue: BatchEntries, offset: int) -> Iterator[BatchEntry]:
        """Yield the entry that has an offset, and those that follow, as far as a get looks."""
        place = queue.place_of(offset)
        for number in range(place, min(place + LOOKED_AT, queue.stop_place)):
            entry = queue.at(number)
            if entry is not None and entry.is_written and entry.stop_offset > offset:
                yield entry

    def _messages(
        self,
        queue: BatchEntries,
        topic: str,
        queue_id: int,
        offset: int,
        most: int,
        wanted: tuple[str, ...],
    ) -> tuple[list[StoredMessage], int, int]:
        """Return messages, the offset after the last one looked at, and how many were lost."""
        taken: list[StoredMessage] = []
        at, skipped, size = offset, 0, 0
        for entry in self._entries(queue, offset):
            skipped += max(entry.base_offset - at, 0)  # of a damaged entry
            at = max(at, entry.base_offset)
            inner = self._inner(entry, topic, queue_id)
            for message in inner[at - entry.base_offset :]:
                if not wanted or message.tags in wanted:
                    size += len(message.raw_body) + len(message.raw_properties)
                    if taken and (len(taken) == most or size > self._limits.memory_bytes):
                        return taken, at, skipped
                    taken.append(message)
                at += 1
            skipped += entry.stop_offset - at
            at = entry.stop_offset
        return taken, at, skipped

    def _inner(self, entry: BatchEntry, topic: str, queue_id: int) -> list[StoredMessage]:
        """Return the messages of an entry's record, none where that is not the one it means."""
        physical, kept = self._unwrapped
        if physical == entry.physical_offset and (not kept or kept[0].topic == topic):
            return kept  # the rest of a large batch is asked for next
        message = self._reader.at_physical_offset(entry.physical_offset)
        if message is None or (message.topic, message.queue_id) != (topic, queue_id):
            return []
        place = inner_place(message.sys_flag, message.queue_offset, message.properties)
        if place != (entry.base_offset, entry.message_count):
            return []
        inner = unwrapped(message, entry.message_count)
        self._unwrapped = (entry.physical_offset, inner)
        return inner

    def _records(self, queue: BatchEntries, offset: int, most: int) -> tuple[list[Any], int, int]:
        """Return views of whole records, as many as have `most` messages, but at least one."""
        taken: list[memoryview] = []
        at, skipped, size, count = offset, 0, 0, 0
        for entry in self._entries(queue, offset):
            size, count = size + entry.record_size, count + entry.message_count
            if taken and (count > most or size > self._limits.memory_bytes):
                break
            record = self._record(entry)
            if record is None:
                skipped += entry.stop_offset - max(at, entry.base_offset)
            else:
                taken.append(record)
            at = entry.stop_offset
        return taken, at, skipped

    def _record(self, entry: BatchEntry) -> memoryview | None:
        if self._reader.at_physical_offset(entry.physical_offset) is None:
            return None
        window = self._log.bytes_at(entry.physical_offset, entry.record_size)
        if window is None:
            return None
        start = entry.physical_offset - window.base
        return memoryview(window.buffer)[start : start + entry.record_size]

    # --- the rest -------------------------------------------------------------------------------

    def _bounds(self, queue: BatchEntries | None) -> tuple[int, int]:
        if queue is None:
            return 0, 0
        return queue.first_left(self._log.min_offset), queue.max_offset

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset that can be read, 0 for an unknown queue."""
        return self._bounds(self.queues.get(QueueKey(topic, queue_id)))[0]

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return one past the last queue offset, 0 for an unknown queue."""
        return self._bounds(self.queues.get(QueueKey(topic, queue_id)))[1]

    def queue_entries(
        self, topic: str, queue_id: int, offset: int | None = None, max_entries: int | None = None
    ) -> Iterator[tuple[int, QueueEntry]]:
        """Yield first queue offset and place of each record, expired ones included."""
        queue = self.queues.get(QueueKey(topic, queue_id))
        if queue is None:
            return
        start = queue.first_place if offset is None else queue.place_of(offset)
        stop = queue.stop_place
        for place in range(start, stop if max_entries is None else min(stop, start + max_entries)):
            if (entry := queue.at(place)) is not None:
                yield entry.base_offset, QueueEntry(*entry[:3])

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the queue offset of the first message stored at or after a moment."""
        queue = self.queues.get(QueueKey(topic, queue_id))
        return 0 if queue is None else max(queue.offset_at(timestamp_ms), self._bounds(queue)[0])

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the store time of one queue offset, None when it has no message."""
        queue = self.queues.get(QueueKey(topic, queue_id))
        minimum, maximum = self._bounds(queue)
        if queue is None or not minimum <= offset < maximum:
            return None
        entry = queue.at(queue.place_of(offset))
        return None if entry is None else entry.store_timestamp_ms
