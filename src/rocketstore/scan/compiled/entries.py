"""Compiled: which queue each record belongs to, and which index items it calls for.

What ``follow`` does record by record, as columns: for who builds queues and index from parts of a
log that are read apart from one another (a rebuild on Spark).

Law: a number or an item is what ``follow`` would have used for the same record.

Sources: as ``rocketstore.scan.compiled.dispatch``.
"""

from __future__ import annotations

from typing import Any, Final

from numba import types

from rocketstore.scan.columns import Column
from rocketstore.scan.compiled import BYTES, COLUMNS, NUMBERS, inner, kernel
from rocketstore.scan.compiled.dispatch import _find_queue
from rocketstore.scan.compiled.index import positive_hash
from rocketstore.scan.compiled.java_hash import java_hash_unchecked

_TRANSACTION_MASK: Final = 0xC
_PREPARED: Final = 0x4
_ROLLBACK: Final = 0xC
_BLANK_CHARACTER: Final = 0x20


@kernel(types.int64(BYTES, COLUMNS, types.int64, COLUMNS, BYTES, NUMBERS))
def number_queues(buffer: Any, cols: Any, first: Any, slots: Any, topics: Any, numbers: Any) -> Any:
    """Put the number of each record's queue into `numbers`, from row `first` on.

    Parameters
    ----------
    buffer, cols
        Records and their bytes.
    first
        Row to begin with.
    slots, topics
        The table of queues, see ``dispatch_state``; its ``QUEUE`` column holds the numbers.
    numbers
        As long as `cols`; -1 for a record without a queue entry (prepared, rolled back).

    Returns
    -------
    int
        The first row whose queue the table does not have, else the number of rows.
    """
    for number in range(first, min(cols.shape[0], numbers.shape[0])):
        row = cols[number]
        kind = row[Column.SYS_FLAG] & _TRANSACTION_MASK
        if kind in (_PREPARED, _ROLLBACK):
            numbers[number] = -1
            continue
        queue = _find_queue(slots, topics, buffer, row)
        if queue < 0:
            return number
        numbers[number] = queue
    return min(cols.shape[0], numbers.shape[0])


@inner
def _hash_of(buffer: Any, row: Any, at: Any, size: Any) -> Any:
    seed = row[Column.TOPIC_HASH] * 31 + 35  # 35 is '#'
    return positive_hash(java_hash_unchecked(buffer, at, size, seed))


@kernel(types.int64(BYTES, COLUMNS, NUMBERS, NUMBERS))
def list_items(buffer: Any, cols: Any, rows: Any, hashes: Any) -> Any:
    """List the index items that records call for, in the order in which ``follow`` puts them.

    Parameters
    ----------
    buffer, cols
        Records and their bytes.
    rows, hashes
        Filled with the row and the key hash of each item; of equal length.

    Returns
    -------
    int
        How many items; -1 when there is no room for all of them.
    """
    room = min(rows.shape[0], hashes.shape[0])
    count = 0
    for number in range(cols.shape[0]):
        row = cols[number]
        if row[Column.SYS_FLAG] & _TRANSACTION_MASK == _ROLLBACK:
            continue
        if row[Column.UNIQUE_KEY_SIZE] > 0:
            if count == room:
                return -1
            size = row[Column.UNIQUE_KEY_SIZE]
            hashes[count] = _hash_of(buffer, row, row[Column.UNIQUE_KEY_AT], size)
            rows[count] = number
            count += 1
        at = row[Column.KEYS_AT]
        stop = at + row[Column.KEYS_SIZE]
        while at < stop:
            end = at
            while end < stop and buffer[end] != _BLANK_CHARACTER:
                end += 1
            if end > at:
                if count == room:
                    return -1
                hashes[count] = _hash_of(buffer, row, at, end - at)
                rows[count] = number
                count += 1
            at = end + 1
    return count
