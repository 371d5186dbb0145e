"""Where Apache RocketMQ 4.9.3 would end a log: its start file, its record check, its queue ends.

The policy ``compatible`` recovers as 4.9.3 does, and repair tells with the same functions what a
4.9 broker would drop. 4.9.3 checks less than our scan (neither a record's own address nor a BLANK's
size) and stops for good at the first record it does not accept, so both differences matter here.

Law: nothing is written. Where 4.9.3 would end its process (a length that it cannot allocate) or
wait for ever (a missing file), the log ends there too.

How derived: CommitLog.recoverNormally, recoverAbnormally, isMappedFileMatchedRecover and
checkMessageAndReturnSize, ConsumeQueue.recover (rocketmq-all-4.9.3; spec B16, F3.4).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from rocketstore.format.properties import decode_properties
from rocketstore.format.queue_entry import DELAY_TOPIC, ENTRY_SIZE_BYTES, entry_array, written_mask
from rocketstore.format.record import FIXED_SIZE, body_crc
from rocketstore.message import BORN_HOST_V6_FLAG, STORE_HOST_V6_FLAG
from rocketstore.scan import kernels
from rocketstore.scan.columns import Column, StopReason, new_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from rocketstore.format.checkpoint import Checkpoint
    from rocketstore.storage.recovery.log_survey import LogBytes

    ByteArray: TypeAlias = npt.NDArray[np.uint8]
    Int64Array: TypeAlias = npt.NDArray[np.int64]

RECOVERED_FILE_COUNT: Final = 3
"""A clean start looks at the last three files of the log, and of each queue."""

MESSAGE_MAGIC: Final = -626843481
BLANK_MAGIC: Final = -875286124
"""As Java reads them (signed). The magic V2 of 5.x is unknown to 4.9."""

SCHEDULE_TOPIC: Final = DELAY_TOPIC.encode()
_BATCH_RECORDS: Final = 8192
_HEAD_BYTES: Final = 80
"""Up to and including the store time, with an IPv6 born host."""
_START: Final = struct.Struct(">ii")
"""Total size and magic."""


class CompatibleEnd(NamedTuple):
    """Where 4.9.3 ends a log, and why it stops there."""

    end: int
    reason: str


def start_after_clean_stop(file_count: int) -> int:
    """Return the number of the file at which 4.9.3 begins to look after a clean stop."""
    return max(0, file_count - RECOVERED_FILE_COUNT)


def start_after_crash(
    files: Sequence[LogBytes], checkpoint: Checkpoint, *, index_counts: bool
) -> int:
    """Return the number of the newest file whose first record is older than the checkpoint.

    `index_counts`: its index time counts too (messageIndexEnable and messageIndexSafe).
    """
    limit = checkpoint.min_timestamp_index if index_counts else checkpoint.min_timestamp
    for number in range(len(files) - 1, -1, -1):
        timestamp = first_store_timestamp(files[number])
        if timestamp is not None and timestamp != 0 and timestamp <= limit:
            return number
    return 0


def first_store_timestamp(file: LogBytes) -> int | None:
    """Return the store time that a file's first record states; None when none begins there."""
    head = _head(file)
    if len(head) < _HEAD_BYTES or int.from_bytes(head[4:8], "big", signed=True) != MESSAGE_MAGIC:
        return None
    flags = int.from_bytes(head[36:40], "big")
    at = 68 if flags & 0x10 else 56
    return int.from_bytes(head[at : at + 8], "big", signed=True)


def _head(file: LogBytes) -> bytes:
    read_into = getattr(file, "read_into", None)
    if read_into is None:
        return file.array[:_HEAD_BYTES].tobytes()
    head = bytearray(min(_HEAD_BYTES, file.size))
    read_into(0, memoryview(head))  # such a file is read piece by piece, never as a whole
    return bytes(head)


def find_compatible_end(
    files: Sequence[LogBytes], start_index: int, *, check_crc: bool = True
) -> CompatibleEnd:
    """Follow the log as 4.9.3 does, from a file on, and return where it ends."""
    if not files:
        return CompatibleEnd(0, "there is no file")
    cols = new_columns(_BATCH_RECORDS)
    for number in range(start_index, len(files)):
        file = files[number]
        stop, reason = _follow_file(file, cols, check_crc=check_crc)
        if reason is None and number + 1 == len(files):
            # 4.9.3 leaves the BLANK out when no file follows.
            reason = "the last file is full"
        elif reason is None and files[number + 1].base != file.base + file.size:
            # 4.9.3 goes on in the next file, and its dispatch then waits for ever for this one.
            reason = "the next file is missing"
        if reason is not None:
            return CompatibleEnd(file.base + stop, reason)
    raise AssertionError("a file always ends the loop")


def _follow_file(file: LogBytes, cols: Int64Array, *, check_crc: bool) -> tuple[int, str | None]:
    """Return the position after the last accepted record, and why it stopped.

    The reason is None at a BLANK, after which the next file goes on.
    """
    array = file.array
    position = 0
    while True:
        count, position, stop = kernels.walk(
            array, position, file.size, file.base, file.size, check_crc, cols
        )
        refused = _first_refused(array, file.base, cols[:count])
        if refused is not None:
            at = int(cols[refused, Column.PHYSICAL_OFFSET]) - file.base
            return at, "4.9 does not read this record"
        if stop == StopReason.END and position < file.size:
            continue
        if stop == StopReason.BLANK:
            return position, None
        # Our check is stricter in places: ask again by 4.9.3's rules.
        size = check_as_java(array.data, position, check_crc=check_crc)
        if size is None:
            return position, StopReason(stop).name.replace("_", " ").lower()
        if size == 0:
            return position, None
        position += size


def _first_refused(array: ByteArray, base: int, rows: Int64Array) -> int | None:
    """Return the first row that our walk takes and 4.9.3 does not."""
    if not len(rows):
        return None
    at = rows[:, Column.PHYSICAL_OFFSET] - base
    bad = array[at + 7] != MESSAGE_MAGIC & 0xFF
    delayed = np.flatnonzero(
        (rows[:, Column.TOPIC_SIZE] == len(SCHEDULE_TOPIC)) & (rows[:, Column.DELAY_LEVEL] == 0)
    )
    for row in delayed.tolist():
        bad[row] |= _has_bad_delay(array, rows[row])
    found = np.flatnonzero(bad)
    return int(found[0]) if found.size else None


def _has_bad_delay(array: ByteArray, row: Int64Array) -> bool:
    topic_at = int(row[Column.TOPIC_AT])
    if array[topic_at : topic_at + len(SCHEDULE_TOPIC)].tobytes() != SCHEDULE_TOPIC:
        return False
    at = int(row[Column.PROPERTIES_AT])
    properties = array[at : at + int(row[Column.PROPERTIES_SIZE])].tobytes()
    return not _is_java_delay(properties)


def _is_java_delay(properties: bytes) -> bool:
    """Whether Integer.parseInt takes the property DELAY, or the record has no such property."""
    level = decode_properties(properties).get("DELAY")
    if level is None:
        return True
    digits = level[1:] if level[:1] in {"+", "-"} else level
    return digits.isdecimal() and -(2**31) <= int(level) < 2**31


def check_as_java(view: memoryview, position: int, *, check_crc: bool) -> int | None:
    """Return the size of the record at `position` if 4.9.3 accepts it, 0 for a BLANK, else None.

    Notes
    -----
    Source: CommitLog.checkMessageAndReturnSize of 4.9.3. Any exception there is a refusal; negative
    lengths of body and properties are passed over and count as 0.
    """
    if position + _START.size > len(view):
        return None
    total, magic = _START.unpack_from(view, position)
    if magic == BLANK_MAGIC:
        return 0
    if magic != MESSAGE_MAGIC or total < FIXED_SIZE or position + total > len(view):
        return None
    record = view[position : position + total]
    flags = _number(record, 36, 4)
    body_at = 88 + 12 * bool(flags & BORN_HOST_V6_FLAG) + 12 * bool(flags & STORE_HOST_V6_FLAG)
    topic_at = body_at + max(_number(record, body_at - 4, 4), 0)
    topic_size = _number(record, topic_at, 1)
    rest_at = topic_at + 1 + topic_size
    rest_size = max(_number(record, rest_at, 2), 0)
    if topic_size < 0 or rest_at + 2 + rest_size != total:
        return None
    body = record[body_at:topic_at]
    if check_crc and len(body) and body_crc(body) != _number(record, 8, 4):
        return None
    is_delay = bytes(record[topic_at + 1 : rest_at]) == SCHEDULE_TOPIC
    return None if is_delay and not _is_java_delay(bytes(record[rest_at + 2 :])) else total


def _number(record: memoryview, at: int, size: int) -> int:
    """Return a number of a record; what stands outside fits nowhere."""
    if not 0 <= at <= len(record) - size:
        return -1
    return int.from_bytes(record[at : at + size], "big", signed=True)


# --- queues -------------------------------------------------------------------------------------


def compatible_queue_end(files: Sequence[tuple[int, ByteArray]]) -> int:
    """Return the byte position at which 4.9.3 ends a queue that it loads.

    `files` are first byte position and bytes of each. Source: ConsumeQueue.recover: from the
    third-last file on, up to the first invalid entry.
    """
    end = 0
    for base, array in files[max(0, len(files) - RECOVERED_FILE_COUNT) :]:
        written = written_mask(entry_array(array))
        count = int(written.size if written.all() else np.argmin(written))
        end = base + count * ENTRY_SIZE_BYTES
        if count < written.size:
            break
    return end
