"""Properties of a record to be put: what they ask of the store, and how to replace them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.format.properties import DELAY, INNER_MULTI_DISPATCH, WAIT, decode_properties

if TYPE_CHECKING:
    from rocketstore.native.log_end import Record

_DELAY, _QUEUES, _WAIT = (f"{name}\1".encode() for name in (DELAY, INNER_MULTI_DISPATCH, WAIT))


def asked(block: bytes) -> dict[str, str]:
    """Return the properties that may ask something of the store; most messages have none."""
    has_any = _DELAY in block or _QUEUES in block or _WAIT in block
    return decode_properties(block) if has_any else {}


def with_properties(record: Record, properties: bytes) -> Record:
    """Return a copy of a record with these properties, born when it is put if that one is."""
    copy = record.with_body(record.body)
    copy.describe(properties, None if record.is_born_now else record.born)
    return copy
