"""Pages of a queue: what a get says where the queue has nothing to say, and how large a page is.

A page is bounded so that no reader can make one get cost the earth: by the messages asked for, by
counts and bytes that are smaller for messages so old that they are likely not in memory, by 800
entries looked at, and by the end of the queue's file. What a page is made of is decided entry by
entry in ``native.page``.

How derived: DefaultMessageStore.getMessage of 4.9 (spec B13), with K-O1 and K-C9 put right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.format.topic_name import DELAY_TOPIC, QUEUE_ID_MAX
from rocketstore.native.page import RECORDS, QueuePages
from rocketstore.storage.reading.tag_filter import parse_tags
from rocketstore.storage.results import GetMessageStatus

if TYPE_CHECKING:
    from rocketstore.config import StoreConfig
    from rocketstore.native.decode import LogAtHand
    from rocketstore.storage.reading.sources import QueueSource

_QUEUES_REMEMBERED: Final = 4096
_NO_QUEUE_ID: Final = -(1 << 40)
_STATUSES: Final = (
    GetMessageStatus.FOUND,
    GetMessageStatus.MESSAGE_WAS_REMOVING,
    GetMessageStatus.NO_MATCHED_MESSAGE,
)


class PageLimits(NamedTuple):
    """How large a page may become; the span counts as in memory, back from the log's end."""

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


class Pages(dict[tuple[str, int, str | None], QueuePages]):
    """What reads pages of each queue, by topic, queue id, and tags as a reader spells them.

    Safe to use from several threads.
    """

    def __init__(self, log: LogAtHand, limits: PageLimits) -> None:
        super().__init__()
        self._log = log
        self.limits = limits

    def __missing__(self, question: tuple[str, int, str | None]) -> QueuePages:
        """Return it for a queue that nobody has asked for lately."""
        topic, queue_id, tags = question
        # No record can have another queue id than these.
        number = queue_id if 0 <= queue_id <= QUEUE_ID_MAX else _NO_QUEUE_ID
        pages = QueuePages(
            self._log, topic, number, self.limits, parse_tags(tags), _STATUSES, _without_entry
        )
        while len(self) >= _QUEUES_REMEMBERED:
            self.pop(next(iter(self)), None)
        self[question] = pages
        return pages


def _without_entry(
    kind: int, queue: QueueSource | None, topic: str, offset: int, minimum: int, maximum: int
) -> tuple[Any, ...]:
    """Return the page of a get that no entry can answer."""
    status, following = _outside(queue, topic, offset, minimum, maximum)
    if kind == RECORDS:
        return status, b"", 0, following, minimum, maximum, 0
    return status, [], following, minimum, maximum, 0


def _outside(
    queue: QueueSource | None, topic: str, offset: int, minimum: int, maximum: int
) -> tuple[GetMessageStatus, int]:
    """Return the status and the offset to go on from.

    Law: of a queue that grows, `maximum` is the one that the page compared. Asked again, it may be
    past `offset`, and a reader at the end would be sent over messages that it has not seen.
    """
    if queue is None:
        # The delay queues exist from the start, without directories (ScheduleMessageService.load).
        is_delay = topic == DELAY_TOPIC
        status = GetMessageStatus.NO_MESSAGE_IN_QUEUE
        return status if is_delay else GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0
    if maximum == 0:
        return GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < minimum:
        return GetMessageStatus.OFFSET_TOO_SMALL, minimum
    if offset == maximum:
        return GetMessageStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > maximum:
        # K-O1: 4.9.3 sends the reader back to 0 when the minimum is 0.
        return GetMessageStatus.OFFSET_OVERFLOW_BADLY, maximum
    # The file is missing; K-C9: 4.9.3 may go on beyond the maximum.
    following = offset + queue.entries_per_file - offset % queue.entries_per_file
    following = min(max(following, minimum), maximum)
    return GetMessageStatus.OFFSET_FOUND_NULL, following
