"""What one split of the log calls for, in a file of its own: a part.

A task writes one part: the entries grouped by queue, in log order inside a queue, and the index
items in log order. Later tasks read from parts what belongs into their queues and index files, so
the log is read once. A part is about a fiftieth of its split.

A part has five columns one behind another, little-endian but for the entries, which are as they
will stand in the queue: queue offsets, entries, key hashes, physical offsets, store times.

Law: an attempt writes a file of its own name and is believed only through its manifest, so that
retries and speculation never meet in one file.
"""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from rocketstore.format.queue_entry import ENTRY_DTYPE, ENTRY_SIZE_BYTES
from rocketstore.pipeline.jobs.rebuild.extraction import Entries, Items, QueueName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketstore.format.queue_entry import EntryArray
    from rocketstore.scan.dispatch_state import Int64Array

_NUMBER: Final = np.dtype("<i8")
_HASH: Final = np.dtype("<i4")


class QueuePart(msgspec.Struct, frozen=True, array_like=True):
    """The entries of one queue in a part.

    Attributes
    ----------
    start, count
        Which entries of the part.
    first_offset
        Queue offset of the first.
    is_run
        Whether each queue offset is the one before plus one.
    """

    topic: bytes
    queue_id: int
    start: int
    count: int
    first_offset: int
    is_run: bool

    @property
    def name(self) -> QueueName:
        """The queue."""
        return QueueName(self.topic, self.queue_id)


class Broken(msgspec.Struct, frozen=True, array_like=True):
    """A damaged range of the log.

    Attributes
    ----------
    is_torn_tail
        Nothing follows it: it may be a record that was never finished.
    """

    start: int
    stop: int
    reason: str
    evidence: str
    path: str
    base: int
    is_torn_tail: bool


class PartManifest(msgspec.Struct, frozen=True, array_like=True):
    """What a part holds, and what was met on the way.

    Attributes
    ----------
    number
        Of the part: parts are numbered in the order of the log.
    path
        The file; empty when nothing was found.
    refused_count
        Records whose topic, queue id or queue offset cannot be true.
    log_stop
        End of the last record; 0 without one.
    """

    number: int
    path: str
    queues: list[QueuePart]
    entry_count: int
    item_count: int
    record_count: int
    refused_count: int
    log_stop: int
    newest_timestamp_ms: int
    broken: list[Broken]


def write_part(
    directory: str, number: int, names: Sequence[QueueName], entries: Entries, items: Items
) -> tuple[str, list[QueuePart]]:
    """Write a part below `directory`; return its path and what it has of each queue.

    Raises
    ------
    OSError
        There is no such directory (the rebuild is over), or no room.
    """
    order = _order_by_queue(entries.numbers, len(names))
    numbers, offsets = entries.numbers[order], entries.queue_offsets[order]
    queues = _queue_parts(names, numbers, offsets)
    path = f"{directory}/{number:08d}.{uuid.uuid4().hex}"
    columns = (
        offsets.astype(_NUMBER, copy=False),
        np.ascontiguousarray(entries.entries[order]).view(np.uint8),
        items.key_hashes.astype(_HASH),
        items.physical_offsets.astype(_NUMBER, copy=False),
        items.store_timestamps.astype(_NUMBER, copy=False),
    )
    with open(path, "wb", buffering=0) as file:  # noqa: PTH123 - a path made of strings
        for column in columns:
            _write_all(file.fileno(), np.ascontiguousarray(column).view(np.uint8).data)
    return path, queues


def _write_all(descriptor: int, view: memoryview) -> None:
    while len(view):
        view = view[os.write(descriptor, view) :]


def _order_by_queue(numbers: Int64Array, queue_count: int) -> Int64Array:
    # Of 16-bit numbers a stable sort is a radix sort.
    narrow = numbers.astype(np.uint16) if queue_count <= np.iinfo(np.uint16).max else numbers
    return np.argsort(narrow, kind="stable")


def _queue_parts(
    names: Sequence[QueueName], numbers: Int64Array, offsets: Int64Array
) -> list[QueuePart]:
    if not len(numbers):
        return []
    is_new = np.ones(len(numbers), np.bool_)
    is_new[1:] = numbers[1:] != numbers[:-1]
    goes_on = np.ones(len(numbers), np.bool_)
    goes_on[1:] = offsets[1:] == offsets[:-1] + 1
    starts = np.flatnonzero(is_new)
    is_run = np.logical_and.reduceat(goes_on | is_new, starts)
    stops = np.append(starts[1:], len(numbers))
    return [
        QueuePart(names[number].topic, names[number].queue_id, start, stop - start, first, run)
        for number, start, stop, first, run in zip(
            numbers[starts].tolist(),
            starts.tolist(),
            stops.tolist(),
            offsets[starts].tolist(),
            is_run.tolist(),
            strict=True,
        )
    ]


class PartPlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a part lies, and how many rows its columns have."""

    path: str
    entry_count: int
    item_count: int

    def queue_offsets(self, start: int, count: int) -> Int64Array:
        """Return the queue offsets of some entries."""
        return self._column(0, _NUMBER, start, count)

    def entries(self, start: int, count: int) -> EntryArray:
        """Return some entries."""
        return np.fromfile(
            self.path, ENTRY_DTYPE, count, offset=8 * self.entry_count + ENTRY_SIZE_BYTES * start
        )

    def items(self, start: int, count: int) -> Items:
        """Return some index items."""
        at = (8 + ENTRY_SIZE_BYTES) * self.entry_count
        hashes = self._column(at, _HASH, start, count)
        at += 4 * self.item_count
        physical = self._column(at, _NUMBER, start, count)
        at += 8 * self.item_count
        return Items(hashes.astype(np.int64), physical, self._column(at, _NUMBER, start, count))

    def _column(self, at: int, kind: np.dtype[Any], start: int, count: int) -> Int64Array:
        return np.fromfile(self.path, kind, count, offset=at + kind.itemsize * start)
