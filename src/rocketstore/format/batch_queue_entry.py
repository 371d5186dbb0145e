"""One entry of a BatchConsumeQueue of 5.x: where the record of some messages of a queue lies.

Entries stand one after the other, 46 bytes each. A record has one, however many messages it holds,
so the position of an entry says nothing about queue offsets: entries are searched by their first
queue offset.

Law: an entry is trusted only if the CommitLog record it points at agrees; this module
checks lengths and nothing else. Page: docs/format/batch-consume-queue.md.
Source: rocketmq-all-5.3.1, BatchConsumeQueue.putBatchMessagePositionInfo; spec F9.
"""

import struct
from typing import Final, NamedTuple

from rocketstore.format import Buffer, Field, layout_code, packed, unpacked

FIELDS: Final = (
    Field("physical_offset", "q", "8", "bytes", "start of the record in the CommitLog"),
    Field("record_size", "i", "4", "bytes", "length of that record"),
    Field("tags_code", "q", "8", "-", "hash of the record's own tags, 0 without"),
    Field("store_timestamp_ms", "q", "8", "ms", "when the record was stored"),
    Field("base_offset", "q", "8", "-", "queue offset of the first message"),
    Field("message_count", "h", "2", "count", "messages in the record, at least 1"),
    Field("compacted_offset", "i", "4", "-", "-1"),
    Field("reserved", "i", "4", "-", "0"),
)
"""The page's table (spec F9)."""

BATCH_ENTRY_STRUCT: Final = struct.Struct(layout_code(FIELDS))
BATCH_ENTRY_SIZE_BYTES: Final = BATCH_ENTRY_STRUCT.size
assert BATCH_ENTRY_SIZE_BYTES == 46

BATCH_COUNT_MAX: Final = 32767
"""Most messages of a record: their count is a signed 16-bit number."""


class BatchEntry(NamedTuple):
    """What a BatchConsumeQueue says about one record."""

    physical_offset: int
    record_size: int
    tags_code: int
    store_timestamp_ms: int
    base_offset: int
    message_count: int
    compacted_offset: int = -1
    reserved: int = 0

    @property
    def is_written(self) -> bool:
        """Whether 5.x counts it as an entry (BatchConsumeQueue.recover)."""
        return (
            min(self.physical_offset, self.base_offset) >= 0
            and min(self.record_size, self.message_count) > 0
        )

    @property
    def stop_offset(self) -> int:
        """Queue offset after the last message."""
        return self.base_offset + self.message_count


def encode_batch_entry(entry: BatchEntry) -> bytes:
    """Encode one entry; raises `FieldRangeError`."""
    return packed(BATCH_ENTRY_STRUCT, entry, "a batch queue entry's number")


def decode_batch_entry(view: Buffer, position: int = 0) -> BatchEntry:
    """Decode the entry that starts at `position` of `view`; raises `TruncatedRecordError`."""
    return BatchEntry._make(unpacked(BATCH_ENTRY_STRUCT, view, position, "batch queue entry"))
