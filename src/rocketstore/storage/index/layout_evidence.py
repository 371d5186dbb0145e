"""How an index file was divided, told by its content, for a file whose length does not tell.

The length of an index file gives its slots and items only if they are 1:4, as Java's defaults are.
A length that is not may mean other settings, or that the file was cut. The content knows: the
header says which record the first item points at, that item stands right behind the slots, and the
slot of each item's hash is in use.

Law: nothing is believed that one item alone says, and nothing is written.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from rocketstore.config import FileObservation
from rocketstore.errors import FormatError
from rocketstore.format.index_file import (
    FIRST_ITEM,
    INDEX_HEADER_SIZE,
    ITEM_DTYPE,
    ITEM_SIZE_BYTES,
    ITEMS_PER_SLOT,
    SLOT_SIZE_BYTES,
    SLOT_STRUCT,
    IndexHeader,
    IndexLayout,
    decode_header,
    layout_of,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    Words: TypeAlias = npt.NDArray[np.uint32]

_PIECE_BYTES: Final = 8 << 20
_WITNESSES: Final = 16
"""Items that must agree, where the file has so many."""

_FEWEST_WITNESSES: Final = 4
"""Fewer items may agree by chance."""

_WORD: Final = 4
_ITEM_WORDS: Final = ITEM_SIZE_BYTES // _WORD


def believable_index_file(seen: FileObservation | None) -> FileObservation | None:
    """Return how long the store's index files should be, given one and its length.

    Returns
    -------
    FileObservation or None
        As given where its length is one of 1:4, or where other settings explain it; with the length
        that it had before it was cut, where its content tells that; None where nothing tells, so
        that the defaults count.
    """
    if seen is None or _is_regular(seen.size_bytes):
        return seen
    descriptor = os.open(seen.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _judge(seen, descriptor)
    finally:
        os.close(descriptor)


def _judge(seen: FileObservation, descriptor: int) -> FileObservation | None:
    try:
        header = decode_header(os.pread(descriptor, INDEX_HEADER_SIZE, 0))
    except FormatError:
        return None
    slots = _slot_count(descriptor, header, seen.size_bytes)
    if slots is None:
        return None
    items, rest = divmod(
        seen.size_bytes - INDEX_HEADER_SIZE - slots * SLOT_SIZE_BYTES, ITEM_SIZE_BYTES
    )
    if not rest and items >= header.index_count:
        return seen  # whole, with slots and items of its own
    return FileObservation(seen.path, IndexLayout(slots, slots * ITEMS_PER_SLOT).size_bytes)


def _is_regular(size_bytes: int) -> bool:
    try:
        layout_of(size_bytes)
    except FormatError:
        return False
    return True


def _slot_count(descriptor: int, header: IndexHeader, size: int) -> int | None:
    """Find the item that the header calls the first, where the slots before it agree."""
    if header.index_count <= FIRST_ITEM:
        return None
    # An unused item stands before the first one.
    position = INDEX_HEADER_SIZE + SLOT_SIZE_BYTES
    while position < size:
        words = np.frombuffer(
            os.pread(descriptor, min(_PIECE_BYTES, (size - position) // _WORD * _WORD), position),
            dtype=">u4",
        )
        if len(words) < 2 * _ITEM_WORDS:
            return None
        for at in _possible_places(words, header).tolist():
            slots: int = (position + at * _WORD - INDEX_HEADER_SIZE) // SLOT_SIZE_BYTES
            if _agrees(descriptor, header, slots):
                return slots
        position += (len(words) - 2 * _ITEM_WORDS + 1) * _WORD
    return None


def _possible_places(words: Words, header: IndexHeader) -> npt.NDArray[np.intp]:
    """Return where an unused item and one of the header's first record may follow each other."""
    count = len(words) - 2 * _ITEM_WORDS + 1
    high, low = divmod(header.begin_physical_offset, 1 << 32)
    possible = words[_ITEM_WORDS : _ITEM_WORDS + count] != 0
    possible &= words[_ITEM_WORDS + 1 : _ITEM_WORDS + 1 + count] == high
    possible &= words[_ITEM_WORDS + 2 : _ITEM_WORDS + 2 + count] == low
    possible &= words[_ITEM_WORDS + 4 : _ITEM_WORDS + 4 + count] == 0
    for word in range(_ITEM_WORDS):
        possible &= words[word : word + count] == 0
    return np.flatnonzero(possible)


def _agrees(descriptor: int, header: IndexHeader, slots: int) -> bool:
    """Whether the first items behind so many slots are items of these slots."""
    count = min(header.index_count - FIRST_ITEM, _WITNESSES)
    start = IndexLayout(slots, 0).item_position(FIRST_ITEM)
    raw = os.pread(descriptor, count * ITEM_SIZE_BYTES, start)
    items = np.frombuffer(raw[: len(raw) // ITEM_SIZE_BYTES * ITEM_SIZE_BYTES], dtype=ITEM_DTYPE)
    offsets = items["physical_offset"].astype(np.int64)
    if len(items) < _FEWEST_WITNESSES or (np.diff(offsets) < 0).any():
        return False
    if offsets[-1] > header.end_physical_offset:
        return False
    for key_hash in items["key_hash"].tolist():
        if key_hash <= 0:
            return False
        position = INDEX_HEADER_SIZE + key_hash % slots * SLOT_SIZE_BYTES
        item: int
        (item,) = SLOT_STRUCT.unpack(os.pread(descriptor, SLOT_SIZE_BYTES, position))
        if not FIRST_ITEM <= item < header.index_count:
            return False
    return True
