"""Messages in the form of records: a single one, a prepared one, a client's batch.

A `RefusedMessageError` refuses what is wrong with one and has no status in 4.9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rocketstore.errors import FormatError, RefusedMessageError
from rocketstore.format.client_batch import decode_client_batch
from rocketstore.format.properties import (
    DELAY,
    INNER_MULTI_DISPATCH,
    WAIT,
    asked,
    encode_properties,
    message_properties,
    storable_properties,
)
from rocketstore.format.refusals import (
    body_bytes,
    encoded_born_host,
    refuse_no_mapping,
    refuse_other_types,
    refuse_special,
    refuse_transaction,
)
from rocketstore.message import DEFAULT_HOST, INNER_BATCH, Message
from rocketstore.native.log_end import Record
from rocketstore.units import counted


class PreparedMessage:
    """What a put needs of a message, encoded; its body may vary from put to put.

    Made by `MessageStore.prepare`, or directly from properties that are already encoded, as they
    come over the wire.

    Parameters
    ----------
    topic
        Checked when it is put.
    body
        The body of puts that give none.
    properties
        Encoded, at most 32767 bytes.
    sys_flag
        Host bits are set by the store and may be left out; transaction bits are refused.
    born_timestamp_ms
        None takes the time of each put.
    wait_flush
        Whether a put of it waits for its flush, if the store's puts do.

    Raises
    ------
    RefusedMessageError
        It has transaction bits, its host is no address, or a number does not fit its field.
    """

    __slots__ = ("record", "topic", "wait_flush")

    record: Record
    topic: str
    wait_flush: bool

    def __new__(  # noqa: PLR0913, PYI034 - the fields of a message; some are of a class below
        cls,
        topic: str,
        body: bytes = b"",
        properties: bytes = b"",
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int | None = None,
        born_host: str = DEFAULT_HOST,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        wait_flush: bool = True,
    ) -> PreparedMessage:
        """Encode the fields that are not encoded yet; see the class."""
        refuse_transaction(sys_flag)
        block, wanted = storable_block(properties, alone=True)
        record = Record(
            body_bytes(body),
            block,
            encoded_born_host(born_host),
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp_ms=born_timestamp_ms,
            reconsume_times=reconsume_times,
            prepared_offset=prepared_transaction_offset,
        )
        return cls._made(topic, record, wanted, wait_flush=wait_flush and may_wait(wanted))

    def __repr__(self) -> str:
        return f"PreparedMessage({self.topic}, {counted(len(self.record.body), 'byte')})"

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in PreparedMessage.__slots__}
        return object.__new__, (type(self),), (None, fields)

    @classmethod
    def of(cls, message: Message) -> PreparedMessage:
        """Encode a message once."""
        refuse_other_types(message)
        record, waits = record_of(message, encoded_born_host, alone=True)
        return cls._made(message.topic, record, asked(record.properties), wait_flush=waits)

    @classmethod
    def _made(
        cls, topic: str, record: Record, wanted: Mapping[str, str], *, wait_flush: bool
    ) -> PreparedMessage:
        is_special = DELAY in wanted or INNER_MULTI_DISPATCH in wanted
        is_special |= record.sys_flag & INNER_BATCH != 0
        made = object.__new__(_SpecialMessage if is_special else cls)
        made.topic, made.record, made.wait_flush = topic, record, wait_flush
        return made


class _SpecialMessage(PreparedMessage):
    """One for later, several queues or a batch topic, which ``native.put`` does not take."""

    __slots__ = ()


def record_of(
    message: Message, encoded_host: Callable[[str], bytes], *, alone: bool = False
) -> tuple[Record, bool]:
    """Return a message as a record will hold it, and whether a put of it may wait for its flush."""
    body = body_bytes(message.body)
    given = message.properties or {}
    refuse_special(given, alone=alone)
    properties = message_properties(message)
    born_host = encoded_host(message.born_host)
    refuse_transaction(message.sys_flag)
    record = Record(
        body,
        properties,
        born_host,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        reconsume_times=message.reconsume_times,
        prepared_offset=message.prepared_transaction_offset,
    )
    return record, bool(message.wait_flush) and may_wait(given)


def batch_messages(messages: object) -> Sequence[Message]:
    """Return the messages of a batch, all of one topic; raise where it is not one."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise RefusedMessageError(
            f"a batch is a sequence of messages, or bytes, not {type(messages).__name__}"
        )
    kept = tuple(message for message in messages)  # without relying on the count that it states
    for message in kept:
        refuse_other_types(message)
    _refuse_empty(kept)
    topic = kept[0].topic
    if any(message.topic != topic for message in kept):
        raise RefusedMessageError(f"a batch must have one topic; this has others besides {topic}")
    return kept


def client_messages(batch: bytes, more: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return flag, body and properties of the messages of a client's batch.

    `more` stands after the properties of each, with one separator between (4.9.3's rule).
    """
    messages = []
    try:
        for flag, body, own in decode_client_batch(batch):
            block, _ = storable_block(own)
            if more and block and not block.endswith(b"\x02"):
                block += b"\x02"
            messages.append((flag, body, block + more))
    except FormatError as error:
        raise RefusedMessageError(f"batch of {len(batch)} bytes: {error}") from error
    _refuse_empty(messages)
    return messages


def _refuse_empty(messages: Sequence[object]) -> None:
    if not messages:
        raise RefusedMessageError("a batch has at least one message")


def storable_block(properties: Any, *, alone: bool = False) -> tuple[bytes, dict[str, str]]:
    """Return properties encoded as they may be stored, and those that may ask for something."""
    if not isinstance(properties, (bytes, bytearray, memoryview)):
        refuse_no_mapping(properties)
        properties = encode_properties(properties)
    block = storable_properties(bytes(properties))
    wanted = asked(block)
    if wanted:
        refuse_special(wanted, alone=alone)
    return block, wanted


def may_wait(properties: Mapping[str, str]) -> bool:
    """Whether a put waits for its flush: ``WAIT`` is "true" or absent (isWaitStoreMsgOK)."""
    return not properties or properties.get(WAIT, "true").lower() == "true"
