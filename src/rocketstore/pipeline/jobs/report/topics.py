"""What a topic is for, by its name (spec F, system names; TopicValidator and MixAll of 4.9.8)."""

from __future__ import annotations

from typing import Final

DELAY_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"

NORMAL: Final = "normal"
DELAY: Final = "delay"
RETRY: Final = "retry"
DEAD_LETTER: Final = "dead letter"
TRANSACTION: Final = "transaction"
SYSTEM: Final = "system"

_TRANSACTION_TOPICS: Final = frozenset(
    {"RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"}
)
_SYSTEM_TOPICS: Final = frozenset({"TBW102", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"})
_SYSTEM_PREFIX: Final = "rmq_sys_"


def topic_kind(topic: str) -> str:
    """Return what a topic is for.

    Examples
    --------
    >>> [topic_kind(name) for name in ("orders", "%RETRY%billing", "SCHEDULE_TOPIC_XXXX")]
    ['normal', 'retry', 'delay']
    """
    if topic == DELAY_TOPIC:
        return DELAY
    if topic.startswith(RETRY_PREFIX):
        return RETRY
    if topic.startswith(DEAD_LETTER_PREFIX):
        return DEAD_LETTER
    if topic in _TRANSACTION_TOPICS:
        return TRANSACTION
    if topic in _SYSTEM_TOPICS or topic.lower().startswith(_SYSTEM_PREFIX):
        return SYSTEM
    return NORMAL


def group_of(topic: str) -> str:
    """Return the consumer group of a retry or dead letter topic."""
    return topic.removeprefix(RETRY_PREFIX).removeprefix(DEAD_LETTER_PREFIX)
