"""Pages of a queue: their size and tags, and the answer where the queue has no message.

A page is bounded so that a single get stays cheap: by the messages asked for, by
counts and bytes that are smaller for messages so old that they are likely not in memory, by 800
entries looked at, and by the end of the queue's file. The content of a page is decided entry by
entry in ``native.page``.

Law: a queue entry carries only a 32-bit hash of the tags, so the hash rejects cheaply and the tags
of the record decide: no message is returned because its tags merely hash alike (K-C8).

How derived: DefaultMessageStore.getMessage, FilterAPI.buildSubscriptionData and
ExpressionMessageFilter of 4.9 (spec B13, F5), with K-O1 and K-C9 put right.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from rocketstore.errors import InvalidFilterError
from rocketstore.format.file_name import QUEUE_ID_MAX
from rocketstore.format.queue_entry import DELAY_TOPIC
from rocketstore.format.refusals import check_is_int
from rocketstore.native.decode import LogAtHand
from rocketstore.native.page import RECORDS, QueuePages
from rocketstore.rules.extra_queues import may_stand_in
from rocketstore.storage.results import GetMessageStatus
from rocketstore.units import KiB

if TYPE_CHECKING:
    from rocketstore.config import StoreConfig
    from rocketstore.storage.queues.consume_queue import ConsumeQueue
    from rocketstore.storage.queues.pread_queue import PreadQueue

_QUEUES_REMEMBERED: Final = 4096
_TAGS_REMEMBERED: Final = 4096
"""Characters of tags: a reader of longer ones, which takes several times as much, is not kept."""

LONGEST_EXPRESSION: Final = 64 * KiB
"""Characters of an expression, which clients of a broker choose; to read them takes some 5 ms."""

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
    def from_config(cls, config: StoreConfig) -> Self:
        """Return the limits that a configuration sets on this machine."""
        machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(
            config.max_transfer_bytes_on_message_in_memory,
            config.max_transfer_count_on_message_in_memory,
            config.max_transfer_bytes_on_message_in_disk,
            config.max_transfer_count_on_message_in_disk,
            machine_bytes * config.access_message_in_memory_max_ratio // 100,
        )


class Pages(dict[tuple[str, int, str | None], QueuePages]):
    """What reads pages of each queue, by topic, queue id, and tags as a reader spells them.

    `source` is the log, see `LogAtHand`. Safe to use from several threads.
    """

    def __init__(
        self, source: Any, limits: PageLimits, without_entry: Callable[..., tuple[Any, ...]]
    ) -> None:
        super().__init__()
        self.source, self.log = source, LogAtHand(source)
        self.limits = limits
        self.without_entry = without_entry

    def __missing__(self, question: tuple[str, int, str | None]) -> QueuePages:
        """Make the reader of the pages of a queue that was not read lately."""
        topic, queue_id, tags = question
        # No record can have another queue id than these.
        queue_id = check_is_int(queue_id)
        number = queue_id if 0 <= queue_id <= QUEUE_ID_MAX else _NO_QUEUE_ID
        pages = QueuePages(
            self.log, topic, number, self.limits, parse_tags(tags), _STATUSES, self.without_entry,
            may_stand_in,
        )  # fmt: skip
        if tags is None or len(tags) <= _TAGS_REMEMBERED:
            while len(self) >= _QUEUES_REMEMBERED:
                self.pop(next(iter(self)), None)
            self[question] = pages
        return pages


def page_without_entry(  # noqa: PLR0913 - what a page compared, and who asks
    kind: int,
    queue: ConsumeQueue | PreadQueue | None,
    topic: str,
    offset: int,
    minimum: int,
    maximum: int,
    *,
    waits: bool = False,
) -> tuple[Any, ...]:
    """Return the page of a get for which there is no entry; if it `waits`, no reader is sent back.

    Law: `maximum` is the one that the page compared. Read again from a queue that grows, it may
    be past `offset`, and a reader at the end would be sent past messages that it has not seen.
    """
    following = 0
    if queue is None and topic != DELAY_TOPIC:
        status = GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
    elif queue is None or maximum == 0:
        # The delay queues exist from the start, without directories (ScheduleMessageService.load).
        status = GetMessageStatus.NO_MESSAGE_IN_QUEUE
    elif offset < minimum:
        status, following = GetMessageStatus.OFFSET_TOO_SMALL, minimum
    elif offset == maximum:
        status, following = GetMessageStatus.OFFSET_OVERFLOW_ONE, offset
    elif offset > maximum:
        # K-O1: 4.9.3 sends the reader back to 0 when the minimum is 0.
        status, following = GetMessageStatus.OFFSET_OVERFLOW_BADLY, maximum
    else:
        # The file is missing; K-C9: 4.9.3 may go on beyond the maximum.
        next_file = offset + queue.entries_per_file - offset % queue.entries_per_file
        status = GetMessageStatus.OFFSET_FOUND_NULL
        following = min(max(next_file, minimum), maximum)
    following = max(following, offset) if waits else following
    items: tuple[Any, ...] = (b"", 0) if kind == RECORDS else ([],)
    return (status, *items, following, minimum, maximum, 0)


def parse_tags(expression: object) -> tuple[str, ...]:
    """Return the tags of an expression, each once; none where it wants every message.

    Tags are joined by ``||``, with blanks around them ignored and empty ones left out; None, an
    empty text and ``*`` want everything. Raises `InvalidFilterError` where there are separators but
    no tag, as in ``||``, where it is no text, or one that is longer than `LONGEST_EXPRESSION`.

    >>> parse_tags("created || paid"), parse_tags("*")
    (('created', 'paid'), ())
    """
    if expression is None:
        return ()
    if not isinstance(expression, str):
        wrong = f"a tag expression is a str, not {type(expression).__name__}"
    elif len(expression) > LONGEST_EXPRESSION:
        wrong = f"a tag expression has {len(expression)} characters, more than {LONGEST_EXPRESSION}"
    elif expression.strip() in ("", "*"):
        return ()
    else:
        tags = [tag for part in expression.split("||") if (tag := part.strip())]
        if tags:
            return tuple(dict.fromkeys(tags))
        wrong = f"tag expression {expression!r} names no tag"
    raise InvalidFilterError(wrong, hint="write 'a || b', or '*' for everything")
