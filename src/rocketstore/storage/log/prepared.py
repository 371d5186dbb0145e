"""A message whose topic and properties are encoded once, to be put many times or by a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocketstore.errors import RefusedMessageError
from rocketstore.format.properties import (
    DELAY,
    INNER_MULTI_DISPATCH,
    WAIT,
    decode_properties,
    message_properties,
)
from rocketstore.format.record_text import storable_properties
from rocketstore.format.refusals import encoded_born_host, refuse_special, refuse_transaction
from rocketstore.message import DEFAULT_HOST, Message
from rocketstore.native.log_end import Record

if TYPE_CHECKING:
    from collections.abc import Callable

_MARKED_DELAY: Final = f"{DELAY}\x01".encode()
_MARKED_DISPATCH: Final = f"{INNER_MULTI_DISPATCH}\x01".encode()
_MARKED_WAIT: Final = f"{WAIT}\x01".encode()


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

    Attributes
    ----------
    record
        All but the topic, as a record will hold it.
    wait_flush
        Whether a put of it waits for its flush, if the store's puts do.

    Raises
    ------
    RefusedMessageError
        It asks for something that this store does not do yet: a delay, a transaction, several
        queues; or its host is no address, or a number does not fit its field.
    """

    __slots__ = ("record", "topic", "wait_flush")

    def __init__(  # noqa: PLR0913 - the fields of a message; all but one have defaults
        self,
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
    ) -> None:
        refuse_transaction(sys_flag)
        properties = storable_properties(properties)
        refuse_special_block(properties)
        self.topic = topic
        self.record = Record(
            body_bytes(body),
            properties,
            encoded_born_host(born_host),
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp_ms=born_timestamp_ms,
            reconsume_times=reconsume_times,
            prepared_offset=prepared_transaction_offset,
        )
        self.wait_flush = wait_flush and waits_for_flush(properties)

    @classmethod
    def of(cls, message: Message) -> PreparedMessage:
        """Encode a message once."""
        refuse_other_types(message)
        prepared = cls.__new__(cls)
        prepared.record = record_of(message, encoded_born_host)
        prepared.topic = message.topic
        prepared.wait_flush = may_wait(message)
        return prepared


def refuse_other_types(message: object) -> None:
    """Raise where something that is no message is to be put."""
    if not isinstance(message, Message):
        raise RefusedMessageError(
            f"a message is a rocketstore.Message, not {type(message).__name__}",
            hint="make one: Message(topic=…, body=…)",
        )


def record_of(message: Message, encoded_host: Callable[[str], bytes]) -> Record:
    """Return a message as a record will hold it; raises `RefusedMessageError`."""
    body = body_bytes(message.body)
    if message.properties:
        refuse_special(message.properties)
    properties = message_properties(message)
    born_host = encoded_host(message.born_host)
    refuse_transaction(message.sys_flag)
    return Record(
        body,
        properties,
        born_host,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        reconsume_times=message.reconsume_times,
        prepared_offset=message.prepared_transaction_offset,
    )


def may_wait(message: Message) -> bool:
    """Return whether a put of a message waits for its flush."""
    wait = message.properties.get(WAIT) if message.properties else None
    return bool(message.wait_flush) and is_true(wait)


def body_bytes(body: Any) -> bytes:
    """Return a body as bytes, if it is some kind of bytes."""
    if type(body) is bytes:
        return body
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise RefusedMessageError(
        f"a body is bytes, not {type(body).__name__}", hint="encode text, for example as UTF-8"
    )


def refuse_special_block(block: bytes) -> None:
    """Do as `refuse_special` for encoded properties; costs a search when there is nothing."""
    if _MARKED_DELAY in block or _MARKED_DISPATCH in block:
        refuse_special(decode_properties(block))


def waits_for_flush(block: bytes) -> bool:
    """Return whether the property ``WAIT`` lets a put wait for its flush.

    Notes
    -----
    Source: Message.isWaitStoreMsgOK: absent is true, anything but "true" is false.
    """
    if _MARKED_WAIT not in block:
        return True
    return is_true(decode_properties(block).get(WAIT))


def is_true(wait: str | None) -> bool:
    """Return ``Boolean.parseBoolean`` of a value of ``WAIT``, None being true."""
    return wait is None or wait.lower() == "true"
