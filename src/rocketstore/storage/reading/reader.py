"""Everything that reads messages, over any store: by queue, by key, by id, by time.

`Reader` answers from a log, a table of queues and an index (``storage.reading.sources``). The
store that writes hands it memory maps, the read-only store hands it files read with ``pread``.

Law: what is not there, or not intact, is not returned; no question changes a byte or creates a
queue; an answer that is an expected outcome is a value, and only a malformed question is an error.

How derived: DefaultMessageStore of 4.9; what is answered differently, and why, is
in docs/how-it-works/reading.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketstore.format.host import decode_message_id
from rocketstore.format.queue_entry import ENTRY_STRUCT, QueueEntry
from rocketstore.format.topic_name import check_is_int
from rocketstore.native.decode import LogAtHand, message_at, store_time_at
from rocketstore.native.page import MESSAGES, RECORDS, VIEWS
from rocketstore.storage.reading import time_search
from rocketstore.storage.reading.key_search import KeySearch
from rocketstore.storage.reading.pages import Pages
from rocketstore.storage.reading.tag_filter import parse_tags
from rocketstore.storage.results import GetRawResult, GetResult, GetViewsResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rocketstore.message import StoredMessage
    from rocketstore.native.page import QueuePages
    from rocketstore.storage.reading.pages import PageLimits
    from rocketstore.storage.reading.sources import (
        IndexSource,
        LogSource,
        QueueSource,
        QueueSources,
    )
    from rocketstore.units import QueueKey

_ENTRIES_AT_A_TIME: Final = 4096
_result: Final = tuple.__new__
"""Makes the tuple that a result is, at half the cost of calling its class."""


class Reader:
    """Answers questions about the messages of one store; without an index, no key is found."""

    find_limit: int = 64
    """Messages that `find` returns unless asked for another number (``maxMsgsNumBatch``)."""

    def __init__(
        self,
        log: LogSource,
        queues: QueueSources,
        index: IndexSource | None,
        limits: PageLimits,
    ) -> None:
        self._log = log
        self._queues = queues
        self._records = LogAtHand(log)
        self._pages = Pages(self._records, limits)
        self._key_search = (
            None if index is None else KeySearch(self._records, index, limits.memory_span_bytes)
        )
        self._check_readable: Callable[[], None] = lambda: None

    # --- by queue -------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        tags: str | None = None,
    ) -> GetResult:
        """Return messages of one queue, in queue order.

        Parameters
        ----------
        topic, queue_id
            The queue.
        offset
            Queue offset to begin with.
        max_messages
            Most messages to return. A page also ends at the limits of 4.9: by default 32 messages
            or 256 KiB, of old messages 8 or 64 KiB, and 800 entries looked at; the first message
            is always returned. Go on from `next_offset`.
        tags
            Tags wanted, joined by ``||``; None or ``*`` for all. Compared exactly.

        Raises
        ------
        InvalidFilterError
            `tags` names no tag.
        NotReadableError
            The running flag ``NOT_READABLE`` is set.

        Notes
        -----
        Source: DefaultMessageStore.getMessage.
        """
        self._check_readable()
        queue = self._queue_of(topic, queue_id)
        pages = self._pages_of(topic, queue_id, tags)
        page = pages.read(MESSAGES, queue, offset, max_messages)
        return _result(GetResult, page)

    def get_views(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        tags: str | None = None,
    ) -> GetViewsResult:
        """Return views of raw records of one queue: nothing is copied where the log is mapped.

        A view keeps the map of its file alive; retention waits for it a while, and then deletes
        the name alone. Body checksums are not compared. Parameters as `get`.
        """
        self._check_readable()
        queue = self._queue_of(topic, queue_id)
        pages = self._pages_of(topic, queue_id, tags)
        page = pages.read(VIEWS, queue, offset, max_messages)
        return _result(GetViewsResult, page)

    def get_raw(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        tags: str | None = None,
    ) -> GetRawResult:
        """Return raw records of one queue, copied back to back into one buffer.

        That is the body of a pull response. Body checksums are not compared. Parameters as `get`.
        """
        self._check_readable()
        queue = self._queue_of(topic, queue_id)
        pages = self._pages_of(topic, queue_id, tags)
        page = pages.read(RECORDS, queue, offset, max_messages)
        return _result(GetRawResult, page)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset that can be read, 0 for an unknown queue."""
        queue = self._queue_of(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return one past the last queue offset, 0 for an unknown queue."""
        queue = self._queue_of(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def message_count(self, topic: str, queue_id: int) -> int:
        """Return how many entries of a queue can be read, lost ones included.

        Source: DefaultMessageStore.getMessageTotalInQueue.
        """
        queue = self._queue_of(topic, queue_id)
        return 0 if queue is None else max(0, queue.max_offset - queue.min_offset)

    def queues(self) -> list[QueueKey]:
        """Return every queue, in order."""
        return sorted(self._queues.keys())

    def topics(self) -> list[str]:
        """Return every topic that has a queue, in order."""
        keys = self._queues.keys()
        return sorted({key.topic for key in keys})

    def queue_entries(
        self, topic: str, queue_id: int, offset: int | None = None, max_entries: int | None = None
    ) -> Iterator[tuple[int, QueueEntry]]:
        """Yield queue offset and entry as stored, fillers and expired entries included.

        Parameters
        ----------
        offset
            First queue offset; None begins with the first entry on disk.
        max_entries
            Most entries; None yields all.
        """
        queue = self._queue_of(topic, queue_id)
        if queue is None:
            return
        at = queue.first_offset if offset is None else max(offset, queue.first_offset)
        stop = queue.max_offset
        if max_entries is not None:
            stop = min(stop, at + max(max_entries, 0))
        while at < stop:
            entries = queue.entry_bytes(at, min(_ENTRIES_AT_A_TIME, stop - at))
            if not entries:  # a missing file
                at += queue.entries_per_file - at % queue.entries_per_file
                continue
            for values in ENTRY_STRUCT.iter_unpack(entries):
                yield at, QueueEntry._make(values)
                at += 1

    def _queue_of(self, topic: str, queue_id: int) -> QueueSource | None:
        if type(queue_id) is not int:
            check_is_int(queue_id)  # a bool, or a float, may be equal to a number of a queue
        return self._queues.get((topic, queue_id))  # type: ignore[arg-type] # equal to a QueueKey

    def _pages_of(self, topic: str, queue_id: int, tags: str | None) -> QueuePages:
        try:
            return self._pages[topic, queue_id, tags]
        except TypeError:
            parse_tags(tags)  # says what is wrong with tags that have no hash
            raise

    # --- by key, by id --------------------------------------------------------------------------

    def find(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        max_messages: int | None = None,
    ) -> list[StoredMessage]:
        """Return the messages of a topic that carry a key, newest first.

        Parameters
        ----------
        key
            One of a message's keys, or its unique key; compared exactly.
        begin_ms, end_ms
            Range of store times, both included.
        max_messages
            Most messages to return; None takes the setting ``maxMsgsNumBatch``, 64 by default.

        Notes
        -----
        Source: DefaultMessageStore.queryMessage.
        """
        if self._key_search is None:
            return []
        limit = self.find_limit if max_messages is None else max_messages
        return self._key_search.find(
            topic, key, begin_ms=begin_ms, end_ms=end_ms, max_messages=limit
        )

    def by_id(self, message_id: str) -> StoredMessage | None:
        """Return the message that an id names, None when no intact record stands there.

        Only the offset in the id counts; its host may be another, as after a move of the store.

        Raises
        ------
        FieldRangeError
            `message_id` is not 32 or 56 hexadecimal digits.

        Notes
        -----
        Source: MQAdminImpl.viewMessage, DefaultMessageStore.lookMessageByOffset.
        """
        return self.at_physical_offset(decode_message_id(message_id)[1])

    def at_physical_offset(self, physical_offset: int) -> StoredMessage | None:
        """Return the message whose record starts at an offset, None when none does."""
        if not 0 <= physical_offset < 1 << 63:
            return None
        message = message_at(self._records, physical_offset, 0)
        if message is None or not self._is_visible(physical_offset + message.size):
            return None
        return message

    def _is_visible(self, stop: int) -> bool:
        """Return whether readers may see the log up to an offset (K-D2)."""
        return stop <= self._log.readable_limit

    # --- by time --------------------------------------------------------------------------------

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the queue offset of the first message stored at or after a moment.

        The maximum offset when there is none, 0 for an unknown queue.

        Notes
        -----
        Source: DefaultMessageStore.getOffsetInQueueByTime.
        """
        queue = self._queue_of(topic, queue_id)
        return 0 if queue is None else time_search.offset_at(self._records, queue, timestamp_ms)

    def earliest_timestamp(self, topic: str, queue_id: int) -> int | None:
        """Return the store time of a queue's first readable message, None when it has none."""
        queue = self._queue_of(topic, queue_id)
        return None if queue is None else time_search.earliest_timestamp(self._records, queue)

    def earliest_log_timestamp(self) -> int | None:
        """Return the store time of the oldest readable message of all, None without one.

        That is the message the log begins with; where it cannot be read, the oldest of those that
        the queues begin with.

        Notes
        -----
        Java reads up to 8 MiB at once there, and fails where the file has less left (K-T5).
        Source: DefaultMessageStore.getEarliestMessageTime.
        """
        stored = store_time_at(self._records, self._log.min_offset, 0)
        if stored is not None:
            return stored
        firsts = (self.earliest_timestamp(*key) for key in self.queues())
        return min((first for first in firsts if first is not None), default=None)

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the store time of one queue offset, None when its record cannot be read."""
        queue = self._queue_of(topic, queue_id)
        entry = None if queue is None or offset < 0 else queue.entry_bytes(offset, 1)
        if not entry:
            return None
        physical_offset, size, _ = ENTRY_STRUCT.unpack(entry)
        return store_time_at(self._records, physical_offset, size) if size > 0 else None
