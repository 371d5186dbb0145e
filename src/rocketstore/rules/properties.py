"""Properties of a record to be put: what they ask of the store, and a record with others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from rocketstore.format.properties import DELAY, INNER_MULTI_DISPATCH, WAIT, decode_properties

if TYPE_CHECKING:
    from rocketstore.native.log_end import Record

_ASKS: Final = re.compile(f"({DELAY}|{INNER_MULTI_DISPATCH}|{WAIT})\1".encode())


def asked(block: bytes) -> dict[str, str]:
    """Return properties that may ask something of the store; none where, as in most, none does."""
    return decode_properties(block) if _ASKS.search(block) else {}


def with_properties(record: Record, properties: bytes) -> Record:
    """Return a copy of a record with these properties, born when it is put if that one is."""
    copy = record.with_body(record.body)
    copy.describe(properties, None if record.is_born_now else record.born)
    return copy
