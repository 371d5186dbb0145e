"""The numbers of an open store under the names of rocketmq-exporter for 4.x, so its boards work.

Law: what only a broker knows (thread pools, clients, totals since midnight) is missing, not 0.

How derived: RMQMetricsCollector and MetricsCollectTask of rocketmq-exporter: gauges, totals too.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from rocketstore.rules.topics import DEAD_LETTER_PREFIX, purpose_of
from rocketstore.storage.metric import Metric
from rocketstore.storage.statistics import RATE_SPANS_S
from rocketstore.tables.lags import places_of_groups

if TYPE_CHECKING:
    from rocketstore.storage.store import BaseStore

_PREFIX: Final = "rocketmq_brokeruntime_"
_PUT_TIMES: Final = (
    "0ms", "0to10ms", "10to50ms", "50to100ms", "100to200ms", "200to500ms", "500to1s",
    "1to2s", "2to3s", "3to4s", "4to5s", "5to10s", "10stomore",
)  # fmt: skip
_PLAIN: Final = {
    "put_message_size_total": "putMessageSizeTotal",
    "put_message_average_size": "putMessageAverageSize",
    "putmessage_times_total": "putMessageTimesTotal",
    "putmessage_entire_time_max": "putMessageEntireTimeMax",
    "put_latency_99": "putLatency99",
    "put_latency_999": "putLatency999",
    "getmessage_entire_time_max": "getMessageEntireTimeMax",
    "dispatch_maxbuffer": "dispatchMaxBuffer",
    "dispatch_behind_bytes": "dispatchBehindBytes",
    "pagecache_lock_time_mills": "pageCacheLockTimeMills",
    "remain_transientstore_buffer_numbs": "remainTransientStoreBufferNumbs",
    "commitlog_disk_ratio": "commitLogDiskRatio",
    "consumequeue_disk_ratio": "consumeQueueDiskRatio",
    "commitlog_maxoffset": "commitLogMaxOffset",
    "commitlog_minoffset": "commitLogMinOffset",
    "earliest_message_timestamp": "earliestMessageTimeStamp",
}
_RATES: Final = {
    "put_tps": "putTps",
    "getfound_tps": "getFoundTps",
    "getmiss_tps": "getMissTps",
    "gettotal_tps": "getTotalTps",
    "gettransfered_tps": "getTransferedTps",
}
_PURPOSES: Final = ("normal", "retry", "dead letter")
DEFAULT_CLUSTER: Final = "DefaultCluster"
"""``brokerClusterName`` of a broker that sets none; a store knows no other."""


def exporter_metrics(store: BaseStore) -> Iterator[Metric]:
    """Yield what ``/metrics/exporter`` says of a store at this moment."""
    told = store.observation.runtime_info()
    yield from _runtime(store, told)
    broker = {"cluster": DEFAULT_CLUSTER, "broker": socket.gethostname()}
    of_all = broker | {"brokerIP": store.config.store_host}
    for name, key in (("tps", "putTps"), ("qps", "getTransferedTps")):
        yield _gauge(f"rocketmq_broker_{name}", [(of_all, told[key][RATE_SPANS_S.index(60)])])
    yield from _topics(store, broker)
    yield from _groups(store, broker)


def _runtime(store: BaseStore, told: Mapping[str, Any]) -> Iterator[Metric]:
    own = version("rocketstore")
    labels = {
        "cluster": DEFAULT_CLUSTER,
        "brokerIP": store.config.store_host,
        "brokerHost": socket.gethostname(),
        "des": f"rocketstore {own}",
        "boottime": str(told["bootTimestamp"]),
        "broker_version": own,
    }
    numbers = {name: told[key] for name, key in _PLAIN.items()}
    for name, key in _RATES.items():
        spans = zip(RATE_SPANS_S, told[key], strict=True)
        numbers |= {f"{name}{span}": rate for span, rate in spans}
    counts = (one.rpartition(":")[2] for one in told["putMessageDistributeTime"].split())
    numbers |= {f"pmdt_{name}": int(one) for name, one in zip(_PUT_TIMES, counts, strict=True)}
    behind = store.max_physical_offset - store.flushed_physical_offset
    numbers["remain_howmanydata_toflush"] = behind
    if (room := store.disk.room(store.layout.root)) is not None:
        numbers["commitlogdir_capacity_total"], _, numbers["commitlogdir_capacity_free"] = room
    for name, value in numbers.items():
        yield _gauge(_PREFIX + name, [(labels, value)])


def _topics(store: BaseStore, broker: dict[str, str]) -> Iterator[Metric]:
    """Yield the ends of all queues, by topic: the count of messages ever put."""
    ends: Counter[str] = Counter()
    for topic, queue_id in store.queues():
        ends[topic] += store.max_offset(topic, queue_id)
    kinds = ("producer_offset", "topic_retry_offset", "topic_dlq_offset")
    for purpose, kind in zip(_PURPOSES, kinds, strict=True):
        # Dead letters go by the name of their group.
        label = "group" if purpose == "dead letter" else "topic"
        values = [
            (broker | {label: topic.removeprefix(DEAD_LETTER_PREFIX)}, end)
            for topic, end in sorted(ends.items())
            if _purpose(topic) == purpose
        ]
        yield _gauge(f"rocketmq_{kind}", values, [*broker, label])


def _groups(store: BaseStore, broker: dict[str, str]) -> Iterator[Metric]:
    """Yield how far the groups are; how many consumers are online only a broker knows."""
    names = ["group", "topic"]
    groups = [
        ({"group": group, "topic": topic}, places)
        for (topic, group), places in places_of_groups(store)
    ]
    kinds = ("group_diff", "group_retrydiff", "group_dlqdiff")
    for purpose, kind in zip(_PURPOSES, kinds, strict=True):
        diffs = [
            (labels, sum(one.lag for one in places))
            for labels, places in groups
            if _purpose(labels["topic"]) == purpose
        ]
        yield _gauge(f"rocketmq_{kind}", diffs, names)
    offsets = [(broker | labels, sum(one.first for one in places)) for labels, places in groups]
    yield _gauge("rocketmq_consumer_offset", offsets, [*broker, *names])


def _purpose(topic: str) -> str:
    found = purpose_of(topic)
    return found if found in _PURPOSES else "normal"


def _gauge(
    name: str, values: Sequence[tuple[Mapping[str, str], float]], labels: Iterable[str] = ()
) -> Metric:
    """Return a family; its labels are named where it may have no value."""
    names = tuple(labels or values[0][0])
    return Metric("gauge", name, name, {tuple(of[n] for n in names): v for of, v in values}, names)
