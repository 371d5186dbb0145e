"""One entry of a ConsumeQueue: where the n-th message of a queue lies in the CommitLog.

A ConsumeQueue file is nothing but such entries, 20 bytes each, so entry n of a queue stands at byte
``20 n`` of the queue. Two values are not messages: zeros (never written) and the filler, which
stands in front of the first real entry of a queue that did not start at 0.

Law: an entry is trusted only if the CommitLog record it points at agrees; this module
checks lengths and nothing else. Page: docs/format/consume-queue.md.
Source: rocketmq-all-4.9.8, ConsumeQueue.putMessagePositionInfo and ConsumeQueue.fillPreBlank.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from rocketstore.errors import FormatError
from rocketstore.format import Buffer, Field, layout_code, unpacked

if TYPE_CHECKING:
    import numpy.typing as npt

    EntryArray: TypeAlias = npt.NDArray[np.void]

FIELDS: Final = (
    Field("physical_offset", "q", "8", "bytes", "start of the message's record in the CommitLog"),
    Field("record_size", "i", "4", "bytes", "length of that record"),
    Field("tags_code", "q", "8", "-", "hash of the tags, deliver time, or extension address"),
)
"""The page's table (spec F6)."""

ENTRY_STRUCT: Final = struct.Struct(layout_code(FIELDS))
ENTRY_SIZE_BYTES: Final = ENTRY_STRUCT.size
assert ENTRY_SIZE_BYTES == 20

ENTRY_DTYPE: Final[np.dtype[np.void]] = np.dtype(
    [(field.name, f">{field.code}") for field in FIELDS]
)
"""The same layout for numpy: packed, big-endian."""

FILLER_SIZE: Final = 0x7FFFFFFF
"""Record size of a filler, which no record can have."""

MAX_EXT_ADDRESS: Final = -(2**31) - 1
"""Largest number that is an extension address and not a tags code (ConsumeQueueExt.MAX_ADDR)."""

MAX_HASH: Final = 2**31 - 1
"""Largest hash of tags; a deliver time is larger from 1970-01-25 on."""

MAX_QUEUE_OFFSET: Final = (1 << 62) // ENTRY_SIZE_BYTES
"""No file can have larger ones; only a damaged header states them."""

LMQ_PREFIX: Final = "%LMQ%"
"""Queues of light message queues are all queue 0 of their name (spec F8)."""

DELAY_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""The topic whose entries keep a deliver time instead of a tags code (spec F5)."""


class QueueEntry(NamedTuple):
    """What a ConsumeQueue says about one message."""

    physical_offset: int
    record_size: int
    tags_code: int

    @property
    def is_filler(self) -> bool:
        """Whether it only fills the queue in front of a queue's first message."""
        return self == FILLER

    @property
    def is_written(self) -> bool:
        """Whether 4.9 counts it as an entry (ConsumeQueue.recover): messages and fillers are."""
        return self.physical_offset >= 0 and self.record_size > 0

    @property
    def is_message(self) -> bool:
        """Whether it points at a message: written, and not a filler."""
        return self.is_written and not self.is_filler


FILLER: Final = QueueEntry(0, FILLER_SIZE, 0)
FILLER_BYTES: Final = ENTRY_STRUCT.pack(*FILLER)

EMPTY: Final = QueueEntry(0, 0, 0)
"""The bytes of an unwritten place."""

KEPT_PLACE: Final = QueueEntry(2**63 - 1, 0, 0)
"""After a queue's last entry: this queue offset was given out, and its record is lost.

4.9 does not know such entries, and takes one for the queue's end, like zeros (`is_written`)."""
KEPT_PLACE_BYTES: Final = ENTRY_STRUCT.pack(*KEPT_PLACE)


def is_due_time(tags_code: Any, store_timestamp_ms: Any) -> Any:
    """Whether a tags code (or each of an array) is a time at which a delayed message is due.

    Levels are whole seconds, so it is some of them away from the store time, which no flipped bit
    leaves so. A hash in its place, which is smaller, has the message delivered at once (K-S1).
    """
    return (tags_code > MAX_HASH) & ((tags_code - store_timestamp_ms) % 1_000 == 0)


def decode_entry(view: Buffer, position: int = 0) -> QueueEntry:
    """Decode the entry that starts at `position` of `view`; raises `TruncatedRecordError`."""
    return QueueEntry._make(unpacked(ENTRY_STRUCT, view, position, "queue entry"))


def entry_array(view: Buffer | npt.NDArray[np.uint8]) -> EntryArray:
    """View whole entries as a structured array of `ENTRY_DTYPE`, without a copy."""
    size = view.size if isinstance(view, np.ndarray) else len(view)
    if size % ENTRY_SIZE_BYTES:
        raise FormatError(
            "these bytes are not whole queue entries",
            expected=f"a multiple of {ENTRY_SIZE_BYTES} bytes",
            found=f"{size} bytes",
        )
    array: EntryArray = np.frombuffer(view, dtype=ENTRY_DTYPE)
    return array


def written_mask(array: EntryArray) -> npt.NDArray[np.bool_]:
    """Return which rows of an `entry_array` are written; fillers are."""
    mask: npt.NDArray[np.bool_] = (array["physical_offset"] >= 0) & (array["record_size"] > 0)
    return mask


def equal_mask(array: EntryArray, entry: QueueEntry) -> npt.NDArray[np.bool_]:
    """Return which rows of an `entry_array` are equal to an entry, for example a filler."""
    mask: npt.NDArray[np.bool_] = (
        (array["physical_offset"] == entry.physical_offset)
        & (array["record_size"] == entry.record_size)
        & (array["tags_code"] == entry.tags_code)
    )
    return mask
