"""Pages of a batch topic's queue: messages are found in their records and given one by one.

Any message of a batch may be the first of a page, or its last. A message that cannot be read (the
record is lost, or its body breaks off) is stepped over and counted, like a lost entry of a
ConsumeQueue. Raw records are given whole, from the one that holds the offset on, as a broker of 5.x
sends them.

How derived: DefaultMessageStore.getMessage of 5.3.1 over BatchConsumeQueue (spec B13).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from rocketstore.arguments import whole_number
from rocketstore.native.decode import message_at, size_at
from rocketstore.native.page import MESSAGES, RECORDS
from rocketstore.rules.batch_entries import inner_place
from rocketstore.rules.inner_messages import unwrapped
from rocketstore.storage.reading.pages import Pages, parse_tags
from rocketstore.storage.results import GetMessageStatus

if TYPE_CHECKING:
    from rocketstore.format.batch_queue_entry import BatchEntry
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.storage.queues.batch_queues import BatchQueue

LOOKED_AT: Final = 347
"""Most entries that one get looks at: 16,000 bytes of them, as in 5.x."""


class LastBatch:
    """The batch that was decoded last: the rest of a large one is usually asked for next."""

    kept: tuple[int, list[StoredMessage]] = (-1, [])


class BatchPages:
    """Reads pages of one queue, as `native.page.QueuePages` does of a plain topic's."""

    def __init__(
        self, plain: Pages, question: tuple[str, int, str | None], last: LastBatch
    ) -> None:
        self._log, self._source, self._limits = plain.log, plain.source, plain.limits
        self._without_entry = plain.without_entry
        self._topic, self._queue_id, tags = question
        self._wanted = parse_tags(tags)
        self._last = last

    def read(
        self, kind: int, queue: BatchQueue | None, offset: int, max_messages: int
    ) -> tuple[Any, ...]:
        """Return the fields of a page's result; see `QueuePages.read`."""
        offset = whole_number("offset", offset)
        max_messages = whole_number("max_messages", max_messages)
        minimum, maximum = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        if queue is None or not minimum <= offset < maximum:
            return self._without_entry(kind, queue, self._topic, offset, minimum, maximum)
        most = min(max(1, max_messages), self._limits.memory_count)
        choose: Any = self._messages if kind == MESSAGES else self._records
        taken, at, skipped = choose(queue, offset, most)
        status = GetMessageStatus.FOUND
        if not taken:
            is_lost = skipped >= at - offset
            status = GetMessageStatus.NO_MATCHED_MESSAGE
            status = GetMessageStatus.MESSAGE_WAS_REMOVING if is_lost else status
        items = (b"".join(taken), len(taken)) if kind == RECORDS else (taken,)
        return (status, *items, at, minimum, maximum, skipped)

    @staticmethod
    def _entries(queue: BatchQueue, offset: int) -> Iterator[BatchEntry]:
        """Yield the entry that has an offset, and those that follow, as far as a get looks."""
        place = queue.place_of(offset)
        for number in range(place, min(place + LOOKED_AT, queue.stop_place)):
            entry = queue.at(number)
            if entry is not None and entry.is_written and entry.stop_offset > offset:
                yield entry

    def _messages(
        self, queue: BatchQueue, offset: int, most: int
    ) -> tuple[list[StoredMessage], int, int]:
        """Return messages, the offset after the last one looked at, and how many were lost."""
        taken: list[StoredMessage] = []
        at, skipped, size = offset, 0, 0
        for entry in self._entries(queue, offset):
            skipped += max(entry.base_offset - at, 0)  # of a damaged entry
            at = max(at, entry.base_offset)
            for message in self._inner(entry)[at - entry.base_offset :]:
                if not self._wanted or message.tags in self._wanted:
                    size += len(message.raw_body) + len(message.raw_properties)
                    if taken and (len(taken) == most or size > self._limits.memory_bytes):
                        return taken, at, skipped
                    taken.append(message)
                at += 1
            skipped += entry.stop_offset - at
            at = entry.stop_offset
        return taken, at, skipped

    def _inner(self, entry: BatchEntry) -> list[StoredMessage]:
        """Return the messages of an entry's record, none where that is not the one it means."""
        physical, kept = self._last.kept
        if physical == entry.physical_offset and (not kept or kept[0].topic == self._topic):
            return kept
        message = message_at(self._log, entry.physical_offset, 0)
        if message is None or (message.topic, message.queue_id) != (self._topic, self._queue_id):
            return []
        place = inner_place(message.sys_flag, message.queue_offset, message.properties)
        if place != (entry.base_offset, entry.message_count):
            return []
        inner = unwrapped(message, entry.message_count)
        self._last.kept = (entry.physical_offset, inner)
        return inner

    def _records(
        self, queue: BatchQueue, offset: int, most: int
    ) -> tuple[list[memoryview], int, int]:
        """Return views of whole records, as many as have `most` messages, but at least one."""
        taken: list[memoryview] = []
        at, skipped, size, count = offset, 0, 0, 0
        for entry in self._entries(queue, offset):
            size, count = size + entry.record_size, count + entry.message_count
            if taken and (count > most or size > self._limits.memory_bytes):
                break
            start = entry.physical_offset
            is_there = size_at(self._log, start) > 0
            window = self._source.bytes_at(start, entry.record_size) if is_there else None
            if window is None:
                skipped += entry.stop_offset - max(at, entry.base_offset)
            else:
                record = memoryview(window.buffer)[start - window.base :]
                taken.append(record[: entry.record_size])
            at = entry.stop_offset
        return taken, at, skipped
