"""The messages of memory topics: kept as records, evicted when they take too much memory.

Law: no file is made, written or read. Used memory never exceeds the limit: room is made before a
message is added, by deleting the oldest messages of its own topic, and, where that has none left,
the longest-stored one of all topics. A message is added as a whole or not at all, and so is a
batch; an interrupt leaves the count of bytes right and no lock held.

How derived: MemoryMessageStore of seed 001 (spec B22), which is in no version of RocketMQ. What it
leaves open is decided in docs/decisions/0024-memory-topics.md.
"""

from __future__ import annotations

import threading
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from rocketstore.format.host import encode_host
from rocketstore.native.decode import decode
from rocketstore.native.log_end import LogEnd, QueueCounter
from rocketstore.native.page import MESSAGES, RECORDS, VIEWS
from rocketstore.rules.limits import refused_length, refused_properties, refused_topic
from rocketstore.storage.reading.pages import page_without_entry, parse_tags
from rocketstore.storage.results import GetMessageStatus, PutMessageStatus, PutResult
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rocketstore.config import StoreConfig
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.native.log_end import Record

FIRST_ADDRESS: Final = 1 << 62
"""Physical offset of the first message put to memory: no CommitLog gets so long."""

ENTRY_OVERHEAD_BYTES: Final = 160
"""What a message takes besides its record: Python's bytes, number and place in a table."""

LOOKED_AT: Final = 800
"""Most messages that one get looks at, as in a queue on disk (B13)."""

_ADDRESS_AT: Final = 28


def address_of(record: bytes) -> int:
    """Return the physical offset that a record states."""
    return int.from_bytes(record[_ADDRESS_AT : _ADDRESS_AT + 8], "big")


class MemoryQueue:
    """Records by queue offset; an offset below `end` that has none was evicted."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self.end = 0
        self._first = 0

    @property
    def max_offset(self) -> int:
        """One past the last queue offset."""
        return self.end

    @property
    def min_offset(self) -> int:
        """The first queue offset that has a record; the maximum without one."""
        first, end, records = self._first, self.end, self.records
        while first < end and first not in records:
            first += 1
        self._first = first
        return first

    def oldest(self) -> bytes | None:
        """Return the record of the minimum offset."""
        return self.records.get(self.min_offset)


class _Sheet:
    """What a `LogEnd` takes for the file that it writes into."""

    __slots__ = ("base", "write_position")

    def __init__(self, base: int) -> None:
        self.base = base
        self.write_position = 0


class MemoryStore:
    """Messages of memory topics, up to `limit_bytes`; any thread may call anything.

    Attributes
    ----------
    used_bytes
        What the messages take, `ENTRY_OVERHEAD_BYTES` of each included.
    evicted
        Messages deleted to make room.
    """

    def __init__(self, config: StoreConfig, *, limit_bytes: int, clock: Callable[[], int]) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = self.evicted = 0
        self._config = config
        self._clock = clock
        self._store_host = encode_host(config.store_host)
        self._queues: dict[str, dict[int, MemoryQueue]] = {}
        self._next_address = FIRST_ADDRESS
        self._last_ms = 0
        self._lock = threading.Lock()

    # --- putting --------------------------------------------------------------------------------

    def append(self, topic: str, queue_id: int, records: Sequence[Record]) -> PutResult:
        """Add records to a queue, all or none; room is made as the law says."""
        refused = self._refusal(topic, records)
        if refused is not None:
            return refused
        now_ms = self._clock()
        with self._lock:
            try:
                result = self._add(QueueKey(topic, queue_id), topic.encode(), records, now_ms)
            except BaseException:
                self._settle()
                raise
        return result

    def _refusal(self, topic: str, records: Sequence[Record]) -> PutResult | None:
        size = sum(len(record.body) for record in records)
        refusal = (
            refused_topic(topic)
            or refused_properties(max((record.properties for record in records), key=len))
            or refused_length("body", size, self._config.max_message_size)
        )
        if refusal is None:
            return None
        return PutResult(PutMessageStatus[refusal.status], detail=refusal.why)

    def _add(self, key: QueueKey, name: bytes, records: Sequence[Record], now_ms: int) -> PutResult:
        queues = self._queues.setdefault(key.topic, {})
        queue = queues.get(key.queue_id) or MemoryQueue()
        first, address = queue.end, self._next_address
        behind_ms = max(self._last_ms - now_ms, 0)
        now_ms = self._last_ms = now_ms + behind_ms
        counter = QueueCounter(key, name, key.queue_id, first)
        sizes, made = self._encoded(counter, records, address, now_ms, behind_ms)
        needed = sum(sizes) + ENTRY_OVERHEAD_BYTES * len(made)
        if needed > self.limit_bytes:
            detail = f"{needed} bytes exceed memoryTopicMaxBytes of {self.limit_bytes}"
            return PutResult(PutMessageStatus.MESSAGE_ILLEGAL, detail=detail)
        self._make_room(key.topic, needed)
        self._next_address = address + sum(sizes)
        self.used_bytes += needed
        # Nobody sees them before the end moves.
        queue.records.update(made)
        queues[key.queue_id] = queue
        queue.end = first + len(made)
        packed = b"".join(size.to_bytes(4, "big") for size in sizes)
        return PutResult(
            PutMessageStatus.PUT_OK, address, first, sum(sizes), now_ms, self._store_host,
            message_count=len(made), packed_sizes=packed,
        )  # fmt: skip

    def _encoded(
        self,
        counter: QueueCounter,
        records: Sequence[Record],
        address: int,
        now_ms: int,
        behind_ms: int,
    ) -> tuple[list[int], dict[int, bytes]]:
        """Return the sizes of the records, and them as a log would hold them, by queue offset."""
        end = LogEnd(self._store_host)
        sizes = [end.size_of(record, counter) for record in records]
        written = bytearray(sum(sizes))
        end.write_into(_Sheet(address), written, 0, len(written))
        end.behind_ms = behind_ms
        end.write(counter, records, now_ms)
        stops = list(accumulate(sizes))
        pieces = (
            bytes(written[stop - size : stop]) for stop, size in zip(stops, sizes, strict=True)
        )
        return sizes, dict(enumerate(pieces, counter.next_offset))

    def _make_room(self, topic: str, needed: int) -> None:
        while self.used_bytes + needed > self.limit_bytes:
            own = list(self._queues[topic].values())
            queue = self._longest_stored(own) or self._longest_stored(self._all_queues())
            if queue is None:
                return  # it is all gone
            record = queue.records.pop(queue.min_offset)
            self.used_bytes -= len(record) + ENTRY_OVERHEAD_BYTES
            self.evicted += 1

    @staticmethod
    def _longest_stored(queues: list[MemoryQueue]) -> MemoryQueue | None:
        """Return the queue with the oldest message."""
        ages = [
            (address_of(record), queue)
            for queue in queues
            if (record := queue.oldest()) is not None
        ]
        return min(ages, key=lambda one: one[0], default=(0, None))[1]

    def _settle(self) -> None:
        """Take back what an interrupted put left, and count again."""
        for queue in self._all_queues():
            for number in [number for number in queue.records if number >= queue.end]:
                del queue.records[number]
        self.used_bytes = self._counted()

    def _counted(self) -> int:
        return sum(
            len(record) + ENTRY_OVERHEAD_BYTES
            for queue in self._all_queues()
            for record in queue.records.values()
        )

    def _all_queues(self) -> list[MemoryQueue]:
        return [queue for queues in self._queues.values() for queue in queues.values()]

    # --- reading --------------------------------------------------------------------------------

    def queue(self, topic: str, queue_id: int) -> MemoryQueue | None:
        """Return a queue, None before its first message."""
        return self._queues.get(topic, {}).get(queue_id)

    def keys(self) -> list[QueueKey]:
        """Return every queue that had a message."""
        return [
            QueueKey(topic, queue_id)
            for topic, queues in list(self._queues.items())
            for queue_id in list(queues)
        ]

    @property
    def queue_count(self) -> int:
        """Queues that had a message."""
        return len(self._all_queues())

    @property
    def message_count(self) -> int:
        """Messages that are kept now."""
        return sum(len(queue.records) for queue in self._all_queues())

    def page(
        self, kind: int, key: QueueKey, offset: int, max_messages: int, tags: str | None
    ) -> tuple[Any, ...]:
        """Return the fields of a page's result, as `native.page` does for a queue on disk."""
        wanted = parse_tags(tags)
        queue = self.queue(*key)
        if queue is None:
            return page_without_entry(kind, None, key.topic, offset, 0, 0)
        minimum, maximum = queue.min_offset, queue.max_offset
        if not minimum <= offset < maximum:
            # Only the limits are asked of the queue.
            return page_without_entry(kind, queue, key.topic, offset, minimum, maximum)  # type: ignore[arg-type]
        config = self._config
        most = min(max(1, max_messages), config.max_transfer_count_on_message_in_memory)
        taken: list[Any] = []
        size = skipped = 0
        is_lost = False
        at = offset
        while at < min(maximum, offset + LOOKED_AT) and len(taken) < most:
            record = queue.records.get(at)
            is_lost = record is None
            if record is None:
                skipped += 1
            else:
                message = decode(record, 0, address_of(record), False)  # noqa: FBT003 - in memory
                assert message is not None
                if not wanted or message.tags in wanted:
                    size += len(record)
                    if taken and size > config.max_transfer_bytes_on_message_in_memory:
                        break
                    taken.append(message if kind == MESSAGES else record)
            at += 1
        status = GetMessageStatus.FOUND
        if not taken:
            status = GetMessageStatus.NO_MATCHED_MESSAGE
            if is_lost:
                status = GetMessageStatus.MESSAGE_WAS_REMOVING
        if kind == RECORDS:
            return (status, b"".join(taken), len(taken), at, minimum, maximum, skipped)
        items = [memoryview(record) for record in taken] if kind == VIEWS else taken
        return (status, items, at, minimum, maximum, skipped)

    def message(self, topic: str, queue_id: int, offset: int) -> StoredMessage | None:
        """Return the message of one queue offset, None where there is none."""
        queue = self.queue(topic, queue_id)
        record = None if queue is None or offset >= queue.end else queue.records.get(offset)
        return None if record is None else decode(record, 0, address_of(record), False)  # noqa: FBT003
