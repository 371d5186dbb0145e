"""Walk CommitLog records from one to the next, checking each, into the columns' matrix.

Law: nothing is believed unread. The length is compared with what remains of file and buffer, the
record's own address with its offset, the inner lengths with the whole, before any of them is used
as a position; a read never leaves the buffer. This is the one judge of a record.
Source: CommitLog.checkMessageAndReturnSize (spec F3.4), which compares neither the address nor the
length with the rest of the file.
"""

from __future__ import annotations

from rocketstore.format.properties import DELAY, INNER_MULTI_DISPATCH, KEYS, TAGS, UNIQ_KEY
from rocketstore.format.queue_entry import DELAY_TOPIC

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

if not cython.compiled:
    from rocketstore.native import view
    from rocketstore.native.row import COLUMN_COUNT, CallsFor, Column, StopReason
    from rocketstore.native.view import Bytes, Numbers

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
_LOW_32 = 0xFFFFFFFF
_TOP_BITS = 0x8080808080808080
_EVERY_2ND_BYTE = 0x00FF00FF00FF00FF
_EVERY_2ND_PAIR = 0x0000FFFF0000FFFF
_POWER_OF_8 = 31**8
_NAME_TAGS = int.from_bytes(TAGS.encode(), "big")
_NAME_KEYS = int.from_bytes(KEYS.encode(), "big")
_NAME_UNIQUE_KEY = int.from_bytes(UNIQ_KEY.encode(), "big")
_TEXTS = [DELAY.encode(), INNER_MULTI_DISPATCH.encode(), DELAY_TOPIC.encode()]
"""Held here, as what follows only says where their bytes are."""
_NAME_DELAY = view.bytes_inside(_TEXTS[0])
_NAME_EXTRA_QUEUES = view.bytes_inside(_TEXTS[1])
_DELAY_TOPIC = view.bytes_inside(_TEXTS[2])


def store_time_position(data: Bytes, at: int) -> int:
    """Return where the store time of a record stands; the store host stands after it."""
    return at + 68 if view.load_u32(data, at + 36) & 0x10 else at + 56


def body_position(data: Bytes, at: int) -> int:
    """Return where the body of a record starts; its length stands before it."""
    sys_flag = view.load_u32(data, at + 36)  # two bits tell which hosts have IPv6
    return at + 88 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)


def is_zeros(data: Bytes, start: int, stop: int) -> bool:
    """Return whether bytes are all zero."""
    while start < stop and view.load_u8(data, start) == 0:
        start += 1
    return start == stop


def check_tail(data: Bytes, at: int, file_size: int) -> int:
    """Judge the fewer than eight bytes before the end of the buffer or the file."""
    if is_zeros(data, at, min(data.size, file_size)):
        return StopReason.UNWRITTEN
    return StopReason.TRUNCATED if file_size - at >= 8 else StopReason.BAD_LENGTH


def check_record(data: Bytes, at: int, base: int, file_size: int, check_crc: bool) -> int:
    """Judge what stands at `at`: END means an intact record, BLANK a believable BLANK.

    ``0 <= at < min(data.size, file_size)`` is the caller's promise, nothing else.
    """
    remaining = file_size - at
    available = data.size - at
    if min(remaining, available) < 8:
        return check_tail(data, at, file_size)
    total = view.load_i32(data, at)
    magic = view.load_u32(data, at + 4)
    if magic == MAGIC_BLANK:
        return StopReason.BLANK if total == remaining else StopReason.BAD_LENGTH
    if magic not in (MAGIC_V1, MAGIC_V2):
        return StopReason.UNWRITTEN if total == 0 and magic == 0 else StopReason.BAD_MAGIC
    # Bytes of a record with IPv4 hosts that are neither body, topic nor properties.
    fixed = 91 if magic == MAGIC_V1 else 92
    if total < fixed or total > remaining:
        return StopReason.BAD_LENGTH
    if total > available:
        return StopReason.TRUNCATED
    verdict = check_head(data, at, base, total - fixed)
    if verdict != StopReason.END:
        return verdict
    body_at = body_position(data, at)
    body_size = view.load_i32(data, body_at - 4)
    topic_size, topic_at = topic_position(data, body_at + body_size, magic)
    room = at + total - topic_at - topic_size - 2
    if topic_size < 0 or room < 0 or view.load_i16(data, topic_at + topic_size) != room:
        return StopReason.BAD_FIELDS
    if not is_text_whole(data, topic_at, topic_size, at + total, base):
        return StopReason.BAD_FIELDS
    if check_crc and not crc_agrees(data, at, body_size, view.crc_of(data, body_at, body_size)):
        return StopReason.BAD_CRC
    return StopReason.END


def check_head(data: Bytes, at: int, base: int, room: int) -> int:
    """Judge address and length of the body of a record whose variable parts have `room` bytes.

    Hosts of IPv6 are among them.
    """
    if view.load_i64(data, at + 28) != base + at:
        return StopReason.BAD_ADDRESS
    body_at = body_position(data, at)
    room -= body_at - at - 88
    if room < 0:
        return StopReason.BAD_FIELDS
    body_size = view.load_i32(data, body_at - 4)
    return StopReason.BAD_FIELDS if body_size < 0 or body_size > room else StopReason.END


def claimed_size(buffer: Bytes, position: int, base: int, limit: int) -> int:
    """Return the length of a record that the buffer cuts off, else ``-reason`` why it can be none.

    It ends by the position `limit`. A length without a second source must not decide how much is
    read: the record has to state its own offset, and a body that fits.
    """
    data = view.bytes_of(buffer)
    if position < 0 or data.size - position < 112:
        return -StopReason.TRUNCATED
    total = view.load_i32(data, position)
    if total > limit - position:
        return -StopReason.TRUNCATED
    fixed = 91 if view.load_u32(data, position + 4) == MAGIC_V1 else 92
    verdict = check_head(data, position, base, total - fixed)
    return total if verdict == StopReason.END else -verdict


def continuation_bounds(lead: int) -> tuple[int, int, int]:
    """Return how many bytes follow a lead byte (-1: no lead), and the bounds of the first."""
    if 0xC2 <= lead <= 0xDF:
        return 1, 0x80, 0xBF
    if 0xE0 <= lead <= 0xEF:
        return 2, 0xA0 if lead == 0xE0 else 0x80, 0x9F if lead == 0xED else 0xBF
    if 0xF0 <= lead <= 0xF4:
        return 3, 0x90 if lead == 0xF0 else 0x80, 0x8F if lead == 0xF4 else 0xBF
    return -1, 0, 0


def is_utf8(data: Bytes, at: int, end: int) -> bool:
    """Return whether bytes are UTF-8; the last word may begin before them."""
    while at < end:
        word_at = min(at, end - 8)
        if word_at >= 0 and view.load_word(data, word_at) & _TOP_BITS == 0:
            at = word_at + 8
            continue
        byte = view.load_u8(data, at)
        at += 1
        if byte >= 0x80:
            following, low, high = continuation_bounds(byte)
            if following < 0 or at + following > end:
                return False
            for _ in range(following):
                byte = view.load_u8(data, at)
                if byte < low or byte > high:
                    return False
                low, high = 0x80, 0xBF
                at += 1
    return True


def are_properties(data: Bytes, at: int, end: int) -> bool:
    """Return whether bytes can be the properties of a record; see ``format.properties``."""
    if at >= end:
        return True
    has_name = view.load_u8(data, end - 1) != 0 and view.find_byte(data, at, end, 1) < end
    return has_name and is_utf8(data, at, end)


def is_text_whole(data: Bytes, topic_at: int, topic_size: int, end: int, base: int) -> bool:
    """Return whether topic and properties were written as a whole; see ``format.properties``."""
    topic_end = topic_at + topic_size
    if topic_size > 0 and view.load_u8(data, topic_end - 1) == 0:
        return False
    if not are_properties(data, topic_end + 2, end):
        return False
    edge = topic_at + (-(base + topic_at) & 511)
    while edge + 512 <= end:
        if is_zeros(data, edge, edge + 512):
            return False
        edge += 512
    return True


def topic_position(data: Bytes, length_at: int, magic: int) -> tuple[int, int]:
    """Return the topic's length, negative when it is impossible, and where the topic starts."""
    if magic == MAGIC_V1:
        size = view.load_u8(data, length_at)
        # Compatible: 4.9 reads the byte as signed, so a topic has at most 127 bytes.
        return size if size < 128 else size - 256, length_at + 1
    return view.load_i16(data, length_at), length_at + 2


def topic_of(data: Bytes, at: int) -> tuple[int, int]:
    """Return position and size of the topic of a record that `check_record` found intact."""
    body_at = body_position(data, at)
    length_at = body_at + view.load_i32(data, body_at - 4)
    size, topic_at = topic_position(data, length_at, view.load_u32(data, at + 4))
    return topic_at, size


def hash_other(data: Bytes, at: int, end: int, value: int) -> tuple[int, int]:
    """Add the character at `at`, which is not ASCII; return the hash and the next position."""
    lead = view.load_u8(data, at)
    following, low, high = continuation_bounds(lead)
    at += 1
    if following < 0:
        return value * 31 + 0xFFFD, at
    point = lead & (0x3F >> following)
    for _ in range(following):
        byte = view.load_u8(data, at) if at < end else 0  # which continues nothing
        if byte < low or byte > high:
            return value * 31 + 0xFFFD, at
        point = point << 6 | (byte & 0x3F)
        at += 1
        low, high = 0x80, 0xBF
    if point < 0x10000:
        return value * 31 + point, at
    point -= 0x10000
    value = value * 31 + (0xD800 + (point >> 10))
    return value * 31 + (0xDC00 + (point & 0x3FF)), at


def hash_of(data: Bytes, at: int, size: int, seed: int) -> int:
    """Return Java's ``String.hashCode`` of UTF-8, a signed 32-bit number.

    It runs over UTF-16 units: ``h = 31 * h + unit``, wrapping at 32 bits. Malformed UTF-8 counts as
    U+FFFD per maximal ill-formed part, what Java's decoder puts there and ``bytes.decode("utf-8",
    "replace")`` too. `seed` is the hash of what stands before, 0 for nothing: the hash of
    "topic#key" continues that of "topic".
    """
    # C wraps at 64 bits, of which the lower half counts; interpreted, a number of numpy would not.
    value = int(seed)
    end = at + size
    while at < end:
        if end - at >= 8:
            word = view.load_word(data, at)
            if word & _TOP_BITS == 0:
                pairs = (word & _EVERY_2ND_BYTE) * 31 + (word >> 8 & _EVERY_2ND_BYTE)
                fours = (pairs & _EVERY_2ND_PAIR) * 961 + (pairs >> 16 & _EVERY_2ND_PAIR)
                value = value * _POWER_OF_8 + (fours & _LOW_32) * 923521 + (fours >> 32)
                at += 8
                continue
        byte = view.load_u8(data, at)
        if byte < 0x80:
            value = value * 31 + byte
            at += 1
        else:
            value, at = hash_other(data, at, end, value & _LOW_32)
    value &= _LOW_32
    return value - ((value >> 31) << 32)


def crc_agrees(data: Bytes, at: int, body_size: int, crc: int) -> bool:
    """Return whether the record at `at` has a body of that size with that checksum."""
    # Compatible: an empty body has no checksum, whatever the field says.
    return body_size == 0 or view.load_i32(data, at + 8) == crc


def decimal(data: Bytes, at: int, end: int) -> int:
    """Return the number above 0 that Java's parseInt reads in a text of ASCII, else 0."""
    value = 0
    if end - at > 1 and view.load_u8(data, at) == 43:  # a plus
        at += 1
    for digit_at in range(at, end):
        digit = view.load_u8(data, digit_at) - 48
        if digit < 0 or digit > 9:
            return 0
        value = value * 10 + digit
        if value > 0x7FFFFFFF:
            return 0
    return value


def note_property(data: Bytes, name_at: int, name_end: int, end: int, row: Numbers) -> None:
    """Note where the properties stand that dispatch needs; a later duplicate wins."""
    size = name_end - name_at
    value_at = name_end + 1
    if size == 4:
        name = view.load_u32(data, name_at)
        if name == _NAME_TAGS:
            row[Column.TAGS_AT] = value_at
            row[Column.TAGS_SIZE] = end - value_at
        elif name == _NAME_KEYS:
            row[Column.KEYS_AT] = value_at
            row[Column.KEYS_SIZE] = end - value_at
    elif size == 8:
        if view.load_i64(data, name_at) == _NAME_UNIQUE_KEY:
            row[Column.UNIQUE_KEY_AT] = value_at
            row[Column.UNIQUE_KEY_SIZE] = end - value_at
    elif is_delay(data, name_at, size):
        row[Column.DELAY_LEVEL] = decimal(data, value_at, end)
    elif names_extra_queues(data, name_at, size):
        row[Column.CALLS_FOR] = CallsFor.EXTRA_ENTRIES


def is_delay(data: Bytes, at: int, size: int) -> bool:
    """Return whether a name is DELAY."""
    return size == 5 and view.equal_bytes(data, at, _NAME_DELAY, 0, 5)


def names_extra_queues(data: Bytes, at: int, size: int) -> bool:
    """Return whether a name is INNER_MULTI_DISPATCH."""
    return size == 20 and view.equal_bytes(data, at, _NAME_EXTRA_QUEUES, 0, 20)


def is_plain_block(data: Bytes, at: int, size: int) -> bool:
    """Return whether encoded properties may be stored as they are, without special handling."""
    stop = at + size
    if not are_properties(data, at, stop):
        return False
    while at < stop:
        name_end, value_end = property_at(data, at, stop)
        size = name_end - at
        if is_delay(data, at, size) or names_extra_queues(data, at, size):
            return False
        at = value_end + 1
    return True


def property_at(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return where the name that begins at `at` ends, and its value.

    The property counts when the name ends after `at`: when something stands before its first name
    separator and after it (4.9.3, MessageDecoder.string2messageProperties; spec F3.3). Else what
    ends there is passed over. The next one begins after the separator of values.
    """
    value_end = view.find_byte(data, at, end, 2)
    name_end = view.find_byte(data, at, value_end, 1)
    return name_end if name_end + 1 < value_end else at, value_end


def read_properties(data: Bytes, at: int, end: int, row: Numbers) -> None:
    """Note where the properties of a block stand that dispatch needs."""
    for column in range(Column.TAGS_AT, Column.TOPIC_HASH):
        row[column] = 0
    row[Column.DELAY_LEVEL] = 0
    row[Column.CALLS_FOR] = 0
    while at < end:
        name_end, value_end = property_at(data, at, end)
        if name_end > at:
            note_property(data, at, name_end, value_end, row)
        at = value_end + 1


def has_offset(sys_flag: int) -> bool:
    """Return whether a record has a queue offset: prepared and rolled-back ones have none."""
    return sys_flag & 0x4 == 0


def calls_for(data: Bytes, row: Numbers) -> int:
    """Return what dispatch makes of a record (``CallsFor``) whose other columns are filled."""
    if not has_offset(row[Column.SYS_FLAG]):
        return 0 if row[Column.SYS_FLAG] & 0x8 else CallsFor.ITEMS
    found = row[Column.CALLS_FOR] | CallsFor.ENTRY | CallsFor.ITEMS
    is_late = row[Column.DELAY_LEVEL] > 0 and row[Column.TOPIC_SIZE] == 19
    if is_late and view.equal_bytes(data, row[Column.TOPIC_AT], _DELAY_TOPIC, 0, 19):
        found |= CallsFor.DUE_TIME
    return found


def read_record(data: Bytes, at: int, base: int, row: Numbers) -> int:
    """Fill a row from the intact record at `at` (``check_record`` said END); return its size.

    Nothing is checked again here.
    """
    total = view.load_i32(data, at)
    magic = view.load_u32(data, at + 4)
    store_time_at = store_time_position(data, at)
    body_at = body_position(data, at)
    body_size = view.load_i32(data, body_at - 4)
    topic_size, topic_at = topic_position(data, body_at + body_size, magic)
    properties_at = topic_at + topic_size + 2
    row[Column.PHYSICAL_OFFSET] = base + at
    row[Column.SIZE] = total
    row[Column.BODY_CRC] = view.load_i32(data, at + 8)
    row[Column.QUEUE_ID] = view.load_i32(data, at + 12)
    row[Column.FLAG] = view.load_i32(data, at + 16)
    row[Column.QUEUE_OFFSET] = view.load_i64(data, at + 20)
    row[Column.SYS_FLAG] = view.load_i32(data, at + 36)
    row[Column.BORN_TIMESTAMP] = view.load_i64(data, at + 40)
    row[Column.STORE_TIMESTAMP] = view.load_i64(data, store_time_at)
    row[Column.STORE_HOST_AT] = store_time_at + 8
    row[Column.RECONSUME_TIMES] = view.load_i32(data, body_at - 16)
    row[Column.PREPARED_OFFSET] = view.load_i64(data, body_at - 12)
    row[Column.BODY_AT] = body_at
    row[Column.BODY_SIZE] = body_size
    row[Column.TOPIC_AT] = topic_at
    row[Column.TOPIC_SIZE] = topic_size
    row[Column.TOPIC_HASH] = hash_of(data, topic_at, topic_size, 0)
    row[Column.PROPERTIES_AT] = properties_at
    row[Column.PROPERTIES_SIZE] = at + total - properties_at
    read_properties(data, properties_at, at + total, row)
    row[Column.TAGS_CODE] = hash_of(data, row[Column.TAGS_AT], row[Column.TAGS_SIZE], 0)
    row[Column.CALLS_FOR] = calls_for(data, row)
    return total


def prefetch_following(data: Bytes, at: int, size: int) -> None:
    """Ask for head and text of a later record, guessing that it is as long as this one.

    The processor cannot foresee the steps from a record's head to its text and to the next head:
    without this the walk of 1 KiB records spends two thirds of its time waiting for memory. It
    fetches shorter records ahead by itself.
    """
    if size < 512:
        return
    ahead = at + 4 * size
    view.prefetch(data, ahead)
    view.prefetch(data, ahead + 64)
    view.prefetch(data, ahead + size - 128)
    view.prefetch(data, ahead + size - 64)


def walk_rows(
    data: Bytes,
    at: int,
    end: int,
    base: int,
    file_size: int,
    check_crc: bool,
    rows: Numbers,
    limit: int,
) -> tuple[int, int, int]:
    """Walk as `walk` does, into at most `limit` rows; `end` is inside the buffer."""
    count = 0
    verdict: int = StopReason.END
    while at < end and count < limit:
        verdict = check_record(data, at, base, file_size, check_crc)
        if verdict != StopReason.END:
            break
        size = read_record(data, at, base, view.row_at(rows, count))
        prefetch_following(data, at, size)
        at += size
        count += 1
    return count, at, verdict


def walk(
    buffer: Bytes, position: int, stop: int, base: int, file_size: int, check_crc: bool,
    cols: Numbers,
) -> tuple[int, int, int]:  # fmt: skip
    """Fill `cols` with the records that start in ``[position, stop)``, each where the last ended.

    `buffer` has the bytes of a CommitLog file from physical offset `base` on. `file_size` is where
    the file ends, as a position in the buffer: a record ends there at the latest, and a BLANK must
    say exactly what remains up to there. Without `check_crc` bodies are not compared with their
    CRC. Returns the rows filled, the first byte that no row accounts for, and what stands there.
    """
    if cols.shape[1] != COLUMN_COUNT:
        raise ValueError("cols needs COLUMN_COUNT columns")
    data, rows = view.bytes_of(buffer), view.rows_of(cols)
    at, end = max(position, 0), min(stop, file_size, data.size)
    limit = cols.shape[0]
    with cython.nogil:
        count, at, verdict = walk_rows(data, at, end, base, file_size, check_crc, rows, limit)
    return int(count), int(at), int(verdict)
