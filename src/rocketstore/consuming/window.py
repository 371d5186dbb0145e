"""What a group has read of one queue and not yet acknowledged, and how far its offset may go.

Law: the group's offset passes a message only when that message and all before it are acknowledged.
A message is with one consumer at a time; one that comes back is delivered before later ones.

How derived: ProcessQueue of 4.9's client, whose smallest message is the offset that it commits.
Here the window belongs to the group, not to a consumer, so that a queue may change hands while
messages of it are still being processed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketstore.format.stored_message import StoredMessage


@dataclass(eq=False, slots=True)
class Delivery:
    """One message at one consumer."""

    message: StoredMessage
    holder: object


class QueueWindow:
    """The messages of a queue from a group's offset to `next_offset`, which is read next."""

    def __init__(self, offset: int) -> None:
        self.next_offset = offset
        self._ready: deque[StoredMessage] = deque()
        self._delivered: dict[int, Delivery] = {}
        self._open: deque[int] = deque()  # offsets read, from the first that is not acknowledged
        self._done: set[int] = set()  # of those, the acknowledged ones

    def __len__(self) -> int:
        """Return how many messages are not acknowledged."""
        return len(self._ready) + len(self._delivered)

    @property
    def offset(self) -> int:
        """Where the group continues if it stops now: the first unacknowledged message."""
        return self._open[0] if self._open else self.next_offset

    @property
    def has_ready(self) -> bool:
        """Whether a message waits for a consumer."""
        return bool(self._ready)

    def add(self, messages: Iterable[StoredMessage], next_offset: int) -> None:
        """Take what was read from `next_offset` on, and where to read next."""
        messages = list(messages)
        self._open.extend([message.queue_offset for message in messages])
        self._ready.extend(messages)
        self.next_offset = next_offset

    def deliver(self, holder: object) -> Delivery:
        """Give the next message to a consumer."""
        delivery = Delivery(self._ready[0], holder)
        self._delivered[delivery.message.queue_offset] = delivery
        self._ready.popleft()
        return delivery

    def holds(self, delivery: Delivery) -> bool:
        """Whether a consumer still has a message, neither acknowledged nor taken back."""
        return self._delivered.get(delivery.message.queue_offset) is delivery

    def acknowledge(self, delivery: Delivery) -> bool:
        """Count a message as consumed; False where it is no longer with its consumer."""
        if not self.holds(delivery):
            return False
        offset = delivery.message.queue_offset
        self._done.add(offset)
        del self._delivered[offset]
        while self._open and self._open[0] in self._done:
            self._done.discard(self._open.popleft())
        return True

    def take_back(self, holder: object) -> None:
        """Let others have what a consumer did not acknowledge."""
        back = [each for each in self._delivered.values() if each.holder is holder]
        messages = {each.message.queue_offset: each.message for each in back}
        messages.update((message.queue_offset, message) for message in self._ready)
        self._ready = deque(messages[offset] for offset in sorted(messages))
        for each in back:
            del self._delivered[each.message.queue_offset]
