"""Plain codecs that only tests call: rows of entries, and the items and chains of an index file."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rocketstore.errors import TruncatedRecordError
from rocketstore.format import packed
from rocketstore.format.index_file import (
    FIRST_ITEM,
    INDEX_HEADER_SIZE,
    ITEM_SIZE_BYTES,
    ITEM_STRUCT,
    SLOT_STRUCT,
    IndexLayout,
    decode_header,
    item_array,
    used_item_count,
)
from rocketstore.format.queue_entry import ENTRY_STRUCT, QueueEntry


class IndexItem(NamedTuple):
    """One key of one message."""

    key_hash: int
    physical_offset: int
    time_difference_s: int
    previous_item: int


def encode_entry(physical_offset: int, record_size: int, tags_code: int) -> bytes:
    """Encode one entry; raises `FieldRangeError`."""
    values = (physical_offset, record_size, tags_code)
    return packed(ENTRY_STRUCT, values, "a queue entry's number")


def iterate_entries(data: bytes) -> Iterator[QueueEntry]:
    """Yield every entry of `data`, a whole number of them, unused ones included."""
    return map(QueueEntry._make, ENTRY_STRUCT.iter_unpack(data))


def encode_entries(entries: Iterable[tuple[int, int, int]]) -> bytes:
    return b"".join(encode_entry(*entry) for entry in entries)


def encode_item(item: IndexItem) -> bytes:
    return ITEM_STRUCT.pack(*item)


def decode_item(data: bytes, position: int) -> IndexItem:
    """Decode the item that starts at `position`."""
    if not 0 <= position <= len(data) - ITEM_SIZE_BYTES:
        raise TruncatedRecordError("index item cut off", offset=position)
    return IndexItem._make(ITEM_STRUCT.unpack_from(data, position))


def slot_array(data: bytes, layout: IndexLayout) -> npt.NDArray[np.int32]:
    """View all slots of a whole file as big-endian numbers."""
    return np.frombuffer(data, dtype=">i4", count=layout.slot_count, offset=INDEX_HEADER_SIZE)


def iterate_chain(data: bytes, layout: IndexLayout, key_hash: int) -> Iterator[IndexItem]:
    """Yield the items of `key_hash` in a whole file, newest first, without those of other hashes.

    The chain ends at the first number that is out of range or not smaller than the one before:
    items are only ever linked to older ones, so anything else is damage, and a loop is impossible.
    """
    item_array(data, layout)  # which refuses a file of another size
    limit = used_item_count(decode_header(data), layout)
    (number,) = SLOT_STRUCT.unpack_from(data, layout.slot_position(key_hash % layout.slot_count))
    while FIRST_ITEM <= number < limit:
        item = decode_item(data, layout.item_position(number))
        if item.key_hash == key_hash:
            yield item
        limit, number = number, item.previous_item
