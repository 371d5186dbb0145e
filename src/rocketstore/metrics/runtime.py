"""What 4.9's broker adds to the runtime information of its store, as far as a store knows it.

Law: nothing is counted for it. What a broker knows of itself (thread pools, totals since midnight,
its version) has no key here.

How derived: AdminBrokerProcessor.prepareRuntimeInfo, StoreStatsService.findPutMessageEntireTimePX
and MixAll.humanReadableByteCount of 4.9.8, whose texts these are.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from rocketstore.storage.statistics import BUCKET_LIMITS_MS

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.storage.statistics import StoreStatistics
    from rocketstore.storage.store import BaseStore

NO_POOL: Final = 2**31 - 1
"""Free buffers of a pool that is not there (TransientStorePool.availableBufferNums)."""


def broker_info(store: BaseStore, *, free_buffers: int | None, locked_ms: int) -> dict[str, str]:
    """Return the broker's keys; `locked_ms` is how long the log's lock has been held."""
    last = store.max_physical_offset
    earliest_ms = store.earliest_log_timestamp()
    info = {
        "putLatency99": f"{put_latency_ms(store.statistics, 0.99):.2f}",
        "putLatency999": f"{put_latency_ms(store.statistics, 0.999):.2f}",
        "dispatchBehindBytes": str(last - store.dispatched_physical_offset),
        "pageCacheLockTimeMills": str(locked_ms),
        "earliestMessageTimeStamp": str(-1 if earliest_ms is None else earliest_ms),
        "remainTransientStoreBufferNumbs": str(NO_POOL if free_buffers is None else free_buffers),
        "remainHowManyDataToFlush": _size_text(last - store.flushed_physical_offset),
    }
    if free_buffers is not None:
        info["remainHowManyDataToCommit"] = _size_text(store.appended_physical_offset - last)
    if (found := capacity(store.layout.root)) is not None:
        total, free = map(_size_text, found)
        info["commitLogDirCapacity"] = f"Total : {total}, Free : {free}."
    return info


def capacity(path: Path) -> tuple[int, int] | None:
    """Return the bytes of a path's partition, all and free; None where the system does not say."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return status.f_blocks * status.f_frsize, status.f_bfree * status.f_frsize


def put_latency_ms(statistics: StoreStatistics, share: float) -> float:
    """Return within how many ms this share of the puts of the last whole minute were done.

    Between two limits of the put times it is interpolated, as in 4.9, which has more of them.
    """
    counts = statistics.last_minute.values()
    wanted = int(sum(counts) * share)
    before, lower = 0, 0
    for upper, count in zip(
        (0, *BUCKET_LIMITS_MS, statistics.put_time_max_ms), counts, strict=True
    ):
        if wanted <= before + count:
            break
        before, lower = before + count, upper
    return lower + (upper - lower) * (wanted - before) / max(count, 1)


def _size_text(size: int) -> str:
    """Return a size as 4.9 writes it: ``93 B``, ``1.5 KiB``."""
    value, unit = float(size), ""
    for prefix in "KMGTPE":
        if value < 1024:
            break
        value, unit = value / 1024, f"{prefix}i"
    return f"{value:.1f} {unit}B" if unit else f"{size} B"
