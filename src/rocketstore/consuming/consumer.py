"""A consumer: an iterator over the messages of a topic that one group has not consumed yet.

Law: a message that the program did not acknowledge is delivered again: to another consumer of the
group once this one is closed or garbage-collected, or after the next open of the store. Nothing is
acknowledged by itself: not by the end of a loop's body, not by an exception, not by `close`.
"""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Self

import msgspec

from rocketstore.arguments import checked, explained
from rocketstore.consuming.giving_back import PROPERTIES_LEFT_OUT, RETRY_TOPIC, given_back
from rocketstore.consuming.group import Group, Member
from rocketstore.consuming.window import Delivery  # noqa: TC001 - a field of a struct
from rocketstore.errors import StoreClosedError
from rocketstore.events import get_logger
from rocketstore.format.stored_message import StoredMessage
from rocketstore.process import OfOneProcess
from rocketstore.units import QueueKey  # noqa: TC001 - a field of a struct

if TYPE_CHECKING:
    from rocketstore.tables.consumer_offsets import ConsumerOffsetTable

_log: Final = get_logger(__name__)


class ConsumedMessage(StoredMessage, frozen=True, kw_only=True, gc=True):
    """A message delivered to a consumer; `topic` is the one that it was put to first.

    Attributes
    ----------
    queue
        Where it was read: after it was given back, a queue of the group's retry topic.
    consumer, delivery
        The consumer that has it.
    """

    queue: QueueKey
    consumer: Consumer
    delivery: Delivery

    def __repr__(self) -> str:
        return f"ConsumedMessage({self.topic}, {self.queue} at {self.queue_offset})"

    def ack(self) -> bool:
        """Count this message as consumed; see `Consumer.acknowledge`."""
        return self.consumer.acknowledge(self)

    def give_back(self, delay_level: int = 0) -> bool:
        """Have this message consumed again later; see `Consumer.give_back`."""
        return self.consumer.give_back(self, delay_level)


class Consumer(OfOneProcess, AbstractContextManager["Consumer"]):
    """Takes messages for a group; made by `MessageStore.consume`, a context manager.

    One thread at a time may iterate or poll; `acknowledge`, `give_back` and `close` may be called
    from any.
    """

    def __init__(
        self, group: Group, offsets: ConsumerOffsetTable, idle_timeout_s: float | None
    ) -> None:
        self._group = group
        self._store = group.store
        self._offsets = offsets
        self._idle_timeout_s = idle_timeout_s
        self._member = Member(group.all_members.next_id())
        # Without `close` too, as when a loop over an unnamed consumer ends. Before it joins, and
        # until it has left: an interrupt leaves no member in the group that does not read.
        self._finalizer = weakref.finalize(self, group.abandon, self._member)
        self._finalizer.atexit = False
        group.join(self._member)

    def __repr__(self) -> str:
        topics = ",".join(self._group.subscription.topics)
        state = "closed" if self.is_closed else "open"
        return f"Consumer({topics}, group={self._group.name}, {state})"

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumedMessage:
        message = None if self.is_closed else self._next(self._idle_timeout_s)
        if message is None:
            raise StopIteration
        return message

    @property
    def is_closed(self) -> bool:
        """Whether this consumer, or its store, was closed."""
        return self._member.is_gone or self._store.is_closed

    @property
    def queues(self) -> list[QueueKey]:
        """The queues that this consumer reads at the moment, in order."""
        return sorted(self._member.queues)

    @checked
    def poll(self, timeout_s: float | None = 0.0) -> ConsumedMessage | None:
        """Return the next message, None where none comes in time; without a time-out, wait.

        Raises
        ------
        StoreClosedError
            The consumer or its store was closed.
        """
        self._store.check_open()
        if self.is_closed:
            raise StoreClosedError(f"{self!r} takes no messages", hint="make another one")
        return self._next(timeout_s)

    def _next(self, timeout_s: float | None) -> ConsumedMessage | None:
        found: list[ConsumedMessage] = []
        if not self.look(found):
            self._store.wait_until(lambda: self.look(found), timeout_s)
        return found[0] if found else None

    def look(self, found: list[ConsumedMessage]) -> bool:
        """Put the next message, if there is one, into an empty list; False where one may come."""
        if not found and not self.is_closed:
            taken = self._group.next_for(self._member)
            if taken is not None:
                found.append(self._message(*taken))
        return bool(found) or self.is_closed

    def _message(self, queue: QueueKey, delivery: Delivery) -> ConsumedMessage:
        message = delivery.message
        fields = msgspec.structs.asdict(message)
        fields["topic"] = message.properties.get(RETRY_TOPIC, message.topic)
        return ConsumedMessage(**fields, queue=queue, delivery=delivery, consumer=self)

    @explained
    def acknowledge(self, message: ConsumedMessage) -> bool:
        """Count a message as consumed.

        The group's offset goes past it once all before it are acknowledged too; it is on the disk
        after five seconds, or when this consumer or the store is closed.

        Returns
        -------
        bool
            False where the message is not this consumer's any more: acknowledged or given back
            already, or handed over to others when it was closed.
        """
        # In a forked child no thread may wait for the group's lock.
        return not self.is_closed and self._group.acknowledge(message.queue, message.delivery)

    @checked
    def give_back(self, message: ConsumedMessage, delay_level: int = 0) -> bool:
        """Have a message consumed again later, and acknowledge this delivery of it.

        A copy goes to the topic ``%RETRY%<group>``, which every consumer of the group reads too;
        after as many tries as the group has, or at once with a level below 0, it goes to
        ``%DLQ%<group>`` instead, which is for people. A copy whose properties would be too long
        lacks the longest (``PROPERTIES_LEFT_OUT`` of them; ``ORIGIN_MESSAGE_ID`` names the message
        that has all). Source: CONSUMER_SEND_MSG_BACK of 4.9.

        Parameters
        ----------
        delay_level
            1 to 18 by 4.9's levels: 1 s to 2 h. 0 waits longer after each try, from 10 s on.

        Returns
        -------
        bool
            False where the message is not this consumer's any more; nothing is put then.

        Raises
        ------
        PutFailedError
            The copy was not stored; the message is still this consumer's.
        """
        group = self._group
        if self.is_closed or not group.holds(message.queue, message.delivery):
            return False
        limit = group.subscription.max_reconsume_times
        copy = given_back(message.delivery.message, group.name, delay_level, limit)
        if left_out := (copy.properties or {}).get(PROPERTIES_LEFT_OUT):
            _log.warning(
                "consume.properties_left_out", group=group.name, count=left_out,
                message_id=message.message_id, hint="ORIGIN_MESSAGE_ID names the whole message",
            )  # fmt: skip
        result = self._store.put(copy)
        if not result.is_stored:
            result.raise_for_status()
        return group.acknowledge(message.queue, message.delivery)

    def close(self) -> None:
        """Leave the group: others get the queues and what was not acknowledged; save the offsets.

        May be called twice, and by another thread: iterating ends then.
        """
        if self._finalizer.alive and not self._store.is_closed:
            self._group.leave(self._member)
            self._offsets.save()
        self._finalizer.detach()
