"""A page of one queue: which entries a get looks at, which it takes, and what it says about it.

A page is bounded so that no reader can make one get cost the earth: by the messages asked for, by
counts and bytes that are smaller for messages so old that they are likely not in memory, by 800
entries looked at, and by the end of the queue's file. The first message is always returned, however
large. The status says what the first page of nothing was about; `next_offset` is where to go on.

Law: an entry that gives no message (a filler, or its record expired, is lost or belongs to somebody
else) is stepped over and counted, never answered with a false message, and it never hides a later
one.

How derived: DefaultMessageStore.getMessage and isTheBatchFull of 4.9 (spec B13), with K-O1, K-C2,
K-C9 put right. Where Java meets an unreadable record it skips every entry up to the next CommitLog
file; here only entries that really cannot be read are skipped.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, ENTRY_STRUCT, FILLER_SIZE
from rocketstore.storage.results import GetMessageStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.config import StoreConfig
    from rocketstore.storage.reading.read_sources import QueueSource
    from rocketstore.storage.reading.tag_filter import TagFilter

FILTER_WINDOW_BYTES: Final = 16_000
"""Bytes of entries that a get looks at, at least (getMessage: ``maxFilterMessageCount``)."""

DELAY_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Its queues exist from the start, without directories (ScheduleMessageService.load)."""

Item = TypeVar("Item")


class Rejection(Enum):
    """Why an entry gives no message."""

    LOST = "LOST"
    """Its record has expired, is damaged, or is another queue's."""
    UNWANTED = "UNWANTED"
    """The tags do not match."""


class PageLimits(NamedTuple):
    """How large a page may become.

    Attributes
    ----------
    memory_span_bytes
        How far behind the log's end a record counts as being in memory.
    """

    memory_bytes: int
    memory_count: int
    disk_bytes: int
    disk_count: int
    memory_span_bytes: int

    @classmethod
    def from_config(cls, config: StoreConfig, *, physical_memory_bytes: int) -> PageLimits:
        """Return the limits that a configuration sets on this machine."""
        return cls(
            config.max_transfer_bytes_on_message_in_memory,
            config.max_transfer_count_on_message_in_memory,
            config.max_transfer_bytes_on_message_in_disk,
            config.max_transfer_count_on_message_in_disk,
            physical_memory_bytes * config.access_message_in_memory_max_ratio // 100,
        )

    def is_full(self, count: int, size: int, record_size: int, *, is_in_disk: bool) -> bool:
        """Return whether a page of `count` records and `size` bytes cannot take another record.

        Source: DefaultMessageStore.isTheBatchFull.
        """
        if is_in_disk:
            return size + record_size > self.disk_bytes or count >= self.disk_count
        return size + record_size > self.memory_bytes or count >= self.memory_count


class Outcome(NamedTuple, Generic[Item]):
    """A page, whatever its messages are made of."""

    status: GetMessageStatus
    items: list[Item]
    next_offset: int
    min_offset: int
    max_offset: int
    skipped_entries: int


class PageRequest(NamedTuple):
    """What a reader asks for."""

    topic: str
    queue_id: int
    offset: int
    max_messages: int
    tag_filter: TagFilter | None


def outside(
    request: PageRequest, queue: QueueSource | None
) -> tuple[GetMessageStatus, int, int, int] | None:
    """Return status, next, minimum and maximum offset of a get that no entry can answer.

    None when the queue has an entry at the offset asked for.
    """
    if queue is None:
        is_delay = request.topic == DELAY_TOPIC
        status = GetMessageStatus.NO_MESSAGE_IN_QUEUE
        return status if is_delay else GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0
    offset, minimum, maximum = request.offset, queue.min_offset, queue.max_offset
    if maximum == 0:
        return GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, minimum, maximum
    if offset < minimum:
        return GetMessageStatus.OFFSET_TOO_SMALL, minimum, minimum, maximum
    if offset == maximum:
        return GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, minimum, maximum
    if offset > maximum:
        # K-O1: 4.9.3 sends the reader back to 0 when the minimum is 0.
        return GetMessageStatus.OFFSET_OVERFLOW_BADLY, maximum, minimum, maximum
    return None


def behind_missing_file(queue: QueueSource, offset: int, minimum: int, maximum: int) -> int:
    """Return where to go on when the file of an offset is missing: the next file.

    K-C9: 4.9.3 may jump beyond the maximum.
    """
    following = offset + queue.entries_per_file - offset % queue.entries_per_file
    return min(max(following, minimum), maximum)


def window_entries(max_messages: int) -> int:
    """Return how many entries a get looks at."""
    return max(FILTER_WINDOW_BYTES // ENTRY_SIZE_BYTES, max_messages)


def read_page(
    request: PageRequest,
    queue: QueueSource | None,
    limits: PageLimits,
    log_max_offset: int,
    take: Callable[[int, int], Item | Rejection],
) -> Outcome[Item]:
    """Return the page that a request gets.

    Parameters
    ----------
    queue
        The queue, None when there is none.
    log_max_offset
        End of the CommitLog, from which "in memory" is measured.
    take
        Returns what the page is to hold for the record at a physical offset, of a size; or why it
        gives nothing.
    """
    early = outside(request, queue)
    if early is not None or queue is None:
        status, following, minimum, maximum = early or (
            GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0,
        )  # fmt: skip
        return Outcome(status, [], following, minimum, maximum, 0)
    minimum, maximum = queue.min_offset, queue.max_offset
    entries = queue.entry_bytes(request.offset, window_entries(request.max_messages))
    if not entries:
        following = behind_missing_file(queue, request.offset, minimum, maximum)
        return Outcome(GetMessageStatus.OFFSET_FOUND_NULL, [], following, minimum, maximum, 0)
    status, items, scanned, skipped = _collect(
        entries, request, limits, log_max_offset - limits.memory_span_bytes, take
    )
    return Outcome(status, items, request.offset + scanned, minimum, maximum, skipped)


def _collect(
    entries: memoryview | bytes,
    request: PageRequest,
    limits: PageLimits,
    in_disk_below: int,
    take: Callable[[int, int], Item | Rejection],
) -> tuple[GetMessageStatus, list[Item], int, int]:
    """Return status, items, how many entries were looked at, and how many gave no message."""
    status = GetMessageStatus.NO_MATCHED_MESSAGE
    items: list[Item] = []
    size = scanned = skipped = 0
    tag_filter = request.tag_filter
    for physical_offset, record_size, tags_code in ENTRY_STRUCT.iter_unpack(entries):
        if items and len(items) >= request.max_messages:
            break
        taken: Item | Rejection
        if record_size <= 0 or (record_size == FILLER_SIZE and physical_offset == 0):
            taken = Rejection.LOST
        else:
            is_in_disk = physical_offset < in_disk_below
            if items and limits.is_full(len(items), size, record_size, is_in_disk=is_in_disk):
                break
            if tag_filter is not None and not tag_filter.may_match(tags_code):
                taken = Rejection.UNWANTED
            else:
                taken = take(physical_offset, record_size)
        scanned += 1
        if taken is Rejection.LOST:
            skipped += 1
            if not items:
                status = GetMessageStatus.MESSAGE_WAS_REMOVING
        elif taken is Rejection.UNWANTED:
            if not items:
                status = GetMessageStatus.NO_MATCHED_MESSAGE
        else:
            items.append(taken)
            size += record_size
    return GetMessageStatus.FOUND if items else status, items, scanned, skipped
