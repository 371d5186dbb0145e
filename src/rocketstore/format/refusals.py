"""What a put refuses for what a message asks for, the same in the store and in a task of Spark."""

from __future__ import annotations

from collections.abc import Mapping

from rocketstore.errors import FormatError, RefusedMessageError
from rocketstore.format.host import encode_host
from rocketstore.format.properties import DELAY, INNER_MULTI_DISPATCH
from rocketstore.message import TRANSACTION_MASK


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
    """Raise where a message has transaction bits, which need a transaction service."""
    if not isinstance(sys_flag, int):
        raise RefusedMessageError(f"sysFlag is a number, not {sys_flag!r:.40}")
    if sys_flag & TRANSACTION_MASK:
        raise RefusedMessageError(
            f"sysFlag {sys_flag:#x} has transaction bits (mask 0xC)",
            hint="this store reads transactional messages but does not take them yet",
        )


def refuse_special(properties: Mapping[str, str]) -> None:
    """Raise where properties ask for a delay or for several queues.

    Stored as they are, such messages would be delivered at once, or not where they should be.
    """
    if type(properties) is not dict and not isinstance(properties, Mapping):
        raise RefusedMessageError(
            f"properties are a mapping of names to texts, not {type(properties).__name__}"
        )
    if INNER_MULTI_DISPATCH in properties:
        raise RefusedMessageError(
            f"property {INNER_MULTI_DISPATCH} asks for delivery to several queues",
            hint="this store reads such messages but does not take them yet",
        )
    delay = properties.get(DELAY)
    if delay is not None and not _is_no_delay(delay):
        raise RefusedMessageError(
            f"property {DELAY}={delay!r:.20} asks for a delayed delivery",
            hint="this store reads delayed messages but does not take them yet",
        )


def _is_no_delay(text: str) -> bool:
    """Return whether a value of ``DELAY`` is a number of 0 or less."""
    try:
        return int(text) <= 0
    except ValueError:
        return False
