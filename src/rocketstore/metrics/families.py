"""The numbers of an open store as Prometheus has them, taken when somebody asks.

``/metrics`` has the names of a 5.x broker where there is one, and ``rocketstore_…`` for what only
this store says.

Law: no second bookkeeping. Every value comes from the store's own statistics, offsets and runtime
information; a collector only names and scales them.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from rocketstore.storage.running_flags import RunningFlag
from rocketstore.storage.statistics import SYNC_LIMITS_S
from rocketstore.verification.file_rules import FileProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rocketstore.metrics.sources import Sources
    from rocketstore.verification.damage_map import DamageMap

PUT_BUCKETS_S: Final = (
    "0.001", "0.01", "0.05", "0.1", "0.2", "0.5", "1.0", "2.0", "3.0", "4.0", "5.0", "10.0", "+Inf",
)  # fmt: skip
"""Upper limits of the put times of 4.9, `statistics.BUCKET_NAMES`."""

SYNC_BUCKETS_S: Final = (*(f"{limit:.4f}" for limit in SYNC_LIMITS_S), "+Inf")


class StoreCollector(Collector):
    """What ``/metrics`` says of a store."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._store = sources.store

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family with its values of this moment."""
        info = self._store.runtime_info()
        yield from self._traffic()
        yield from self._log_state()
        yield from self._pool(info)
        yield from self._health(info)
        yield from self._scrub(info)
        yield from self._lag()

    def _traffic(self) -> Iterator[Metric]:
        statistics = self._store.statistics
        count = CounterMetricFamily("rocketmq_messages_in", "Messages put.", labels=["topic"])
        size = CounterMetricFamily("rocketmq_throughput_in", "Bytes put.", labels=["topic"])
        for topic, put in sorted(statistics.put_by_topic().items()):
            count.add_metric([topic], put.messages)
            size.add_metric([topic], put.bytes)
        yield count
        yield size
        gets = statistics.gets
        yield CounterMetricFamily("rocketmq_messages_out", "Messages got.", value=gets.messages)
        asked = CounterMetricFamily(
            "rocketstore_gets", "Gets, by whether they found a message.", labels=["result"]
        )
        asked.add_metric(["found"], gets.found)
        asked.add_metric(["missed"], gets.missed)
        yield asked
        failed = "Puts that were not taken."
        yield CounterMetricFamily("rocketstore_puts_failed", failed, value=statistics.failed_puts)
        counts = statistics.put_time_histogram().values()
        what = "How long puts took, in the buckets of 4.9; without a sum."
        yield _histogram("rocketstore_put_seconds", what, PUT_BUCKETS_S, counts, None)
        syncs = statistics.syncs
        what = "How long syncs of the CommitLog took."
        yield _histogram(
            "rocketstore_flush_seconds", what, SYNC_BUCKETS_S, syncs.counts, syncs.total_s
        )

    def _log_state(self) -> Iterator[Metric]:
        store = self._store
        first, last = store.min_physical_offset, store.max_physical_offset
        oldest_ms = store.earliest_log_timestamp()
        for name, help_text, value in (
            ("rocketmq_storage_size", "Bytes of the CommitLog.", last - max(first, 0)),
            (
                "rocketmq_storage_flush_behind_bytes",
                "Bytes of the CommitLog that are not known to be on the disk.",
                last - store.flushed_physical_offset,
            ),
            (
                "rocketmq_storage_dispatch_behind_bytes",
                "Bytes of the CommitLog that consumers cannot see yet.",
                last - store.dispatched_physical_offset,
            ),
            (
                "rocketmq_storage_message_reserve_time",
                "Age of the oldest message in ms.",
                0 if oldest_ms is None else max(0, self._sources.now_ms() - oldest_ms),
            ),
        ):
            yield GaugeMetricFamily(name, help_text, value=value)

    def _pool(self, info: Mapping[str, str]) -> Iterator[Metric]:
        store = self._store
        if not store.config.has_transient_pool:
            return
        yield GaugeMetricFamily(
            "rocketstore_transient_pool_free_buffers",
            "Buffers of the transient store pool that are free for the next files.",
            value=float(info["remainTransientStoreBufferNumbs"]),
        )
        yield GaugeMetricFamily(
            "rocketstore_transient_pool_uncommitted_bytes",
            "Bytes put that are in memory only: a kill takes them.",
            value=store.appended_physical_offset - store.max_physical_offset,
        )

    def _health(self, info: Mapping[str, str]) -> Iterator[Metric]:
        bits = self._store.running_flags.bits
        flags = GaugeMetricFamily(
            "rocketstore_running_flag",
            "1 for each cause that refuses puts or gets.",
            labels=["flag"],
        )
        for flag in RunningFlag:
            flags.add_metric([str(flag.name)], int(bool(bits & flag)))
        yield flags
        well = int(self._store.dispatch_health.is_well)
        yield GaugeMetricFamily("rocketstore_dispatch_well", "1 while dispatch works.", value=well)
        used = GaugeMetricFamily(
            "rocketstore_disk_used_ratio", "How full the partition of a path is.", labels=["path"]
        )
        for key, text in info.items():
            _, is_path, path = key.partition("commitLogDiskRatio_")
            if is_path and float(text) >= 0:
                used.add_metric([path], float(text))
        yield used
        yield GaugeMetricFamily(
            "rocketstore_mapped_bytes",
            "Bytes of files that are mapped.",
            value=float(info["totalMappedVirtualMemory"]),
        )
        yield CounterMetricFamily(
            "rocketstore_clock_steps_back",
            "Puts at which the clock was behind the store time before.",
            value=float(info["storeTimeStepsBack"]),
        )

    def _lag(self) -> Iterator[Metric]:
        labels = ["topic", "consumer_group"]
        lags = GaugeMetricFamily(
            "rocketmq_consumer_lag_messages",
            "Messages of a topic that a group has not consumed.",
            labels=labels,
        )
        ages = GaugeMetricFamily(
            "rocketmq_consumer_lag_latency",
            "Age in ms of the oldest message of a topic that a group has not consumed.",
            labels=labels,
        )
        store, now_ms = self._store, self._sources.now_ms()
        for (topic, group), places in self._sources.places_of_groups():
            behind = [one for one in places if one.lag]
            lags.add_metric([topic, group], sum(one.lag for one in behind))
            times = (
                self._begun_ms(
                    topic, one.queue_id, max(one.first, store.min_offset(topic, one.queue_id))
                )
                for one in behind
            )
            oldest_ms = min((one for one in times if one is not None), default=now_ms)
            ages.add_metric([topic, group], max(now_ms - oldest_ms, 0))
        yield from (lags, ages)

    def _begun_ms(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return since when a message waits: one stored in the future, since it was born."""
        stored_ms = self._store.store_timestamp(topic, queue_id, offset)
        if stored_ms is None or stored_ms <= self._sources.now_ms():
            return stored_ms
        born = (
            one.born_timestamp_ms for one in self._store.get(topic, queue_id, offset, 1).messages
        )
        return next(born, stored_ms)

    def _scrub(self, info: Mapping[str, str]) -> Iterator[Metric]:
        known = self._sources.damage_map()
        damaged = GaugeMetricFamily(
            "rocketstore_store_damaged_bytes",
            "Bytes that the check of old files knows to be damaged.",
            labels=["reason"],
        )
        for reason, size in sorted(known.damaged_bytes.items()):
            damaged.add_metric([reason], size)
        yield damaged
        findings = GaugeMetricFamily(
            "rocketstore_audit_findings",
            "What opening and the check of old files found, by the kinds of `store verify`.",
            labels=["kind"],
        )
        for kind, count in sorted(Counter(self._kinds(known)).items()):
            findings.add_metric([kind], count)
        yield findings
        for name, help_text, value in (
            ("scrub_position_bytes", "Offset from which the check goes on.", known.position),
            ("scrub_passes", "Whole passes of the check.", known.passes),
            (
                "scrub_last_pass_timestamp_seconds",
                "When the last whole pass ended; 0 without any.",
                known.last_pass_timestamp / 1000,
            ),
        ):
            yield GaugeMetricFamily(f"rocketstore_store_{name}", help_text, value=value)
        yield CounterMetricFamily(
            "rocketstore_store_scrub_checked_bytes",
            "Bytes that this process has checked.",
            value=float(info["scrubCheckedBytes"]),
        )

    def _kinds(self, known: DamageMap) -> Iterator[str]:
        """Yield the kind of each finding; a file that is missing in the log is a hole of it."""
        yield from ("log-damage" if one.file else "log-hole" for one in known.damage)
        layout = self._store.layout
        parts = {"queue": layout.consume_queue, "index": layout.index}
        for one in self._store.problems:
            above = one.path.parents
            part = next((name for name, root in parts.items() if root in above), "log")
            if part != "log" or one.problem is not FileProblem.MISSING:
                yield f"{part}-{one.problem.kind}"
            elif not known.passes:  # else it is among what is known
                yield "log-hole"


def _histogram(
    name: str,
    help_text: str,
    limits: Iterable[str],
    counts: Iterable[int],
    total: float | None,
) -> Metric:
    """Return a histogram of what was counted between one limit and the next."""
    buckets = list(zip(limits, map(float, accumulate(counts)), strict=True))
    family = HistogramMetricFamily(name, help_text)
    family.add_metric([], buckets, sum_value=total)
    return family
