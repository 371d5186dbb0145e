"""Which topics and queue numbers may become directory names.

Law: checked before any path is made. 4.9 checks a topic in the broker only; here the store itself
does, because a topic is the name of a directory.

How derived: TopicValidator of 4.9.8 (``[%|a-zA-Z0-9_-]+``, at most 127 characters; spec F1, B3.2).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from rocketstore.errors import InvalidNameError
from rocketstore.format.properties import INNER_MULTI_DISPATCH
from rocketstore.format.record import TOPIC_SIZE_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

QUEUE_ID_MAX: Final = 2**31 - 1
LMQ_PREFIX: Final = "%LMQ%"
"""Queues of light message queues are all queue 0 of their name (spec F8)."""

DELAY_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""The topic whose entries keep a deliver time instead of a tags code (spec F5)."""

_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def may_stand_in(
    topic: str, queue_id: int, properties: Mapping[str, str], queue: tuple[str, int]
) -> bool:
    """Return whether a record of a topic and queue id may stand in a queue.

    It may in its own, and in those that its property INNER_MULTI_DISPATCH names. The queue offset
    is not compared: queues of 4.9 can be shifted (K-C1), and a message under a wrong number is
    better than none. Source: CommitLogDispatcherBuildConsumeQueue,
    ConsumeQueue.multiDispatchLmqQueue (spec F8).
    """
    if (topic, queue_id) == queue:
        return True
    names = properties.get(INNER_MULTI_DISPATCH)
    if not names or queue[0] not in names.split(","):
        return False
    return queue[1] == queue_id or (queue[0].startswith(LMQ_PREFIX) and queue[1] == 0)


def is_topic_name(topic: str) -> bool:
    """Return whether `topic` may be a directory below ``consumequeue``.

    >>> is_topic_name("%RETRY%group_a"), is_topic_name("../etc"), is_topic_name("x" * 128)
    (True, False, False)
    """
    return len(topic) <= TOPIC_SIZE_MAX and _TOPIC.fullmatch(topic) is not None


def check_topic_characters(topic: object) -> str:
    """Return `topic` if every character may stand in a name; its length is not looked at.

    Raises `InvalidNameError` where it is no str, empty, or has a character outside
    ``%|a-zA-Z0-9_-``.
    """
    if not isinstance(topic, str):
        raise InvalidNameError(f"a topic is a str, not {type(topic).__name__}")
    if not topic:
        raise InvalidNameError("a topic may not be empty", hint="name the topic")
    if _TOPIC.fullmatch(topic) is None:
        raise InvalidNameError(
            f"topic {topic!r:.150} has characters outside %|a-zA-Z0-9_-",
            hint="use letters, digits, %, |, _ and - only",
        )
    return topic


def check_topic(topic: object) -> str:
    """Return `topic` if it may be a directory name: its characters, and at most 127 bytes."""
    name = check_topic_characters(topic)
    if len(name) > TOPIC_SIZE_MAX:
        raise InvalidNameError(
            f"topic {name!r:.40} has {len(name)} bytes, more than {TOPIC_SIZE_MAX}",
            hint="shorten the topic",
        )
    return name


def check_is_int(queue_id: object) -> int:
    """Return `queue_id` if it is an int; raises `InvalidNameError`."""
    if isinstance(queue_id, bool) or not isinstance(queue_id, int):
        raise InvalidNameError(f"a queue id is an int, not {type(queue_id).__name__}")
    return queue_id


def check_queue_id(queue_id: object) -> int:
    """Return `queue_id` if it may be a directory name; raises `InvalidNameError`."""
    queue_id = check_is_int(queue_id)
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise InvalidNameError(f"queue id {queue_id} is outside 0 to {QUEUE_ID_MAX}")
    return queue_id
