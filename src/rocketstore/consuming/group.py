"""A consumer group in this process: its members, which of them reads which queue, its offsets.

Law: each queue is read by one member at a time, and no message is with two members. A member that
leaves, by `leave` or because it was garbage-collected, hands its messages over. One lock guards the
group; no code waits or writes a file while it holds the lock.

How derived: RebalanceImpl, RebalancePushImpl.computePullFromWhere and ProcessQueue of 4.9's client,
AllocateMessageQueueAveragely, and ConsumerManageProcessor.queryConsumerOffset of its broker (spec
B24.4).
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import msgspec

from rocketstore.consuming.giving_back import RETRY_LIMIT
from rocketstore.consuming.window import Delivery, QueueWindow
from rocketstore.errors import StoreClosedError
from rocketstore.events import get_logger
from rocketstore.locks import Lock
from rocketstore.rules.extra_queues import offset_in
from rocketstore.rules.topics import RETRY_PREFIX
from rocketstore.storage.reading.pages import PageLimits
from rocketstore.storage.results import GetMessageStatus
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from rocketstore.consuming.others import GroupClients, GroupMembers
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.storage.store import BaseStore
    from rocketstore.tables.consumer_offsets import ConsumerOffsetTable

PAGE_MESSAGES: Final = 32
"""Messages read at once of a queue (DefaultMQPushConsumer.pullBatchSize)."""

UNACKNOWLEDGED_LIMIT: Final = 1000
"""Most messages of a queue that may be unacknowledged (DefaultMQPushConsumer's
pullThresholdForQueue): beyond it the group reads no more of them."""

_MOVED: Final = (GetMessageStatus.OFFSET_TOO_SMALL, GetMessageStatus.OFFSET_OVERFLOW_BADLY)

_log: Final = get_logger(__name__)

_T = TypeVar("_T")


class GroupSubscription(msgspec.Struct, frozen=True):
    """What all consumers of a group ask for; see `MessageStore.consume`."""

    topics: tuple[str, ...]
    tags: str | None = None
    start: Literal["first", "last"] | int = "last"
    max_reconsume_times: int = RETRY_LIMIT
    max_unacknowledged: int = UNACKNOWLEDGED_LIMIT


class Member:
    """One consumer, as its group knows it; queues stand in the order they are looked at next."""

    def __init__(self, member_id: str) -> None:
        self.id = member_id
        self.queues: deque[QueueKey] = deque()
        self.is_gone = False


@dataclass(eq=False)
class Group:
    """The members of one group and the windows of its queues."""

    name: str
    subscription: GroupSubscription
    store: BaseStore
    _offsets: ConsumerOffsetTable
    all_members: GroupMembers

    def __post_init__(self) -> None:
        self._lock = Lock()
        self._members: list[Member] = []
        self._windows: dict[QueueKey, QueueWindow] = {}
        self._queue_count = -1
        self._full: set[QueueKey] = set()
        self._topics = (*self.subscription.topics, RETRY_PREFIX + self.name)

    # --- members --------------------------------------------------------------------------------

    @property
    def has_members(self) -> bool:
        """Whether the group has a consumer."""
        return any(not member.is_gone for member in self._members)

    def join(self, member: Member) -> None:
        """Take in a consumer, and share the queues again."""
        with self._lock:
            self._members.append(member)
            self._tell()
            self._share()
        self.store.look_again()

    def leave(self, member: Member) -> None:
        """Let a consumer go, and the others have its queues and messages."""
        self.abandon(member)
        with self._lock:
            self._share()

    def abandon(self, member: Member) -> None:
        """Remove a consumer at the next look; takes no lock, as the collector may call it."""
        member.is_gone = True
        self._tell()
        self.share_again()

    def _tell(self) -> None:
        """Let clients of the group, if there are any, know the consumers of this process."""
        ids = (member.id for member in tuple(self._members) if not member.is_gone)
        self.all_members.note_own(self.name, tuple(ids))

    def share_again(self) -> None:
        """Have the queues shared again at the next look; takes no lock."""
        self._queue_count = -1
        with contextlib.suppress(StoreClosedError):
            self.store.look_again()

    def _share(self) -> None:
        """Have each member read its share of the queues there are."""
        count = self.store.queue_count
        for member in [member for member in self._members if member.is_gone]:
            for window in self._windows.values():
                window.take_back(member)
            self._members.remove(member)
        clients = self.all_members.clients(self.name)
        ids = sorted((*clients.ids, *(member.id for member in self._members)))
        places = {one: place for place, one in enumerate(ids)}
        topics = [self._queues_of(topic, clients) for topic in self._topics]
        for member in self._members:
            shares = [share_of(queues, places[member.id], len(ids)) for queues in topics]
            member.queues = deque(itertools.chain.from_iterable(shares))
        own = {key for member in self._members for key in member.queues}
        for key in own - self._windows.keys():
            self._windows[key] = self._opened(key)
        for key in self._windows.keys() - own if clients.ids or not self._members else ():
            del self._windows[key]  # a client, or a later consumer, continues at the offset
        self._queue_count = count

    def _queues_of(self, topic: str, clients: GroupClients) -> list[QueueKey]:
        """Return the queues of a topic, and those without messages that clients know."""
        known = {QueueKey(topic, one) for one in range(clients.queue_counts.get(topic, 0))}
        return sorted(known.union(self.store.queues(topic)))

    # --- offsets --------------------------------------------------------------------------------

    def _opened(self, key: QueueKey) -> QueueWindow:
        if (offset := self._offsets.get(key.topic, self.name, key.queue_id)) is None:
            offset = self._first_offset(key)
            # At once: what comes before the next start is not passed over then.
            self._offsets.set(key.topic, self.name, key.queue_id, offset)
        return QueueWindow(offset)

    def _first_offset(self, key: QueueKey) -> int:
        """Return where a group without an offset begins."""
        store, start = self.store, self.subscription.start
        if key.topic not in self.subscription.topics or start == "first":
            return store.min_offset(*key)
        if start != "last":
            return store.offset_at(*key, start)
        return 0 if is_consumed_from_the_beginning(store, *key) else store.max_offset(*key)

    def _note_offset(self, key: QueueKey, window: QueueWindow) -> None:
        self._offsets.set(key.topic, self.name, key.queue_id, window.offset)

    # --- messages -------------------------------------------------------------------------------

    def next_for(self, member: Member) -> tuple[QueueKey, Delivery] | None:
        """Return the next message for a consumer, and its queue; None when there is none now."""
        with self._lock:
            if self._queue_count != self.store.queue_count:
                self._share()
            return self._next_of(member)

    def _next_of(self, member: Member) -> tuple[QueueKey, Delivery] | None:
        for _ in range(len(member.queues)):
            key = member.queues[0]
            member.queues.rotate(-1)
            window = self._windows[key]
            if not window.has_ready:
                window = self._read(key, window)
            if window.has_ready:
                return key, window.deliver(member)
        return None

    def _read(self, key: QueueKey, window: QueueWindow) -> QueueWindow:
        """Read on; return the window, another one where the queue lost what came next."""
        if len(window) >= self.subscription.max_unacknowledged:
            self._note_full(key, window)
            return window
        offset = window.next_offset
        tags = self.subscription.tags if key.topic in self.subscription.topics else None
        page = self.store.get(*key, offset, PAGE_MESSAGES, tags)
        if page.status in _MOVED and page.next_offset != offset:
            _log.warning(
                "consume.offset_moved", group=self.name, queue=str(key), status=page.status.name,
                offset=offset, min_offset=page.min_offset, max_offset=page.max_offset,
                next_offset=page.next_offset,
            )  # fmt: skip
        if page.skipped_entries:
            _log.warning(
                "consume.lost", group=self.name, queue=str(key), offset=offset,
                next_offset=page.next_offset, entries=page.skipped_entries,
                hint="rocketstore store verify says why",
            )  # fmt: skip
        if page.next_offset < offset:
            # The queue is shorter than what was consumed of it: offsets come a second time.
            window = self._windows[key] = QueueWindow(page.next_offset)
        try:
            messages = _numbered_in(key, offset, page.messages, page.next_offset)
            window.add(messages, page.next_offset)
        except BaseException:
            # An interrupt: half of a page must not hold the offset back for ever.
            del self._windows[key]
            self._queue_count = -1
            raise
        self._note_offset(key, window)
        return window

    def _note_full(self, key: QueueKey, window: QueueWindow) -> None:
        if key not in self._full:
            self._full.add(key)
            _log.warning(
                "consume.full", group=self.name, queue=str(key), unacknowledged=len(window),
                offset=window.offset, hint="acknowledge messages, or give them back",
            )  # fmt: skip

    def holds(self, key: QueueKey, delivery: Delivery) -> bool:
        """Whether a message is still with the consumer that it was delivered to."""
        window = self._windows.get(key)
        return window is not None and window.holds(delivery)

    def acknowledge(self, key: QueueKey, delivery: Delivery) -> bool:
        """Count a message as consumed; False where it was handed over, or is consumed already."""
        with self._lock:
            window = self._windows.get(key)
            if window is None or not window.acknowledge(delivery):
                return False
            self._note_offset(key, window)
        if key in self._full:
            self._full.discard(key)
            self.store.look_again()
        return True


def _numbered_in(
    key: QueueKey, offset: int, messages: Sequence[StoredMessage], next_offset: int
) -> Iterator[StoredMessage]:
    """Yield messages, read from `offset` up to `next_offset`, with their numbers in that queue.

    One of another queue, which has this as an extra one, states its number here. Queues of 4.9 may
    be shifted (K-C1), so what stands without a gap is counted, and what cannot be true is the least
    that can: nothing is passed over.
    """
    is_whole = len(messages) == next_offset - offset
    for message in messages:
        if (message.topic, message.queue_id) != key:
            stated = None if is_whole else offset_in(message, key)
            number = stated if stated in range(offset, next_offset) else offset
            message = msgspec.structs.replace(message, queue_offset=number)  # noqa: PLW2901
        yield message
        offset = message.queue_offset + 1


def share_of(queues: Sequence[_T], index: int, member_count: int) -> Sequence[_T]:
    """Return the queues of one member: a run of neighbours, the first members one more.

    >>> [list(share_of("abcde", index, 3)) for index in range(3)]
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    size, more = divmod(len(queues), member_count)
    start = index * size + min(index, more)
    return queues[start : start + size + (index < more)]


def is_consumed_from_the_beginning(store: BaseStore, topic: str, queue_id: int) -> bool:
    """Whether a queue is empty, or still whole and so young that all of it may be in memory.

    There a group that has no offset, and wants only new messages, begins at 0.
    """
    if store.min_offset(topic, queue_id) > 0:
        return False
    _, first = next(store.queue_entries(topic, queue_id, 0, 1), (0, None))
    span = PageLimits.from_config(store.config).memory_span_bytes
    return first is None or store.max_physical_offset - first.physical_offset <= span
