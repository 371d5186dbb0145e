"""Hosts as a record stores them, and the message id that begins with one.

A host is 4 or 16 address bytes, then the port as a 4-byte number: eight bytes are IPv4, twenty are
IPv6. Which of the two a record holds is said by its sysFlag, not by the bytes (spec F3, F4). Its
text is ``ip:port`` or ``[v6]:port`` with the address of RFC 5952. The id that the store gives is
the upper-case hex of store host and physical offset: 32 digits for IPv4, 56 for IPv6.

Law: no name is ever resolved; text in, bytes out, and back. Few hosts write many messages, so both
ways are cached.
Page: docs/format/message-id.md. Source: rocketmq-all-4.9.8, MessageExt.socketAddress2ByteBuffer,
MessageDecoder.createMessageId and decodeMessageId; spec F14.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final

from rocketstore.errors import FieldRangeError
from rocketstore.format import checked

HOST_V4_SIZE: Final = 8
HOST_V6_SIZE: Final = 20
PORT_MAX: Final = 65535

_CACHED_HOSTS: Final = 4096
_OFFSET_MAX: Final = (1 << 63) - 1


@lru_cache(maxsize=_CACHED_HOSTS)
def encode_host(host: str) -> bytes:
    """Return the stored form of ``ip:port`` (8 bytes) or ``[v6]:port`` (20 bytes).

    Raises `FieldRangeError` where `host` is another text, names a scope, or has a port above 65535.

    >>> encode_host("192.168.42.131:10911").hex()
    'c0a82a8300002a9f'
    """
    address, _, port = host.rpartition(":")
    # int() alone would also take "+1", " 1", "1_0" and digits of other scripts.
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= PORT_MAX
    if is_port and "%" not in address:
        with suppress(AddressValueError):
            return stored_host(host)
    raise FieldRangeError(
        "host is not an address with a port",
        field="host",
        expected=f"ip:port or [v6]:port with a port of 0 to {PORT_MAX}",
        found=repr(host),
        hint="give the numeric address; names are not resolved here",
    )


@lru_cache(maxsize=_CACHED_HOSTS)
def stored_host(text: str) -> bytes:
    """Return the bytes that `decode_host` made a text of."""
    address, _, port = text.rpartition(":")
    is_v6 = address.startswith("[") and address.endswith("]")
    packed = (IPv6Address(address[1:-1]) if is_v6 else IPv4Address(address)).packed
    return packed + int(port).to_bytes(4, "big", signed=True)


@lru_cache(maxsize=_CACHED_HOSTS)
def decode_host(host: bytes) -> str:
    """Return ``ip:port`` or ``[v6]:port`` of a stored host of 8 or 20 bytes.

    A port outside 0 to 65535 is shown as the signed number that stands there: hosts are not covered
    by any checksum, and a message can be read nevertheless.
    """
    port = int.from_bytes(host[-4:], "big", signed=True)
    if len(host) == HOST_V4_SIZE:
        return f"{'.'.join(map(str, host[:4]))}:{port}"
    if len(host) != HOST_V6_SIZE:
        raise FieldRangeError(
            "stored host has a wrong length",
            field="host",
            expected=f"{HOST_V4_SIZE} or {HOST_V6_SIZE} bytes",
            found=f"{len(host)} bytes",
        )
    address = IPv6Address(host[:16])
    # Spelled out because Python 3.13 changed how it prints mapped addresses.
    mapped = address.ipv4_mapped
    return f"[{address.compressed if mapped is None else f'::ffff:{mapped}'}]:{port}"


def address_text(host: str, port: object) -> str:
    """Return ``host:port``, and ``[v6]:port`` of an address of IPv6, in brackets already or not.

    >>> address_text("::1", 10911)
    '[::1]:10911'
    """
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{host}:{port}"


def encode_message_id(store_host: bytes, physical_offset: int) -> str:
    """Return the id of the record at `physical_offset` of the store at `store_host`, as stored.

    >>> encode_message_id(bytes.fromhex("C0A82A8300002A9F"), 847067)
    'C0A82A8300002A9F00000000000CECDB'
    """
    return (store_host + physical_offset.to_bytes(8, "big", signed=True)).hex().upper()


def encode_message_ids(store_host: bytes, physical_offsets: Iterable[int]) -> str:
    """Return the ids of records of one store, separated by commas.

    >>> encode_message_ids(bytes.fromhex("C0A82A8300002A9F"), [0, 847067])
    'C0A82A8300002A9F0000000000000000,C0A82A8300002A9F00000000000CECDB'
    """
    # All digits are made by one call, at half the cost of a format for each.
    ids = b"".join([store_host + at.to_bytes(8, "big") for at in physical_offsets])
    return ids.hex(",", len(store_host) + 8).upper()


def decode_message_id(message_id: str) -> tuple[str, int]:
    """Return store host and physical offset of an id.

    Raises `FieldRangeError` where it is not 32 or 56 hex digits, or the offset is negative.
    """
    raw = b""
    # bytes.fromhex alone would also take blanks between the digits.
    if isinstance(message_id, str) and message_id.isalnum():
        with suppress(ValueError):
            raw = bytes.fromhex(message_id)
    if len(raw) - 8 not in (HOST_V4_SIZE, HOST_V6_SIZE):
        raise FieldRangeError(
            "not a message id",
            field="message_id",
            expected="32 or 56 hex digits",
            found=f"{message_id!r:.80}",
        )
    physical_offset = int.from_bytes(raw[-8:], "big", signed=True)
    what = "physical offset cannot be part of a message id"
    checked(physical_offset, 0, _OFFSET_MAX, what, "physical_offset")
    return decode_host(raw[:-8]), physical_offset
