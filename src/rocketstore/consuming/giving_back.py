"""A message that a consumer gives back: the copy that is consumed later, or a dead letter.

Law: a copy keeps body, flag, times, host and properties of the message, except for its further
queues. It counts one more try, and names the topic and the id of the first message. Transaction
bits are not kept: the copy is a message of its own, which no transaction waits for. Where the
properties leave no space for what a copy adds, the longest ones are left out: a message that could
never be given back would stop its group (4.9 refuses the copy each time). Source:
SendMessageProcessor.asyncConsumerSendMsgBack and handleRetryAndDLQ of 4.9 (spec B4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketstore.format.properties import (
    DELAY,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    PROPERTIES_SIZE_MAX,
    REAL_QID,
    REAL_TOPIC,
    WAIT,
    encode_properties,
)
from rocketstore.message import TRANSACTION_MASK, Message
from rocketstore.rules.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from rocketstore.format.stored_message import StoredMessage

RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"

PROPERTIES_LEFT_OUT: Final = "PROPERTIES_LEFT_OUT"
"""How many properties a copy lacks; the message that ORIGIN_MESSAGE_ID names has them (ours)."""

RETRY_LIMIT: Final = 16
"""Tries after which a message is a dead letter (SubscriptionGroupConfig.retryMaxTimes)."""

FIRST_RETRY_LEVEL: Final = 3
"""Delay level of the first retry, 10 s with 4.9's levels; each later one is a level higher."""


def given_back(
    message: StoredMessage, group: str, delay_level: int = 0, limit: int = RETRY_LIMIT
) -> Message:
    """Return what to put for a message that `group` gives back.

    `delay_level` says when to try again; 0 takes a longer pause after each try. Below 0, and after
    `limit` tries, it is a dead letter.
    """
    is_dead = delay_level < 0 or message.reconsume_times >= limit
    level = 0 if is_dead else delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
    kept = message.properties
    for name in (INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET):
        kept.pop(name, None)  # the copy is for this group alone (K-L6)
    topic = (DEAD_LETTER_PREFIX if is_dead else RETRY_PREFIX) + group
    added = {
        RETRY_TOPIC: kept.get(RETRY_TOPIC, message.topic),
        ORIGIN_MESSAGE_ID: kept.get(ORIGIN_MESSAGE_ID, message.message_id),
        WAIT: "false",
        DELAY: str(level),
    }
    return Message(
        topic=topic,
        body=message.raw_body,
        properties=_within_limit(kept, added, topic),
        flag=message.flag,
        sys_flag=message.sys_flag & ~TRANSACTION_MASK,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_host,
        reconsume_times=message.reconsume_times + 1,
    )


def _within_limit(kept: dict[str, str], added: dict[str, str], topic: str) -> dict[str, str]:
    """Return both together, without the longest of `kept` where a record could not hold them all.

    A delayed put adds the topic and the queue that the copy is for.
    """
    fixed = {**added, REAL_TOPIC: topic, REAL_QID: "0"}
    by_length = sorted(kept.keys() - fixed.keys(), key=lambda name: len(name + kept[name]))
    before = kept.get(PROPERTIES_LEFT_OUT, "")
    count = int(before) if before.isdecimal() else 0
    while by_length and len(encode_properties(kept | fixed)) > PROPERTIES_SIZE_MAX:
        del kept[by_length.pop()]
        count += 1
        fixed[PROPERTIES_LEFT_OUT] = added[PROPERTIES_LEFT_OUT] = str(count)
    return kept | added
