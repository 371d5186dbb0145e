"""Host addresses as a record stores them: 4 or 16 address bytes, then the port as a 4-byte number.

Law: no name is ever resolved; text in, bytes out, and back. Eight bytes are IPv4, twenty are IPv6;
which of the two a record holds is said by its sysFlag, not by the bytes (spec F3, F4).

How derived: MessageExt.socketAddress2ByteBuffer of 4.9; the text form is ``ip:port`` or
``[v6]:port`` with the address of RFC 5952. Few hosts write many messages, so both ways are cached.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final

from rocketstore.errors import FieldRangeError

HOST_V4_SIZE: Final = 8
HOST_V6_SIZE: Final = 20
PORT_MAX: Final = 65535

_CACHED_HOSTS: Final = 4096
_HOST_V4: Final = struct.Struct(">4si")
_HOST_V6: Final = struct.Struct(">16si")


@lru_cache(maxsize=_CACHED_HOSTS)
def encode_host(host: str) -> bytes:
    """Return the stored form of ``ip:port`` (8 bytes) or ``[v6]:port`` (20 bytes).

    Raises `FieldRangeError` where `host` is no such text, names a scope, or has a port above 65535.

    >>> encode_host("192.168.42.131:10911").hex()
    'c0a82a8300002a9f'
    """
    address, colon, port_text = host.rpartition(":")
    # int() alone would also take "+1", " 1", "1_0" and digits of other scripts.
    if not colon or not (port_text.isascii() and port_text.isdigit()) or len(port_text) > 5:
        raise _bad_host(host)
    port = int(port_text)
    if port > PORT_MAX:
        raise _bad_host(host)
    try:
        if address.startswith("[") and address.endswith("]") and "%" not in address:
            return _HOST_V6.pack(IPv6Address(address[1:-1]).packed, port)
        return _HOST_V4.pack(IPv4Address(address).packed, port)
    except AddressValueError as error:
        raise _bad_host(host) from error


def _bad_host(host: str) -> FieldRangeError:
    return FieldRangeError(
        "host is not an address with a port",
        field="host",
        expected=f"ip:port or [v6]:port with a port of 0 to {PORT_MAX}",
        found=repr(host),
        hint="give the numeric address; names are not resolved here",
    )


@lru_cache(maxsize=_CACHED_HOSTS)
def decode_host(host: bytes) -> str:
    """Return ``ip:port`` or ``[v6]:port`` of a stored host of 8 or 20 bytes.

    A port outside 0 to 65535 is shown as the signed number that stands there: hosts are not covered
    by any checksum, and a message is no less readable for a broken one.
    """
    if len(host) == HOST_V4_SIZE:
        a, b, c, d, port = _HOST_V4_PARTS.unpack(host)
        return f"{a}.{b}.{c}.{d}:{port}"
    if len(host) == HOST_V6_SIZE:
        packed, port = _HOST_V6.unpack(host)
        address = IPv6Address(packed)
        # Spelled out because Python 3.13 changed how it prints mapped addresses.
        mapped = address.ipv4_mapped
        text = f"::ffff:{mapped}" if mapped is not None else address.compressed
        return f"[{text}]:{port}"
    raise FieldRangeError(
        "stored host has a wrong length",
        field="host",
        expected=f"{HOST_V4_SIZE} or {HOST_V6_SIZE} bytes",
        found=f"{len(host)} bytes",
    )


_HOST_V4_PARTS: Final = struct.Struct(">BBBBi")
