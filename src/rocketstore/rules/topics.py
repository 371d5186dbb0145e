"""Names of topics that a broker or the store itself puts to, and what each is for.

How derived: TopicValidator, MixAll and TransactionalMessageUtil of 4.9.8 (spec F16).
"""

from __future__ import annotations

from typing import Final

from rocketstore.format.queue_entry import DELAY_TOPIC

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARDED_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Half messages, the op messages that end them, and those that were checked in vain."""

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
"""Prefixes of a group's name: its retry topic, and the topic of its dead letters."""

UNDELIVERABLE_TOPICS: Final = (DELAY_TOPIC, HALF_TOPIC)
"""No delayed message is delivered to these (TopicValidator), so none is put for them."""

PURPOSE_OF_NAME: Final = {
    DELAY_TOPIC: "delay",
    HALF_TOPIC: "transaction",
    OP_TOPIC: "transaction",
    DISCARDED_TOPIC: "transaction",
    "TBW102": "system",
    "BenchmarkTest": "system",
    "SELF_TEST_TOPIC": "system",
    "OFFSET_MOVED_EVENT": "system",
}
PURPOSE_OF_PREFIX: Final = {
    RETRY_PREFIX: "retry",
    DEAD_LETTER_PREFIX: "dead letter",
    "RMQ_SYS_": "system",
    "rmq_sys_": "system",
}
"""Every name and beginning of a name that 4.9 and 5.x reserve; a whole name counts first."""


def purpose_of(topic: str) -> str:
    """Return what a topic is for, "normal" where its name is not reserved.

    >>> [purpose_of(topic) for topic in ("orders", "%DLQ%billing", "rmq_sys_wheel_timer")]
    ['normal', 'dead letter', 'system']
    """
    named = PURPOSE_OF_NAME.get(topic)
    begun = (purpose for start, purpose in PURPOSE_OF_PREFIX.items() if topic.startswith(start))
    return named or next(begun, "normal")


def is_reserved(topic: str) -> bool:
    """Whether programs do not make such a topic, so that it is always of the ordinary kind."""
    return "%" in topic or purpose_of(topic) != "normal"
