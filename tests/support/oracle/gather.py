"""Plain Python: copy the records of queue entries into one buffer.

The twin of ``rocketstore.native.gather``, which explains the rules.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import TYPE_CHECKING, Final

from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, ENTRY_STRUCT, FILLER_SIZE
from rocketstore.format.queue_entry import MAX_EXT_ADDRESS as _MAX_EXT_ADDRESS
from rocketstore.format.record import FIXED_SIZE
from rocketstore.native.gather_plan import NUMBERS_PER_TAG, GatherStop, GatherView, PlanColumn
from rocketstore.scan.columns import StopReason
from support.oracle.walk import check_record

if TYPE_CHECKING:
    from rocketstore.native.dispatch_state import ByteArray, Int64Array

_INT32: Final = struct.Struct(">i")
_QUEUE_ID_AT: Final = 12
_LOW_32_BITS: Final = 0xFFFFFFFF


class _Verdict(Enum):
    """What a record is to a page."""

    TAKE = 0
    LOST = 1
    UNWANTED = 2
    OTHERS = 3


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

    def judge(self, log: memoryview, place: tuple[int, int], base: int, readable: int) -> _Verdict:
        """Judge the record that an entry says stands at a place with a size."""
        at, size = place
        if not FIXED_SIZE <= size <= readable - at or _INT32.unpack_from(log, at)[0] != size:
            return _Verdict.LOST
        places = check_record(log, at, base, readable, check_crc=False)
        if isinstance(places, StopReason):
            return _Verdict.LOST
        topic_end = places.topic_at + places.topic_size
        (queue_id,) = _INT32.unpack_from(log, at + _QUEUE_ID_AT)
        if (bytes(log[places.topic_at : topic_end]), queue_id) != (self.topic, self.queue_id):
            return _Verdict.OTHERS
        properties = log[topic_end + 2 : at + size]
        return _Verdict.TAKE if self._has_wanted_tag(properties) else _Verdict.UNWANTED

    def _has_wanted_tag(self, properties: memoryview) -> bool:
        if not self.tags:
            return True
        value = None
        for part in bytes(properties).split(b"\x02"):
            name, _, text = part.partition(b"\x01")
            if name == b"TAGS" and text:
                value = text  # a later one wins
        return value in self.tags


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
        if offset < log_min:
            skipped, view, entry = skipped + 1, GatherView.LOST, entry + 1
            continue
        at = offset - base
        if not 0 <= at < log.shape[0]:
            why = GatherStop.ELSEWHERE
            break
        verdict = wanted.judge(bytes_of_log, (at, size), base, readable)
        if verdict is _Verdict.OTHERS:
            why = GatherStop.DOUBTFUL
            break
        if verdict is not _Verdict.TAKE:
            is_lost = verdict is _Verdict.LOST
            skipped, entry = skipped + is_lost, entry + 1
            view = GatherView.LOST if is_lost else GatherView.UNWANTED
            continue
        if size > out.shape[0] - written:
            why = GatherStop.NO_ROOM
            break
        target[written : written + size] = bytes_of_log[at : at + size]
        count, written, entry = count + 1, written + size, entry + 1
    return int(why), entry, count, written, skipped, int(view)
