"""Everything that reads messages, over any store: by queue, by key, by id, by time.

`Reader` answers from a log, a table of queues and an index. The store that writes hands it memory
maps, the read-only store hands it files read with ``pread``; both answer alike.

Law: a message that is missing or not intact is not returned. No call changes a byte, takes a lock
or creates a queue (K-C5). An expected outcome is a value, and only malformed arguments are an
error.

How derived: DefaultMessageStore of 4.9; which answers differ, and why, is
in docs/how-it-works/reading.md.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeAlias

from rocketstore.arguments import checked, refuse_wrong, whole_number
from rocketstore.config import BrokerRole, StoreConfig
from rocketstore.errors import FlushFailedError, InvalidFilterError, StoreClosedError
from rocketstore.format.host import decode_message_id
from rocketstore.format.queue_entry import FILLER_SIZE, QueueEntry
from rocketstore.format.refusals import check_is_int, check_topic_characters
from rocketstore.native.decode import LogAtHand, message_at, store_time_at
from rocketstore.native.lookup import KeySearch
from rocketstore.native.page import MESSAGES, RECORDS, VIEWS, GetCounts
from rocketstore.process import OfOneProcess
from rocketstore.storage.reading.pages import PageLimits, Pages, page_without_entry, parse_tags
from rocketstore.storage.results import FIRST_IN_MEMORY, GetRawResult, GetResult, GetViewsResult
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from rocketstore.format.queue_extension import ExtensionUnit
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.storage.index.index_service import IndexService
    from rocketstore.storage.index.pread_index import PreadIndex
    from rocketstore.storage.layout import StoreLayout
    from rocketstore.storage.log.commit_log import CommitLog
    from rocketstore.storage.queues.consume_queue import ConsumeQueue
    from rocketstore.storage.queues.pread_queue import PreadQueue, PreadQueues
    from rocketstore.storage.queues.queue_table import ConsumeQueueTable
    from rocketstore.storage.queues.topic_kinds import TopicKinds
    from rocketstore.storage.reading.pread_log import PreadLog

    _Queue: TypeAlias = ConsumeQueue | PreadQueue

_NANOS_PER_MS: Final = 1_000_000
_result: Final = tuple.__new__
"""Makes the tuple that a result is, at half the cost of calling its class."""


class ClosedPart:
    """Stands for a part of a store that cannot be used any more."""

    def __init__(self, error: StoreClosedError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> NoReturn:
        raise self.again()

    def __call__(self, *_arguments: object) -> NoReturn:
        """Raise the error."""
        raise self.again()

    # Python looks for these in the class.
    __getitem__ = __contains__ = __iter__ = __len__ = __call__

    def again(self) -> StoreClosedError:
        """Return the error, without the traceback of an earlier time."""
        return type(self._error)(self._error.message, hint=self._error.hint)


_readers: Final[weakref.WeakSet[Reader]] = weakref.WeakSet()


class Reader(OfOneProcess):
    """Reads the messages of one store."""

    def __init__(  # noqa: PLR0913 - the parts of a store, and what a writer adds by name
        self, layout: StoreLayout, config: StoreConfig, log: CommitLog | PreadLog,
        queues: ConsumeQueueTable | PreadQueues[PreadQueue], index: IndexService | PreadIndex,
        kinds: TopicKinds, *, check_readable: Callable[[], object] = tuple,
        note_get: Callable[[int, int], object] | None = None,
    ) -> None:  # fmt: skip
        self.layout = layout
        self.config = config
        self.kinds = self._kinds = kinds
        self._log = log
        self._queues = queues
        limits = PageLimits.from_config(config)
        waits = config.broker_role is BrokerRole.SLAVE and not config.offset_check_in_slave
        without_entry = partial(page_without_entry, waits=waits)
        self._pages = Pages(log, limits, without_entry)
        self._records = self._pages.log
        self._key_search = KeySearch(self._records, index, limits.memory_span_bytes)
        self._check_readable = check_readable
        self._note_get = note_get or GetCounts().note
        self._visible_stop = 0
        closed = StoreClosedError(f"{layout.root} was closed", hint="open it again")
        self._closed_part = ClosedPart(closed)
        _readers.add(self)

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        return f"{type(self).__name__}({self.layout.root}, {state})"

    # --- the end --------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return isinstance(self._log, ClosedPart)

    def __enter__(self) -> Self:
        if self.is_closed:
            raise self._closed_part.again()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None:
            self.close()
            return
        # The exception that ended the block tells more than a failed flush would add.
        with contextlib.suppress(FlushFailedError):
            self.close()

    def close(self) -> None:
        """Release everything; may be called twice."""
        closed: Any = self._closed_part
        self._log = self._queues = self._key_search = self._pages = self._kinds = closed
        self._records = LogAtHand(closed)

    def _go_on_in_child(self) -> None:
        """Refuse every use in a forked child, as a store that writes does."""

    @property
    def min_physical_offset(self) -> int:
        """Physical offset of the first byte of the CommitLog."""
        return self._log.min_offset

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
        InvalidNameError
            The topic is no text, or the queue id no int.
        InvalidFilterError
            `tags` names no tag.
        NotReadableError
            The running flag ``NOT_READABLE`` is set.

        Notes
        -----
        Source: DefaultMessageStore.getMessage.
        """
        return _result(GetResult, self._page(MESSAGES, topic, queue_id, offset, max_messages, tags))

    def get_views(
        self, topic: str, queue_id: int, offset: int, max_messages: int = 32,
        tags: str | None = None,
    ) -> GetViewsResult:  # fmt: skip
        """Return views of raw records of one queue: nothing is copied where the log is mapped.

        A view keeps the map of its file alive; retention waits for it a while, and then deletes
        the name alone. Body checksums are not compared. Parameters as `get`.
        """
        return _result(
            GetViewsResult, self._page(VIEWS, topic, queue_id, offset, max_messages, tags)
        )

    def get_raw(
        self, topic: str, queue_id: int, offset: int, max_messages: int = 32,
        tags: str | None = None,
    ) -> GetRawResult:  # fmt: skip
        """Return raw records of one queue, copied back to back into one buffer.

        That is the body of a pull response. Body checksums are not compared. Parameters as `get`.
        """
        return _result(
            GetRawResult, self._page(RECORDS, topic, queue_id, offset, max_messages, tags)
        )

    def is_in_memory(
        self, topic: str, queue_id: int, offset: int, max_messages: int = 32,
        tags: str | None = None, *, waits: bool = False,
    ) -> bool:  # fmt: skip
        """Whether `get_raw` would not wait for the disk; if this `waits`, it does so in its place.

        Other threads run meanwhile. Memory topics and batch topics count as being in memory, and so
        does everything where nothing is compiled. Parameters as `get`.
        """
        if not type(offset) is type(max_messages) is type(queue_id) is int:
            offset, queue_id = whole_number("offset", offset), check_is_int(queue_id)
            max_messages = whole_number("max_messages", max_messages)
        try:
            pages, now_ns = self._pages[topic, queue_id, tags], monotonic_ns()
        except (AttributeError, TypeError):
            refuse_wrong(Reader.is_in_memory, locals())
            raise
        if pages.is_known(offset, max_messages, now_ns) or self._kinds.get(topic) is not None:
            return True
        queue = self._queue_of(topic, queue_id)
        return pages.is_in_memory(queue, offset, max_messages, waits, now_ns)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset that can be read, 0 for an unknown queue."""
        queue = self._queue_of(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return one past the last queue offset, 0 for an unknown queue."""
        queue = self._queue_of(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    @checked
    def end_within(self, topic: str, queue_id: int, physical_limit: int) -> int:
        """Return the queue offset after the last message whose record ends before an offset."""
        queue = self._queue_of(topic, queue_id)
        return 0 if queue is None else max(queue.end_within(physical_limit), queue.min_offset)

    def message_count(self, topic: str, queue_id: int) -> int:
        """Return how many entries of a queue can be read, lost ones included.

        Source: DefaultMessageStore.getMessageTotalInQueue.
        """
        return max(0, self.max_offset(topic, queue_id) - self.min_offset(topic, queue_id))

    @checked
    def queues(self, topic: str | None = None) -> list[QueueKey]:
        """Return every queue, or every one of a topic, in order."""
        own = (key for kind in self._kinds.known.values() for key in kind.queue_keys())
        found = {*self._queues.keys(topic), *(key for key in own if topic in (None, key.topic))}
        return sorted(found)

    def topics(self) -> list[str]:
        """Return every topic that has a queue, in order."""
        return sorted({key.topic for key in self.queues()})

    @checked
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
        most = None if max_entries is None else min(max(max_entries, 0), sys.maxsize)
        for queue_offset, values in islice(queue.entries_from(at, queue.max_offset), most):
            yield queue_offset, QueueEntry._make(values)

    @checked
    def extension_unit(self, topic: str, queue_id: int, address: int) -> ExtensionUnit | None:
        """Return the unit that an entry's tags code refers to; None where it refers to none."""
        queue = self._queue_of(topic, queue_id)
        return queue.extension.unit_at(address) if queue and queue.extension else None

    def _queue_of(self, topic: str, queue_id: int) -> _Queue | None:
        if type(queue_id) is not int:
            queue_id = check_is_int(queue_id)  # a float may be equal to a number of a queue
        if type(topic) is not str:
            check_topic_characters(topic)  # bytes would be an unknown topic
        kind = self._kinds.get(topic)
        if kind is not None:
            return kind.queue(QueueKey(topic, queue_id))  # type: ignore[no-any-return]
        return self._queues.get((topic, queue_id))  # type: ignore[arg-type] # equal to a QueueKey

    def _page(
        self, kind: int, topic: str, queue_id: int, offset: int, max_messages: int, tags: str | None
    ) -> tuple[Any, ...]:
        """Return the fields of a page's result, and count the get."""
        self._check_readable()
        began_ns = monotonic_ns()
        try:
            queue = self._queue_of(topic, queue_id)
            kind_of_topic = self._kinds.get(topic)
            if kind_of_topic is None:
                pages = self._pages[topic, queue_id, tags]
            else:
                pages = kind_of_topic.pages(self._pages, (topic, queue_id, tags))
        except (TypeError, AttributeError):
            parse_tags(tags)  # raises for tags that have no hash
            raise
        page = pages.read(kind, queue, offset, max_messages)
        count = page[2] if kind == RECORDS else len(page[1])
        self._note_get(count, (monotonic_ns() - began_ns) // _NANOS_PER_MS)
        return page

    # --- by key, by id --------------------------------------------------------------------------

    def find(
        self, topic: str, key: str, *, begin_ms: int = 0, end_ms: int | None = None,
        max_messages: int | None = None,
    ) -> list[StoredMessage]:  # fmt: skip
        """Return the messages of a topic that carry a key, newest first.

        Parameters
        ----------
        key
            One of a message's keys, or its unique key; compared exactly.
        begin_ms, end_ms
            Range of store times, both included.
        max_messages
            Most messages to return; None takes the setting ``maxMsgsNumBatch``, 64 by default.

        Raises
        ------
        InvalidFilterError
            Topic or key is no text.

        Notes
        -----
        Source: DefaultMessageStore.queryMessage.
        """
        if not (isinstance(topic, str) and isinstance(key, str)):
            raise InvalidFilterError(f"a topic and a key are texts, not {topic!r:.40}, {key!r:.40}")
        limit = self.config.max_msgs_num_batch if max_messages is None else max_messages
        try:
            return self._key_search.find(topic, key, begin_ms, end_ms, limit)
        except (TypeError, ValueError):
            refuse_wrong(Reader.find, locals())
            raise

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
        """Return the message whose record starts at an offset, or None."""
        if type(physical_offset) is not int:
            physical_offset = whole_number("physical_offset", physical_offset)
        if not 0 <= physical_offset < 1 << 63:
            return None
        if physical_offset >= FIRST_IN_MEMORY:
            found = (kind.message_at(physical_offset) for kind in self._kinds.known.values())
            return next((one for one in found if one is not None), None)
        message = message_at(self._records, physical_offset, 0)
        if message is None:
            return None
        stop = physical_offset + message.size
        if stop > self._visible_stop:
            try:
                self._visible_stop = self._log.readable_limit
            except OSError:
                if stop > self._log.max_offset:  # that of the queues that can be read
                    raise
                return message
        return message if stop <= self._visible_stop else None  # K-D2

    # --- by time --------------------------------------------------------------------------------

    @checked
    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the queue offset of the first message stored at or after a moment.

        The maximum offset when there is none, 0 for an unknown queue. Only times in records count,
        never those of files (K-T1), and an entry without a readable record has none (K-T4). Where
        a clock went back, which a Java broker writes down, several offsets separate earlier from
        later messages, and the answer is one of them.

        Notes
        -----
        Source: DefaultMessageStore.getOffsetInQueueByTime, over the whole queue.
        """
        queue = self._queue_of(topic, queue_id)
        if queue is None:
            return 0
        low = queue.min_offset
        answer = high = queue.max_offset
        while low < high:
            middle = (low + high) // 2
            at, stored = self._first_stored(queue, middle, high)
            if stored is None:  # nothing readable from the middle on
                high = middle
            elif stored >= timestamp_ms:
                answer, high = at, middle
            else:
                low = at + 1
        return answer

    def _first_stored(self, queue: _Queue, start: int, stop: int) -> tuple[int, int | None]:
        """Return the first entry in [start, stop) that has a readable record, and its time."""
        # One look is nearly always enough for a search by time.
        first = queue.entries_from(start, min(start + 1, stop))
        log = queue.records or self._records
        for at, (physical_offset, size, _) in chain(first, queue.entries_from(start + 1, stop)):
            if 0 < size != FILLER_SIZE:
                stored = store_time_at(log, physical_offset, size)
                if stored is not None:
                    return max(at, start), stored
        return stop, None

    def earliest_timestamp(self, topic: str, queue_id: int) -> int | None:
        """Return the store time of a queue's first readable message, None when it has none."""
        queue = self._queue_of(topic, queue_id)
        if queue is None:
            return None
        return self._first_stored(queue, queue.min_offset, queue.max_offset)[1]

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

    @checked
    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the store time of one queue offset, None when its record cannot be read."""
        queue = self._queue_of(topic, queue_id)
        if queue is None or not 0 <= offset < queue.max_offset:
            return None
        return self._first_stored(queue, offset, offset + 1)[1]


def messages_of(
    reader: Reader, queue: QueueKey, offset: int, tags: str | None = None
) -> Iterator[StoredMessage]:
    """Yield the messages of a queue from an offset on, as far as they can be read.

    A page is bounded as in 4.9 (32 messages, 800 entries looked at), so that with `tags` an empty
    one is not the end of the queue.
    """
    while offset < reader.max_offset(*queue):
        page = reader.get(*queue, offset, tags=tags)
        yield from page.messages
        if page.next_offset <= offset:
            return
        offset = page.next_offset


def _after_fork() -> None:
    for reader in list(_readers):
        reader._go_on_in_child()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_after_fork)
