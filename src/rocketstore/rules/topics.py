"""Names of topics that a broker or the store itself puts to, and what each is for.

How derived: TopicValidator, MixAll and TransactionalMessageUtil of 4.9.8 (spec F16).
"""

from typing import Final

from rocketstore.errors import InvalidNameError
from rocketstore.format.queue_entry import DELAY_TOPIC
from rocketstore.format.record import TOPIC_SIZE_MAX
from rocketstore.format.refusals import check_topic_characters

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARDED_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Half messages, the op messages that end them, and those that were checked in vain."""

TEMPLATE_TOPIC: Final = "TBW102"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
"""A broker's own: its first says what a topic is like that a message makes."""

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
"""Prefixes of a group's name: its retry topic, and the topic of its dead letters."""

UNDELIVERABLE_TOPICS: Final = (DELAY_TOPIC, HALF_TOPIC)
"""No delayed message is delivered to these (TopicValidator), so none is put for them."""

LONGEST_GROUP: Final = 255
"""Characters of a group's name, as clients have it (Validators.CHARACTER_MAX_LENGTH)."""

NOT_SENT_TO: Final = frozenset(
    (DELAY_TOPIC, HALF_TOPIC, OP_TOPIC, DISCARDED_TOPIC, OFFSET_MOVED_TOPIC)
)
"""Topics that the broker alone puts messages to (TopicValidator.isNotAllowedSendTopic)."""

PURPOSE_OF_NAME: Final = {
    DELAY_TOPIC: "delay",
    **dict.fromkeys((HALF_TOPIC, OP_TOPIC, DISCARDED_TOPIC), "transaction"),
    **dict.fromkeys(
        (TEMPLATE_TOPIC, BENCHMARK_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC), "system"
    ),
}
PURPOSE_OF_PREFIX: Final = {
    RETRY_PREFIX: "retry",
    DEAD_LETTER_PREFIX: "dead letter",
    "RMQ_SYS_": "system",
    "rmq_sys_": "system",
}
"""Every name and beginning of a name that 4.9 and 5.x reserve; a whole name counts first."""

SYSTEM_TOPICS: Final = (*PURPOSE_OF_NAME, "RMQ_SYS_TRACE_TOPIC")


def purpose_of(topic: str) -> str:
    """Return what a topic is for, "normal" where its name is not reserved.

    >>> [purpose_of(topic) for topic in ("orders", "%DLQ%billing", "rmq_sys_wheel_timer")]
    ['normal', 'dead letter', 'system']
    """
    named = PURPOSE_OF_NAME.get(topic)
    begun = (purpose for start, purpose in PURPOSE_OF_PREFIX.items() if topic.startswith(start))
    return named or next(begun, "normal")


def is_system(topic: str) -> bool:
    """Whether no client of any broker may make such a topic (TopicValidator.isSystemTopic)."""
    return topic in SYSTEM_TOPICS or topic.startswith("rmq_sys_")


def is_reserved(topic: str) -> bool:
    """Whether programs do not make such a topic, so that it is always of the ordinary kind."""
    return "%" in topic or purpose_of(topic) != "normal"


def name_fault(name: str, what: str = "topic") -> str | None:
    """Return what 4.9 says of a name that no topic may have (TopicValidator.validateTopic)."""
    if not name.strip():
        return f"The specified {what} is blank."
    try:
        check_topic_characters(name)
    except InvalidNameError:
        return f"The specified {what} contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(name) > (TOPIC_SIZE_MAX if what == "topic" else LONGEST_GROUP):
        return f"The specified {what} is longer than {what} max length."
    return None
