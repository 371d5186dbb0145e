"""Plain Python: which queue each record belongs to, and which index items it calls for.

The twin of ``rocketstore.native.columns``.
"""

from collections.abc import Iterator
from typing import Final

from rocketstore.native.row import ByteArray, Int64Array, SlotColumn, slot_of
from rocketstore.scan.columns import Column
from support.oracle.index import positive_hash
from support.oracle.java_hash import java_hash

_TRANSACTION_MASK: Final = 0xC
_WITHOUT_ENTRY: Final = (0x4, 0xC)
_ROLLBACK: Final = 0xC
_BLANK: Final = b" "


def number_queues(
    buffer: ByteArray,
    cols: Int64Array,
    first: int,
    slots: Int64Array,
    topics: ByteArray,
    numbers: Int64Array,
) -> int:
    """Put the number of each record's queue into `numbers`, from row `first` on."""
    count = min(len(cols), len(numbers))
    for number in range(first, count):
        row = cols[number].tolist()
        if row[Column.SYS_FLAG] & _TRANSACTION_MASK in _WITHOUT_ENTRY:
            numbers[number] = -1
            continue
        queue = find_queue(buffer, row, slots, topics)
        if queue < 0:
            return number
        numbers[number] = queue
    return count


def find_queue(buffer: ByteArray, row: list[int], slots: Int64Array, topics: ByteArray) -> int:
    """Return the number of a record's queue, or -1."""
    at, size = row[Column.TOPIC_AT], row[Column.TOPIC_SIZE]
    wanted = (row[Column.TOPIC_HASH], row[Column.QUEUE_ID], buffer[at : at + size].tobytes())
    number = slot_of(row[Column.TOPIC_HASH], row[Column.QUEUE_ID], len(slots))
    while slots[number, SlotColumn.QUEUE] >= 0:
        slot = slots[number].tolist()
        begin, length = slot[SlotColumn.TOPIC_AT], slot[SlotColumn.TOPIC_SIZE]
        topic = topics[begin : begin + length].tobytes()
        if (slot[SlotColumn.TOPIC_HASH], slot[SlotColumn.QUEUE_ID], topic) == wanted:
            return int(slot[SlotColumn.QUEUE])
        number = (number + 1) % len(slots)
    return -1


def list_items(buffer: ByteArray, cols: Int64Array, rows: Int64Array, hashes: Int64Array) -> int:
    """List the index items that records call for, in the order in which ``follow`` puts them."""
    room = min(len(rows), len(hashes))
    count = 0
    for number, row in enumerate(cols.tolist()):
        if row[Column.SYS_FLAG] & _TRANSACTION_MASK == _ROLLBACK:
            continue
        for at, size in key_places(buffer, row):
            if count == room:
                return -1
            seed = row[Column.TOPIC_HASH] * 31 + 35
            hashes[count] = positive_hash(java_hash(buffer, at, size, seed))
            rows[count] = number
            count += 1
    return count


def key_places(buffer: ByteArray, row: list[int]) -> Iterator[tuple[int, int]]:
    """Yield position and size of the unique key and of every key, in the order of items."""
    if row[Column.UNIQUE_KEY_SIZE] > 0:
        yield row[Column.UNIQUE_KEY_AT], row[Column.UNIQUE_KEY_SIZE]
    at = row[Column.KEYS_AT]
    keys = buffer[at : at + row[Column.KEYS_SIZE]].tobytes()
    for key in keys.split(_BLANK):
        if key:
            yield at, len(key)
        at += len(key) + 1
