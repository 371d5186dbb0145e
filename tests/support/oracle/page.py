"""A page as the rules say it, entry by entry, over the plain codecs."""

from rocketstore.errors import FormatError
from rocketstore.format.java_hash import tags_code
from rocketstore.format.queue_entry import FILLER_SIZE, MAX_EXT_ADDRESS
from rocketstore.format.stored_message import StoredMessage
from rocketstore.rules.extra_queues import may_stand_in
from support.oracle.codecs import iterate_entries
from support.oracle.record import decode_record

LOST, UNWANTED = "lost", "unwanted"


def message_or_none(data: bytes, base: int, offset: int, size: int, *, crc: bool):
    """Return the message of a size at an offset."""
    at = offset - base
    if not 0 <= at < len(data):
        return None
    try:
        message = decode_record(data, at, base=base, check_crc=crc)
    except FormatError:
        return None
    return message if message.size == size else None


def page(
    data: bytes,
    base: int,
    entries: bytes,
    queue: tuple[str, int],
    limits: tuple[int, int, int, int],
    tags: tuple[str, ...],
    most: int,
    in_disk_below: int,
    *,
    crc: bool,
) -> tuple[str, list[StoredMessage], int, int]:
    """Return what the page says, its messages, entries looked at, and entries that were lost."""
    status, items, size, scanned, skipped = UNWANTED, [], 0, 0, 0
    codes = {tags_code(tag) & 0xFFFFFFFF for tag in tags}
    for offset, record_size, code in iterate_entries(entries):
        if items and len(items) >= most:
            break
        taken: StoredMessage | str | None = LOST
        if record_size > 0 and not (record_size == FILLER_SIZE and offset == 0):
            most_bytes, most_count = limits[2:] if offset < in_disk_below else limits[:2]
            if items and (size + record_size > most_bytes or len(items) >= most_count):
                break
            if tags and not (code & 0xFFFFFFFF in codes or code <= MAX_EXT_ADDRESS):
                taken = UNWANTED
            else:
                taken = message_or_none(data, base, offset, record_size, crc=crc) or LOST
                if taken is not LOST and not may_stand_in(
                    taken.topic, taken.queue_id, taken.properties, queue
                ):
                    taken = LOST
                if taken is not LOST and tags and taken.properties.get("TAGS") not in tags:
                    taken = UNWANTED
        scanned += 1
        skipped += taken is LOST
        if taken is LOST or taken is UNWANTED:
            status = status if items else taken
        else:
            items.append(taken)
            size += record_size
    return "found" if items else status, items, scanned, skipped
