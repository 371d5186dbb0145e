"""What a put refuses in a message, the same in the store and in a task of Spark.

Law: names are checked before any path is made. 4.9 checks a topic in the broker only; here the
store itself does, because a topic is the name of a directory. Source: TopicValidator of 4.9.8
(``[%|a-zA-Z0-9_-]+``, at most 127 characters; spec F1, B3.2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import index
from typing import Any, Final

from rocketstore.arguments import is_whole
from rocketstore.errors import FormatError, InvalidNameError, RefusedMessageError
from rocketstore.format.file_name import QUEUE_ID_MAX
from rocketstore.format.host import encode_host
from rocketstore.format.properties import DELAY, INNER_MULTI_DISPATCH
from rocketstore.format.record import TOPIC_SIZE_MAX
from rocketstore.message import TRANSACTION_MASK, Message

_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_LEVEL: Final = re.compile(r"[+-]?[0-9]{1,10}")


def may_be_topic(name: str) -> bool:
    """Whether a put may have such a topic, or queue: not where the system made the directory.

    >>> may_be_topic("%RETRY%group"), may_be_topic("lost+found"), may_be_topic(".nfs0001")
    (True, False, False)
    """
    return bool(_TOPIC.fullmatch(name))


def check_topic_characters(topic: object) -> str:
    """Return `topic` if every character is allowed in a name; its length is not checked.

    Raises `InvalidNameError` where it is no str, empty, or has a character outside
    ``%|a-zA-Z0-9_-``.
    """
    if not isinstance(topic, str):
        raise InvalidNameError(f"a topic is a str, not {type(topic).__name__}")
    if not topic:
        raise InvalidNameError("a topic may not be empty", hint="name the topic")
    if not _TOPIC.fullmatch(topic):
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
    """Return `queue_id` as an int if it is a whole number; raises `InvalidNameError`."""
    if not is_whole(queue_id):
        raise InvalidNameError(f"a queue id is an int, not {type(queue_id).__name__}")
    return int(index(queue_id))  # type: ignore[arg-type] # that is what it is asked for


def check_queue_id(queue_id: object) -> int:
    """Return `queue_id` if it may be a directory name; raises `InvalidNameError`."""
    queue_id = check_is_int(queue_id)
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise InvalidNameError(f"queue id {queue_id} is outside 0 to {QUEUE_ID_MAX}")
    return queue_id


def encoded_born_host(host: str) -> bytes:
    """Return a born host as a record holds it; raises `RefusedMessageError` if it is not one."""
    try:
        return encode_host(host)
    except (FormatError, AttributeError, TypeError) as error:
        raise RefusedMessageError(
            f"born host {host!r:.60} is not ip:port or [v6]:port",
            hint="give the numeric address of the producer",
        ) from error


def refuse_transaction(sys_flag: int) -> None:
    """Raise where a message has transaction bits: stored that way, it would never be ended."""
    if not is_whole(sys_flag):
        raise RefusedMessageError(f"sysFlag is a number, not {sys_flag!r:.40}")
    if index(sys_flag) & TRANSACTION_MASK:
        raise RefusedMessageError(
            f"sysFlag {sys_flag:#x} has transaction bits (mask 0xC)",
            hint="begin a transaction with MessageStore.begin, and end it with commit or rollback",
        )


def refuse_no_mapping(properties: object) -> None:
    """Raise where properties are no mapping."""
    if type(properties) is not dict and not isinstance(properties, Mapping):
        raise RefusedMessageError(
            f"properties are a mapping of names to texts, not {type(properties).__name__}"
        )


def refuse_special(properties: Mapping[str, str], *, alone: bool = False) -> None:
    """Raise where properties ask for several queues or a delay, unless one is put `alone`.

    Stored as they are, such messages would be delivered at once, or not where they should be.
    """
    refuse_no_mapping(properties)
    delays = delay_level(properties) > 0
    if not alone and (delays or INNER_MULTI_DISPATCH in properties):
        name, what = INNER_MULTI_DISPATCH, "delivery to several queues"
        if delays:
            name, what = f"{DELAY}={properties[DELAY]!r:.20}", "a delayed delivery"
        raise RefusedMessageError(
            f"property {name} asks for {what}",
            hint="put such a message by itself, with MessageStore.put: a batch cannot hold it",
        )


def delay_level(properties: Mapping[str, str]) -> int:
    """Return the delay level that properties ask for (getDelayTimeLevel), 0 or less for none.

    Text that Java's ``parseInt`` refuses is an error: a 4.9 broker could never commit such a half
    message.
    """
    text = properties.get(DELAY, "0")
    if isinstance(text, str) and _LEVEL.fullmatch(text):
        level = int(text)
        if -(2**31) <= level < 2**31:
            return level
    raise RefusedMessageError(
        f"property {DELAY}={text!r:.20} is not a delay level",
        hint="give a number: 1 is the first level of messageDelayLevel, 0 no delay",
    )


def refuse_other_types(message: object) -> None:
    """Raise where the object to put is not a message."""
    if not isinstance(message, Message):
        raise RefusedMessageError(
            f"a message is a rocketstore.Message, not {type(message).__name__}",
            hint="make one: Message(topic=…, body=…)",
        )


def body_bytes(body: Any) -> bytes:
    """Return a body as bytes, if it is some kind of bytes."""
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise RefusedMessageError(
        f"a body is bytes, not {type(body).__name__}", hint="encode text, for example as UTF-8"
    )
