"""Plain codecs that only tests call: rows of entries, and the items of an index file."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rocketstore.errors import TruncatedRecordError
from rocketstore.format import packed
from rocketstore.format.index_file import ITEM_SIZE_BYTES, ITEM_STRUCT
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
