"""Plain Python: copy the records of queue entries into one buffer.

The twin of ``rocketstore.scan.compiled.gather``, which explains the rules.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, ENTRY_STRUCT, FILLER_SIZE
from rocketstore.format.queue_entry import MAX_EXT_ADDRESS as _MAX_EXT_ADDRESS
from rocketstore.format.record import (
    FIXED_SIZE,
    HOST_V6_EXTRA_SIZE,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
)
from rocketstore.message import BORN_HOST_V6_FLAG, STORE_HOST_V6_FLAG
from rocketstore.scan.gather_plan import NUMBERS_PER_TAG, GatherStop, GatherView, PlanColumn

if TYPE_CHECKING:
    from rocketstore.scan.dispatch_state import ByteArray, Int64Array

_HEAD: Final = struct.Struct(">iIiiiqqi")
_INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")
_BODY_SIZE_AT: Final = 84
_LOW_32_BITS: Final = 0xFFFFFFFF

_Place = tuple[int, int, int]
"""Where topic starts and ends, and the queue id."""


def _place(record: memoryview, offset: int, size: int) -> _Place | None:
    """Return where the topic of a record is, None where no message of this size stands."""
    stated, magic, _, queue_id, _, _, address, sys_flag = _HEAD.unpack_from(record)
    if magic not in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2) or (stated, address) != (size, offset):
        return None
    body_size_at = _BODY_SIZE_AT
    body_size_at += HOST_V6_EXTRA_SIZE if sys_flag & BORN_HOST_V6_FLAG else 0
    body_size_at += HOST_V6_EXTRA_SIZE if sys_flag & STORE_HOST_V6_FLAG else 0
    length_size = 2 if magic == MESSAGE_MAGIC_V2 else 1
    body_at = body_size_at + 4
    if body_at + length_size + 2 > size:
        return None
    (body_size,) = _INT32.unpack_from(record, body_size_at)
    topic_at = body_at + body_size + length_size
    if body_size < 0 or topic_at + 2 > size:
        return None
    topic_size = int.from_bytes(record[topic_at - length_size : topic_at], "big", signed=True)
    topic_end = topic_at + topic_size
    if topic_size < 0 or topic_end + 2 > size:
        return None
    (properties_size,) = _INT16.unpack_from(record, topic_end)
    if properties_size < 0 or topic_end + 2 + properties_size != size:
        return None
    return topic_at, topic_end, queue_id


class _Wanted:
    """A plan, unpacked."""

    def __init__(self, plan: Int64Array, names: ByteArray) -> None:
        numbers, text = plan.tolist(), names.tobytes()
        self.queue_id = numbers[PlanColumn.QUEUE_ID]
        self.topic = text[: numbers[PlanColumn.TOPIC_SIZE]]
        self.memory = numbers[PlanColumn.MEMORY_BYTES], numbers[PlanColumn.MEMORY_COUNT]
        self.disk = numbers[PlanColumn.DISK_BYTES], numbers[PlanColumn.DISK_COUNT]
        stop = PlanColumn.TAGS + NUMBERS_PER_TAG * numbers[PlanColumn.TAG_COUNT]
        rows = [
            numbers[n : n + NUMBERS_PER_TAG] for n in range(PlanColumn.TAGS, stop, NUMBERS_PER_TAG)
        ]
        self.codes = {code for code, _, _ in rows}
        self.tags = {text[at : at + size] for _, at, size in rows}

    def is_full(self, count: int, written: int, size: int, *, is_in_disk: bool) -> bool:
        bytes_limit, count_limit = self.disk if is_in_disk else self.memory
        return bool(written + size > bytes_limit or count >= count_limit)

    def is_unwanted_code(self, code: int) -> bool:
        return bool(self.tags) and code & _LOW_32_BITS not in self.codes and code > _MAX_EXT_ADDRESS

    def is_unwanted(self, properties: memoryview) -> bool:
        if not self.tags:
            return False
        value = None
        for part in bytes(properties).split(b"\x02"):
            name, _, text = part.partition(b"\x01")
            if name == b"TAGS" and text:
                value = text  # a later one wins
        return value not in self.tags


def gather(
    log: ByteArray,
    base: int,
    readable: int,
    log_min: int,
    entries: ByteArray,
    first: int,
    stop: int,
    plan: Int64Array,
    names: ByteArray,
    max_messages: int,
    in_disk_below: int,
    out: ByteArray,
    count: int,
    written: int,
) -> tuple[int, int, int, int, int, int]:
    """Copy the wanted records of the entries ``first`` to ``stop`` to ``out[written:]``."""
    wanted = _Wanted(plan, names)
    readable = min(readable, log.shape[0])
    stop = min(stop, entries.shape[0] // ENTRY_SIZE_BYTES)
    bytes_of_log, bytes_of_entries, target = log.data, entries.data, out.data
    skipped, view, why, entry = 0, GatherView.NONE, GatherStop.END, first
    while 0 <= entry < stop:
        if 0 < count >= max_messages:
            why = GatherStop.FULL
            break
        offset, size, code = ENTRY_STRUCT.unpack_from(bytes_of_entries, entry * ENTRY_SIZE_BYTES)
        if size <= 0 or (size == FILLER_SIZE and offset == 0):
            skipped, view, entry = skipped + 1, GatherView.LOST, entry + 1
            continue
        if count and wanted.is_full(count, written, size, is_in_disk=offset < in_disk_below):
            why = GatherStop.FULL
            break
        if wanted.is_unwanted_code(code):
            view, entry = GatherView.UNWANTED, entry + 1
            continue
        at = offset - base
        if offset >= log_min and not 0 <= at < log.shape[0]:
            why = GatherStop.ELSEWHERE
            break
        place = None
        if offset >= log_min and FIXED_SIZE <= size <= readable - at:
            place = _place(bytes_of_log[at : at + size], offset, size)
        if place is None:
            skipped, view, entry = skipped + 1, GatherView.LOST, entry + 1
            continue
        topic_at, topic_end, queue_id = place
        topic = bytes(bytes_of_log[at + topic_at : at + topic_end])
        if (topic, queue_id) != (wanted.topic, wanted.queue_id):
            why = GatherStop.DOUBTFUL
            break
        if wanted.is_unwanted(bytes_of_log[at + topic_end + 2 : at + size]):
            view, entry = GatherView.UNWANTED, entry + 1
            continue
        if size > out.shape[0] - written:
            why = GatherStop.NO_ROOM
            break
        target[written : written + size] = bytes_of_log[at : at + size]
        count, written, entry = count + 1, written + size, entry + 1
    return int(why), entry, count, written, skipped, int(view)
