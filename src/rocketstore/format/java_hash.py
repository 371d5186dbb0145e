"""The hashes that Java puts on disk: tag codes of queue entries, key hashes of index files.

Law: equal to ``String.hashCode`` for every text, also outside the Basic Multilingual Plane, because
the hash runs over UTF-16 units and not over characters (spec F5, F10). Compiled loops hash the
texts of records with ``native.walk``.
"""

import struct
from typing import Final

INT32_MIN: Final = -(1 << 31)


def string_hash(text: str) -> int:
    """Return ``text.hashCode()`` of Java, a signed 32-bit number.

    A lone surrogate counts as the one unit that it is in Java. Source: java.lang.String.hashCode.

    >>> string_hash("TagA"), string_hash("polygenelubricants")
    (2598919, -2147483648)
    """
    units: bytes | tuple[int, ...] = text.encode("utf-8", "surrogatepass")
    if not text.isascii():
        encoded = text.encode("utf-16-be", "surrogatepass")
        units = struct.unpack(f">{len(encoded) // 2}H", encoded)
    total = 0
    for unit in units:
        total = (31 * total + unit) & 0xFFFFFFFF
    return total - (1 << 32) if total >> 31 else total


def tags_code(tags: str | None) -> int:
    """Return the tag code of a queue entry: hash of the whole TAGS string, else 0.

    Delay queues keep a deliver time in its place, which this function does not handle (spec F5).
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
