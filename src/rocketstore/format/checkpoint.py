"""The checkpoint: up to which store time each structure was last known to be on disk.

One page of 4,096 bytes with three times in front, rewritten in place. Recovery after a crash starts
at the newest CommitLog file whose first record is older than the smallest of them.

Law: any 24 bytes decode; recovery decides how far it relies on the times. The bytes
after the three times (5.x keeps two offsets there) are left to the caller to preserve.
Page: docs/format/checkpoint.md. Source: rocketmq-all-4.9.8, StoreCheckpoint; spec F11.
"""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, Self

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

    @classmethod
    def of(cls, content: object) -> Self:
        """Return the times of a file's content; zeros, which are always safe, where it has none."""
        if isinstance(content, bytes) and len(content) >= CHECKPOINT_STRUCT.size:
            return cls(*decode_checkpoint(content))
        return cls()

    def safe_file(
        self, count: int, stored: Callable[[int], int | None], latest_ms: int, *, has_index: bool
    ) -> int:
        """Return which of `count` log files is the newest before which everything is durable.

        That is one whose first record, `stored` when that returns for its number, is older, by the
        margin of 4.9, than the times up to which log, queues and index were on the disk. Unclear
        times move it back, never forward: a time later than `latest_ms` counts as 0, and a file
        that seems older than the one before it is passed over.
        """
        times = self if has_index else self[:2]
        limit = min(time if 0 <= time <= latest_ms else 0 for time in times) - CHECKPOINT_MARGIN_MS
        for number in range(count - 1, 0, -1):
            own, before = stored(number), stored(number - 1)
            # Older than the file before it: a damaged header, or a clock set back (K-R8).
            if own is not None and 0 < own <= limit and (before is None or before <= own):
                return number
        return 0

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
