"""Where Apache RocketMQ 4.9.3 would end a log: its start file, its record check, its queue ends.

4.9.3 checks less than our scan (neither a record's own address nor a BLANK's size) and stops for
good at the first record it does not accept.

Law: nothing is written. Where 4.9.3 would end its process (a length that it cannot allocate) or
wait for ever (a missing file), the log ends there too.

How derived: CommitLog.recoverNormally, recoverAbnormally, isMappedFileMatchedRecover and
checkMessageAndReturnSize, ConsumeQueue.recover (rocketmq-all-4.9.3; spec B16, F3.4).
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocketstore.format.properties import decode_properties
from rocketstore.format.queue_entry import DELAY_TOPIC, ENTRY_SIZE_BYTES, entry_array, written_mask
from rocketstore.format.record import BLANK_MAGIC, FIXED_SIZE, MESSAGE_MAGIC_V1, body_crc
from rocketstore.message import BORN_HOST_V6_FLAG, STORE_HOST_V6_FLAG
from rocketstore.scan import kernels
from rocketstore.scan.columns import Column, StopReason, new_columns
from rocketstore.storage.recovery.log_survey import LogBytes, read_bytes

if TYPE_CHECKING:
    from rocketstore.config import StoreConfig
    from rocketstore.format.checkpoint import Checkpoint
    from rocketstore.native.row import ByteArray, Int64Array

RECOVERED_FILE_COUNT: Final = 3
"""A clean start looks at the last three files of the log, and of each queue."""

SCHEDULE_TOPIC: Final = DELAY_TOPIC.encode()
_BATCH_RECORDS: Final = 8192
_HEAD_BYTES: Final = 80
"""Up to and including the store time, with an IPv6 born host."""
_START: Final = struct.Struct(">iI")
"""Total size and magic, of which 4.9 does not know V2 of 5.x."""


class CompatibleEnd(NamedTuple):
    """Where 4.9.3 begins to read a log, where it ends it, and why it stops there."""

    start: int
    end: int
    reason: str


def compatible_end(
    files: Sequence[LogBytes], config: StoreConfig, checkpoint: Checkpoint | None = None
) -> CompatibleEnd:
    """Follow a log as 4.9.3 does; `checkpoint` is that of a crash, None after a clean stop."""
    if not files:
        return CompatibleEnd(0, 0, "there is no file")
    first = max(0, len(files) - RECOVERED_FILE_COUNT)
    if checkpoint is not None:
        counts = config.message_index_enable and config.message_index_safe
        first = start_after_crash(files, checkpoint, index_counts=counts)
    cols = new_columns(_BATCH_RECORDS)
    for file, following in itertools.zip_longest(files[first:], files[first + 1 :]):
        stop, reason = _follow_file(file, cols, check_crc=config.check_crc_on_recover)
        if reason is None and following is None:
            # 4.9.3 leaves the BLANK out when no file follows.
            reason = "the last file is full"
        elif reason is None and following.base != file.base + file.size:
            # 4.9.3 goes on in the next file, and its dispatch then waits for ever for this one.
            reason = "the next file is missing"
        if reason is not None:
            return CompatibleEnd(files[first].base, file.base + stop, reason)
    raise AssertionError("a file always ends the loop")


def start_after_crash(
    files: Sequence[LogBytes], checkpoint: Checkpoint, *, index_counts: bool
) -> int:
    """Return the number of the newest file whose first record is older than the checkpoint.

    `index_counts`: its index time counts too (messageIndexEnable and messageIndexSafe).
    """
    limit = checkpoint.min_timestamp_index if index_counts else checkpoint.min_timestamp
    for number in range(len(files) - 1, -1, -1):
        # Java believes the head of the record, whatever follows it.
        head = read_bytes(files[number], 0, _HEAD_BYTES)
        if len(head) < _HEAD_BYTES or _START.unpack_from(head)[1] != MESSAGE_MAGIC_V1:
            continue
        at = 68 if _number(head, 36, 4) & BORN_HOST_V6_FLAG else 56
        timestamp = _number(head, at, 8)
        if timestamp != 0 and timestamp <= limit:
            return number
    return 0


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
            return refused, "4.9 does not read this record"
        if stop == StopReason.END and position < file.size:
            continue
        if stop == StopReason.BLANK:
            return position, None
        # Our check is stricter in some points: ask again by 4.9.3's rules.
        size = check_as_java(array.data, position, check_crc=check_crc)
        if size is None:
            return position, StopReason(stop).name.replace("_", " ").lower()
        if size == 0:
            return position, None
        position += size


def _first_refused(array: ByteArray, base: int, rows: Int64Array) -> int | None:
    """Return the position of the first record that our walk takes and 4.9.3 does not."""
    at = rows[:, Column.PHYSICAL_OFFSET] - base
    is_special = array[at + 7] != MESSAGE_MAGIC_V1 & 0xFF
    may_wait = rows[:, Column.TOPIC_SIZE] == len(SCHEDULE_TOPIC)
    is_special |= may_wait & (rows[:, Column.DELAY_LEVEL] == 0)
    to_check = at[is_special].tolist()
    return next(
        (one for one in to_check if check_as_java(array.data, one, check_crc=False) is None), None
    )


def check_as_java(view: memoryview, position: int, *, check_crc: bool) -> int | None:
    """Return the size of the record at `position` if 4.9.3 accepts it, 0 for a BLANK, else None.

    Any exception in checkMessageAndReturnSize is a refusal; negative lengths of body and properties
    are passed over and count as 0.
    """
    if position + _START.size > len(view):
        return None
    total, magic = _START.unpack_from(view, position)
    if magic == BLANK_MAGIC:
        return 0
    if magic != MESSAGE_MAGIC_V1 or total < FIXED_SIZE or position + total > len(view):
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
    is_delayed = bytes(record[topic_at + 1 : rest_at]) == SCHEDULE_TOPIC
    properties = decode_properties(bytes(record[rest_at + 2 :])) if is_delayed else {}
    return total if _is_java_int(properties.get("DELAY", "0")) else None


def _is_java_int(text: str) -> bool:
    sign, digits = (text[0], text[1:]) if text[:1] in {"+", "-"} else ("+", text)
    # int() refuses thousands of digits, even if they are zeros.
    value = digits.lstrip("0") or "0"
    is_short = digits.isdecimal() and len(value) <= len(str(2**31))
    return is_short and -(2**31) <= int(sign + value) < 2**31


def _number(record: bytes | memoryview, at: int, size: int) -> int:
    """Return a number of a record; outside of the bytes a value that is never valid."""
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
