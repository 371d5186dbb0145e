"""The hashes that Java puts on disk: tag codes of queue entries, key hashes of index files.

Law: equal to ``String.hashCode`` for every text, also outside the Basic Multilingual Plane, because
the hash runs over UTF-16 units and not over characters.

How derived: ``h = 31 * h + unit`` with 32-bit wrap-around is the polynomial ``sum(unit * 31**k)``,
so the sum of products with a table of powers gives it without a Python-level loop (spec F5, F10).
"""

from __future__ import annotations

import struct
from operator import mul
from typing import Final

_MASK_32_BITS: Final = 0xFFFFFFFF
_SIGN_BIT: Final = 0x80000000
_CHUNK_UNITS: Final = 128
"""Most units hashed by one sum; longer texts are folded chunk by chunk."""

_POWERS: Final = tuple(pow(31, k, 1 << 32) for k in range(_CHUNK_UNITS - 1, -1, -1))
_CHUNK_POWER: Final = pow(31, _CHUNK_UNITS, 1 << 32)

INT32_MIN: Final = -(1 << 31)


def string_hash(text: str) -> int:
    """Return ``text.hashCode()`` of Java, a signed 32-bit number.

    A lone surrogate counts as the one unit that it is in Java. Source: java.lang.String.hashCode.

    >>> string_hash("TagA"), string_hash("polygenelubricants")
    (2598919, -2147483648)
    """
    units: bytes | tuple[int, ...]
    if text.isascii():
        units = text.encode("ascii")
    else:
        encoded = text.encode("utf-16-be", "surrogatepass")
        units = struct.unpack(f">{len(encoded) // 2}H", encoded)
    count = len(units)
    if count <= _CHUNK_UNITS:
        total: int = sum(map(mul, units, _POWERS[_CHUNK_UNITS - count :])) & _MASK_32_BITS
    else:
        total = _long_hash(units)
    return total - (1 << 32) if total & _SIGN_BIT else total


def _long_hash(units: bytes | tuple[int, ...]) -> int:
    """Return the unsigned hash of more units than the table of powers covers."""
    head = len(units) % _CHUNK_UNITS
    total: int = sum(map(mul, units[:head], _POWERS[_CHUNK_UNITS - head :]))
    for at in range(head, len(units), _CHUNK_UNITS):
        chunk = sum(map(mul, units[at : at + _CHUNK_UNITS], _POWERS))
        total = (total * _CHUNK_POWER + chunk) & _MASK_32_BITS
    return total


def tags_code(tags: str | None) -> int:
    """Return the tag code of a queue entry: hash of the whole TAGS string, else 0.

    Delay queues keep a deliver time in its place, which is not a matter of this function (spec F5).
    Source: MessageExtBrokerInner.tagsString2tagsCode.
    """
    return string_hash(tags) if tags else 0


def key_hash(topic: str, key: str) -> int:
    """Return the non-negative hash under which an index file keeps ``key`` of ``topic``.

    Compatible: ``Math.abs(Integer.MIN_VALUE)`` stays negative in Java and becomes 0. Source:
    IndexService.buildKey, IndexFile.indexKeyHashMethod (spec F10).
    """
    value = string_hash(f"{topic}#{key}")
    return 0 if value == INT32_MIN else abs(value)
