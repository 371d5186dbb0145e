"""Numbers in a stretch of bytes, read and written: what ``bytes.h`` does, interpreted.

Law: numbers are big-endian and need no alignment. A caller compares every position with the
stretch before it uses it; here numpy and struct do so once more.
Compiled, these names are the inline functions of ``view.pxd``, and of ``bytes.h`` the numbers.
"""

from __future__ import annotations

import ctypes
import time
import zlib
from collections.abc import Callable
from struct import Struct
from types import MemberDescriptorType, SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Numbers: TypeAlias = npt.NDArray[np.int64]


def bytes_of(buffer: Any) -> Bytes:
    """Return the bytes of a buffer."""
    return np.frombuffer(buffer, np.uint8)


def borrow(buffer: Any, _export: Any) -> Bytes:
    """Return the bytes of a buffer, which cannot move or go until they are given back."""
    return bytes_of(buffer)


def release(_export: Any) -> None:
    """Give borrowed bytes back."""


bytes_inside = bytes_of
"""Of a bytes object, which cannot change or go while a reference to it is held."""


def empty_record(size: int) -> Any:
    """Return bytes that are to be filled by way of `bytes_inside`."""
    return bytearray(size)


def filled_record(record: Any, size: int) -> bytes:
    """Return the first `size` of them once they are."""
    return bytes(record[:size])


def copy_of(data: Bytes, at: int, size: int) -> bytes:
    """Return a range as a bytes object."""
    return data[at : at + size].tobytes()


def ascii_of(data: Bytes, at: int, size: int) -> str:
    """Return a range of ASCII as a text."""
    return copy_of(data, at, size).decode("ascii")


def equal_bytes(first: Bytes, at: int, second: Bytes, other: int, size: int) -> bool:
    """Return whether two ranges hold the same bytes."""
    return copy_of(first, at, size) == copy_of(second, other, size)


def bytes_mapped(address: int, size: int) -> Bytes:
    """Return bytes of a mapping that its owner holds, by their address."""
    return np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(int(address))), np.uint8)


def numbers_of(array: Numbers) -> Numbers:
    """Return the numbers of an array."""
    return array


def row_at(rows: Numbers, number: int) -> Numbers:
    """Return one row of a matrix."""
    row: Numbers = rows[number]
    return row


rows_of = numbers_of
slot_at = queue_at = row_at
"""In C the rows of each matrix have a length of their own."""


def _load(form: str) -> Callable[[Bytes, int], int]:
    unpack = Struct(form).unpack_from

    def load(data: Bytes, at: int) -> int:
        return int(unpack(data.data, at)[0])

    return load


load_u8, load_i16, load_u32 = _load("B"), _load(">h"), _load(">I")
load_i32, load_i64 = _load(">i"), _load(">q")
load_word = _load("<Q")
"""Numbers of so many bits at a position, `u` without a sign; a word's lowest byte comes first."""


def _store(form: str) -> Callable[[Bytes, int, int], None]:
    pack = Struct(form).pack_into

    def store(data: Bytes, at: int, number: int) -> None:
        pack(data.data, at, number)

    return store


store_u8, store_i16, store_i32, store_i64 = _store("B"), _store(">h"), _store(">i"), _store(">q")


def copy_bytes(target: Bytes, to: int, source: Bytes, at: int, size: int) -> None:
    """Copy bytes."""
    target[to : to + size] = source[at : at + size]


def piece_at(piece: Bytes, _position: int) -> Bytes:
    """Return bytes of a file of which only the piece at a position is there; compiled only."""
    return piece


def write_out(_descriptor: int, _data: Bytes, _at: int, _stop: int, _mapped: Bytes) -> None:
    """Write a range to a file, or where the system refuses that into its mapping; as above."""


def clear_bytes(data: Bytes, at: int, stop: int) -> None:
    """Write zeros."""
    data[at:stop] = 0


def publish(numbers: Numbers, at: int, number: int) -> None:
    """Let other threads see a number after everything that was written before it."""
    numbers[at] = number


def trailing_zeros(word: int) -> int:
    """Return how many zero bits stand below the lowest one of a word that is not zero."""
    return (word & -word).bit_length() - 1


def find_byte(data: Bytes, at: int, end: int, byte: int) -> int:
    """Return where a byte stands first in ``[at, end)``, or `end`."""
    found = data[at:end].tobytes().find(byte)
    return end if found < 0 else at + found


def prefetch(data: Bytes, at: int) -> None:
    """Ask for the cache line of a position, which may be outside."""


def prefetch_reads(data: Bytes, at: int, size: int) -> None:
    """Ask for the cache lines of bytes that are soon read; they may be outside."""


def prefetch_writes(data: Bytes, at: int, size: int) -> None:
    """Ask for the cache lines of bytes that are soon written; they may be outside."""


CRC_MASK = 0x7FFFFFFF  # the bits of a CRC-32 that a record keeps


def crc_of(data: Bytes, at: int, size: int) -> int:
    """Return the CRC-32 of a range as a record keeps it."""
    return zlib.crc32(data[at : at + size].data) & CRC_MASK


def crc_continued(data: Bytes, at: int, stop: int, crc: int) -> int:
    """Return the CRC-32 of bytes whose beginning has `crc` and whose rest is the range."""
    return zlib.crc32(data[at:stop].data, crc)


def part_of(source: Bytes, at: int, size: int) -> Bytes:
    """Return a part of a stretch; the caller has compared it."""
    return source[at : at + size]


_NO_TEXT: Any = SimpleNamespace(size=-1)


def utf8_of(text: object) -> Bytes:
    """Return a text in UTF-8; of size -1 where it has none, or is no text."""
    try:
        return np.frombuffer(str.encode(text), np.uint8)  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        return _NO_TEXT


NO_NUMBER = -(1 << 63)


def number_of(number: object, bits: int) -> int:
    """Return a plain int that fits in `bits` bits, signed; `NO_NUMBER` for anything else.

    The smallest 64-bit number is `NO_NUMBER` itself, so it counts as none.
    """
    limit = 1 << (bits - 1)
    return number if type(number) is int and -limit <= number < limit else NO_NUMBER


def slot_named(kind: type, name: str) -> Any:
    """Return where objects of a class keep an attribute; raises `TypeError` where in no slot."""
    if not isinstance(getattr(kind, name), MemberDescriptorType):
        raise TypeError(f"{kind.__name__}.{name} is kept in no slot")
    return name


def in_slot(owner: object, slot: Any) -> Any:
    """Return an attribute, None where the object lost it."""
    return getattr(owner, slot, None)


set_slot = setattr
system_ns = time.time_ns
"""The system's time."""
