"""The checkpoint: up to which store time each structure was last known to be on disk.

One page of 4,096 bytes with three times in front, rewritten in place. Recovery after a crash starts
at the newest CommitLog file whose first record is older than the smallest of them.

Law: any 24 bytes decode; recovery decides how far it relies on the times. The bytes
after the three times (5.x keeps two offsets there) are left to the caller to preserve.
Page: docs/format/checkpoint.md. Source: rocketmq-all-4.9.8, StoreCheckpoint; spec F11.
"""

import struct
from typing import Final, NamedTuple

from rocketstore.format import Buffer, Field, layout_code, packed, unpacked

FIELDS: Final = (
    Field("physic_ms", "q", "8", "ms", "store time of the last message flushed in the CommitLog"),
    Field("logics_ms", "q", "8", "ms", "store time up to which the ConsumeQueues are flushed"),
    Field("index_ms", "q", "8", "ms", "store time up to which the index is flushed"),
)
"""The page's table."""

CHECKPOINT_STRUCT: Final = struct.Struct(layout_code(FIELDS))
CHECKPOINT_SIZE_BYTES: Final = 4096
CHECKPOINT_MARGIN_MS: Final = 3000
"""How far before the smaller time recovery begins (StoreCheckpoint.getMinTimestamp)."""


class Checkpoint(NamedTuple):
    """The three times; all 0 when the file did not exist."""

    physic_ms: int = 0
    logics_ms: int = 0
    index_ms: int = 0

    @property
    def min_timestamp(self) -> int:
        """Time before which CommitLog and ConsumeQueues are believed to be complete."""
        return max(0, min(self.physic_ms, self.logics_ms) - CHECKPOINT_MARGIN_MS)

    @property
    def min_timestamp_index(self) -> int:
        """Time before which the index is believed to be complete as well."""
        return min(self.min_timestamp, self.index_ms)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Encode the whole file of 4,096 bytes; raises `FieldRangeError`."""
    return encode_times(checkpoint).ljust(CHECKPOINT_SIZE_BYTES, b"\0")


def encode_times(checkpoint: Checkpoint) -> bytes:
    """Encode only the first 24 bytes, for a file that is rewritten in place."""
    return packed(CHECKPOINT_STRUCT, checkpoint, "a checkpoint time")


def decode_checkpoint(view: Buffer) -> Checkpoint:
    """Decode the three times at the start of `view`; the bytes after them are ignored.

    Raises `TruncatedRecordError` below 24 bytes; 4.9 would map the missing ones as zeros.
    """
    return Checkpoint._make(unpacked(CHECKPOINT_STRUCT, view, 0, "checkpoint"))
