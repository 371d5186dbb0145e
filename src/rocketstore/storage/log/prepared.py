"""A message whose topic and properties are encoded once, to be put many times or by a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketstore.errors import RefusedMessageError
from rocketstore.format.properties import (
    DELAY,
    INNER_MULTI_DISPATCH,
    WAIT,
    decode_properties,
    message_properties,
)
from rocketstore.format.record import host_flags
from rocketstore.format.record_text import storable_properties
from rocketstore.format.refusals import encoded_born_host, refuse_special, refuse_transaction
from rocketstore.message import (
    BORN_HOST_V6_FLAG,
    DEFAULT_HOST,
    STORE_HOST_V6_FLAG,
    Message,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

HOST_BITS: Final = BORN_HOST_V6_FLAG | STORE_HOST_V6_FLAG
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

    Raises
    ------
    RefusedMessageError
        It asks for something that this store does not do yet: a delay, a transaction, several
        queues; or its host is no address.
    """

    __slots__ = (
        "body",
        "born_host",
        "born_timestamp_ms",
        "flag",
        "prepared_transaction_offset",
        "properties",
        "reconsume_times",
        "sys_flag",
        "topic",
        "wait_flush",
    )

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
        self.body = body
        self.properties = properties
        self.flag = flag
        self.born_host = encoded_born_host(born_host)
        self.sys_flag = sys_flag & ~HOST_BITS | host_flags(self.born_host, b"")
        self.born_timestamp_ms = born_timestamp_ms
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset
        self.wait_flush = wait_flush and waits_for_flush(properties)

    @classmethod
    def of(cls, message: Message) -> PreparedMessage:
        """Encode a message once."""
        refuse_other_types((message,))
        if message.properties:
            refuse_special(message.properties)
        return cls(
            message.topic,
            message.body,
            message_properties(message),
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=message.born_host,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
            wait_flush=message.wait_flush,
        )


def refuse_other_types(messages: Iterable[object]) -> None:
    """Raise where something that is no message is to be put."""
    for message in messages:
        if not isinstance(message, Message):
            raise RefusedMessageError(
                f"a message is a rocketstore.Message, not {type(message).__name__}",
                hint="make one: Message(topic=…, body=…)",
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
