"""Functions over whole columns of records: slices, properties, queues and index items.

Law: a queue's number, a tags code or an index item is what ``native.dispatch`` would have used for
the same record: it calls the same functions.

Sources: CommitLog.checkMessageAndReturnSize, IndexService.buildIndex, and 4.9.3's
MessageDecoder.string2messageProperties (spec F3.3, F5, F10).
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

if not cython.compiled:
    from rocketstore.native import view
    from rocketstore.native.index import key_hash_of
    from rocketstore.native.row import CallsFor, Column, SlotColumn
    from rocketstore.native.view import Bytes, Numbers
    from rocketstore.native.walk import property_at

_TOPIC_FACTOR = 0x9E3779B1
_QUEUE_FACTOR = 0x85EBCA77


def copy_slices(buffer: Bytes, at: Numbers, size: Numbers, target: Bytes) -> int:
    """Copy ``buffer[at[i]:at[i] + size[i]]`` for each i to `target`, one after the other.

    Returns the bytes written; -1 when a slice is not inside the buffer or `target` is too small.
    """
    data, into = view.bytes_of(buffer), view.bytes_of(target)
    written = 0
    with cython.nogil:
        for i in range(min(at.shape[0], size.shape[0])):
            begin, length = at[i], size[i]
            if min(begin, length) < 0 or begin > data.size - length or written > into.size - length:
                written = -1
                break
            view.copy_bytes(into, written, data, begin, length)
            written += length
    return int(written)


def slice_crcs(buffer: Bytes, at: Numbers, size: Numbers, target: Numbers) -> int:
    """Put the CRC-32 of ``buffer[at[i]:at[i] + size[i]]``, 31 bits of it, into ``target[i]``.

    Returns how many; -1 when a slice is not inside the buffer or `target` is too small.
    """
    data, sums = view.bytes_of(buffer), view.numbers_of(target)
    count = min(at.shape[0], size.shape[0])
    if count > target.shape[0]:
        return -1
    with cython.nogil:
        for i in range(count):
            begin, length = at[i], size[i]
            if min(begin, length) < 0 or begin > data.size - length:
                count = -1
                break
            sums[i] = view.crc_of(data, begin, length)
    return int(count)


def has_name_before(data: Bytes, parts: Numbers, first: int, part: int) -> bool:
    """Return whether a part of the same block, from row `first` on, has the name of row `part`.

    A block of more than 64 names counts as having it.
    """
    if part - first > 64:
        return True
    at = parts[part, 0]
    size = parts[part, 1]
    for other in range(first, part):
        if parts[other, 1] == size and view.equal_bytes(data, at, data, parts[other, 0], size):
            return True
    return False


def split_properties(
    buffer: Bytes, at: Numbers, size: Numbers, ends: Numbers, parts: Numbers
) -> tuple[int, int]:
    """Fill `parts` with the names and values of each block ``buffer[at[i]:at[i] + size[i]]``.

    A row has position and size of the name and those of the value; `ends` receives the number of
    parts up to and including each block's.

    Returns the rows filled, -1 when a block is not inside the buffer or an array is too short; and
    1 when some block may hold a name twice, else 0.
    """
    if size.shape[0] < at.shape[0] or ends.shape[0] < at.shape[0] or parts.shape[1] != 4:
        return -1, 0
    data = view.bytes_of(buffer)
    count = doubtful = 0
    with cython.nogil:
        for block in range(at.shape[0]):
            position, length = at[block], size[block]
            if min(position, length) < 0 or position > data.size - length:
                count = -1
                break
            stop = position + length
            first = count
            while position < stop and count <= parts.shape[0]:
                name_stop, end = property_at(data, position, stop)
                if name_stop > position:
                    if count < parts.shape[0]:
                        parts[count, 0] = position
                        parts[count, 1] = name_stop - position
                        parts[count, 2] = name_stop + 1
                        parts[count, 3] = end - name_stop - 1
                        if has_name_before(data, parts, first, count):
                            doubtful = 1
                    count += 1
                position = end + 1
            ends[block] = count
    if not 0 <= count <= parts.shape[0]:
        return -1, 0
    return int(count), int(doubtful)


def entry_code(row: Numbers, delays_ms: Numbers, delay_count: int) -> int:
    """Return the tags code in the entry of a record; for a delayed one, when it is due (F5).

    `delays_ms` has the delay of each level from index 1 on; without one the hash stays.
    """
    if row[Column.CALLS_FOR] & CallsFor.DUE_TIME == 0 or delay_count < 2:
        return row[Column.TAGS_CODE]
    return row[Column.STORE_TIMESTAMP] + delays_ms[min(row[Column.DELAY_LEVEL], delay_count - 1)]


def list_codes(cols: Numbers, delays_ms: Numbers, codes: Numbers) -> None:
    """Put the tags code in the entry of each record into `codes`, as long as `cols`."""
    records, delays = view.rows_of(cols), view.numbers_of(delays_ms)
    for number in range(min(cols.shape[0], codes.shape[0])):
        codes[number] = entry_code(view.row_at(records, number), delays, delays_ms.shape[0])


def find_queue(slots: Numbers, slot_count: int, topics: Bytes, data: Bytes, row: Numbers) -> int:
    """Return the number of a record's queue in the table of ``native.row``, or -1."""
    topic_hash = row[Column.TOPIC_HASH]
    queue_id = row[Column.QUEUE_ID]
    at = row[Column.TOPIC_AT]
    size = row[Column.TOPIC_SIZE]
    mixed = (topic_hash * _TOPIC_FACTOR) ^ (queue_id * _QUEUE_FACTOR)
    number = (mixed ^ (mixed >> 15)) & (slot_count - 1)
    while True:
        slot = view.slot_at(slots, number)
        if slot[SlotColumn.QUEUE] < 0:
            return -1
        if (
            slot[SlotColumn.TOPIC_HASH] == topic_hash
            and slot[SlotColumn.QUEUE_ID] == queue_id
            and slot[SlotColumn.TOPIC_SIZE] == size
            and view.equal_bytes(topics, slot[SlotColumn.TOPIC_AT], data, at, size)
        ):
            return slot[SlotColumn.QUEUE]
        number = (number + 1) & (slot_count - 1)


def number_queues(
    buffer: Bytes, cols: Numbers, first: int, slots: Numbers, topics: Bytes, numbers: Numbers
) -> int:
    """Put the number of each record's queue into `numbers`, from row `first` on.

    `numbers` is as long as `cols`; -1 is for a record without a queue entry (prepared, rolled
    back). The numbers are those of the ``QUEUE`` column of `slots` (``native.row``). Returns the
    first row whose queue the table does not have, else the number of rows.
    """
    data = view.bytes_of(buffer)
    names = view.bytes_of(topics)
    records = view.rows_of(cols)
    table = view.rows_of(slots)
    count = min(cols.shape[0], numbers.shape[0])
    for number in range(first, count):
        row = view.row_at(records, number)
        if row[Column.CALLS_FOR] & CallsFor.ENTRY == 0:
            numbers[number] = -1
            continue
        queue = find_queue(table, slots.shape[0], names, data, row)
        if queue < 0:
            return number
        numbers[number] = queue
    return count


def next_key(data: Bytes, row: Numbers, after: int) -> tuple[int, int]:
    """Return begin and end of the next key that the index has of a record.

    The one before ended at `after`, -1 for the first. ``UNIQ_KEY`` comes first, then each part of
    ``KEYS`` between blanks, equal ones too (IndexService.buildIndex); then one that ends at 0.
    """
    unique_end = row[Column.UNIQUE_KEY_AT] + row[Column.UNIQUE_KEY_SIZE]
    if after < 0 and row[Column.UNIQUE_KEY_SIZE] > 0:
        return row[Column.UNIQUE_KEY_AT], unique_end
    at = row[Column.KEYS_AT]
    stop = at + row[Column.KEYS_SIZE]
    if after >= 0 and after != unique_end:
        at = after + 1
    while at < stop:
        end = view.find_byte(data, at, stop, 32)
        if end > at:
            return at, end
        at = end + 1
    return 0, 0


def list_items(buffer: Bytes, cols: Numbers, rows: Numbers, hashes: Numbers) -> int:
    """List the index items that records call for, in the order in which dispatch puts them.

    `rows` and `hashes` receive the row and the key hash of each. Returns how many there are, -1
    when they do not all fit.
    """
    data = view.bytes_of(buffer)
    records = view.rows_of(cols)
    room = min(rows.shape[0], hashes.shape[0])
    count = 0
    for number in range(cols.shape[0]):
        row = view.row_at(records, number)
        if row[Column.CALLS_FOR] & CallsFor.ITEMS == 0:
            continue
        at, end = next_key(data, row, -1)
        while end > 0:
            if count == room:
                return -1
            hashes[count] = key_hash_of(data, at, end - at, row[Column.TOPIC_HASH])
            rows[count] = number
            count += 1
            at, end = next_key(data, row, end)
    return count
