"""The records of a transaction, made of each other: half, final, op, checked again, discarded.

Law: values in, values out; nothing here knows a store, a clock or a thread. What is made equals
what a broker of 4.9 puts, byte for byte, but for two fields that it forgets: flag and reconsume
times of a half message that is checked.

How derived: TransactionalMessageBridge, EndTransactionProcessor.endMessageTransaction and
DefaultTransactionalMessageCheckListener of 4.9 (spec B19.1, B19.2, B19.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from operator import index
from typing import TYPE_CHECKING, Final

from rocketstore.arguments import is_whole
from rocketstore.errors import InvalidNameError
from rocketstore.format.host import encode_host
from rocketstore.format.properties import (
    PROPERTIES_SIZE_MAX,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    UNIQ_KEY,
    WAIT,
    decode_properties,
    encode_properties,
    in_hash_map_order,
    message_properties,
)
from rocketstore.format.record import END_FILE_MIN_BLANK_SIZE, TOPIC_SIZE_MAX, record_size
from rocketstore.format.refusals import (
    body_bytes,
    check_queue_id,
    check_topic,
    delay_level,
    encoded_born_host,
    refuse_special,
)
from rocketstore.message import STORE_HOST_V6_FLAG, TRANSACTION_COMMIT, TRANSACTION_MASK, Message
from rocketstore.native.log_end import Record
from rocketstore.rules.extra_queues import named, room_for
from rocketstore.rules.half_messages import (
    CHECK_TIMES,
    ENDED_TAG,
    FIRST_HALF_OFFSET,
    PRODUCER_GROUP,
    Half,
    decimal_number,
    half_of,
)
from rocketstore.rules.topics import DISCARDED_TOPIC, HALF_TOPIC, OP_TOPIC, UNDELIVERABLE_TOPICS
from rocketstore.rules.waiting import copy_of, real_queue
from rocketstore.units import HOUR_MS, QueueKey

if TYPE_CHECKING:
    from rocketstore.config import StoreConfig
    from rocketstore.format.stored_message import StoredMessage

HALF: Final = QueueKey(HALF_TOPIC, 0)
OP: Final = QueueKey(OP_TOPIC, 0)
DISCARDED: Final = QueueKey(DISCARDED_TOPIC, 0)
"""The queues of half messages, of op messages, and of half messages that were checked in vain."""

DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"
"""Of a message that names none (MixAll.DEFAULT_PRODUCER_GROUP)."""

TRAN_MSG: Final = "TRAN_MSG"
IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
"""Properties of half messages (MessageConst), as those of `rules.half_messages` are."""

ROOM_BYTES: Final = len(f"{CHECK_TIMES}\x01{2**31}\x02{FIRST_HALF_OFFSET}\x01{2**63}\x02")
"""Bytes of properties that checks add; a half message leaves them free, or it could not be checked
(K-P6)."""

assert len(HALF.topic) + ROOM_BYTES <= PROPERTIES_SIZE_MAX


def known(half: StoredMessage) -> Half:
    """Return what tells a half message from others."""
    place = half.queue_offset, half.physical_offset
    return half_of(place, half.born_timestamp_ms, half.body_crc, half.properties)


# --- made ---------------------------------------------------------------------------------------


def half_record(
    message: Message, queue_id: int, producer_group: str, transaction_id: str
) -> Record:
    """Return the half record of a message.

    `transaction_id` becomes the unique key of a message without one. Raises `InvalidNameError` or
    `RefusedMessageError` for what could never be committed.

    Source: TransactionalMessageBridge.parseHalfMessageInner. Compatible: WAIT stays in the text.
    """
    topic, queue_id = check_topic(message.topic), check_queue_id(queue_id)
    if topic in (*UNDELIVERABLE_TOPICS, OP.topic, DISCARDED.topic):
        raise InvalidNameError(
            f"topic {topic} holds waiting messages of the store, and takes no message itself",
            hint="name the topic in which consumers are to find it",
        )
    asked = message.properties or {}
    refuse_special(asked, alone=True)
    delay_level(asked)  # refuses what is no level
    properties = decode_properties(message_properties(message))
    properties = {UNIQ_KEY: transaction_id, **properties}
    properties |= {TRAN_MSG: "true", PRODUCER_GROUP: producer_group}
    properties |= {REAL_TOPIC: topic, REAL_QID: str(queue_id)}
    for name in (CHECK_TIMES, FIRST_HALF_OFFSET):  # of a message that was a half message before
        properties.pop(name, None)
    flag = message.sys_flag
    return Record(
        body_bytes(message.body),
        _encoded(properties),
        encoded_born_host(message.born_host),
        flag=message.flag,
        sys_flag=index(flag) & ~TRANSACTION_MASK if is_whole(flag) else flag,
        born_timestamp_ms=message.born_timestamp_ms,
        reconsume_times=message.reconsume_times,
    )


def missing_room(record: Record, file_size: int) -> str | None:
    """Return what a half record leaves too little space for, None where it leaves enough.

    Checks add properties, and the final record may have a longer topic: without that space, neither
    could ever be put (K-P6).
    """
    numbers = room_for(named(decode_properties(record.properties)))
    properties_size = len(record.properties) + ROOM_BYTES + numbers
    if properties_size > PROPERTIES_SIZE_MAX:
        return (
            f"properties of {len(record.properties)} bytes leave less than the {ROOM_BYTES} "
            f"that checks add, of {PROPERTIES_SIZE_MAX}"
        )
    size = END_FILE_MIN_BLANK_SIZE + record_size(
        body_size=len(record.body),
        topic_size=TOPIC_SIZE_MAX,
        properties_size=properties_size,
        sys_flag=record.sys_flag | STORE_HOST_V6_FLAG,
    )
    if size <= file_size:
        return None
    return f"{size} bytes, for a copy at its longest, exceed a CommitLog file of {file_size}"


def final_record(half: StoredMessage) -> Record:
    """Return the record that a commit puts into the real queue, with the half message's text.

    Source: EndTransactionProcessor.endMessageTransaction.
    """
    return copy_of(
        half,
        sys_flag=half.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT,
        prepared_offset=half.physical_offset,
    )


def op_record(half_queue_offset: int, store_host: str) -> Record:
    """Return the record that says that a half message has ended.

    Source: TransactionalMessageBridge.makeOpMessageInner. The text is made there before WAIT
    becomes false and a UNIQ_KEY is added, so neither is stored.
    """
    text = encode_properties({WAIT: "true", TAGS: ENDED_TAG})
    return Record(str(half_queue_offset).encode(), text, encode_host(store_host))


def checked_record(half: StoredMessage, times: int) -> Record:
    """Return the copy of a half message whose producer is asked the `times`-th time.

    Source: TransactionalMessageBridge.renewHalfMessageInner, which forgets two of its fields.
    """
    return copy_of(half, _encoded({**half.properties, CHECK_TIMES: str(times)}))


def immune_record(half: StoredMessage) -> Record:
    """Return the copy of a half message that is not to be checked yet, to let others pass.

    Source: TransactionalMessageBridge.renewImmunityHalfMessageInner; the checks it did not have
    are not counted.
    """
    properties = half.properties
    properties.setdefault(FIRST_HALF_OFFSET, str(half.queue_offset))
    return copy_of(half, _encoded(properties))


def times_checked(half: StoredMessage) -> int:
    """Return how often a half message's producer was asked."""
    return decimal_number(half.properties.get(CHECK_TIMES), 9) or 0


def _encoded(properties: Mapping[str, str]) -> bytes:
    return encode_properties(in_hash_map_order(properties))


# --- judged -------------------------------------------------------------------------------------


class EndStatus(Enum):
    """What became of a commit or a rollback."""

    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"
    NOT_FOUND = "NOT_FOUND"
    NOT_A_HALF_MESSAGE = "NOT_A_HALF_MESSAGE"
    WRONG_GROUP = "WRONG_GROUP"
    WRONG_QUEUE_OFFSET = "WRONG_QUEUE_OFFSET"
    WRONG_PHYSICAL_OFFSET = "WRONG_PHYSICAL_OFFSET"
    ENDED_ALREADY = "ENDED_ALREADY"
    NOT_STORED = "NOT_STORED"
    BUSY = "BUSY"


def refusal(half: StoredMessage, producer_group: str, queue_offset: int) -> EndStatus | None:
    """Return why a producer may not end this message, None where it may.

    Source: EndTransactionProcessor.checkPrepareMessage.
    """
    is_half = half.topic == HALF.topic and half.queue_id == HALF.queue_id
    group = half.properties.get(PRODUCER_GROUP)
    if not is_half or group is None or real_queue(half) is None:
        return EndStatus.NOT_A_HALF_MESSAGE
    if group != producer_group:
        return EndStatus.WRONG_GROUP
    return None if half.queue_offset == queue_offset else EndStatus.WRONG_QUEUE_OFFSET


class CheckStep(Enum):
    """What a check does with an open half message."""

    DISCARD = "DISCARD"
    WAIT = "WAIT"
    MOVE = "MOVE"
    ASK = "ASK"


def check_step(half: StoredMessage, now_ms: int, config: StoreConfig) -> CheckStep:
    """Return what is to be done with an open half message.

    Source: TransactionalMessageServiceImpl.check, needDiscard, needSkip, getImmunityTime.
    """
    age_ms = now_ms - half.born_timestamp_ms
    reserved_ms = config.file_reserved_time * HOUR_MS
    if times_checked(half) >= config.transaction_check_max or age_ms > reserved_ms:
        return CheckStep.DISCARD
    if (asked := half.properties.get(IMMUNITY)) is None:
        return CheckStep.WAIT if 0 <= age_ms < config.transaction_time_out else CheckStep.ASK
    try:
        seconds = int(asked)
    except ValueError:
        seconds = -1
    immunity_ms = config.transaction_time_out if seconds == -1 else seconds * 1000
    return CheckStep.MOVE if age_ms < immunity_ms else CheckStep.ASK
