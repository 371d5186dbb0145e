"""Where recovery begins to read the log, and which store time a record there has.

After a crash: the newest file before which everything is durable. The checkpoint says up to which
store time log, queues and index were on the disk; the file wanted is the newest one whose first
record is older than all three by the margin of 4.9.

Law: a doubt goes back, never forward: an unbelievable time counts as 0, and a file that seems older
than the one before it is passed over.

How derived: CommitLog.recoverAbnormally and isMappedFileMatchedRecover of 4.9 (spec B16.3, F11)
without K-R6 and K-R8. Cost: one record per file, from the last file back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketstore.format.checkpoint import CHECKPOINT_MARGIN_MS, Checkpoint
from rocketstore.scan import kernels
from rocketstore.scan.columns import Column, RecordColumns, new_columns
from rocketstore.verification.leftovers import CLOCK_TOLERANCE_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketstore.storage.files.mapped_file import MappedFile

_KEYS_PROBE_RECORDS: Final = 8192


def crash_start(
    files: Sequence[MappedFile],
    checkpoint: Checkpoint,
    *,
    index_enabled: bool,
    has_index: bool,
    now_ms: int,
) -> int:
    """Return the physical offset of the file at which recovery begins; there is one at least.

    A checkpoint much later than `now_ms` is damaged.
    """
    limit = _safe_time(checkpoint, now_ms, index_enabled=index_enabled)
    for number in range(len(files) - 1, 0, -1):
        own = store_time_at(files[number], 0)
        before = store_time_at(files[number - 1], 0)
        # Older than the file before it: a damaged header, or a clock set back (K-R8).
        if own is not None and 0 < own <= limit and (before is None or before <= own):
            is_index_lost = index_enabled and not has_index and _has_keys(files[number - 1])
            return files[0].base if is_index_lost else files[number].base
    return files[0].base


def _safe_time(checkpoint: Checkpoint, now_ms: int, *, index_enabled: bool) -> int:
    times = checkpoint if index_enabled else checkpoint[:2]
    latest = now_ms + CLOCK_TOLERANCE_MS
    return min(time if 0 <= time <= latest else 0 for time in times) - CHECKPOINT_MARGIN_MS


def record_at(file: MappedFile, position: int) -> RecordColumns | None:
    """Return the intact record at a position of a file, None without one."""
    cols = new_columns(1)
    check_crc = True
    count, _, _ = kernels.walk(
        file.array, position, position + 1, file.base, file.size, check_crc, cols
    )
    return RecordColumns(file.array, cols, file.base) if count else None


def store_time_at(file: MappedFile, position: int) -> int | None:
    """Return the store time of the intact record at a position of a file, None without one."""
    record = record_at(file, position)
    return None if record is None else int(record.store_timestamp[0])


def _has_keys(file: MappedFile) -> bool:
    """Whether records at the beginning of a file have keys, so that there must be an index."""
    cols = new_columns(_KEYS_PROBE_RECORDS)
    check_crc = False
    count, _, _ = kernels.walk(file.array, 0, file.size, file.base, file.size, check_crc, cols)
    sizes = cols[:count, [Column.KEYS_SIZE, Column.UNIQUE_KEY_SIZE]]
    return bool((sizes > 0).any())
