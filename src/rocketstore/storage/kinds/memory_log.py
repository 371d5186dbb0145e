"""The messages of memory topics: a log and its queues, in this process and in no file.

For `StoreWriter` and readers a `MemoryLog` takes the place of `CommitLog`; its queues are read as
those on the disk are.

Law: no file is made, written or read. Used memory never exceeds the limit: memory is freed before a
message is added, by deleting the oldest messages of its own topic, and, where that has none left,
the longest-stored one of all topics. A message is added as a whole or not at all, and so is a
batch; an interrupt leaves the count of bytes right and no lock held.

How derived: MemoryMessageStore in seed 001 (spec B22), which is in no version of RocketMQ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from rocketstore.format.host import encode_host
from rocketstore.format.java_hash import tags_code
from rocketstore.format.properties import TAGS, decode_properties
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, ENTRY_STRUCT, QueueEntry
from rocketstore.locks import Lock
from rocketstore.native.decode import LogAtHand
from rocketstore.native.log_end import LogEnd, QueueCounter, Record
from rocketstore.scan.queue_search import QueueSearch
from rocketstore.storage.results import FIRST_IN_MEMORY, NotTakenError, PutMessageStatus, PutResult
from rocketstore.units import QueueKey, Window

if TYPE_CHECKING:
    from rocketstore.config import StoreConfig

ENTRY_OVERHEAD_BYTES: Final = 160
"""What a message takes besides its record: Python's bytes, entry and place in a table."""

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

    `used_bytes` is what they take, `ENTRY_OVERHEAD_BYTES` of each included; `evicted` were deleted
    to free memory; `max_offset` is the physical offset of the next one.
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
        self._in_order: dict[str, deque[MemoryQueue]] = {}  # of a topic, for each message its queue
        self._last_ms = 0
        self._lock = Lock()

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
        order = self._in_order.setdefault(key.topic, deque())
        for record, content in zip(records, made, strict=True):
            code = tags_code(decode_properties(record.properties).get(TAGS, ""))
            entries.append(QueueEntry(self.max_offset, len(content), code))
            self._records[self.max_offset] = content
            order.append(queue)
            self.max_offset += len(content)
        queue.add(entries)
        self.queues[key] = queue
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
            order = self._in_order.get(topic) or self._longest_stored()
            if order is None:
                return  # it is all gone
            if (oldest := order[0].oldest()) is not None:
                record = self._records.pop(oldest.physical_offset)
                self.used_bytes -= len(record) + ENTRY_OVERHEAD_BYTES
                order[0].forget_oldest()
                self.evicted += 1
            order.popleft()

    def _longest_stored(self) -> deque[MemoryQueue] | None:
        """Return the order of the topic that has the oldest message."""
        some = (order for order in self._in_order.values() if order)
        return min(some, key=lambda order: order[0].oldest() or (0, 0, 0), default=None)

    def _settle(self, counter: QueueCounter) -> None:
        """Take back what an interrupted put left, and count again."""
        for queue in self.queues.values():
            while (oldest := queue.oldest()) and oldest.physical_offset not in self._records:
                queue.forget_oldest()
        known = self.queues.get(counter.key)
        counter.next_offset = 0 if known is None else known.max_offset
        kept = sorted(
            (values[0], key)
            for key, queue in self.queues.items()
            for _, values in queue.entries_from(queue.min_offset, queue.max_offset)
        )
        self._records = {at: self._records[at] for at, _ in kept}
        self._in_order = {key.topic: deque() for key in self.queues}
        for _, key in kept:
            self._in_order[key.topic].append(self.queues[key])
        self.used_bytes = self.counted()

    def counted(self) -> int:
        """Return the bytes that the messages take, one by one."""
        return sum(len(record) + ENTRY_OVERHEAD_BYTES for record in list(self._records.values()))
