"""Message ids: the one the store gives (place of the record) and the one a client gives.

Law: an id is a value, upper-case hex of fixed parts; nothing is looked up and no clock is read.

How derived: MessageDecoder.createMessageId and decodeMessageId, MessageClientIDSetter of 4.9
(spec F14). 32 digits are IPv4, 56 are IPv6, in both kinds.
"""

from __future__ import annotations

import struct
from datetime import datetime, timedelta, tzinfo
from ipaddress import ip_address
from typing import Final, NamedTuple

from rocketstore.errors import FieldRangeError
from rocketstore.format.host import HOST_V4_SIZE, HOST_V6_SIZE, decode_host

MESSAGE_ID_V4_LENGTH: Final = 32
MESSAGE_ID_V6_LENGTH: Final = 56
"""Hex digits of either kind of id."""

_OFFSET_MAX: Final = (1 << 63) - 1
_UNIQUE_KEY_TAIL: Final = struct.Struct(">HiIH")


def encode_message_id(store_host: bytes, physical_offset: int) -> str:
    """Return the id of the record at `physical_offset` of the store at `store_host`, 8 or 20 bytes.

    >>> encode_message_id(bytes.fromhex("C0A82A8300002A9F"), 847067)
    'C0A82A8300002A9F00000000000CECDB'
    """
    if len(store_host) not in (HOST_V4_SIZE, HOST_V6_SIZE):
        raise FieldRangeError(
            "store host has a wrong length",
            field="store_host",
            expected=f"{HOST_V4_SIZE} or {HOST_V6_SIZE} bytes",
            found=f"{len(store_host)} bytes",
        )
    if not 0 <= physical_offset <= _OFFSET_MAX:
        raise FieldRangeError(
            "physical offset cannot be part of a message id",
            field="physical_offset",
            expected=f"0 to {_OFFSET_MAX}",
            found=physical_offset,
        )
    return (store_host + physical_offset.to_bytes(8, "big")).hex().upper()


def decode_message_id(message_id: str) -> tuple[str, int]:
    """Return store host and physical offset of an id.

    Raises `FieldRangeError` where it is not 32 or 56 hex digits, or the offset is negative.
    """
    raw = _hex_bytes(message_id, "message_id")
    physical_offset = int.from_bytes(raw[-8:], "big", signed=True)
    if physical_offset < 0:
        raise FieldRangeError(
            "message id holds a negative physical offset",
            field="physical_offset",
            expected=f"0 to {_OFFSET_MAX}",
            found=physical_offset,
        )
    return decode_host(raw[:-8]), physical_offset


def _hex_bytes(text: str, field: str) -> bytes:
    """Return the bytes of 32 or 56 hex digits."""
    # bytes.fromhex alone would also take blanks between the digits.
    if len(text) in (MESSAGE_ID_V4_LENGTH, MESSAGE_ID_V6_LENGTH) and text.isalnum():
        try:
            return bytes.fromhex(text)
        except ValueError:
            pass
    raise FieldRangeError(
        "not a message id",
        field=field,
        expected=f"{MESSAGE_ID_V4_LENGTH} or {MESSAGE_ID_V6_LENGTH} hex digits",
        found=f"{text!r:.80}",
    )


class UniqueKey(NamedTuple):
    """The parts of a client's message id, the property ``UNIQ_KEY``.

    Attributes
    ----------
    process_id
        Its low 16 bits.
    class_loader_hash
        Tells several clients of one process apart; a signed 32-bit number.
    since_month_start_ms
        Milliseconds since the first of the month, 00:00 in the client's time zone; unsigned, as a
        month has more of them than a signed 32-bit number.
    counter
        The client's running number, 16 bits.
    """

    address: str
    process_id: int
    class_loader_hash: int
    since_month_start_ms: int
    counter: int


def encode_unique_key(key: UniqueKey) -> str:
    """Return the 32 or 56 hex digits of `key`; raises `FieldRangeError`.

    Source: MessageClientIDSetter.createUniqID.
    """
    try:
        address = ip_address(key.address).packed
        tail = _UNIQUE_KEY_TAIL.pack(*key[1:])
    except (ValueError, struct.error) as error:
        raise FieldRangeError(
            "not the parts of a unique key",
            field="unique_key",
            expected="address, 16-bit process id, 32-bit hash, 32-bit time, 16-bit counter",
            found=key,
        ) from error
    return (address + tail).hex().upper()


def decode_unique_key(text: str) -> UniqueKey:
    """Return the parts of a client's message id; raises `FieldRangeError`."""
    raw = _hex_bytes(text, "unique_key")
    at = len(raw) - _UNIQUE_KEY_TAIL.size
    return UniqueKey(str(ip_address(raw[:at])), *_UNIQUE_KEY_TAIL.unpack_from(raw, at))


def unique_key_timestamp_ms(key: UniqueKey, *, now_ms: int, zone: tzinfo) -> int:
    """Return when the client made the id, as the latest time not after now that its month allows.

    The key holds only the time since the start of *some* month in the client's `zone`; it is taken
    to be younger than one month. Source: MessageClientIDSetter.getNearlyTimeFromID.
    """
    now = datetime.fromtimestamp(now_ms / 1000, zone)
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    if _epoch_ms(month) + key.since_month_start_ms >= now_ms:
        month = (month - timedelta(days=1)).replace(day=1)
    return _epoch_ms(month) + key.since_month_start_ms


def _epoch_ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000
