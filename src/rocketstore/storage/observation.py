"""What an open store reports: 4.9's runtime information, and numbers for Prometheus.

Law: nothing is counted only for this. Every value comes from the part that has it; values of a
broker itself (thread pools, totals since midnight, its version) have no key. A request changes
nothing.

How derived: DefaultMessageStore.getRuntimeInfo, AdminBrokerProcessor.prepareRuntimeInfo and
MixAll.humanReadableByteCount of 4.9.8, whose texts these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from rocketstore.scan.kernels import compiled_summary
from rocketstore.storage.metric import Histogram, Metric, counter, gauge
from rocketstore.storage.running_flags import RunningFlag

if TYPE_CHECKING:
    from rocketstore.storage.attached import Service
    from rocketstore.storage.dispatch.dispatch_service import DispatchService
    from rocketstore.storage.opening import StoreParts
    from rocketstore.storage.reading.reader import Reader
    from rocketstore.storage.statistics import StoreStatistics

NO_POOL: Final = 2**31 - 1
"""Free buffers of a pool that is not there (TransientStorePool.availableBufferNums)."""


class Observation:
    """Collects from the parts of an open store, and from its `attached` services."""

    def __init__(
        self, reader: Reader, parts: StoreParts, statistics: StoreStatistics,
        dispatch: DispatchService, attached: Mapping[str, Service],
    ) -> None:  # fmt: skip
        self._reader, self._parts, self._statistics = reader, parts, statistics
        self._dispatch, self._attached = dispatch, attached

    def runtime_info(self) -> dict[str, Any]:
        """Return 4.9's information about a running store, under its names, and some of our own.

        Numbers are numbers; `str` gives the text that 4.9 has in their place.
        """
        parts, log, pool = self._parts, self._parts.log, self._parts.pool
        statistics = self._statistics
        directories, used_ratio = parts.layout.commit_log_directories, parts.disk.used_ratio
        ratios = {f"commitLogDiskRatio_{path}": used_ratio(path) for path in directories}
        known = [ratio for ratio in ratios.values() if ratio is not None]
        ratios["commitLogDiskRatio"] = min(known, default=None)
        ratios["consumeQueueDiskRatio"] = used_ratio(parts.layout.consume_queue)
        mapped, last = self._mapped_sizes(), log.committed_offset
        oldest_ms, since_ms = self._reader.earliest_log_timestamp(), log.end.locked_since_ms
        told = {
            **statistics.runtime_info(),
            "putLatency99": statistics.put_latency_ms(0.99),
            "putLatency999": statistics.put_latency_ms(0.999),
            **{key: -1 if ratio is None else ratio for key, ratio in ratios.items()},
            "commitLogMinOffset": log.min_offset,
            "commitLogMaxOffset": last,
            "storeTimeStepsBack": log.clock_steps_back,
            "compiledParts": compiled_summary(),
            "totalMappedFiles": len(mapped),
            "totalMappedVirtualMemory": sum(mapped),
            "dispatchBehindBytes": last - parts.dispatcher.dispatched_offset,
            "pageCacheLockTimeMills": log.monotonic() - since_ms if since_ms else 0,
            "earliestMessageTimeStamp": -1 if oldest_ms is None else oldest_ms,
            "remainTransientStoreBufferNumbs": NO_POOL if pool is None else pool.free_count,
            "remainHowManyDataToFlush": Size(last - log.flushed_offset),
        }
        if pool is not None:
            told["remainHowManyDataToCommit"] = Size(log.max_offset - last)
        if (room := parts.disk.room(parts.layout.root)) is not None:
            told["commitLogDirCapacity"] = f"Total : {Size(room[0])}, Free : {Size(room[2])}."
        for kind in parts.kinds.known.values():
            told |= kind.runtime_info(len(parts.kinds.of(kind.name)))
        for service in self._attached.values():
            told |= service.runtime_info()
        return told

    def metrics(self) -> Iterator[Metric | Histogram]:
        """Yield the numbers of this moment, with the names of a 5.x broker where it has them."""
        yield from self._of_the_log()
        yield from self._statistics.metrics()
        bits = self._parts.flags.bits
        flags = {str(flag.name): int(bool(bits & flag)) for flag in RunningFlag}
        text = "1 for each cause that refuses puts or gets."
        yield gauge("rocketstore_running_flag", text, flags, "flag")
        is_well = self._dispatch.health.is_well
        yield gauge("rocketstore_dispatch_well", "1 while dispatch works.", int(is_well))
        paths = self._parts.layout.commit_log_directories
        ratios = {str(path): self._parts.disk.used_ratio(path) for path in paths}
        used = {path: ratio for path, ratio in ratios.items() if ratio is not None}
        text = "How full the partition of a path is."
        yield gauge("rocketstore_disk_used_ratio", text, used, "path")
        mapped = sum(self._mapped_sizes())
        yield gauge("rocketstore_mapped_bytes", "Bytes of files that are mapped.", mapped)
        for service in self._attached.values():
            yield from service.metrics()

    def _of_the_log(self) -> Iterator[Metric | Histogram]:
        log, oldest_ms = self._parts.log, self._reader.earliest_log_timestamp()
        age_ms = 0 if oldest_ms is None else max(0, self._parts.clock() - oldest_ms)
        last, name = log.committed_offset, "rocketmq_storage"
        yield gauge(f"{name}_size", "Bytes of the CommitLog.", last - log.min_offset)
        text = "Bytes of the CommitLog that are not known to be on the disk."
        yield gauge(f"{name}_flush_behind_bytes", text, last - log.flushed_offset)
        text = "Bytes of the CommitLog that consumers cannot see yet."
        waiting = last - self._parts.dispatcher.dispatched_offset
        yield gauge(f"{name}_dispatch_behind_bytes", text, waiting)
        yield gauge(f"{name}_message_reserve_time", "Age of the oldest message in ms.", age_ms)
        text = "Puts at which the clock was behind the store time before."
        yield counter("rocketstore_clock_steps_back", text, log.clock_steps_back)
        if (pool := self._parts.pool) is not None:
            text = "Buffers of the transient store pool that are free for the next files."
            yield gauge("rocketstore_transient_pool_free_buffers", text, pool.free_count)
            text = "Bytes put that are in memory only: a kill takes them."
            yield gauge("rocketstore_transient_pool_uncommitted_bytes", text, log.max_offset - last)

    def _mapped_sizes(self) -> list[int]:
        parts = self._parts
        files = chain(
            parts.log.files.files,
            *(queue.files.files for queue in parts.queues.every()),
            (index_file.file for index_file in parts.index.files),
        )
        return [file.size for file in files if file.is_mapped]


class Size(int):
    """A count of bytes; as a text as 4.9 writes it: ``93 B``, ``1.5 KiB``."""

    __slots__ = ()

    def __str__(self) -> str:
        value, unit = float(self), ""
        for prefix in "KMGTPE":
            if value < 1024:
                break
            value, unit = value / 1024, f"{prefix}i"
        return f"{value:.1f} {unit}B" if unit else f"{int(self)} B"
