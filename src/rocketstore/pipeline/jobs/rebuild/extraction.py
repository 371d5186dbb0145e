"""From records to what queues keep of them: the same numbers that dispatch writes.

Law: a row of what comes out is what the ``follow`` kernel would have written for the same record;
kernels number queues, numpy does the rest, and Python sees no single record but those with extra
queues.

How derived: CommitLogDispatcherBuildConsumeQueue and multiDispatchLmqQueue of 4.9 (spec B11, B15.1,
F5, F8).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocketstore.format.file_name import is_directory_name
from rocketstore.format.java_hash import string_hash
from rocketstore.format.properties import decode_properties
from rocketstore.format.queue_entry import ENTRY_DTYPE, MAX_QUEUE_OFFSET
from rocketstore.scan import kernels
from rocketstore.scan.columns import Column
from rocketstore.scan.dispatch_state import SLOT_COLUMN_COUNT, SlotColumn, slot_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.pipeline.jobs.rebuild.settings import RebuildSettings
    from rocketstore.scan.columns import RecordColumns
    from rocketstore.scan.dispatch_state import ByteArray, Int64Array

    BoolArray = npt.NDArray[np.bool_]

DELAY_TOPIC: Final = b"SCHEDULE_TOPIC_XXXX"
_LIGHT_QUEUE_PREFIX: Final = "%LMQ%"
_EXTRA_QUEUES: Final = re.compile(rb"INNER_MULTI_DISPATCH\x01")
_WITHOUT_ENTRY_BIT: Final = 0x4
_FIRST_SLOTS: Final = 256


class QueueName(NamedTuple):
    """A queue.

    Attributes
    ----------
    topic
        In UTF-8; other bytes are what Java reads in them.
    """

    topic: bytes
    queue_id: int

    @property
    def is_usable(self) -> bool:
        """Whether it can be a directory below ``consumequeue``; else it has no entries."""
        topic = self.topic.decode("utf-8", "surrogatepass")
        return is_directory_name(topic) and 0 <= self.queue_id < 2**31

    @property
    def directory(self) -> str:
        """Its directory below ``consumequeue``."""
        return f"{self.topic.decode()}/{self.queue_id}"


class QueueNumbers:
    """Numbers queues in the order in which they are first seen; kernels find them by a table."""

    def __init__(self) -> None:
        self.names: list[QueueName] = []
        self.is_usable: BoolArray = np.zeros(0, np.bool_)
        self.is_delay: BoolArray = np.zeros(0, np.bool_)
        self._known: dict[QueueName, int] = {}
        self._slots = _empty_slots(_FIRST_SLOTS)
        self._slot_count = 0
        self._topics: ByteArray = np.zeros(0, np.uint8)

    def number_of(self, name: QueueName) -> int:
        """Return the number of a queue, a new one if it is new."""
        number = self._known.get(name)
        if number is None:
            number = self._known[name] = len(self.names)
            self.names.append(name)
            self.is_usable = np.append(self.is_usable, name.is_usable)
            self.is_delay = np.append(self.is_delay, name.topic == DELAY_TOPIC)
            self._add(name.topic, name.queue_id, number)
        return number

    def _add(self, topic: bytes, queue_id: int, number: int) -> None:
        """Let kernels find a queue by the bytes of its topic."""
        self._slot_count += 1
        if 2 * self._slot_count > len(self._slots):
            self._slots = _grown(self._slots)
        slot = np.zeros(SLOT_COLUMN_COUNT, np.int64)
        slot[SlotColumn.TOPIC_HASH] = string_hash(topic.decode("utf-8", "replace"))
        slot[SlotColumn.QUEUE_ID] = queue_id
        slot[SlotColumn.TOPIC_AT] = len(self._topics)
        slot[SlotColumn.TOPIC_SIZE] = len(topic)
        slot[SlotColumn.QUEUE] = number
        self._topics = np.concatenate((self._topics, np.frombuffer(topic, np.uint8)))
        _insert(self._slots, slot)

    def of(self, columns: RecordColumns) -> Int64Array:
        """Return the number of each record's queue, -1 for prepared and rollback records."""
        cols = np.ascontiguousarray(columns.cols)
        numbers = np.empty(len(cols), np.int64)
        at = 0
        while True:
            at = kernels.number_queues(columns.buffer, cols, at, self._slots, self._topics, numbers)
            if at == len(cols):
                return numbers
            topic = columns.bytes_of(at, Column.TOPIC_AT, Column.TOPIC_SIZE)
            queue_id = int(cols[at, Column.QUEUE_ID])
            read = topic.decode("utf-8", "replace").encode()
            number = self.number_of(QueueName(read, queue_id))
            if read != topic:
                # No UTF-8: Java reads it as another name, which these bytes have too.
                self._add(topic, queue_id, number)


def _empty_slots(count: int) -> Int64Array:
    slots = np.zeros((count, SLOT_COLUMN_COUNT), np.int64)
    slots[:, SlotColumn.QUEUE] = -1
    return slots


def _grown(slots: Int64Array) -> Int64Array:
    grown = _empty_slots(2 * len(slots))
    for slot in slots[slots[:, SlotColumn.QUEUE] >= 0]:
        _insert(grown, slot)
    return grown


def _insert(slots: Int64Array, slot: Int64Array) -> None:
    number = slot_of(int(slot[SlotColumn.TOPIC_HASH]), int(slot[SlotColumn.QUEUE_ID]), len(slots))
    while slots[number, SlotColumn.QUEUE] >= 0:
        number = (number + 1) % len(slots)
    slots[number] = slot


class Entries(NamedTuple):
    """Queue entries that records call for, in the order of the log.

    Attributes
    ----------
    numbers
        Of their queues.
    """

    numbers: Int64Array
    queue_offsets: Int64Array
    entries: EntryArray


def entries_of(
    columns: RecordColumns, numbers: QueueNumbers, settings: RebuildSettings
) -> tuple[Entries, int]:
    """Return the queue entries that intact records call for, and how many can have none.

    Parameters
    ----------
    columns
        Records in the order of the log.
    numbers
        Takes in queues that are new.
    """
    queue = numbers.of(columns)
    offsets = columns.queue_offset
    has_queue = queue >= 0
    has_place = has_queue & (offsets >= 0) & (offsets <= MAX_QUEUE_OFFSET)
    if not numbers.is_usable.all():
        has_place[has_place] = numbers.is_usable[queue[has_place]]
    rows = np.flatnonzero(has_place)
    refused = int(has_queue.sum()) - len(rows)
    queue_of_row = queue[rows]
    tags_code = columns.tags_code[rows]
    _put_deliver_times(columns, rows, numbers.is_delay[queue_of_row], tags_code, settings)
    entries = np.empty(len(rows), ENTRY_DTYPE)
    entries["physical_offset"] = columns.physical_offset[rows]
    entries["record_size"] = columns.size[rows]
    entries["tags_code"] = tags_code
    found = Entries(queue_of_row, offsets[rows], entries)
    if not settings.multi_dispatch:
        return found, refused
    extra = list(_extra_places(columns, numbers, settings))
    if not extra:
        return found, refused
    return _with_extra(columns, rows, found, extra), refused


def joined_entries(pieces: Sequence[EntryArray]) -> EntryArray:
    """Put arrays of entries one behind another; numpy alone would turn their bytes around."""
    if not pieces:
        return np.empty(0, ENTRY_DTYPE)
    joined: EntryArray = np.concatenate([one.view(np.uint8) for one in pieces]).view(ENTRY_DTYPE)
    return joined


def _put_deliver_times(
    columns: RecordColumns,
    rows: Int64Array,
    is_delay: BoolArray,
    tags_code: Int64Array,
    settings: RebuildSettings,
) -> None:
    """Replace the tags code in the delay topic by when to deliver (spec F5)."""
    if len(settings.delays_ms) < 2 or not is_delay.any():
        return
    delayed = np.flatnonzero(is_delay & (columns.delay_level[rows] > 0))
    level = np.minimum(columns.delay_level[rows[delayed]], len(settings.delays_ms) - 1)
    tags_code[delayed] = columns.store_timestamp[rows[delayed]] + settings.delays[level]


def _extra_places(
    columns: RecordColumns, numbers: QueueNumbers, settings: RebuildSettings
) -> Iterator[tuple[int, int, int]]:
    """Yield row, queue number and queue offset of the extra queues of multi-dispatch records."""
    if not len(columns):
        return
    starts = columns.physical_offset - columns.base
    begin, end = int(starts[0]), int(starts[-1] + columns.size[-1])
    done = -1
    for match in _EXTRA_QUEUES.finditer(columns.buffer[begin:end].data):
        row = int(np.searchsorted(starts, begin + match.start(), side="right")) - 1
        if row > done and not int(columns.sys_flag[row]) & _WITHOUT_ENTRY_BIT:
            done = row
            yield from _extra_queues(columns, numbers, row, settings)


def _extra_queues(
    columns: RecordColumns, numbers: QueueNumbers, row: int, settings: RebuildSettings
) -> Iterator[tuple[int, int, int]]:
    properties = decode_properties(columns.properties(row))
    names = properties.get("INNER_MULTI_DISPATCH", "").split(",")
    offsets = properties.get("INNER_MULTI_QUEUE_OFFSET", "").split(",")
    if len(names) != len(offsets):
        return
    for name, text in zip(names, offsets, strict=True):
        is_light = settings.lmq and name.startswith(_LIGHT_QUEUE_PREFIX)
        queue_id = 0 if is_light else int(columns.queue_id[row])
        queue = QueueName(name.encode("utf-8", "surrogatepass"), queue_id)
        is_number = text.isascii() and text.isdigit()
        if queue.is_usable and is_number and int(text) <= MAX_QUEUE_OFFSET:
            yield row, numbers.number_of(queue), int(text)


def _with_extra(
    columns: RecordColumns, rows: Int64Array, found: Entries, extra: list[tuple[int, int, int]]
) -> Entries:
    """Add entries of extra queues, each behind its record's own."""
    extra_rows, extra_numbers, extra_offsets = np.array(extra, np.int64).T
    entries = np.empty(len(extra), ENTRY_DTYPE)
    entries["physical_offset"] = columns.physical_offset[extra_rows]
    entries["record_size"] = columns.size[extra_rows]
    # An extra queue keeps the plain hash of the tags (spec F8).
    entries["tags_code"] = columns.tags_code[extra_rows]
    order = np.argsort(np.concatenate((rows, extra_rows)), kind="stable")
    return Entries(
        np.concatenate((found.numbers, extra_numbers))[order],
        np.concatenate((found.queue_offsets, extra_offsets))[order],
        joined_entries((found.entries, entries))[order],
    )
