"""Extra queues: those that a message names besides its own in INNER_MULTI_DISPATCH (spec F8).

Each of them gives the message its next number when it is put; the numbers stand in
INNER_MULTI_QUEUE_OFFSET, in the order of the names. A light queue (``%LMQ%…``) is queue 0 of its
name; any other has the queue id of the message.

Law: the number that a record states was given, so its entry is written, whatever the settings are:
these say only what a put may ask for. Without the entry the number would be given again (K-L11).

Law: a waiting message (for its time, for the end of its transaction), or one that a single group
gets again, names its extra queues and has no number in them: it goes there when it is put where it
belongs. 4.9 enters it at once, and again then (K-L6).

How derived: MultiDispatch and ConsumeQueue.multiDispatchLmqQueue of 4.9.8,
MultiDispatchUtils.isNeedHandleMultiDispatch of 5.x.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from rocketstore.errors import InvalidNameError, RefusedMessageError
from rocketstore.format.properties import (
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    WAIT,
    decode_properties,
    in_hash_map_order,
    joined_properties,
    storable_properties,
)
from rocketstore.format.queue_entry import LMQ_PREFIX, MAX_QUEUE_OFFSET
from rocketstore.format.refusals import check_topic
from rocketstore.rules.topics import purpose_of
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.native.log_end import QueueCounter, Record

EXTRA: Final = INNER_MULTI_DISPATCH.encode() + b"\x01"
"""How the property of further queues begins in a record."""

_NUMBER_BYTES: Final = 20
"""Most bytes that a number takes, with its comma."""


class Settings(Protocol):
    """What a store's settings say about extra queues."""

    @property
    def enable_multi_dispatch(self) -> bool:
        """Whether there are any."""

    @property
    def enable_lmq(self) -> bool:
        """Whether there are light ones."""


def has_light_queues(settings: Settings) -> bool:
    """Whether further queues named ``%LMQ%…`` are light ones: also without any of the settings."""
    return settings.enable_lmq or not settings.enable_multi_dispatch


def goes_on(topic: str) -> bool:
    """Whether messages of a topic go to the extra queues that they name."""
    return purpose_of(topic) in ("normal", "system")


def named(properties: Mapping[str, str]) -> list[str]:
    """Return the names in properties, split as Java's ``String.split`` does.

    >>> named({"INNER_MULTI_DISPATCH": "%LMQ%a,copies,"}), named({})
    (['%LMQ%a', 'copies'], [])
    """
    return _parts(properties.get(INNER_MULTI_DISPATCH, ""))


def _parts(text: str) -> list[str]:
    text = text.rstrip(",")
    return text.split(",") if text.strip() else []


def extra_offsets(properties: bytes) -> list[tuple[str, int]] | None:
    """Return names and queue offsets of a record's extra queues, None where they do not match.

    An impossible offset is -1. A record without offsets has no place in any of them.
    """
    values = decode_properties(properties)
    names, texts = named(values), _parts(values.get(INNER_MULTI_QUEUE_OFFSET, ""))
    if not names or not texts:
        return []
    if len(names) != len(texts):
        return None
    offsets = (int(text) if text.isascii() and text.isdigit() else -1 for text in texts)
    limited = (offset if offset <= MAX_QUEUE_OFFSET else -1 for offset in offsets)
    return list(zip(names, limited, strict=True))


def extra_queue(name: str, queue_id: int, *, lmq: bool) -> QueueKey:
    """Return an extra queue of a message of queue `queue_id`; `lmq`: there are light ones."""
    return QueueKey(name, 0 if lmq and name.startswith(LMQ_PREFIX) else queue_id)


def extra_queue_offsets(
    properties: bytes, queue_id: int, *, lmq: bool
) -> list[tuple[QueueKey, int]] | None:
    """Return the queues where `extra_offsets` has names; `lmq`: there are light ones."""
    stated = extra_offsets(properties)
    if stated is None:
        return None
    return [(extra_queue(name, queue_id, lmq=lmq), offset) for name, offset in stated]


def extra_queue_ids(name: str, queue_id: int) -> set[int]:
    """Return the queues in which an extra entry of a record of queue `queue_id` may stand.

    Nothing in the store says whether the broker had ``enableLmq``.
    """
    return {extra_queue(name, queue_id, lmq=lmq).queue_id for lmq in (True, False)}


def may_stand_in(
    topic: str, queue_id: int, properties: Mapping[str, str], queue: tuple[str, int]
) -> bool:
    """Return whether a record of a topic and queue id may stand in a queue.

    It may stand in its own queue, and in those that it names. The queue offset is not compared:
    queues of 4.9 can be shifted (K-C1), and a message under a wrong number is better than none.
    Source: CommitLogDispatcherBuildConsumeQueue, ConsumeQueue.multiDispatchLmqQueue (spec F8).
    """
    if (topic, queue_id) == queue:
        return True
    return queue[0] in named(properties) and queue[1] in extra_queue_ids(queue[0], queue_id)


def offset_in(message: StoredMessage, queue: QueueKey) -> int | None:
    """Return the queue offset that a message states in a queue, None where it states none."""
    if (message.topic, message.queue_id) == queue:
        return message.queue_offset
    for name, offset in extra_offsets(message.raw_properties) or ():
        if name == queue.topic and queue.queue_id in extra_queue_ids(name, message.queue_id):
            return offset if offset >= 0 else None
    return None


def _fault(
    queue: QueueKey, own: QueueKey, others: Container[QueueKey], *, is_special: bool
) -> str | None:
    try:
        check_topic(queue.topic)
    except InvalidNameError as error:
        return error.message
    if not goes_on(queue.topic):
        return "the store keeps messages there until they are put elsewhere"
    if is_special:
        return "a memory topic or batch topic takes no message of another topic"
    if queue == own:
        return "it is the message's own queue"
    return "it is named twice" if queue in others else None


def with_properties(record: Record, properties: bytes) -> Record:
    """Return a copy of a record with these properties, born when it is put if that one is."""
    copy = record.with_body(record.body)
    copy.describe(properties, None if record.is_born_now else record.born)
    return copy


def with_numbers(properties: bytes, queues: Sequence[QueueKey], numbers: Iterable[int]) -> bytes:
    """Return the properties of a record that goes to these queues, with its numbers there.

    Encoded again as 4.9 does, in the order of a Java map and without WAIT. Source:
    MultiDispatch.wrapMultiDispatch.
    """
    values = decode_properties(properties)
    values.pop(INNER_MULTI_QUEUE_OFFSET, None)
    names = [queue.topic for queue in queues]
    if names != named(values):
        values[INNER_MULTI_DISPATCH] = ",".join(names)
    if queues:
        values[INNER_MULTI_QUEUE_OFFSET] = ",".join(map(str, numbers))
    # WAIT counts for the size of the map.
    ordered = in_hash_map_order(values)
    ordered.pop(WAIT, None)
    return storable_properties(joined_properties(ordered.items()).encode("utf-8"))


def room_for(names: Collection[object]) -> int:
    """Return the most bytes that the numbers in so many extra queues add to properties."""
    return len(INNER_MULTI_QUEUE_OFFSET) + 2 + _NUMBER_BYTES * len(names) if names else 0


def without_numbers(properties: bytes) -> bytes:
    """Return properties without the numbers of an earlier put."""
    parts = properties.split(b"\x02")
    start = INNER_MULTI_QUEUE_OFFSET.encode() + b"\x01"
    return storable_properties(b"\x02".join(one for one in parts if not one.startswith(start)))


class ExtraQueues:
    """Gives records their numbers in extra queues, under the append lock of their log.

    Law: numbers have no gap and are given once, while others put into the same queue too, by its
    name or as an extra one (K-L4): there is one counter for each queue, which recovery sets to the
    queue's end (K-L2), and an append advances it only when its record is in the log.

    `known` are the queues there are, `counter` returns the counter of one; `light` are the light
    ones; topics in `special` have queues of another kind, or none. Source:
    MultiDispatch.wrapMultiDispatch and updateMultiQueueOffset of 4.9.8.
    """

    def __init__(
        self,
        known: Iterable[tuple[str, int]],
        counter: Callable[[QueueKey], QueueCounter],
        settings: Settings,
        special: Container[str] = (),
    ) -> None:
        self._counter, self._settings, self._special = counter, settings, special
        self.light = self._light_of(known)

    def _light_of(self, keys: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
        return {key for key in keys if self._settings.enable_lmq and key[0].startswith(LMQ_PREFIX)}

    def asked(
        self, properties: Mapping[str, str], own: QueueKey, *, refuses: bool = True
    ) -> list[QueueKey]:
        """Return the queues that a message asks for besides its `own`, each once.

        Raises `RefusedMessageError`, if it `refuses`, for a queue that cannot be used; otherwise
        leaves that queue out. A message that is acknowledged and never arrives where it asks would
        be lost.
        """
        names, settings = named(properties), self._settings
        if names and refuses and not settings.enable_multi_dispatch:
            raise RefusedMessageError(
                f"property {INNER_MULTI_DISPATCH} asks for delivery to several queues",
                hint="open the store with enableMultiDispatch, which is off",
            )
        queues: dict[QueueKey, None] = {}
        for name in names:
            queue = extra_queue(name, own.queue_id, lmq=has_light_queues(settings))
            fault = _fault(queue, own, queues, is_special=name in self._special)
            if fault is None:
                queues[queue] = None
            elif refuses:
                raise RefusedMessageError(
                    f"{INNER_MULTI_DISPATCH} names {name!r:.150}: {fault}",
                    hint="name each further queue once, by its topic, with commas between",
                )
        return list(queues)

    def of(self, record: Record, own: QueueKey, *, refuses: bool) -> tuple[Record, list[QueueKey]]:
        """Return a record without numbers, and the extra queues that it goes to with `own`."""
        queues = self.asked(decode_properties(record.properties), own, refuses=refuses)
        is_on_its_way = goes_on(own.topic) and record.offset_count > 0
        return with_properties(record, without_numbers(record.properties)), queues * is_on_its_way

    def apart(
        self, record: Record, own: QueueKey, *, is_own_in_memory: bool = False
    ) -> list[tuple[QueueKey, Record]]:
        """Return the queues in which a record cannot get a number, each with a copy to put there.

        A message that waited may name a topic whose kind changed meanwhile, or belong to one in
        memory: it reaches each queue all the same, as a message by itself.
        """
        if EXTRA not in record.properties or not goes_on(own.topic):
            return []
        values = decode_properties(record.properties)
        lmq = has_light_queues(self._settings)
        queues = {extra_queue(name, own.queue_id, lmq=lmq) for name in named(values)}
        if not is_own_in_memory:
            queues.difference_update(self.asked(values, own, refuses=False))
        kept = [pair for pair in values.items() if not pair[0].startswith("INNER_MULTI_")]
        copy = with_properties(record, storable_properties(joined_properties(kept).encode()))
        may_have = (one for one in sorted(queues) if _fault(one, own, (), is_special=False) is None)
        return [(queue, copy) for queue in may_have]

    def numbered(
        self, record: Record, queues: list[QueueKey], limit: int | None
    ) -> tuple[Record, list[QueueCounter]] | None:
        """Return a record with its next number in each queue, and their counters.

        None where that makes more light queues than the limit (K-L1).
        """
        fresh = self._light_of(queues) - self.light
        if fresh and limit is not None and len(self.light) + len(fresh) > limit:
            return None
        self.light |= fresh
        counters = [self._counter(key) for key in queues]
        numbers = [counter.next_offset for counter in counters]
        return with_properties(record, with_numbers(record.properties, queues, numbers)), counters
