"""Messages that wait in a topic of the store: how far they are, and for which queue.

Law: delayed messages and half messages name that queue in the same properties, and tables, lists
and services that look at the same store say the same of it.

How derived: ScheduleMessageService.load and messageTimeup, TransactionalMessageBridge of 4.9 (spec
B18, B19).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.errors import InvalidNameError, RefusedMessageError
from rocketstore.format.host import encode_host
from rocketstore.format.properties import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    asked,
    encode_properties,
    in_hash_map_order,
)
from rocketstore.format.refusals import check_queue_id, check_topic, delay_level
from rocketstore.native.log_end import Record
from rocketstore.rules.extra_queues import with_properties
from rocketstore.rules.topics import UNDELIVERABLE_TOPICS
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from rocketstore.format.stored_message import StoredMessage


def waiting_offsets(stored: int | None, first: int, stop: int) -> range:
    """Return the queue offsets that wait in a queue of [first, stop); `stored` is the next one.

    >>> waiting_offsets(5, 0, 12), waiting_offsets(None, 3, 12), waiting_offsets(99, 3, 12)
    (range(5, 12), range(3, 12), range(12, 12))
    """
    return range(min(max(stored or 0, first), stop), stop)


def real_queue(message: StoredMessage) -> QueueKey | None:
    """Return the queue that a waiting message is meant for; None if it names no possible queue."""
    properties = message.properties
    try:
        topic, queue_id = check_topic(properties.get(REAL_TOPIC)), int(properties.get(REAL_QID, ""))
        return None if topic in UNDELIVERABLE_TOPICS else QueueKey(topic, check_queue_id(queue_id))
    except (InvalidNameError, ValueError):
        return None


def copy_of(
    message: StoredMessage,
    properties: bytes | None = None,
    *,
    sys_flag: int | None = None,
    prepared_offset: int = 0,
) -> Record:
    """Return what is put for a stored message: with its own properties and flag, or others."""
    return Record(
        message.raw_body,
        message.raw_properties if properties is None else properties,
        encode_host(message.born_host),
        flag=message.flag,
        sys_flag=message.sys_flag if sys_flag is None else sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        reconsume_times=message.reconsume_times,
        prepared_offset=prepared_offset,
    )


def delayed(record: Record, topic: str, queue_id: int, last: int) -> tuple[int, Record]:
    """Return level, 0 for none, and record of a message as the delay topic holds it.

    Levels beyond the `last` are that one. Source: CommitLog.asyncPutMessage (spec B3.4).
    """
    properties = asked(record.properties) if record.offset_count else {}
    wanted = delay_level(properties)
    if (level := min(wanted, last)) <= 0:
        return 0, record
    if topic in UNDELIVERABLE_TOPICS:
        raise RefusedMessageError(
            f"a message put to {topic} itself cannot ask for a delay: nothing is delivered there",
            hint="put it without DELAY, or to the topic that it is meant for",
        )
    properties |= {REAL_TOPIC: topic, REAL_QID: str(queue_id)}
    if wanted > last:
        properties[DELAY] = str(level)
    return level, with_properties(record, encode_properties(in_hash_map_order(properties)))
